//! What acknowledgements tell that have waited at this end.

use super::*;

/// Bytes in flight when the window is full, and the window, of a connection whose acknowledgements
/// come so long after what they acknowledge, the last so many of which they waited at this end. The
/// network marks some of the last packets, where it is `marked`.
fn filled(elapsed_us: u64, waited_us: u32, marked: bool) -> [u64; 2] {
    let waited_ns = waited_us * MICROSECOND as u32;
    let mut bench = Bench::new(Config {
        first_tx: 100,
        control: CongestionControl::Delay,
        ..Config::default()
    });
    for round in 0..100_u32 {
        let echo = bench.send(4).timestamp;
        bench.now = bench.now + elapsed_us * MICROSECOND;
        let ack = AckInfo {
            cumulative: 100 + bench.connection.stats().counters.sent as u32,
            sack: &[],
            echo,
            ce: marked.then(|| round.saturating_sub(97)),
            delay_ns: waited_ns,
            waited_ns,
        };
        let heard = bench.connection.handle_ack(bench.now, &ack, &mut |_| {});
        assert_eq!(heard.expect("only what was sent").packets, 4);
    }
    let mut kept = 0;
    while kept < 20 {
        match bench.connection.ready(bench.now, &mut bench.pool) {
            0 => kept += 1,
            _ => {
                kept = 0;
                let _ = bench.send(1);
            }
        }
        bench.now = bench.now + MICROSECOND;
    }
    [
        1000 * u64::from(bench.connection.in_flight()),
        bench.connection.stats().window_bytes,
    ]
}

#[test]
fn what_acknowledgements_tell_that_wait_here_makes_room_for_more() {
    let [in_flight, window] = filled(40, 10, false);
    let wanted = window + window / 4;
    // As many whole packets as that has room for.
    let near = (wanted - 5000..=wanted + 1000).contains(&in_flight);
    assert!(near, "{in_flight} of {wanted}");
    // A trace is no packet, and who looks too late does not get more to look at.
    for [elapsed_us, waited_us] in [[40, 0], [100, 1], [400, 200]] {
        let [in_flight, window] = filled(elapsed_us, waited_us as u32, false);
        assert!(in_flight.abs_diff(window) <= 1000, "{in_flight}, {window}");
    }
}

/// What waits may not fill queues that are short.
#[test]
fn where_packets_are_marked_waiting_makes_room_for_no_more_than_a_burst() {
    let [in_flight, window] = filled(40, 10, true);
    assert!(in_flight <= window + 1000, "{in_flight} of {window}");
}
