//! The way of completions out of a CQ.

use crate::answer::Errno;
use crate::completion::Told;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use trunkline::{Completion, Cq, Qpn, Status};

/// Completions that one look at the node's queue takes at most.
const BATCH: usize = 32;

/// What lies between a CQ of the node and its program.
///
/// A call gives no flushed request behind one that ended otherwise. A device does not hear that its
/// peer's QP is destroyed, a node does, at once, and flushes the receives that are left. A program
/// that has seen the last message is done, and would have taken those for failures, had they come
/// in the same call.
#[derive(Default)]
pub(crate) struct Outlet(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    /// Taken from the node, and not by the program yet.
    held: VecDeque<Completion>,
    /// Numbers of the QPs of datagrams that receive here.
    datagrams: Vec<Qpn>,
}

impl Outlet {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What QP `qpn` receives is datagrams from now on.
    pub(crate) fn add_datagrams(&self, qpn: Qpn) {
        self.inner().datagrams.push(qpn);
    }

    /// QP `qpn` is destroyed: the node gives no more completions of it, and neither do we.
    pub(crate) fn forget(&self, qpn: Qpn) {
        self.forget_completions(qpn);
        self.inner().datagrams.retain(|other| *other != qpn);
    }

    /// QP `qpn` is reset: the same, but for what it is.
    pub(crate) fn forget_completions(&self, qpn: Qpn) {
        self.inner().held.retain(|held| held.qpn != qpn);
    }

    /// Hands up to `entries` completions to `give`, oldest first.
    ///
    /// # Errors
    /// The CQ is in error, and all that it had taken before was given.
    pub(crate) fn take(
        &self,
        cq: &Cq,
        entries: usize,
        give: impl FnMut(Told),
    ) -> Result<(), Errno> {
        self.inner().take(entries, false, give, |out| {
            Ok(cq.poll(out).map_err(trunkline::Error::from)?)
        })
    }

    /// Takes one. With `behind_good` the program has just read one that was not flushed, in the
    /// same go.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub(crate) fn take_one(&self, cq: &Cq, behind_good: bool) -> Result<Option<Told>, Errno> {
        let mut taken = None;
        let give = |told| taken = Some(told);
        self.inner().take(1, behind_good, give, |out| {
            Ok(cq.poll(out).map_err(trunkline::Error::from)?)
        })?;
        Ok(taken)
    }
}

impl Inner {
    fn take(
        &mut self,
        entries: usize,
        mut behind_good: bool,
        mut give: impl FnMut(Told),
        poll: impl Fn(&mut [Completion]) -> Result<usize, Errno>,
    ) -> Result<(), Errno> {
        let mut batch = [Completion::BLANK; BATCH];
        for taken in 0..entries {
            if self.held.is_empty() {
                let wanted = BATCH.min(entries - taken);
                match poll(&mut batch[..wanted]) {
                    Ok(count) => self.held.extend(&batch[..count]),
                    // The next call tells.
                    Err(_) if taken > 0 => {}
                    Err(errno) => return Err(errno),
                }
            }
            let Some(next) = self.held.front() else { break };
            let is_flushed = next.status == Status::Flushed;
            if is_flushed && behind_good {
                break;
            }
            behind_good = !is_flushed;
            give(Told {
                completion: *next,
                of_datagrams: self.datagrams.contains(&next.qpn),
            });
            self.held.pop_front();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    fn completion(wr_id: u64, status: Status) -> Completion {
        Completion {
            wr_id,
            status,
            qpn: Qpn::from_wire(wr_id as u32 / 10),
            ..Completion::BLANK
        }
    }

    /// Calls that take `entries` each, until nothing is left: what each of them gave.
    fn calls(inner: &mut Inner, source: Vec<Completion>, entries: usize) -> Vec<Vec<u64>> {
        let source = RefCell::new(VecDeque::from(source));
        let poll = |out: &mut [Completion]| {
            let mut source = source.borrow_mut();
            let count = out.len().min(source.len());
            out.iter_mut()
                .zip(source.drain(..count))
                .for_each(|(place, next)| *place = next);
            Ok(count)
        };
        let mut calls = Vec::new();
        loop {
            let mut given = Vec::new();
            let give = |told: Told| given.push(told.completion.wr_id);
            inner.take(entries, false, give, poll).expect("no error");
            if given.is_empty() {
                return calls;
            }
            calls.push(given);
        }
    }

    #[test]
    fn flushed_requests_come_in_a_call_of_their_own_and_nothing_is_lost() {
        use Status::{Flushed, Success};
        let all = || {
            let statuses = [Success, Success, Flushed, Flushed, Success, Flushed];
            (0..)
                .zip(statuses)
                .map(|(n, status)| completion(n, status))
                .collect()
        };
        let mut inner = Inner::default();
        let expected = [vec![0, 1], vec![2, 3, 4], vec![5]];
        assert_eq!(calls(&mut inner, all(), 16), expected);
        let expected = [vec![0, 1], vec![2, 3], vec![4], vec![5]];
        assert_eq!(calls(&mut inner, all(), 2), expected);
        assert!(inner.held.is_empty());
    }

    #[test]
    fn a_qp_that_is_gone_leaves_nothing_behind() {
        let outlet = Outlet::default();
        outlet.add_datagrams(Qpn::from_wire(1));
        outlet.inner().held.extend([
            completion(10, Status::Flushed),
            completion(20, Status::Flushed),
        ]);
        outlet.forget_completions(Qpn::from_wire(1));
        assert_eq!(outlet.inner().held.len(), 1);
        assert_eq!(outlet.inner().datagrams.len(), 1);
        outlet.forget(Qpn::from_wire(1));
        assert!(outlet.inner().datagrams.is_empty());
    }
}
