//! What can go wrong, by who is at fault.

use std::net::IpAddr;
use trunkline_dataplane::{PortError, UdpOpenError};
use trunkline_qpmap::VerbsError;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The program asked for what cannot be.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The port does not work.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The UDP port cannot be opened.
    #[error(transparent)]
    Open(#[from] UdpOpenError),
    /// The operating system refused memory, a descriptor or a thread.
    #[error("{call}: {source}")]
    System {
        /// What was asked of it.
        call: &'static str,
        /// What it said.
        source: std::io::Error,
    },
    /// The peer does not answer, or is no Trunkline node.
    #[error("no shared connection to {peer}: {why}")]
    NoConnection {
        /// Its address.
        peer: IpAddr,
        /// What happened.
        why: &'static str,
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
}

impl Error {
    pub(crate) fn system(call: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::System { call, source }
    }
}
