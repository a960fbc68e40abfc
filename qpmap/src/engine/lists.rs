//! The two lists of a connection: flows with something to send, and flows with a notice.

use super::qp::Flow;
use super::{Engine, Platform, Trace};
use crate::chain::{Chain, Chains};
use crate::slab::{NONE, Slab};
use std::marker::PhantomData;

/// Which list of its connection a flow is in.
pub(crate) trait Kind {
    /// Where a flow keeps its link of such a list; [`NONE`] while it is in none.
    fn link(flow: &mut Flow) -> &mut u32;
}

/// Flows with packets to send, in the order of their turns.
#[derive(Debug)]
pub(crate) struct Runnable;

impl Kind for Runnable {
    fn link(flow: &mut Flow) -> &mut u32 {
        &mut flow.runnable_link
    }
}

/// Flows with answers or BINDs to send.
#[derive(Debug)]
pub(crate) struct Noticed;

impl Kind for Noticed {
    fn link(flow: &mut Flow) -> &mut u32 {
        &mut flow.notice_link
    }
}

/// One such list.
#[derive(Debug)]
pub(crate) struct List<K> {
    chain: Chain,
    kind: PhantomData<K>,
}

impl<K: Kind> List<K> {
    pub(crate) const EMPTY: Self = Self {
        chain: Chain::EMPTY,
        kind: PhantomData,
    };

    pub(crate) const fn is_empty(&self) -> bool {
        self.chain.is_empty()
    }

    /// The same list, for who owns it from now on.
    pub(super) const fn handed_over(&self) -> Self {
        Self { ..*self }
    }

    /// The first flow.
    pub(crate) fn first(&self, turns: &Chains<u32>) -> Option<u32> {
        turns.first(self.chain)
    }

    /// The last flow.
    pub(crate) fn last(&self, turns: &Chains<u32>) -> Option<u32> {
        turns.last(self.chain)
    }

    /// Puts a flow that is in no such list at the end.
    pub(crate) fn push(&mut self, turns: &mut Chains<u32>, flows: &mut Slab<Flow>, flow: u32) {
        *K::link(&mut flows[flow]) = turns.push(&mut self.chain, flow);
    }

    /// Takes the first flow out.
    pub(crate) fn pop(&mut self, turns: &mut Chains<u32>, flows: &mut Slab<Flow>) -> Option<u32> {
        let flow = turns.pop(&mut self.chain)?;
        *K::link(&mut flows[flow]) = NONE;
        Some(flow)
    }

    /// Takes a flow out, if it is in the list.
    fn take(&mut self, turns: &mut Chains<u32>, flows: &mut Slab<Flow>, flow: u32) {
        let link = std::mem::replace(K::link(&mut flows[flow]), NONE);
        if link != NONE {
            turns.remove(&mut self.chain, link);
        }
    }
}

impl<P: Platform> Engine<P> {
    /// A flow without a connection ends.
    pub(crate) fn retire(&mut self, flow: u32) {
        self.flows.remove(flow);
        self.emit(|_| Trace::Ended { flow });
    }

    /// The flow whose turn to send it is.
    pub(crate) fn first_runnable(&self, conn: u32) -> Option<u32> {
        self.conns[conn].runnable.first(&self.turns)
    }

    /// Takes the first flow with something to send out of the list; there is one.
    pub(crate) fn pop_runnable(&mut self, conn: u32) {
        let list = &mut self.conns[conn].runnable;
        list.pop(&mut self.turns, &mut self.flows);
    }

    /// Takes the next flow with a notice out of the list.
    pub(crate) fn pop_noticed(&mut self, conn: u32) -> Option<u32> {
        let list = &mut self.conns[conn].noticed;
        list.pop(&mut self.turns, &mut self.flows)
    }

    /// Takes a flow out of both lists of its connection.
    pub(crate) fn unlist(&mut self, conn: u32, flow: u32) {
        let (runnable, noticed) = match self.conns.get_mut(conn) {
            Some(record) => (&mut record.runnable, &mut record.noticed),
            None => {
                let stone = self.tombstones.of_flow(conn);
                (&mut stone.runnable, &mut stone.noticed)
            }
        };
        runnable.take(&mut self.turns, &mut self.flows, flow);
        noticed.take(&mut self.turns, &mut self.flows, flow);
    }
}
