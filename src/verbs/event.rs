//! Asynchronous events of a node.

use crate::error::NoConnection;
use trunkline_conn::host::QpEvent;
use trunkline_qpmap::{ConnId, CqId, Event as EngineEvent, SrqId};
use trunkline_wire::{Gid, Qpn};

/// Something that happened to a node's objects, as `ibv_get_async_event(3)` gives.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// Something happened to a QP. That one in RTR hears its peer for the first time is
    /// [`QpEvent::CommunicationEstablished`].
    Qp {
        /// Its number.
        qpn: Qpn,
        /// What.
        event: QpEvent,
    },
    /// The peer's QP which this one is connected to is gone, or in another life: its program
    /// destroyed or reset it, its node ended, or it failed while this one had nothing to send. This
    /// QP stays as it is, and its receives stay posted. Requests that are not done or are posted
    /// later fail with [`Status::RetryExceeded`] and [`VendorError::QpGone`], after 100 ms where
    /// the peer's QP left in order, unless another life of that is ready to take them; then this QP
    /// goes to ERROR. Once for each life of this QP, which ends by [`QpModify::Reset`]. Devices
    /// have no such event.
    ///
    /// [`Status::RetryExceeded`]: crate::Status::RetryExceeded
    /// [`VendorError::QpGone`]: crate::VendorError::QpGone
    /// [`QpModify::Reset`]: crate::QpModify::Reset
    PeerQpGone {
        /// The QP here.
        qpn: Qpn,
    },
    /// A completion came when its CQ was full: the CQ is in error for good (`IBV_EVENT_CQ_ERR`),
    /// and so are its QPs, each with its own event. Once for each CQ.
    CqError {
        /// The CQ.
        cq: CqId,
    },
    /// The receives that were posted to an SRQ and not taken were fewer than its limit
    /// (`IBV_EVENT_SRQ_LIMIT_REACHED`). The limit is disarmed: the event comes once for each
    /// [`Srq::set_limit`](crate::Srq::set_limit).
    SrqLimitReached {
        /// The SRQ.
        srq: SrqId,
    },
    /// The ring of an SRQ holds what no program posts (`IBV_EVENT_SRQ_ERR`): no more receives are
    /// taken from it, and a QP that needs one goes to ERROR. Once for each SRQ.
    SrqError {
        /// The SRQ.
        srq: SrqId,
    },
    /// The link of the node's port works no more (`IBV_EVENT_PORT_ERR`): its interface is down, is
    /// gone, or nothing is at the other end of its cable. QPs stay as they are, and go on when the
    /// link comes back in time. However often the link changes before the program reads the events,
    /// two events of the port wait at most, and the last one is what the link does.
    PortError {
        /// Number of the port: always 1.
        port: u8,
    },
    /// The link of the node's port works again (`IBV_EVENT_PORT_ACTIVE`).
    PortActive {
        /// Number of the port: always 1.
        port: u8,
    },
    /// The device, which is the node that gives this event, does nothing any more: it failed, or
    /// was shut down. All its QPs are in error (`IBV_EVENT_DEVICE_FATAL`). Once, and before other
    /// events that still wait; [`Node::health`](crate::Node::health) says why.
    DeviceFatal,
    /// A connection that the program opened
    /// ([`Node::open_connection`](crate::Node::open_connection)) is open.
    ConnectionUp {
        /// The connection.
        conn: ConnId,
        /// Address of its peer.
        peer: Gid,
    },
    /// A connection that the program opened did not come about;
    /// [`Connection::state`](crate::Connection::state) says so, too.
    ConnectionFailed {
        /// Address of its peer.
        peer: Gid,
        /// What happened.
        why: NoConnection,
    },
    /// A shared connection is gone. QPs that the node has bound move by themselves.
    ConnectionDown {
        /// The connection.
        conn: ConnId,
        /// Address of its peer.
        peer: Gid,
    },
    /// A QP finished moving to another connection.
    Moved {
        /// The QP.
        qpn: Qpn,
        /// Where it is now.
        conn: ConnId,
    },
}

impl Event {
    /// Returns what a program hears of an engine's event; `None`: it concerns the node alone.
    pub(crate) const fn of(event: &EngineEvent) -> Option<Self> {
        match *event {
            EngineEvent::Qp { qpn, event } => Some(Self::Qp { qpn, event }),
            EngineEvent::PeerQpGone { qpn } => Some(Self::PeerQpGone { qpn }),
            EngineEvent::CqError { cq } => Some(Self::CqError { cq }),
            EngineEvent::SrqLimitReached { srq } => Some(Self::SrqLimitReached { srq }),
            EngineEvent::SrqError { srq } => Some(Self::SrqError { srq }),
            EngineEvent::ConnectionDown { conn, peer, .. } => {
                Some(Self::ConnectionDown { conn, peer })
            }
            EngineEvent::Moved { qpn, conn } => Some(Self::Moved { qpn, conn }),
            EngineEvent::NeedsConnection { .. }
            | EngineEvent::Crowded { .. }
            | EngineEvent::Early { .. }
            | EngineEvent::QpHeard { .. }
            | EngineEvent::QpFailed { .. } => None,
        }
    }
}
