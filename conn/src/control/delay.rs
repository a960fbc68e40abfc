//! The default: a window steered by queueing delay, which asks the path whether that helps.
//!
//! The window grows until the smallest round trip of a round shows that a short queue stands, and
//! is then cut by what stands in it, so that the link stays busy (as in Vegas and Swift). Whether
//! the queue is ours is never taken for granted: two rounds after a cut the round trip must have
//! fallen by what the cut explains. If it has not, the window is cut once more:
//!
//! - The round trip stays where it is: there is no queue, the path has grown or a sample was wrong.
//!   The round trip is believed, and the window is what it was.
//! - It falls, but by less than it should: others fill the queue. For some time the window is that
//!   of a loss-based flow, as any delay-based one would starve (Copa's mode switching, NSDI 2018).
//!
//! Loss counts where the queue is as long as it ever is, and where it is heavy and falls with the
//! window; other loss is the path's own. Where switches mark, the marked share of a round shrinks
//! the window as in DCTCP (RFC 8257).

use super::guard::{self, LossGuard};
use super::{Acked, Control, MIN_WINDOW_PACKETS, SHARE_ONE, Start, first_window};
use crate::time::{Instant, MICROSECOND, MILLISECOND, SECOND};

/// Part of the path's own jitter that is no queue.
const SLACK_NS: u64 = 25 * MICROSECOND;
/// The smallest round trip is looked for this often at least, with half of the window.
const DRAIN_INTERVAL_NS: u64 = SECOND;
/// The same in round trips, where that is longer.
const DRAIN_ROUNDS: u64 = 64;
/// Rounds for which others are believed to fill the queue when that is seen first. It doubles each
/// time up to the latter, and halves each time that a cut helps.
const RIVAL_ROUNDS: u64 = 512;
const MAX_RIVAL_NS: u64 = 16 * SECOND;
/// A window so small competes with nobody.
const RIVAL_PACKETS: u64 = 4;
/// Packets that wait where a queue overflows, at least.
const OVERFLOW_PACKETS: u64 = 4;
/// Rounds and packets over which loss with a short queue is remembered.
const SHORT_ROUNDS: u64 = 16;
const SHORT_PACKETS: u64 = 1024;
/// Rounds in which what a queue is believed to hold grows by a whole.
const CAP_ROUNDS: u64 = 512;
/// Rounds that a burst of growth takes to show, and rounds of growth that make one.
const RUSH_ROUNDS: u32 = 4;
const RUSH_CALM: u32 = 4;
/// Doublings of the step of growth.
const MAX_CALM: u32 = 16;
/// Rounds of growth without a queue after which much room is expected.
const LONG_CALM: u32 = 8;

/// What the window is doing.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Phase {
    /// Doubles every round trip.
    SlowStart,
    Steady,
    /// It was cut to ask whether that shortens the queue.
    Cut,
    /// It was cut once more, as that was not enough.
    DeepCut,
    /// Half of it is used, to see the path without a queue of ours.
    Drain,
}

/// What was before a cut.
#[derive(Clone, Copy, Debug, Default)]
struct Before {
    window: u64,
    rtt: u64,
    /// Round trip after the first cut.
    then: u64,
    /// Rounds since the last cut, and bytes that came and were lost in them.
    rounds: u32,
    bytes: u64,
    lost: u64,
}

/// Sums over a round.
#[derive(Clone, Copy, Debug)]
struct Round {
    min: u64,
    max: u64,
    sum: u64,
    samples: u64,
    packets: u64,
    marked: u64,
    /// Bytes were lost while the queue was as long as it is at most.
    crowded: bool,
    bytes: u64,
    lost: u64,
    full: bool,
}

impl Round {
    const NEW: Self = Self {
        min: u64::MAX,
        max: 0,
        sum: 0,
        samples: 0,
        packets: 0,
        marked: 0,
        crowded: false,
        bytes: 0,
        lost: 0,
        full: false,
    };
}

/// Window steered by queueing delay.
#[derive(Clone, Debug)]
pub struct Delay {
    window: u64,
    packet: u64,
    max_window: u64,
    link_rate: Option<u64>,
    rate: Option<u64>,
    phase: Phase,
    before: Before,
    round: Round,
    /// Window of the round before, and the one in which what was acknowledged was sent.
    last_window: u64,
    measured: u64,
    /// Largest round trip of the last round.
    last_max: u64,
    /// Round trip of the path without a queue, 0 while not known, and when it was last seen.
    floor: u64,
    floor_at: Instant,
    /// Queueing aimed at, and what it may be at most because a queue has overflowed.
    aim: u64,
    cap: u64,
    /// Mean difference of the smallest round trips of rounds that follow each other.
    last_min: u64,
    noise: u64,
    /// Smallest round trip since the last cut.
    since_cut: u64,
    /// Longest queue of late.
    peak: u64,
    /// Rounds of growth without a queue that grows, and rounds for which fast growth explains what
    /// happens.
    calm: u32,
    rush: u32,
    /// Others fill the queue until then; how long that is believed; what was lost at last and when.
    rival_until: Instant,
    rival_ns: u64,
    most: u64,
    lost_at: Instant,
    recovery_ns: u64,
    loss: LossGuard,
    /// A queue that overflows is not shorter. Bytes that came and that were lost while it was
    /// short.
    least_overflow: u64,
    short_bytes: u64,
    short_lost: u64,
    marked_share: u64,
    before_timeout: u64,
    /// Whether the window was still doubling before the timeout.
    searched: bool,
    /// Window, cap and rivals as they were before the last overflow.
    undo: Option<(u64, u64, Instant)>,
}

impl Delay {
    /// The controller for a path.
    pub fn new(start: &Start) -> Self {
        let mut delay = Self {
            window: first_window(start),
            packet: start.packet,
            max_window: start.max_window.max(MIN_WINDOW_PACKETS * start.packet),
            link_rate: start.link_rate,
            rate: start.link_rate,
            phase: if start.window == 0 {
                Phase::SlowStart
            } else {
                Phase::Steady
            },
            before: Before::default(),
            round: Round::NEW,
            last_window: 0,
            measured: 0,
            last_max: 0,
            floor: start.min_rtt_ns,
            floor_at: Instant::ZERO,
            aim: 0,
            cap: u64::MAX,
            last_min: 0,
            noise: 0,
            since_cut: u64::MAX,
            peak: 0,
            calm: 0,
            rush: RUSH_ROUNDS,
            rival_until: Instant::ZERO,
            rival_ns: 0,
            most: 0,
            lost_at: Instant::ZERO,
            recovery_ns: 0,
            loss: LossGuard::new(guard::HEAVY),
            least_overflow: 0,
            short_bytes: 0,
            short_lost: 0,
            marked_share: SHARE_ONE,
            before_timeout: 0,
            searched: false,
            undo: None,
        };
        delay.pace(start.srtt_ns);
        delay.set_aim(start.srtt_ns);
        delay
    }

    fn pace(&mut self, srtt_ns: u64) {
        if srtt_ns == 0 {
            return;
        }
        // Twice the window per round trip while searching, a quarter more than it afterwards: the
        // window governs, the pacing only keeps it from leaving in one burst.
        let quarters = if self.phase == Phase::SlowStart { 8 } else { 5 };
        let rate = self.window().saturating_mul(quarters * SECOND / 4) / srtt_ns;
        let rate = rate.max(self.packet);
        self.rate = Some(self.link_rate.map_or(rate, |link| rate.min(link)));
    }

    /// Queueing aimed at: between the time of a packet at our rate and a part of the round trip. A
    /// flow with less aims at more, so that equal flows become equal.
    fn set_aim(&mut self, srtt_ns: u64) {
        let packet_ns = (self.packet.saturating_mul(srtt_ns) / self.window).min(SECOND);
        self.least_overflow = OVERFLOW_PACKETS * packet_ns.min(srtt_ns / 16);
        let part = SLACK_NS + self.floor.min(SECOND) / 4;
        let aim = 3 * (packet_ns * part).isqrt();
        self.aim = aim.max(2 * self.noise).min(self.cap).max(1);
    }

    fn set_window(&mut self, window: u64) {
        self.window = window.clamp(MIN_WINDOW_PACKETS * self.packet, self.max_window);
    }

    fn has_rival(&self, now: Instant) -> bool {
        now < self.rival_until
    }

    /// Others fill the queue.
    fn meet_rival(&mut self, now: Instant, rtt: u64) {
        let least = (RIVAL_ROUNDS * rtt).min(MAX_RIVAL_NS);
        self.rival_ns = (self.rival_ns * 2).clamp(least, MAX_RIVAL_NS);
        self.rival_until = now + self.rival_ns;
    }

    /// Cuts the window and asks what that does.
    fn cut(&mut self, window: u64, rtt: u64, phase: Phase) {
        self.before = Before {
            window: self.measured,
            rtt,
            then: 0,
            rounds: 0,
            bytes: 0,
            lost: 0,
        };
        self.phase = phase;
        self.calm = 0;
        self.since_cut = u64::MAX;
        self.set_window(window);
    }

    /// What fits without a queue, and a part of the one aimed at.
    fn drained(&self, rtt: u64) -> u64 {
        let fits = u128::from(self.measured) * u128::from(self.floor + self.aim / 4);
        (fits / u128::from(rtt.max(1))) as u64
    }

    fn grow(&mut self, now: Instant, rtt: u64) {
        let step = if self.has_rival(now) {
            self.calm = 0;
            self.cubic_step(now, rtt)
        } else if rtt <= self.since_cut.saturating_add(self.aim / 2) {
            self.calm = (self.calm + 1).min(MAX_CALM);
            let most = self.window / if self.calm > LONG_CALM { 4 } else { 8 };
            let step = (self.packet << (self.calm - 1)).min(most.max(self.packet));
            if self.window < self.most {
                // The last queue began there: half of the way, and slowly beyond it.
                let half = (self.most - self.window) / 2;
                if half <= step {
                    self.calm = 1;
                }
                step.min(half.max(self.packet))
            } else {
                step
            }
        } else {
            self.calm = 0;
            self.packet
        };
        self.set_window(self.window + step);
    }

    /// Growth of a loss-based flow per round: as Reno, or as CUBIC (RFC 9438) on average where that
    /// is more.
    fn cubic_step(&self, now: Instant, rtt: u64) -> u64 {
        let least = self.packet.min(self.window / 8);
        if self.recovery_ns == 0 {
            return least;
        }
        let step = u128::from(self.most * 3 / 10) * u128::from(rtt) / u128::from(self.recovery_ns);
        let beyond = now.since(self.lost_at) / self.recovery_ns;
        ((step as u64) << beyond.min(4))
            .min(self.window / 4)
            .max(least)
    }

    /// A queue that is as long as it can be has overflowed.
    fn overflow(&mut self, now: Instant, srtt_ns: u64, queue: u64) {
        if self.lost_at != Instant::ZERO && now.since(self.lost_at) < 3 * srtt_ns {
            return; // Of the same queue.
        }
        self.undo = Some((self.window, self.cap, self.rival_until));
        self.cap = (queue / 2).max(1);
        (self.most, self.lost_at) = (self.window, now);
        // CUBIC comes back after the cube root of 3/4 of the window in packets, in seconds.
        self.recovery_ns = cube_root(self.window * 3 / 4 / self.packet) * MILLISECOND;
        if self.rush == 0 && self.window > RIVAL_PACKETS * self.packet {
            // Alone we would not have come here again: for the most part of the way back the window
            // is that of a loss-based flow.
            // Reno comes back by a packet each round trip, CUBIC in its time.
            let rounds = self.window * 3 / 10 / self.packet;
            let back = self.recovery_ns.min(rounds * srtt_ns) / 4 * 3;
            let back = back.min(MAX_RIVAL_NS);
            self.rival_until = self.rival_until.max(now + back);
        }
        self.phase = Phase::Steady;
        self.calm = 0;
        self.since_cut = u64::MAX;
        self.set_window(self.window / 10 * 7);
    }

    /// The answer of the path to a cut, two rounds later.
    fn judge(&mut self, now: Instant, rtt: u64, mean: u64) {
        let before = self.before;
        let tolerance = before.rtt / 32 + self.noise;
        match self.phase {
            Phase::Drain => {
                self.phase = Phase::Steady;
                self.set_window(before.window);
                if rtt <= self.floor + self.aim / 2 {
                    self.floor_at = now;
                } else {
                    self.cut(before.window / 2, before.rtt, Phase::DeepCut);
                    self.before.window = before.window;
                    self.before.then = mean;
                    self.set_window(before.window / 4);
                }
            }
            Phase::Cut => {
                let all = u128::from(before.rtt) * u128::from(self.window)
                    / u128::from(before.window.max(1));
                let expected = before.rtt.saturating_sub((all as u64).max(self.floor));
                let fell = before.rtt.saturating_sub(mean);
                if fell * 4 >= expected * 3 || rtt <= self.floor + self.aim / 2 {
                    self.phase = Phase::Steady;
                    self.rival_ns /= 2;
                } else {
                    self.phase = Phase::DeepCut;
                    self.before.then = mean;
                    self.before.rounds = 0;
                    self.set_window(self.window / 2);
                }
            }
            Phase::DeepCut => {
                self.phase = Phase::Steady;
                if rtt <= self.floor + self.aim / 2 {
                    // There is no queue but ours.
                    let fits = u128::from(before.window) * u128::from(self.floor + self.aim / 4);
                    self.set_window((fits / u128::from(before.rtt)) as u64);
                    self.floor_at = now;
                } else if before.lost * 32 <= before.bytes
                    && mean <= before.then + tolerance
                    && mean + tolerance >= before.then
                {
                    self.floor = rtt;
                    self.floor_at = now;
                    self.set_window(before.window);
                } else {
                    self.meet_rival(now, rtt);
                    self.set_window(before.window);
                }
            }
            Phase::SlowStart | Phase::Steady => {}
        }
        self.since_cut = u64::MAX;
    }

    fn end_round(&mut self, acked: &Acked) {
        let round = core::mem::replace(&mut self.round, Round::NEW);
        self.last_max = round.max;
        self.before_timeout = 0;
        self.measured = self.last_window;
        self.last_window = self.window;
        if round.min == u64::MAX {
            return;
        }
        let (now, rtt) = (acked.now, round.min);
        let queue = rtt - self.floor;
        if self.last_min != 0 {
            let change = rtt.abs_diff(self.last_min);
            self.noise = (self.noise * 15 + change) / 16;
        }
        self.last_min = rtt;
        self.peak = (self.peak - self.peak / 64).max(round.max.saturating_sub(self.floor));
        // A queue that overflowed once may have been another's; it is asked again some day.
        self.cap = self.cap.saturating_add(self.cap / CAP_ROUNDS + 1);
        self.set_aim(acked.srtt_ns);
        self.since_cut = self.since_cut.min(rtt);
        let rushes = self.phase == Phase::SlowStart || self.calm > RUSH_CALM;
        self.rush = if rushes {
            RUSH_ROUNDS
        } else {
            self.rush.saturating_sub(1)
        };
        if queue <= self.aim / 8 {
            self.floor_at = now;
        }
        let share = round.marked * SHARE_ONE / round.packets.max(1);
        self.marked_share = (self.marked_share * 15 + share.min(SHARE_ONE)) / 16;
        let heavy = self.loss.judge(self.packet);
        if round.marked > 0 {
            self.phase = Phase::Steady;
            self.calm = 0;
            self.set_window(self.window - self.window * self.marked_share / (2 * SHARE_ONE));
        } else if let Some(lost) = heavy {
            self.phase = Phase::Steady;
            self.calm = 0;
            self.set_window(self.window - self.window * lost / (2 * SHARE_ONE));
        } else if self.is_overflow(&round, queue > self.aim) {
            self.overflow(now, acked.srtt_ns, round.max.saturating_sub(self.floor));
        } else {
            self.steer(now, &round);
        }
        self.pace(acked.srtt_ns);
    }

    /// Whether a long queue explains what was lost: one that stands does, whoever fills it. Where
    /// it comes and goes, loss that comes with a short one too is not of the queue.
    fn is_overflow(&mut self, round: &Round, stands: bool) -> bool {
        if stands {
            return round.crowded;
        }
        if !round.crowded {
            self.short_bytes += round.bytes;
            self.short_lost += round.lost;
            if self.short_bytes > SHORT_ROUNDS * self.window + SHORT_PACKETS * self.packet {
                self.short_bytes /= 2;
                self.short_lost /= 2;
            }
            return false;
        }
        u128::from(round.lost) * u128::from(self.short_bytes)
            > 4 * u128::from(self.short_lost) * u128::from(round.bytes + round.lost)
    }

    /// Without loss and marks.
    fn steer(&mut self, now: Instant, round: &Round) {
        let (rtt, mean, full) = (round.min, round.sum / round.samples, round.full);
        let queue = rtt - self.floor;
        match self.phase {
            Phase::SlowStart => {
                if queue > self.aim / 2 {
                    self.phase = Phase::Steady;
                    self.set_window(self.drained(rtt));
                }
            }
            Phase::Steady if !full => {}
            Phase::Steady if self.has_rival(now) => self.grow(now, rtt),
            Phase::Steady if queue > self.aim => {
                let window = self.drained(rtt).max(self.window / 2);
                self.most = window;
                self.cut(window, mean, Phase::Cut);
            }
            Phase::Steady if self.is_drain_due(now, rtt) => {
                self.floor_at = now;
                self.cut(self.window / 2, mean, Phase::Drain);
            }
            Phase::Steady => self.grow(now, rtt),
            Phase::Cut | Phase::DeepCut | Phase::Drain => {
                self.before.rounds += 1;
                self.before.bytes += round.bytes;
                self.before.lost += round.lost;
                if self.before.rounds >= 2 {
                    self.judge(now, rtt, mean);
                }
            }
        }
    }

    fn is_drain_due(&self, now: Instant, rtt: u64) -> bool {
        now.since(self.floor_at) > DRAIN_INTERVAL_NS.max(DRAIN_ROUNDS * rtt)
    }
}

/// The round trip as it would be with no queue on the way back. At most half of the
/// queueing are believed to be there: clocks drift.
fn without_reverse(rtt_ns: u64, floor: u64, reverse_ns: u64) -> u64 {
    let queue = rtt_ns.saturating_sub(floor);
    rtt_ns - reverse_ns.min(queue / 2)
}

/// A thousand times the cube root.
fn cube_root(of: u64) -> u64 {
    let of = of.min(1 << 30) * 1_000_000_000;
    let mut root = 0;
    for bit in (0..21).rev() {
        let more: u64 = root | 1 << bit;
        if more * more * more <= of {
            root = more;
        }
    }
    root
}

impl Control for Delay {
    fn on_ack(&mut self, acked: &Acked) {
        self.loss.acked(acked.bytes);
        self.round.bytes += acked.bytes;
        self.round.packets += u64::from(acked.packets);
        self.round.marked += u64::from(acked.marked);
        let full = acked.in_flight * 2 >= self.window();
        self.round.full |= full;
        if let Some(rtt) = acked.rtt_ns {
            let rtt = without_reverse(rtt, self.floor, acked.reverse_ns).max(1);
            if self.floor == 0 || rtt < self.floor {
                self.floor = rtt;
                self.floor_at = acked.now;
                self.set_aim(acked.srtt_ns);
            }
            self.round.min = self.round.min.min(rtt);
            self.round.max = self.round.max.max(rtt);
            self.round.sum += rtt;
            self.round.samples += 1;
            // A round trip of doubling after the queue is seen to grow would double the queue.
            let queue = rtt - self.floor;
            if self.phase == Phase::SlowStart && full && queue <= self.aim / 2 {
                self.set_window(self.window + acked.bytes);
                if self.most > 0 && self.window >= self.most {
                    self.phase = Phase::Steady;
                }
                self.pace(acked.srtt_ns);
            }
        }
        if acked.round {
            self.end_round(acked);
        }
    }

    fn on_loss(&mut self, _: Instant, bytes: u64) {
        self.loss.lost(bytes);
        let longest = self.round.max.max(self.last_max);
        let queue = longest.saturating_sub(self.floor);
        self.round.lost += bytes;
        self.round.crowded |= queue * 8 >= self.peak * 7 && queue >= self.least_overflow;
    }

    fn on_timeout(&mut self, _: Instant) {
        if self.before_timeout == 0 {
            self.before_timeout = self.window;
            self.searched = self.phase == Phase::SlowStart;
        }
        self.window = MIN_WINDOW_PACKETS * self.packet;
        self.phase = Phase::SlowStart;
        self.most = 0;
    }

    fn on_idle(&mut self, periods: u64) {
        let least = first_window(&Start::of(self.packet, self.max_window));
        if self.window > least {
            self.most = self.window;
            self.set_window((self.window >> periods.min(32)).max(least));
            self.phase = Phase::SlowStart;
        }
        self.round = Round::NEW;
        (self.last_max, self.calm) = (0, 0);
    }

    fn on_spurious_timeout(&mut self) {
        self.window = self.window.max(self.before_timeout);
        self.before_timeout = 0;
        if !self.searched {
            self.phase = Phase::Steady;
        }
    }

    fn on_spurious_loss(&mut self) {
        (self.round.crowded, self.round.lost) = (false, 0);
        if let Some((window, cap, rival_until)) = self.undo.take() {
            (self.cap, self.rival_until) = (cap, rival_until);
            self.set_window(self.window.max(window));
        }
    }

    fn window(&self) -> u64 {
        self.window
    }

    fn rate(&self) -> Option<u64> {
        self.rate
    }

    fn min_rtt_ns(&self) -> u64 {
        self.floor
    }
}
