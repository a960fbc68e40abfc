//! What goes into the communication manager, and what comes out of it.

use crate::event::Route;
use trunkline_wire::cm::{
    Answered, CommId, PrivateData, RejReason, Rep, Req, SidrStatus, TransportService,
};
use trunkline_wire::{Psn, Qpn, ServiceId};

/// One connection, or one question for a datagram service. Each yields exactly one event that
/// [ends](Event::ends) it.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct CmId(pub(crate) CommId);

impl CmId {
    /// The number by which the peer knows it.
    pub const fn number(self) -> u32 {
        self.0.0
    }
}

/// What one end says of its QP.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct QpTerms {
    /// Number of the QP.
    pub qpn: Qpn,
    /// PSN of the first packet that this end expects to receive.
    pub starting_psn: Psn,
    /// READs and atomics that this end serves at once.
    pub responder_resources: u8,
    /// READs and atomics that this end will have under way at once.
    pub initiator_depth: u8,
    /// Times the other end should send again after an RNR NAK, 3 bits; 7: for ever.
    pub rnr_retry_count: u8,
    /// This end takes its receives from an SRQ.
    pub srq: bool,
    /// This end counts receives in its ACKs.
    pub flow_control: bool,
}

/// What of a path both ends have to agree on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PathTerms {
    /// Path MTU, coded: 1 is 256 bytes, 5 is 4096.
    pub mtu: u8,
    /// IP traffic class of the connection's packets.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit of the connection's packets.
    pub hop_limit: u8,
    /// Exponent of the ACK timeout, 5 bits: 4.096 us times 2 to it.
    pub ack_timeout: u8,
    /// Partition key.
    pub pkey: u16,
}

impl Default for PathTerms {
    /// MTU 1024, and the rest as the Linux kernel asks for it.
    fn default() -> Self {
        Self {
            mtu: 3,
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 64,
            ack_timeout: 19,
            pkey: 0xffff,
        }
    }
}

/// What a REQ asks for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RequestTerms {
    /// The service.
    pub service_id: ServiceId,
    /// Kind of connection: [`TransportService::Rc`] or [`TransportService::Uc`].
    pub service: TransportService,
    /// The asking end.
    pub qp: QpTerms,
    /// Times both QPs should send again, 3 bits.
    pub retry_count: u8,
    /// The path.
    pub path: PathTerms,
    /// Users' bytes.
    pub private_data: PrivateData<92>,
}

impl RequestTerms {
    pub(super) fn of(req: &Req) -> Self {
        Self {
            service_id: req.service_id,
            service: req.service,
            qp: QpTerms {
                qpn: req.qpn,
                starting_psn: req.starting_psn,
                responder_resources: req.responder_resources,
                initiator_depth: req.initiator_depth,
                rnr_retry_count: req.rnr_retry_count,
                srq: req.srq,
                flow_control: req.flow_control,
            },
            retry_count: req.retry_count,
            path: PathTerms {
                mtu: req.path_mtu,
                traffic_class: req.primary.traffic_class,
                flow_label: req.primary.flow_label,
                hop_limit: req.primary.hop_limit,
                ack_timeout: req.primary.local_ack_timeout,
                pkey: req.pkey,
            },
            private_data: req.private_data,
        }
    }
}

/// What a REP answers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Answer {
    /// The answering end.
    pub qp: QpTerms,
    /// Exponent of the longest time before it acknowledges a packet, 5 bits.
    pub ack_delay: u8,
    /// Users' bytes.
    pub private_data: PrivateData<196>,
}

impl Answer {
    /// ACK delay that the Linux kernel tells: 134 ms.
    pub const ACK_DELAY: u8 = 15;

    pub(super) const fn of(rep: &Rep) -> Self {
        Self {
            qp: QpTerms {
                qpn: rep.qpn,
                starting_psn: rep.starting_psn,
                responder_resources: rep.responder_resources,
                initiator_depth: rep.initiator_depth,
                rnr_retry_count: rep.rnr_retry_count,
                srq: rep.srq,
                flow_control: rep.flow_control,
            },
            ack_delay: rep.target_ack_delay,
            private_data: rep.private_data,
        }
    }
}

/// A question for a datagram service.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SidrRequest {
    /// The service.
    pub service_id: ServiceId,
    /// Partition key.
    pub pkey: u16,
    /// Users' bytes.
    pub private_data: PrivateData<216>,
}

/// The answer to it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SidrAnswer {
    /// Whether there is a QP; the rest counts only with [`SidrStatus::Success`].
    pub status: SidrStatus,
    /// The QP.
    pub qpn: Qpn,
    /// Its Q_Key.
    pub qkey: u32,
    /// Users' bytes.
    pub private_data: PrivateData<136>,
}

/// Why a connection that stood, or was about to, has ended.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum CloseReason {
    /// This node closed or rejected it.
    Local,
    /// The peer closed it.
    Peer,
    /// The peer gave it up or does not know it any more.
    Abandoned(RejReason),
    /// The peer asked and did not confirm.
    Unconfirmed,
    /// Nobody decided in time.
    Undecided,
    /// The peer uses its QP for another connection: it had lost this one.
    Stale,
    /// The QP of this end failed: its peer was silent for too long, has ended, or broke the rules.
    Failed,
}

/// What happened.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Event {
    /// A peer asks for a connection: [`accept`](super::IbCm::accept) or
    /// [`reject`](super::IbCm::reject) it.
    Incoming {
        /// The connection.
        id: CmId,
        /// Where the peer is.
        route: Route,
        /// What it asks for.
        terms: RequestTerms,
    },
    /// The peer agreed: make the QP ready, then call [`ready`](super::IbCm::ready).
    Replied {
        /// The connection.
        id: CmId,
        /// Where the peer is.
        route: Route,
        /// What it says.
        answer: Answer,
    },
    /// The connection stands at both ends: the peer has confirmed, or this end has.
    Established {
        /// The connection.
        id: CmId,
        /// Where the peer is.
        route: Route,
        /// What came with the confirmation.
        private_data: PrivateData<224>,
    },
    /// The peer refused, or its answer was refused here.
    Rejected {
        /// The connection.
        id: CmId,
        /// Where the peer is.
        route: Route,
        /// Which message was refused.
        refused: Answered,
        /// Why.
        reason: RejReason,
        /// The peer's own words; zeros when it was refused here.
        private_data: PrivateData<148>,
    },
    /// The peer did not answer at all.
    Unreachable {
        /// The connection or question.
        id: CmId,
        /// Where the peer is.
        route: Route,
    },
    /// The peer's host says that nobody listens there: twice, and not in one moment.
    Nobody {
        /// The connection or question.
        id: CmId,
        /// Where the peer would be.
        route: Route,
    },
    /// A connection has ended, or the attempt of a peer at one.
    Closed {
        /// The connection.
        id: CmId,
        /// Where the peer is.
        route: Route,
        /// Why.
        reason: CloseReason,
        /// What came with the peer's DREQ or DREP; zeros with REJ and silence.
        private_data: PrivateData<224>,
    },
    /// A connection that has ended is forgotten: its QP may be used again.
    TimeWaitExit {
        /// The connection.
        id: CmId,
        /// The QP of this end.
        qpn: Qpn,
    },
    /// A peer asks for a datagram service: [`answer`](super::IbCm::answer) it.
    SidrIncoming {
        /// The question.
        id: CmId,
        /// Where the peer is.
        route: Route,
        /// What it asks.
        question: SidrRequest,
    },
    /// A peer has answered a question.
    SidrAnswered {
        /// The question.
        id: CmId,
        /// Where the peer is.
        route: Route,
        /// What it says.
        answer: SidrAnswer,
    },
    /// The question of a peer is over: answered, or nobody has.
    SidrClosed {
        /// The question.
        id: CmId,
    },
}

impl Event {
    /// The connection or question that it concerns.
    pub const fn id(&self) -> CmId {
        match self {
            Self::Incoming { id, .. }
            | Self::Replied { id, .. }
            | Self::Established { id, .. }
            | Self::Rejected { id, .. }
            | Self::Unreachable { id, .. }
            | Self::Nobody { id, .. }
            | Self::Closed { id, .. }
            | Self::TimeWaitExit { id, .. }
            | Self::SidrIncoming { id, .. }
            | Self::SidrAnswered { id, .. }
            | Self::SidrClosed { id } => *id,
        }
    }

    /// Whether nothing but [`Event::TimeWaitExit`] follows about it.
    pub const fn ends(&self) -> bool {
        matches!(
            self,
            Self::Rejected { .. }
                | Self::Unreachable { .. }
                | Self::Nobody { .. }
                | Self::Closed { .. }
                | Self::SidrAnswered { .. }
                | Self::SidrClosed { .. }
        )
    }
}

/// Why a peer cannot be asked now.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum RequestError {
    /// As much is under way as may be.
    #[error("{what}: {limit} are the most")]
    Busy {
        /// What there is too much of.
        what: &'static str,
        /// The limit.
        limit: u32,
    },
    /// The two addresses are of different families.
    #[error("{} and {} are addresses of two families", .0.local, .0.remote)]
    Families(Route),
    /// The QP has a connection already, or had one a moment ago.
    #[error("QP {0} has a connection already, or had one a moment ago")]
    QpInUse(Qpn),
    /// A field holds what it may not.
    #[error("{field} cannot be {value}: {least} to {most}")]
    Invalid {
        /// Which.
        field: &'static str,
        /// What it holds.
        value: u32,
        /// The least that it may hold.
        least: u32,
        /// The most.
        most: u32,
    },
}

/// Why a peer's request cannot be accepted.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum AcceptError {
    /// The connection is over, or does not wait for that.
    #[error(transparent)]
    Unknown(#[from] UnknownConn),
    /// What it is accepted with is not possible.
    #[error(transparent)]
    Request(#[from] RequestError),
}

/// The connection is over, or not where the call needs it to be.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("connection {:#010x} is over, or not in a state for this", .0.0.0)]
pub struct UnknownConn(pub CmId);
