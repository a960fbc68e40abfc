//! Which QPs of a CQ receive datagrams.

use crate::completion::{Network, Told};
use std::sync::{Mutex, MutexGuard, PoisonError};
use trunkline::{Completion, Qpn};

/// Numbers of the QPs of datagrams that receive into a CQ, and by which network they do.
pub(crate) struct Datagrams {
    network: Network,
    qps: Mutex<Vec<Qpn>>,
}

impl Datagrams {
    /// None yet.
    pub(crate) fn new(network: Network) -> Self {
        Self {
            network,
            qps: Mutex::default(),
        }
    }

    fn qps(&self) -> MutexGuard<'_, Vec<Qpn>> {
        // They are whole at any time.
        self.qps.lock().unwrap_or_else(PoisonError::into_inner)
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
            datagrams: qps.contains(&completion.qpn).then_some(self.network),
        });
        told.for_each(give);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_is_one_of_datagrams_as_long_as_its_qp_is_there() {
        let datagrams = Datagrams::new(Network::Ipv6);
        let of = |qpn| Completion {
            qpn: Qpn::from_wire(qpn),
            ..Completion::BLANK
        };
        let told = || {
            let mut told = Vec::new();
            datagrams.tell(&[of(1), of(2)], |one| told.push(one.datagrams));
            told
        };
        assert_eq!(told(), [None, None]);
        datagrams.add(Qpn::from_wire(2));
        assert_eq!(told(), [None, Some(Network::Ipv6)]);
        datagrams.remove(Qpn::from_wire(2));
        assert_eq!(told(), [None, None]);
    }
}
