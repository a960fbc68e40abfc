//! What programs ask for: everything there is, in sizes from nothing to the largest.

use crate::channel::Brings;
use crate::endpoint::{Doing, WORDS};
use crate::options::{between, pick};
use crate::world::{Denied, World};
use std::ops::Range;
use trunkline::{AtomicOp, SendOp, Sge};

/// A request, ready to be posted.
pub(crate) struct Plan {
    pub(crate) op: SendOp,
    pub(crate) what: &'static str,
    pub(crate) sges: Vec<Sge>,
    pub(crate) inline: Option<Vec<u8>>,
    pub(crate) length: usize,
    pub(crate) doing: Doing,
    /// What the model is told.
    pub(crate) effect: Effect,
}

pub(crate) enum Effect {
    None,
    Write {
        at: usize,
        bytes: Vec<u8>,
    },
    Read(Range<usize>),
    Message(Vec<u8>, Brings),
    WriteImm {
        at: usize,
        bytes: Vec<u8>,
        value: u32,
    },
}

impl World {
    pub(crate) fn draw_length(&mut self, limit: usize) -> usize {
        let full = self.options.port.max_datagram;
        let random = &mut self.random;
        let length = match random.below(10) {
            0 => 0,
            1..=3 => between(random, 1, 64) as usize,
            4 | 5 => between(random, 1, 2 * full as u64) as usize,
            // Around what fits a packet.
            6 => (full & !4095).max(full & !63) * pick(random, &[1, 2]) - pick(random, &[0, 1, 64]),
            7 => limit,
            _ => between(random, 0, limit as u64) as usize,
        };
        length.min(limit)
    }

    /// Elements of the pool with `length` bytes in all, and these bytes.
    pub(crate) fn gather(&mut self, endpoint: usize, length: usize) -> (Vec<Sge>, Vec<u8>) {
        let state = &self.endpoints[endpoint];
        let most = state.max_sge.min(if length < 2 { 1 } else { 5 });
        let count = between(&mut self.random, 1, most as u64) as usize;
        let state = &self.endpoints[endpoint];
        let Some(pool) = state.pool.as_ref().filter(|pool| pool.mr().is_some()) else {
            return (Vec::new(), Vec::new());
        };
        let (mut sges, mut bytes) = (Vec::new(), Vec::with_capacity(length));
        for i in 0..count {
            let left = length - bytes.len();
            let share = match i + 1 == count {
                true => left,
                false => self.random.below(left as u64 + 1) as usize,
            };
            let start = self.random.below((pool.len() - share) as u64 + 1) as usize;
            sges.push(pool.region().sge(start, share));
            bytes.extend_from_slice(pool.expected(start..start + share));
        }
        (sges, bytes)
    }

    pub(crate) fn outbound(
        &mut self,
        endpoint: usize,
        limit: usize,
    ) -> (Vec<Sge>, Option<Vec<u8>>, Vec<u8>) {
        let length = self.draw_length(limit);
        let inline = length <= self.endpoints[endpoint].max_inline && self.random.below(3) == 0;
        let (sges, bytes) = self.gather(endpoint, length);
        if inline && bytes.len() == length {
            return (Vec::new(), Some(bytes.clone()), bytes);
        }
        (sges, None, bytes)
    }

    /// Draws a request that must succeed. `None`: nothing can be posted that way now.
    pub(crate) fn plan(&mut self, endpoint: usize, channel: usize) -> Option<Plan> {
        if self.endpoints[endpoint]
            .pool
            .as_ref()
            .is_none_or(|pool| pool.mr().is_none())
        {
            return None;
        }
        let denied = self.endpoints[self.channels[channel].to].denied;
        let allowed = |right| denied != Some(right);
        match self.random.below(16) {
            4..=8 if allowed(Denied::Writes) => self.plan_write(endpoint, channel, false),
            9 if allowed(Denied::Writes) => self.plan_write(endpoint, channel, true),
            10..=12 if allowed(Denied::Reads) => self.plan_read(endpoint, channel),
            13.. if allowed(Denied::Atomics) => self.plan_atomic(endpoint, channel),
            _ => self.plan_send(endpoint, channel),
        }
    }

    pub(crate) fn plan_send(&mut self, endpoint: usize, channel: usize) -> Option<Plan> {
        let to = self.channels[channel].to;
        let limit = self.slot_of(to)?;
        let (sges, inline, bytes) = self.outbound(endpoint, limit);
        let (op, what, brings) = match self.random.below(5) {
            0 | 1 => (SendOp::Send, "SEND", Brings::Nothing),
            2 | 3 => {
                let value = self.random.next_u64() as u32;
                (SendOp::SendImm(value), "SEND_IMM", Brings::Immediate(value))
            }
            _ => {
                let spares = &mut self.endpoints[to].spares;
                let free = spares
                    .iter()
                    .position(|(mr, given)| mr.is_some() && !given)?;
                let key = spares[free].0.as_ref()?.rkey();
                spares[free].1 = true;
                (
                    SendOp::SendInvalidate(key),
                    "SEND_INV",
                    Brings::Invalidates(key, free),
                )
            }
        };
        let length = bytes.len();
        let effect = Effect::Message(bytes, brings);
        Some(Plan {
            op,
            what,
            sges,
            inline,
            length,
            doing: Doing::Sends,
            effect,
        })
    }

    /// Bytes that a message to an endpoint may have.
    pub(crate) fn slot_of(&self, endpoint: usize) -> Option<usize> {
        let state = &self.endpoints[endpoint];
        if let Some(receives) = &state.receives {
            return Some(receives.slot);
        }
        let process = self.places[state.node].processes.get(state.process)?;
        process.srq.as_ref().map(|(.., receives)| receives.slot)
    }

    pub(crate) fn plan_write(
        &mut self,
        endpoint: usize,
        channel: usize,
        imm: bool,
    ) -> Option<Plan> {
        let window = self.channels[channel].window.clone();
        let to = self.channels[channel].to;
        let limit = self.options.largest.min(window.len());
        let (sges, inline, bytes) = self.outbound(endpoint, limit);
        let length = bytes.len();
        let room = (window.len() - length) as u64;
        // Mostly near each other, so that they overlap.
        let near = if self.random.below(3) > 0 {
            room.min(length as u64 / 2 + 8)
        } else {
            room
        };
        let at = window.start + self.random.below(near + 1) as usize;
        let remote = self.endpoints[to].area.as_ref()?.mr()?.remote(at);
        let (op, what, effect) = if imm {
            let value = self.random.next_u64() as u32;
            let effect = Effect::WriteImm { at, bytes, value };
            (SendOp::WriteImm(remote, value), "WRITE_IMM", effect)
        } else {
            (SendOp::Write(remote), "WRITE", Effect::Write { at, bytes })
        };
        Some(Plan {
            op,
            what,
            sges,
            inline,
            length,
            doing: Doing::Sends,
            effect,
        })
    }

    /// Elements of a landing slot with `length` bytes in all, in order.
    pub(crate) fn landing(&mut self, endpoint: usize, length: usize) -> Option<(usize, Vec<Sge>)> {
        let state = &mut self.endpoints[endpoint];
        let mr = state.area.as_ref()?.mr()?;
        let slot = state.landings.take()?;
        let start = state.landings.extent(slot).start;
        let first = match state.max_sge {
            1 => length,
            // The result of an atomic goes into one element.
            _ if length == 8 => length,
            _ => self.random.below(length as u64 + 1) as usize,
        };
        let mut sges = vec![mr.sge(start, first)];
        if first < length {
            sges.push(mr.sge(start + first, length - first));
        }
        Some((slot, sges))
    }

    pub(crate) fn plan_read(&mut self, endpoint: usize, channel: usize) -> Option<Plan> {
        let to = self.channels[channel].to;
        let window = self.channels[channel].window.clone();
        let pool = self.random.below(3) == 0;
        let target = if pool {
            &self.endpoints[to].pool
        } else {
            &self.endpoints[to].area
        };
        let whole = if pool {
            0..target.as_ref()?.len()
        } else {
            window
        };
        target.as_ref()?.mr()?;
        let length = self.draw_length(self.options.largest.min(whole.len()));
        let near = match self.random.below(3) {
            0 => whole.len() - length,
            _ => (whole.len() - length).min(length / 2 + 8),
        };
        let at = whole.start + self.random.below(near as u64 + 1) as usize;
        let (slot, sges) = self.landing(endpoint, length)?;
        let to = &self.endpoints[to];
        let target = if pool { &to.pool } else { &to.area };
        let target = target.as_ref().expect("it was there a moment ago");
        let op = SendOp::Read(target.region().remote(at));
        let (doing, effect) = if pool {
            (
                Doing::ReadsPool(slot, target.expected(at..at + length).to_vec()),
                Effect::None,
            )
        } else {
            (
                Doing::ReadsWindow(slot, length),
                Effect::Read(at..at + length),
            )
        };
        Some(Plan {
            op,
            what: "READ",
            sges,
            inline: None,
            length,
            doing,
            effect,
        })
    }

    pub(crate) fn plan_atomic(&mut self, endpoint: usize, channel: usize) -> Option<Plan> {
        let word = self.random.below(WORDS as u64) as usize;
        let adds = self.random.below(2) == 0;
        let (slot, sges) = self.landing(endpoint, 8)?;
        let swap = self.next_swap;
        let process = self
            .process_at(channel)
            .expect("the receiver's area is there");
        let place = if adds { word } else { WORDS + word };
        let remote = process.words.region().remote(place * 8);
        let (op, what, doing) = if adds {
            let floor = process.counters[word].floor();
            let op = AtomicOp::FetchAdd { add: 1 };
            (op, "FETCH_ADD", Doing::Adds { slot, word, floor })
        } else {
            let compare = process.cells[word].last();
            let op = AtomicOp::CompareSwap { compare, swap };
            self.next_swap += 1;
            (
                op,
                "CMP_SWAP",
                Doing::Swaps {
                    slot,
                    word,
                    compare,
                    swap,
                },
            )
        };
        let op = SendOp::Atomic(remote, op);
        Some(Plan {
            op,
            what,
            sges,
            inline: None,
            length: 8,
            doing,
            effect: Effect::None,
        })
    }
}
