//! What each controller does with a round trip of news.

use super::{Acked, CongestionControl, Control, Controller, Dcqcn, Delay, Start};
use crate::time::{Instant, MICROSECOND, SECOND};
use alloc::vec::Vec;

const PACKET: u64 = 4096;
const RTT_NS: u64 = 10 * MICROSECOND;
const START: Start = Start {
    packet: PACKET,
    max_window: 1024 * PACKET,
    link_rate: None,
    window: 100 * PACKET,
    srtt_ns: RTT_NS,
    min_rtt_ns: RTT_NS,
};

/// A round in which the whole window was acknowledged.
fn round(control: &impl Control, now: u64, rtt_ns: u64) -> Acked {
    Acked {
        now: Instant::from_nanos(now),
        bytes: control.window(),
        packets: (control.window() / PACKET) as u32,
        marked: 0,
        rtt_ns: Some(rtt_ns),
        reverse_ns: 0,
        min_rtt_ns: RTT_NS,
        srtt_ns: rtt_ns,
        in_flight: control.window(),
        round: true,
    }
}

#[test]
fn delay_grows_without_a_queue_and_is_cut_by_half_at_most_where_one_stands() {
    let mut delay = Delay::new(&START);
    delay.on_ack(&round(&delay, 1, RTT_NS));
    assert_eq!(delay.window(), 101 * PACKET);
    delay.on_ack(&round(&delay, 2, RTT_NS + 8 * MICROSECOND));
    let window = delay.window();
    assert!((50 * PACKET..80 * PACKET).contains(&window), "{window}");
    // The queue is gone with the cut: it was ours.
    for now in 3..6 {
        delay.on_ack(&round(&delay, now, RTT_NS));
    }
    assert!(delay.window() >= window);
    for now in 6..9 {
        let before = delay.window();
        delay.on_ack(&round(&delay, now, 100_000 * MICROSECOND));
        assert!(delay.window() >= before / 2);
    }
}

#[test]
fn delay_takes_what_a_host_sends_in_one_piece_for_no_queue() {
    // Two hosts that take 5 GB/s, 5 us apart, and small packets: a window leaves in one piece, and
    // its last packet waits for all others.
    let (packet, rtt_ns) = (1472, 5 * MICROSECOND);
    let start = Start {
        packet,
        max_window: 1 << 30,
        window: 16 * packet,
        srtt_ns: rtt_ns,
        min_rtt_ns: rtt_ns,
        ..START
    };
    let mut delay = Delay::new(&start);
    let (mut now, mut windows) = (0, Vec::new());
    for _ in 0..4000 {
        let rtt_ns = rtt_ns + delay.window() / 5;
        now += rtt_ns;
        let mut acked = round(&delay, now, rtt_ns);
        acked.min_rtt_ns = start.min_rtt_ns;
        delay.on_ack(&acked);
        windows.push(delay.window());
    }
    windows.drain(..2000);
    windows.sort_unstable();
    let half = windows[1000];
    // A piece and more keep both busy, and no more than two stand.
    assert!((64 << 10..256 << 10).contains(&half), "{half}");
}

#[test]
fn delay_does_not_answer_to_loss_alone() {
    for percent in [1, 5, 20] {
        let mut delay = Delay::new(&START);
        for now in 1..500 {
            let lost = delay.window() * percent / 100;
            delay.on_loss(Instant::from_nanos(now), lost);
            let mut acked = round(&delay, now, RTT_NS);
            acked.bytes -= lost;
            delay.on_ack(&acked);
            assert!(
                delay.window() > 60 * PACKET,
                "{percent} %: {} in round {now}",
                delay.window()
            );
        }
        assert!(
            delay.window() > 100 * PACKET,
            "{percent} %: {}",
            delay.window()
        );
    }
}

#[test]
fn delay_answers_to_heavy_loss_that_ends_with_a_smaller_window() {
    // A path that carries 80 packets and has no queue to speak of.
    let mut delay = Delay::new(&START);
    let mut sum = 0;
    for now in 1..500 {
        let lost = delay.window().saturating_sub(80 * PACKET);
        delay.on_loss(Instant::from_nanos(now), lost);
        let mut acked = round(&delay, now, RTT_NS);
        acked.bytes -= lost;
        delay.on_ack(&acked);
        sum += delay.window() / PACKET;
    }
    assert!((75..100).contains(&(sum / 499)), "{}", sum / 499);
}

#[test]
fn delay_ignores_a_queue_on_the_way_back_but_not_an_unbelievable_one() {
    let mut delay = Delay::new(&START);
    let mut acked = round(&delay, 1, RTT_NS + 4 * MICROSECOND);
    acked.reverse_ns = 2 * MICROSECOND;
    delay.on_ack(&acked);
    assert_eq!(delay.window(), 101 * PACKET);
    acked.rtt_ns = Some(RTT_NS + 100 * MICROSECOND);
    acked.reverse_ns = 100 * MICROSECOND;
    delay.on_ack(&acked);
    assert!(delay.window() < 95 * PACKET);
}

#[test]
fn delay_finds_the_path_under_a_queue_that_it_took_for_the_path() {
    // It met the path while others filled a queue as long as the path; they have gone since, and
    // what stands there now is its own.
    let start = Start {
        srtt_ns: 2 * RTT_NS,
        min_rtt_ns: 2 * RTT_NS,
        ..START
    };
    let mut delay = Delay::new(&start);
    let mut now = 0;
    while now < 4 * SECOND {
        let rtt = RTT_NS.max(delay.window() * RTT_NS / (50 * PACKET));
        now += rtt;
        delay.on_ack(&round(&delay, now, rtt));
    }
    let floor = delay.min_rtt_ns();
    assert!(floor < RTT_NS + RTT_NS / 4, "{floor} ns");
}

#[test]
fn delay_gives_way_to_marks_by_their_share_and_not_at_all_without() {
    let marked = |share: u32| {
        let mut delay = Delay::new(&START);
        for now in 1..40 {
            let mut acked = round(&delay, now * RTT_NS, RTT_NS);
            acked.marked = acked.packets * share / 100;
            delay.on_ack(&acked);
        }
        delay.window() / PACKET
    };
    let (none, few, all) = (marked(0), marked(30), marked(100));
    assert!(
        none > 100 && few < 20 && all < few.max(3),
        "{none} {few} {all}"
    );
}

#[test]
fn a_timeout_is_undone_when_it_was_a_mistake() {
    for kind in [CongestionControl::Delay, CongestionControl::Dcqcn] {
        let mut control = Controller::new(kind, &START);
        let before = (control.window(), control.rate());
        for _ in 0..3 {
            control.on_timeout(Instant::from_nanos(1));
        }
        assert_ne!((control.window(), control.rate()), before, "{kind:?}");
        control.on_spurious_timeout();
        assert_eq!(control.window(), before.0, "{kind:?}");
        if kind == CongestionControl::Dcqcn {
            assert_eq!(control.rate(), before.1);
        }
    }
}

#[test]
fn dcqcn_halves_once_per_interval_and_comes_back_to_the_link_rate() {
    let mut dcqcn = Dcqcn::new(&Start {
        link_rate: Some(1 << 30),
        ..START
    });
    let full = dcqcn.rate().expect("it always paces");
    let mut acked = round(&dcqcn, 1_000_000, RTT_NS);
    acked.marked = 1;
    for _ in 0..10 {
        dcqcn.on_ack(&acked);
    }
    assert_eq!(
        dcqcn.rate(),
        Some(full / 2),
        "ten marks at once count as one"
    );
    acked.now = acked.now + 60 * MICROSECOND;
    dcqcn.on_ack(&acked);
    let low = dcqcn.rate().expect("it always paces");
    assert!((full / 4..full / 3).contains(&low), "{low} of {full}");
    acked.marked = 0;
    for _ in 0..4_000 {
        acked.now = acked.now + 20 * MICROSECOND;
        dcqcn.on_ack(&acked);
    }
    let rate = dcqcn.rate().expect("it always paces");
    assert!(rate <= full && rate > full * 98 / 100, "{rate} of {full}");
}

#[test]
fn delay_sends_less_than_a_packet_per_round_trip_where_many_share_a_short_queue() {
    // Of each packet and its successor one is lost, with a queue that is never short.
    let mut delay = Delay::new(&START);
    let start = delay.rate().expect("it paces");
    for now in 1..400 {
        let mut acked = round(&delay, now * RTT_NS, RTT_NS * 2);
        (acked.bytes, acked.packets) = (PACKET, 1);
        delay.on_loss(acked.now, PACKET);
        delay.on_ack(&acked);
    }
    assert!(delay.window() >= 2 * PACKET, "what is sent again has room");
    let rate = delay.rate().expect("it paces");
    // A packet per round trip of 20 us is 1/200 of 100 packets per 10 us.
    assert!(rate < start / 200, "{rate} of {start}");
}

#[test]
fn delay_gives_way_once_to_marks_of_one_round_trip() {
    let mut delay = Delay::new(&START);
    let mut windows = [0; 2];
    for (now, window) in (1..).zip(&mut windows) {
        let mut acked = round(&delay, now * RTT_NS, RTT_NS);
        acked.marked = acked.packets;
        delay.on_ack(&acked);
        *window = delay.window();
    }
    assert!(windows[0] < 100 * PACKET);
    assert_eq!(windows[0], windows[1]);
}

#[test]
fn delay_sends_no_bursts_that_are_marked_where_no_queue_stands() {
    let mut delay = Delay::new(&START);
    assert!(delay.burst() >= delay.window(), "{}", delay.burst());
    let mut acked = round(&delay, RTT_NS, RTT_NS);
    acked.marked = 1;
    delay.on_ack(&acked);
    assert!(delay.burst() < delay.window() / 16, "{}", delay.burst());
}

#[test]
fn delay_keeps_its_bursts_where_a_queue_stands_and_has_them_back_when_marks_end() {
    let mut delay = Delay::new(&START);
    let mut acked = round(&delay, RTT_NS, RTT_NS + 8 * MICROSECOND);
    acked.marked = 1;
    delay.on_ack(&acked);
    assert!(delay.burst() >= delay.window(), "{}", delay.burst());
    let mut delay = Delay::new(&START);
    for now in 1..2_000 {
        let mut acked = round(&delay, now * RTT_NS, RTT_NS);
        acked.marked = u32::from(now == 1);
        delay.on_ack(&acked);
    }
    assert!(
        delay.burst() >= delay.window() / 8,
        "{} of {}",
        delay.burst(),
        delay.window()
    );
}

/// A sender that met no queue before one that grew from so many ns to so many, when it lost some of
/// its packets.
fn overflowed(queue_ns: [u64; 2]) -> Delay {
    let mut delay = Delay::new(&START);
    // Growth explains nothing any more: little was sent.
    for now in 1..=8 {
        let mut acked = round(&delay, now * RTT_NS, RTT_NS);
        acked.in_flight = 0;
        delay.on_ack(&acked);
    }
    assert_eq!(delay.window(), START.window);
    let [first, mut last] = queue_ns.map(|ns| round(&delay, 10 * RTT_NS, RTT_NS + ns));
    delay.on_ack(&Acked {
        bytes: PACKET,
        packets: 1,
        round: false,
        ..first
    });
    let lost = delay.window() / 10;
    delay.on_loss(last.now, lost);
    last.bytes -= lost + PACKET;
    delay.on_ack(&last);
    delay
}

#[test]
fn delay_gives_way_to_others_where_a_queue_overflowed_that_it_does_not_fill_alone() {
    let left = |queue_ns| overflowed(queue_ns).window() * 10 / START.window;
    let (alone, beside_others) = (7, 5);
    // It aims at 6.7 us of a queue of 8 us, and at 7.4 us of one of 12 us.
    let long = [8, 12].map(|us| us * MICROSECOND);
    assert_eq!(left([long[0]; 2]), alone);
    assert_eq!(left([long[1]; 2]), beside_others);
    assert_eq!(left([5 * MICROSECOND, long[1]]), beside_others, "when full");
    // It aims at more, but would not see it.
    assert_eq!(left([MICROSECOND / 2; 2]), beside_others);
}

#[test]
fn delay_sends_no_bursts_that_would_fill_a_queue_that_has_overflowed() {
    for queue_ns in [8, 12].map(|us| us * MICROSECOND) {
        let delay = overflowed([5 * MICROSECOND, queue_ns]);
        let rate = delay.rate().expect("it paces");
        // A quarter of what we may have of it, which is half.
        let most = rate * (queue_ns / 8) / SECOND;
        let burst = delay.burst();
        assert!(
            (most - most / 8..=most).contains(&burst),
            "{burst} of {most}"
        );
    }
}
