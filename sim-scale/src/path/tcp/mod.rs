//! A bulk flow of TCP as a model: selective acknowledgements told without loss, loss found by three
//! later deliveries, delayed acknowledgements, retransmission timeouts (RFC 6298, RFC 6675), and
//! the growth of [`Growth`]. It has no pacing, as most hosts have none.

mod growth;

use super::scenario::Rival;
use growth::Growth;
use std::collections::{BTreeSet, VecDeque};
use trunkline_conn::time::{MILLISECOND, SECOND};

/// Least time before a retransmission timeout.
const MIN_RTO: u64 = 200 * MILLISECOND;
/// Longest an acknowledgement waits for a second segment.
const ACK_DELAY: u64 = 40 * MILLISECOND;
/// A transmission is lost when so many later ones have been delivered.
const REORDERING: u64 = 3;

/// A segment on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    /// Which transmission it is.
    id: u64,
    /// Which of the flow's segments it carries.
    number: u64,
}

/// What the receiver says.
#[derive(Clone, Debug)]
pub(super) struct Ack {
    /// All segments below it have arrived.
    cumulative: u64,
    /// Transmissions that arrived since the last acknowledgement.
    delivered: Vec<u64>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Fate {
    Flying,
    Lost,
    Delivered,
}

#[derive(Clone, Copy, Debug)]
struct Transmission {
    number: u64,
    at: u64,
    fate: Fate,
}

/// The sending end: it always has something to send.
#[derive(Debug)]
pub(super) struct Sender {
    growth: Growth,
    /// Transmissions from `first` on, in their order.
    sent: VecDeque<Transmission>,
    first: u64,
    next_number: u64,
    cumulative: u64,
    again: BTreeSet<u64>,
    flying: u64,
    /// Latest delivered transmission.
    high: Option<u64>,
    /// No further reduction for losses of transmissions below it.
    recovery: u64,
    /// A round trip ends when this transmission is acknowledged.
    round_end: u64,
    srtt: u64,
    variation: u64,
    backoff: u32,
    timeout_at: u64,
}

impl Sender {
    pub(super) fn new(rival: Rival) -> Self {
        Self {
            growth: Growth::new(rival),
            sent: VecDeque::new(),
            first: 0,
            next_number: 0,
            cumulative: 0,
            again: BTreeSet::new(),
            flying: 0,
            high: None,
            recovery: 0,
            round_end: 0,
            srtt: 0,
            variation: 0,
            backoff: 0,
            timeout_at: u64::MAX,
        }
    }

    fn next_id(&self) -> u64 {
        self.first + self.sent.len() as u64
    }

    fn timeout(&self) -> u64 {
        let timeout = match self.srtt {
            0 => SECOND,
            srtt => (srtt + 4 * self.variation).max(MIN_RTO),
        };
        timeout << self.backoff.min(6)
    }

    /// The next segment that may leave.
    pub(super) fn transmit(&mut self, now: u64) -> Option<Segment> {
        if self.flying >= self.growth.window() {
            return None;
        }
        let number = self.again.pop_first().unwrap_or_else(|| {
            self.next_number += 1;
            self.next_number - 1
        });
        let id = self.next_id();
        self.sent.push_back(Transmission {
            number,
            at: now,
            fate: Fate::Flying,
        });
        self.flying += 1;
        if self.timeout_at == u64::MAX {
            self.timeout_at = now + self.timeout();
        }
        Some(Segment { id, number })
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    pub(super) fn next(&self) -> u64 {
        self.timeout_at
    }

    /// Nothing came back: all that is out counts as lost.
    pub(super) fn handle_timeout(&mut self, now: u64) {
        if now < self.timeout_at {
            return;
        }
        for at in 0..self.sent.len() {
            self.lose(at);
        }
        self.growth.on_timeout();
        self.recovery = self.next_id();
        self.backoff += 1;
        self.timeout_at = now + self.timeout();
    }

    fn lose(&mut self, at: usize) {
        let transmission = &mut self.sent[at];
        if transmission.fate != Fate::Flying {
            return;
        }
        transmission.fate = Fate::Lost;
        self.flying -= 1;
        if transmission.number >= self.cumulative {
            self.again.insert(transmission.number);
        }
    }

    /// An acknowledgement came.
    pub(super) fn handle_ack(&mut self, now: u64, ack: &Ack) {
        let mut delivered = 0;
        let mut newest = None;
        for id in &ack.delivered {
            let Some(at) = id.checked_sub(self.first) else {
                continue;
            };
            let transmission = &mut self.sent[at as usize];
            match transmission.fate {
                Fate::Delivered => continue,
                Fate::Flying => self.flying -= 1,
                // It was thought lost: its repeat is not needed.
                Fate::Lost => {
                    self.again.remove(&transmission.number);
                }
            }
            transmission.fate = Fate::Delivered;
            delivered += 1;
            newest = newest.max(Some((*id, transmission.at)));
        }
        if ack.cumulative > self.cumulative {
            self.cumulative = ack.cumulative;
            self.again = self.again.split_off(&self.cumulative);
        }
        let Some((id, at)) = newest else { return };
        self.sample(now - at);
        self.high = self.high.max(Some(id));
        let round = id >= self.round_end;
        if round {
            self.round_end = self.next_id();
        }
        self.detect();
        if self.recovery <= id {
            self.growth
                .on_ack(now, delivered, now - at, self.srtt, round);
        }
        self.backoff = 0;
        let out = self.flying > 0 || !self.again.is_empty();
        self.timeout_at = if out { now + self.timeout() } else { u64::MAX };
        while self
            .sent
            .front()
            .is_some_and(|front| front.fate != Fate::Flying)
        {
            self.sent.pop_front();
            self.first += 1;
        }
    }

    /// What was sent enough earlier than something that arrived is lost.
    fn detect(&mut self) {
        let Some(high) = self.high else { return };
        let end = (high + 1).saturating_sub(REORDERING).max(self.first) - self.first;
        let mut lost = None;
        for at in 0..end as usize {
            if self.sent[at].fate == Fate::Flying {
                self.lose(at);
                lost = Some(self.first + at as u64);
            }
        }
        if lost.is_some_and(|id| id >= self.recovery) {
            self.growth.on_loss();
            self.recovery = self.next_id();
        }
    }

    fn sample(&mut self, rtt: u64) {
        if self.srtt == 0 {
            (self.srtt, self.variation) = (rtt, rtt / 2);
        } else {
            self.variation = (self.variation * 3 + self.srtt.abs_diff(rtt)) / 4;
            self.srtt = (self.srtt * 7 + rtt) / 8;
        }
    }
}

/// The receiving end.
#[derive(Debug, Default)]
pub(super) struct Receiver {
    cumulative: u64,
    /// Segments beyond the first gap.
    beyond: BTreeSet<u64>,
    delivered: Vec<u64>,
    ack_at: Option<u64>,
    ack_now: bool,
}

impl Receiver {
    /// A segment came. Whether it is new.
    pub(super) fn receive(&mut self, now: u64, segment: Segment) -> bool {
        self.delivered.push(segment.id);
        let new = segment.number >= self.cumulative && self.beyond.insert(segment.number);
        let before = self.cumulative;
        while self.beyond.remove(&self.cumulative) {
            self.cumulative += 1;
        }
        // A gap, one that was filled, and every second segment are told at once.
        let plain = self.cumulative == before + 1 && self.beyond.is_empty();
        self.ack_now |= !plain || self.delivered.len() >= 2;
        self.ack_at.get_or_insert(now + ACK_DELAY);
        new
    }

    /// When [`poll`](Self::poll) has something at the latest.
    pub(super) fn next(&self) -> u64 {
        match self.ack_at {
            Some(_) if self.ack_now => 0,
            at => at.unwrap_or(u64::MAX),
        }
    }

    /// The acknowledgement that is due.
    pub(super) fn poll(&mut self, now: u64) -> Option<Ack> {
        let due = self.ack_at.is_some_and(|at| self.ack_now || now >= at);
        if !due {
            return None;
        }
        (self.ack_at, self.ack_now) = (None, false);
        Some(Ack {
            cumulative: self.cumulative,
            delivered: std::mem::take(&mut self.delivered),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(sender: &mut Sender, now: u64) -> Vec<Segment> {
        std::iter::from_fn(|| sender.transmit(now)).collect()
    }

    /// One round trip without loss but of the transmissions in `lost`.
    fn round(sender: &mut Sender, receiver: &mut Receiver, now: u64, lost: &[usize]) -> usize {
        let out = all(sender, now);
        for (at, segment) in out.iter().enumerate() {
            if !lost.contains(&at) {
                receiver.receive(now, *segment);
            }
            if let Some(ack) = receiver.poll(now) {
                sender.handle_ack(now + MILLISECOND, &ack);
            }
        }
        if let Some(ack) = receiver.poll(now + ACK_DELAY) {
            sender.handle_ack(now + MILLISECOND, &ack);
        }
        out.len()
    }

    #[test]
    fn the_window_doubles_at_first_and_halves_with_a_loss_which_is_repaired() {
        let (mut sender, mut receiver) = (Sender::new(Rival::Reno), Receiver::default());
        let rounds: Vec<_> = (0..3)
            .map(|i| round(&mut sender, &mut receiver, i * MILLISECOND, &[]))
            .collect();
        assert_eq!(rounds, [10, 20, 40]);
        // Segment 0 of this round is lost once, and no more than one reduction follows.
        assert_eq!(
            round(&mut sender, &mut receiver, 3 * MILLISECOND, &[0, 1]),
            80
        );
        let window = sender.growth.window();
        assert!((40..=42).contains(&window), "{window}");
        round(&mut sender, &mut receiver, 4 * MILLISECOND, &[]);
        assert_eq!(receiver.cumulative, sender.next_number);
        assert!(receiver.beyond.is_empty());
    }

    #[test]
    fn a_silent_path_ends_in_a_timeout_and_one_segment() {
        let mut sender = Sender::new(Rival::Cubic);
        assert_eq!(all(&mut sender, 0).len(), 10);
        let at = sender.next();
        assert_eq!(at, SECOND);
        sender.handle_timeout(at - 1);
        assert_eq!(all(&mut sender, at - 1).len(), 0);
        sender.handle_timeout(at);
        let again = all(&mut sender, at);
        assert_eq!(again.len(), 1);
        assert_eq!(again[0].number, 0);
        assert_eq!(sender.next(), at + 2 * SECOND);
    }

    #[test]
    fn every_second_segment_is_acknowledged_and_a_gap_at_once() {
        let mut receiver = Receiver::default();
        let segment = |id, number| Segment { id, number };
        assert!(receiver.receive(0, segment(0, 0)));
        assert!(receiver.poll(0).is_none());
        assert_eq!(receiver.next(), ACK_DELAY);
        assert!(receiver.receive(0, segment(1, 1)));
        assert_eq!(receiver.poll(0).map(|ack| ack.cumulative), Some(2));
        assert!(receiver.receive(0, segment(3, 3)));
        assert_eq!(receiver.poll(0).map(|ack| ack.cumulative), Some(2));
        assert!(!receiver.receive(0, segment(4, 3)), "it came before");
        assert!(receiver.receive(0, segment(5, 2)));
        let ack = receiver.poll(0).expect("a gap was filled");
        assert_eq!((ack.cumulative, ack.delivered), (4, vec![4, 5]));
    }
}
