//! What an acknowledgement settles, and what it proves lost.

use super::super::config::SACK_BITS;
use super::super::config::{
    AckInfo, AckSummary, Counters, EVERY_PATH, MAX_SACK_WORDS, TICK_SHIFT, Violation, ticks,
};
use super::super::flight::Mark;
use super::super::rack::Verdict;
use super::{MAX_ATTEMPT, NIL, Sender};
use crate::control::{Acked, Control};
use crate::time::{Instant, SECOND};

/// Longest round trip believed.
const MAX_RTT_NS: u64 = 10 * SECOND;

/// What one acknowledgement has newly settled.
#[derive(Debug)]
struct NewlyAcked {
    packets: u32,
    bytes: u64,
    /// The latest transmission among them that was surely delivered: order and time.
    latest: Option<(u32, u32)>,
    spurious: u32,
    /// One past the highest number acknowledged before.
    high: u64,
    echo: u32,
    now: u32,
    /// Ticks since the oldest packet that was in flight was sent.
    oldest: u32,
    /// Queueing on the way back, in ns.
    reverse_ns: u64,
}

impl<I: Copy> Sender<I> {
    /// `acked` is told every item acknowledged for the first time. `reverse_ns` is the queueing
    /// delay of the way back.
    pub(in super::super) fn handle_ack(
        &mut self,
        now: Instant,
        ack: &AckInfo<'_>,
        reverse_ns: u64,
        counters: &mut Counters,
        acked: &mut impl FnMut(I),
    ) -> Result<AckSummary, Violation> {
        let ahead = check(self.una, self.next, ack)?;
        if self.dead {
            return Ok(AckSummary::default());
        }
        let before = self.in_flight;
        let mut found = NewlyAcked {
            packets: 0,
            bytes: 0,
            latest: None,
            spurious: 0,
            high: self.high,
            echo: ack.echo,
            now: ticks(now),
            oldest: self.oldest(ticks(now)),
            reverse_ns,
        };
        let first_bit = self.una.wrapping_add_signed(ahead + 1);
        if ahead > 0 {
            self.advance(ahead.cast_unsigned(), &mut found, acked);
        }
        if !ack.sack.is_empty() {
            self.select(first_bit, ack.sack, &mut found, acked);
        }
        if found.packets == 0 {
            return Ok(AckSummary::default());
        }
        Ok(self.digest(now, ack, before, &found, counters))
    }

    /// Everything below `una + count` has arrived.
    #[inline]
    fn advance(&mut self, count: u64, found: &mut NewlyAcked, acked: &mut impl FnMut(I)) {
        let end = self.una + count;
        if self.settled_count == 0
            && self.lost_count == 0
            && self.oldest == NIL
            && !self.large.is_suspected()
        {
            // All were sent once, in order: the last one is the latest.
            let (mut bytes, mut urgent) = (0, 0);
            for number in self.una..end {
                let sent = self.flight.get(number);
                bytes += u64::from(sent.bytes);
                urgent += u32::from(sent.urgent);
                acked(sent.item);
            }
            let last = self.flight.get(end - 1);
            found.latest = Some((last.order, last.at));
            found.packets = count as u32;
            found.bytes = bytes;
            self.in_flight -= bytes;
            self.urgent.arrived(urgent);
        } else {
            for number in self.una..end {
                if self.flight.has(number, Mark::Settled) {
                    self.settled_count -= 1;
                } else {
                    self.settle(number, found, acked);
                }
            }
        }
        self.una = end;
        self.high = self.high.max(end);
        self.flight.release(end);
    }

    /// The packets whose bits are set have arrived; the lowest bit is that of `first`.
    fn select(
        &mut self,
        first: u64,
        sack: &[u64],
        found: &mut NewlyAcked,
        acked: &mut impl FnMut(I),
    ) {
        for &entry in sack {
            let base = first.wrapping_add((entry >> SACK_BITS) * u64::from(SACK_BITS));
            let word = entry & ((1 << SACK_BITS) - 1);
            let mut fresh = word & !self.flight.gather(base, Mark::Settled);
            while fresh != 0 {
                let number = base.wrapping_add(u64::from(fresh.trailing_zeros()));
                fresh &= fresh - 1;
                // An old acknowledgement also speaks of what is behind the window.
                if number.wrapping_sub(self.una) >= self.next - self.una {
                    continue;
                }
                self.flight.set(number, Mark::Settled, true);
                self.settled_count += 1;
                self.settle(number, found, acked);
                self.high = self.high.max(number + 1);
            }
        }
    }

    /// Packet `number` has arrived, which was not known before.
    fn settle(&mut self, number: u64, found: &mut NewlyAcked, acked: &mut impl FnMut(I)) {
        let sent = *self.flight.get(number);
        acked(sent.item);
        found.packets += 1;
        found.bytes += u64::from(sent.bytes);
        let elapsed = found.now.wrapping_sub(sent.at);
        let mut delivered = true;
        if self.flight.has(number, Mark::Lost) {
            self.flight.set(number, Mark::Lost, false);
            self.lost_count -= 1;
            self.lost_bytes -= u64::from(sent.bytes);
            if sent.urgent {
                self.urgent.arrived_late();
            }
            if !sent.probe {
                found.spurious += 1;
                self.rack.late(elapsed);
            }
        } else {
            self.in_flight -= u64::from(sent.bytes);
            self.urgent.arrived(sent.urgent.into());
            if self.flight.has(number, Mark::Again) {
                self.unlink(number);
                delivered = !self.is_answer_to_original(elapsed, sent.at, found);
                if !delivered {
                    found.spurious += 1;
                    if !sent.probe && found.echo != 0 {
                        self.rack.late(found.now.wrapping_sub(found.echo));
                    }
                }
            } else if number + 1 < found.high {
                self.rack.late(elapsed);
            }
        }
        self.large
            .arrived(&sent, delivered, (found.now, found.echo));
        if delivered
            && found
                .latest
                .is_none_or(|(order, _)| is_after(sent.order, order))
        {
            found.latest = Some((sent.order, sent.at));
        }
    }

    /// Whether an acknowledgement of a packet sent again, `elapsed` after that at time `at`, can
    /// only be the answer to an earlier transmission (the Eifel test of RFC 3522). What was sent
    /// again with less in it takes less time than anything measured, but its echo is its own.
    fn is_answer_to_original(&self, elapsed: u32, at: u32, found: &NewlyAcked) -> bool {
        match found.echo {
            0 => u64::from(elapsed) << TICK_SHIFT < self.rtt.min / 2,
            echo => is_after(at, echo),
        }
    }

    fn digest(
        &mut self,
        now: Instant,
        ack: &AckInfo<'_>,
        before: u64,
        found: &NewlyAcked,
        counters: &mut Counters,
    ) -> AckSummary {
        counters.acked += u64::from(found.packets);
        counters.acked_bytes += found.bytes;
        counters.spurious += u64::from(found.spurious);
        let timed_out = self.timers.acknowledged(now);
        self.stalled_at = None;
        if timed_out && found.spurious > 0 {
            self.control.on_spurious_timeout();
        } else if found.spurious > 0 {
            self.control.on_spurious_loss();
        }
        let rtt_ns = self.measure(now, ack, found);
        let mut round = false;
        if let Some((order, at)) = found.latest {
            let after = found.now.wrapping_sub(at);
            self.rack.delivered(order, after);
            let after_ns = u64::from(after) << TICK_SHIFT;
            if let Some(rtt_ns) = rtt_ns {
                self.timers.held(now, after_ns.saturating_sub(rtt_ns));
            }
            self.waits.sample(ack.waited_ns.into(), after_ns);
            if !is_after(self.round_end, order) {
                round = true;
                self.round_end = self.order;
                self.rack.end_round();
            }
        }
        let lost = self.detect_losses(now, counters);
        let marked = self.marks(ack, found.packets);
        counters.marked += u64::from(marked);
        self.control.on_ack(&Acked {
            now,
            bytes: found.bytes,
            packets: found.packets,
            marked,
            rtt_ns,
            reverse_ns: found.reverse_ns,
            min_rtt_ns: self.rtt.min,
            srtt_ns: self.rtt.smoothed,
            in_flight: before,
            round,
        });
        self.refresh_control();
        AckSummary {
            packets: found.packets,
            bytes: found.bytes,
            lost,
            rtt_ns,
        }
    }

    /// The round trip by the echo, less what the peer says it held it. Nothing is believed of an
    /// echo from the future, one older than what is in flight or than [`MAX_RTT_NS`], or one that
    /// was held for longer than it took: no sample may be shorter than the path.
    fn measure(&mut self, now: Instant, ack: &AckInfo<'_>, found: &NewlyAcked) -> Option<u64> {
        if ack.echo == 0 {
            return None;
        }
        let age = found.now.wrapping_sub(ack.echo);
        let raw = u64::from(age) << TICK_SHIFT;
        if age > found.oldest || raw > MAX_RTT_NS {
            return None;
        }
        let rtt = raw
            .checked_sub(ack.delay_ns.into())
            .filter(|&rtt| rtt > 0)?;
        self.rtt.sample(now, rtt);
        Some(rtt)
    }

    /// Ticks since the oldest packet in flight was sent, or a few more.
    fn oldest(&self, now: u32) -> u32 {
        if self.is_idle() {
            return 0;
        }
        let first = self.flight.get(self.una);
        let since = match first.attempt {
            0 => first.at,
            _ => self.flight.since(self.una),
        };
        now.wrapping_sub(since)
    }

    fn marks(&mut self, ack: &AckInfo<'_>, packets: u32) -> u32 {
        let Some(ce) = ack.ce else { return 0 };
        let marks = ce.wrapping_sub(self.ce_seen);
        if marks.cast_signed() <= 0 {
            return 0; // An older acknowledgement, overtaken.
        }
        self.ce_seen = ce;
        marks.min(packets)
    }

    /// Finds what was lost by now, and when to look again.
    pub(super) fn detect_losses(&mut self, now: Instant, counters: &mut Counters) -> u32 {
        let now_ticks = ticks(now);
        let window = self.rack.window(&self.rtt);
        let mut deadline = Instant::FAR;
        let (mut lost, mut bytes) = (0, 0);
        let mut number = self.first_once.max(self.una);
        while number < self.next {
            if !self.flight.is_past_first(number) {
                let sent = self.flight.get(number);
                match self.rack.verdict(sent.order, sent.at, now_ticks, window) {
                    Verdict::Lost => {
                        lost += 1;
                        bytes += self.lose(now, number, false);
                    }
                    Verdict::Unknown => break,
                    Verdict::Wait(ticks) => {
                        deadline = now + (u64::from(ticks) << TICK_SHIFT);
                        break;
                    }
                }
            }
            number += 1;
        }
        self.first_once = number;
        while self.oldest != NIL {
            let oldest = self.number_at(self.oldest);
            let sent = self.flight.get(oldest);
            match self.rack.verdict(sent.order, sent.at, now_ticks, window) {
                Verdict::Lost => {
                    lost += 1;
                    bytes += self.lose(now, oldest, false);
                }
                Verdict::Unknown => break,
                Verdict::Wait(ticks) => {
                    deadline = deadline.min(now + (u64::from(ticks) << TICK_SHIFT));
                    break;
                }
            }
        }
        self.rack.deadline = deadline;
        if lost > 0 {
            counters.lost += u64::from(lost);
            self.control.on_loss(now, bytes);
        }
        lost
    }

    /// Takes a packet off the wire, to be sent again. Its bytes.
    ///
    /// One that was sent again [`MAX_ATTEMPT`] times is not sent any more: the connection dies of
    /// it the next time that its clock is looked at, whatever else the peer acknowledges.
    pub(super) fn lose(&mut self, now: Instant, number: u64, probe: bool) -> u64 {
        if self.flight.has(number, Mark::Again) {
            self.unlink(number);
        }
        let sent = self.flight.get_mut(number);
        sent.probe = probe;
        self.worn_out |= sent.attempt == MAX_ATTEMPT;
        if self.limits.packet > EVERY_PATH.into() {
            self.large.lost(now, sent, self.order);
        }
        let bytes = u64::from(sent.bytes);
        if sent.urgent {
            self.urgent.lose(number);
        }
        self.in_flight -= bytes;
        self.lost_bytes += bytes;
        self.flight.set(number, Mark::Lost, true);
        self.lost_count += 1;
        self.count_loss(number);
        self.lost_from = self.lost_from.min(number);
        bytes
    }
}

/// Whether `a` is later than `b` on a circle of 32 bits.
const fn is_after(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() > 0
}

/// How far beyond `una`, the first number not acknowledged, the cumulative part reaches: negative
/// when it is an old acknowledgement. `next` is the first number not sent.
///
/// # Errors
///
/// When it speaks of packets that were not sent, or is too long.
pub(in super::super) fn check(una: u64, next: u64, ack: &AckInfo<'_>) -> Result<i64, Violation> {
    if ack.sack.len() > MAX_SACK_WORDS {
        return Err(Violation::Oversized {
            words: ack.sack.len(),
        });
    }
    // The 32 bits stand for the nearest number.
    let ahead = i64::from(ack.cumulative.wrapping_sub(una as u32).cast_signed());
    let mut last = ahead - 1;
    for &entry in ack.sack {
        let word = entry & ((1 << SACK_BITS) - 1);
        if word != 0 {
            let base = ahead + 1 + (entry >> SACK_BITS).cast_signed() * i64::from(SACK_BITS);
            last = last.max(base + i64::from(word.ilog2()));
        }
    }
    if last >= (next - una).cast_signed() {
        return Err(Violation::Unsent {
            number: una.wrapping_add_signed(last),
            next,
        });
    }
    Ok(ahead)
}
