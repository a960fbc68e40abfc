//! Connections that other workers of the node have with the same QP of a peer.
//!
//! What a peer begins goes to the worker that its QP stands for
//! ([`Workers::spread`](trunkline_wire::Workers::spread)), so that it meets what that QP began
//! before. What this node begins is at any worker. Each tells the others of the peers' QPs that it
//! meets: one that is still connected there has been given up by its peer.

use super::state::State;
use super::{CloseReason, IbCm};
use crate::event::Route;
use crate::random::Random;
use trunkline_conn::time::Instant;
use trunkline_wire::cm::PrivateData;
use trunkline_wire::{Qpn, Workers};

/// A peer's QP that a worker has a new connection with.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Met {
    route: Route,
    qpn: Qpn,
    guid: u64,
}

impl<R: Random> IbCm<R> {
    /// Notes the peer's QP of a connection.
    pub(super) fn meet(&mut self, index: u32, qpn: Qpn, guid: u64) {
        self.table.set_remote_qp(index, qpn, guid);
        if self.config.worker.of() != Workers::ONE {
            let route = self.table.slot(index).route;
            self.met.push_back(Met { route, qpn, guid });
        }
    }

    /// The next that the managers of the node's other workers are to be told; none where there are
    /// no others.
    #[must_use]
    pub fn poll_met(&mut self) -> Option<Met> {
        self.met.pop_front()
    }

    /// Another worker has met a peer's QP: a connection that stands here with the same one is
    /// ended. As for [stale](CloseReason::Stale) ones in general the GUID has to be the same.
    pub fn handle_met(&mut self, now: Instant, met: &Met) {
        let Some(index) = self
            .table
            .find_remote_qp(met.route.remote, met.qpn, met.guid)
        else {
            return;
        };
        let slot = self.table.slot(index);
        if slot.route == met.route && matches!(slot.state(), State::Established(_)) {
            self.counters.stale += 1;
            self.disconnect(now, index, CloseReason::Stale, PrivateData::default());
        }
    }
}
