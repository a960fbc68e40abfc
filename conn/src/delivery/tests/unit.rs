//! One behaviour each.

mod waiting;

use alloc::vec::Vec;

use super::super::{AckInfo, Config, Delivery, Event, Lost, Policy, Pool, Received};
use crate::control::CongestionControl;
use crate::time::{Instant, MICROSECOND, MILLISECOND, SECOND};

struct Bench {
    connection: Delivery<u64>,
    pool: Pool<u64>,
    now: Instant,
    acked: Vec<u64>,
}

impl Bench {
    fn new(config: Config) -> Self {
        Self::with(config, Policy::default())
    }

    fn with(config: Config, policy: Policy) -> Self {
        let now = Instant::from_nanos(SECOND);
        let connection = Delivery::new(&config, now);
        Self {
            connection,
            pool: Pool::new(policy),
            now,
            acked: Vec::new(),
        }
    }

    fn plain() -> Self {
        Self::new(Config {
            first_tx: 100,
            first_rx: 500,
            ..Config::default()
        })
    }

    /// One whose numbers begin at 100, and whose peer is dead after so long.
    fn dying_after(dead_after_ns: u64) -> Self {
        let config = Config {
            first_tx: 100,
            ..Config::default()
        };
        let policy = Policy {
            dead_after_ns,
            ..Policy::default()
        };
        Self::with(config, policy)
    }

    /// Sends `count` packets whose items are their numbers; the stamp of the last one.
    fn send(&mut self, count: u32) -> super::super::Stamp {
        let mut last = None;
        for _ in 0..count {
            assert!(self.connection.ready(self.now, &mut self.pool) > 0);
            let number = 100 + self.connection.stats().counters.sent;
            last = Some(self.connection.record(self.now, number, 1000));
        }
        last.expect("at least one")
    }

    fn ack(&mut self, cumulative: u32, sack: &[u64], echo: u32) -> super::super::AckSummary {
        let ack = AckInfo {
            cumulative,
            sack,
            echo,
            ce: None,
            delay_ns: 0,
            waited_ns: 0,
        };
        let acked = &mut self.acked;
        self.connection
            .handle_ack(self.now, &ack, &mut |item| acked.push(item))
            .expect("only what was sent")
    }

    fn wait(&mut self, ns: u64) {
        self.now = self.now + ns;
        self.connection.handle_timeout(self.now, &self.pool);
    }

    fn again_one(&mut self) -> Option<(u64, super::super::Stamp)> {
        let Lost { item, bytes, .. } = self.connection.peek_retransmit(self.now)?;
        assert_eq!(bytes, 1000);
        Some((item, self.connection.retransmit(self.now, bytes)))
    }

    fn again(&mut self) -> Vec<u64> {
        core::iter::from_fn(|| self.again_one())
            .map(|(item, stamp)| {
                assert_eq!(item, stamp.number);
                item
            })
            .collect()
    }

    fn take(&mut self, number: u64) {
        let packet = Received {
            timestamp: 7_000,
            ..Received::default()
        };
        self.connection
            .accept(self.now, number, &packet, &mut self.pool);
    }
}

#[test]
fn three_later_packets_prove_a_loss_and_only_the_lost_one_is_sent_again() {
    let mut bench = Bench::plain();
    let echo = bench.send(8).timestamp;
    bench.wait(10 * MICROSECOND);
    assert_eq!(
        bench.ack(102, &[0b11], echo).lost,
        0,
        "two could be reordering"
    );
    assert_eq!(bench.ack(102, &[0b111], echo).lost, 1);
    assert_eq!(bench.again(), [102]);
    assert_eq!(bench.again(), []);
    assert_eq!(bench.acked, [100, 101, 103, 104, 105]);
    assert_eq!(
        bench.connection.unacked().collect::<Vec<_>>(),
        [102, 106, 107]
    );
    bench.wait(10 * MICROSECOND);
    let _ = bench.ack(108, &[], 0);
    assert_eq!(bench.acked, [100, 101, 103, 104, 105, 102, 106, 107]);
    assert_eq!(bench.connection.in_flight(), 0);
}

#[test]
fn a_hole_with_little_after_it_is_found_lost_by_time() {
    let mut bench = Bench::plain();
    let echo = bench.send(3).timestamp;
    bench.wait(10 * MICROSECOND);
    assert_eq!(bench.ack(100, &[0b10], echo).lost, 0);
    let at = bench
        .connection
        .poll_timeout(&bench.pool)
        .expect("a loss is pending");
    let wait = at.since(bench.now);
    assert!(
        (2 * MICROSECOND..4 * MICROSECOND).contains(&wait),
        "{wait} ns: a quarter round trip"
    );
    bench.wait(wait);
    assert_eq!(bench.again(), [100, 101]);
}

#[test]
fn reordering_widens_the_tolerance_and_is_not_taken_for_loss_again() {
    let mut bench = Bench::plain();
    let echo = bench.send(4).timestamp;
    bench.wait(10 * MICROSECOND);
    assert_eq!(bench.ack(100, &[0b111], echo).lost, 1);
    assert_eq!(bench.again(), [100]);
    // The first one arrives 6 us late: the echo is older than the second transmission.
    bench.wait(6 * MICROSECOND);
    let _ = bench.ack(104, &[], echo);
    let stats = bench.connection.stats();
    assert_eq!(stats.counters.spurious, 1);
    assert!(stats.reordering_ns >= 6 * MICROSECOND, "{stats:?}");
    let echo = bench.send(4).timestamp;
    bench.wait(10 * MICROSECOND);
    assert_eq!(bench.ack(104, &[0b111], echo).lost, 0);
    bench.wait(5 * MICROSECOND);
    assert_eq!(bench.again(), []);
    let _ = bench.ack(108, &[], echo);
    assert_eq!(bench.connection.in_flight(), 0);
}

#[test]
fn a_lost_tail_is_probed_and_the_answer_finds_the_rest() {
    let mut bench = Bench::plain();
    let echo = bench.send(1).timestamp;
    bench.wait(10 * MICROSECOND);
    let _ = bench.ack(101, &[], echo);
    bench.send(10);
    let at = bench.connection.poll_timeout(&bench.pool).expect("a probe");
    assert!(at.since(bench.now) <= 100 * MICROSECOND);
    bench.wait(at.since(bench.now));
    let (item, stamp) = bench.again_one().expect("the probe");
    assert_eq!((item, stamp.attempt, stamp.ack_req), (110, 1, true));
    assert_eq!(bench.again(), []);
    bench.wait(10 * MICROSECOND);
    assert_eq!(bench.ack(101, &[1 << 8], stamp.timestamp).lost, 9);
    assert_eq!(bench.again(), (101..110).collect::<Vec<_>>());
}

#[test]
fn probes_back_off_and_end_in_death() {
    let mut bench = Bench::dying_after(100 * MILLISECOND);
    bench.send(5);
    let (start, mut probes, mut gap) = (bench.now, 0, 0);
    loop {
        let at = bench
            .connection
            .poll_timeout(&bench.pool)
            .expect("death at the latest");
        let death = bench.now.since(start) + at.since(bench.now) == 100 * MILLISECOND;
        assert!(death || at.since(bench.now) >= gap, "no faster than before");
        gap = at.since(bench.now);
        bench.wait(gap);
        probes += bench.again().len();
        match bench.connection.poll_event() {
            None => assert!(bench.now.since(start) < 100 * MILLISECOND),
            Some(event) => break assert_eq!(event, Event::Dead),
        }
    }
    assert_eq!(bench.now.since(start), 100 * MILLISECOND);
    assert!((5..20).contains(&probes), "{probes}");
    assert!(bench.connection.is_dead());
    assert_eq!(bench.connection.ready(bench.now, &mut bench.pool), 0);
    assert_eq!(bench.connection.poll_timeout(&bench.pool), None);
    assert_eq!(
        bench.connection.unacked().collect::<Vec<_>>(),
        [100, 101, 102, 103, 104]
    );
    assert_eq!(
        bench.ack(105, &[], 0).packets,
        0,
        "what is replayed elsewhere stays unacknowledged"
    );
    bench.connection.close(&mut bench.pool);
    assert_eq!((bench.pool.taken(), bench.pool.free()), (0, 0));
}

#[test]
fn acknowledgements_wait_for_company_but_not_for_long() {
    let mut bench = Bench::plain();
    for number in 500..531 {
        bench.take(number);
        assert_eq!(bench.connection.poll_ack(bench.now), None);
    }
    let at = bench
        .connection
        .poll_timeout(&bench.pool)
        .expect("a delayed acknowledgement");
    assert_eq!(at.since(bench.now), 25 * MICROSECOND);
    bench.take(531);
    let ack = bench
        .connection
        .poll_ack(bench.now)
        .expect("the thirty-second packet");
    assert_eq!(
        (ack.cumulative, ack.sack, ack.echo, ack.delay_ns),
        (532, &[][..], 7_000, 0)
    );
    assert_eq!(bench.connection.poll_ack(bench.now), None);
    bench.take(532);
    bench.wait(25 * MICROSECOND);
    let ack = bench.connection.poll_ack(bench.now).expect("time is up");
    assert_eq!((ack.cumulative, ack.delay_ns), (533, 25_000));
}

#[test]
fn a_hole_is_reported_at_once_and_so_is_its_end() {
    let mut bench = Bench::plain();
    bench.take(500);
    bench.take(502);
    let ack = bench.connection.poll_ack(bench.now).expect("a hole");
    assert_eq!((ack.cumulative, ack.sack), (501, &[0b1][..]));
    bench.take(503);
    bench.take(570);
    let ack = bench.connection.poll_ack(bench.now).expect("another hole");
    assert_eq!(
        (ack.cumulative, ack.sack),
        (501, &[0b11, 1 << 20 | 1 << 48][..])
    );
    assert!(bench.connection.try_idle(&mut bench.pool).is_none());
    bench.take(501);
    let ack = bench.connection.poll_ack(bench.now).expect("one hole less");
    assert_eq!((ack.cumulative, ack.sack), (504, &[1 << 17 | 1 << 48][..]));
}

#[test]
fn data_in_the_other_direction_carries_the_acknowledgement_unless_there_are_holes() {
    let mut bench = Bench::plain();
    bench.take(500);
    bench.wait(16 * 100);
    let stamp = bench.send(1);
    bench.connection.ack_piggybacked();
    assert_eq!((stamp.ack, stamp.echo), (501, 7_100), "held for 100 ticks");
    assert_eq!(bench.send(1).echo, 0, "an echo is told once");
    bench.wait(MILLISECOND);
    assert_eq!(bench.connection.poll_ack(bench.now), None);
    bench.take(502);
    assert_eq!(bench.send(1).ack, 501);
    bench.connection.ack_piggybacked();
    assert!(
        bench.connection.poll_ack(bench.now).is_some(),
        "the bitmap is still to be told"
    );
}

#[test]
fn a_number_without_its_bitmap_is_not_told_while_there_are_holes() {
    let mut bench = Bench::plain();
    for number in [500, 502, 504] {
        bench.take(number);
        let _ = bench.connection.poll_ack(bench.now);
    }
    bench.take(501);
    assert_eq!(
        bench.send(1).ack,
        501,
        "503 with no word of 504 would look like a loss of 504"
    );
    let ack = bench.connection.poll_ack(bench.now).expect("a hole less");
    assert_eq!((ack.cumulative, ack.sack), (503, &[0b1][..]));
    assert_eq!(bench.send(1).ack, 503);
    bench.take(503);
    assert_eq!(bench.send(1).ack, 505);
}

#[test]
fn marks_are_counted_and_a_change_is_told_at_once() {
    let mut bench = Bench::plain();
    let packet = Received {
        ce: true,
        ..Received::default()
    };
    bench
        .connection
        .accept(bench.now, 500, &packet, &mut bench.pool);
    bench.connection.ack_piggybacked();
    assert_eq!(
        bench.connection.poll_ack(bench.now).map(|ack| ack.ce),
        Some(1)
    );
    bench
        .connection
        .accept(bench.now, 501, &packet, &mut bench.pool);
    assert_eq!(bench.connection.poll_ack(bench.now), None);
    bench
        .connection
        .accept(bench.now, 502, &Received::default(), &mut bench.pool);
    assert_eq!(
        bench.connection.poll_ack(bench.now).map(|ack| ack.ce),
        Some(2)
    );
}

#[test]
fn an_idle_connection_gives_its_window_back_and_remembers_the_path() {
    let mut bench = Bench::plain();
    let echo = bench.send(4).timestamp;
    assert!(bench.connection.try_idle(&mut bench.pool).is_none());
    bench.wait(20 * MICROSECOND);
    let _ = bench.ack(104, &[], echo);
    let before = bench.connection.stats();
    let counters = bench
        .connection
        .try_idle(&mut bench.pool)
        .expect("nothing is in flight");
    assert_eq!((counters.sent, counters.acked), (4, 4));
    assert_eq!((bench.pool.taken(), bench.pool.free()), (0, 1));
    let idle = bench.connection.stats();
    let about = |now: u64, before: u64| before.abs_diff(now) * 1000 < before;
    assert!(about(idle.rtt_ns, before.rtt_ns));
    assert!(about(idle.window_bytes, before.window_bytes));
    assert_eq!(
        bench.ack(90, &[], 0).packets,
        0,
        "an old acknowledgement does not wake it"
    );
    assert!(bench.connection.is_idle());
    assert!(bench.connection.ready(bench.now, &mut bench.pool) > 0);
    assert_eq!(bench.connection.record(bench.now, 104, 1000).number, 104);
    assert_eq!(bench.pool.free(), 0);
    let active = bench.connection.stats().window_bytes;
    assert_eq!(active, idle.window_bytes, "what it remembers counts");
}

#[test]
fn silence_asks_for_a_ping_again_and_again() {
    let mut bench = Bench::plain();
    for _ in 0..3 {
        let at = bench
            .connection
            .poll_timeout(&bench.pool)
            .expect("keep-alive");
        assert_eq!(at.since(bench.now), 10 * SECOND);
        assert_eq!(bench.connection.poll_event(), None);
        bench.wait(10 * SECOND);
        assert_eq!(bench.connection.poll_event(), Some(Event::KeepAlive));
        assert_eq!(bench.connection.poll_event(), None);
    }
    bench.wait(5 * SECOND);
    bench.take(500);
    let _ = bench.connection.poll_ack(bench.now + MILLISECOND);
    let at = bench
        .connection
        .poll_timeout(&bench.pool)
        .expect("keep-alive");
    assert_eq!(at.since(bench.now), 10 * SECOND);
}

#[test]
fn packets_leave_no_faster_than_the_link_takes_them() {
    let config = Config {
        control: CongestionControl::None,
        packet_size: 4096,
        window: 4096,
        ..Config::default()
    };
    let policy = Policy {
        link_rate_bps: Some(8_000_000_000),
        ..Policy::default()
    };
    let mut bench = Bench::with(config, policy);
    let (start, mut sent) = (bench.now, 0);
    while sent < 2_000 {
        let ready = bench.connection.ready(bench.now, &mut bench.pool);
        for _ in 0..ready {
            bench.connection.record(bench.now, sent, 4096);
            sent += 1;
        }
        if ready == 0 {
            let at = bench
                .connection
                .poll_timeout(&bench.pool)
                .expect("held back by pacing");
            assert!(at > bench.now);
            bench.wait(at.since(bench.now));
        }
    }
    let elapsed = bench.now.since(start);
    // A byte takes a nanosecond; a burst may be ahead of its time: an eighth of the window.
    let least = 2_000 * 4096 - 4096 * 4096 / 8 - 2 * 4096;
    assert!((least..2_000 * 4096).contains(&elapsed), "{elapsed}");
}

#[test]
fn small_packets_fill_the_window_of_bytes_by_asking_again() {
    let mut bench = Bench::new(Config {
        window: 1024,
        ..Config::default()
    });
    let mut sent = 0;
    while bench.connection.ready(bench.now, &mut bench.pool) > 0 {
        bench.connection.record(bench.now, sent, 100);
        sent += 1;
    }
    assert_eq!(
        sent,
        1024 - 16,
        "the window of packets is what ends it, but for what is left to urgent ones"
    );
}

#[test]
fn one_urgent_packet_at_a_time_passes_a_full_window_and_goes_again_before_data() {
    let mut bench = Bench::new(Config {
        first_tx: 100,
        window: 64,
        packet_size: 1000,
        ..Config::default()
    });
    while bench.connection.ready(bench.now, &mut bench.pool) > 0 {
        let _ = bench.send(1);
    }
    let data = 100 + bench.connection.stats().counters.sent;
    assert!(bench.connection.ready_urgent(bench.now, &mut bench.pool));
    let _ = bench.connection.record_urgent(bench.now, data, 1000);
    assert!(!bench.connection.ready_urgent(bench.now, &mut bench.pool));
    // Whatever was sent before is lost, and so is this; the probe tells.
    bench.wait(SECOND);
    let (probe, stamp) = bench.again_one().expect("a probe");
    assert_eq!(probe, data, "the newest");
    bench.wait(MILLISECOND);
    let behind = data - 101;
    assert!(bench.ack(100, &[1 << behind], stamp.timestamp).lost > 0);
    assert!(
        bench.connection.ready_urgent(bench.now, &mut bench.pool),
        "it has arrived, whatever else is lost"
    );
    let _ = bench.connection.record_urgent(bench.now, data + 1, 1000);
    assert_eq!(bench.again_one().map(|(item, _)| item), Some(100));
    // The next data that arrive prove it lost: it goes before what was lost first.
    let stamps: Vec<_> = core::iter::from_fn(|| bench.again_one()).take(8).collect();
    let (last, stamp) = *stamps.last().expect("data goes again");
    bench.wait(MILLISECOND);
    let bits = (behind, last - 101);
    let _ = bench.ack(101, &[(1 << bits.0 | 1 << bits.1) >> 1], stamp.timestamp);
    bench.wait(MILLISECOND);
    assert_eq!(bench.again_one().map(|(item, _)| item), Some(data + 1));
}

#[test]
#[should_panic(expected = "record without ready")]
fn a_packet_that_was_not_promised_is_refused() {
    let mut bench = Bench::plain();
    let ready = bench.connection.ready(bench.now, &mut bench.pool);
    for item in 0..=ready {
        bench.connection.record(bench.now, u64::from(item), 1000);
    }
}

#[test]
#[should_panic(expected = "only new packets are accepted")]
fn a_packet_is_not_accepted_twice() {
    let mut bench = Bench::plain();
    bench.take(501);
    bench.take(501);
}

#[test]
fn source_ports_change_in_runs() {
    let mut bench = Bench::new(Config {
        first_tx: 100,
        control: CongestionControl::None,
        source_ports: 3,
        ..Config::default()
    });
    let ports: Vec<u8> = (0..96).map(|_| bench.send(1).port).collect();
    for (run, ports) in ports.chunks(16).enumerate() {
        assert!(
            ports.iter().all(|&port| usize::from(port) == run % 3),
            "{ports:?}"
        );
    }
}

#[test]
fn a_retransmission_that_finds_no_room_stays_lost_and_counts_as_nothing() {
    let mut bench = Bench::plain();
    let echo = bench.send(8).timestamp;
    bench.wait(10 * MICROSECOND);
    assert_eq!(bench.ack(100, &[0b111], echo).lost, 1);
    for _ in 0..10 {
        // The port is full.
        let found = bench.connection.peek_retransmit(bench.now);
        assert_eq!(found.map(|lost| (lost.item, lost.bytes)), Some((100, 1000)));
        bench.wait(MICROSECOND);
    }
    let stats = bench.connection.stats();
    assert_eq!((stats.counters.retransmitted, stats.in_flight), (0, 5));
    let (item, stamp) = bench.again_one().expect("it is still lost");
    assert_eq!(
        (item, stamp.attempt),
        (100, 1),
        "its first transmission but one"
    );
    assert_eq!(bench.again(), []);
}

#[test]
fn probes_that_wait_for_the_port_do_not_back_off() {
    let mut bench = Bench::plain();
    let echo = bench.send(1).timestamp;
    bench.wait(20 * MICROSECOND);
    let _ = bench.ack(101, &[], echo);
    bench.send(4);
    let at = bench.connection.poll_timeout(&bench.pool).expect("a probe");
    let patience = at.since(bench.now);
    bench.wait(patience);
    assert!(bench.connection.peek_retransmit(bench.now).is_some());
    // For a second the port has no room for it.
    for _ in 0..1000 {
        bench.wait(MILLISECOND);
        assert!(bench.connection.peek_retransmit(bench.now).is_some());
    }
    assert_eq!(bench.connection.stats().counters.probes, 1);
    let _ = bench.again_one().expect("the probe leaves");
    let next = bench.connection.poll_timeout(&bench.pool).expect("a probe");
    let wait = next.since(bench.now);
    assert!(wait <= 2 * patience + 100, "{wait} after {patience}");
}

#[test]
fn a_full_port_is_no_death_of_the_peer_and_one_that_stays_full_is() {
    for (full_ns, dies) in [(3 * SECOND, false), (9 * SECOND, true)] {
        let mut bench = Bench::dying_after(2 * SECOND);
        bench.send(4);
        let end = bench.now + full_ns;
        while bench.now < end {
            bench.wait(10 * MILLISECOND);
            let _ = bench.connection.peek_retransmit(bench.now);
        }
        assert_eq!(bench.connection.is_dead(), dies, "{full_ns}");
        if dies {
            continue;
        }
        let (_, stamp) = bench.again_one().expect("the probe leaves at last");
        bench.wait(50 * MICROSECOND);
        assert!(!bench.connection.is_dead());
        let _ = bench.ack(104, &[], stamp.timestamp);
        assert_eq!(bench.connection.in_flight(), 0);
    }
}

#[test]
fn a_peer_that_falls_silent_is_dead_in_its_time_however_long_the_port_was_full_before() {
    let mut bench = Bench::dying_after(2 * SECOND);
    let echo = bench.send(4).timestamp;
    // A probe is due, and has no room in the port.
    for _ in 0..300 {
        bench.wait(10 * MILLISECOND);
        assert!(bench.connection.peek_retransmit(bench.now).is_some());
    }
    let _ = bench.ack(101, &[], echo);
    let heard = bench.now;
    assert_eq!(bench.again(), [103], "the probe leaves at last");
    while !bench.connection.is_dead() {
        bench.wait(10 * MILLISECOND);
        bench.again();
    }
    assert_eq!(bench.now.since(heard), 2 * SECOND);
}

#[test]
fn a_probe_whose_first_transmission_arrives_tells_of_no_reordering() {
    for leaves in [false, true] {
        let mut bench = Bench::plain();
        let echo = bench.send(1).timestamp;
        bench.wait(10 * MICROSECOND);
        let _ = bench.ack(101, &[], echo);
        let echo = bench.send(4).timestamp;
        let at = bench.connection.poll_timeout(&bench.pool).expect("a probe");
        bench.wait(at.since(bench.now));
        assert!(bench.connection.peek_retransmit(bench.now).is_some());
        if leaves {
            assert_eq!(bench.again(), [104]);
        }
        // The peer was slow.
        bench.wait(MILLISECOND);
        assert_eq!(bench.ack(105, &[], echo).packets, 4);
        let spurious = bench.connection.stats().counters.spurious;
        assert_eq!(spurious, u64::from(leaves), "what was sent in vain");
        let echo = bench.send(4).timestamp;
        bench.wait(10 * MICROSECOND);
        assert_eq!(
            bench.ack(105, &[0b111], echo).lost,
            1,
            "three later packets prove a loss, leaves: {leaves}"
        );
    }
}

#[test]
fn what_is_reordered_once_is_no_loss_by_order_the_next_time() {
    let mut bench = Bench::plain();
    let echo = bench.send(8).timestamp;
    bench.wait(10 * MICROSECOND);
    assert_eq!(bench.ack(100, &[0b11], echo).lost, 0);
    // Late, but never taken for lost.
    assert_eq!(bench.ack(103, &[], echo).lost, 0);
    assert_eq!(
        bench.ack(103, &[0b111], echo).lost,
        0,
        "it may be late again"
    );
}

#[test]
fn a_duplicate_is_answered_with_all_that_has_come() {
    let mut bench = Bench::plain();
    [500, 502].into_iter().for_each(|number| bench.take(number));
    assert!(bench.connection.poll_ack(bench.now).is_some());
    let packet = Received::default();
    let (connection, pool) = (&mut bench.connection, &mut bench.pool);
    connection.duplicate(bench.now, &packet, pool);
    // Data in the other direction have no room for a bitmap.
    bench.connection.ack_piggybacked();
    bench.wait(MILLISECOND);
    let ack = bench.connection.poll_ack(bench.now).expect("it is due");
    assert_eq!((ack.cumulative, ack.sack), (501, &[1][..]));
}

#[test]
fn a_hole_that_is_filled_does_not_hide_what_is_behind_the_next() {
    let mut bench = Bench::plain();
    [500, 502, 504]
        .into_iter()
        .for_each(|number| bench.take(number));
    assert!(bench.connection.poll_ack(bench.now).is_some());
    bench.take(501);
    bench.connection.ack_piggybacked();
    let ack = bench.connection.poll_ack(bench.now).expect("it is due");
    assert_eq!((ack.cumulative, ack.sack), (503, &[1][..]));
}

#[test]
fn what_is_sent_again_in_fewer_bytes_leaves_their_room_to_others() {
    let mut bench = Bench::new(Config {
        first_tx: 100,
        window: 64,
        packet_size: 1000,
        control: CongestionControl::None,
        ..Config::default()
    });
    let room = bench.connection.ready(bench.now, &mut bench.pool);
    let echo = bench.send(23).timestamp;
    bench.wait(10 * MICROSECOND);
    // The first 20 are lost, and nobody waits for their content any more.
    assert_eq!(bench.ack(100, &[0b111 << 19], echo).lost, 20);
    while bench.connection.peek_retransmit(bench.now).is_some() {
        bench.connection.retransmit(bench.now, 60);
    }
    let _ = bench.ack(123, &[], 0);
    assert_eq!(bench.connection.ready(bench.now, &mut bench.pool), room);
}

#[test]
fn an_older_count_of_marks_says_nothing_though_its_packet_is_news() {
    let mut bench = Bench::plain();
    let echo = bench.send(8).timestamp;
    bench.wait(10 * MICROSECOND);
    // The second was sent before the first.
    for (cumulative, sack, ce) in [(102, &[][..], 2), (101, &[0b10][..], 1), (104, &[][..], 3)] {
        let ack = AckInfo {
            cumulative,
            sack,
            echo,
            ce: Some(ce),
            delay_ns: 0,
            waited_ns: 0,
        };
        let heard = bench.connection.handle_ack(bench.now, &ack, &mut |_| {});
        assert!(heard.expect("only what was sent").packets > 0);
        let marked = bench.connection.stats().counters.marked;
        assert_eq!(marked, u64::from(ce.max(2)));
    }
}

#[test]
fn an_urgent_packet_that_was_late_leaves_the_next_loss_to_data() {
    let mut bench = Bench::plain();
    assert!(bench.connection.ready_urgent(bench.now, &mut bench.pool));
    let _ = bench.connection.record_urgent(bench.now, 100, 1000);
    let echo = bench.send(8).timestamp;
    bench.wait(10 * MICROSECOND);
    assert_eq!(bench.ack(100, &[0b111], echo).lost, 1);
    assert_eq!(bench.ack(104, &[], echo).packets, 1, "it was late");
    // What was late has taught it to wait longer.
    assert_eq!(bench.ack(104, &[0b1111], echo).lost, 0);
    bench.wait(MILLISECOND);
    // No urgent one is lost: what goes again has to wait for the pace as data does.
    assert_eq!(bench.again(), [104]);
    assert_eq!(bench.again(), []);
    assert!(bench.connection.ready_urgent(bench.now, &mut bench.pool));
}
