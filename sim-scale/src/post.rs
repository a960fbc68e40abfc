//! How programs post requests, and what the model is told of them.

use crate::channel::{Brings, Message};
use crate::endpoint::{Cookie, Doing, Expect, Posted, Stage};
use crate::failure::Verdict;
use crate::options::{MS, US, between, pick};
use crate::plan::{Effect, Plan};
use crate::setup::refused;
use crate::trace::Event;
use crate::world::{Action, World};
use trunkline::{SendFlags, SendWr};

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

    /// A request over every channel of an endpoint of which it is not known since the last fault
    /// that requests get through.
    pub(crate) fn prove(&mut self, endpoint: usize) -> Verdict {
        for channel in self.endpoints[endpoint].outgoing.clone() {
            let state = &self.endpoints[endpoint];
            let mut tries = state
                .posted
                .iter()
                .filter(|posted| posted.channel == channel);
            let under_way = tries.any(|posted| posted.at >= self.calm_at);
            let to = self.channels[channel].to;
            if !self.channels[channel].proved
                && !under_way
                && state.posted.len() < state.max_send
                && self.endpoints[to].stage == Stage::Live
            {
                self.post_over(endpoint, channel, true)?;
                self.places[self.endpoints[endpoint].node].stirred = true;
            }
        }
        Ok(())
    }

    fn post_one(&mut self, endpoint: usize, signaled: bool) -> Verdict {
        let outgoing = &self.endpoints[endpoint].outgoing;
        let channel = outgoing[self.random.below(outgoing.len() as u64) as usize];
        self.post_over(endpoint, channel, signaled)
    }

    fn post_over(&mut self, endpoint: usize, channel: usize, signaled: bool) -> Verdict {
        let to = self.channels[channel].to;
        if self.endpoints[to].area.is_none() || self.channels[channel].closed {
            return Ok(());
        }
        let Some(plan) = self.plan(endpoint, channel) else {
            return Ok(());
        };
        // One without a completion ends with the next one of its channel, which may be long.
        let many = self.endpoints[endpoint].outgoing.len() > 1;
        let silent = self.endpoints[endpoint].silent;
        let signaled = signaled || many || silent >= 6 || self.random.below(5) < 3;
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

    pub(crate) fn submit(
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
        let good = expect == Expect::Success;
        // Where connections come and go, a request waits for more than its turn.
        if self.endpoints[endpoint].posted.is_empty() && !self.options.troubles.ends_connections() {
            let (now, flow) = (self.now, self.flow(channel));
            self.network.net().turns.runnable(now, flow);
        }
        self.tell(channel, seq, plan.effect, (solicited, good));
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
    fn tell(&mut self, channel: usize, seq: u64, effect: Effect, (solicited, good): (bool, bool)) {
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
                    solicited,
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
                    solicited,
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
}

fn state_group(world: &World, endpoint: usize) -> usize {
    world.endpoints[endpoint].group
}
