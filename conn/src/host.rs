//! What an engine asks of the QP above it.

use crate::mem::Memory;
use crate::work::{Completion, Receive, Request, Status};

/// The receive queue of the QP, or its SRQ, is in error and gives no receives any more.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ReceivesInError;

/// The QP an engine works for: its memory, its receive queue, its completion queues.
pub trait Host {
    /// Registered memory.
    type Memory: Memory;

    /// The memory.
    fn memory(&mut self) -> &mut Self::Memory;

    /// The next receive request of the QP or its SRQ; `None` means receiver not ready.
    ///
    /// # Errors
    /// There will be none: the engine puts the QP in error, and tells the peer where its protocol
    /// has words for that.
    fn take_receive(&mut self) -> Result<Option<Receive>, ReceivesInError>;

    /// Receive requests that are posted and not taken, which the peer is granted credits for;
    /// `None` where there are no credits, as with an SRQ.
    fn receives(&self) -> Option<u32> {
        None
    }

    /// A send request ended. Called once for every request, in posting order, whether signalled or
    /// not; the host decides on the completion. `byte_len` is that of `ibv_wc`.
    fn sent(&mut self, request: Request, status: Status, byte_len: u32);

    /// A receive request ended.
    fn received(&mut self, completion: Completion);

    /// Something the program should hear of.
    fn event(&mut self, event: QpEvent);
}

/// Asynchronous events of a QP (`enum ibv_event_type`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum QpEvent {
    /// First packet in RTR.
    CommunicationEstablished,
    /// All outstanding requests of a draining QP are done.
    SendQueueDrained,
    /// The peer violated the protocol; the QP is in error.
    RequestError,
    /// The peer tried what it may not; the QP is in error.
    AccessError,
    /// The QP went to error for another reason.
    Fatal,
    /// The QP in error has taken its last receive from the SRQ. The host says so itself: engines
    /// do not know where receives come from.
    LastWqeReached,
}
