//! The points at which tracers can watch a running node: USDT probes, described in docs/probes.md.
//!
//! Each costs one load and one branch while nobody watches; only then are its arguments put
//! together. All of them are numbers: communication IDs as in messages, states and causes as the
//! documentation numbers them, addresses as the two halves of a GID.

use super::number;
use probe::probe_lazy;
use std::net::IpAddr;
use trunkline_cm::Step;
use trunkline_cm::rdma::IdStep;
use trunkline_qpmap::Trace;
use trunkline_wire::{Gid, MAD_LEN};

/// No connection.
const NONE: u64 = u64::MAX;

const fn high(gid: Gid) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = gid.0;
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

const fn low(gid: Gid) -> u64 {
    let [.., a, b, c, d, e, f, g, h] = gid.0;
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// What probes tell of a management datagram.
struct Message<'a>(&'a [u8; MAD_LEN]);

impl Message<'_> {
    fn word(&self, at: usize) -> u32 {
        let bytes = [0, 1, 2, 3].map(|i| self.0[at + i]);
        u32::from_be_bytes(bytes)
    }

    fn attribute(&self) -> u32 {
        self.word(16) >> 16
    }

    fn transaction(&self) -> u64 {
        u64::from(self.word(8)) << 32 | u64::from(self.word(12))
    }

    /// The sender's communication ID; of SIDR messages the number of the question.
    fn sender(&self) -> u32 {
        self.word(24)
    }

    /// The receiver's, where the message has it.
    fn receiver(&self) -> u32 {
        self.word(28)
    }
}

/// A probe about a management datagram.
macro_rules! message {
    ($name:ident, $peer:expr, $mad:expr) => {{
        let (message, peer) = (Message($mad), || Gid::from($peer));
        probe_lazy!(
            trunkline,
            $name,
            message.attribute(),
            message.transaction(),
            message.sender(),
            message.receiver(),
            high(peer()),
            low(peer())
        );
    }};
}

/// A probe about a step of a connection.
macro_rules! step {
    ($name:ident, $step:expr) => {{
        let (step, peer) = ($step, || Gid::from($step.peer));
        probe_lazy!(
            trunkline,
            $name,
            step.id.0,
            step.from as u8,
            step.to as u8,
            high(peer()),
            low(peer())
        );
    }};
}

/// A management datagram was handed to the port.
#[inline]
pub(crate) fn cm_sent(peer: IpAddr, mad: &[u8; MAD_LEN]) {
    message!(cm_sent, peer, mad);
}

/// A management datagram came that is whole.
#[inline]
pub(crate) fn cm_received(peer: IpAddr, mad: &[u8; MAD_LEN]) {
    message!(cm_received, peer, mad);
}

/// A handshake between nodes moved on.
#[inline]
pub(crate) fn node_state(step: &Step) {
    step!(node_state, step);
}

/// A connection or question of an ordinary host moved on.
#[inline]
pub(crate) fn ib_state(step: &Step) {
    step!(ib_state, step);
}

/// An ID of RDMA-CM moved on.
#[inline]
pub(crate) fn rdma_state(step: &IdStep) {
    probe_lazy!(
        trunkline,
        rdma_state,
        step.id.number(),
        step.from as u8,
        step.to as u8
    );
}

/// Something happened to a shared connection or a flow.
#[inline]
pub(crate) fn trace(trace: &Trace) {
    match *trace {
        Trace::Opened {
            conn,
            peer,
            private,
        } => {
            probe_lazy!(
                trunkline,
                connection_opened,
                number(conn),
                private,
                high(peer),
                low(peer)
            );
        }
        Trace::Down {
            conn,
            peer,
            cause,
            flows,
        } => {
            probe_lazy!(
                trunkline,
                connection_down,
                number(conn),
                cause as u8,
                flows,
                high(peer),
                low(peer)
            );
        }
        Trace::Failover { qpn, from, to, .. } => {
            probe_lazy!(
                trunkline,
                failover,
                qpn.get(),
                number(from),
                to.map_or(NONE, number)
            );
        }
        _ => bind(trace),
    }
}

/// A probe about a BIND or the consent to one.
macro_rules! binding {
    ($name:ident, $qpn:expr, $remote:expr, $conn:expr, $replay_epoch:expr) => {{
        probe_lazy!(
            trunkline,
            $name,
            $qpn.get(),
            $remote.get(),
            number($conn),
            $replay_epoch
        );
    }};
}

fn bind(trace: &Trace) {
    match *trace {
        Trace::BindSent {
            qpn,
            remote,
            conn,
            replay_epoch,
            ..
        } => binding!(bind_sent, qpn, remote, conn, replay_epoch),
        Trace::BindReceived {
            qpn,
            remote,
            conn,
            replay_epoch,
        } => binding!(bind_received, qpn, remote, conn, replay_epoch),
        Trace::Bound {
            qpn,
            remote,
            conn,
            replay_epoch,
            ..
        } => binding!(bound, qpn, remote, conn, replay_epoch),
        Trace::BindRefused {
            qpn, remote, conn, ..
        } => {
            probe_lazy!(
                trunkline,
                bind_refused,
                qpn.get(),
                remote.get(),
                number(conn)
            );
        }
        Trace::Moved { qpn, conn } => {
            probe_lazy!(trunkline, moved, qpn.get(), number(conn));
        }
        Trace::Opened { .. }
        | Trace::Down { .. }
        | Trace::Failover { .. }
        | Trace::Ended { .. } => {}
    }
}
