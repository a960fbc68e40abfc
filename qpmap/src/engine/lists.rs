//! The two lists of a connection: flows with something to send, and flows with a notice.
//!
//! Both are linked through the flows in one direction, to keep these small. So a flow that ends
//! while it is in a list stays there, retired, until its turn comes: nothing has to be searched.

use super::qp::{Flags, Flow};
use super::{Engine, Platform, Trace};
use crate::slab::NONE;

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
            let flow = self.conns[conn].runnable_head;
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
        let list = &mut self.conns[conn];
        let flow = list.runnable_head;
        let record = &mut self.flows[flow];
        list.runnable_head = record.runnable_next;
        if list.runnable_head == NONE {
            list.runnable_tail = NONE;
        }
        record.flags.clear(Flags::RUNNABLE);
        self.free_retired(flow);
    }

    /// Takes the next flow with a notice out of the list.
    pub(crate) fn pop_noticed(&mut self, conn: u32) -> Option<u32> {
        loop {
            let list = &mut self.conns[conn];
            let flow = list.notice_head;
            if flow == NONE {
                return None;
            }
            let record = &mut self.flows[flow];
            list.notice_head = record.notice_next;
            if list.notice_head == NONE {
                list.notice_tail = NONE;
            }
            record.flags.clear(Flags::NOTICED);
            if !self.is_retired(flow) {
                return Some(flow);
            }
            self.free_retired(flow);
        }
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
        if self.flows[flow].flags.has(Flags::RUNNABLE) {
            let (mut at, mut last) = (self.conns[conn].runnable_head, NONE);
            while at != flow {
                last = at;
                at = self.flows[at].runnable_next;
            }
            let next = self.flows[flow].runnable_next;
            match last {
                NONE => self.conns[conn].runnable_head = next,
                last => self.flows[last].runnable_next = next,
            }
            if next == NONE {
                self.conns[conn].runnable_tail = last;
            }
            self.flows[flow].flags.clear(Flags::RUNNABLE);
        }
        if self.flows[flow].flags.has(Flags::NOTICED) {
            let (mut at, mut last) = (self.conns[conn].notice_head, NONE);
            while at != flow {
                last = at;
                at = self.flows[at].notice_next;
            }
            let next = self.flows[flow].notice_next;
            match last {
                NONE => self.conns[conn].notice_head = next,
                last => self.flows[last].notice_next = next,
            }
            if next == NONE {
                self.conns[conn].notice_tail = last;
            }
            self.flows[flow].flags.clear(Flags::NOTICED);
        }
    }
}
