//! The two lists of a connection: flows with something to send, and flows with a control message.

use crate::chain::{Chain, Chains};
use crate::engine::qp::Flow;
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
pub(crate) struct ControlDue;

impl Kind for ControlDue {
    fn link(flow: &mut Flow) -> &mut u32 {
        &mut flow.control_link
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
    pub(crate) const fn handed_over(&self) -> Self {
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
    pub(crate) fn take(&mut self, turns: &mut Chains<u32>, flows: &mut Slab<Flow>, flow: u32) {
        let link = std::mem::replace(K::link(&mut flows[flow]), NONE);
        if link != NONE {
            turns.remove(&mut self.chain, link);
        }
    }
}
