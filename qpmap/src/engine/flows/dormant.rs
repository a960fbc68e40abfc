//! What is kept of a flow that has nothing under way, in a quarter of its bytes.

use crate::engine::qp::{Flags, Flow};
use std::num::NonZeroU32;
use trunkline_wire::Qpn;

/// A flow that has nothing to send, waits for nothing and owes nothing. What else it is made of
/// follows from these and from its QP.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dormant {
    generation: NonZeroU32,
    remote_generation: u32,
    conn: u32,
    /// The message that it sends next: all before are acknowledged.
    msn: u32,
    expected_msn: u32,
    flags: Flags,
    replay_epoch: u8,
    remote_replay_epoch: u8,
}

/// What is known of a pair of QPs for as long as nothing changes it.
const LASTING: [Flags; 6] = [
    Flags::BOUND,
    Flags::PEER_BOUND,
    Flags::ESTABLISHED,
    Flags::UNBOUND,
    Flags::AGREED,
    Flags::LOST,
];

impl Dormant {
    /// What is to be kept of a flow. `None`: that would lose something, as
    /// the flow has something under way.
    pub(super) fn of(flow: &Flow) -> Option<Self> {
        if !flow.flags.is_of(&LASTING) {
            return None;
        }
        let dormant = Self {
            generation: NonZeroU32::new(flow.generation)?,
            remote_generation: flow.remote_generation,
            conn: flow.conn,
            msn: flow.next_msn,
            expected_msn: flow.expected_msn,
            flags: flow.flags,
            replay_epoch: flow.replay_epoch,
            remote_replay_epoch: flow.remote_replay_epoch,
        };
        let again = Flow {
            // Of a turn that is over.
            deficit: flow.deficit,
            ..dormant.flow(flow.qp, flow.remote)
        };
        (again == *flow).then_some(dormant)
    }

    /// The flow that it was, between a QP and `remote`.
    pub(super) const fn flow(&self, qp: u32, remote: Qpn) -> Flow {
        let mut flow = Flow::new(qp, self.conn, remote, self.generation.get());
        flow.remote_generation = self.remote_generation;
        flow.next_msn = self.msn;
        flow.acked_msn = self.msn;
        flow.expected_msn = self.expected_msn;
        flow.flags = self.flags;
        flow.replay_epoch = self.replay_epoch;
        flow.remote_replay_epoch = self.remote_replay_epoch;
        flow
    }

    /// Its connection.
    pub(super) const fn conn(&self) -> u32 {
        self.conn
    }
}

const _: () = assert!(size_of::<Option<Dormant>>() <= 24);

#[cfg(test)]
mod tests {
    use super::*;

    fn idle() -> Flow {
        let mut flow = Flow::new(3, 7, Qpn::from_wire(99), 5);
        flow.remote_generation = 4;
        (flow.next_msn, flow.acked_msn, flow.expected_msn) = (40, 40, 50);
        (flow.replay_epoch, flow.remote_replay_epoch, flow.deficit) = (1, 2, 1000);
        flow.flags.set(Flags::BOUND);
        flow
    }

    #[test]
    fn a_flow_that_was_dormant_is_the_same_but_for_a_turn_that_is_over() {
        let flow = idle();
        let dormant = Dormant::of(&flow).expect("nothing is under way");
        let again = dormant.flow(3, Qpn::from_wire(99));
        assert_eq!(again, Flow { deficit: 0, ..flow });
    }

    /// Whoever gives a flow another field has to say here, too, that it counts.
    #[test]
    fn a_flow_with_anything_under_way_is_not_dormant() {
        let changes: [fn(&mut Flow); 17] = [
            |flow| flow.runnable_link = 0,
            |flow| flow.control_link = 0,
            |flow| flow.rnr_tries = 1,
            |flow| flow.rung = true,
            |flow| flow.in_vain.lost(true),
            |flow| flow.reads_out = 1,
            |flow| flow.asks = 1,
            |flow| flow.watch = 0,
            |flow| flow.acked_msn = 39,
            |flow| flow.head = 0,
            |flow| flow.sending = 0,
            |flow| flow.assembly = 0,
            |flow| flow.staged = 0,
            |flow| flow.ending = crate::engine::ending::Ending::Due,
            |flow| flow.answer = crate::engine::qp::Answer::Rnr(1),
            |flow| flow.flags.set(Flags::ANSWER_DUE),
            |flow| flow.flags.set(Flags::STRANDED),
        ];
        for (at, change) in changes.into_iter().enumerate() {
            let mut flow = idle();
            change(&mut flow);
            assert!(Dormant::of(&flow).is_none(), "change {at}");
        }
    }
}
