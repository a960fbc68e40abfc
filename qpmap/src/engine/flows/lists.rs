//! Lists of flows: of a lane, those with something to send; of a connection, those with a control
//! message.

use crate::chain::{Chain, Chains};
use crate::engine::qp::Flow;
use crate::slab::{NONE, Slab};
use std::marker::PhantomData;

/// Which list a flow is in.
pub(crate) trait Kind {
    /// Where a flow keeps its link of such a list; [`NONE`] while it is in none.
    fn link(flow: &mut Flow) -> &mut u32;
}

/// Flows with packets to send, in the order of their links.
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
    pub(crate) fn first(&self, links: &Chains<u32>) -> Option<u32> {
        links.first(self.chain)
    }

    /// Whether a flow is the first one of these, of which there are some.
    pub(crate) fn begins_with(&self, flows: &mut Slab<Flow>, flow: u32) -> bool {
        let record = flows.get_mut(flow);
        record.is_some_and(|flow| *K::link(flow) == self.chain.first_link())
    }

    /// The same, and whether there is no other.
    pub(crate) fn front(&self, links: &Chains<u32>) -> Option<(u32, bool)> {
        let (flow, is_only) = links.front(self.chain)?;
        Some((*flow, is_only))
    }

    /// Puts the first flow at the end.
    pub(crate) fn rotate(&mut self, links: &Chains<u32>) {
        links.rotate(&mut self.chain);
    }

    /// Puts a flow that is in no such list at the end.
    pub(crate) fn push(&mut self, links: &mut Chains<u32>, flows: &mut Slab<Flow>, flow: u32) {
        *K::link(&mut flows[flow]) = links.push(&mut self.chain, flow);
    }

    /// Takes the first flow out.
    pub(crate) fn pop(&mut self, links: &mut Chains<u32>, flows: &mut Slab<Flow>) -> Option<u32> {
        let flow = links.pop(&mut self.chain)?;
        *K::link(&mut flows[flow]) = NONE;
        Some(flow)
    }

    /// Takes a flow out, if it is in the list.
    pub(crate) fn take(&mut self, links: &mut Chains<u32>, flows: &mut Slab<Flow>, flow: u32) {
        let link = std::mem::replace(K::link(&mut flows[flow]), NONE);
        if link != NONE {
            links.remove(&mut self.chain, link);
        }
    }
}
