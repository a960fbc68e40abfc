//! Owns shared receive queues, on the worker's side.

use crate::queue::RecvQueue;
use crate::ring::RingMemory;
use std::sync::Arc;
use trunkline_conn::work::Receive;

/// A shared receive queue.
///
/// Messages get the receive that was posted last of those that are there: its memory, which the
/// program has just read, is in the cache still, however many are posted. Verbs leave the order
/// open.
#[derive(Debug)]
pub(crate) struct Srq<W> {
    pub(crate) queue: Arc<RecvQueue<W>>,
    /// Receives that were read off the ring, and the slots that each has there until it is used.
    read: Vec<(Receive, u16)>,
    /// QPs that receive from it.
    pub(crate) users: u32,
}

impl<W: RingMemory> Srq<W> {
    pub(crate) const fn new(queue: Arc<RecvQueue<W>>) -> Self {
        Self {
            queue,
            read: Vec::new(),
            users: 0,
        }
    }

    /// Takes the receive that was posted last.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<Receive> {
        while let Ok(Some(posted)) = self.queue.read() {
            self.read.push(posted);
        }
        let (receive, slots) = self.read.pop()?;
        self.queue.release(slots);
        Some(receive)
    }

    pub(crate) fn has_receive(&self) -> bool {
        !self.read.is_empty() || self.queue.has_entry()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;
    use crate::sync::AtomicU64;
    use crate::wqe::RecvWr;

    fn queue(max_wr: u32) -> Srq<Box<[AtomicU64]>> {
        Srq::new(Arc::new(RecvQueue::new(max_wr, 4).unwrap()))
    }

    fn post(srq: &Srq<Box<[AtomicU64]>>, wr_id: u64) -> bool {
        srq.queue.post(&[RecvWr::new().wr_id(wr_id)]).is_ok()
    }

    #[test]
    fn the_receive_that_was_posted_last_is_taken_first() {
        let mut srq = queue(8);
        assert!(!srq.has_receive());
        (0..4).for_each(|id| assert!(post(&srq, id)));
        let mut taken = vec![srq.take().unwrap().wr_id];
        assert!(post(&srq, 4));
        assert!(srq.has_receive());
        taken.extend(std::iter::from_fn(|| srq.take()).map(|receive| receive.wr_id));
        assert_eq!(taken, [3, 4, 2, 1, 0]);
        assert!(!srq.has_receive());
    }

    #[test]
    fn there_is_room_for_as_many_as_were_asked_for_and_no_more() {
        let mut srq = queue(8);
        for round in 0..100 {
            while post(&srq, round) {}
            assert_eq!(srq.queue.posted(), 8);
            let some = round % 9;
            let taken = (0..some).filter_map(|_| srq.take()).count() as u64;
            assert_eq!(taken, some);
            assert_eq!(u64::from(srq.queue.posted()), 8 - some);
        }
    }
}
