//! Requests that have to fail: bad keys, ranges, lengths.

use crate::channel::Brings;
use crate::endpoint::{Doing, Expect, Stage};
use crate::failure::Verdict;
use crate::options::between;
use crate::plan::{Effect, Plan};
use crate::world::{Doom, Phase, World};
use trunkline::{AtomicOp, Remote, Rkey, SendOp, Status};

impl World {
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
