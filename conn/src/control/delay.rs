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
//! Loss counts where it comes with a long queue rather than with a short one (`Crowd` says so), and
//! where it is heavy and falls with the window; other loss is the path's own. Where switches mark,
//! the marked share of a round shrinks the window as in DCTCP (RFC 8257).

use super::bursts::Bursts;
use super::crowd::{Crowd, Queues};
use super::guard::{self, LossGuard};
use super::spared::Spared;
use super::{Acked, Control, MIN_WINDOW_PACKETS, SHARE_ONE, Start, first_window};
use crate::time::{Instant, MICROSECOND, MILLISECOND, SECOND};

/// Part of the path's own jitter that is no queue.
const SLACK_NS: u64 = 25 * MICROSECOND;
/// Bytes of two of the pieces in which hosts hand packets over: what they take behind one another
/// at the flow's rate is no queue, as far as it is short.
const PIECES: u64 = 128 << 10;
const MAX_PIECES_NS: u64 = 2 * SLACK_NS;
/// The smallest round trip is looked for this often at least, with half of the window.
const DRAIN_INTERVAL_NS: u64 = SECOND;
/// The same in round trips, where that is longer.
const DRAIN_ROUNDS: u64 = 64;
/// Rounds for which others are believed to fill the queue when that is seen first. It doubles each
/// time up to the latter, and halves each time that a cut helps.
const RIVAL_ROUNDS: u64 = 512;
const MAX_RIVAL_NS: u64 = 16 * SECOND;
/// The window is at least such a part of a packet, which pacing makes one packet in so many round
/// trips.
const LEAST_PART: u64 = 16;
/// More than such a part of a round is lost heavily.
const HEAVILY: u64 = 16;
/// Rounds in which what a queue is believed to hold grows by a whole.
pub(super) const CAP_ROUNDS: u64 = 512;

/// What is believed of a queue after another round without a word of it.
pub(super) const fn grown(believed: u64) -> u64 {
    believed.saturating_add(believed / CAP_ROUNDS + 1)
}

/// Rounds that a burst of growth takes to show, and rounds of growth that make one.
const RUSH_ROUNDS: u32 = 4;
const RUSH_CALM: u32 = 2;
/// Doublings of the step of growth.
const MAX_CALM: u32 = 16;
/// A window of fewer packets is a small one.
const FEW_PACKETS: u64 = 16;
/// Rounds for which a longer path is doubted.
const DOUBT_ROUNDS: u64 = 512;
/// When a cut does little so many times in a row and a deeper one empties the queue, others take
/// the room that we make.
const REFILLED: u32 = 3;
/// Rounds without a mark after which a path is believed not to mark any longer.
const MARKS_ROUNDS: u64 = 64;
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
#[derive(Clone, Copy, Debug)]
struct Before {
    phase: Phase,
    window: u64,
    rtt: u64,
    /// Round trip after the first cut.
    then: u64,
    /// Rounds since the last cut, and bytes that came and were lost in them.
    rounds: u32,
    bytes: u64,
    lost: u64,
}

impl Before {
    const NONE: Self = Self {
        phase: Phase::Steady,
        window: 0,
        rtt: 0,
        then: 0,
        rounds: 0,
        bytes: 0,
        lost: 0,
    };
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
    burst: u64,
    bursts: Bursts,
    phase: Phase,
    before: Before,
    round: Round,
    /// Window of the round before, and the one in which what was acknowledged was sent.
    last_window: u64,
    measured: u64,
    /// Round trip of the path without a queue, 0 while not known, and when it was last seen.
    floor: u64,
    floor_at: Instant,
    /// What it was before a longer one was believed, until that has proved right; else 0.
    doubted: u64,
    doubted_until: Instant,
    /// Queueing aimed at, and what it may be at most because a queue has overflowed.
    aim: u64,
    cap: u64,
    /// Mean difference of the smallest round trips of rounds that follow each other.
    last_min: u64,
    noise: u64,
    /// Smallest round trip since the last cut.
    since_cut: u64,
    /// Rounds of growth without a queue that grows, and rounds for which fast growth explains what
    /// happens.
    calm: u32,
    rush: u32,
    /// The window was as large again as before a drain in the last round.
    refill: bool,
    /// Others fill the queue until then; how long that is believed; what was lost at last and when.
    rival_until: Instant,
    rival_ns: u64,
    /// Times in a row that a cut did little and a deeper one emptied the queue.
    refilled: u32,
    most: u64,
    lost_at: Instant,
    recovery_ns: u64,
    loss: LossGuard,
    crowd: Crowd,
    spared: Spared,
    /// A queue that overflows is not shorter, and one from which much is lost.
    least_overflow: u64,
    least_heavy: u64,
    marked_share: u64,
    /// When the window was cut last for marks.
    marked_at: Instant,
    before_timeout: u64,
    /// Whether the window was still doubling before the timeout.
    searched: bool,
    /// Window, cap and rivals as they were before the last overflow.
    undo: Option<(u64, u64, Instant)>,
}

impl Delay {
    /// The controller for a path.
    pub fn new(start: &Start) -> Self {
        let window = first_window(start);
        let mut delay = Self {
            window,
            packet: start.packet,
            max_window: start.max_window.max(MIN_WINDOW_PACKETS * start.packet),
            link_rate: start.link_rate,
            rate: start.link_rate,
            burst: u64::MAX,
            bursts: Bursts::ANY,
            phase: if start.window == 0 {
                Phase::SlowStart
            } else {
                Phase::Steady
            },
            before: Before::NONE,
            round: Round::NEW,
            last_window: window,
            measured: window,
            floor: start.min_rtt_ns,
            floor_at: Instant::ZERO,
            doubted: 0,
            doubted_until: Instant::ZERO,
            aim: 0,
            cap: u64::MAX,
            last_min: 0,
            noise: 0,
            since_cut: u64::MAX,
            calm: 0,
            rush: RUSH_ROUNDS,
            refill: false,
            rival_until: Instant::ZERO,
            rival_ns: 0,
            refilled: 0,
            most: 0,
            lost_at: Instant::ZERO,
            recovery_ns: 0,
            loss: LossGuard::new(guard::HEAVY),
            least_overflow: 0,
            least_heavy: 0,
            crowd: Crowd::default(),
            spared: Spared::default(),
            marked_share: SHARE_ONE / 2,
            marked_at: Instant::ZERO,
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
        let quarters = match self.phase {
            Phase::SlowStart => 8,
            _ if self.refill => 4,
            _ => 5,
        };
        let rate = self.window.saturating_mul(quarters * SECOND / 4) / srtt_ns;
        let rate = rate.max(self.packet);
        let rate = self.link_rate.map_or(rate, |link| rate.min(link));
        self.rate = Some(rate);
        self.burst = self.bursts.bytes(rate, self.cap);
    }

    /// Queueing aimed at: between the time of a packet at our rate and a part of the round trip. A
    /// flow with less aims at more, so that equal flows become equal. No less than the time of two
    /// pieces, where that is short: else a host that is the bottleneck itself gets too few packets
    /// at a time to work well.
    fn set_aim(&mut self, srtt_ns: u64) {
        let packet_ns = (self.packet.saturating_mul(srtt_ns) / self.window.max(1)).min(SECOND);
        self.least_overflow = packet_ns.min(srtt_ns / 16).max(4 * self.noise);
        self.least_heavy = (srtt_ns / 64).max(2 * self.noise);
        let part = SLACK_NS + self.floor.min(SECOND) / 4;
        let aim = 3 * (packet_ns * part).isqrt();
        let pieces_ns = (PIECES.saturating_mul(srtt_ns) / self.window.max(1)).min(MAX_PIECES_NS);
        let least = pieces_ns.max(2 * self.noise);
        self.aim = aim.max(least).min(self.cap).max(1);
    }

    fn set_window(&mut self, window: u64) {
        self.window = window.clamp(self.packet / LEAST_PART, self.max_window);
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

    /// It was no longer path, but a queue that others kept as long.
    fn reject_floor(&mut self, now: Instant, rtt: u64) {
        self.floor = core::mem::take(&mut self.doubted);
        self.meet_rival(now, rtt);
    }

    /// Cuts the window and asks what that does.
    fn cut(&mut self, window: u64, rtt: u64, phase: Phase) {
        self.before = Before {
            phase: self.phase,
            window: self.measured,
            rtt,
            ..Before::NONE
        };
        self.phase = phase;
        self.calm = 0;
        self.since_cut = u64::MAX;
        self.set_window(window);
    }

    /// What of a window with such a round trip fits without a queue, and a part of that aimed at.
    fn drained(&self, window: u64, rtt: u64) -> u64 {
        let fits = u128::from(window) * u128::from(self.floor + self.aim / 4);
        let fits = (fits / u128::from(rtt.max(1))) as u64;
        // Two packets keep a path busy that holds none.
        let two = MIN_WINDOW_PACKETS * self.packet;
        fits.max(if window > two { two } else { window / 2 })
    }

    fn grow(&mut self, now: Instant, rtt: u64) {
        // A part of a packet where the window is a few: all grow by as much, and become equal.
        let least = (self.window / 16).max(self.packet / 2);
        let least = least.min(self.packet).min(self.window / 2);
        let step = if self.has_rival(now) {
            self.calm = 0;
            self.cubic_step(now, rtt)
        } else if rtt <= self.since_cut.saturating_add(self.aim / 2) {
            self.calm = (self.calm + 1).min(MAX_CALM);
            let most = self.window / if self.calm > LONG_CALM { 4 } else { 8 };
            let step = (self.packet << (self.calm - 1)).min(most.max(least));
            let marks =
                self.marked_at != Instant::ZERO && now.since(self.marked_at) < MARKS_ROUNDS * rtt;
            if marks && self.window >= self.most {
                self.calm = 0;
                least / 2
            } else if self.window < self.most {
                // The last queue began there: half of the way, and slowly beyond it.
                let half = (self.most - self.window) / 2;
                if half <= step {
                    self.calm = 1;
                }
                step.min(half.max(least))
            } else if self.calm <= LONG_CALM {
                step.min(least.max(self.window / 32))
            } else {
                step
            }
        } else {
            self.calm = 0;
            least
        };
        self.set_window(self.window + step);
    }

    /// To marks. Those of the round trip after a cut were made before it showed.
    fn give_way(&mut self, now: Instant, srtt_ns: u64, queue: u64) {
        // Doubling sends in bursts, which are marked long before the path is full.
        let burst = self.phase == Phase::SlowStart && queue <= self.aim / 2;
        self.phase = Phase::Steady;
        self.calm = 0;
        if burst {
            return;
        }
        if self.marked_at != Instant::ZERO && now.since(self.marked_at) < 2 * srtt_ns {
            return;
        }
        (self.most, self.marked_at) = (self.window, now);
        if queue <= self.aim / 2 {
            self.bursts.marked(srtt_ns);
        }
        self.set_window(self.window - self.window * self.marked_share / (2 * SHARE_ONE));
    }

    /// Growth of a loss-based flow per round: as Reno, or as CUBIC (RFC 9438) on average where that
    /// is more.
    fn cubic_step(&self, now: Instant, rtt: u64) -> u64 {
        // Half as fast as Reno: of flows that leave paced fewer packets are lost than of one that
        // sends in bursts. More slowly where it is a few packets, which would be lost too often.
        let least = (self.packet * 9 / 17).min((self.window / 48).max(self.packet / 32));
        if self.recovery_ns == 0 {
            return least;
        }
        let step = u128::from(self.most * 3 / 10) * u128::from(rtt) / u128::from(self.recovery_ns);
        let beyond = now.since(self.lost_at) / self.recovery_ns;
        ((step as u64) << beyond.min(4))
            .min(self.window / 4)
            .max(least)
    }

    /// From now on the window comes back to what it is, and goes beyond it, as CUBIC's does.
    fn begin_epoch(&mut self, now: Instant) {
        (self.most, self.lost_at) = (self.window, now);
        // CUBIC comes back after the cube root of 3/4 of the window in packets, in seconds.
        self.recovery_ns = cube_root(self.window * 3 / 4 / self.packet) * MILLISECOND;
    }

    /// Others fill the queue: the window is that from before the question.
    fn compete(&mut self, now: Instant, rtt: u64) {
        self.meet_rival(now, rtt);
        self.set_window(self.before.window);
        if self.window > self.most {
            self.begin_epoch(now);
        }
    }

    /// Whether we had made room before what happened in this round, and nothing was lost since.
    fn has_made_room(&self) -> bool {
        let sent_since = match self.phase {
            Phase::Cut => self.before.rounds > 0,
            phase => phase == Phase::DeepCut,
        };
        sent_since && self.before.lost == 0
    }

    /// A queue that is as long as it can be has overflowed.
    fn overflow(&mut self, now: Instant, srtt_ns: u64, queue: u64) {
        if self.lost_at != Instant::ZERO && now.since(self.lost_at) < 3 * srtt_ns {
            return; // Of the same queue.
        }
        self.undo = Some((self.window, self.cap, self.rival_until));
        // Who aims at most of what a queue holds, if the round trip shows it, fills it alone.
        let shows = queue > srtt_ns / 16;
        let ours = shows && !self.has_rival(now) && self.aim > queue / 4 * 3;
        self.cap = (queue / 2).max(1);
        let again = self.lost_at != Instant::ZERO && now.since(self.lost_at) < self.recovery_ns;
        if self.has_made_room() {
            // And others have filled it.
            self.window = self.window.max(self.before.window);
            self.meet_rival(now, srtt_ns);
        }
        self.begin_epoch(now);
        if !ours && (self.rush == 0 || again) {
            // Alone we would not have come here, or not so soon: for the most part of the way back
            // the window is that of a loss-based flow, which grows by half of a packet each round
            // trip, or as CUBIC in its time.
            let rounds = self.window / self.packet;
            let back = self.recovery_ns.min(rounds * srtt_ns) / 4 * 3;
            let back = back.min(MAX_RIVAL_NS);
            self.rival_until = self.rival_until.max(now + back);
        }
        self.phase = Phase::Steady;
        self.calm = 0;
        self.since_cut = u64::MAX;
        // Beside others half of it is left, as Reno does; so it is where the window is a few
        // packets, as the next loss may be that of a rival's last one.
        let few = self.window < FEW_PACKETS * self.packet;
        let part = if few || self.has_rival(now) { 5 } else { 7 };
        self.set_window(self.window / 10 * part);
    }

    /// The answer of the path to a cut, two rounds later.
    fn judge(&mut self, now: Instant, rtt: u64, mean: u64) {
        let before = self.before;
        let tolerance = before.rtt / 32 + self.noise;
        match self.phase {
            Phase::Drain => {
                self.phase = Phase::Steady;
                self.set_window(before.window);
                (self.rush, self.refill) = (RUSH_ROUNDS, true);
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
                let room = before.rtt.saturating_sub(self.floor);
                if fell * 4 >= expected * 3 || rtt <= self.floor + self.aim / 2 {
                    self.phase = Phase::Steady;
                    self.rival_ns /= 2;
                    self.refilled = 0;
                } else if before.lost == 0 && mean.saturating_sub(self.floor) >= 2 * room {
                    // A queue that doubles meanwhile is not ours.
                    self.phase = Phase::Steady;
                    self.compete(now, rtt);
                } else {
                    self.phase = Phase::DeepCut;
                    self.before.then = mean;
                    self.before.rounds = 0;
                    self.set_window(self.window / 2);
                }
            }
            Phase::DeepCut => {
                self.phase = Phase::Steady;
                let none = rtt <= self.floor + self.aim / 2;
                self.refilled += u32::from(none);
                if none && self.refilled >= REFILLED {
                    self.compete(now, rtt);
                } else if none {
                    // There is no queue but ours.
                    self.set_window(self.drained(before.window, before.rtt));
                    self.floor_at = now;
                } else if before.lost * 32 <= before.bytes
                    && mean <= before.then + tolerance
                    && mean + tolerance >= before.then
                {
                    self.set_window(before.window);
                    // A queue so long has overflowed here: it is one again.
                    let fits = self.cap < u64::MAX / 4 && rtt - self.floor <= 2 * self.cap;
                    if fits {
                        self.compete(now, rtt);
                    } else if self.doubted == 0 {
                        self.doubted = self.floor;
                        self.doubted_until = now + DOUBT_ROUNDS * rtt;
                        (self.floor, self.floor_at) = (rtt, now);
                        // What the shorter path held says nothing of this one. A search goes on.
                        (self.phase, self.most) = (before.phase, 0);
                    } else {
                        self.reject_floor(now, rtt);
                    }
                } else {
                    self.compete(now, rtt);
                }
            }
            Phase::SlowStart | Phase::Steady => {}
        }
        self.since_cut = u64::MAX;
    }

    fn end_round(&mut self, acked: &Acked) {
        let round = core::mem::replace(&mut self.round, Round::NEW);
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
        // A queue that overflowed once may have been another's; it is asked again some day.
        self.cap = grown(self.cap);
        self.bursts.end_round();
        self.set_aim(acked.srtt_ns);
        self.since_cut = self.since_cut.min(rtt);
        self.refill = false;
        if now >= self.doubted_until {
            self.doubted = 0;
        }
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
        let longest = round.max.saturating_sub(self.floor);
        let overflows = self.overflows(now, &round, queue, longest);
        if overflows {
            self.loss.forget();
        }
        // A burst of growth loses as much where nobody else is, and for some rounds.
        let unexplained = self.rush == 0 && !self.loss.is_trying();
        let heavy = self.loss.judge(self.packet);
        if round.marked > 0 {
            self.give_way(now, acked.srtt_ns, queue);
        } else if overflows {
            self.overflow(now, acked.srtt_ns, longest);
        } else if let Some(lost) = heavy {
            self.phase = Phase::Steady;
            self.calm = 0;
            self.set_window(self.window - self.window * lost / (2 * SHARE_ONE));
            if self.doubted != 0 && unexplained {
                self.reject_floor(now, rtt);
            }
        } else {
            self.steer(now, &round);
        }
        self.pace(acked.srtt_ns);
    }

    /// Whether the queue explains what was lost in the round, or has spared us for long enough.
    fn overflows(&mut self, now: Instant, round: &Round, queue: u64, longest: u64) -> bool {
        let heavily = round.lost * HEAVILY > round.bytes;
        let stands = self.has_rival(now) && queue > self.aim || heavily;
        let least = if heavily {
            self.least_heavy
        } else {
            self.least_overflow
        };
        let queues = Queues {
            shortest: queue,
            longest,
            stands,
            least,
        };
        if self.crowd.end_round(&queues, self.window, self.packet) {
            self.spared.lost(longest);
            return true;
        }
        if !self.has_rival(now) || self.window < FEW_PACKETS * self.packet {
            self.spared.forget();
        }
        self.spared.end_round(queue, longest)
    }

    /// Without loss and marks.
    fn steer(&mut self, now: Instant, round: &Round) {
        let (rtt, mean, full) = (round.min, round.sum / round.samples, round.full);
        let queue = rtt - self.floor;
        match self.phase {
            Phase::SlowStart => {
                if queue > self.aim / 2 {
                    let window = self.drained(self.measured, rtt);
                    self.cut(window, mean, Phase::Cut);
                }
            }
            Phase::Steady if !full => {}
            Phase::Steady if self.has_rival(now) => self.grow(now, rtt),
            Phase::Steady if queue > self.aim => {
                let window = self.drained(self.measured, rtt).max(self.window / 2);
                self.most = window;
                self.cut(window, mean, Phase::Cut);
            }
            Phase::Steady if self.is_drain_due(now, rtt) => {
                self.floor_at = now;
                self.cut(self.window / 2, mean, Phase::Drain);
            }
            Phase::Steady if self.loss.is_trying() => {}
            Phase::Steady => self.grow(now, rtt),
            Phase::Cut | Phase::DeepCut | Phase::Drain => {
                self.before.rounds += 1;
                self.before.bytes += round.bytes;
                self.before.lost += round.lost;
                // A few packets take a round more to leave the queue.
                let few = self.window < FEW_PACKETS * self.packet;
                if self.before.rounds >= 2 + u32::from(few) {
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
                self.doubted = if self.doubted < rtt { self.doubted } else { 0 };
                self.floor = rtt;
                self.floor_at = acked.now;
                self.set_aim(acked.srtt_ns);
            }
            self.round.min = self.round.min.min(rtt);
            self.round.max = self.round.max.max(rtt);
            self.round.sum += rtt;
            self.round.samples += 1;
            self.crowd.came(acked.bytes, rtt - self.floor);
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
        self.crowd.lost(bytes);
        self.round.lost += bytes;
    }

    fn on_timeout(&mut self, _: Instant) {
        if self.before_timeout == 0 {
            self.before_timeout = self.window;
            self.searched = self.phase == Phase::SlowStart;
        }
        self.window = self.window.min(MIN_WINDOW_PACKETS * self.packet);
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
        (self.last_window, self.measured) = (self.window, self.window);
        self.round = Round::NEW;
        self.calm = 0;
    }

    fn on_spurious_timeout(&mut self) {
        self.window = self.window.max(self.before_timeout);
        self.before_timeout = 0;
        if !self.searched {
            self.phase = Phase::Steady;
        }
    }

    fn on_spurious_loss(&mut self) {
        self.crowd.forget();
        self.round.lost = 0;
        if let Some((window, cap, rival_until)) = self.undo.take() {
            (self.cap, self.rival_until) = (cap, rival_until);
            self.set_window(self.window.max(window));
        }
    }

    fn window(&self) -> u64 {
        self.window.max(MIN_WINDOW_PACKETS * self.packet)
    }

    fn rate(&self) -> Option<u64> {
        self.rate
    }

    fn burst(&self) -> u64 {
        self.burst
    }

    fn min_rtt_ns(&self) -> u64 {
        self.floor
    }
}
