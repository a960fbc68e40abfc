//! Which QPs of a CQ receive datagrams.

use crate::completion::Told;
use std::sync::{Mutex, MutexGuard, PoisonError};
use trunkline::{Completion, Qpn};

/// Numbers of the QPs of datagrams that receive into a CQ.
#[derive(Default)]
pub(crate) struct Datagrams(Mutex<Vec<Qpn>>);

impl Datagrams {
    fn qps(&self) -> MutexGuard<'_, Vec<Qpn>> {
        // They are whole at any time.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What QP `qpn` receives is datagrams from now on.
    pub(crate) fn add(&self, qpn: Qpn) {
        self.qps().push(qpn);
    }

    /// QP `qpn` is destroyed.
    pub(crate) fn remove(&self, qpn: Qpn) {
        self.qps().retain(|other| *other != qpn);
    }

    /// Gives each of these completions to `give`, with what its QP is.
    pub(crate) fn tell(&self, completions: &[Completion], give: impl FnMut(Told)) {
        let qps = self.qps();
        let told = completions.iter().map(|completion| Told {
            completion: *completion,
            of_datagrams: qps.contains(&completion.qpn),
        });
        told.for_each(give);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_is_one_of_datagrams_as_long_as_its_qp_is_there() {
        let datagrams = Datagrams::default();
        let of = |qpn| Completion {
            qpn: Qpn::from_wire(qpn),
            ..Completion::BLANK
        };
        let told = || {
            let mut told = Vec::new();
            datagrams.tell(&[of(1), of(2)], |one| told.push(one.of_datagrams));
            told
        };
        assert_eq!(told(), [false, false]);
        datagrams.add(Qpn::from_wire(2));
        assert_eq!(told(), [false, true]);
        datagrams.remove(Qpn::from_wire(2));
        assert_eq!(told(), [false, false]);
    }
}
