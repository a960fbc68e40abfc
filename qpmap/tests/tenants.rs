//! Tenants of an engine share what it sends by weight, whatever number of QPs they have, on
//! whatever connections.

use crate::common::{Node, Pair, RingMemory};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use trunkline_conn::control::CongestionControl;
use trunkline_conn::time::{Instant, MICROSECOND, MILLISECOND};
use trunkline_conn::work::{Remote, SendOp, Status};
use trunkline_qpmap::{QpQueues, Tenant, VerbsError};
use trunkline_wire::{Bth, Opcode, Path, SrcExt};

type Qp = Arc<QpQueues<RingMemory>>;

/// Bytes of a WRITE, and how many each QP posts: more than a test sends.
const LARGE: u32 = 512 << 10;
const POSTED: u64 = 8;

/// Connections, and QPs of tenants that send over them from node 1.
struct Scene {
    pair: Pair,
    /// By the number that packets for its peer carry.
    tenants: BTreeMap<u32, Tenant>,
    qps: Vec<(Tenant, Qp)>,
    /// Between the nodes; `None`: what is sent arrives at once.
    line: Option<Line>,
}

/// A line that all data share, with a queue in front of it.
#[derive(Default)]
struct Line(VecDeque<(Instant, Datagram)>);

type Datagram = (Path, Vec<u8>);

impl Line {
    /// It is so long, and takes a packet each microsecond.
    const DELAY_NS: u64 = 40 * MICROSECOND;

    fn pass(&mut self, now: Instant, datagrams: Vec<Datagram>) -> Vec<Datagram> {
        for datagram in datagrams {
            let free = self
                .0
                .back()
                .map_or(now, |(at, _)| (*at + MICROSECOND).max(now));
            self.0.push_back((free, datagram));
        }
        let arrived = |(left, _): &(Instant, _)| *left + Self::DELAY_NS <= now;
        let arrived = self.0.iter().take_while(|next| arrived(next)).count();
        self.0
            .drain(..arrived)
            .map(|(_, datagram)| datagram)
            .collect()
    }
}

impl Scene {
    /// Tenants of such weights with so many QPs each, all bound to one connection.
    fn new(tenants: &[(u32, usize)]) -> Self {
        Self::over(1, tenants)
    }

    /// The same of several connections: each next QP is bound to the one with the fewest.
    fn over(connections: usize, tenants: &[(u32, usize)]) -> Self {
        Self::controlled(CongestionControl::None, connections, tenants)
    }

    fn controlled(
        control: CongestionControl,
        connections: usize,
        tenants: &[(u32, usize)],
    ) -> Self {
        let mut pair = Pair::new(0);
        pair.control = Some(control);
        (0..connections).for_each(|_| pair.open());
        let (mut qps, mut by_peer) = (Vec::new(), BTreeMap::new());
        for (weight, count) in tenants {
            let added = pair.nodes[1].engine.add_tenant(*weight);
            pair.tenants[1] = added.expect("a weight that may be");
            for _ in 0..*count {
                let [peer, qp] = pair.connected();
                by_peer.insert(peer.qpn.get(), pair.tenants[1]);
                qps.push((pair.tenants[1], qp));
            }
        }
        pair.run(50 * MILLISECOND);
        Self {
            pair,
            tenants: by_peer,
            qps,
            line: None,
        }
    }

    fn post(&self, qp: &Qp, id: u64, bytes: u32) {
        let Node { buffer, key, .. } = &self.pair.nodes[0];
        let target = Remote {
            addr: buffer.addr,
            rkey: *key,
        };
        let from = [self.pair.sge(1, 0, bytes)];
        self.pair.post(1, qp, id, SendOp::Write(target), &from);
    }

    /// All QPs of a tenant have something to send for longer than a test takes.
    fn load(&self, tenant: Tenant) {
        for (_, qp) in self.qps.iter().filter(|(of, _)| *of == tenant) {
            (0..POSTED).for_each(|id| self.post(qp, id, LARGE));
        }
    }

    /// A round of both nodes. Gives the packets of data from node 1: whose, and their bytes.
    fn round(&mut self) -> Vec<(Tenant, usize)> {
        let room = self.pair.room.take();
        self.pair.step(0);
        self.pair.room = room;
        let sent = self.pair.sent_by(1);
        let mut arriving = sent.clone();
        arriving.retain(|(_, datagram)| (self.pair.fate)(1, datagram) > 0);
        if let Some(line) = &mut self.line {
            arriving = line.pass(self.pair.now, arriving);
        }
        self.pair.deliver(0, &arriving);
        self.pair.now = self.pair.now + MICROSECOND;
        let data = sent.iter().filter_map(|(_, datagram)| {
            let (bth, rest) = Bth::read(datagram).expect("a BTH");
            let (ext, _) = SrcExt::read(rest).expect("an extension header");
            let tenant = self.tenants.get(&ext.dest_qp.get());
            (bth.opcode == Opcode::SRC_WRITE).then(|| (*tenant.expect("a peer"), datagram.len()))
        });
        data.collect()
    }
}

/// Bytes of each tenant.
#[derive(Default)]
struct Sent {
    bytes: BTreeMap<u16, usize>,
}

impl Scene {
    /// What tenants send until it is `total` bytes; they are called by their order.
    fn run(&mut self, order: &[Tenant], total: usize) -> Sent {
        let mut sent = Sent::default();
        while sent.bytes.values().sum::<usize>() < total {
            for (tenant, bytes) in self.round() {
                let at = order.iter().position(|of| *of == tenant);
                *sent.bytes.entry(at.expect("a tenant") as u16).or_default() += bytes;
            }
        }
        sent
    }

    /// The tenants, in the order in which they were added.
    fn order(&self) -> Vec<Tenant> {
        let mut order: Vec<Tenant> = self.qps.iter().map(|(of, _)| *of).collect();
        order.dedup();
        order
    }
}

impl Sent {
    /// Each has what its weight says of all, within a tenth of it.
    fn check(&self, weights: &[u32], what: &str) {
        let (all, sum) = (
            self.bytes.values().sum::<usize>(),
            weights.iter().sum::<u32>(),
        );
        for (at, weight) in weights.iter().enumerate() {
            let bytes = self.bytes.get(&(at as u16)).copied().unwrap_or(0);
            let due = all * *weight as usize / sum as usize;
            assert!(
                bytes.abs_diff(due) <= due / 10,
                "{bytes} of {due}, {weights:?} {what}"
            );
        }
    }
}

#[test]
fn tenants_share_what_a_node_sends_however_their_qps_are_spread() {
    for connections in 1..=8 {
        for room in [None, Some(3), Some(50)] {
            let mut scene = Scene::over(connections, &[(1, 1), (1, 200)]);
            let order = scene.order();
            order.iter().for_each(|tenant| scene.load(*tenant));
            scene.pair.room = room;
            let sent = scene.run(&order, 5 << 20);
            sent.check(&[1, 1], &format!("over {connections}, {room:?}"));
        }
    }
}

#[test]
fn tenants_of_other_weights_share_so_too() {
    let weights = [2, 1, 1];
    let mut scene = Scene::over(4, &[(2, 1), (1, 3), (1, 200)]);
    let order = scene.order();
    order.iter().for_each(|tenant| scene.load(*tenant));
    let sent = scene.run(&order, 7 << 20);
    sent.check(&weights, "over 4");
}

#[test]
fn a_tenant_that_cannot_send_holds_nobody_back_and_has_no_claim_later() {
    let mut scene = Scene::over(4, &[(1, 1), (1, 1), (1, 200)]);
    let order = scene.order();
    // All that leaves on the connection of the first one is lost for now.
    let (stuck, others) = scene.qps[0].clone();
    assert_eq!(stuck, order[0]);
    scene.post(&others, 0, 64);
    let first = scene.pair.sent_by(1);
    let [(_, datagram)] = &first[..] else {
        panic!("one packet, and not {}", first.len());
    };
    let number = Bth::read(datagram).expect("a BTH").0.dest_qp;
    scene.pair.fate = Box::new(move |_, datagram| {
        let lost = Bth::read(datagram).is_ok_and(|(bth, _)| bth.dest_qp == number);
        usize::from(!lost)
    });
    const ROOM: usize = 40;
    scene.pair.room = Some(ROOM);
    order.iter().for_each(|tenant| scene.load(*tenant));
    // Until the window of the dead connection is full.
    drop(scene.run(&order, 3 << 20));
    let (mut rounds, mut packets, mut sent) = (0, 0, Sent::default());
    while rounds < 60 {
        rounds += 1;
        for (tenant, bytes) in scene.round() {
            packets += 1;
            let at = order.iter().position(|of| *of == tenant).expect("a tenant");
            if at > 0 {
                *sent.bytes.entry(at as u16 - 1).or_default() += bytes;
            }
        }
    }
    sent.check(&[1, 1], "beside a dead connection");
    assert!(packets * 10 >= rounds * ROOM * 9, "{packets} in {rounds}");
    // All is well again.
    scene.pair.fate = Box::new(|_, _| 1);
    let total = 3 << 19;
    let sent = scene.run(&order, total);
    let [first, second] = [0, 1].map(|at| sent.bytes.get(&at).copied().unwrap_or(0));
    assert!(
        second >= total / 4,
        "{second} of {total}, {first} of the first one"
    );
}

#[test]
fn tenants_share_a_path_that_connections_share_by_their_windows() {
    for connections in [1, 2, 4, 8] {
        let control = CongestionControl::Delay;
        let mut scene = Scene::controlled(control, connections, &[(1, 1), (1, 200)]);
        let order = scene.order();
        scene.line = Some(Line::default());
        order.iter().for_each(|tenant| scene.load(*tenant));
        drop(scene.run(&order, 2 << 20));
        let begun = scene.pair.now;
        let sent = scene.run(&order, 4 << 20);
        let took = scene.pair.now.since(begun);
        sent.check(&[1, 1], &format!("over {connections}"));
        // A packet each microsecond, of a bit more than 1 KiB.
        let least = (4 << 20) / 1100 * MICROSECOND;
        assert!(
            took <= least * 10 / 8,
            "{took} of {least}, over {connections}"
        );
    }
}

#[test]
fn a_thousand_qps_of_one_tenant_get_what_one_of_another_gets() {
    for weights in [[1, 1], [3, 1], [2, 7]] {
        let mut scene = Scene::new(&[(weights[0], 1000), (weights[1], 1)]);
        let [many, one] = [0, 1000].map(|at| scene.qps[at].0);
        // The one first: its WRITEs last longer than the run.
        [one, many].iter().for_each(|tenant| scene.load(*tenant));
        let mut sent = BTreeMap::<u32, usize>::new();
        let mut total = 0;
        while total < 3 << 20 {
            for (tenant, bytes) in scene.round() {
                *sent.entry(u32::from(tenant == one)).or_default() += bytes;
                total += bytes;
            }
        }
        let all = (weights[0] + weights[1]) as usize;
        for (tenant, bytes) in sent {
            let due = total * weights[tenant as usize] as usize / all;
            assert!(
                bytes.abs_diff(due) <= 40 << 10,
                "{bytes} of {due}, {weights:?}"
            );
        }
    }
}

#[test]
fn a_small_message_waits_for_a_few_packets_of_each_other_tenant() {
    let mut scene = Scene::new(&[(1, 500), (1, 500), (1, 1)]);
    let [first, second, small] = [0, 500, 1000].map(|at| scene.qps[at].clone());
    [first.0, second.0]
        .iter()
        .for_each(|tenant| scene.load(*tenant));
    scene.pair.room = Some(4);
    (0..50).for_each(|_| drop(scene.round()));
    for id in 0..50 {
        scene.post(&small.1, id, 64);
        let mut before = BTreeMap::<bool, usize>::new();
        'waiting: loop {
            for (tenant, _) in scene.round() {
                if tenant == small.0 {
                    break 'waiting;
                }
                *before.entry(tenant == first.0).or_default() += 1;
            }
        }
        // A turn of 4,096 bytes, of which the one before may have left a flow's turn.
        let most = before.values().max().copied().unwrap_or(0);
        assert!(most <= 10, "{most} packets of one tenant went before it");
        (0..20).for_each(|_| drop(scene.round()));
    }
}

#[test]
fn a_tenant_whose_qps_are_destroyed_while_they_send_leaves_nothing_behind() {
    let mut scene = Scene::new(&[(1, 40), (5, 1)]);
    let [gone, stays] = [0, 40].map(|at| scene.qps[at].0);
    [gone, stays].iter().for_each(|tenant| scene.load(*tenant));
    (0..20).for_each(|_| drop(scene.round()));
    let users = 40;
    let engine = &mut scene.pair.nodes[1].engine;
    let busy = engine.remove_tenant(gone);
    assert_eq!(
        busy,
        Err(VerbsError::Busy {
            what: "tenant",
            users
        })
    );
    for (_, qp) in scene.qps.iter().filter(|(of, _)| *of == gone) {
        engine.destroy_qp(qp.qpn).expect("it is there");
    }
    engine.remove_tenant(gone).expect("it has no QP any more");
    engine.set_tenant_weight(stays, 1).expect("it is there");
    let mut others = 0;
    for _ in 0..2000 {
        let sent = scene.round();
        others += sent.iter().filter(|(tenant, _)| *tenant == gone).count();
    }
    assert_eq!(others, 0, "packets of QPs that are gone");
    scene.pair.run(100 * MILLISECOND);
    let done = scene.pair.completions(1);
    assert_eq!(done.len() as u64, POSTED);
    assert!(done.iter().all(|done| done.status == Status::Success));
    let live = scene.pair.nodes[1].engine.live_objects();
    assert_eq!((live.flows, live.requests), (1, 0));
}

#[test]
fn a_qp_belongs_to_a_tenant_that_is_there() {
    let mut pair = Pair::new(1);
    let engine = &mut pair.nodes[1].engine;
    let tenant = engine.add_tenant(64).expect("the largest weight");
    pair.tenants[1] = tenant;
    let [_, qp] = pair.connected();
    let engine = &mut pair.nodes[1].engine;
    let init = engine.query_qp_init(qp.qpn).expect("it is there");
    assert_eq!(init.tenant, tenant);
    engine.destroy_qp(qp.qpn).expect("it is there");
    engine.remove_tenant(tenant).expect("nobody uses it");
    let refused = engine.create_qp(&init).map(|qp| qp.qpn);
    assert_eq!(refused, Err(VerbsError::InvalidArgument { what: "tenant" }));
}

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
                silence <= 3 * MILLISECOND,
                "{what}: silent for {silence} ns"
            );
        }
    }
}
