//! How many shared connections each peer has.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use trunkline_qpmap::Trace;

/// The shared connections to one peer.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[non_exhaustive]
pub struct PeerStatus {
    /// Its address.
    pub address: IpAddr,
    /// Connections that stand, those included that a program opened for itself.
    pub connections: u64,
    /// Connections that are gone, since there was last none that stood.
    pub gone: u64,
}

impl PeerStatus {
    const fn new(address: IpAddr) -> Self {
        Self {
            address,
            connections: 0,
            gone: 0,
        }
    }
}

/// A connection to a peer came to stand, or is gone.
#[derive(Clone, Copy, Debug)]
enum Change {
    Opened(IpAddr),
    Gone(IpAddr),
}

/// What a worker could not write down yet.
#[derive(Debug, Default)]
pub(super) struct Unsaid(Vec<Change>);

/// The peers of one worker, of a node that carries other programs: that a node inside a program has
/// little state matters more. It writes them down and waits for nobody: while a reader has the
/// table, what it has to say is kept until the next event.
#[derive(Debug, Default)]
pub(super) struct Peers {
    is_kept: AtomicBool,
    table: Mutex<BTreeMap<IpAddr, PeerStatus>>,
}

impl Peers {
    /// Peers are written down from now on.
    pub(super) fn keep(&self) {
        self.is_kept.store(true, Ordering::Relaxed);
    }

    /// Takes an event of the engine into account. For the worker.
    pub(super) fn heed(&self, trace: &Trace, unsaid: &mut Unsaid) {
        if !self.is_kept.load(Ordering::Relaxed) {
            return;
        }
        match trace {
            Trace::Opened { peer, .. } => unsaid.0.push(Change::Opened(peer.address())),
            Trace::Down { peer, .. } => unsaid.0.push(Change::Gone(peer.address())),
            _ => {}
        }
        if !unsaid.0.is_empty()
            && let Ok(mut peers) = self.table.try_lock()
        {
            unsaid
                .0
                .drain(..)
                .for_each(|change| apply(&mut peers, change));
        }
    }

    /// Adds them to those of other workers.
    pub(super) fn add_to(&self, sums: &mut BTreeMap<IpAddr, PeerStatus>) {
        for (address, peer) in &*self.table.lock().unwrap_or_else(PoisonError::into_inner) {
            let sum = sums.entry(*address);
            let sum = sum.or_insert_with(|| PeerStatus::new(*address));
            sum.connections += peer.connections;
            sum.gone += peer.gone;
        }
    }
}

fn apply(peers: &mut BTreeMap<IpAddr, PeerStatus>, change: Change) {
    match change {
        Change::Opened(address) => {
            let peer = peers.entry(address);
            peer.or_insert_with(|| PeerStatus::new(address)).connections += 1;
        }
        Change::Gone(address) => {
            let Some(peer) = peers.get_mut(&address) else {
                return;
            };
            peer.connections -= 1;
            peer.gone += 1;
            if peer.connections == 0 {
                peers.remove(&address);
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;

    fn at(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[test]
    fn a_peer_is_there_for_as_long_as_a_connection_to_it_stands() {
        let mut peers = BTreeMap::new();
        for change in [
            Change::Opened(at(1)),
            Change::Opened(at(1)),
            Change::Opened(at(2)),
            Change::Gone(at(1)),
            Change::Gone(at(2)),
            Change::Gone(at(3)),
        ] {
            apply(&mut peers, change);
        }
        let left: Vec<_> = peers.into_values().collect();
        let one = PeerStatus {
            address: at(1),
            connections: 1,
            gone: 1,
        };
        assert_eq!(left, [one]);
    }

    #[test]
    fn a_worker_does_not_wait_for_a_reader_and_says_it_later() {
        let (peers, mut unsaid) = (Peers::default(), Unsaid(vec![Change::Opened(at(1))]));
        peers.keep();
        let other = Trace::Ended { flow: 1 };
        let reader = peers.table.lock().unwrap();
        peers.heed(&other, &mut unsaid);
        assert_eq!(unsaid.0.len(), 1);
        drop(reader);
        peers.heed(&other, &mut unsaid);
        assert!(unsaid.0.is_empty());
        let mut sums = BTreeMap::new();
        peers.add_to(&mut sums);
        peers.add_to(&mut sums);
        assert_eq!(sums[&at(1)].connections, 2);
    }
}
