//! The receiving end of a flow of TCP.

use super::{Ack, MIN_RTO, Segment};
use std::collections::BTreeSet;
use trunkline_conn::time::MILLISECOND;

/// Longest an acknowledgement waits for a second segment.
pub(super) const ACK_DELAY: u64 = 40 * MILLISECOND;
/// So many acknowledgements do not wait at the start, and after a silence.
const QUICK: u32 = 16;

/// The receiving end.
#[derive(Debug)]
pub(crate) struct Receiver {
    cumulative: u64,
    /// Segments beyond the first gap.
    beyond: BTreeSet<u64>,
    delivered: Vec<u64>,
    ack_at: Option<u64>,
    ack_now: bool,
    quick: u32,
    heard: u64,
}

impl Default for Receiver {
    fn default() -> Self {
        Self {
            cumulative: 0,
            beyond: BTreeSet::new(),
            delivered: Vec::new(),
            ack_at: None,
            ack_now: false,
            quick: QUICK,
            heard: 0,
        }
    }
}

impl Receiver {
    /// A segment came. Whether it is new.
    pub(crate) fn receive(&mut self, now: u64, segment: Segment) -> bool {
        self.delivered.push(segment.id);
        let before = self.cumulative;
        let new = if segment.number == before && self.beyond.is_empty() {
            self.cumulative += 1;
            true
        } else {
            let new = segment.number >= before && self.beyond.insert(segment.number);
            while self.beyond.remove(&self.cumulative) {
                self.cumulative += 1;
            }
            new
        };
        if now - self.heard > MIN_RTO || !new {
            self.quick = QUICK;
        }
        self.heard = now;
        // A gap, one that was filled, and every second segment are told at once.
        let plain = self.cumulative == before + 1 && self.beyond.is_empty();
        self.ack_now |= !plain || self.delivered.len() >= 2 || self.quick > 0;
        self.ack_at.get_or_insert(now + ACK_DELAY);
        new
    }

    /// When [`poll`](Self::poll) has something at the latest.
    pub(crate) fn next(&self) -> u64 {
        match self.ack_at {
            Some(_) if self.ack_now => 0,
            at => at.unwrap_or(u64::MAX),
        }
    }

    /// The acknowledgement that is due.
    pub(crate) fn poll(&mut self, now: u64) -> Option<Ack> {
        let due = self.ack_at.is_some_and(|at| self.ack_now || now >= at);
        if !due {
            return None;
        }
        (self.ack_at, self.ack_now) = (None, false);
        self.quick = self.quick.saturating_sub(1);
        Some(Ack {
            cumulative: self.cumulative,
            delivered: std::mem::take(&mut self.delivered),
        })
    }

    /// Segments that are missing before one that has come.
    #[cfg(test)]
    pub(super) fn missing(&self) -> u64 {
        let last = self.beyond.last().map_or(self.cumulative, |last| last + 1);
        last - self.cumulative - self.beyond.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_second_segment_is_acknowledged_and_a_gap_at_once() {
        let mut receiver = Receiver::default();
        let segment = |number| Segment { id: number, number };
        for number in 0..u64::from(QUICK) {
            assert!(receiver.receive(0, segment(number)));
            assert!(receiver.poll(0).is_some(), "quick at the start");
        }
        let base = u64::from(QUICK);
        let segment = |id, number| Segment {
            id: base + id,
            number: base + number,
        };
        assert!(receiver.receive(0, segment(0, 0)));
        assert!(receiver.poll(0).is_none());
        assert_eq!(receiver.next(), ACK_DELAY);
        assert!(receiver.receive(0, segment(1, 1)));
        assert_eq!(receiver.poll(0).map(|ack| ack.cumulative), Some(base + 2));
        assert!(receiver.receive(0, segment(3, 3)));
        assert_eq!(receiver.poll(0).map(|ack| ack.cumulative), Some(base + 2));
        assert_eq!(receiver.missing(), 1);
        assert!(!receiver.receive(0, segment(4, 3)), "it came before");
        assert!(receiver.receive(0, segment(5, 2)));
        let ack = receiver.poll(0).expect("a gap was filled");
        let delivered = vec![base + 4, base + 5];
        assert_eq!((ack.cumulative, ack.delivered), (base + 4, delivered));
    }

    #[test]
    fn after_a_silence_nothing_waits() {
        let mut receiver = Receiver {
            quick: 0,
            ..Receiver::default()
        };
        receiver.receive(0, Segment { id: 0, number: 0 });
        assert!(receiver.poll(0).is_none());
        let later = 2 * MIN_RTO;
        receiver.receive(later, Segment { id: 1, number: 1 });
        assert!(receiver.poll(later).is_some());
        receiver.receive(later, Segment { id: 2, number: 2 });
        assert!(receiver.poll(later).is_some());
    }
}
