//! Memory that is not there any more, as a program can unmap what it has registered: what needs it
//! fails, with the QP that it is of, and nobody else does.

use crate::common::{Buffer, Pair, RingMemory};
use std::sync::Arc;
use trunkline_conn::mem::{Access, AtomicOp, Sge};
use trunkline_conn::time::{MILLISECOND, SECOND};
use trunkline_conn::work::{Remote, SendOp, Status};
use trunkline_qpmap::{QpQueues, QpState};
use trunkline_wire::{Lkey, Rkey};

type Qp = Arc<QpQueues<RingMemory>>;

/// Bytes of the region, and of what is left of it.
const WHOLE: usize = 1 << 16;
const LEFT: usize = 10_000;
/// More than is left, in some packets.
const LENGTH: u32 = 20_000;

/// Two QPs of two nodes, and two others beside them; a region of one node that loses its end.
struct Scene {
    pair: Pair,
    qps: [Qp; 2],
    others: [Qp; 2],
    memory: Buffer,
    key: Rkey,
}

impl Scene {
    /// With the region at `node`.
    fn new(mut pair: Pair, node: usize) -> Self {
        let (qps, others) = (pair.connected(), pair.connected());
        pair.run(5 * MILLISECOND);
        let memory = Buffer::new(1 << 40, WHOLE);
        let owner = &mut pair.nodes[node];
        let (pd, bytes) = (owner.pd, memory.clone());
        let made = owner.engine.regions().register(pd, bytes, Access::ALL);
        let key = made.expect("a region like others").rkey;
        Self {
            pair,
            qps,
            others,
            memory,
            key,
        }
    }

    fn local(&self, offset: u64, length: u32) -> Sge {
        Sge {
            addr: self.memory.addr + offset,
            length,
            lkey: Lkey(self.key.0),
        }
    }

    const fn remote(&self, offset: u64) -> Remote {
        Remote {
            addr: self.memory.addr + offset,
            rkey: self.key,
        }
    }

    /// What becomes of the requests of `node`, by cookie. Those of the other QPs go on, and the two
    /// end as `states` says.
    fn end(mut self, node: usize, expected: &[(u64, Status)], states: [QpState; 2]) {
        self.pair.run(SECOND);
        let outcomes = |pair: &Pair| -> Vec<_> {
            let done = pair.completions(node).into_iter();
            done.map(|done| (done.wr_id, done.status)).collect()
        };
        let ibta = self.pair.ibta;
        assert_eq!(outcomes(&self.pair), expected, "ibta: {ibta}");
        assert_eq!(self.qps.each_ref().map(|qp| qp.state()), states);
        let to = Remote {
            addr: self.pair.nodes[1].buffer.addr,
            rkey: self.pair.nodes[1].key,
        };
        let from = self.pair.sge(0, 0, 64);
        self.pair
            .post(0, &self.others[0], 77, SendOp::Write(to), &[from]);
        self.pair.run(SECOND);
        if node == 0 {
            assert_eq!(outcomes(&self.pair), [(77, Status::Success)]);
        }
        assert_eq!(self.others[1].state(), QpState::Rts);
    }
}

fn scenes(node: usize) -> [Scene; 2] {
    let mut ibta = Pair::new(0);
    ibta.ibta = true;
    [Pair::new(1), ibta].map(|pair| Scene::new(pair, node))
}

/// A place in the ordinary memory of a node.
fn ordinary(scene: &Scene, node: usize) -> Remote {
    let node = &scene.pair.nodes[node];
    Remote {
        addr: node.buffer.addr + 4096,
        rkey: node.key,
    }
}

const BROKEN: [QpState; 2] = [QpState::Error; 2];

#[test]
fn a_write_from_memory_that_is_gone_fails_here() {
    for scene in scenes(0) {
        scene.memory.unmap(LEFT);
        let (to, from) = (ordinary(&scene, 1), scene.local(0, LENGTH));
        scene
            .pair
            .post(0, &scene.qps[0], 1, SendOp::Write(to), &[from]);
        // Who was sent half a message is told, or not, before its sender goes.
        let peer = match scene.pair.ibta {
            true => QpState::Rts,
            false => QpState::Error,
        };
        let expected = [(1, Status::LocalProtection)];
        scene.end(0, &expected, [QpState::Error, peer]);
    }
}

#[test]
fn a_write_into_memory_that_is_gone_is_refused_with_its_qp() {
    for scene in scenes(1) {
        scene.memory.unmap(LEFT);
        let (to, from) = (scene.remote(0), scene.pair.sge(0, 0, LENGTH));
        scene.pair.nodes[0].buffer.set(0, &[7; LENGTH as usize]);
        scene
            .pair
            .post(0, &scene.qps[0], 1, SendOp::Write(to), &[from]);
        let memory = scene.memory.clone();
        scene.end(0, &[(1, Status::RemoteAccess)], BROKEN);
        assert_eq!(memory.get(LEFT, WHOLE - LEFT), [0; WHOLE - LEFT]);
    }
}

#[test]
fn memory_that_goes_in_the_middle_of_a_stream_ends_that_one() {
    for mut scene in scenes(1) {
        let (to, from) = (scene.remote(0), scene.pair.sge(0, 0, LENGTH));
        scene
            .pair
            .post(0, &scene.qps[0], 1, SendOp::Write(to), &[from]);
        // Some packets have come.
        scene.pair.room = Some(3);
        scene.pair.step(0);
        scene.pair.step(1);
        scene.pair.room = None;
        scene.memory.unmap(0);
        scene.end(0, &[(1, Status::RemoteAccess)], BROKEN);
    }
}

#[test]
fn a_read_of_memory_that_is_gone_is_refused_with_its_qp() {
    for scene in scenes(1) {
        scene.memory.unmap(LEFT);
        let (from, into) = (scene.remote(0), scene.pair.sge(0, 0, LENGTH));
        scene
            .pair
            .post(0, &scene.qps[0], 1, SendOp::Read(from), &[into]);
        scene.end(0, &[(1, Status::RemoteAccess)], BROKEN);
    }
}

#[test]
fn a_read_into_memory_that_is_gone_fails_here() {
    for scene in scenes(0) {
        scene.memory.unmap(LEFT);
        let (from, into) = (ordinary(&scene, 1), scene.local(0, LENGTH));
        scene
            .pair
            .post(0, &scene.qps[0], 1, SendOp::Read(from), &[into]);
        let expected = [(1, Status::LocalProtection)];
        scene.end(0, &expected, [QpState::Error, QpState::Rts]);
    }
}

#[test]
fn an_atomic_on_memory_that_is_gone_is_refused_with_its_qp() {
    for scene in scenes(1) {
        scene.memory.unmap(LEFT);
        let op = AtomicOp::FetchAdd { add: 1 };
        for (wr_id, offset) in [(1, 0), (2, LEFT as u64 + 8)] {
            let atomic = SendOp::Atomic(scene.remote(offset / 8 * 8), op);
            let into = scene.pair.sge(0, 0, 8);
            scene.pair.post(0, &scene.qps[0], wr_id, atomic, &[into]);
        }
        let expected = [(1, Status::Success), (2, Status::RemoteAccess)];
        scene.end(0, &expected, BROKEN);
    }
}

#[test]
fn a_receive_into_memory_that_is_gone_fails_at_both_ends() {
    for own in [0, 1] {
        for scene in scenes(1) {
            scene.memory.unmap(LEFT);
            let into = scene.local(0, LENGTH);
            scene.pair.receive(&scene.qps[1], 9, &[into]);
            let from = scene.pair.sge(0, 0, LENGTH);
            scene.pair.post(0, &scene.qps[0], 1, SendOp::Send, &[from]);
            let expected = match own {
                0 => [(1, Status::RemoteOperation)],
                _ => [(9, Status::LocalProtection)],
            };
            scene.end(own, &expected, BROKEN);
        }
    }
}
