//! Waiting for completions: on a descriptor, and in a call.

use super::Cq;
use crate::error::Error;
use crate::node::Node;
use crate::worker::deadline::Deadline;
use crate::worker::sleep;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;
use trunkline_conn::work::Completion;

/// For whoever waits for descriptors: the same as [`Cq::fd`].
impl AsFd for Cq {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd()
    }
}

impl Cq {
    /// Returns the next completion, and waits for it until `timeout` is over; `None`: none came. A
    /// program that takes many at once gets the others by [`poll`](Self::poll).
    ///
    /// It sleeps while there is nothing to do. An inline node is driven by this call meanwhile, as
    /// by [`Node::poll`](crate::Node::poll), and other threads may drive it as well; other inline
    /// nodes of the program are not. Any number of threads may wait for one queue; each completion
    /// goes to one of them. The call arms the queue and takes its events, so a program that sleeps
    /// on its [`fd`](Self::fd) does not wait here at the same time.
    ///
    /// # Errors
    /// As [`poll`](Self::poll). The node does nothing any more ([`Error::Down`]): what its QPs had
    /// outstanding is flushed and can be polled. Of an inline node those of
    /// [`Node::poll`](crate::Node::poll), too. The operating system has no descriptor left, or the
    /// queue has none ([`Error::NoFd`]): it was made with a
    /// [notification of its own](crate::Node::create_cq_notifying).
    pub fn wait(&self, timeout: Duration) -> Result<Option<Completion>, Error> {
        let end = Deadline::after(timeout);
        let why = "its program is notified in a way of its own";
        let fd = self.0.event.fd().ok_or(Error::NoFd { why })?;
        let node = Node {
            shared: Arc::clone(&self.0.node),
        };
        loop {
            if let Some(done) = self.poll_one()? {
                return Ok(Some(done));
            }
            self.0.node.life.check()?;
            let worked = node.is_inline() && node.poll()?;
            if worked && end.left().is_some() {
                continue;
            }
            self.take_events();
            self.arm(false);
            if let Some(done) = self.poll_one()? {
                // The event that was taken may have been about one behind this, and for a thread
                // that sleeps: it finds the descriptor readable still.
                self.0.event.raise();
                return Ok(Some(done));
            }
            let Some(left) = end.wait() else {
                return Ok(None);
            };
            sleep::wait_for(&node.shared, fd, left)?;
        }
    }
}
