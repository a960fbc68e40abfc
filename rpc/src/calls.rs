//! Requests of a client that are under way on one connection.
//!
//! Each gets exactly one response from the server, also where nobody waits for it any more. Its
//! slot, and the memory that the peer may use for it, are kept until then.

use crate::error::RpcError;
use crate::memory::Region;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::task::{Poll, Waker};
use trunkline::Mr;

/// What came of a request.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The response.
    Bytes(Bytes),
    /// Bytes of the response that lie in its place.
    Written(u32),
}

/// Memory that the peer may use for a request until it has answered.
#[derive(Debug, Default)]
pub(crate) struct Held {
    /// Where its bytes are: the endpoint's, or the caller's.
    pub(crate) copy: Option<Region>,
    pub(crate) from: Option<Arc<Mr>>,
    /// Where the response goes, and how long that is.
    pub(crate) place: Option<(Arc<Mr>, u32)>,
}

/// What a call waits for its turn under, where it does.
pub(crate) type Ticket = Option<NonZeroU64>;

#[derive(Debug)]
enum State {
    Free,
    Waiting(Waker),
    /// Nobody waits for it.
    Abandoned,
    Done(Result<Outcome, RpcError>),
}

#[derive(Debug)]
struct Slot {
    generation: u16,
    state: State,
    /// It has a response, whose bytes are on their way.
    reading: bool,
    held: Option<Box<Held>>,
}

#[derive(Debug)]
pub(crate) struct Calls {
    slots: Vec<Slot>,
    free: Vec<u16>,
    limit: u16,
    /// Calls that wait for a slot, in order.
    queue: BTreeMap<NonZeroU64, Waker>,
    next_ticket: NonZeroU64,
}

impl Calls {
    pub(crate) const fn new(limit: u16) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            limit,
            queue: BTreeMap::new(),
            next_ticket: NonZeroU64::MIN,
        }
    }

    /// Begins a request: returns its ID, or waits for its turn. `ticket` is what it waits under.
    pub(crate) fn begin(&mut self, ticket: &mut Ticket, waker: &Waker) -> Poll<u32> {
        let may = ticket.is_some() || self.queue.is_empty();
        let Some(at) = may.then(|| self.free_slot()).flatten() else {
            let key = *ticket.get_or_insert_with(|| {
                let next = self.next_ticket.saturating_add(1);
                std::mem::replace(&mut self.next_ticket, next)
            });
            self.queue.insert(key, waker.clone());
            return Poll::Pending;
        };
        if let Some(ticket) = ticket.take() {
            self.queue.remove(&ticket);
        }
        let slot = &mut self.slots[usize::from(at)];
        slot.state = State::Waiting(waker.clone());
        Poll::Ready(u32::from(slot.generation) << 16 | u32::from(at))
    }

    /// Keeps what the peer may use for a request until that has its response.
    pub(crate) fn hold(&mut self, id: u32, held: Held) {
        if held.copy.is_some() || held.from.is_some() || held.place.is_some() {
            self.slots[usize::from(id as u16)].held = Some(Box::new(held));
        }
    }

    fn free_slot(&mut self) -> Option<u16> {
        if let Some(at) = self.free.pop() {
            return Some(at);
        }
        let at = u16::try_from(self.slots.len()).ok();
        let at = at.filter(|at| *at < self.limit)?;
        self.slots.push(Slot {
            generation: 0,
            state: State::Free,
            reading: false,
            held: None,
        });
        Some(at)
    }

    /// A call that waited for its turn does so no more: returns who is to be woken instead.
    pub(crate) fn leave(&mut self, ticket: NonZeroU64) -> Option<Waker> {
        match self.queue.remove(&ticket) {
            Some(_) => None,
            // It was woken, and has not taken its turn.
            None => self.next_in_queue(),
        }
    }

    fn next_in_queue(&mut self) -> Option<Waker> {
        self.queue.pop_first().map(|(_, waker)| waker)
    }

    /// The slot of a request that has no response yet.
    fn slot(&mut self, id: u32) -> Result<&mut Slot, &'static str> {
        let slot = self.slots.get_mut(usize::from(id as u16));
        let slot = slot.filter(|slot| u32::from(slot.generation) == id >> 16);
        let waits = |slot: &Slot| matches!(slot.state, State::Waiting(_) | State::Abandoned);
        slot.filter(|slot| waits(slot) && !slot.reading)
            .ok_or("a response to a request that is not under way")
    }

    /// Whether somebody waits for the response to a request under way.
    ///
    /// # Errors
    /// There is no such request.
    pub(crate) fn is_awaited(&mut self, id: u32) -> Result<bool, &'static str> {
        let slot = self.slot(id)?;
        Ok(matches!(slot.state, State::Waiting(_)))
    }

    /// Bytes of the place that the response to a request goes to.
    ///
    /// # Errors
    /// There is no such request, or no place.
    pub(crate) fn place(&mut self, id: u32) -> Result<u32, &'static str> {
        let held = self.slot(id)?.held.as_ref();
        let place = held.and_then(|held| held.place.as_ref());
        let (_, length) = place.ok_or("a response was written where there is no place")?;
        Ok(*length)
    }

    /// A request has a response whose bytes are being read.
    ///
    /// # Errors
    /// There is no such request.
    pub(crate) fn read(&mut self, id: u32) -> Result<(), &'static str> {
        self.slot(id)?.reading = true;
        Ok(())
    }

    /// The bytes of the response to a request were read: returns who is to be woken.
    pub(crate) fn finish_read(&mut self, id: u32, body: Bytes) -> Option<Waker> {
        self.slots[usize::from(id as u16)].reading = false;
        let finished = self.finish(id, Ok(Outcome::Bytes(body)));
        finished.expect("its slot is kept while its response is read")
    }

    /// A request has its response: returns who is to be woken.
    ///
    /// # Errors
    /// There is no such request.
    pub(crate) fn finish(
        &mut self,
        id: u32,
        outcome: Result<Outcome, RpcError>,
    ) -> Result<Option<Waker>, &'static str> {
        let slot = self.slot(id)?;
        slot.held = None;
        let state = std::mem::replace(&mut slot.state, State::Done(outcome));
        Ok(match state {
            State::Waiting(waker) => Some(waker),
            _ => self.free(id),
        })
    }

    /// A slot is free: returns who is to be woken.
    fn free(&mut self, id: u32) -> Option<Waker> {
        let at = id as u16;
        let slot = &mut self.slots[usize::from(at)];
        slot.generation = slot.generation.wrapping_add(1);
        slot.state = State::Free;
        self.free.push(at);
        self.next_in_queue()
    }

    /// What came of a request, if anything has; with it, who is to be woken as there is room.
    pub(crate) fn poll(
        &mut self,
        id: u32,
        waker: &Waker,
    ) -> Poll<(Result<Outcome, RpcError>, Option<Waker>)> {
        let slot = &mut self.slots[usize::from(id as u16)];
        match &mut slot.state {
            State::Waiting(known) => {
                known.clone_from(waker);
                Poll::Pending
            }
            State::Done(outcome) => {
                let taken = Err(RpcError::Cancelled);
                let outcome = std::mem::replace(outcome, taken);
                Poll::Ready((outcome, self.free(id)))
            }
            State::Free | State::Abandoned => unreachable!("who polls has not abandoned it"),
        }
    }

    /// Nobody waits for the response to a request any more. Returns whether the peer is to be told,
    /// and who is to be woken.
    pub(crate) fn abandon(&mut self, id: u32) -> (bool, Option<Waker>) {
        let slot = &mut self.slots[usize::from(id as u16)];
        match slot.state {
            State::Waiting(_) => {
                slot.state = State::Abandoned;
                (true, None)
            }
            State::Done(_) => (false, self.free(id)),
            State::Free | State::Abandoned => unreachable!("it is abandoned once"),
        }
    }

    /// The server takes no more requests: returns all that wait for a slot, to be woken.
    pub(crate) fn dismiss(&mut self) -> impl Iterator<Item = Waker> + use<> {
        std::mem::take(&mut self.queue).into_values()
    }

    /// The connection has failed: no request gets a response any more. Returns all that are to be
    /// woken.
    pub(crate) fn fail(&mut self, why: &RpcError) -> Vec<Waker> {
        let mut woken: Vec<_> = self.dismiss().collect();
        for at in 0..self.slots.len() {
            let slot = &mut self.slots[at];
            slot.reading = false;
            let id = u32::from(slot.generation) << 16 | at as u32;
            if matches!(slot.state, State::Waiting(_) | State::Abandoned) {
                let finished = self.finish(id, Err(why.clone()));
                woken.extend(finished.ok().flatten());
            }
        }
        woken
    }
}

#[cfg(test)]
mod tests;
