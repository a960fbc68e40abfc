//! The owner of what is said to peers beside data: contents of packets of control
//! messages that were not acknowledged yet, and stateless replies.

mod blobs;
mod replies;

pub(crate) use blobs::{Blobs, MAX_BLOB};
pub(crate) use replies::{Replies, Reply};

/// What peers are told.
#[derive(Debug, Default)]
pub(crate) struct Control {
    /// In flight.
    pub(crate) blobs: Blobs,
    /// To those that have no flow here.
    pub(crate) replies: Replies,
}

impl Control {
    /// How many of both there are.
    pub(crate) const fn len(&self) -> usize {
        self.blobs.len() + self.replies.len()
    }
}
