//! Packet delivery of shared connections (wire mode `src`).
//!
//! A [`Delivery`] is a symmetric reliable stream of packets: each has a 64-bit number, arrives
//! exactly once, in any order, and is described by an item of the owner's by which it can be built
//! again. It knows nothing of QPs and messages. Selective acknowledgements are never taken back;
//! exactly what was lost is sent again; loss is inferred by time and order of transmission with a
//! tolerance that learns from reordering, so that several UDP source ports may be used.
//!
//! The owner's turn, at a time `now`:
//!
//! 1. For each packet received: [`handle_ack`](Delivery::handle_ack) with what it acknowledges;
//!    if it has a number, [`arrival`](Delivery::arrival), and then
//!    [`accept`](Delivery::accept) once it is staged or executed (or nothing, if there was no
//!    room: it will come again), or [`duplicate`](Delivery::duplicate).
//! 2. [`handle_timeout`](Delivery::handle_timeout) when [`poll_timeout`] is due; early or
//!    repeated calls are harmless.
//! 3. [`peek_retransmit`](Delivery::peek_retransmit) until `None`, each followed by
//!    [`retransmit`](Delivery::retransmit) once the port has room for it; then, while
//!    [`ready`](Delivery::ready) gives a number, that many [`record`](Delivery::record). After
//!    a packet is on its way, [`ack_piggybacked`](Delivery::ack_piggybacked).
//! 4. [`poll_ack`](Delivery::poll_ack), [`poll_event`](Delivery::poll_event), and sometimes
//!    [`try_idle`](Delivery::try_idle).
//!
//! Budget: about 10 ns per packet sent and per packet acknowledged, and nothing allocated but
//! windows, which a [`Pool`] recycles.
//!
//! [`poll_timeout`]: Delivery::poll_timeout

mod bits;
mod config;
mod flight;
mod pacer;
mod rack;
mod receiver;
mod reverse;
mod rough;
mod rtt;
mod sender;
mod spare;
#[cfg(test)]
mod tests;
mod timer;
mod window;

use alloc::boxed::Box;

use trunkline_wire::Qpn;

pub use config::{
    AckInfo, AckOut, AckSummary, Arrival, Config, Counters, EVERY_PATH, Event, Lost,
    MAX_SACK_WORDS, MAX_WINDOW, MAX_WINDOW_BYTES, Policy, Received, Stamp, Stats, Violation,
};
pub use window::Pool;

use crate::control::CongestionControl;
use crate::time::{Instant, MICROSECOND};
use rough::Rough;
use rtt::Rtt;
use sender::{Limits, Transmission};
use window::Window;

/// One end of a shared connection. `I` describes what a packet carries; at most 24 bytes keep the
/// record of a packet in flight within 48.
///
/// Idle, it is only this; active, it holds a window of its [`Pool`], until
/// [`try_idle`](Self::try_idle) or [`close`](Self::close).
#[derive(Debug)]
pub struct Delivery<I> {
    window: Option<Box<Window<I>>>,
    /// Numbers to go on with, valid while idle.
    next_tx: u64,
    next_rx: u64,
    /// Last time anything valid came, or a PING was asked for.
    heard_at: Instant,
    local_id: Qpn,
    remote_id: Qpn,
    local_token: u32,
    remote_token: u32,
    /// What was learned of the path, valid while idle; 0 for nothing.
    srtt_ns: Rough,
    variation_ns: Rough,
    min_rtt_ns: Rough,
    cwnd: Rough,
    /// Counts of marks received, and reported by the peer, valid while idle.
    ce: u32,
    ce_seen: u32,
    packet_size: u16,
    window_log2: u8,
    source_ports: u8,
    control: CongestionControl,
    events: u8,
}

const _: () = assert!(size_of::<Delivery<[u64; 3]>>() <= 72);

/// Bits of `Delivery::events`.
const DEAD: u8 = 1;
const KEEP_ALIVE: u8 = 2;
const NARROW: u8 = 4;
/// Not an event: before it rested, large packets got lost where small ones arrived.
const SUSPECT: u8 = 8;

impl<I: Copy> Delivery<I> {
    /// A connection whose peer has agreed to `config`, and was heard at `heard_at`: now, unless
    /// that is not to count.
    ///
    /// # Panics
    ///
    /// If `config` is outside the ranges it documents.
    pub fn new(config: &Config, heard_at: Instant) -> Self {
        assert!(
            config.first_tx < 1 << 63 && config.first_rx < 1 << 63,
            "first packet number"
        );
        assert!(config.window.is_power_of_two(), "window {}", config.window);
        assert!(
            (64..=MAX_WINDOW).contains(&config.window),
            "window {}",
            config.window
        );
        assert!(
            (256..=65535).contains(&config.packet_size),
            "packet size {}",
            config.packet_size
        );
        assert!(config.source_ports > 0, "counts start at 1");
        Self {
            window: None,
            next_tx: config.first_tx,
            next_rx: config.first_rx,
            heard_at,
            local_id: config.local_id,
            remote_id: config.remote_id,
            local_token: config.local_token,
            remote_token: config.remote_token,
            srtt_ns: Rough::default(),
            variation_ns: Rough::default(),
            min_rtt_ns: Rough::default(),
            cwnd: Rough::default(),
            ce: 0,
            ce_seen: 0,
            packet_size: config.packet_size as u16,
            window_log2: config.window.ilog2() as u8,
            source_ports: config.source_ports,
            control: config.control,
            events: 0,
        }
    }

    /// Connection ID of this end.
    pub fn local_id(&self) -> Qpn {
        self.local_id
    }

    /// Connection ID of the peer.
    pub fn remote_id(&self) -> Qpn {
        self.remote_id
    }

    /// Token that packets must carry to be let in.
    pub fn local_token(&self) -> u32 {
        self.local_token
    }

    /// Token that the peer asks for.
    pub fn remote_token(&self) -> u32 {
        self.remote_token
    }

    /// Largest datagram (BTH to ICRC) in bytes.
    pub fn packet_size(&self) -> u32 {
        u32::from(self.packet_size)
    }

    /// From now on packets have at most `bytes` bytes, BTH to ICRC. Larger ones that are in flight
    /// and get lost are [`Lost::too_large`].
    ///
    /// # Panics
    ///
    /// Outside `256 ..= 65535`.
    pub fn set_packet_size(&mut self, bytes: u32) {
        assert!((256..=65535).contains(&bytes), "packet size {bytes}");
        self.packet_size = bytes as u16;
        self.events &= !SUSPECT;
        if let Some(window) = &mut self.window {
            window.sender.set_packet_size(bytes);
        }
    }

    /// UDP source ports in use; [`Stamp::port`] is below it.
    pub fn source_ports(&self) -> u8 {
        self.source_ports
    }

    /// The window; taken from the pool if there is none.
    #[inline]
    fn activate(&mut self, now: Instant, pool: &mut Pool<I>) -> &mut Window<I> {
        if self.window.is_none() {
            self.window = Some(self.fill(now, pool));
            self.events &= !SUSPECT;
        }
        self.window.as_mut().expect("just filled")
    }

    #[cold]
    fn fill(&self, now: Instant, pool: &mut Pool<I>) -> Box<Window<I>> {
        let mut window = pool.take();
        let policy = &pool.policy;
        let packets = 1 << self.window_log2;
        let limits = Limits {
            window: packets,
            packet: u64::from(self.packet_size),
            link_rate: policy.link_rate_bps.map(|bits| (bits / 8).max(1)),
            ports: self.source_ports,
            max_ack_delay_ns: policy.max_ack_delay_ns,
            dead_after_ns: policy.dead_after_ns,
        };
        let rtt = [self.srtt_ns, self.variation_ns, self.min_rtt_ns].map(Rough::get);
        let rtt = Rtt::restore(now, rtt);
        window.sender.start(
            self.next_tx,
            limits,
            rtt,
            self.control,
            (self.cwnd.get(), self.heard_at),
        );
        window.sender.ce_seen = self.ce_seen;
        if self.events & SUSPECT != 0 {
            window.sender.suspect();
        }
        let packet = u64::from(self.packet_size);
        window
            .receiver
            .start(self.next_rx, self.ce, packets, packet, policy.ack_every);
        window.counters = Counters::default();
        window
    }

    /// How many new packets of full size may be sent now: room in the window, in the congestion
    /// window and by pacing. Small packets leave room: ask again when they are recorded. At 0,
    /// acknowledgements or [`poll_timeout`](Self::poll_timeout) change it.
    #[inline]
    pub fn ready(&mut self, now: Instant, pool: &mut Pool<I>) -> u32 {
        self.activate(now, pool);
        let window = self.window.as_mut().expect("just filled");
        window.sender.ready(now, &mut pool.segments)
    }

    /// Whether a small packet that somebody waits for may be sent now: as soon as there is room for
    /// any by bytes and pace, and one of them at a time whatever window and pace say.
    pub fn ready_urgent(&mut self, now: Instant, pool: &mut Pool<I>) -> bool {
        self.activate(now, pool);
        let window = self.window.as_mut().expect("just filled");
        window.sender.ready_urgent(now, &mut pool.segments)
    }

    /// A packet of `bytes` bytes (BTH to ICRC) that carries `item` is sent: gives it the next
    /// number.
    ///
    /// # Panics
    ///
    /// If the last call of [`ready`](Self::ready) has not promised it.
    #[inline(always)]
    pub fn record(&mut self, now: Instant, item: I, bytes: u32) -> Stamp {
        let window = self.window.as_mut().expect("record without ready");
        let sent = window.sender.record(now, item, bytes, false);
        window.counters.sent += 1;
        stamp(window, now, &sent)
    }

    /// The same of a small packet that somebody waits for. Where it gets lost it is sent again
    /// before data.
    ///
    /// # Panics
    ///
    /// If the last call of [`ready_urgent`](Self::ready_urgent) has not promised it.
    pub fn record_urgent(&mut self, now: Instant, item: I, bytes: u32) -> Stamp {
        let window = self.window.as_mut().expect("record without ready");
        let sent = window.sender.record(now, item, bytes, true);
        window.counters.sent += 1;
        stamp(window, now, &sent)
    }

    /// Whether a packet was lost and has not been sent again.
    #[inline]
    pub fn has_lost(&self) -> bool {
        let window = self.window.as_ref();
        window.is_some_and(|window| window.sender.has_lost())
    }

    /// How long the path takes to give room to a sender that has filled the congestion window, in
    /// ns. `None`: that is not known, the window is as large as it gets, or the path loses packets,
    /// so that more room on the path changes nothing.
    pub fn turnaround_ns(&self) -> Option<u64> {
        self.window.as_ref()?.sender.turnaround_ns()
    }

    /// The lost packet that may be sent again next. It stays lost until
    /// [`retransmit`](Self::retransmit) says that it is on its way.
    pub fn peek_retransmit(&mut self, now: Instant) -> Option<Lost<I>> {
        self.window.as_mut()?.sender.peek_retransmit(now)
    }

    /// The packet that [`peek_retransmit`](Self::peek_retransmit) showed at this turn is on its
    /// way, with `bytes` bytes: what to stamp on it.
    ///
    /// # Panics
    ///
    /// If it showed none.
    pub fn retransmit(&mut self, now: Instant, bytes: u32) -> Stamp {
        let window = self.window.as_mut().expect("retransmit without peek");
        let sent = window.sender.retransmit(now, bytes, &mut window.counters);
        stamp(window, now, &sent)
    }

    /// The source port of the next transmission: [`Stamp::port`] of it.
    #[inline(always)]
    pub fn next_port(&self) -> u8 {
        let window = self.window.as_ref();
        window.map_or(0, |window| window.sender.port())
    }

    /// What a packet with this number is. Changes nothing.
    #[inline]
    pub fn arrival(&self, number: u64) -> Arrival {
        match &self.window {
            Some(window) => window.receiver.arrival(number),
            None => {
                let ahead = number.wrapping_sub(self.next_rx);
                if ahead < 1 << self.window_log2 {
                    Arrival::New
                } else {
                    receiver::outside(ahead)
                }
            }
        }
    }

    /// The link of this host works again, after it did not. What is in flight is asked about soon,
    /// however long the waits had grown. Whether [`poll_timeout`](Self::poll_timeout) may have
    /// moved closer.
    pub fn link_up(&mut self, now: Instant) -> bool {
        let window = self.window.as_mut();
        window.is_some_and(|window| window.sender.link_up(now))
    }

    /// When anything came from the peer last, or it was made or probed.
    pub const fn heard_at(&self) -> Instant {
        self.heard_at
    }

    /// Whether `number` is the one that comes next in order, and none behind it has come before.
    #[inline(always)]
    pub fn is_next(&self, number: u64) -> bool {
        let window = self.window.as_ref();
        window.is_some_and(|window| window.receiver.is_next(number))
    }

    /// Packet `number` is staged or executed: from now on it counts as received.
    ///
    /// # Panics
    ///
    /// If [`arrival`](Self::arrival) does not call it new.
    #[inline(always)]
    pub fn accept(&mut self, now: Instant, number: u64, packet: &Received, pool: &mut Pool<I>) {
        let max_delay = pool.policy.max_ack_delay_ns;
        let window = self.activate(now, pool);
        let delay = ack_delay(&window.sender.rtt, max_delay);
        window
            .receiver
            .accept(now, number, packet, delay, &mut window.counters);
        self.heard_at = now;
    }

    /// A packet came that was accepted before: it is acknowledged again soon.
    pub fn duplicate(&mut self, now: Instant, packet: &Received, pool: &mut Pool<I>) {
        let max_delay = pool.policy.max_ack_delay_ns;
        let window = self.activate(now, pool);
        let delay = ack_delay(&window.sender.rtt, max_delay);
        window
            .receiver
            .duplicate(now, packet, delay, &mut window.counters);
        self.heard_at = now;
    }

    /// An acknowledgement came, piggybacked or pure. `acked` is told the item of every packet it
    /// acknowledges for the first time, in no promised order.
    ///
    /// # Errors
    ///
    /// When it acknowledges what was not sent; then nothing has moved.
    #[inline]
    pub fn handle_ack(
        &mut self,
        now: Instant,
        ack: &AckInfo<'_>,
        acked: &mut impl FnMut(I),
    ) -> Result<AckSummary, Violation> {
        let summary = match &mut self.window {
            Some(window) => {
                let Window {
                    sender,
                    receiver,
                    counters,
                } = &mut **window;
                let fresh_ns = 2 * sender.rtt.smoothed;
                let reverse_ns = receiver.reverse.queue_ns(now, fresh_ns);
                let summary = sender.handle_ack(now, ack, reverse_ns, counters, acked)?;
                if sender.takes_no_large(now) {
                    self.events |= NARROW;
                }
                summary
            }
            None => {
                // Nothing is in flight, so it can only be an old one.
                sender::check(self.next_tx, self.next_tx, ack)?;
                AckSummary::default()
            }
        };
        self.heard_at = now;
        Ok(summary)
    }

    /// Whether [`poll_ack`](Self::poll_ack) has an acknowledgement.
    #[inline]
    pub fn is_ack_due(&self, now: Instant) -> bool {
        let window = self.window.as_ref();
        window.is_some_and(|window| window.receiver.is_due(now))
    }

    /// The peer is told that packets from this UDP source port of its come out at the wrong worker,
    /// if the connection is active.
    pub fn tell_astray(&mut self, from: u16) {
        if let Some(window) = &mut self.window {
            window.receiver.tell_astray(from);
        }
    }

    /// The pure acknowledgement that is due, if one is; it counts as sent.
    pub fn poll_ack(&mut self, now: Instant) -> Option<AckOut<'_>> {
        let window = self.window.as_mut()?;
        window.receiver.poll_ack(now, &mut window.counters)
    }

    /// A packet stamped at this turn is on its way: its acknowledgement stands in for a pure one,
    /// unless that would say more.
    #[inline]
    pub fn ack_piggybacked(&mut self) {
        if let Some(window) = &mut self.window {
            window.receiver.piggybacked();
        }
    }

    /// Time has passed: losses, probes, delayed acknowledgements, keep-alive, death.
    pub fn handle_timeout(&mut self, now: Instant, pool: &Pool<I>) {
        let mut in_flight = false;
        if let Some(window) = &mut self.window {
            window.receiver.handle_timeout(now);
            if window.sender.handle_timeout(now, &mut window.counters) {
                self.events |= DEAD;
            }
            if window.sender.takes_no_large(now) {
                self.events |= NARROW;
            }
            in_flight = !window.sender.is_idle();
        }
        if !in_flight && now >= self.keep_alive_at(pool) {
            self.heard_at = now;
            self.events |= KEEP_ALIVE;
        }
    }

    fn keep_alive_at(&self, pool: &Pool<I>) -> Instant {
        match pool.policy.keep_alive_ns {
            0 => Instant::FAR,
            after => self.heard_at + after,
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout), [`poll_ack`](Self::poll_ack) or a sender held
    /// back by pacing has something to do; a time in the past means at once.
    pub fn poll_timeout(&self, pool: &Pool<I>) -> Option<Instant> {
        let at = match &self.window {
            None => self.keep_alive_at(pool),
            Some(window) => {
                let sender = &window.sender;
                let alive = if sender.is_idle() {
                    self.keep_alive_at(pool)
                } else {
                    Instant::FAR
                };
                alive
                    .min(sender.timeout())
                    .min(sender.pacing_timeout())
                    .min(window.receiver.timeout())
            }
        };
        (at != Instant::FAR).then_some(at)
    }

    /// What the owner must act on.
    pub fn poll_event(&mut self) -> Option<Event> {
        let (bit, event) = match self.events & !SUSPECT {
            0 => return None,
            events if events & DEAD != 0 => (DEAD, Event::Dead),
            events if events & NARROW != 0 => (NARROW, Event::Narrow),
            _ => (KEEP_ALIVE, Event::KeepAlive),
        };
        self.events &= !bit;
        Some(event)
    }

    /// Packets sent and not acknowledged.
    pub fn in_flight(&self) -> u32 {
        self.window
            .as_ref()
            .map_or(0, |window| window.sender.unacked_count())
    }

    /// Their items, in order of their numbers: what to replay on another connection.
    pub fn unacked(&self) -> impl Iterator<Item = I> + '_ {
        self.window
            .iter()
            .flat_map(|window| window.sender.unacked())
    }

    /// Whether the connection has died; then it sends nothing any more.
    pub fn is_dead(&self) -> bool {
        self.window
            .as_ref()
            .is_some_and(|window| window.sender.is_dead())
    }

    /// Whether the connection holds no window.
    pub fn is_idle(&self) -> bool {
        self.window.is_none()
    }

    /// Gives the window back if nothing is in flight or held back by pacing, nothing received is
    /// waiting for an earlier packet and no acknowledgement is owed. Its counts are returned when
    /// it did.
    pub fn try_idle(&mut self, pool: &mut Pool<I>) -> Option<Counters> {
        let window = self.window.as_ref()?;
        if !window.sender.may_rest() || !window.receiver.is_idle() {
            return None;
        }
        let mut window = self.window.take()?;
        window.sender.flight.clear(&mut pool.segments);
        window.receiver.shrink();
        let (sender, receiver) = (&window.sender, &window.receiver);
        (self.next_tx, self.next_rx) = (sender.next, receiver.next);
        self.srtt_ns = Rough::of(sender.rtt.smoothed);
        self.variation_ns = Rough::of(sender.rtt.variation);
        self.min_rtt_ns = Rough::of(sender.min_rtt());
        // A window nobody has measured is not worth remembering.
        self.cwnd = match sender.rtt.smoothed {
            0 => Rough::default(),
            _ => Rough::of(sender.window_bytes()),
        };
        (self.ce, self.ce_seen) = (receiver.ce, sender.ce_seen);
        self.events |= if sender.is_suspicious() { SUSPECT } else { 0 };
        let counters = window.counters;
        pool.give(window);
        Some(counters)
    }

    /// Ends the connection, whatever is in flight: frees its window.
    pub fn close(self, pool: &mut Pool<I>) {
        if let Some(window) = self.window {
            pool.forget(window);
        }
    }

    /// How the connection is doing.
    pub fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        match &self.window {
            Some(window) => {
                window.sender.report(&mut stats);
                stats.counters = window.counters;
            }
            None => {
                stats.rtt_ns = self.srtt_ns.get();
                stats.rtt_variation_ns = self.variation_ns.get();
                stats.min_rtt_ns = self.min_rtt_ns.get();
                stats.window_bytes = self.cwnd.get();
            }
        }
        stats
    }
}

/// Adds what the receiving half says to a transmission.
#[inline(always)]
fn stamp<I: Copy>(window: &mut Window<I>, now: Instant, sent: &Transmission) -> Stamp {
    let (ack, echo) = window.receiver.piggyback(now);
    Stamp {
        number: sent.number,
        attempt: sent.attempt,
        timestamp: sent.timestamp,
        echo,
        ack,
        port: sent.port,
        ack_req: sent.ack_req,
    }
}

/// Whatever the round trip, an acknowledgement may wait this long for a packet to ride on: whoever
/// cannot go on without it asks for it.
const PATIENCE_NS: u64 = 50 * MICROSECOND;

/// How long an acknowledgement may wait: a quarter of the round trip where it is known.
#[inline]
fn ack_delay(rtt: &Rtt, max_delay_ns: u64) -> u64 {
    if rtt.smoothed == 0 {
        max_delay_ns
    } else {
        max_delay_ns.min(PATIENCE_NS.max(rtt.smoothed / 4))
    }
}
