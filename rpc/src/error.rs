//! Why a request has no response.

use trunkline::rdma_cm::sync::ConnectError;
use trunkline::{Completion, Down, Status, VendorError};

/// Why a request has no response.
///
/// Only where it says so the request was certainly not run: [`was_not_run`](Self::was_not_run).
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RpcError {
    /// Its deadline has passed, at this end or at the server.
    #[error("the deadline has passed")]
    Deadline,
    /// The connection has ended: the server was shut down, its process has ended, or it was not
    /// heard of for long while nothing was on its way to it.
    #[error("the connection has ended")]
    Closed,
    /// The peer does not answer any more: its host or the network is down, or it stands still.
    #[error("the peer does not answer any more")]
    Silent,
    /// The connection failed in another way.
    #[error("the connection failed")]
    Reset,
    /// The service has answered that it will not, or could not.
    #[error("refused: {0}")]
    Refused(Refusal),
    /// The server has no room for a request of this length just now. It was not run.
    #[error("the server is overloaded")]
    Overloaded,
    /// The server ends, and takes no more requests. It was not run.
    #[error("the server is shutting down")]
    Draining,
    /// The request, or its response, is longer than one of the ends takes, or than the place that
    /// was given for it; or there is no memory at this end for the response.
    #[error("the request or its response is too long")]
    TooLong,
    /// There is no memory at this end that could be registered for it. It was not sent.
    #[error("no memory for the request at this end")]
    NoMemory,
    /// The peer said what no end says. The connection was ended.
    #[error("the peer violates the format of requests: {0}")]
    Violation(&'static str),
    /// The request was cancelled at the server.
    #[error("the request was cancelled")]
    Cancelled,
    /// The node at this end has ended.
    #[error(transparent)]
    Node(Down),
}

impl RpcError {
    /// What a completion that is no success means for a connection.
    pub(crate) const fn of(failed: &Completion) -> Self {
        match failed.status {
            Status::RetryExceeded if matches!(failed.vendor_err, VendorError::None) => Self::Silent,
            Status::RnrRetryExceeded => Self::Violation("it grants receives that it has not"),
            Status::LocalLength => Self::Violation("a message is longer than its receive"),
            Status::RemoteAccess => Self::Violation("it names memory that is not there"),
            Status::Flushed | Status::RetryExceeded => Self::Closed,
            _ => Self::Reset,
        }
    }

    /// Whether the request was certainly not run, so that it can be sent again whatever it does.
    pub const fn was_not_run(&self) -> bool {
        matches!(self, Self::Overloaded | Self::Draining | Self::NoMemory)
    }
}

/// What a service says instead of a response.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{message} (code {code})")]
pub struct Refusal {
    /// Tells refusals apart, for programs: what it means is between service and caller.
    pub code: u16,
    /// The same for people; what does not fit a message is cut off.
    pub message: String,
}

impl Refusal {
    /// Returns one with a code of the service's own.
    pub fn new(code: u16, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { code, message }
    }
}

/// Errors of middleware, with code 0.
impl From<Box<dyn std::error::Error + Send + Sync>> for Refusal {
    fn from(error: Box<dyn std::error::Error + Send + Sync>) -> Self {
        match error.downcast::<Self>() {
            Ok(refusal) => *refusal,
            Err(error) => Self::new(0, error.to_string()),
        }
    }
}

impl From<std::convert::Infallible> for Refusal {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}

/// Why there is no connection to a server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// There is no way, the server does not want it, or a call was refused.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The peer has accepted, and takes no requests.
    #[error("the peer takes no requests")]
    NoServer,
    /// The connection stood, and ended at once.
    #[error("the connection has ended: {0}")]
    Ended(RpcError),
    /// This endpoint has as many connections as its options allow.
    #[error("the endpoint has as many connections as it may")]
    TooMany,
}

impl From<trunkline::Error> for OpenError {
    fn from(error: trunkline::Error) -> Self {
        Self::Connect(error.into())
    }
}
