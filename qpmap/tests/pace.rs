//! A path that lets little through: what answers and what binds is not held up by data.

use crate::common::{Pair, RingMemory};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use trunkline_conn::control::CongestionControl;
use trunkline_conn::time::{Instant, MILLISECOND, SECOND};
use trunkline_conn::work::{Remote, SendOp};
use trunkline_qpmap::QpQueues;
use trunkline_wire::{Bth, Opcode, Path};

/// The round trip.
const RTT: u64 = MILLISECOND;
/// What the port of node 1 may send, in bits per second: a packet of data in 44 round trips.
const RATE: u64 = 200_000;
/// Requests of the stream have this number.
const STREAM: u64 = 1 << 32;

/// What is on its way: when it arrives, at which node, and what it is.
type Flying = (Instant, usize, Vec<(Path, Vec<u8>)>);

/// Two nodes, half a round trip from each other. Node 1 sends large WRITEs all the time.
struct Crawl {
    pair: Pair,
    flying: VecDeque<Flying>,
    /// Packets of data that node 1 has sent; two of three are lost, in a run of six.
    data: u64,
    /// Packets of control messages of node 1 that get lost.
    control_to_lose: u32,
}

fn opcode(datagram: &[u8]) -> Opcode {
    Bth::read(datagram).expect("a BTH").0.opcode
}

impl Crawl {
    fn new(control: CongestionControl) -> Self {
        let mut pair = Pair::configured(0, 1024 + 80, |config| {
            if config.address == IpAddr::from([10, 0, 0, 2]) {
                config.link_rate_bps = Some(RATE);
            }
        });
        pair.control = Some(control);
        pair.open();
        let [_, stream] = pair.connected();
        let node = &pair.nodes[0];
        let target = SendOp::Write(Remote {
            addr: node.buffer.addr + 4096,
            rkey: node.key,
        });
        for _ in 0..8 {
            let bytes = pair.sge(1, 0, 256 << 10);
            pair.post(1, &stream, STREAM, target, &[bytes]);
        }
        let mut crawl = Self {
            pair,
            flying: VecDeque::new(),
            data: 0,
            control_to_lose: 0,
        };
        crawl.run(SECOND, |_| false);
        assert!(crawl.data > 10, "{control:?}: {} packets", crawl.data);
        crawl
    }

    /// Goes on for `span_ns`, or until `done`. How long that took.
    fn run(&mut self, span_ns: u64, mut done: impl FnMut(&Self) -> bool) -> u64 {
        let begin = self.pair.now;
        let end = begin + span_ns;
        while self.pair.now < end && !done(self) {
            let mut moved = false;
            while let Some((at, ..)) = self.flying.front()
                && *at <= self.pair.now
                && let Some((_, to, datagrams)) = self.flying.pop_front()
            {
                self.pair.deliver(to, &datagrams);
                moved = true;
            }
            for from in [0, 1] {
                let mut sent = self.pair.sent_by(from);
                moved |= !sent.is_empty() || self.pair.nodes[from].engine.is_busy();
                sent.retain(|(_, datagram)| self.arrives(from, datagram));
                let at = self.pair.now + RTT / 2;
                self.flying.push_back((at, 1 - from, sent));
            }
            let timers = [0, 1].map(|i| self.pair.nodes[i].engine.poll_timeout());
            let arrival = self.flying.front().map(|(at, ..)| *at);
            let next = timers.into_iter().flatten().chain(arrival).min();
            let step = self.pair.now + 1_000;
            self.pair.now = match next {
                Some(next) if !moved => next.max(step).min(end),
                _ => step,
            };
        }
        self.pair.now.since(begin)
    }

    fn arrives(&mut self, from: usize, datagram: &[u8]) -> bool {
        if from == 0 {
            return true;
        }
        match opcode(datagram) {
            Opcode::SRC_WRITE => {
                self.data += 1;
                self.data % 18 < 6
            }
            Opcode::SRC_ANSWERS | Opcode::SRC_CONTROL if self.control_to_lose > 0 => {
                self.control_to_lose -= 1;
                false
            }
            _ => true,
        }
    }
}

/// Node 0 sends something that node 1 answers; how long that takes.
fn ask(crawl: &mut Crawl, [a, b]: &[Arc<QpQueues<RingMemory>>; 2]) -> u64 {
    crawl.pair.receive(b, 1, &[crawl.pair.sge(1, 8192, 64)]);
    let place = crawl.pair.sge(0, 0, 64);
    crawl.pair.post(0, a, 7, SendOp::Send, &[place]);
    crawl.run(SECOND, |crawl| !crawl.pair.completions(0).is_empty())
}

const CONTROLS: [CongestionControl; 3] = [
    CongestionControl::None,
    CongestionControl::Dcqcn,
    CongestionControl::Delay,
];

#[test]
fn what_answers_is_held_up_by_no_data_at_any_pace() {
    for control in CONTROLS {
        let mut crawl = Crawl::new(control);
        let qps = crawl.pair.connected();
        crawl.run(100 * RTT, |_| false);
        for turn in 0..20 {
            // Sooner or later in the time between two packets of data.
            let took = ask(&mut crawl, &qps);
            assert!(took <= 4 * RTT, "{control:?}: {took} ns at turn {turn}");
            crawl.run(turn * RTT / 3, |_| false);
        }
    }
}

#[test]
fn what_binds_is_held_up_by_no_data_at_any_pace() {
    for control in CONTROLS {
        let mut crawl = Crawl::new(control);
        for pair in 0..10 {
            let qps = crawl.pair.connected();
            let took = ask(&mut crawl, &qps);
            assert!(took <= 6 * RTT, "{control:?}: {took} ns for pair {pair}");
        }
    }
}

#[test]
fn what_answers_and_gets_lost_is_said_again_before_any_data() {
    for control in CONTROLS {
        let mut crawl = Crawl::new(control);
        let qps = crawl.pair.connected();
        crawl.run(100 * RTT, |_| false);
        for turn in 0..20 {
            crawl.control_to_lose = 1;
            let took = ask(&mut crawl, &qps);
            assert!(took <= 12 * RTT, "{control:?}: {took} ns at turn {turn}");
            crawl.run(turn * RTT / 3, |_| false);
        }
    }
}

/// Where packets may be as large as what pacing lets go at once, a grant of one packet is one of
/// full size: many small ones take its place.
#[test]
fn small_messages_that_wait_leave_in_one_round_on_a_path_of_large_packets() {
    for control in CONTROLS {
        let mut pair = Pair::configured(0, 65_507, |_| {});
        pair.control = Some(control);
        pair.open();
        let qps: Vec<_> = (0..16).map(|_| pair.connected()).collect();
        pair.run(10 * MILLISECOND);
        for (a, b) in qps.iter().map(|[a, b]| (a, b)) {
            for wr_id in 0..4 {
                pair.receive(b, wr_id, &[pair.sge(1, 0, 64)]);
                pair.post(0, a, wr_id, SendOp::Send, &[pair.sge(0, 0, 64)]);
            }
        }
        let sent = pair.sent_by(0);
        let sends = |(_, datagram): &&(Path, Vec<u8>)| opcode(datagram) == Opcode::SRC_SEND;
        assert_eq!(sent.iter().filter(sends).count(), 64, "{control:?}");
    }
}

/// A round takes about as long as pacing waits for a packet on a fast path: who has sent what it
/// may is asked again in the next round, before its worker sleeps.
#[test]
fn who_sent_what_pacing_lets_go_has_another_round_before_the_worker_sleeps() {
    let mut pair = Pair::configured(0, 65_507, |config| {
        config.link_rate_bps = Some(10_000_000_000);
    });
    pair.control = Some(CongestionControl::Delay);
    pair.open();
    let [a, b] = pair.connected();
    let send = |pair: &mut Pair, wr_id, length| {
        pair.receive(&b, wr_id, &[pair.sge(1, 0, length)]);
        let bytes = pair.sge(0, 0, length);
        pair.post(0, &a, wr_id, SendOp::Send, &[bytes]);
    };
    send(&mut pair, 0, 64);
    // The engine knows the QP from here on, and has no other work.
    pair.run(10 * MILLISECOND);
    assert!(!pair.nodes[0].engine.is_busy());
    send(&mut pair, 1, 256 << 10);
    let sent = pair.sent_by(0).len();
    assert!((1..4).contains(&sent), "{sent} left at once");
    let engine = &pair.nodes[0].engine;
    assert!(engine.is_busy(), "it sleeps after {sent}");
}
