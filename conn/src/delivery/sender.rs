//! The sending half: what is in flight, what may follow, and what the peer has.
//!
//! A packet in flight is in one of three states: sent once (no bit), lost and waiting to be sent
//! again (`lost`), or sent again (`again`). Packets sent once are in order of transmission by
//! their numbers, the others by a list through the records; so loss detection looks at the front of
//! both and at every transmission once. Above the first unacknowledged number, `settled` marks
//! what the peer has already got.

mod ack;
mod large;
mod timeout;
mod urgent;
mod waits;

pub(super) use ack::check;

use super::config::{Counters, Lost, MAX_WINDOW_BYTES, Stats, TICK_SHIFT, ticks};
use super::flight::{Flight, Mark, Segment};
use super::pacer::Pacer;
use super::rack::Rack;
use super::rtt::Rtt;
use super::spare::Spare;
use super::timer::Timers;
use crate::control::{CongestionControl, Control, Controller, Start};
use crate::time::{Instant, MILLISECOND};
use large::Large;
use urgent::Urgent;
use waits::Waits;

/// What is kept of a packet in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent<I> {
    item: I,
    bytes: u32,
    /// Last transmission: our clock in ticks, and its place among all transmissions.
    pub(super) at: u32,
    order: u32,
    /// Neighbours in the list of packets sent again: low bits of their numbers.
    older: u32,
    newer: u32,
    attempt: u8,
    /// Sent again as a probe, not because loss was inferred.
    probe: bool,
    /// Small, and somebody waits for it.
    urgent: bool,
}

const _: () = assert!(size_of::<Option<Sent<[u64; 3]>>>() <= 48);

/// No neighbour.
const NIL: u32 = u32::MAX;
/// Bits of a number that tell a packet in flight from all others.
const LINK_MASK: u32 = super::config::MAX_WINDOW - 1;
/// Transmissions of one packet number; the attempt field of the header has 8 bits.
const MAX_ATTEMPT: u8 = u8::MAX;
/// A sender that was silent for less goes on as it was.
const IDLE_NS: u64 = 10 * MILLISECOND;
/// What a path has lost of one window counts for so many packets: one that loses again within them,
/// and [so many times more](SICK), loses whatever others send.
const LOSS: u64 = 256;
/// How often that is, in a row, beside the first time.
const SICK: u64 = 3;
/// Packets that are promised at once: more are asked for when they are recorded.
const MAX_GRANT: u64 = 1024;
/// Acknowledgements that are asked for per window where bursts must be short; of no fewer packets
/// than TCP's are, unless the window is a few.
const MOST_ACKS: u64 = 16;
const PACKETS_PER_ACK: u64 = 2;
/// Packets sent from one source port before the next takes over, so that they can be batched.
const PORT_RUN_SHIFT: u32 = 4;

/// One transmission, to be stamped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transmission {
    pub(super) number: u64,
    pub(super) attempt: u8,
    pub(super) port: u8,
    pub(super) ack_req: bool,
    pub(super) timestamp: u32,
}

/// Parameters of a sender while it is active.
#[derive(Debug)]
pub(super) struct Limits {
    pub(super) window: u64,
    pub(super) packet: u64,
    pub(super) link_rate: Option<u64>,
    pub(super) ports: u8,
    pub(super) max_ack_delay_ns: u64,
    pub(super) dead_after_ns: u64,
}

#[derive(Debug)]
pub(super) struct Sender<I> {
    pub(super) flight: Flight<I>,
    /// First number not acknowledged, and next to be sent.
    una: u64,
    pub(super) next: u64,
    /// Packets that `ready` has promised.
    grant: u32,
    limits: Limits,
    /// Bytes believed to be on their way, and bytes waiting to be sent again.
    in_flight: u64,
    lost_bytes: u64,
    urgent: Urgent,
    settled_count: u32,
    lost_count: u32,
    /// Losses are forgotten once what is before it was acknowledged: each adds [`LOSS`].
    losses_until: u64,
    /// What is lost before it was under way when a loss was counted, and counts with that one.
    counted_until: u64,
    /// No lost packet has a number below it.
    lost_from: u64,
    /// List of packets sent again, in order of transmission.
    oldest: u32,
    newest: u32,
    /// Packets below it were sent again, settled or found lost.
    first_once: u64,
    /// One past the highest number acknowledged.
    high: u64,
    /// Next transmission's place, and the place that ends the round.
    order: u32,
    round_end: u32,
    /// Bytes sent since an acknowledgement was asked for, and those after which one is.
    bytes_since_ack_req: u64,
    ack_bytes: u64,
    /// Marks the peer had reported so far.
    pub(super) ce_seen: u32,
    /// Transmissions that may ignore the window: probes.
    probes: u8,
    /// Since when a retransmission is all that is to happen, if that has not left yet.
    stalled_at: Option<Instant>,
    dead: bool,
    /// A packet was lost as often as the header can tell transmissions apart.
    worn_out: bool,
    rack: Rack,
    pub(super) rtt: Rtt,
    timers: Timers,
    pacer: Pacer,
    control: Controller,
    cwnd: u64,
    waits: Waits,
    /// Bytes that may count as in flight.
    allowed: u64,
    large: Large,
}

impl<I: Copy> Sender<I> {
    pub(super) fn new() -> Self {
        let start = Start {
            packet: 1,
            max_window: 1,
            link_rate: None,
            window: 0,
            srtt_ns: 0,
            min_rtt_ns: 0,
        };
        Self {
            flight: Flight::new(),
            una: 0,
            next: 0,
            grant: 0,
            limits: Limits {
                window: 0,
                packet: 1,
                link_rate: None,
                ports: 1,
                max_ack_delay_ns: 0,
                dead_after_ns: 0,
            },
            in_flight: 0,
            lost_bytes: 0,
            urgent: Urgent::default(),
            settled_count: 0,
            lost_count: 0,
            losses_until: 0,
            counted_until: 0,
            lost_from: 0,
            oldest: NIL,
            newest: NIL,
            first_once: 0,
            high: 0,
            order: 0,
            round_end: 0,
            bytes_since_ack_req: 0,
            ack_bytes: 0,
            ce_seen: 0,
            probes: 0,
            stalled_at: None,
            dead: false,
            worn_out: false,
            rack: Rack::default(),
            rtt: Rtt::default(),
            timers: Timers::default(),
            pacer: Pacer::default(),
            control: Controller::new(CongestionControl::None, &start),
            cwnd: 0,
            waits: Waits::default(),
            allowed: 0,
            large: Large::default(),
        }
    }

    /// Begins anew. Nothing is in flight: a window is only given back when it is empty.
    pub(super) fn start(
        &mut self,
        next: u64,
        limits: Limits,
        rtt: Rtt,
        kind: CongestionControl,
        (cwnd, rested_at): (u64, Instant),
    ) {
        assert!(
            self.una == self.next && self.oldest == NIL,
            "a recycled window is empty"
        );
        (self.una, self.next, self.high, self.first_once) = (next, next, next, next);
        // What was lost before is another connection's, or this one's before it rested.
        (self.losses_until, self.counted_until) = (next, next);
        self.lost_from = next;
        self.urgent = Urgent::default();
        self.flight.start(next);
        let start = Start {
            packet: limits.packet,
            max_window: (limits.window * limits.packet).min(MAX_WINDOW_BYTES),
            link_rate: limits.link_rate,
            window: cwnd,
            srtt_ns: rtt.smoothed,
            min_rtt_ns: rtt.min,
        };
        self.control = Controller::new(kind, &start);
        self.limits = limits;
        self.rtt = rtt;
        self.round_end = self.order;
        self.rack = Rack::default();
        self.timers = Timers::default();
        self.timers.rest_since(rested_at);
        self.pacer = Pacer::default();
        (self.grant, self.probes, self.dead, self.bytes_since_ack_req) = (0, 0, false, 0);
        (self.stalled_at, self.worn_out) = (None, false);
        self.large = Large::default();
        self.waits = Waits::default();
        self.refresh_control();
    }

    /// After a time without anything to send the window is worth less: the path may have changed.
    #[cold]
    fn wake(&mut self, now: Instant) {
        let longest = (self.rtt.smoothed + 4 * self.rtt.variation).max(IDLE_NS);
        self.control.on_idle(self.timers.rested(now) / longest);
        self.timers.rest_since(now);
        self.refresh_control();
    }

    fn refresh_control(&mut self) {
        self.cwnd = self.control.window();
        // No more than a queue of a quarter of the path holds.
        let most = self.control.burst();
        // Where queues are short, bursts are, and what is acknowledged makes room for one; less
        // than a packet makes room for none.
        let part = self.waits.part_of(self.cwnd).min(most);
        self.allowed = self.cwnd + part / self.limits.packet * self.limits.packet;
        let burst = (self.cwnd / 8).min(most);
        // Four acknowledgements per window keep a sender going that has filled it. There are more
        // where bursts must be short: what one of them acknowledges may leave at once.
        let few = (self.cwnd / MOST_ACKS).max(PACKETS_PER_ACK * self.limits.packet);
        self.ack_bytes = (most / 2).max(few).min(self.cwnd / 4);
        self.pacer
            .set_rate(self.control.rate(), self.limits.packet, burst);
    }

    /// The number in flight whose low bits are `link`.
    fn number_at(&self, link: u32) -> u64 {
        self.una + u64::from(link.wrapping_sub(self.una as u32) & LINK_MASK)
    }

    #[inline]
    pub(super) fn ready(&mut self, now: Instant, segments: &mut Spare<Segment<I>>) -> u32 {
        if self.una == self.next && self.timers.rested(now) >= IDLE_NS {
            self.wake(now);
        }
        let room = self.numbers().saturating_sub(self.kept_numbers());
        let bytes = self
            .allowed
            .saturating_sub(self.in_flight + self.lost_bytes);
        self.grant = 0;
        if room == 0 || bytes == 0 || self.dead {
            self.pacer.kept();
            return 0;
        }
        let count = room
            .min(bytes.div_ceil(self.limits.packet))
            .min(self.pacer.allowance(now))
            .min(MAX_GRANT);
        self.flight.reserve(self.next + count, segments);
        self.grant = count as u32;
        self.grant
    }

    /// How long the path takes to give room to a sender that has filled the window, in ns. `None`:
    /// that is not known, the window is as large as it gets, or the path loses packets, so that
    /// less traffic of others makes no room on it.
    pub(super) fn turnaround_ns(&self) -> Option<u64> {
        let grows = self.cwnd < (self.limits.window * self.limits.packet).min(MAX_WINDOW_BYTES);
        let recovers = self.una < self.counted_until;
        let is_sick = recovers || self.losses_until > self.una + SICK * LOSS;
        (grows && !is_sick && self.rtt.smoothed > 0).then_some(self.rtt.smoothed)
    }

    /// Counts a loss, unless it is one of what was under way at the last one that counted: a queue
    /// that overflows loses many at once.
    fn count_loss(&mut self, number: u64) {
        if number < self.counted_until {
            return;
        }
        self.counted_until = self.next;
        let most = self.una + (SICK + 1) * LOSS;
        self.losses_until = (self.losses_until.max(self.una) + LOSS).min(most);
    }

    /// Numbers that the window has left.
    const fn numbers(&self) -> u64 {
        self.limits.window - (self.next - self.una)
    }

    #[inline(always)]
    pub(super) fn record(
        &mut self,
        now: Instant,
        item: I,
        bytes: u32,
        urgent: bool,
    ) -> Transmission {
        assert!(self.grant > 0, "record without ready");
        self.grant -= 1;
        let number = self.next;
        let bytes = bytes.max(1);
        let timestamp = ticks(now);
        let sent = Sent {
            item,
            bytes,
            at: timestamp,
            order: self.order,
            older: NIL,
            newer: NIL,
            attempt: 0,
            probe: false,
            urgent,
        };
        self.urgent.sent(urgent);
        let first = self.una == number;
        self.flight.put(number, sent, first);
        if first {
            self.timers.progress(now);
            // What went before was acknowledged, asked for or not.
            self.bytes_since_ack_req = 0;
        }
        self.next += 1;
        let port = self.port();
        self.account(now, bytes);
        self.bytes_since_ack_req += u64::from(bytes);
        let ack_req =
            self.bytes_since_ack_req >= self.ack_bytes || self.numbers() <= self.kept_numbers();
        if ack_req {
            self.bytes_since_ack_req = 0;
        }
        Transmission {
            number,
            attempt: 0,
            port,
            ack_req,
            timestamp,
        }
    }

    #[inline]
    fn account(&mut self, now: Instant, bytes: u32) {
        self.order = self.order.wrapping_add(1);
        self.in_flight += u64::from(bytes);
        self.pacer.sent(now, u64::from(bytes));
        self.timers.transmitted(now);
    }

    /// The source port that the next transmission takes.
    #[inline]
    pub(super) fn port(&self) -> u8 {
        if self.limits.ports <= 1 {
            return 0;
        }
        ((self.order >> PORT_RUN_SHIFT) % u32::from(self.limits.ports)) as u8
    }

    #[inline]
    pub(super) const fn has_lost(&self) -> bool {
        self.lost_count > 0
    }

    /// The lost packet that may be sent again next. Nothing moves before
    /// [`retransmit`](Self::retransmit).
    pub(super) fn peek_retransmit(&mut self, now: Instant) -> Option<Lost<I>> {
        if self.lost_count == 0 || self.dead || self.worn_out {
            return None;
        }
        let number = self.next_lost();
        let Sent {
            item,
            bytes,
            urgent,
            ..
        } = *self.flight.get(number);
        let over = self.in_flight > 0 && self.in_flight + u64::from(bytes) > self.allowed;
        let passes = self.probes > 0 || urgent && self.urgent.may_pass();
        if !passes && (over || self.pacer.allowance(now) == 0) {
            return None;
        }
        Some(Lost {
            item,
            bytes,
            too_large: u64::from(bytes) > self.limits.packet || self.large.tries_less(bytes),
        })
    }

    /// The packet that [`peek_retransmit`](Self::peek_retransmit) showed is on its way, with
    /// `bytes` bytes.
    pub(super) fn retransmit(
        &mut self,
        now: Instant,
        bytes: u32,
        counters: &mut Counters,
    ) -> Transmission {
        assert!(self.lost_count > 0, "retransmit without peek");
        if let Some(since) = self.stalled_at.take() {
            self.timers.stalled(now.since(since));
        }
        let number = self.next_lost();
        let (timestamp, newest) = (ticks(now), self.newest);
        let slot = self.flight.get_mut(number);
        slot.at = timestamp;
        slot.order = self.order;
        slot.attempt += 1;
        (slot.older, slot.newer) = (newest, NIL);
        let lost_bytes = core::mem::replace(&mut slot.bytes, bytes.max(1));
        let (bytes, attempt, urgent) = (slot.bytes, slot.attempt, slot.urgent);
        let link = number as u32 & LINK_MASK;
        match newest {
            NIL => self.oldest = link,
            newest => {
                let newest = self.number_at(newest);
                self.flight.get_mut(newest).newer = link;
            }
        }
        self.newest = link;
        self.probes = self.probes.saturating_sub(1);
        self.flight.set(number, Mark::Lost, false);
        self.lost_count -= 1;
        self.lost_bytes -= u64::from(lost_bytes);
        if urgent {
            self.urgent.sent_again(number);
        } else {
            self.lost_from = number + 1;
        }
        self.large.sent_again();
        self.flight.set(number, Mark::Again, true);
        let port = self.port();
        self.account(now, bytes);
        counters.retransmitted += 1;
        Transmission {
            number,
            attempt,
            port,
            ack_req: true,
            timestamp,
        }
    }

    /// Whether the next thing to happen is a retransmission: a probe, or all that was in flight.
    /// As long as it has not left, silence says nothing of the peer.
    const fn is_stalled(&self) -> bool {
        self.lost_count > 0 && (self.probes > 0 || self.in_flight == 0)
    }

    /// Number of the lost packet that is sent again next; there is one.
    fn next_lost(&mut self) -> u64 {
        match self.urgent_lost() {
            Some(number) => number,
            None => self.first_lost(),
        }
    }

    /// Lowest lost number; there is one. Whoever asks again does not search again.
    fn first_lost(&mut self) -> u64 {
        let mut number = self.lost_from.max(self.una);
        loop {
            assert!(number < self.next, "a lost packet is in the window");
            match self.flight.gather(number, Mark::Lost) {
                0 => number += 64,
                word => {
                    self.lost_from = number + u64::from(word.trailing_zeros());
                    return self.lost_from;
                }
            }
        }
    }

    fn unlink(&mut self, number: u64) {
        self.flight.set(number, Mark::Again, false);
        let Sent { older, newer, .. } = *self.flight.get(number);
        match older {
            NIL => self.oldest = newer,
            older => {
                let older = self.number_at(older);
                self.flight.get_mut(older).newer = newer;
            }
        }
        match newer {
            NIL => self.newest = older,
            newer => {
                let newer = self.number_at(newer);
                self.flight.get_mut(newer).older = older;
            }
        }
    }

    /// Packets not acknowledged, in order of their numbers.
    pub(super) fn unacked(&self) -> impl Iterator<Item = I> + '_ {
        (self.una..self.next)
            .filter(|&number| !self.flight.has(number, Mark::Settled))
            .map(|number| self.flight.get(number).item)
    }

    /// Packets not acknowledged.
    pub(super) fn unacked_count(&self) -> u32 {
        (self.next - self.una) as u32 - self.settled_count
    }

    /// Whether nothing is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.una == self.next
    }

    /// Whether the window may be given back: a sender held back by pacing is still at it.
    pub(super) fn may_rest(&self) -> bool {
        self.is_idle() && !self.pacer.is_holding_back()
    }

    /// Smallest round trip that is worth remembering.
    pub(super) fn min_rtt(&self) -> u64 {
        match self.control.min_rtt_ns() {
            0 => self.rtt.min,
            floor => floor,
        }
    }

    pub(super) fn window_bytes(&self) -> u64 {
        self.control.window()
    }

    pub(super) fn report(&self, stats: &mut Stats) {
        stats.rtt_ns = self.rtt.smoothed;
        stats.rtt_variation_ns = self.rtt.variation;
        stats.min_rtt_ns = self.min_rtt();
        stats.window_bytes = self.cwnd;
        stats.rate = self.control.rate();
        stats.in_flight = self.unacked_count();
        stats.in_flight_bytes = self.in_flight;
        stats.reordering_ns = u64::from(self.rack.window(&self.rtt)) << TICK_SHIFT;
    }
}
