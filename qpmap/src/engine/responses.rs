//! Owns the responses of an engine: each is kept from the execution of a READ or atomic until its
//! requester has the result.

use crate::order::before;
use crate::slab::{NONE, Slab};
use std::ops::Index;
use trunkline_wire::Rkey;

/// A response that is being sent or waits for its acknowledgement.
#[derive(Debug)]
pub(crate) struct Response {
    next: u32,
    /// Tells one transmission of it from the start from another one.
    pub(crate) serial: u32,
    pub(crate) msn: u32,
    pub(crate) replay_epoch: u8,
    pub(crate) sent_all: bool,
    pub(crate) outcome: Outcome,
    pub(crate) sent_bytes: u32,
    /// Packets of it in flight.
    pub(crate) unacked: u32,
}

/// What it carries.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Outcome {
    /// Memory, read when the packet is built.
    Read { key: Rkey, addr: u64, length: u32 },
    /// What an atomic found.
    Value(u64),
}

impl Response {
    pub(crate) const fn length(&self) -> u32 {
        match self.outcome {
            Outcome::Read { length, .. } => length,
            Outcome::Value(_) => 8,
        }
    }

    /// Whether it is read from memory when it is sent.
    pub(crate) const fn reads_memory(&self) -> bool {
        matches!(self.outcome, Outcome::Read { .. })
    }

    /// Sends it from its beginning.
    pub(super) const fn restart(&mut self) {
        (self.sent_all, self.sent_bytes, self.unacked) = (false, 0, 0);
    }

    /// Whether a packet of it is under way, or is still to be sent.
    pub(crate) const fn is_under_way(&self) -> bool {
        !self.sent_all || self.unacked > 0
    }
}

/// The responses of one flow, in the order of their messages.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[cfg_attr(test, derive(Hash))]
pub(crate) struct ResponseList(u32);

impl ResponseList {
    /// Without any.
    pub(crate) const EMPTY: Self = Self(NONE);
}

/// The responses of all flows.
#[derive(Debug, Default)]
pub(crate) struct Responses {
    slots: Slab<Response>,
    serial: u32,
}

impl Index<u32> for Responses {
    type Output = Response;

    fn index(&self, at: u32) -> &Response {
        &self.slots[at]
    }
}

impl Responses {
    /// Responses of all flows together.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slots.len() == 0
    }

    /// The response at an index, if it is the transmission `serial` of it.
    pub(crate) fn get(&self, at: u32, serial: u32) -> Option<&Response> {
        let response = self.slots.get(at);
        response.filter(|response| response.serial == serial)
    }

    pub(crate) fn get_mut(&mut self, at: u32, serial: u32) -> Option<&mut Response> {
        let response = self.slots.get_mut(at);
        response.filter(|response| response.serial == serial)
    }

    /// `sent_bytes` of a response, to be counted up while packets of it are built.
    pub(crate) fn progress(&mut self, at: u32) -> &mut u32 {
        &mut self.slots[at].sent_bytes
    }

    /// Packets of a response left, the last one with them where `sent_all`.
    pub(crate) fn sent(&mut self, at: u32, packets: u32, sent_all: bool) {
        let response = &mut self.slots[at];
        response.unacked += packets;
        response.sent_all = sent_all;
    }

    /// The responses of a list, with their indices.
    pub(crate) fn of(&self, list: ResponseList) -> impl Iterator<Item = (u32, &Response)> {
        let at = |index| self.slots.get(index).map(|response| (index, response));
        std::iter::successors(at(list.0), move |(_, response)| at(response.next))
    }

    /// Makes room in a list of at most `limit` for the response to message `msn`, before which
    /// `ahead` READs and atomics of its requester are outstanding: so it says, and those before
    /// them it has done with. Returns false where they are more than the limit.
    ///
    /// What is kept is bounded by that limit, and nothing that the requester may still ask for goes
    /// before it says so.
    pub(crate) fn make_room(
        &mut self,
        list: &mut ResponseList,
        msn: u32,
        ahead: u32,
        limit: u32,
    ) -> bool {
        if ahead >= limit {
            return false;
        }
        let is_earlier = |(_, response): &(u32, &Response)| before(response.msn, msn);
        let kept = self.of(*list).filter(is_earlier).count() as u32;
        for _ in ahead..kept {
            let oldest = list.0;
            self.remove(list, oldest);
        }
        (self.of(*list).count() as u32) < limit
    }

    /// Keeps a response, in the order of messages.
    pub(crate) fn add(
        &mut self,
        list: &mut ResponseList,
        msn: u32,
        replay_epoch: u8,
        outcome: Outcome,
    ) {
        let is_earlier = |(_, response): &(u32, &Response)| before(response.msn, msn);
        let last = self.of(*list).take_while(is_earlier).last();
        let (last, next) = match last {
            Some((last, response)) => (last, response.next),
            None => (NONE, list.0),
        };
        let response = Response {
            next,
            serial: self.next_serial(),
            msn,
            replay_epoch,
            sent_all: false,
            outcome,
            sent_bytes: 0,
            unacked: 0,
        };
        let index = self.slots.insert(response);
        match last {
            NONE => list.0 = index,
            last => self.slots[last].next = index,
        }
    }

    fn next_serial(&mut self) -> u32 {
        self.serial = self.serial.wrapping_add(1);
        self.serial
    }

    /// What the response to message `msn` carries, while it is kept.
    pub(crate) fn outcome(&self, list: ResponseList, msn: u32) -> Option<Outcome> {
        let mut kept = self.of(list);
        kept.find_map(|(_, kept)| (kept.msn == msn).then_some(kept.outcome))
    }

    /// The response to message `msn`, if it is kept, is sent from its beginning. What is still in
    /// flight of it counts no more.
    pub(crate) fn repeat(&mut self, list: ResponseList, msn: u32, replay_epoch: u8) {
        let found = self.of(list).find(|(_, response)| response.msn == msn);
        if let Some((at, _)) = found {
            let serial = self.next_serial();
            let response = &mut self.slots[at];
            (response.serial, response.replay_epoch) = (serial, replay_epoch);
            response.restart();
        }
    }

    /// Drops those responses of a list.
    pub(crate) fn drop_those(
        &mut self,
        list: &mut ResponseList,
        which: impl Fn(&Response) -> bool,
    ) {
        let mut at = list.0;
        while let Some(response) = self.slots.get(at) {
            let next = response.next;
            if which(response) {
                self.remove(list, at);
            }
            at = next;
        }
    }

    /// Drops one response of a list.
    pub(crate) fn remove(&mut self, list: &mut ResponseList, at: u32) {
        let next = self.slots.remove(at).next;
        if list.0 == at {
            list.0 = next;
            return;
        }
        let mut previous = list.0;
        while self.slots[previous].next != at {
            previous = self.slots[previous].next;
        }
        self.slots[previous].next = next;
    }

    /// The response of a list that packets are sent of next.
    #[inline]
    pub(crate) fn next_unsent(&self, list: ResponseList) -> Option<u32> {
        let mut kept = self.of(list);
        kept.find_map(|(at, response)| (!response.sent_all).then_some(at))
    }

    /// A packet of a response was acknowledged. Returns whether the requester has all of it: then
    /// it is dropped.
    pub(crate) fn acked(&mut self, list: &mut ResponseList, at: u32, serial: u32) -> bool {
        let Some(response) = self.get_mut(at, serial) else {
            return false;
        };
        response.unacked = response.unacked.saturating_sub(1);
        let is_done = !response.is_under_way();
        if is_done {
            self.remove(list, at);
        }
        is_done
    }
}

#[cfg(test)]
mod tests;
