//! Packet delivery of shared connections, per packet.

use std::hint::black_box;
use trunkline_conn::control::CongestionControl;
use trunkline_conn::delivery::{AckInfo, Config, Delivery, Pool, Received};
use trunkline_conn::time::Instant;

const BATCH: u32 = 16;

fn connection() -> Delivery<[u64; 3]> {
    let config = Config {
        control: CongestionControl::None,
        ..Config::default()
    };
    Delivery::new(&config, Instant::ZERO)
}

/// Batches of packets are sent and acknowledged as one.
pub(crate) fn send_and_acked(repetitions: u32) {
    let (mut connection, mut pool) = (connection(), Pool::default());
    let mut next = 0;
    let mut now = Instant::from_nanos(1_000);
    while next < repetitions {
        let count = connection.ready(now, &mut pool).min(BATCH);
        for _ in 0..count {
            black_box(connection.record(now, black_box([0; 3]), 128));
        }
        next += count;
        now = now + 10_000;
        let echo = (now.as_nanos() >> 4) as u32 - 500;
        let ack = AckInfo {
            cumulative: next,
            sack: &[],
            echo,
            ce: Some(0),
            delay_ns: 0,
            waited_ns: 0,
        };
        let _ = black_box(connection.handle_ack(now, &ack, &mut |item| {
            black_box(item);
        }));
    }
}

/// Batches of packets arrive and are acknowledged as one.
pub(crate) fn receive_and_ack(repetitions: u32) {
    let (mut connection, mut pool) = (connection(), Pool::default());
    let mut now = Instant::from_nanos(1_000);
    for number in 0..repetitions {
        black_box(connection.arrival(black_box(u64::from(number))));
        let received = Received {
            timestamp: number + 1,
            ..Received::default()
        };
        connection.accept(now, u64::from(number), &received, &mut pool);
        now = now + 100;
        if number % BATCH == BATCH - 1 {
            black_box(connection.poll_ack(now));
        }
    }
}
