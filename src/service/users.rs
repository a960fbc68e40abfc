//! What all programs of a user may have together.

use super::limits::Limits;
use std::collections::HashMap;
use std::sync::Arc;
use trunkline_host::Budget;

/// Budgets of one user, of which each of its programs takes a share.
#[derive(Debug)]
pub(super) struct Budgets {
    pub(super) qps: Arc<Budget>,
    pub(super) cqs: Arc<Budget>,
    pub(super) srqs: Arc<Budget>,
    pub(super) mrs: Arc<Budget>,
    pub(super) mws: Arc<Budget>,
    pub(super) pds: Arc<Budget>,
    pub(super) segment_bytes: Arc<Budget>,
    pub(super) registered_bytes: Arc<Budget>,
}

impl Budgets {
    fn new(limits: &Limits) -> Self {
        let of = |limit: u64| Arc::new(Budget::new(limit));
        let [qps, cqs, mrs] = [
            limits.qps_per_user,
            limits.cqs_per_user,
            limits.mrs_per_user,
        ]
        .map(u64::from);
        Self {
            qps: of(qps),
            cqs: of(cqs),
            srqs: of(cqs),
            mrs: of(mrs),
            mws: of(mrs),
            pds: of(mrs),
            segment_bytes: of(limits.segment_bytes_per_user),
            registered_bytes: of(limits.registered_bytes_per_user),
        }
    }

    /// Whether a program has shares of them, or something of it that is not gone yet.
    fn are_used(&self) -> bool {
        let all = [
            &self.qps,
            &self.cqs,
            &self.srqs,
            &self.mrs,
            &self.mws,
            &self.pds,
            &self.segment_bytes,
            &self.registered_bytes,
        ];
        all.into_iter().any(|budget| Arc::strong_count(budget) > 1)
    }
}

/// The users that have programs.
#[derive(Debug, Default)]
pub(super) struct Users(HashMap<u32, Budgets>);

impl Users {
    /// The budgets of a user, whose program is there from now on.
    pub(super) fn budgets(&mut self, uid: u32, limits: &Limits) -> &Budgets {
        self.0
            .retain(|user, budgets| *user == uid || budgets.are_used());
        self.0.entry(uid).or_insert_with(|| Budgets::new(limits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline_host::Share;

    #[test]
    fn a_user_has_the_same_budgets_for_as_long_as_something_of_its_programs_is_there() {
        let (mut users, limits) = (Users::default(), Limits::default());
        let share = Share::of(&users.budgets(1, &limits).mws);
        let qps = Arc::as_ptr(&users.budgets(1, &limits).qps);
        assert_ne!(qps, Arc::as_ptr(&users.budgets(2, &limits).qps));
        assert_eq!(qps, Arc::as_ptr(&users.budgets(1, &limits).qps));
        assert_eq!(users.0.len(), 1, "user 2 has nothing");
        drop(share);
        users.budgets(2, &limits);
        assert!(!users.0.contains_key(&1));
    }
}
