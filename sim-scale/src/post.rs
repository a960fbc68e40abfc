//! What programs post: everything there is, in sizes from nothing to the largest.

use crate::channel::{Brings, Message};
use crate::endpoint::{Cookie, Doing, Expect, Posted, Stage, WORDS};
use crate::failure::Verdict;
use crate::options::{MS, US, between, pick};
use crate::setup::refused;
use crate::trace::Event;
use crate::world::{Action, Doom, Phase, World};
use std::ops::Range;
use trunkline::{AtomicOp, Remote, Rkey, SendFlags, SendOp, SendWr, Sge, Status};

/// A request, ready to be posted.
struct Plan {
    op: SendOp,
    what: &'static str,
    sges: Vec<Sge>,
    inline: Option<Vec<u8>>,
    length: usize,
    doing: Doing,
    /// What the model is told.
    effect: Effect,
}

enum Effect {
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
    /// An endpoint posts a burst of requests, and plans the next.
    pub(crate) fn post(&mut self, endpoint: usize) -> Verdict {
        if self.endpoints[endpoint].stage != Stage::Live || self.calm {
            return Ok(());
        }
        if self.now < self.idle_until {
            let delay = self.idle_until - self.now;
            self.after(delay, Action::Post(endpoint));
            return Ok(());
        }
        let burst = pick(&mut self.random, &[1, 1, 2, 5, 16]);
        for i in 0..burst {
            let state = &self.endpoints[endpoint];
            if self.left == 0 || state.posted.len() >= state.max_send || state.outgoing.is_empty() {
                break;
            }
            let last = i + 1 == burst || state.posted.len() + 1 >= state.max_send;
            self.post_one(endpoint, last || self.left == 1)?;
        }
        self.seal(endpoint)?;
        self.places[self.endpoints[endpoint].node].stirred = true;
        if self.left > 0 {
            let pause = match self.random.below(8) {
                0 => MS,
                1 | 2 => 100 * US,
                _ => 10 * US,
            };
            let delay = between(&mut self.random, 0, pause);
            self.after(delay, Action::Post(endpoint));
        }
        Ok(())
    }

    /// Makes sure that the last request of an endpoint completes visibly, room permitting.
    fn seal(&mut self, endpoint: usize) -> Verdict {
        let state = &self.endpoints[endpoint];
        if state.silent > 0 && state.posted.len() < state.max_send {
            self.post_one(endpoint, true)?;
        }
        Ok(())
    }

    /// One more request, so that all before it are known to have ended.
    pub(crate) fn nudge(&mut self, endpoint: usize) -> Verdict {
        if self.endpoints[endpoint].posted.len() < self.endpoints[endpoint].max_send {
            self.post_one(endpoint, true)?;
            self.places[self.endpoints[endpoint].node].stirred = true;
        }
        Ok(())
    }

    fn post_one(&mut self, endpoint: usize, signaled: bool) -> Verdict {
        let outgoing = &self.endpoints[endpoint].outgoing;
        let channel = outgoing[self.random.below(outgoing.len() as u64) as usize];
        let to = self.channels[channel].to;
        if self.endpoints[to].area.is_none() || self.channels[channel].closed {
            return Ok(());
        }
        let Some(plan) = self.plan(endpoint, channel) else {
            return Ok(());
        };
        let signaled = signaled || self.endpoints[endpoint].silent >= 6 || self.random.below(5) < 3;
        let fence = self.random.below(7) == 0;
        let solicited = self.random.below(5) == 0;
        self.submit(
            endpoint,
            channel,
            plan,
            (signaled, fence, solicited),
            Expect::Success,
        )
    }

    fn submit(
        &mut self,
        endpoint: usize,
        channel: usize,
        plan: Plan,
        (signaled, fence, solicited): (bool, bool, bool),
        expect: Expect,
    ) -> Verdict {
        let seq = self.endpoints[endpoint].next_seq;
        let cookie = Cookie::Send(endpoint, seq);
        let event = Event::Posted {
            endpoint: endpoint as u32,
            wr_id: cookie.word(),
            what: plan.what,
            length: plan.length as u32,
        };
        self.network.net().trace.record(self.now, event);
        let mut flags = SendFlags::default();
        for (wanted, flag) in [
            (signaled, SendFlags::SIGNALED),
            (fence, SendFlags::FENCE),
            (
                solicited && plan.op.consumes_receive(),
                SendFlags::SOLICITED,
            ),
        ] {
            if wanted {
                flags = flags.with(flag);
            }
        }
        let request = SendWr {
            wr_id: cookie.word(),
            op: plan.op,
            flags,
            sges: &plan.sges,
            inline: plan.inline.as_deref(),
            route: self.channels[channel].route,
        };
        let state = &self.endpoints[endpoint];
        let Some(qp) = &state.qp else { return Ok(()) };
        if let Err(error) = qp.post_send(&[request]) {
            if let Some(slot) = plan.doing.landing() {
                self.endpoints[endpoint].landings.give(slot);
            }
            // A QP in error may say so before its completions have been read.
            return match self.groups[state_group(self, endpoint)].doom {
                Some(_) => Ok(()),
                None => Err(refused("post_send")(error)),
            };
        }
        self.left = self.left.saturating_sub(1);
        self.tally.posted += 1;
        let expect = match (self.endpoints[endpoint].poisoned, expect) {
            (true, _) => Expect::Flushed,
            (false, expect) => expect,
        };
        self.tell(channel, seq, plan.effect, expect == Expect::Success);
        if fence {
            self.channels[channel].fence(seq);
        }
        if expect == Expect::Success {
            self.count_word(channel, &plan.doing);
        }
        let state = &mut self.endpoints[endpoint];
        state.next_seq += 1;
        state.silent = if signaled || state.signal_all {
            0
        } else {
            state.silent + 1
        };
        state.posted.push_back(Posted {
            seq,
            channel,
            doing: plan.doing,
            signaled,
            expect,
            at: self.now,
        });
        Ok(())
    }

    /// Tells the model what a request will do; `good`: unless something goes wrong.
    fn tell(&mut self, channel: usize, seq: u64, effect: Effect, good: bool) {
        let channel = &mut self.channels[channel];
        match effect {
            Effect::None => {}
            Effect::Write { at, bytes } if good => channel.post_write(seq, at, bytes),
            Effect::Read(range) if good => channel.post_read(seq, range),
            Effect::Message(bytes, brings) => {
                channel.post_message(Message {
                    seq,
                    bytes,
                    brings,
                    fails: !good,
                });
            }
            Effect::WriteImm { at, bytes, value } => {
                let brings = Brings::WriteImmediate(value, bytes.len() as u32);
                if good {
                    channel.post_write(seq, at, bytes);
                }
                channel.post_message(Message {
                    seq,
                    bytes: Vec::new(),
                    brings,
                    fails: !good,
                });
            }
            Effect::Write { .. } | Effect::Read(_) => {}
        }
    }

    fn count_word(&mut self, channel: usize, doing: &Doing) {
        let (counts, word, swap) = match doing {
            Doing::Adds { word, .. } => (true, *word, 0),
            Doing::Swaps { word, swap, .. } => (false, *word, *swap),
            _ => return,
        };
        if let Some(process) = self.process_at(channel) {
            if counts {
                process.counters[word].post();
            } else {
                process.cells[word].post(swap);
            }
        }
    }

    fn draw_length(&mut self, limit: usize) -> usize {
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
    fn gather(&mut self, endpoint: usize, length: usize) -> (Vec<Sge>, Vec<u8>) {
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

    fn outbound(&mut self, endpoint: usize, limit: usize) -> (Vec<Sge>, Option<Vec<u8>>, Vec<u8>) {
        let length = self.draw_length(limit);
        let inline = length <= self.endpoints[endpoint].max_inline && self.random.below(3) == 0;
        let (sges, bytes) = self.gather(endpoint, length);
        if inline && bytes.len() == length {
            return (Vec::new(), Some(bytes.clone()), bytes);
        }
        (sges, None, bytes)
    }

    /// Draws a request that must succeed. `None`: nothing can be posted that way now.
    fn plan(&mut self, endpoint: usize, channel: usize) -> Option<Plan> {
        if self.endpoints[endpoint]
            .pool
            .as_ref()
            .is_none_or(|pool| pool.mr().is_none())
        {
            return None;
        }
        match self.random.below(16) {
            0..=3 => self.plan_send(endpoint, channel),
            4..=8 => self.plan_write(endpoint, channel, false),
            9 => self.plan_write(endpoint, channel, true),
            10..=12 => self.plan_read(endpoint, channel),
            _ => self.plan_atomic(endpoint, channel),
        }
    }

    fn plan_send(&mut self, endpoint: usize, channel: usize) -> Option<Plan> {
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

    fn plan_write(&mut self, endpoint: usize, channel: usize, imm: bool) -> Option<Plan> {
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
    fn landing(&mut self, endpoint: usize, length: usize) -> Option<(usize, Vec<Sge>)> {
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

    fn plan_read(&mut self, endpoint: usize, channel: usize) -> Option<Plan> {
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

    fn plan_atomic(&mut self, endpoint: usize, channel: usize) -> Option<Plan> {
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

    /// Posts a request that must fail, to a group that nothing else is wrong with.
    pub(crate) fn post_poison(&mut self, endpoint: usize) -> Verdict {
        let group = self.endpoints[endpoint].group;
        let state = &self.endpoints[endpoint];
        if self.groups[group].doom.is_some()
            || self.groups[group].phase != Phase::Up
            || self.groups[group].members.len() != 2
            || state.stage != Stage::Live
            || state.posted.len() >= state.max_send
        {
            return Ok(());
        }
        let channel = state.outgoing[0];
        let to = self.channels[channel].to;
        if self.endpoints[to].stage != Stage::Live {
            return Ok(());
        }
        let Some((plan, status)) = self.plan_poison(endpoint, channel) else {
            return Ok(());
        };
        let seq = self.endpoints[endpoint].next_seq;
        self.act(plan.what, endpoint, seq as usize);
        self.doom(group, Doom::Poison(endpoint, seq));
        self.tally.troubles += 1;
        self.submit(
            endpoint,
            channel,
            plan,
            (true, false, false),
            Expect::Fails(status),
        )?;
        self.endpoints[endpoint].poisoned = true;
        Ok(())
    }

    fn plan_poison(&mut self, endpoint: usize, channel: usize) -> Option<(Plan, Status)> {
        let to = self.channels[channel].to;
        let target = self.endpoints[to].area.as_ref()?.mr()?;
        let (good, end) = (target.remote(0), target.remote(target.len()));
        let bad = Rkey(good.rkey.0 ^ 1 << self.random.below(32));
        let length = between(&mut self.random, 1, self.options.largest as u64) as usize;
        let (sges, bytes) = self.gather(endpoint, length);
        let plan = |op, what, sges, effect| Plan {
            op,
            what,
            sges,
            inline: None,
            length,
            doing: Doing::Sends,
            effect,
        };
        let write = |remote, what, sges| plan(SendOp::Write(remote), what, sges, Effect::None);
        Some(match self.random.below(8) {
            0 => {
                let remote = Remote { rkey: bad, ..good };
                (
                    write(remote, "poison: bad rkey", sges),
                    Status::RemoteAccess,
                )
            }
            1 => {
                let remote = Remote {
                    addr: end.addr - length as u64 + 1,
                    ..end
                };
                (
                    write(remote, "poison: beyond the region", sges),
                    Status::RemoteAccess,
                )
            }
            2 => {
                let remote = Remote {
                    addr: u64::MAX - 3,
                    ..good
                };
                (
                    write(remote, "poison: wrapping address", sges),
                    Status::RemoteAccess,
                )
            }
            3 => {
                // The pool of the peer may be read but not written.
                let remote = self.endpoints[to].pool.as_ref()?.mr()?.remote(0);
                (
                    write(remote, "poison: read-only region", sges),
                    Status::RemoteAccess,
                )
            }
            4 => {
                let (slot, sges) = self.landing(endpoint, 8)?;
                let doing = Doing::ReadsWindow(slot, 8);
                let op = SendOp::Read(Remote { rkey: bad, ..good });
                let mut plan = plan(op, "poison: READ with a bad rkey", sges, Effect::None);
                (plan.doing, plan.length) = (doing, 8);
                (plan, Status::RemoteAccess)
            }
            5 => {
                let (slot, sges) = self.landing(endpoint, 8)?;
                let process = self.process_at(channel)?;
                let mut remote = process.words.region().remote(0);
                remote.addr += 4;
                let op = SendOp::Atomic(remote, AtomicOp::FetchAdd { add: 1 });
                let mut plan = plan(op, "poison: misaligned atomic", sges, Effect::None);
                (plan.doing, plan.length) = (Doing::ReadsWindow(slot, 8), 8);
                (plan, Status::RemoteInvalidRequest)
            }
            6 => {
                let length = self.slot_of(to)? + 1;
                if length > self.endpoints[endpoint].pool.as_ref()?.len() {
                    return None;
                }
                let (sges, bytes) = self.gather(endpoint, length);
                let effect = Effect::Message(bytes, Brings::Nothing);
                let mut plan = plan(SendOp::Send, "poison: too long", sges, effect);
                plan.length = length;
                (plan, Status::RemoteInvalidRequest)
            }
            _ => {
                let mut sges = sges;
                sges.iter_mut().for_each(|sge| sge.lkey.0 ^= 1 << 7);
                let effect = Effect::Message(bytes, Brings::Nothing);
                (
                    plan(SendOp::Send, "poison: bad lkey", sges, effect),
                    Status::LocalProtection,
                )
            }
        })
    }
}

fn state_group(world: &World, endpoint: usize) -> usize {
    world.endpoints[endpoint].group
}
