//! What goes into the RDMA-CM layer, and what comes out of it.

use super::Id;
use crate::event::Route;
use crate::ib;
use core::net::SocketAddr;
use core::ops::Deref;
use trunkline_wire::cm::{RejReason, SidrStatus};
use trunkline_wire::{Psn, Qpn};

/// Where ports are counted: a range of service IDs of its own each.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum PortSpace {
    /// Reliable connections.
    Tcp,
    /// Datagrams.
    Udp,
    /// Any kind of QP.
    Ib,
}

impl PortSpace {
    /// The byte of a service ID that names it.
    pub const fn protocol(self) -> u8 {
        match self {
            Self::Tcp => 0x06,
            Self::Udp => 0x11,
            Self::Ib => 0x3f,
        }
    }

    pub(super) const fn from_protocol(protocol: u8) -> Option<Self> {
        match protocol {
            0x06 => Some(Self::Tcp),
            0x11 => Some(Self::Udp),
            0x3f => Some(Self::Ib),
            _ => None,
        }
    }

    /// Whether QPs of this kind belong into it.
    pub(super) const fn takes(self, kind: Kind) -> bool {
        match self {
            Self::Tcp => matches!(kind, Kind::Rc | Kind::Uc),
            Self::Udp => matches!(kind, Kind::Ud),
            Self::Ib => true,
        }
    }
}

/// Kind of QP.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Kind {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Datagrams.
    Ud,
}

/// Private data of a peer: as many bytes as its message has room for, zeros where it said nothing.
#[derive(Clone, Copy, Eq, PartialEq)]
pub struct Data {
    bytes: [u8; 224],
    length: u8,
}

impl Data {
    /// # Panics
    /// There are more than 224 bytes: no message has room for them.
    pub(super) fn new(data: &[u8]) -> Self {
        let mut bytes = [0; 224];
        bytes[..data.len()].copy_from_slice(data);
        Self {
            bytes,
            length: data.len() as u8,
        }
    }
}

impl Deref for Data {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

impl core::fmt::Debug for Data {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let used = self.iter().rposition(|&byte| byte != 0);
        let used = used.map_or(0, |last| last + 1);
        write!(f, "{:02x?} of {}", &self.bytes[..used], self.length)
    }
}

/// What an end connects or accepts with (`rdma_conn_param` of rdma_connect(3)).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Params<'a> {
    /// The QP; an ID that has one of its own takes that, whatever is here.
    pub qpn: Qpn,
    /// Bytes for the peer: at most [`Params::CONNECT`], [`Params::ACCEPT`] and their like.
    pub private_data: &'a [u8],
    /// READs and atomics that this end serves at once; an accepting end serves no more than the
    /// peer will have under way.
    pub responder_resources: u8,
    /// READs and atomics that this end will have under way at once; an accepting end has no more
    /// than the peer serves.
    pub initiator_depth: u8,
    /// This end counts receives in its ACKs.
    pub flow_control: bool,
    /// Times the QPs should send again; over 7 counts as 7. Without meaning when accepting.
    pub retry_count: u8,
    /// Times the peer should send again after an RNR NAK; over 7 counts as 7, for ever.
    pub rnr_retry_count: u8,
    /// The QP takes its receives from an SRQ.
    pub srq: bool,
    /// Q_Key of the QP; datagrams only.
    pub qkey: u32,
}

impl Default for Params<'_> {
    /// As [`new`](Params::new), for an ID that has a QP of its own.
    fn default() -> Self {
        Self::new(Qpn::default())
    }
}

impl Params<'_> {
    /// Bytes of private data when connecting.
    pub const CONNECT: usize = 56;
    /// Bytes of private data when connecting datagram QPs.
    pub const CONNECT_UD: usize = 180;
    /// Bytes of private data when accepting.
    pub const ACCEPT: usize = 196;
    /// Bytes of private data when accepting for a datagram QP.
    pub const ACCEPT_UD: usize = 136;
    /// Bytes of private data when confirming a peer's answer.
    pub const READY: usize = 224;
    /// Bytes of private data when rejecting.
    pub const REJECT: usize = 148;
    /// Q_Key of datagram QPs whose owners agree on no other (`RDMA_UDP_QKEY`).
    pub const UDP_QKEY: u32 = 0x0123_4567;

    /// A QP and nothing special: no READs or atomics, 7 tries of each sort. QPs of ours count
    /// receives, but those of an SRQ.
    pub const fn new(qpn: Qpn) -> Self {
        Self {
            qpn,
            private_data: &[],
            responder_resources: 0,
            initiator_depth: 0,
            flow_control: true,
            retry_count: 7,
            rnr_retry_count: 7,
            srq: false,
            qkey: Self::UDP_QKEY,
        }
    }
}

/// What a peer connects or accepts with, as this end sees it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PeerParams {
    /// READs and atomics that this end may have to serve at once.
    pub responder_resources: u8,
    /// READs and atomics that this end may have under way at once.
    pub initiator_depth: u8,
    /// The peer counts receives in its ACKs.
    pub flow_control: bool,
    /// Times this end should send again.
    pub retry_count: u8,
    /// Times this end should send again after an RNR NAK; 7: for ever.
    pub rnr_retry_count: u8,
    /// The peer's QP takes its receives from an SRQ.
    pub srq: bool,
    /// The peer's QP; 0 in a question for datagrams.
    pub qpn: Qpn,
}

/// What a QP has to be set to (`rdma_init_qp_attr(3)`), where both ends have spoken.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct QpAttributes {
    /// Where the peer is.
    pub route: Route,
    /// The peer's QP.
    pub remote_qpn: Qpn,
    /// PSN of the first packet to the peer.
    pub send_psn: Psn,
    /// PSN of the first packet from the peer.
    pub receive_psn: Psn,
    /// READs and atomics to have under way at once.
    pub initiator_depth: u8,
    /// READs and atomics to serve at once.
    pub responder_resources: u8,
    /// Times to send again.
    pub retry_count: u8,
    /// Times to send again after an RNR NAK; 7: for ever.
    pub rnr_retry_count: u8,
    /// MTU, timeout, traffic class and the like.
    pub path: ib::PathTerms,
}

/// Who serves a datagram service.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct UdPeer {
    /// The QP.
    pub qpn: Qpn,
    /// Its Q_Key.
    pub qkey: u32,
}

/// What happened (rdma_get_cm_event(3)).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Event {
    /// A peer connects: accept or reject `id`, which is new.
    ConnectRequest {
        /// The listening ID.
        listener: Id,
        /// The connection.
        id: Id,
        /// Address and port that the peer connects from.
        peer: SocketAddr,
        /// What it connects with; without meaning for datagrams.
        params: PeerParams,
        /// Its private data.
        data: Data,
    },
    /// The peer has accepted: make the QP ready, then accept too.
    ConnectResponse {
        /// The connection.
        id: Id,
        /// What it accepts with.
        params: PeerParams,
        /// Its private data.
        data: Data,
    },
    /// The connection came to nothing at this end: nobody decided in time.
    ConnectError {
        /// The connection.
        id: Id,
    },
    /// The peer is silent, or has no QP for datagrams.
    Unreachable {
        /// The connection.
        id: Id,
        /// What the peer says; `None` when it is silent.
        status: Option<SidrStatus>,
    },
    /// The peer's host says that nobody listens at its RoCE port: twice, and not in one moment.
    Nobody {
        /// The connection.
        id: Id,
    },
    /// The peer rejects.
    Rejected {
        /// The connection.
        id: Id,
        /// Why; 8 when nobody listens, 28 when its program says so.
        reason: RejReason,
        /// Its private data.
        data: Data,
    },
    /// The connection stands.
    Established {
        /// The connection.
        id: Id,
        /// Where datagrams go to; datagrams only.
        ud: Option<UdPeer>,
        /// What came with it: an RTU's private data, or a SIDR_REP's.
        data: Data,
    },
    /// The connection has ended.
    Disconnected {
        /// The connection.
        id: Id,
        /// Why.
        reason: ib::CloseReason,
        /// What the peer said with it.
        data: Data,
    },
    /// The QP of a connection that has ended may be used again.
    TimewaitExit {
        /// The connection.
        id: Id,
    },
}

impl Event {
    /// The ID that it concerns; of a request the new one.
    pub const fn id(&self) -> Id {
        match self {
            Self::ConnectRequest { id, .. }
            | Self::ConnectResponse { id, .. }
            | Self::ConnectError { id }
            | Self::Unreachable { id, .. }
            | Self::Nobody { id }
            | Self::Rejected { id, .. }
            | Self::Established { id, .. }
            | Self::Disconnected { id, .. }
            | Self::TimewaitExit { id } => *id,
        }
    }
}

/// Why a call failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no such ID (any more).
    #[error("ID {0} is not there")]
    UnknownId(Id),
    /// The ID is not in a state for this.
    #[error("ID {id} is {is}: this takes {wanted}")]
    State {
        /// The ID.
        id: Id,
        /// What it is.
        is: &'static str,
        /// What it has to be.
        wanted: &'static str,
    },
    /// The ID has no QP, and no other one is named.
    #[error("ID {0} has no QP, and the parameters name none")]
    NoQp(Id),
    /// The ID has a QP.
    #[error("ID {0} has a QP already")]
    HasQp(Id),
    /// As many IDs as may be.
    #[error("{0} IDs are the most")]
    TooManyIds(u32),
    /// QPs of that kind do not go with that port space.
    #[error("{1:?} QPs do not go with port space {0:?}")]
    Kind(PortSpace, Kind),
    /// Another ID has the address and port.
    #[error("{0} is in use")]
    AddressInUse(SocketAddr),
    /// No port is free to pick one.
    #[error("no port is free")]
    NoPort,
    /// The ID is bound to another address than the route begins at.
    #[error("the ID is bound to {0}")]
    BoundElsewhere(SocketAddr),
    /// The message has no room for so much private data.
    #[error("{length} bytes of private data are more than {limit}")]
    PrivateData {
        /// Bytes given.
        length: usize,
        /// Bytes there is room for.
        limit: usize,
    },
    /// What is asked for is not possible.
    #[error(transparent)]
    Request(#[from] ib::RequestError),
}

/// Something to set of an ID (rdma_set_option(3)).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Setting {
    /// Type of service: the IP traffic class of the connection's packets. Its two lowest bits, ECN,
    /// belong to the node, whatever they are here.
    TypeOfService(u8),
    /// Share the port with others that do too, while none of them listens.
    ReuseAddress(bool),
    /// A listener on `::` does not take connections over IPv4.
    V6Only(bool),
    /// Exponent of the ACK timeout: 4.096 us times 2 to it, at most 31.
    AckTimeout(u8),
}
