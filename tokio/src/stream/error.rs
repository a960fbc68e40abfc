//! Why a stream, or the way to one, came to nothing.

use std::io;
use trunkline::rdma_cm::sync::ConnectError;
use trunkline::{Completion, Down, Status, VendorError};

/// Why a stream does not go on. It is inside the [`io::Error`] of its calls:
/// `error.get_ref()` and `downcast_ref`.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The peer ended it before this direction was at its end, or its node ended.
    #[error("the peer has reset the stream")]
    Reset,
    /// The peer does not answer any more.
    #[error("the peer does not answer")]
    Silent,
    /// The peer said what no end of a stream says. The stream was reset.
    #[error("the peer violates the format of streams: {0}")]
    Violation(&'static str),
    /// This direction was shut down by this end.
    #[error("this end was shut down")]
    ShutDown,
    /// The node at this end has ended.
    #[error(transparent)]
    Node(Down),
}

impl StreamError {
    /// What a completion that is no success means.
    pub(super) const fn of(failed: &Completion) -> Self {
        match failed.status {
            Status::RetryExceeded if matches!(failed.vendor_err, VendorError::None) => Self::Silent,
            Status::RnrRetryExceeded => Self::Violation("it grants receives that it has not"),
            Status::LocalLength => Self::Violation("a message is longer than its receive"),
            _ => Self::Reset,
        }
    }
}

impl From<StreamError> for io::Error {
    fn from(error: StreamError) -> Self {
        let kind = match &error {
            StreamError::Reset => io::ErrorKind::ConnectionReset,
            StreamError::Silent => io::ErrorKind::TimedOut,
            StreamError::Violation(_) => io::ErrorKind::InvalidData,
            StreamError::ShutDown => io::ErrorKind::BrokenPipe,
            StreamError::Node(_) => io::ErrorKind::NotConnected,
        };
        Self::new(kind, error)
    }
}

/// Why there is no stream to a peer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// There is no connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The peer has accepted, and speaks of no stream.
    #[error("the peer speaks of no stream")]
    NoStream,
}

impl From<trunkline::Error> for OpenError {
    fn from(error: trunkline::Error) -> Self {
        Self::Connect(error.into())
    }
}
