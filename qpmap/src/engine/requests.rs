//! Owns the work requests that an engine has taken from rings: in posting order for their QP, in
//! the order of message numbers for their flow.

mod reads;

pub(crate) use reads::Reads;

use super::coverage::Coverage;
use crate::hash::Keyed;
use crate::slab::{NONE, Slab};
use std::ops::{Index, IndexMut};
use trunkline_conn::work::{Request, Status};

/// A work request that the engine has taken from its ring.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) request: Request,
    pub(crate) qp: u32,
    /// What the program called its route; 0 where it named none.
    pub(crate) route: u32,
    /// Next in its flow.
    pub(crate) flow_next: u32,
    /// In the list of [`Reads`].
    next_read: u32,
    /// Of the oldest request of a flow that a READ holds up: see [`reads`].
    executed: u32,
    /// Its neighbours among all requests of its QP.
    order_prev: u32,
    order_next: u32,
    /// Tells this use of the slot from others.
    pub(crate) serial: u32,
    /// Its number, once it has [begun](Self::begun): what the peer says of later ones is a lie.
    pub(crate) msn: u32,
    /// Replay epoch it was last sent in.
    pub(crate) replay_epoch: u8,
    /// Slots of the ring it holds until it completes.
    pub(crate) slots: u16,
    /// READ or atomic data that came back.
    pub(crate) returned: Coverage,
    /// Its response has begun to arrive or has all arrived.
    pub(crate) responded: bool,
    /// Counts towards the READs outstanding: from when it is sent in this epoch, or would be if its
    /// response were not there, until it completes in its turn, as its response is kept for so
    /// long.
    pub(crate) reading: bool,
    /// It was sent again, in a later replay epoch than before.
    pub(crate) repeated: bool,
    /// READs and atomics before it that were outstanding when it was sent.
    pub(crate) ahead: u8,
    /// Some of it was sent, in this replay epoch or an earlier one.
    pub(crate) begun: bool,
    pub(crate) outcome: Option<Status>,
}

impl Pending {
    /// Whether a part of its response has come in the present replay epoch, and more is to come.
    pub(super) const fn has_part_of_response(&self) -> bool {
        let bytes = self.returned.bytes();
        bytes > 0 && bytes < self.request.length
    }

    /// Whether it is a READ or atomic that was sent again in the present replay epoch, and nothing
    /// shows yet that the peer has heard so.
    pub(super) const fn may_be_unheard(&self) -> bool {
        self.reading && self.repeated && !self.responded && self.returned.bytes() == 0
    }

    pub(crate) const fn new(qp: u32, request: Request, route: u32, slots: u16) -> Self {
        Self {
            request,
            qp,
            route,
            flow_next: NONE,
            next_read: NONE,
            executed: NONE,
            order_prev: NONE,
            order_next: NONE,
            serial: 0,
            msn: 0,
            replay_epoch: 0,
            slots,
            returned: Coverage::NOTHING,
            responded: false,
            reading: false,
            repeated: false,
            ahead: 0,
            begun: false,
            outcome: None,
        }
    }
}

/// The requests of one QP, in posting order.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct PostingOrder {
    head: u32,
    tail: u32,
}

impl PostingOrder {
    /// Without any.
    pub(crate) const EMPTY: Self = Self {
        head: NONE,
        tail: NONE,
    };

    /// The request that was posted first.
    #[inline]
    pub(crate) fn first(&self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.head == NONE
    }
}

/// The requests of all QPs.
#[derive(Debug)]
pub(crate) struct Requests {
    slots: Slab<Pending>,
    serial: u32,
    /// Of what covers their responses.
    key: Keyed,
}

impl Index<u32> for Requests {
    type Output = Pending;

    #[inline]
    fn index(&self, at: u32) -> &Pending {
        &self.slots[at]
    }
}

impl IndexMut<u32> for Requests {
    #[inline]
    fn index_mut(&mut self, at: u32) -> &mut Pending {
        &mut self.slots[at]
    }
}

impl Requests {
    /// None. Who knows `key` can make a response look whole that is not.
    pub(crate) const fn new(key: Keyed) -> Self {
        Self {
            slots: Slab::new(),
            serial: 0,
            key,
        }
    }

    /// A piece of the response to a request has come.
    #[inline]
    pub(crate) fn add_response(&mut self, at: u32, offset: u32, length: u32) {
        self.slots[at].returned.add(&self.key, offset, length);
    }

    /// Requests of all QPs together.
    pub(crate) const fn len(&self) -> usize {
        self.slots.len()
    }

    #[inline]
    pub(crate) fn get(&self, at: u32) -> Option<&Pending> {
        self.slots.get(at)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, at: u32) -> Option<&mut Pending> {
        self.slots.get_mut(at)
    }

    /// Takes a request up, behind all of its QP. Returns its index.
    #[inline(always)]
    pub(crate) fn post(&mut self, order: &mut PostingOrder, mut pending: Pending) -> u32 {
        self.serial = self.serial.wrapping_add(1);
        pending.serial = self.serial;
        pending.order_prev = order.tail;
        let index = self.slots.insert(pending);
        match std::mem::replace(&mut order.tail, index) {
            NONE => order.head = index,
            tail => self.slots[tail].order_next = index,
        }
        index
    }

    /// Hangs a request that was just taken up behind all of its flow.
    #[inline(always)]
    pub(crate) fn join(&mut self, (head, tail): (&mut u32, &mut u32), index: u32) {
        match std::mem::replace(tail, index) {
            NONE => *head = index,
            tail => self.slots[tail].flow_next = index,
        }
    }

    /// A request of a QP has ended; its flow has it no more.
    #[inline]
    pub(crate) fn end(&mut self, order: &mut PostingOrder, index: u32) {
        let pending = &self.slots[index];
        let (prev, next) = (pending.order_prev, pending.order_next);
        self.slots.discard(index);
        match prev {
            NONE => order.head = next,
            prev => self.slots[prev].order_next = next,
        }
        match next {
            NONE => order.tail = prev,
            next => self.slots[next].order_prev = prev,
        }
    }
}

#[cfg(test)]
mod tests;
