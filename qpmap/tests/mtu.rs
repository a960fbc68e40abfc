//! Paths whose MTU falls, and grows again, under load.

use crate::common::{Pair, RingMemory};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use trunkline_conn::mem::{AtomicOp, Sge};
use trunkline_conn::time::{MILLISECOND, SECOND};
use trunkline_conn::work::{Completion, Remote, SendOp, Status, WorkOpcode};
use trunkline_qpmap::{QpQueues, QpType};
use trunkline_wire::Gid;

/// Payloads of two pages; what an MTU of 1500 and of 1280 carries.
const LARGE: u32 = 8192 + 80;
const ETHERNET: usize = 1472;
const LEAST: usize = 1232;

/// Slots of memory, and the bytes of each.
const SLOTS: u64 = 16;
const SLOT: u64 = 20_480;
/// Where messages come from, where WRITEs and where SENDs go; what is read; what is counted up.
const WRITTEN: u64 = SLOTS * SLOT;
const RECEIVED: u64 = 2 * WRITTEN;
const READ: u64 = 3 * WRITTEN;
const COUNTER: u64 = READ + SLOT;
const LENGTH: u32 = 20_001;

/// What one node does to the other: WRITEs, SENDs, READs and atomics in turns, all on one QP.
struct Load {
    node: usize,
    qp: Arc<QpQueues<RingMemory>>,
    /// The one kind of request, instead.
    only: Option<u64>,
    posted: u64,
    done: u64,
    received: u64,
    added: u64,
}

impl Load {
    fn new(pair: &Pair, node: usize, qp: Arc<QpQueues<RingMemory>>) -> Self {
        let buffer = &pair.nodes[node].buffer;
        buffer.set(READ as usize, &stamp(77));
        for slot in 0..SLOTS {
            pair.receive(&qp, slot, &[receive_place(pair, node, slot)]);
        }
        Self {
            node,
            qp,
            only: None,
            posted: 0,
            done: 0,
            received: 0,
            added: 0,
        }
    }

    fn kind_of(&self, request: u64) -> u64 {
        self.only.unwrap_or(request % 4)
    }

    fn post(&mut self, pair: &Pair) {
        let (at, slot) = (self.posted, self.posted % SLOTS);
        let own = &pair.nodes[self.node];
        let target = |offset| Remote {
            addr: pair.nodes[1 - self.node].buffer.addr + offset,
            rkey: pair.nodes[1 - self.node].key,
        };
        let kind = self.kind_of(at);
        if kind < 2 {
            own.buffer.set((slot * SLOT) as usize, &stamp(at));
        } else {
            own.buffer
                .set((slot * SLOT) as usize, &[0; LENGTH as usize]);
        }
        let (op, length) = match kind {
            0 => (SendOp::Write(target(WRITTEN + slot * SLOT)), LENGTH),
            1 => (SendOp::Send, LENGTH),
            2 => (SendOp::Read(target(READ)), LENGTH),
            _ => {
                let add = AtomicOp::FetchAdd { add: 1 };
                (SendOp::Atomic(target(COUNTER), add), 8)
            }
        };
        let place = pair.sge(self.node, slot * SLOT, length);
        pair.post(self.node, &self.qp, at, op, &[place]);
        self.posted += 1;
    }

    /// Everything ends well, once and in order, with the bytes that belong there.
    fn take(&mut self, pair: &Pair, done: &Completion) {
        assert_eq!(done.status, Status::Success, "node {}: {done:?}", self.node);
        let (own, other) = (&pair.nodes[self.node], &pair.nodes[1 - self.node]);
        if done.opcode == WorkOpcode::Receive {
            assert_eq!(done.wr_id, self.received % SLOTS);
            let sent = self.received * 4 + 1;
            let at = RECEIVED + done.wr_id * SLOT;
            assert_eq!(own.buffer.get(at as usize, LENGTH as usize), stamp(sent));
            let place = receive_place(pair, self.node, done.wr_id);
            pair.receive(&self.qp, done.wr_id, &[place]);
            self.received += 1;
            return;
        }
        assert_eq!(done.wr_id, self.done);
        let slot = done.wr_id % SLOTS * SLOT;
        let mine = |length: u32| own.buffer.get(slot as usize, length as usize);
        match self.kind_of(done.wr_id) {
            0 => {
                let there = other.buffer.get((WRITTEN + slot) as usize, LENGTH as usize);
                assert_eq!(there, stamp(done.wr_id));
            }
            1 => {}
            2 => assert_eq!(mine(LENGTH), stamp(77)),
            _ => {
                assert_eq!(mine(8), self.added.to_ne_bytes());
                self.added += 1;
            }
        }
        self.done += 1;
    }
}

fn receive_place(pair: &Pair, node: usize, slot: u64) -> Sge {
    pair.sge(node, RECEIVED + slot * SLOT, SLOT as u32)
}

fn stamp(seed: u64) -> Vec<u8> {
    let byte = |i: u32| (u64::from(i) * 31 + seed * 17) as u8;
    (0..LENGTH).map(byte).collect()
}

fn peer_of(node: usize) -> Gid {
    std::net::IpAddr::from([10, 0, 0, 2 - node as u8]).into()
}

/// Two nodes under load in both directions, and what their paths carry.
struct World {
    pair: Pair,
    loads: [Load; 2],
    mtus: [Arc<AtomicUsize>; 2],
    /// Nodes that post requests.
    busy: usize,
}

impl World {
    fn new(connections: usize, loss: u64) -> Self {
        let mut pair = Pair::with(connections, LARGE);
        let mtus = [(); 2].map(|()| Arc::new(AtomicUsize::new(usize::MAX)));
        let limits = mtus.clone();
        let mut state = 1_u64;
        pair.fate = Box::new(move |from, datagram| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let lost = (state >> 33) % 1000 < loss;
            usize::from(!lost && datagram.len() <= limits[from].load(Ordering::Relaxed))
        });
        let qps = [pair.qp(0, QpType::Rc), pair.qp(1, QpType::Rc)];
        pair.connect(0, &qps[0], &qps[1]);
        pair.connect(1, &qps[1], &qps[0]);
        let [a, b] = qps;
        let loads = [Load::new(&pair, 0, a), Load::new(&pair, 1, b)];
        Self {
            pair,
            loads,
            mtus,
            busy: 2,
        }
    }

    fn set_mtus(&self, bytes: [usize; 2]) {
        for (mtu, bytes) in self.mtus.iter().zip(bytes) {
            mtu.store(bytes, Ordering::Relaxed);
        }
    }

    /// Keeps both nodes busy until each has done `count` requests more; the time it takes.
    fn work(&mut self, count: u64) -> u64 {
        let begin = self.pair.now;
        let goal = [0, 1].map(|i| self.loads[i].done + if i < self.busy { count } else { 0 });
        while (0..2).any(|i| self.loads[i].done < goal[i]) {
            for load in &mut self.loads {
                let end = goal[load.node].min(load.done + SLOTS);
                while load.posted < end {
                    load.post(&self.pair);
                }
            }
            self.pair.run(20_000);
            for i in [0, 1] {
                for done in self.pair.completions(i) {
                    self.loads[i].take(&self.pair, &done);
                }
            }
            let took = self.pair.now.since(begin);
            assert!(took < 30 * SECOND, "no end: {goal:?}");
        }
        self.pair.now.since(begin)
    }

    /// The same, while the MTU falls in the middle of it. What goes on takes a second at most.
    fn fall(&mut self, mtus: [usize; 2]) {
        self.work(100);
        for load in &mut self.loads[..self.busy] {
            while load.posted < load.done + SLOTS {
                load.post(&self.pair);
            }
        }
        // In the middle of messages.
        self.pair.run(10_000);
        self.set_mtus(mtus);
        let took = self.work(100);
        println!("{mtus:?}: {took} ns");
        assert!(took < SECOND, "{mtus:?}: {took} ns");
    }

    fn payloads(&self) -> [u32; 2] {
        let [a, b] = self.pair.conns[0];
        [(0, a), (1, b)].map(|(node, conn)| {
            let stats = self.pair.nodes[node].engine.connection_stats(conn);
            stats.expect("it lives").payload
        })
    }

    fn failovers(&self) -> u64 {
        let of = |i: usize| self.pair.nodes[i].engine.counters().failovers;
        of(0) + of(1)
    }
}

#[test]
fn a_path_whose_mtu_falls_under_load_goes_on_within_a_second() {
    for mtus in [
        [ETHERNET; 2],
        [LEAST; 2],
        [ETHERNET, usize::MAX],
        [usize::MAX, ETHERNET],
        [5000, ETHERNET],
    ] {
        for loss in [0, 10] {
            let mut world = World::new(1, loss);
            world.fall(mtus);
            assert_eq!(world.failovers(), 0, "no connection dies of it");
            world.work(200);
        }
    }
}

#[test]
fn one_qp_in_one_direction_goes_on_as_well() {
    for only in [0, 2] {
        let mut world = World::new(1, 0);
        world.busy = 1;
        world.loads[0].only = Some(only);
        world.fall([ETHERNET; 2]);
        world.work(100);
        assert_eq!(world.failovers(), 0);
    }
}

#[test]
fn a_path_that_falls_again_and_again_goes_on_each_time() {
    let mut world = World::new(1, 0);
    for mtus in [[5000; 2], [ETHERNET; 2], [usize::MAX; 2], [LEAST; 2]] {
        world.fall(mtus);
        // Larger sizes are tried meanwhile.
        for _ in 0..50 {
            world.work(20);
            world.pair.run(200 * MILLISECOND);
        }
    }
}

#[test]
fn a_size_that_gets_through_is_found_and_after_ten_minutes_all_are_tried_again() {
    let mut world = World::new(2, 0);
    world.fall([ETHERNET; 2]);
    assert_eq!(world.payloads(), [1152; 2]);
    world.pair.run(10 * SECOND);
    assert_eq!(world.payloads(), [1344; 2]);
    world.work(100);
    world.set_mtus([usize::MAX; 2]);
    world.pair.run(500 * SECOND);
    assert_eq!(world.payloads(), [1344; 2]);
    world.pair.run(800 * SECOND);
    assert_eq!(world.payloads(), [8192; 2]);
    let before = world.pair.nodes[0].engine.counters().sent;
    world.work(100);
    let packets = world.pair.nodes[0].engine.counters().sent - before;
    assert!(packets < 1000, "{packets} packets");
    assert_eq!(world.failovers(), 0);
}

#[test]
fn a_connection_opened_later_knows_what_its_path_carries() {
    let mut world = World::new(1, 0);
    world.fall([ETHERNET; 2]);
    world.pair.open();
    for i in [0, 1] {
        let conn = world.pair.conns[1][i];
        let stats = world.pair.nodes[i].engine.connection_stats(conn);
        assert_eq!(stats.expect("it lives").payload, 1152);
    }
}

#[test]
fn a_port_that_refuses_large_packets_is_believed_at_once() {
    let mut world = World::new(1, 0);
    world.work(100);
    world.set_mtus([ETHERNET; 2]);
    for i in [0, 1] {
        let now = world.pair.now;
        let peer = peer_of(i);
        let engine = &mut world.pair.nodes[i].engine;
        // Of what never was so large it says nothing.
        engine.refused_as_too_long(now, peer, LARGE + 1);
        assert_eq!(engine.counters().narrowed, 0);
        engine.refused_as_too_long(now, peer, LARGE);
        assert_eq!(engine.counters().narrowed, 1);
    }
    let took = world.work(100);
    assert!(took < 100 * MILLISECOND, "{took} ns");
}

/// A port that refuses them has other reasons.
#[test]
fn datagrams_that_every_path_carries_are_never_too_large() {
    let mut pair = Pair::with(1, LARGE);
    let (now, engine) = (pair.now, &mut pair.nodes[0].engine);
    for bytes in [1, LEAST as u32 - 1, LEAST as u32] {
        engine.refused_as_too_long(now, peer_of(0), bytes);
        assert_eq!(engine.counters().narrowed, 0, "{bytes} bytes");
    }
    engine.refused_as_too_long(now, peer_of(0), LEAST as u32 + 1);
    assert_eq!(engine.counters().narrowed, 1);
}

#[test]
fn the_search_for_larger_sizes_ends_with_the_peer_and_leaves_the_next_one_alone() {
    let mut pair = Pair::with(1, LARGE);
    let (now, engine) = (pair.now, &mut pair.nodes[0].engine);
    engine.refused_as_too_long(now, peer_of(0), LARGE);
    engine.drop_peer(peer_of(0));
    pair.run(MILLISECOND);
    // The next one is known by the same index, and nothing of its path is.
    pair.open();
    pair.run(2 * SECOND);
    let engine = &pair.nodes[0].engine;
    let stats = engine.connection_stats(pair.conns[1][0]);
    assert_eq!(stats.expect("it lives").payload, 8192);
}

#[test]
fn an_outage_makes_no_packet_smaller() {
    let mut world = World::new(1, 0);
    for ms in [50, 150, 500, 1500] {
        world.work(100);
        world.set_mtus([0; 2]);
        for load in &mut world.loads {
            while load.posted < load.done + SLOTS {
                load.post(&world.pair);
            }
        }
        world.pair.run(ms * MILLISECOND);
        world.set_mtus([usize::MAX; 2]);
        world.work(100);
        assert_eq!(world.payloads(), [8192; 2], "{ms} ms");
    }
}
