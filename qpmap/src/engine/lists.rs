//! The two lists of a connection: flows with something to send, and flows with a notice.
//!
//! Both are linked through the flows in one direction, to keep these small. So a flow that ends
//! while it is in a list stays there, retired, until its turn comes: nothing has to be searched.

use super::qp::{Flags, Flow};
use super::{Engine, Platform, Trace};
use crate::slab::{NONE, Slab};
use std::marker::PhantomData;

/// What strings flows together.
pub(crate) trait Link {
    /// Whether a flow is in such a list.
    const FLAG: Flags;
    fn next(flow: &mut Flow) -> &mut u32;
}

/// Flows with packets to send, in the order of their turns.
#[derive(Debug)]
pub(crate) struct Runnable;

impl Link for Runnable {
    const FLAG: Flags = Flags::RUNNABLE;

    fn next(flow: &mut Flow) -> &mut u32 {
        &mut flow.runnable_next
    }
}

/// Flows with answers or BINDs to send.
#[derive(Debug)]
pub(crate) struct Noticed;

impl Link for Noticed {
    const FLAG: Flags = Flags::NOTICED;

    fn next(flow: &mut Flow) -> &mut u32 {
        &mut flow.notice_next
    }
}

/// The ends of a list.
#[derive(Debug)]
pub(crate) struct List<L> {
    head: u32,
    tail: u32,
    link: PhantomData<L>,
}

impl<L: Link> List<L> {
    pub(crate) const EMPTY: Self = Self {
        head: NONE,
        tail: NONE,
        link: PhantomData,
    };

    pub(crate) const fn is_empty(&self) -> bool {
        self.head == NONE
    }

    /// The first flow, or [`NONE`].
    pub(crate) const fn first(&self) -> u32 {
        self.head
    }

    /// The last flow, or [`NONE`].
    pub(crate) const fn last(&self) -> u32 {
        self.tail
    }

    /// Puts a flow that is in no such list at the end.
    pub(crate) fn push(&mut self, flows: &mut Slab<Flow>, flow: u32) {
        flows[flow].flags.set(L::FLAG);
        *L::next(&mut flows[flow]) = NONE;
        match std::mem::replace(&mut self.tail, flow) {
            NONE => self.head = flow,
            last => *L::next(&mut flows[last]) = flow,
        }
    }

    /// Takes the first flow out; there is one.
    pub(crate) fn pop(&mut self, flows: &mut Slab<Flow>) -> u32 {
        let flow = self.head;
        let record = &mut flows[flow];
        self.head = *L::next(record);
        if self.head == NONE {
            self.tail = NONE;
        }
        record.flags.clear(L::FLAG);
        flow
    }

    /// Takes a flow out, if it is in the list. This walks it.
    fn take(&mut self, flows: &mut Slab<Flow>, flow: u32) {
        if !flows[flow].flags.has(L::FLAG) {
            return;
        }
        let (mut at, mut last) = (self.head, NONE);
        while at != flow {
            last = at;
            at = *L::next(&mut flows[at]);
        }
        let next = *L::next(&mut flows[flow]);
        match last {
            NONE => self.head = next,
            last => *L::next(&mut flows[last]) = next,
        }
        if next == NONE {
            self.tail = last;
        }
        flows[flow].flags.clear(L::FLAG);
    }
}

impl<P: Platform> Engine<P> {
    /// A flow without a connection ends. Its slot is free once it is in no list any more.
    pub(crate) fn retire(&mut self, flow: u32) {
        let record = &mut self.flows[flow];
        let mut retired = Flow::new(NONE, NONE, record.remote, record.generation);
        (retired.runnable_next, retired.notice_next) = (record.runnable_next, record.notice_next);
        for flag in [Flags::RUNNABLE, Flags::NOTICED] {
            if record.flags.has(flag) {
                retired.flags.set(flag);
            }
        }
        *record = retired;
        self.tell(|_| Trace::Ended { flow });
        self.free_retired(flow);
    }

    fn is_retired(&self, flow: u32) -> bool {
        self.flows[flow].qp == NONE
    }

    fn free_retired(&mut self, flow: u32) {
        let flags = self.flows[flow].flags;
        if self.is_retired(flow) && !flags.has(Flags::RUNNABLE) && !flags.has(Flags::NOTICED) {
            self.flows.remove(flow);
        }
    }

    /// The flow whose turn to send it is.
    pub(crate) fn first_runnable(&mut self, conn: u32) -> Option<u32> {
        loop {
            let flow = self.conns[conn].runnable.first();
            if flow == NONE {
                return None;
            }
            if !self.is_retired(flow) {
                return Some(flow);
            }
            self.pop_runnable(conn);
        }
    }

    /// Takes the first flow with something to send out of the list; there is one.
    pub(crate) fn pop_runnable(&mut self, conn: u32) {
        let flow = self.conns[conn].runnable.pop(&mut self.flows);
        self.free_retired(flow);
    }

    /// Takes the next flow with a notice out of the list.
    pub(crate) fn pop_noticed(&mut self, conn: u32) -> Option<u32> {
        while !self.conns[conn].noticed.is_empty() {
            let flow = self.conns[conn].noticed.pop(&mut self.flows);
            if !self.is_retired(flow) {
                return Some(flow);
            }
            self.free_retired(flow);
        }
        None
    }

    /// Empties both lists of a connection that ends.
    pub(crate) fn drop_lists(&mut self, conn: u32) {
        while self.first_runnable(conn).is_some() {
            self.pop_runnable(conn);
        }
        while self.pop_noticed(conn).is_some() {}
    }

    /// Takes a flow out of both lists of its connection, where it goes on with another one. This
    /// walks them: moves are few.
    pub(crate) fn unlist(&mut self, conn: u32, flow: u32) {
        self.conns[conn].runnable.take(&mut self.flows, flow);
        self.conns[conn].noticed.take(&mut self.flows, flow);
    }
}
