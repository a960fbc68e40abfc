//! The sending half: what is in flight, what may follow, and what the peer has.
//!
//! A packet in flight is in one of three states: sent once (no bit), lost and waiting to be sent
//! again (`lost`), or sent again (`again`). Packets sent once are in order of transmission by
//! their numbers, the others by a list through the ring; so loss detection looks at the front of
//! both and at every transmission once. Above the first unacknowledged number, `settled` marks
//! what the peer has already got.

use alloc::vec::Vec;

mod ack;
mod timeout;

pub(super) use ack::check;

use super::bits::Bits;
use super::config::{Counters, Stats, TICK_SHIFT, ticks};
use super::pacer::Pacer;
use super::rack::Rack;
use super::rtt::Rtt;
use super::timer::Timers;
use crate::control::{Control, ControlKind, Controller, Start};
use crate::time::Instant;

/// What is kept of a packet in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent<I> {
    item: I,
    bytes: u32,
    /// Last transmission: our clock in ticks, and its place among all transmissions.
    at: u32,
    order: u32,
    /// Neighbours in the list of packets sent again, as ring indexes.
    older: u16,
    newer: u16,
    attempt: u8,
    /// Sent again as a probe, not because loss was inferred.
    probe: bool,
}

const _: () = assert!(size_of::<Sent<[u64; 3]>>() <= 48);

/// No neighbour.
const NIL: u16 = u16::MAX;
/// Transmissions of one packet number; the attempt field of the header has 8 bits.
const MAX_ATTEMPT: u8 = u8::MAX;
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
    /// Indexed by packet number; empty until something is sent.
    ring: Vec<Sent<I>>,
    /// First number not acknowledged, and next to be sent.
    una: u64,
    pub(super) next: u64,
    /// Packets that `ready` has promised.
    grant: u32,
    limits: Limits,
    /// Bytes believed to be on their way, and bytes waiting to be sent again.
    in_flight: u64,
    lost_bytes: u64,
    settled: Bits,
    lost: Bits,
    again: Bits,
    settled_count: u32,
    lost_count: u32,
    /// No lost packet has a number below it.
    lost_from: u64,
    /// List of packets sent again, in order of transmission.
    oldest: u16,
    newest: u16,
    /// Packets below it were sent again, settled or found lost.
    first_once: u64,
    /// One past the highest number acknowledged.
    high: u64,
    /// Next transmission's place, and the place that ends the round.
    order: u32,
    round_end: u32,
    bytes_since_ack_req: u64,
    /// Marks the peer had reported so far.
    pub(super) ce_seen: u32,
    /// Transmissions that may ignore the window: probes.
    probes: u8,
    dead: bool,
    rack: Rack,
    pub(super) rtt: Rtt,
    timers: Timers,
    pacer: Pacer,
    control: Controller,
    cwnd: u64,
}

impl<I: Copy> Sender<I> {
    pub(super) fn new() -> Self {
        let start = Start {
            packet: 1,
            max_window: 1,
            link_rate: None,
            window: 0,
            srtt_ns: 0,
        };
        Self {
            ring: Vec::new(),
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
            settled: Bits::new(),
            lost: Bits::new(),
            again: Bits::new(),
            settled_count: 0,
            lost_count: 0,
            lost_from: 0,
            oldest: NIL,
            newest: NIL,
            first_once: 0,
            high: 0,
            order: 0,
            round_end: 0,
            bytes_since_ack_req: 0,
            ce_seen: 0,
            probes: 0,
            dead: false,
            rack: Rack::default(),
            rtt: Rtt::default(),
            timers: Timers::default(),
            pacer: Pacer::default(),
            control: Controller::new(ControlKind::None, &start),
            cwnd: 0,
        }
    }

    /// Begins anew. Nothing is in flight: a window is only given back when it is empty.
    pub(super) fn start(
        &mut self,
        next: u64,
        limits: Limits,
        rtt: Rtt,
        kind: ControlKind,
        cwnd: u32,
    ) {
        assert!(
            self.una == self.next && self.oldest == NIL,
            "a recycled window is empty"
        );
        (self.una, self.next, self.high, self.first_once) = (next, next, next, next);
        self.lost_from = next;
        let start = Start {
            packet: limits.packet,
            max_window: limits.window * limits.packet,
            link_rate: limits.link_rate,
            window: u64::from(cwnd),
            srtt_ns: rtt.smoothed,
        };
        self.control = Controller::new(kind, &start);
        self.limits = limits;
        self.rtt = rtt;
        self.round_end = self.order;
        self.rack = Rack::default();
        self.timers = Timers::default();
        self.pacer = Pacer::default();
        (self.grant, self.probes, self.dead, self.bytes_since_ack_req) = (0, 0, false, 0);
        self.refresh_control();
    }

    fn refresh_control(&mut self) {
        self.cwnd = self.control.window();
        self.pacer
            .set_rate(self.control.rate(), self.limits.packet, self.cwnd);
    }

    #[inline]
    fn index(&self, number: u64) -> usize {
        number as usize & (self.ring.len() - 1)
    }

    /// The number in the window that lives at `index`.
    fn number_at(&self, index: u16) -> u64 {
        let ahead = u64::from(index).wrapping_sub(self.una) & (self.ring.len() as u64 - 1);
        self.una + ahead
    }

    #[inline]
    pub(super) fn ready(&mut self, now: Instant) -> u32 {
        let room = self.limits.window - (self.next - self.una);
        let bytes = self.cwnd.saturating_sub(self.in_flight + self.lost_bytes);
        self.grant = 0;
        if room == 0 || bytes == 0 || self.dead {
            return 0;
        }
        let count = room
            .min(bytes.div_ceil(self.limits.packet))
            .min(self.pacer.allowance(now));
        self.grant = count as u32;
        self.grant
    }

    /// As `ready`, for `count` small packets: bytes and pace have room for them as soon as they
    /// have for one.
    pub(super) fn ready_small(&mut self, now: Instant, count: u32) -> bool {
        let numbers = self.limits.window - (self.next - self.una);
        let ready = self.ready(now) > 0 && numbers >= u64::from(count);
        if ready {
            self.grant = self.grant.max(count);
        }
        ready
    }

    #[inline(always)]
    pub(super) fn record(&mut self, now: Instant, item: I, bytes: u32) -> Transmission {
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
        };
        if self.ring.is_empty() {
            self.ring.resize(self.limits.window as usize, sent);
        }
        let index = self.index(number);
        self.ring[index] = sent;
        if self.una == number {
            self.timers.progress(now);
        }
        self.next += 1;
        let port = self.port();
        self.account(now, bytes);
        self.bytes_since_ack_req += u64::from(bytes);
        // Four acknowledgements per window keep a sender going that has filled it.
        let ack_req =
            self.bytes_since_ack_req * 4 >= self.cwnd || self.next - self.una == self.limits.window;
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

    #[inline]
    fn port(&self) -> u8 {
        if self.limits.ports <= 1 {
            return 0;
        }
        ((self.order >> PORT_RUN_SHIFT) % u32::from(self.limits.ports)) as u8
    }

    pub(super) fn poll_retransmit(
        &mut self,
        now: Instant,
        counters: &mut Counters,
    ) -> Option<(I, u32, Transmission)> {
        if self.lost_count == 0 || self.dead {
            return None;
        }
        let number = self.first_lost();
        let index = self.index(number);
        let Sent {
            item,
            bytes,
            attempt,
            ..
        } = self.ring[index];
        if self.probes > 0 {
            self.probes -= 1;
        } else if self.in_flight > 0 && self.in_flight + u64::from(bytes) > self.cwnd
            || self.pacer.allowance(now) == 0
        {
            return None;
        }
        self.lost.clear(number);
        self.lost_count -= 1;
        self.lost_bytes -= u64::from(bytes);
        self.lost_from = number + 1;
        let timestamp = ticks(now);
        let newest = self.newest;
        let slot = &mut self.ring[index];
        slot.at = timestamp;
        slot.order = self.order;
        slot.attempt = attempt + 1;
        (slot.older, slot.newer) = (newest, NIL);
        match newest {
            NIL => self.oldest = index as u16,
            newest => self.ring[usize::from(newest)].newer = index as u16,
        }
        self.newest = index as u16;
        self.again.set(number);
        let port = self.port();
        self.account(now, bytes);
        counters.retransmitted += 1;
        Some((
            item,
            bytes,
            Transmission {
                number,
                attempt: attempt + 1,
                port,
                ack_req: true,
                timestamp,
            },
        ))
    }

    /// Lowest lost number; there is one.
    fn first_lost(&self) -> u64 {
        let mut number = self.lost_from.max(self.una);
        loop {
            assert!(number < self.next, "a lost packet is in the window");
            match self.lost.gather(number) {
                0 => number += 64,
                word => return number + u64::from(word.trailing_zeros()),
            }
        }
    }

    fn unlink(&mut self, number: u64) {
        self.again.clear(number);
        let Sent { older, newer, .. } = self.ring[self.index(number)];
        match older {
            NIL => self.oldest = newer,
            older => self.ring[usize::from(older)].newer = newer,
        }
        match newer {
            NIL => self.newest = older,
            newer => self.ring[usize::from(newer)].older = older,
        }
    }

    /// Packets not acknowledged, in order of their numbers.
    pub(super) fn unacked(&self) -> impl Iterator<Item = I> + '_ {
        (self.una..self.next)
            .filter(|&number| !self.settled.get(number))
            .map(|number| self.ring[self.index(number)].item)
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

    pub(super) fn window_bytes(&self) -> u32 {
        u32::try_from(self.control.window()).unwrap_or(u32::MAX)
    }

    pub(super) fn report(&self, stats: &mut Stats) {
        stats.rtt_ns = self.rtt.smoothed;
        stats.rtt_variation_ns = self.rtt.variation;
        stats.min_rtt_ns = self.rtt.min;
        stats.window_bytes = self.cwnd;
        stats.rate = self.control.rate();
        stats.in_flight = self.unacked_count();
        stats.in_flight_bytes = self.in_flight;
        stats.reordering_ns = u64::from(self.rack.window(&self.rtt)) << TICK_SHIFT;
    }
}
