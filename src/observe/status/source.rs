//! What the thread that answers knows of its node.

use super::recorder::Recorder;
use super::{CmStats, Status, drops};
use crate::service::Serving;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;
use trunkline_qpmap::{Counters, LiveCounters};

/// Most peers and programs that are told one by one: the whole answer has to fit into a socket.
pub(crate) const MOST_TOLD: usize = 256;

/// Counters, and no lock of a worker: a worker does not notice who looks at its node, and who looks
/// sees one that stands still.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) address: IpAddr,
    /// What carries its packets.
    pub(crate) port: String,
    pub(crate) started: Instant,
    /// What connection management and engine of each worker count.
    pub(crate) workers: Vec<(Arc<Recorder>, Arc<LiveCounters>)>,
    /// The service that carries other programs by it, if one does.
    pub(crate) serving: Arc<Serving>,
}

impl Source {
    /// How the node is.
    pub(crate) fn describe(&self) -> Status {
        let (mut cm, mut counters) = (CmStats::default(), Counters::default());
        let (mut drops, mut peers) = (BTreeMap::new(), BTreeMap::new());
        for (recorder, live) in &self.workers {
            recorder.add_to(&mut cm);
            recorder.refusals.add_to(&mut drops);
            recorder.peers.add_to(&mut peers);
            counters.add(&live.read());
        }
        drops::of_engine(&counters, &mut drops);
        let mut peers: Vec<_> = peers.into_values().collect();
        let peer_count = peers.len() as u64;
        peers.sort_by_key(|peer| Reverse(peer.connections));
        peers.truncate(MOST_TOLD);
        let named = counters.named();
        Status {
            address: self.address,
            port: self.port.clone(),
            pid: std::process::id(),
            uptime_ns: self.started.elapsed().as_nanos() as u64,
            cm,
            counters: named
                .map(|(name, count)| (name.to_owned(), count))
                .collect(),
            drops,
            peers,
            peer_count,
            service: self.serving.status(),
        }
    }
}
