//! What a node says to a subscriber of [`tracing`], where the program has installed one. Nothing
//! here is on the way of a packet.
//!
//! - error: a worker failed.
//! - warn: a connection died of its peer's silence; the machine refuses an offload, or to send to a
//!   peer; a CQ overran, and its QPs go to error; a service parts with a program for what it did;
//!   a program cannot share memory with its service; a service turns programs away for want of
//!   descriptors.
//! - info: nodes start and end; programs attach to a service and end; peers are met, start anew;
//!   what programs asked for cannot be had.
//! - debug: steps of handshakes, connections that open and close, QPs that change connections or go
//!   to error; memory that is not shared with a service.
//!
//! Events are within the span `worker` of their node's address and their worker's index, and those
//! of a handshake within its span `connection_setup`.

use super::number;
use crate::error::NoConnection;
use crate::node::life::Down;
use crate::service::ClientStatus;
use std::net::IpAddr;
use tracing::{Span, debug, debug_span, error, error_span, info, warn};
use trunkline_cm::Step;
use trunkline_dataplane::Errno;
use trunkline_dataplane::port::Capabilities;
use trunkline_dataplane::promotion::NotPromoted;
use trunkline_qpmap::{Cause, CqId, PeerIdentity, Trace};
use trunkline_wire::{Qpn, Workers};

/// That of one worker.
#[derive(Debug)]
pub(crate) struct Log(Span);

impl Log {
    pub(crate) fn of(node: IpAddr, worker: u8) -> Self {
        // Of the highest level, so that a warning says whose it is at every level.
        Self(error_span!("worker", %node, index = worker))
    }

    /// What happens to shared connections and QPs on them.
    pub(crate) fn trace(&self, trace: &Trace) {
        match *trace {
            Trace::Opened {
                conn,
                peer,
                private,
            } => {
                let (peer, conn) = (peer.address(), number(conn));
                debug!(parent: &self.0, %peer, conn, private, "connection opened");
            }
            Trace::Down {
                conn,
                peer,
                cause: Cause::Dead,
                flows,
            } => {
                let (peer, conn) = (peer.address(), number(conn));
                warn!(
                    parent: &self.0, %peer, conn, flows,
                    "a connection ended: nothing came from its peer for too long"
                );
            }
            Trace::Down {
                conn,
                peer,
                cause,
                flows,
            } => {
                let (peer, conn) = (peer.address(), number(conn));
                debug!(parent: &self.0, %peer, conn, flows, ?cause, "connection down");
            }
            Trace::Failover { qpn, from, to, .. } => {
                let (qp, from, to) = (qpn.get(), number(from), to.map(number));
                debug!(parent: &self.0, qp, from, to, "QP lost its connection");
            }
            Trace::BindSent { .. }
            | Trace::BindReceived { .. }
            | Trace::Bound { .. }
            | Trace::BindRefused { .. }
            | Trace::Moved { .. }
            | Trace::Ended { .. } => {}
        }
    }

    /// A peer introduced itself: for the first time, or as another incarnation.
    pub(crate) fn met(&self, peer: &PeerIdentity, again: bool) {
        let (address, workers) = (peer.address.address(), peer.workers.count());
        let guid = format_args!("{:#018x}", peer.guid);
        if again {
            info!(parent: &self.0, peer = %address, %guid, workers, "peer started anew");
        } else {
            info!(parent: &self.0, peer = %address, %guid, workers, "peer met");
        }
    }

    /// A handshake came to nothing; whether a program asked for the connection.
    pub(crate) fn no_connection(&self, peer: IpAddr, why: NoConnection, for_program: bool) {
        if for_program {
            info!(parent: &self.0, %peer, %why, "no connection");
        } else {
            debug!(parent: &self.0, %peer, %why, "no connection");
        }
    }

    /// A program's CQ overran.
    pub(crate) fn cq_overran(&self, cq: CqId) {
        let advice = "make it larger, or poll it more often";
        warn!(
            parent: &self.0, cq = cq.index(), advice,
            "a CQ overran: it is in error, and its QPs go to error"
        );
    }

    /// A QP went to error by itself, or with its CQ.
    pub(crate) fn qp_failed(&self, qpn: Qpn, cq: Option<CqId>) {
        let qp = qpn.get();
        match cq.map(CqId::index) {
            Some(cq) => warn!(parent: &self.0, qp, cq, "QP went to error with its CQ"),
            None => debug!(parent: &self.0, qp, "QP went to error"),
        }
    }

    /// This machine refuses to send to a peer.
    pub(crate) fn refused_to_send(&self, peer: IpAddr, error: Errno) {
        let advice = error.advice();
        warn!(
            parent: &self.0, %peer, %error, advice,
            "this machine refuses to send datagrams to a peer"
        );
    }

    /// The span of a handshake that begins, `between` nodes or with a host.
    pub(crate) fn setup(&self, between: &'static str, step: &Step) -> Span {
        let id = step.id.0;
        debug_span!(parent: &self.0, "connection_setup", between, id, peer = %step.peer)
    }
}

/// A handshake moved on.
pub(crate) fn step(setup: &Span, step: &Step) {
    let (from, to) = (step.from.name(), step.to.name());
    debug!(parent: setup, from, to, "handshake");
}

/// A program was let in.
pub(crate) fn attached(client: &ClientStatus) {
    let ClientStatus { name, pid, uid, .. } = client;
    info!(%name, pid, uid, "a program attached");
}

/// A program is parted with.
pub(crate) fn parted(client: &ClientStatus, why: &str, is_violation: bool) {
    let ClientStatus {
        name,
        pid,
        uid,
        qps,
        ..
    } = client;
    if is_violation {
        warn!(%name, pid, uid, qps, %why, "a program was parted with for what it did");
    } else {
        info!(%name, pid, uid, qps, %why, "a program is gone");
    }
}

/// Programs were turned away by a service that has no descriptor left.
pub(crate) fn without_descriptor(programs: u64, why: &str) {
    warn!(programs, why, "programs were turned away");
}

/// A program asked for more than it, or all of its user, may have; so did others that were not told
/// of.
pub(crate) fn beyond_limit(client: &ClientStatus, refusals: u64, why: &str) {
    let ClientStatus { name, pid, uid, .. } = client;
    warn!(%name, pid, uid, refusals, why, "a program asked for more than it may have");
}

/// A program was not let in, as there are as many as there may be; so were others that were not
/// told of.
pub(crate) fn turned_away(uid: Option<u32>, refusals: u64, why: &str) {
    warn!(
        uid,
        refusals, why, "a program beyond limits was turned away"
    );
}

/// A program promotes no memory at its service any more.
pub(crate) fn never_promoted(why: &NotPromoted) {
    warn!(%why, "no memory of this program can be shared with its service");
}

/// Memory of the program is registered as it is.
pub(crate) fn not_promoted(addr: u64, bytes: usize, why: &NotPromoted) {
    debug!(addr, bytes, %why, "memory is not shared with the service");
}

/// A node has started, on ports of that name.
pub(crate) fn started(node: IpAddr, workers: Workers, (name, port): (&str, &Capabilities)) {
    info!(
        %node,
        port = %name,
        workers = workers.count(),
        max_datagram = port.max_datagram,
        super_packets = port.super_packets,
        coalesced_receive = port.coalesced_receive,
        "node started"
    );
}

/// A program has shut a node down, or has let go of its last handle.
pub(crate) fn ended(node: IpAddr) {
    info!(%node, "node ended");
}

/// A worker failed. False where no subscriber hears of it.
pub(crate) fn failed(down: &Down) -> bool {
    let heard = tracing::enabled!(tracing::Level::ERROR);
    error!("{down}; its QPs are in error");
    heard
}
