//! A bulk flow of TCP as a model of what a current Linux does without being told otherwise:
//! selective acknowledgements told without loss, loss found by later deliveries (RACK, RFC 8985),
//! a probe where the tail of what is out may be lost (TLP, RFC 8985), retransmission timeouts of
//! 200 ms at least (RFC 6298), a rate that falls evenly during recovery (PRR, RFC 6937),
//! acknowledgements for every second segment, and the growth of [`Growth`]. It has no pacing, as
//! most hosts have none.

mod growth;
mod receiver;

use super::scenario::Rival;
use growth::Growth;
pub(super) use receiver::Receiver;
use std::collections::{BTreeSet, VecDeque};
use trunkline_conn::time::{MILLISECOND, SECOND};

/// Least that is added to the round trip before a retransmission timeout.
const MIN_RTO: u64 = 200 * MILLISECOND;
/// Timers are late by up to this.
const TIMER: u64 = 2 * MILLISECOND;
/// A transmission is lost when so many later ones have been delivered; during recovery one is
/// enough.
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

/// Proportional rate reduction: what may be out while losses are repaired.
#[derive(Clone, Copy, Debug)]
struct Reduction {
    /// Window before.
    prior: u64,
    delivered: u64,
    sent: u64,
    /// Segments that may be out until the next acknowledgement.
    room: u64,
}

impl Reduction {
    const fn new(prior: u64) -> Self {
        Self {
            prior,
            delivered: 0,
            sent: 0,
            room: 0,
        }
    }

    /// So many segments were delivered, so many are out, and `goal` should be in the end.
    fn on_ack(&mut self, delivered: u64, flying: u64, goal: u64, advances: bool) {
        self.delivered += delivered;
        let more = if flying > goal {
            (self.delivered * goal)
                .div_ceil(self.prior.max(1))
                .saturating_sub(self.sent)
        } else {
            let owed = self.delivered.saturating_sub(self.sent);
            (owed.max(delivered) + u64::from(advances)).min(goal - flying)
        };
        // What was found lost is sent again at once.
        self.room = flying + more.max(u64::from(self.sent == 0));
    }
}

/// Losses that are being repaired: no further reduction until all segments below `until` arrived.
#[derive(Clone, Copy, Debug)]
struct Repair {
    until: u64,
    /// `None` after a timeout.
    reduction: Option<Reduction>,
}

/// What the timer is for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Timer {
    /// What is out is lost.
    Retransmission,
    /// The tail may be lost: another segment tells.
    Probe,
    /// What was sent before something that arrived is lost.
    Reordering,
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
    repair: Option<Repair>,
    /// A segment is sent whatever the window says; the last one was sent with this number.
    probes: bool,
    probed: Option<u64>,
    /// A round trip ends when this transmission is acknowledged.
    round_end: u64,
    srtt: u64,
    variation: u64,
    min_rtt: u64,
    backoff: u32,
    timer: Option<(u64, Timer)>,
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
            repair: None,
            probes: false,
            probed: None,
            round_end: 0,
            srtt: 0,
            variation: 0,
            min_rtt: u64::MAX,
            backoff: 0,
            timer: None,
        }
    }

    fn next_id(&self) -> u64 {
        self.first + self.sent.len() as u64
    }

    fn timeout(&self) -> u64 {
        let timeout = match self.srtt {
            0 => SECOND,
            srtt => srtt + (4 * self.variation).max(MIN_RTO),
        };
        timeout << self.backoff.min(6)
    }

    /// Segments that may be out.
    fn room(&self) -> u64 {
        let reduction = self.repair.and_then(|repair| repair.reduction);
        reduction.map_or(self.growth.window(), |reduction| reduction.room)
    }

    /// The next segment that may leave.
    pub(super) fn transmit(&mut self, now: u64) -> Option<Segment> {
        let probes = std::mem::take(&mut self.probes);
        if !probes && self.flying >= self.room() {
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
        if let Some(reduction) = self.repair.as_mut().and_then(|r| r.reduction.as_mut()) {
            reduction.sent += 1;
        }
        if probes {
            self.probed = Some(number);
        }
        if probes || self.timer.is_none_or(|(_, timer)| timer == Timer::Probe) {
            self.arm(now);
        }
        Some(Segment { id, number })
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    pub(super) fn next(&self) -> u64 {
        self.timer.map_or(u64::MAX, |(at, _)| at)
    }

    fn arm(&mut self, now: u64) {
        let timeout = self.timeout();
        let overtaken = self.high.is_some_and(|high| self.first < high);
        let (after, timer) = if self.flying == 0 && self.again.is_empty() {
            self.timer = None;
            return;
        } else if self.repair.is_some() {
            (timeout, Timer::Retransmission)
        } else if overtaken {
            (self.min_rtt / 4 + TIMER, Timer::Reordering)
        } else if self.probed.is_some() {
            (timeout, Timer::Retransmission)
        } else {
            // The acknowledgement of a single segment may be delayed.
            let slack = if self.flying == 1 { MIN_RTO } else { TIMER };
            ((2 * self.srtt + slack).min(timeout), Timer::Probe)
        };
        self.timer = Some((now + after, timer));
    }

    /// Too long nothing came back.
    pub(super) fn handle_timeout(&mut self, now: u64) {
        let Some((_, timer)) = self.timer.filter(|(at, _)| now >= *at) else {
            return;
        };
        match timer {
            Timer::Probe => {
                self.probes = true;
                self.timer = Some((now + self.timeout(), Timer::Retransmission));
                return;
            }
            Timer::Reordering => {
                let lost = self.detect(0);
                self.reduce(lost);
                self.advance(0, false);
            }
            Timer::Retransmission => {
                for at in 0..self.sent.len() {
                    self.lose(at);
                }
                // The first one counts.
                let again = self.repair.is_some_and(|repair| repair.reduction.is_none());
                self.growth.on_timeout(!again);
                self.repair = Some(Repair {
                    until: self.next_number,
                    reduction: None,
                });
                self.backoff += 1;
            }
        }
        self.arm(now);
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
        let advances = ack.cumulative > self.cumulative;
        if advances {
            self.cumulative = ack.cumulative;
            self.again = self.again.split_off(&self.cumulative);
            self.probed = self.probed.filter(|number| *number >= ack.cumulative);
        }
        let Some((id, at)) = newest else { return };
        self.sample(now - at);
        self.high = self.high.max(Some(id));
        let round = id >= self.round_end;
        if round {
            self.round_end = self.next_id();
        }
        self.repair = self.repair.filter(|repair| self.cumulative < repair.until);
        let repairs = self.repair.is_some();
        let lost = self.detect(if repairs { 0 } else { REORDERING - 1 });
        self.reduce(lost);
        if self.repair.is_some_and(|repair| repair.reduction.is_some()) {
            self.advance(delivered, advances && !lost);
        } else {
            self.growth
                .on_ack(now, delivered, now - at, self.srtt, round);
        }
        self.backoff = 0;
        self.forget();
        self.arm(now);
    }

    /// Transmissions from the first that is still under way on are kept.
    fn forget(&mut self) {
        while self
            .sent
            .front()
            .is_some_and(|front| front.fate != Fate::Flying)
        {
            self.sent.pop_front();
            self.first += 1;
        }
    }

    /// What was sent before something that arrived, and so many others, is lost. Whether anything
    /// is.
    fn detect(&mut self, others: u64) -> bool {
        let Some(high) = self.high else { return false };
        let end = high.saturating_sub(others).max(self.first) - self.first;
        let before = self.flying;
        for at in 0..end as usize {
            self.lose(at);
        }
        self.flying < before
    }

    /// The first loss of what is out reduces the window.
    fn reduce(&mut self, lost: bool) {
        if lost && self.repair.is_none() {
            let prior = self.growth.window();
            self.growth.on_loss();
            self.repair = Some(Repair {
                until: self.next_number,
                reduction: Some(Reduction::new(prior)),
            });
        }
    }

    fn advance(&mut self, delivered: u64, advances: bool) {
        let (flying, goal) = (self.flying, self.growth.window());
        if let Some(reduction) = self.repair.as_mut().and_then(|r| r.reduction.as_mut()) {
            reduction.on_ack(delivered, flying, goal, advances);
        }
    }

    fn sample(&mut self, rtt: u64) {
        self.min_rtt = self.min_rtt.min(rtt);
        if self.srtt == 0 {
            (self.srtt, self.variation) = (rtt, rtt / 2);
        } else {
            self.variation = (self.variation * 3 + self.srtt.abs_diff(rtt)) / 4;
            self.srtt = (self.srtt * 7 + rtt) / 8;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::receiver::ACK_DELAY;
    use super::*;

    fn all(sender: &mut Sender, now: u64) -> Vec<Segment> {
        std::iter::from_fn(|| sender.transmit(now)).collect()
    }

    /// A sender that has measured a round trip of a millisecond, and what it has out then.
    fn started() -> (Sender, Receiver, Vec<Segment>) {
        let (mut sender, mut receiver) = (Sender::new(Rival::Reno), Receiver::default());
        round(&mut sender, &mut receiver, 0, &[]);
        let out = all(&mut sender, MILLISECOND);
        (sender, receiver, out)
    }

    /// One round trip without loss but of the transmissions in `lost`.
    fn round(sender: &mut Sender, receiver: &mut Receiver, now: u64, lost: &[usize]) -> usize {
        let mut out = all(sender, now);
        let mut at = 0;
        while at < out.len() {
            if !lost.contains(&at) {
                receiver.receive(now, out[at]);
            }
            if let Some(ack) = receiver.poll(now) {
                sender.handle_ack(now + MILLISECOND, &ack);
                // During recovery the clock of acknowledgements sends the repeats.
                if sender.repair.is_some() {
                    out.extend(all(sender, now));
                }
            }
            at += 1;
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
        // Two segments are lost once, and no more than one reduction follows.
        round(&mut sender, &mut receiver, 3 * MILLISECOND, &[0, 1]);
        let window = sender.growth.window();
        assert!((40..=43).contains(&window), "{window}");
        assert!(sender.repair.is_none());
        assert_eq!(receiver.missing(), 0);
    }

    #[test]
    fn in_recovery_half_as_much_leaves_as_arrives() {
        let mut reduction = Reduction::new(100);
        let (mut flying, mut sent) = (99, 0);
        for _ in 0..98 {
            flying -= 1;
            reduction.on_ack(1, flying, 50, false);
            while flying < reduction.room {
                flying += 1;
                reduction.sent += 1;
                sent += 1;
            }
        }
        assert_eq!((flying, sent), (50, 49));
    }

    #[test]
    fn a_lost_tail_costs_a_probe_and_no_timeout() {
        let (mut sender, mut receiver, out) = started();
        for segment in &out[..out.len() - 2] {
            receiver.receive(2 * MILLISECOND, *segment);
            if let Some(ack) = receiver.poll(2 * MILLISECOND) {
                sender.handle_ack(2 * MILLISECOND, &ack);
            }
        }
        let window = sender.growth.window();
        // What was sent for these acknowledgements is lost, too.
        all(&mut sender, 2 * MILLISECOND);
        let at = sender.next();
        assert!(at < 10 * MILLISECOND, "{at}");
        sender.handle_timeout(at);
        let probe = all(&mut sender, at);
        assert_eq!(probe.len(), 1);
        receiver.receive(at, probe[0]);
        let ack = receiver.poll(at).expect("it is beyond a gap");
        sender.handle_ack(at + MILLISECOND, &ack);
        assert!(sender.repair.is_some());
        assert_eq!(sender.growth.window(), window / 2);
        assert!(!all(&mut sender, at + MILLISECOND).is_empty());
    }

    #[test]
    fn one_later_segment_proves_a_loss_after_a_quarter_of_a_round_trip() {
        let (mut sender, mut receiver, out) = started();
        receiver.receive(MILLISECOND, out[1]);
        let ack = receiver.poll(MILLISECOND).expect("there is a gap");
        sender.handle_ack(2 * MILLISECOND, &ack);
        assert!(sender.repair.is_none());
        let at = sender.next();
        assert!(at <= 2 * MILLISECOND + MILLISECOND / 4 + TIMER, "{at}");
        sender.handle_timeout(at);
        assert!(sender.repair.is_some());
        assert_eq!(all(&mut sender, at)[0].number, out[0].number);
    }

    #[test]
    fn a_silent_path_ends_in_a_timeout_and_one_segment() {
        let mut sender = Sender::new(Rival::Cubic);
        assert_eq!(all(&mut sender, 0).len(), 10);
        // One probe before.
        let probe = sender.next();
        sender.handle_timeout(probe);
        assert_eq!(all(&mut sender, probe).len(), 1);
        let at = sender.next();
        assert_eq!(at, probe + SECOND);
        sender.handle_timeout(at - 1);
        assert_eq!(all(&mut sender, at - 1).len(), 0);
        sender.handle_timeout(at);
        let again = all(&mut sender, at);
        assert_eq!(again.len(), 1);
        assert_eq!(again[0].number, 0);
        assert_eq!(sender.next(), at + 2 * SECOND);
    }
}
