//! The half of a queue that a program posts with.

use super::Size;
use crate::error::{PostError, VerbsError};
use crate::ring::{Position, Ring, RingMemory};
use crate::sync::Mutex;
use crate::wqe::Post;
use std::sync::PoisonError;

/// Posts requests into a ring, whose other half a worker has, be it in another process. Threads of
/// one program share it.
#[derive(Debug)]
pub struct Producer<W> {
    ring: Ring<W>,
    size: Size,
    /// What the consumer had released when the producer last looked.
    released: Mutex<Position>,
}

impl<W: RingMemory> Producer<W> {
    /// Posts into a ring over `memory`, which has as many words as its [size](Size::ring_words)
    /// says and to which nothing was posted.
    ///
    /// # Panics
    /// It has another number of words.
    pub fn new(size: Size, memory: W) -> Self {
        Self {
            ring: size.ring_over(memory),
            size,
            released: Mutex::new(Position::default()),
        }
    }

    /// Posts `requests` in order, up to the first that is refused. The doorbell is the caller's to
    /// ring.
    ///
    /// # Errors
    /// What `ibv_post_send(3)` and `ibv_post_recv(3)` refuse: too many elements, too many bytes,
    /// flags that make no sense; [`VerbsError::QueueFull`] when it does not fit any more.
    #[inline]
    #[expect(private_bounds, reason = "only requests of this crate lie in rings")]
    pub fn post<E: Post>(&self, requests: &[E]) -> Result<(), PostError> {
        let ring = &self.ring;
        // A panic cannot leave the position half written: it is copied in one go.
        let mut released = self.released.lock().unwrap_or_else(PoisonError::into_inner);
        // Only holders of this lock write the tail.
        let start = ring.tail();
        let mut room = self.room(start, *released);
        if room < requests.len() {
            *released = ring.head();
            room = self.room(start, *released);
        }
        let mut tail = start;
        let mut refused = None;
        for request in &requests[..room.min(requests.len())] {
            match request.write(self.size.limits, ring, tail.slots) {
                Ok(slots) => tail = tail.advance(slots, 1),
                Err(error) => {
                    refused = Some(error);
                    break;
                }
            }
        }
        let posted = tail.since(start).entries as usize;
        if posted > 0 {
            ring.publish(tail);
        }
        if posted == requests.len() {
            return Ok(());
        }
        let error = refused.unwrap_or(VerbsError::QueueFull {
            capacity: self.size.max_wr(),
        });
        Err(PostError { posted, error })
    }

    /// Requests that fit behind `tail`.
    #[inline]
    const fn room(&self, tail: Position, released: Position) -> usize {
        let outstanding = tail.since(released).entries;
        self.size.max_wr().saturating_sub(outstanding) as usize
    }
}
