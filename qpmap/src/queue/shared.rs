//! The queue of an SRQ, as programs post to it.

use super::{RecvQueue, Size};
use crate::error::PostError;
use crate::ring::RingMemory;
use crate::sync::{AtomicBool, Mutex, MutexGuard};
use crate::wqe::RecvWr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

/// Room that a program offers to the messages of many QPs (`ibv_post_srq_recv(3)`). Another queue
/// takes its place when the SRQ gets another size.
#[derive(Debug)]
pub struct SharedRecvQueue<W> {
    /// Who posts has the lock, so that nobody posts to a queue that another one has replaced.
    current: Mutex<Arc<RecvQueue<W>>>,
    /// Its ring was found broken.
    in_error: AtomicBool,
}

impl<W: RingMemory> SharedRecvQueue<W> {
    pub(crate) fn new(queue: Arc<RecvQueue<W>>) -> Self {
        Self {
            current: Mutex::new(queue),
            in_error: AtomicBool::new(false),
        }
    }

    /// The program's half of the queue of an SRQ whose engine is in another process: its memory is
    /// to be [given](Self::begin).
    pub fn apart(size: Size) -> Self {
        Self::new(Arc::new(RecvQueue::new(size)))
    }

    /// Posts to another ring from now on, as the engine does since it
    /// [moved](crate::engine::Engine::resize_srq_into) what was posted: `resized` says to which,
    /// while nobody posts.
    ///
    /// # Errors
    /// What `resized` says: the ring stays the one that it was.
    pub fn move_to<E>(&self, resized: impl FnOnce() -> Result<(Size, W), E>) -> Result<(), E> {
        let mut current = self.lock();
        let (size, memory) = resized()?;
        let queue = RecvQueue::new(size);
        queue.begin(memory);
        *current = Arc::new(queue);
        Ok(())
    }

    /// Makes sure that the queue has a ring, in the memory that `memory` gives for its size, while
    /// nobody posts.
    ///
    /// # Errors
    /// What `memory` says.
    pub fn ready<E>(&self, memory: impl FnOnce(Size) -> Result<W, E>) -> Result<(), E> {
        let current = self.lock();
        if !current.has_ring() {
            current.begin(memory(current.size())?);
        }
        Ok(())
    }

    /// Gives the queue the memory of its ring, as [`SendQueue::begin`](super::SendQueue::begin).
    ///
    /// # Panics
    /// It has another number of words than its size says.
    pub fn begin(&self, memory: W) -> bool {
        self.lock().begin(memory)
    }

    /// What its queue was made for.
    pub fn size(&self) -> Size {
        self.lock().size()
    }

    /// Posts `requests` in order, up to the first that is refused.
    ///
    /// # Errors
    /// As [`RecvQueue::post`].
    pub fn post(&self, requests: &[RecvWr<'_>]) -> Result<(), PostError> {
        self.lock().post(requests)
    }

    /// Returns how many receives were posted and not taken.
    pub fn posted(&self) -> u32 {
        self.lock().posted()
    }

    /// Whether its ring was found broken: the SRQ is in error, for good.
    pub fn is_in_error(&self) -> bool {
        self.in_error.load(Ordering::Relaxed)
    }

    /// Worker: the ring was found broken.
    pub(crate) fn set_in_error(&self) {
        self.in_error.store(true, Ordering::Relaxed);
    }

    /// The queue that receives are posted to. While the guard lives nobody posts.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Arc<RecvQueue<W>>> {
        // A panic cannot leave it half written: the queue is replaced by one assignment.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
