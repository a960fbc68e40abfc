//! Work that as many QPs make as there are: some of it in each round, so that no call takes longer
//! the more QPs there are, and other peers' packets go on meanwhile.
//!
//! What is to be done for each of the QPs or flows concerned is with who owns them: connections
//! that are gone in `tombstones`, those that wait for a peer in `waiting`. Here is only whose turn
//! it is.

use super::{ConnId, CqId, Engine, Platform};
use crate::state::QpState;
use std::collections::VecDeque;
use trunkline_conn::host::QpEvent;
use trunkline_wire::Gid;

/// Flows or QPs that are taken up in a round, and of one task before the next one's turn. A flow
/// that moves takes about a microsecond.
pub(crate) const PER_ROUND: u32 = 256;
const PER_TURN: u32 = 64;
/// QPs that are merely looked at in the time of one that is taken up.
const LOOKS: u32 = 32;

/// Something to do for many.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Task {
    /// Flows of a connection that is gone move on.
    Evacuate { conn: u32 },
    /// Flows that wait for a connection to a peer get one.
    Rescue { peer: u32 },
    /// QPs that wait to hear what a peer is hear it.
    Decide { peer: Gid },
    /// A connect request came to nothing, or the peer is gone: flows that waited for it.
    JudgeFlows { peer: u32 },
    /// The same for QPs.
    JudgeQps { peer: Gid },
    /// A connection takes over QPs of others; so many flows are left to look at.
    Relieve { fresh: ConnId, left: u32 },
    /// QPs of a CQ in error go to error, from this index on.
    FailUsers { cq: CqId, next: u32 },
    /// BINDs of a peer that no connection leads to are forgotten.
    ForgetBinds { peer: u32 },
}

/// What a task may still take up in its turn.
#[derive(Debug)]
pub(crate) struct Share(u32);

impl Share {
    /// Counts one that is taken up; `false`: the rest has to wait.
    pub(crate) const fn take(&mut self) -> bool {
        let left = self.0 > 0;
        self.0 -= left as u32;
        left
    }
}

/// Tasks that are not done yet, in the order of their turns.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    tasks: VecDeque<Task>,
    /// What may still be taken up in this round.
    left: u32,
}

impl Backlog {
    pub(crate) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Takes up a task, unless it waits for its turn already.
    pub(crate) fn add(&mut self, task: Task) {
        if self.tasks.back() != Some(&task) {
            self.tasks.push_back(task);
        }
    }

    fn begin_round(&mut self) {
        self.left = PER_ROUND;
    }

    /// The next task, with its share of the round; `None` when all are done or the round is over.
    fn next(&mut self) -> Option<(Task, Share)> {
        if self.left == 0 {
            return None;
        }
        let task = self.tasks.pop_front()?;
        Some((task, Share(self.left.min(PER_TURN))))
    }

    /// The turn of a task is over: what is left of its share, and of the task.
    fn end_turn(&mut self, given: u32, share: &Share, rest: Option<Task>) {
        // A task that takes up nothing costs something, too.
        self.left -= (given - share.0).max(1);
        self.tasks.extend(rest);
    }
}

impl<P: Platform> Engine<P> {
    /// Goes on with what is to be done for many: as much as a round has time for.
    pub(crate) fn carry_on(&mut self) {
        self.backlog.begin_round();
        while let Some((task, mut share)) = self.backlog.next() {
            let given = share.0;
            let rest = self.take_turn(task, &mut share);
            self.backlog.end_turn(given, &share, rest);
        }
    }

    /// Does some of a task. Gives what is left of it.
    fn take_turn(&mut self, task: Task, share: &mut Share) -> Option<Task> {
        let done = match task {
            Task::Evacuate { conn } => self.evacuate(conn, share),
            Task::Rescue { peer } => self.rescue_stranded(peer, share),
            Task::Decide { peer } => self.share_undecided(peer, share),
            Task::JudgeFlows { peer } => self.judge_flows(peer, share),
            Task::JudgeQps { peer } => self.judge_qps(peer, share),
            Task::ForgetBinds { peer } => self.forget_binds(peer, share),
            Task::Relieve { fresh, left } => {
                let left = self.relieve_crowded(fresh, left, share);
                return (left > 0).then_some(Task::Relieve { fresh, left });
            }
            Task::FailUsers { cq, next } => {
                let next = self.fail_users(cq, next, share)?;
                return Some(Task::FailUsers { cq, next });
            }
        };
        (!done).then_some(task)
    }

    /// A CQ is in error: its QPs go to error, too, when nobody is working with one. What these
    /// flush may be too much for the next CQ.
    pub(crate) fn begin_to_fail_users(&mut self, cq: CqId) {
        self.backlog.add(Task::FailUsers { cq, next: 0 });
    }

    /// QPs that complete into `cq` go to error, but for those in RESET: they stay there. No other
    /// QP begins to use it. Gives where to go on.
    fn fail_users(&mut self, cq: CqId, mut next: u32, share: &mut Share) -> Option<u32> {
        if !self.completions.is_used(cq) {
            return None;
        }
        let mut looks = 0;
        while next < self.qps.slots() {
            let fails = self.qps.get(next).is_some_and(|record| {
                record.queues.cqs.contains(&cq.index()) && record.state != QpState::Reset
            });
            if (fails || looks % LOOKS == 0) && !share.take() {
                return Some(next);
            }
            if fails {
                self.qp_event(next, QpEvent::Fatal);
                self.enter_error_with(next, Some(cq));
            }
            looks += 1;
            next += 1;
        }
        None
    }

    /// BINDs that wait here and came from a peer to which no connection leads are forgotten: its
    /// QPs ask again over the next one.
    fn forget_binds(&mut self, peer: u32, share: &mut Share) -> bool {
        if self.links.known_peer(peer).is_none() || self.links.reaches(peer) {
            return true;
        }
        while self.pairing.binds.has(peer) {
            if !share.take() {
                return false;
            }
            self.pairing.binds.forget_one(peer);
        }
        self.forget_if_unknown(peer);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs rounds of tasks that have so many left each; gives what each round took up, by task.
    fn rounds(left: &mut [u32]) -> Vec<Vec<u32>> {
        let mut backlog = Backlog::default();
        for peer in 0..left.len() as u32 {
            backlog.add(Task::Rescue { peer });
        }
        let mut rounds = Vec::new();
        while !backlog.is_empty() {
            let mut taken = vec![0; left.len()];
            backlog.begin_round();
            while let Some((task, mut share)) = backlog.next() {
                let Task::Rescue { peer } = task else {
                    panic!("{task:?}")
                };
                let (given, at) = (share.0, peer as usize);
                while left[at] > 0 && share.take() {
                    left[at] -= 1;
                    taken[at] += 1;
                }
                let rest = (left[at] > 0).then_some(task);
                backlog.end_turn(given, &share, rest);
            }
            rounds.push(taken);
        }
        rounds
    }

    #[test]
    fn a_round_takes_up_so_many_and_no_more_however_many_there_are() {
        for many in [1, PER_ROUND, 100_000] {
            let rounds = rounds(&mut [many]);
            assert!(rounds.iter().all(|taken| taken[0] <= PER_ROUND));
            assert_eq!(rounds.len() as u32, many.div_ceil(PER_ROUND));
        }
    }

    #[test]
    fn tasks_take_turns() {
        let rounds = rounds(&mut [100_000, 10, 1000]);
        assert!(
            rounds
                .iter()
                .all(|taken| taken.iter().sum::<u32>() <= PER_ROUND)
        );
        assert_eq!(rounds[0][1], 10, "a small one waits for no large one");
        assert!(rounds[0][2] >= PER_TURN);
    }

    #[test]
    fn tasks_that_take_up_nothing_end_the_round_too() {
        let rounds = rounds(&mut [0; 3 * PER_ROUND as usize]);
        assert_eq!(rounds.len(), 3);
    }

    #[test]
    fn a_task_that_waits_for_its_turn_is_not_taken_up_again() {
        let mut backlog = Backlog::default();
        backlog.add(Task::Rescue { peer: 1 });
        backlog.add(Task::Rescue { peer: 1 });
        assert_eq!(backlog.tasks.len(), 1);
    }
}
