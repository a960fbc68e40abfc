//! How much may be under way to a peer that neither marks nor says how fast it is: a congestion
//! window for each connection, of packets that wait for their acknowledgement, and of READ
//! responses that were asked for.
//!
//! It begins small and grows by what is acknowledged (slow start, RFC 5681), from a threshold on by
//! a little for each window. Losses cut it, silence most. A queue that nobody reports shows as
//! delay: a *round*, from a packet that asks for an answer to that answer, that takes a part of the
//! ACK timeout longer than the shortest cuts it to what the peer does in that time. So what a
//! connection has under way is done long before its timer runs out, and where many share a peer,
//! each sees the queue of all and has its share of it.

use super::config::Config;
use super::segment;
use super::timers::ack_timeout_ns;
use crate::time::Instant;
use trunkline_wire::Psn;

/// What is always allowed.
const LEAST: u32 = 1;
/// The part of the ACK timeout that a queue may take.
const QUEUE_PART: u64 = 8;
/// Parts of the ACK timeout that a path without a queue is granted at most: a shortest round which
/// was a queue already does not hide the queue.
const PATH_PARTS: u64 = 4;
/// After so many long rounds in a row, each of which cut the window, the path is taken to have
/// become longer: else a connection had a few packets for each round trip for ever.
const LONG_ROUNDS: u32 = 32;
/// Parts that such a path is granted at most: it may be the queue of others.
const LATER_PARTS: u64 = 2;
/// Beyond the threshold a window grows by this part for each window that is acknowledged, and by
/// one packet at least: a queue shows as delay before it overflows, and a loss on a path that has
/// none is made up for soon.
const GROWTH: u32 = 16;
/// ACK timeout in whose place 0 stands, which is for ever: the usual one, 67 ms.
const USUAL_TIMEOUT: u8 = 14;

/// A congestion window. See the [module](self).
#[derive(Clone, Debug)]
pub(super) struct Window {
    packets: u32,
    /// Where slow start ends.
    threshold: u32,
    /// Packets acknowledged beyond the threshold towards the next one to grow by.
    acked: u32,
    /// The oldest PSN that is not acknowledged.
    una: Psn,
    /// Behind all that had been sent when the window was cut last, until that is acknowledged: more
    /// losses there say nothing new.
    cut: Option<Psn>,
    /// The packet whose answer ends the round, and when it left.
    round: Option<(Psn, Instant)>,
    /// The shortest round.
    least_ns: u64,
    /// Rounds in a row that took a queue's part longer.
    long_rounds: u32,
    /// When something was acknowledged last.
    heard: Instant,
}

const _: () = assert!(size_of::<Window>() <= 72);

impl Window {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            packets: config.initial_window.clamp(LEAST, most(config)),
            threshold: most(config),
            acked: 0,
            una: config.sq_psn,
            cut: None,
            round: None,
            least_ns: u64::MAX,
            long_rounds: 0,
            heard: Instant::ZERO,
        }
    }

    /// Packets that may be under way, at least 1.
    pub(super) const fn packets(&self) -> u32 {
        self.packets
    }

    /// A packet that asks for an answer leaves for the first time; `last` is the last PSN that it
    /// takes.
    pub(super) fn asked(&mut self, now: Instant, last: Psn) {
        self.round = self.round.or(Some((last, now)));
    }

    /// Nothing is under way. After a rest as long as the ACK timeout the window begins small again,
    /// as what the peer does meanwhile is not known (RFC 2861).
    pub(super) fn rests(&mut self, config: &Config, now: Instant) {
        let initial = config.initial_window.max(LEAST);
        if self.packets > initial && now.since(self.heard) > timeout_ns(config) {
            self.threshold = self.threshold.max(self.packets - self.packets / 4);
            self.packets = initial;
        }
    }

    /// All before `una` is acknowledged, and all before `next` was sent.
    pub(super) fn acknowledged(&mut self, config: &Config, now: Instant, una: Psn, next: Psn) {
        let under_way = segment::distance(self.una, next);
        let acked = segment::distance(self.una, una);
        (self.una, self.heard) = (una, now);
        self.cut = self.cut.filter(|end| end.offset_from(una) > 0);
        // What is not used says nothing of what would fit.
        if under_way >= self.packets / 2 {
            self.grow(config, acked);
        }
        if let Some((last, start)) = self.round
            && una.offset_from(last) > 0
        {
            self.round = None;
            self.judge(config, now.since(start));
        }
    }

    /// An acknowledgement of many packets lets no more leave at once than the window again.
    fn grow(&mut self, config: &Config, acked: u32) {
        let acked = acked.min(self.packets);
        if self.packets < self.threshold {
            self.packets = self.packets.saturating_add(acked).min(self.threshold);
            return;
        }
        self.acked = self.acked.saturating_add(acked);
        if self.acked >= self.packets {
            self.acked -= self.packets;
            let step = (self.packets / GROWTH).max(1);
            self.packets = self.packets.saturating_add(step).min(most(config));
        }
    }

    /// Narrows the window by what a round took that is over, by half at most: what delayed it may
    /// have been no queue.
    fn judge(&mut self, config: &Config, took_ns: u64) {
        self.least_ns = self.least_ns.min(took_ns);
        let queue_ns = timeout_ns(config) / QUEUE_PART;
        let bound_ns = queue_ns + self.least_ns.min(PATH_PARTS * queue_ns);
        if took_ns <= bound_ns {
            self.long_rounds = 0;
            return;
        }
        self.long_rounds += 1;
        if self.long_rounds == LONG_ROUNDS {
            (self.long_rounds, self.least_ns) = (0, took_ns.min(LATER_PARTS * queue_ns));
        }
        let fitting = u128::from(self.packets) * u128::from(bound_ns) / u128::from(took_ns);
        self.cut_to((fitting as u32).max(self.packets / 2));
    }

    /// A packet was lost; all before `next` was sent.
    pub(super) fn lost(&mut self, next: Psn) {
        if self.cut.is_none() {
            self.cut = Some(next);
            self.cut_to(self.packets - self.packets / 4);
        }
    }

    /// The peer was silent until the ACK timer ran out; all before `next` was sent. There is no
    /// slow start from here: a peer that was only slow answers all that it has, one after the
    /// other, and that would fill the window again. The round trips that growth takes instead are
    /// few beside the time that the timer took.
    pub(super) fn timed_out(&mut self, next: Psn) {
        self.cut = Some(next);
        self.cut_to(LEAST);
    }

    /// What is sent again has an answer that tells no time: it may be that to the first one.
    pub(super) const fn repeats(&mut self) {
        self.round = None;
    }

    fn cut_to(&mut self, packets: u32) {
        self.packets = packets.max(LEAST);
        (self.threshold, self.acked) = (self.packets, 0);
    }
}

const fn most(config: &Config) -> u32 {
    if config.window < LEAST {
        LEAST
    } else {
        config.window
    }
}

fn timeout_ns(config: &Config) -> u64 {
    let exponent = match config.timeout {
        0 => USUAL_TIMEOUT,
        some => some,
    };
    ack_timeout_ns(exponent).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::{MICROSECOND, MILLISECOND};
    use core::net::{IpAddr, Ipv4Addr};
    use trunkline_wire::{IpFields, Path, Qpn};

    const RTT_NS: u64 = 20 * MICROSECOND;
    /// An eighth of the timeout.
    const QUEUE_NS: u64 = 8_388_608;

    fn config() -> Config {
        let host = |number| IpAddr::V4(Ipv4Addr::new(192, 0, 2, number));
        let path = Path {
            src: host(1),
            dst: host(2),
            src_port: 0xc000,
            traffic_class: 0,
            ip: IpFields::DEFAULT,
        };
        Config::new(Qpn::from_wire(1), Qpn::from_wire(2), path)
    }

    /// A window and what goes through it, a window at a time.
    struct Bench {
        window: Window,
        config: Config,
        now: Instant,
        next: Psn,
    }

    impl Bench {
        fn new(config: Config) -> Self {
            Self {
                window: Window::new(&config),
                config,
                now: Instant::from_nanos(MILLISECOND),
                next: config.sq_psn,
            }
        }

        fn send(&mut self, packets: u32) {
            self.window.rests(&self.config, self.now);
            self.next = self.next.advance(packets);
            self.window.asked(self.now, self.next.advance(PSN_BEFORE));
        }

        fn answer(&mut self, after_ns: u64) {
            self.now = self.now + after_ns;
            self.window
                .acknowledged(&self.config, self.now, self.next, self.next);
        }

        /// The window is sent and answered; gives what it is then.
        fn round(&mut self, took_ns: u64) -> u32 {
            self.send(self.window.packets());
            self.answer(took_ns);
            self.window.packets()
        }

        fn full(config: Config) -> Self {
            let mut bench = Self::new(config);
            while bench.round(RTT_NS) < config.window {}
            bench
        }
    }

    /// As many steps ahead as lead to the PSN before.
    const PSN_BEFORE: u32 = (1 << 24) - 1;

    #[test]
    fn a_window_begins_small_and_doubles_up_to_what_was_set() {
        let mut bench = Bench::new(config());
        assert_eq!(bench.window.packets(), 10);
        let rounds = [0; 6].map(|_| bench.round(RTT_NS));
        assert_eq!(rounds, [20, 40, 80, 160, 256, 256]);
        let narrow = Config {
            window: 0,
            ..config()
        };
        assert_eq!(Window::new(&narrow).packets(), 1);
        let wide = Config {
            window: u32::MAX,
            initial_window: u32::MAX,
            ..config()
        };
        assert_eq!(Bench::new(wide).round(RTT_NS), u32::MAX);
    }

    #[test]
    fn what_is_not_used_does_not_grow() {
        let mut bench = Bench::new(config());
        for _ in 0..100 {
            bench.send(4);
            bench.answer(RTT_NS);
        }
        assert_eq!(bench.window.packets(), 10);
    }

    #[test]
    fn a_queue_as_long_as_it_may_be_leaves_the_window_and_a_longer_one_fits_it() {
        let mut bench = Bench::full(config());
        assert_eq!(bench.round(QUEUE_NS + RTT_NS), 256);
        assert_eq!(bench.round((QUEUE_NS + RTT_NS) * 4 / 3), 192);
        // It may have been something else: not all at once.
        assert_eq!(bench.round(100 * QUEUE_NS), 102);
        for _ in 0..10 {
            bench.round(100 * QUEUE_NS);
        }
        assert_eq!(bench.window.packets(), 1);
        assert_eq!(bench.round(RTT_NS), 2, "and it is found out again");
    }

    #[test]
    fn a_path_may_take_half_of_the_timeout_and_a_queue_does_not_pass_for_a_path() {
        let mut long = Bench::new(config());
        while long.round(4 * QUEUE_NS) < 256 {}
        assert_eq!(long.round(5 * QUEUE_NS), 256);
        let mut late = Bench::new(config());
        late.round(8 * QUEUE_NS);
        assert!(late.round(8 * QUEUE_NS) < 10);
    }

    #[test]
    fn a_path_that_became_longer_has_the_whole_window_again() {
        for took_ns in [5 * QUEUE_NS / 4, 2 * QUEUE_NS, 3 * QUEUE_NS] {
            let mut bench = Bench::full(config());
            let rounds = (1..200).find(|_| bench.round(took_ns) == 256);
            assert!(rounds.is_some(), "{took_ns}: {}", bench.window.packets());
            // And what it is when it is short again counts from then on.
            bench.round(RTT_NS);
            assert!(bench.round(took_ns) < 256);
        }
    }

    #[test]
    fn a_loss_takes_a_quarter_once_for_all_that_was_under_way() {
        let mut bench = Bench::full(config());
        bench.send(256);
        bench.window.lost(bench.next);
        bench.window.lost(bench.next);
        assert_eq!(bench.window.packets(), 192);
        bench.window.repeats();
        bench.answer(100 * QUEUE_NS);
        let more = bench.window.packets();
        assert!(
            (193..210).contains(&more),
            "{more}: its answer tells no time"
        );
        bench.window.lost(bench.next);
        assert_eq!(bench.window.packets(), more - more / 4);
        let rounds = (1..).find(|_| bench.round(RTT_NS) == 256);
        assert!(rounds.is_some_and(|rounds| rounds < 16), "{rounds:?}");
    }

    #[test]
    fn after_silence_one_packet_leaves_and_answers_that_were_late_fill_no_window() {
        let mut bench = Bench::full(config());
        bench.send(256);
        bench.window.timed_out(bench.next);
        assert_eq!(bench.window.packets(), 1);
        for packet in (0..256).rev() {
            let una = bench.next.advance((1 << 24) - packet);
            bench
                .window
                .acknowledged(&bench.config, bench.now, una, bench.next);
        }
        let packets = bench.window.packets();
        assert!((10..30).contains(&packets), "{packets}");
        let rounds = (1..).find(|_| bench.round(RTT_NS) == 256);
        assert!(rounds.is_some_and(|rounds| rounds < 64), "{rounds:?}");
    }

    #[test]
    fn one_answer_to_many_packets_counts_for_one_window() {
        let mut bench = Bench::full(config());
        bench.send(256);
        bench.window.timed_out(bench.next);
        bench.answer(RTT_NS);
        assert_eq!(bench.window.packets(), 2);
        bench.window.repeats();
        for packets in [2, 3] {
            assert_eq!(bench.window.packets(), packets);
            for _ in 0..packets {
                bench.send(1);
                bench.answer(RTT_NS);
            }
        }
    }

    #[test]
    fn long_rounds_with_short_ones_between_them_are_no_longer_path() {
        let mut bench = Bench::full(config());
        for _ in 0..4 * LONG_ROUNDS {
            bench.round(3 * QUEUE_NS);
            bench.round(QUEUE_NS);
        }
        let packets = bench.window.packets();
        assert!(bench.round(3 * QUEUE_NS / 2) < packets);
    }

    #[test]
    fn a_rest_widens_no_window_and_ends_no_slow_start() {
        let mut bench = Bench::full(config());
        bench.send(256);
        bench.window.timed_out(bench.next);
        bench.now = bench.now + 9 * QUEUE_NS;
        bench.window.rests(&bench.config, bench.now);
        assert_eq!(bench.window.packets(), 1);
        let mut begun = Bench::new(config());
        assert_eq!([0; 2].map(|_| begun.round(RTT_NS)), [20, 40]);
        begun.now = begun.now + 9 * QUEUE_NS;
        let rounds = [0; 6].map(|_| begun.round(RTT_NS));
        assert_eq!(rounds, [20, 40, 80, 160, 256, 256]);
    }

    #[test]
    fn after_a_rest_the_window_begins_small_and_is_soon_what_it_was() {
        let mut bench = Bench::full(config());
        bench.now = bench.now + 8 * QUEUE_NS;
        bench.send(1);
        assert_eq!(bench.window.packets(), 256, "it was no rest");
        bench.answer(RTT_NS);
        bench.now = bench.now + 8 * QUEUE_NS + 1;
        bench.send(1);
        assert_eq!(bench.window.packets(), 10);
        bench.answer(RTT_NS);
        let rounds = (1..).find(|_| bench.round(RTT_NS) == 256);
        assert_eq!(rounds, Some(5));
    }

    #[test]
    fn a_timeout_of_zero_has_the_bound_of_the_usual_one() {
        let endless = Config {
            timeout: 0,
            ..config()
        };
        let mut bench = Bench::full(endless);
        assert_eq!(bench.round(QUEUE_NS + RTT_NS), 256);
        assert!(bench.round(2 * QUEUE_NS) < 256);
    }
}
