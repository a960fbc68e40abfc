//! The default: a window steered by queueing delay.
//!
//! After Swift (SIGCOMM 2020) and TIMELY (SIGCOMM 2015): the window grows while the smallest round
//! trip of a round stays below a target and shrinks in proportion to the excess, at most by half,
//! once per round. The smallest and not the mean, because a reordered packet is late without any
//! queue. Where switches mark, the marked share of a round shrinks the window as in DCTCP (RFC
//! 8257). Loss is no signal by itself: it shrinks the window only where a queue is seen to stand
//! too, or when it is heavy, which is what a queue too short to be seen in the delay looks like.
//! Heavy loss that does not answer to a smaller window is the path's own, and is tolerated.

use super::{Acked, Control, MIN_WINDOW_PACKETS, Start, first_window};
use crate::time::{Instant, MICROSECOND, SECOND};

/// Queueing delay that the path may have at least: less drowns in the jitter of hosts.
pub(super) const QUEUE_TARGET_NS: u64 = 25 * MICROSECOND;
/// The same where packets pass a kernel, whose batches and scheduler look like queueing.
pub(super) const HOST_TARGET_NS: u64 = 500 * MICROSECOND;
/// Rounds of growth after which the step doubles.
const CALM_ROUNDS: u32 = 5;
/// Marked share of packets as a fraction of this.
const SHARE_ONE: u64 = 1 << 10;
/// A standing queue hides the bare round trip; the window is halved for one round this often.
const DRAIN_INTERVAL_NS: u64 = 5 * SECOND;
/// Share of bytes lost that is heavy.
const HEAVY_LOSS: u64 = SHARE_ONE / 16;
/// Packets over which heavy loss is judged.
const JUDGED_PACKETS: u64 = 64;
/// Times in a row the window shrinks for heavy loss before it is asked whether that helps.
const HEAVY_STEPS: u32 = 4;

/// Window steered by queueing delay.
#[derive(Clone, Debug)]
pub struct Delay {
    target_ns: u64,
    window: u64,
    packet: u64,
    max_window: u64,
    link_rate: Option<u64>,
    rate: Option<u64>,
    /// Sums over the round.
    round_rtt: u64,
    round_lost: bool,
    round_packets: u64,
    round_marked: u64,
    round_full: bool,
    loss: HeavyLoss,
    marked_share: u64,
    calm: u32,
    slow_start: bool,
    draining: bool,
    drain_at: Instant,
    before_timeout: u64,
}

impl Delay {
    /// The controller for a path on which `target_ns` of queueing are aimed at.
    pub fn new(start: &Start, target_ns: u64) -> Self {
        let mut delay = Self {
            target_ns,
            window: first_window(start),
            packet: start.packet,
            max_window: start.max_window.max(MIN_WINDOW_PACKETS * start.packet),
            link_rate: start.link_rate,
            rate: start.link_rate,
            round_rtt: u64::MAX,
            round_lost: false,
            round_packets: 0,
            round_marked: 0,
            round_full: false,
            loss: HeavyLoss::new(),
            marked_share: SHARE_ONE,
            calm: 0,
            slow_start: start.window == 0,
            draining: false,
            drain_at: Instant::ZERO,
            before_timeout: 0,
        };
        delay.pace(start.srtt_ns);
        delay
    }

    fn pace(&mut self, srtt_ns: u64) {
        if srtt_ns == 0 {
            return;
        }
        // Twice the window per round trip while searching, a quarter more than it afterwards: the
        // window governs, the pacing only keeps it from leaving in one burst.
        let quarters = if self.slow_start { 8 } else { 5 };
        let rate = self.window.saturating_mul(quarters * SECOND / 4) / srtt_ns;
        let rate = rate.max(self.packet);
        self.rate = Some(self.link_rate.map_or(rate, |link| rate.min(link)));
    }

    fn shrink(&mut self, window: u64) {
        self.slow_start = false;
        self.calm = 0;
        self.window = window.max(MIN_WINDOW_PACKETS * self.packet);
    }

    fn grow(&mut self) {
        self.calm += 1;
        let doublings = (self.calm / CALM_ROUNDS).min(6);
        let step = (self.packet << doublings).min((self.window / 8).max(self.packet));
        self.window = (self.window + step).min(self.max_window);
    }

    /// Queueing delay aimed at.
    const fn target(&self, min_rtt_ns: u64) -> u64 {
        self.target_ns + min_rtt_ns / 4
    }

    fn end_round(&mut self, acked: &Acked) {
        let queue = match self.round_rtt {
            u64::MAX => 0,
            rtt => rtt.saturating_sub(acked.min_rtt_ns),
        };
        let target = self.target(acked.min_rtt_ns);
        let heavy = self.loss.judge(JUDGED_PACKETS * self.packet);
        let share = self.round_marked * SHARE_ONE / self.round_packets.max(1);
        self.marked_share = (self.marked_share * 15 + share.min(SHARE_ONE)) / 16;
        if self.draining {
            // The half window of the last round says nothing about the whole one.
            self.draining = false;
        } else if self.round_marked > 0 {
            self.shrink(self.window - self.window * self.marked_share / (2 * SHARE_ONE));
        } else if queue > target {
            let excess = (queue - target).min(self.round_rtt * 5 / 8);
            self.shrink(self.window - self.window / 5 * 4 / 100 * (excess * 100 / self.round_rtt));
        } else if self.round_lost && queue > target / 8 {
            // By what stands in the queue and no more, so that the link stays busy.
            let excess = ((queue - target / 8) / 2).min(self.round_rtt / 8);
            self.shrink(self.window - self.window / 100 * (excess * 100 / self.round_rtt));
        } else if let Some(lost) = heavy {
            self.shrink(self.window - self.window * lost / (2 * SHARE_ONE));
        } else if self.slow_start {
            self.slow_start = queue <= target / 2;
        } else if self.round_full {
            self.grow();
        }
        if self.drain_at == Instant::ZERO {
            self.drain_at = acked.now + DRAIN_INTERVAL_NS;
        } else if acked.now >= self.drain_at {
            self.drain_at = acked.now + DRAIN_INTERVAL_NS;
            self.draining = queue > target / 4;
        }
        self.round_rtt = u64::MAX;
        self.round_lost = false;
        (self.round_packets, self.round_marked) = (0, 0);
        self.round_full = false;
        self.before_timeout = 0;
        self.pace(acked.srtt_ns);
    }
}

/// The round trip as it would be with no queue on the way back. At most half of the
/// queueing are believed to be there: clocks drift.
fn without_reverse(rtt_ns: u64, acked: &Acked) -> u64 {
    let queue = rtt_ns.saturating_sub(acked.min_rtt_ns);
    rtt_ns - acked.reverse_ns.min(queue / 2)
}

/// Loss without delay: whether the window is at fault.
#[derive(Clone, Debug)]
struct HeavyLoss {
    /// Bytes since the last judgement.
    acked: u64,
    lost: u64,
    /// Share that is put up with, never below [`HEAVY_LOSS`].
    tolerated: u64,
    /// Heavy judgements in a row, and the share at the first.
    steps: u32,
    first: u64,
}

impl HeavyLoss {
    const fn new() -> Self {
        Self {
            acked: 0,
            lost: 0,
            tolerated: HEAVY_LOSS,
            steps: 0,
            first: 0,
        }
    }

    /// The share lost, as a fraction of [`SHARE_ONE`], if it is too much. Judges once per `least`
    /// bytes.
    fn judge(&mut self, least: u64) -> Option<u64> {
        let all = self.acked + self.lost;
        if all < least {
            return None;
        }
        let share = self.lost * SHARE_ONE / all;
        (self.acked, self.lost) = (0, 0);
        self.tolerated = (self.tolerated - self.tolerated / 64).max(HEAVY_LOSS);
        if share <= self.tolerated {
            self.steps = 0;
            return None;
        }
        if self.steps == 0 {
            self.first = share;
        }
        self.steps += 1;
        if self.steps > HEAVY_STEPS {
            self.steps = 0;
            if share * 3 > self.first * 2 {
                self.tolerated = share + share / 2;
                return None;
            }
        }
        Some(share)
    }
}

impl Control for Delay {
    fn on_ack(&mut self, acked: &Acked) {
        self.loss.acked += acked.bytes;
        self.round_packets += u64::from(acked.packets);
        self.round_marked += u64::from(acked.marked);
        let rtt = acked.rtt_ns.map(|rtt| without_reverse(rtt, acked));
        if let Some(rtt) = rtt {
            self.round_rtt = self.round_rtt.min(rtt.max(1));
        }
        // A window that is not used is not proved.
        let full = acked.in_flight * 2 >= self.window;
        self.round_full |= full;
        // A round trip of doubling after the queue is seen to grow would double the queue.
        let queue = rtt.map_or(0, |rtt| rtt.saturating_sub(acked.min_rtt_ns));
        if self.slow_start && full && queue <= self.target(acked.min_rtt_ns) / 2 {
            self.window = (self.window + acked.bytes).min(self.max_window);
            self.pace(acked.srtt_ns);
        }
        if acked.round {
            self.end_round(acked);
        }
    }

    fn on_loss(&mut self, _: Instant, bytes: u64) {
        self.round_lost = true;
        self.loss.lost += bytes;
    }

    fn on_timeout(&mut self, _: Instant) {
        self.before_timeout = self.before_timeout.max(self.window);
        self.window = MIN_WINDOW_PACKETS * self.packet;
        self.slow_start = true;
    }

    fn on_spurious_timeout(&mut self) {
        self.window = self.window.max(self.before_timeout);
        self.before_timeout = 0;
        self.slow_start = false;
    }

    fn window(&self) -> u64 {
        if self.draining {
            (self.window / 2).max(MIN_WINDOW_PACKETS * self.packet)
        } else {
            self.window
        }
    }

    fn rate(&self) -> Option<u64> {
        self.rate
    }
}
