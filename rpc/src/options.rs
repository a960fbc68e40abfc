//! What an endpoint is made with.

use crate::hello::{BYTES, MAX_BODY, RECEIVES};
use std::time::Duration;
use trunkline::{Allowed, VerbsError};

/// What an [`Endpoint`](crate::Endpoint) gives each of its connections, and takes from peers.
///
/// A connection has `receives` buffers of `message_bytes` for what comes, and up to as many as the
/// peer has for what goes. All requests and responses that wait for the same connection go in one
/// message, as far as they fit; what is longer than a message goes by RDMA READ or WRITE.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Options {
    /// Messages that a peer may send before this end has taken them: 4 to 1,024; 8 by default.
    pub receives: u16,
    /// Bytes of a message: 512 to 1 MiB; 4,096 by default.
    pub message_bytes: u32,
    /// Requests that a peer may have under way at a time on one connection: 1 to 65,535; 1,024 by
    /// default. Its further ones wait at its own end.
    pub requests: u16,
    /// Connections of each worker of the node, at most: 1 to 65,536; 1,024 by default. Further ones
    /// are refused. They share a completion queue, which has 2^22 entries at most: with more than
    /// 23 `receives` each there can be fewer.
    pub connections: u32,
    /// Bytes of a request or response, at most, up to 1 GiB; 64 MiB by default.
    pub max_body: u32,
    /// Bytes of those longer than a message that a server keeps at a time, for all connections of
    /// the endpoint: requests until they are answered, responses until they were read; 512 MiB by
    /// default. Each counts as the next power of two, at least 16 KiB, and a connection never has
    /// more than it leaves to all others: of one alone half is kept, or one body. A request beyond
    /// is refused as [`Overloaded`](crate::RpcError::Overloaded), a response in words.
    pub large_bytes: u64,
    /// How long the way to a peer is looked for, before it is asked for a connection; 5 s by
    /// default.
    pub resolve: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            receives: 8,
            message_bytes: 4096,
            requests: 1024,
            connections: 1024,
            max_body: 64 << 20,
            large_bytes: 512 << 20,
            resolve: Duration::from_secs(5),
        }
    }
}

impl Options {
    /// # Errors
    /// Which of them is out of its range, and what that is.
    pub(crate) fn check(&self) -> Result<(), VerbsError> {
        let receives = Allowed::Range((*RECEIVES.start()).into(), (*RECEIVES.end()).into());
        receives.check("receives", self.receives)?;
        let bytes = Allowed::Range(*BYTES.start(), *BYTES.end());
        bytes.check("message_bytes", self.message_bytes)?;
        Allowed::AtLeast(1).check("requests", self.requests)?;
        Allowed::Range(1, 65_536).check("connections", self.connections)?;
        Allowed::Range(0, MAX_BODY).check("max_body", self.max_body)
    }
}
