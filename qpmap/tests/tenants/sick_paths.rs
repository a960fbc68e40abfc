//! Tenants that wait for paths which lose packets, or are slow.

use super::scene::{Datagram, LARGE, Line, Scene};
use std::collections::VecDeque;
use trunkline_conn::control::CongestionControl;
use trunkline_conn::time::{Instant, MICROSECOND, MILLISECOND};
use trunkline_conn::work::Status;
use trunkline_qpmap::Tenant;
use trunkline_wire::{Bth, Opcode, SrcExt};

/// The longest turnaround of a path that anybody is held back for.
const MOST_TURNAROUND_NS: u64 = 2 * MILLISECOND;

/// What a connection suffers from.
#[derive(Clone, Copy, Debug, Default)]
struct Sickness {
    /// What is sent arrives so much later, in ns.
    late_ns: u64,
    /// Packets of a hundred that are lost.
    lost: u64,
}

/// Two tenants, each with a connection of its own on a line that they share.
struct Ward {
    scene: Scene,
    /// The number that packets of the first one's connection carry.
    sick: u32,
    late: VecDeque<(Instant, Datagram)>,
}

impl Ward {
    fn new(control: CongestionControl, weight: u32, is_loaded: bool) -> Self {
        let mut scene = Scene::controlled(control, 2, &[(weight, 1), (1, 1)]);
        scene.line = Some(Line::default());
        let qp = scene.qps[0].1.clone();
        scene.post(&qp, 0, 64);
        let first = scene.pair.sent_by(1);
        let sick = Bth::read(&first[0].1).expect("a BTH").0.dest_qp.get();
        scene.pair.deliver(0, &first);
        scene.pair.run(10 * MILLISECOND);
        let order = scene.order();
        scene.load(order[1]);
        if is_loaded {
            scene.load(order[0]);
        }
        let late = VecDeque::new();
        Self { scene, sick, late }
    }

    /// Bytes that the well tenant sends in `span_ns`, and its longest silence in ns.
    fn run(&mut self, sickness: Sickness, span_ns: u64) -> (usize, u64) {
        let well = self.scene.order()[1];
        let until = self.scene.pair.now + span_ns;
        let (mut bytes, mut last, mut silence) = (0, self.scene.pair.now, 0);
        while self.scene.pair.now < until {
            let sent = self.round(sickness, well);
            if sent > 0 {
                silence = silence.max(self.scene.pair.now.since(last));
                last = self.scene.pair.now;
            }
            bytes += sent;
            self.post_anew();
        }
        (bytes, silence.max(self.scene.pair.now.since(last)))
    }

    /// Whoever is done posts again.
    fn post_anew(&mut self) {
        for side in 0..2 {
            for done in self.scene.pair.completions(side) {
                assert_eq!(done.status, Status::Success);
                let mut qps = self.scene.qps.iter();
                let qp = qps.find(|(_, qp)| qp.qpn == done.qpn);
                if let Some((_, qp)) = qp.cloned() {
                    self.scene.post(&qp, 1, LARGE);
                }
            }
        }
    }

    /// Bytes of data that a tenant sends in one round.
    fn round(&mut self, sickness: Sickness, of: Tenant) -> usize {
        let scene = &mut self.scene;
        scene.pair.step(0);
        let (sent, now) = (scene.pair.sent_by(1), scene.pair.now);
        let mut arriving = Vec::new();
        let mut bytes = 0;
        for datagram in sent {
            let (bth, rest) = Bth::read(&datagram.1).expect("a BTH");
            let (ext, _) = SrcExt::read(rest).expect("an extension header");
            if bth.opcode == Opcode::SRC_WRITE && scene.tenants.get(&ext.dest_qp.get()) == Some(&of)
            {
                bytes += datagram.1.len();
            }
            if bth.dest_qp.get() != self.sick {
                arriving.push(datagram);
            } else if bth.psn.get() as u64 * 61 % 100 < sickness.lost {
                // A loss.
            } else if sickness.late_ns > 0 {
                self.late.push_back((now + sickness.late_ns, datagram));
            } else {
                arriving.push(datagram);
            }
        }
        if let Some(line) = &mut scene.line {
            arriving = line.pass(now, arriving);
        }
        while self.late.front().is_some_and(|(at, _)| *at <= now) {
            arriving.extend(self.late.pop_front().map(|(_, datagram)| datagram));
        }
        scene.pair.deliver(0, &arriving);
        scene.pair.now = now + MICROSECOND;
        bytes
    }
}

#[test]
fn who_waits_for_a_path_that_is_sick_holds_back_nobody() {
    const SPAN: u64 = 100 * MILLISECOND;
    for control in [CongestionControl::Delay, CongestionControl::None] {
        let well = Sickness::default();
        let mut ward = Ward::new(control, 1, false);
        ward.run(well, 50 * MILLISECOND);
        let (alone, _) = ward.run(well, SPAN);
        for (late_ms, lost, weight) in [
            (4, 0, 1),
            (4, 0, 64),
            (0, 1, 1),
            (0, 2, 1),
            (0, 2, 64),
            (0, 10, 1),
            (0, 50, 1),
            (0, 50, 64),
            (0, 100, 1),
            (0, 100, 64),
        ] {
            let sickness = Sickness {
                late_ns: late_ms * MILLISECOND,
                lost,
            };
            let mut ward = Ward::new(control, weight, true);
            ward.run(well, 3 * MILLISECOND);
            let (bytes, silence) = ward.run(sickness, SPAN);
            let what = format!("{control:?}, weight {weight}, {sickness:?}: {bytes} of {alone}");
            assert!(bytes * 100 >= alone * 85, "{what}");
            assert!(
                silence <= 2 * MOST_TURNAROUND_NS + MILLISECOND,
                "{what}: silent for {silence} ns"
            );
        }
    }
}
