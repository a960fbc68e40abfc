//! What can go wrong, by who is at fault.

use crate::node::life::Down;
use crate::verbs::cq::CqError;
use std::net::IpAddr;
use std::sync::Arc;
use trunkline_conn::work::VendorError;
use trunkline_dataplane::{Errno, InterfaceName, LinkOpenError, PortError, UdpOpenError};
use trunkline_qpmap::cq::CqOverflow;
use trunkline_qpmap::{PostError, VerbsError};

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The program asked for what cannot be.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// A list of requests was posted up to one that cannot be.
    #[error(transparent)]
    Post(#[from] PostError),
    /// A CQ is in error.
    #[error(transparent)]
    Cq(#[from] CqOverflow),
    /// The node does nothing any more.
    #[error(transparent)]
    Down(#[from] Down),
    /// A node was shut down with requests or answers still under way.
    #[error("time was up before all was done")]
    Unfinished,
    /// The port does not work.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The UDP port cannot be opened.
    #[error(transparent)]
    Open(#[from] UdpOpenError),
    /// The port of raw frames cannot be opened.
    #[error(transparent)]
    OpenLink(LinkOpenError),
    /// A port that another crate brings cannot be opened.
    #[error("port {port}: {source}")]
    OpenOther {
        /// What it is called.
        port: String,
        /// What it says.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A port carries less than a message of connection management.
    #[error(
        "port {port} carries {carries} bytes behind a UDP header, and connection management takes \
         {least}: raise the MTU of its interface by {}", least - carries
    )]
    TooNarrow {
        /// What it is called.
        port: String,
        /// Bytes of the largest datagram.
        carries: usize,
        /// Bytes that it takes.
        least: usize,
    },
    /// The operating system refused memory, a descriptor or a thread.
    #[error("{call}: {source}")]
    System {
        /// What was asked of it.
        call: &'static str,
        /// What it said.
        source: std::io::Error,
    },
    /// A node has no descriptor that its program could wait on.
    #[error("the node has no descriptor to wait on: {why}")]
    NoFd {
        /// The reason.
        why: &'static str,
    },
    /// No packet can come to, or come from, this address.
    #[error("{address} cannot be used: {why}")]
    BadAddress {
        /// The address.
        address: IpAddr,
        /// What is wrong with it.
        why: &'static str,
    },
    /// There is no shared connection to the peer.
    #[error("no shared connection to {peer}: {why}")]
    NoConnection {
        /// Its address.
        peer: IpAddr,
        /// What happened.
        why: NoConnection,
    },
    /// The service that carries the node refuses.
    #[error("{why}")]
    Refused {
        /// What went wrong, as a number of errno(3).
        errno: u32,
        /// What went wrong.
        why: Arc<str>,
    },
    /// A node that a service carries has no such thing.
    #[error("a node that a service carries offers no {what}")]
    NotOffered {
        /// What it does not offer.
        what: &'static str,
    },
    /// RDMA-CM refuses.
    #[error(transparent)]
    Cm(#[from] trunkline_cm::rdma::Error),
    /// A range outside a memory region.
    #[error("{length} bytes at offset {offset} do not fit a region of {size} bytes")]
    OutOfRegion {
        /// First byte.
        offset: usize,
        /// Bytes.
        length: usize,
        /// Size of the region.
        size: usize,
    },
    /// An atomic on bytes that are not aligned.
    #[error("an atomic at offset {offset} is not aligned: its address has to be a multiple of 8")]
    Misaligned {
        /// Where it was to be.
        offset: usize,
    },
}

impl From<LinkOpenError> for Error {
    /// Whatever port it is for, an address that is taken is the same error.
    fn from(error: LinkOpenError) -> Self {
        match error {
            LinkOpenError::Address(error) => Self::Open(error),
            error => Self::OpenLink(error),
        }
    }
}

impl From<CqError> for Error {
    fn from(error: CqError) -> Self {
        match error {
            CqError::Overflow(overflow) => overflow.into(),
            CqError::Down(down) => down.into(),
        }
    }
}

/// Why there is no shared connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum NoConnection {
    /// This host knows no way to the address.
    #[error("there is no route to it")]
    NoRoute,
    /// The way there is by this interface of the host, which is down or not plugged in.
    #[error("interface {0}, which leads to it, is down")]
    LinkDown(InterfaceName),
    /// There is a way, and nobody at its end: the link's neighbour does not answer.
    #[error("there is no host at that address")]
    NoHost,
    /// This machine refuses to send datagrams to it, for example because of a firewall.
    #[error("this machine refuses to send to it: {0}")]
    Unsent(Errno),
    /// A host is there, and no Trunkline node, or one that shares no connections.
    #[error("it is no Trunkline node, or one that shares no connections")]
    NoNode,
    /// The host says that nobody listens at its RoCE port.
    #[error("no node runs there")]
    Nobody,
    /// Nothing came back: the host may be down or behind a firewall.
    #[error("it does not answer")]
    Silent,
    /// The address leads to this node.
    #[error("it is this node itself")]
    Itself,
    /// Its answer is not one that a node gives.
    #[error("its answer makes no sense")]
    NoSense,
    /// It has no room for one more, and had none whenever it was asked.
    #[error("it is busy")]
    Busy,
    /// This node's address has as many as the peer leaves to one address.
    #[error("this node's address has its share of the peer's connections")]
    Share,
    /// It has started anew, and what the one before had is not gone yet.
    #[error("another incarnation of it is still there")]
    Incarnation,
    /// It does not want one.
    #[error("it refused")]
    Refused,
    /// This node has no room for one more.
    #[error("too many connections are being opened")]
    TooMany,
    /// This node was built without ([`Builder::sharing`](crate::Builder::sharing)).
    #[error("this node shares no connections")]
    NotSharing,
    /// It will be there when the peer has answered.
    #[error("it is still being opened")]
    Opening,
    /// It was there.
    #[error("it was closed")]
    Closed,
    /// A QP moves among connections of its own worker.
    #[error("it belongs to another worker than the QP")]
    OtherWorker,
}

impl NoConnection {
    /// What requests say that end because of it (`vendor_err`).
    pub(crate) const fn to_requests(self) -> VendorError {
        match self {
            Self::Nobody => VendorError::NoNode,
            Self::NoNode => VendorError::NotSharing,
            _ => VendorError::None,
        }
    }
}

impl Error {
    pub(crate) fn system(call: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::System { call, source }
    }
}
