//! Whose turn it is on a connection: how much others send there while a request of a QP that had
//! nothing to send waits to leave. Invariant 4 of the design: a few packets, whatever they do.

use super::flow::{Flow, Shared};
use std::collections::{BTreeMap, BTreeSet};
use trunkline_wire::Qpn;

/// Bytes that a flow sends in a turn beside others; at least a whole packet.
const TURN: u64 = 4096;

/// A connection, in one direction: the nodes, and the number of the end that receives.
type Way = ((usize, usize), Qpn);

/// A request that has not left.
#[derive(Debug)]
struct Waiting {
    way: Way,
    since: u64,
    /// Bytes that others have sent over its connection since then.
    others: BTreeMap<Flow, u64>,
}

/// The flows of a run.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// Bytes that a flow may send while another one waits.
    most: u64,
    /// Over which connection each flow sent last.
    ways: BTreeMap<Flow, Way>,
    waiting: BTreeMap<Flow, Waiting>,
    /// Flows that their programs moved.
    moved: BTreeSet<Flow>,
    unfair: Option<(Flow, String)>,
}

impl Turns {
    /// Packets have so many bytes at most.
    pub(super) fn largest(&mut self, datagram: usize) {
        let packet = datagram as u64;
        // A turn ends with the packet that uses it up, and one may have just begun.
        self.most = 2 * (TURN.max(packet) + packet);
    }

    /// A QP that has nothing under way posts a request. Its connection is the one it sent over
    /// last: a flow that never sent may have to wait for other things.
    pub(crate) fn runnable(&mut self, now: u64, flow: Flow) {
        if let Some(way) = self.ways.get(&flow)
            && !self.moved.contains(&flow)
        {
            let waiting = Waiting {
                way: *way,
                since: now,
                others: BTreeMap::new(),
            };
            self.waiting.entry(flow).or_insert(waiting);
        }
    }

    /// A flow has to agree with its peer before it goes on, on whatever connection.
    pub(crate) fn agrees(&mut self, flow: Flow) {
        self.ways.remove(&flow);
        self.waiting.remove(&flow);
    }

    /// A flow begins a life.
    pub(crate) fn begins(&mut self, flow: Flow) {
        self.agrees(flow);
        self.moved.remove(&flow);
    }

    /// The program moves a flow to another connection, once what was begun has ended: from now on
    /// nobody here knows which one it waits for.
    pub(crate) fn moves(&mut self, flow: Flow) {
        self.agrees(flow);
        self.moved.insert(flow);
    }

    /// A packet leaves; `content` is what follows its headers.
    pub(super) fn left(&mut self, now: u64, packet: &Shared, content: &[u8]) {
        for (flow, _) in packet.binds(content) {
            self.agrees(flow);
        }
        // What is lost goes again before anything new.
        if !packet.is_of_flow() || packet.ext.attempt > 0 {
            return;
        }
        let (flow, way) = (packet.flow, (packet.flow.nodes, packet.conn));
        // What comes back to a peer needs no consent of its.
        if packet.is_request() {
            self.ways.insert(flow, way);
        }
        self.waiting.remove(&flow);
        if self.waiting.is_empty() {
            return;
        }
        for (behind, waiting) in &mut self.waiting {
            if waiting.way != way {
                continue;
            }
            let sent = waiting.others.entry(flow).or_default();
            *sent += packet.length;
            if *sent > self.most {
                let what = format!(
                    "{flow:?} sent {sent} bytes over {:?} while a request of {behind:?} waited, \
                     which was posted at {} us, {} us before: {} at most",
                    way.1,
                    waiting.since / 1000,
                    (now - waiting.since) / 1000,
                    self.most
                );
                self.unfair = Some((*behind, what));
            }
        }
    }

    /// A flow that others left no turn, and what they did.
    pub(crate) const fn take_unfair(&mut self) -> Option<(Flow, String)> {
        self.unfair.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline_wire::{Opcode, SrcExt};

    const NODES: (usize, usize) = (0, 1);

    fn flow(qp: u32) -> Flow {
        Flow {
            nodes: NODES,
            qps: (Qpn::from_wire(qp), Qpn::from_wire(qp + 100)),
        }
    }

    fn packet(qp: u32, conn: u32, attempt: u8) -> Shared {
        Shared {
            opcode: Opcode::SRC_WRITE,
            conn: Qpn::from_wire(conn),
            flow: flow(qp),
            ext: SrcExt {
                attempt,
                ..SrcExt::default()
            },
            length: 1000,
        }
    }

    /// What others may send: 10,192 bytes.
    fn turns() -> Turns {
        let mut turns = Turns::default();
        turns.largest(1000);
        for qp in [1, 2, 3] {
            turns.left(0, &packet(qp, 7, 0), &[]);
        }
        turns
    }

    #[test]
    fn who_sends_more_than_two_turns_while_another_waits_is_found() {
        let mut turns = turns();
        turns.runnable(0, flow(1));
        (0..10).for_each(|_| turns.left(1, &packet(2, 7, 0), &[]));
        assert_eq!(turns.take_unfair(), None);
        turns.left(2, &packet(2, 7, 0), &[]);
        assert_eq!(turns.take_unfair().map(|unfair| unfair.0), Some(flow(1)));
    }

    #[test]
    fn what_is_no_turn_of_another_on_the_same_connection_does_not_count() {
        let mut turns = turns();
        turns.runnable(0, flow(1));
        for _ in 0..10 {
            // Two of them, another connection, and what was lost.
            turns.left(1, &packet(2, 7, 0), &[]);
            turns.left(1, &packet(3, 7, 0), &[]);
            turns.left(1, &packet(4, 8, 0), &[]);
            turns.left(1, &packet(2, 7, 1), &[]);
        }
        turns.left(1, &packet(1, 7, 0), &[]);
        (0..20).for_each(|_| turns.left(1, &packet(2, 7, 0), &[]));
        assert_eq!(turns.take_unfair(), None);
    }

    #[test]
    fn nobody_waits_whose_connection_is_not_known() {
        for moves in [Turns::moves, Turns::agrees] {
            let mut turns = turns();
            moves(&mut turns, flow(1));
            turns.runnable(0, flow(1));
            (0..20).for_each(|_| turns.left(1, &packet(2, 7, 0), &[]));
            assert_eq!(turns.take_unfair(), None);
        }
    }

    #[test]
    fn who_answers_while_it_waits_for_consent_does_not_wait_for_its_turn() {
        let mut turns = turns();
        // Its BIND leaves, then data of a READ that its peer had sent; nobody has agreed yet.
        turns.agrees(flow(1));
        let answer = Shared {
            opcode: Opcode::SRC_READ_RESP,
            ..packet(1, 7, 0)
        };
        turns.left(1, &answer, &[]);
        turns.runnable(2, flow(1));
        (0..20).for_each(|_| turns.left(2, &packet(2, 7, 0), &[]));
        assert_eq!(turns.take_unfair(), None);
    }
}
