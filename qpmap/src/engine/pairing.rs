//! The owner of pairs of QPs that do not talk to each other now: those that wait for a connection,
//! BINDs that wait for their QP, and QPs that ended.

mod endings;
mod recent;
mod unready;
mod waiting;

pub(crate) use endings::Endings;
pub(crate) use recent::RecentBinds;
pub(crate) use unready::{Unready, WaitingBinds};
pub(crate) use waiting::{LINES, LineOf, Undecided, Verdict, Waiting, line_of, number_of};

use crate::hash::Keyed;

/// What one end of such a pair knows.
#[derive(Debug)]
pub(crate) struct Pairing {
    pub(crate) waiting: Waiting,
    /// Our BINDs that were sent a moment ago.
    pub(crate) recent: RecentBinds,
    /// BINDs whose QP is not ready yet.
    pub(crate) binds: WaitingBinds,
    /// QPs whose peers have not heard of their end.
    pub(crate) endings: Endings,
}

impl Pairing {
    /// No pairs. `hash` is one that nobody can foresee.
    pub(crate) fn new(hash: Keyed) -> Self {
        Self {
            waiting: Waiting::default(),
            recent: RecentBinds::default(),
            binds: WaitingBinds::default(),
            endings: Endings::new(hash),
        }
    }
}
