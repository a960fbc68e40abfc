//! Requests that have to fail: bad keys, ranges, lengths.

use crate::channel::Brings;
use crate::endpoint::{Doing, Expect, Stage};
use crate::failure::Verdict;
use crate::options::between;
use crate::plan::{Effect, Plan};
use crate::world::{Denied, Doom, Phase, World};
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
        let denied = self.endpoints[to].denied;
        if let Some(denied) = denied.filter(|_| self.random.below(2) == 0) {
            return self.plan_denied(endpoint, channel, denied, good);
        }
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
        let (plan, status) = match self.random.below(9) {
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
            7 => {
                // What the peer's other QPs use, too.
                let key = self.process_at(channel)?.words.region().rkey();
                let length = length.min(self.slot_of(to)?);
                let (sges, bytes) = self.gather(endpoint, length);
                let effect = Effect::Message(bytes, Brings::Nothing);
                let op = SendOp::SendInvalidate(key);
                let mut plan = plan(op, "poison: takes a key away", sges, effect);
                plan.length = length;
                (plan, Status::RemoteAccess)
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
        };
        // What a QP allows nobody is refused before keys are looked at.
        let forbidden = matches!(
            (denied, &plan.op),
            (Some(Denied::Writes), SendOp::Write(_))
                | (Some(Denied::Reads), SendOp::Read(_))
                | (Some(Denied::Atomics), SendOp::Atomic(..))
        );
        let status = if forbidden {
            Status::RemoteInvalidRequest
        } else {
            status
        };
        Some((plan, status))
    }

    /// What the QP of the peer allows nobody, with a key and a range that would do.
    fn plan_denied(
        &mut self,
        endpoint: usize,
        channel: usize,
        denied: Denied,
        good: Remote,
    ) -> Option<(Plan, Status)> {
        let plan = |op, what, sges, doing| Plan {
            op,
            what,
            sges,
            inline: None,
            length: 8,
            doing,
            effect: Effect::None,
        };
        let plan = match denied {
            Denied::Writes => {
                let (sges, _) = self.gather(endpoint, 8);
                let op = SendOp::Write(good);
                plan(
                    op,
                    "poison: WRITE to a QP that allows none",
                    sges,
                    Doing::Sends,
                )
            }
            Denied::Reads => {
                let (slot, sges) = self.landing(endpoint, 8)?;
                let (op, doing) = (SendOp::Read(good), Doing::ReadsWindow(slot, 8));
                plan(op, "poison: READ of a QP that allows none", sges, doing)
            }
            Denied::Atomics => {
                let (slot, sges) = self.landing(endpoint, 8)?;
                let word = self.process_at(channel)?.words.region().remote(0);
                let op = SendOp::Atomic(word, AtomicOp::FetchAdd { add: 1 });
                let doing = Doing::ReadsWindow(slot, 8);
                plan(op, "poison: atomic at a QP that allows none", sges, doing)
            }
        };
        Some((plan, Status::RemoteInvalidRequest))
    }
}
