//! A peer that lies about times, marks and what has arrived, and then says nothing more.

use alloc::vec::Vec;

use super::super::{AckInfo, Arrival, Config, Delivery, Event, Policy, Pool, Received};
use crate::control::CongestionControl;
use crate::time::{Instant, MILLISECOND, SECOND};
use trunkline_testkit::Rng;

struct Scene {
    rng: Rng,
    connection: Delivery<u64>,
    pool: Pool<u64>,
    now: Instant,
    sent: u64,
    heard: u64,
    stamps: Vec<u32>,
}

impl Scene {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let controls = [
            CongestionControl::None,
            CongestionControl::Dcqcn,
            CongestionControl::Delay,
        ];
        let first = [0, (1 << 24) - 9, (1 << 32) - 40, 1 << 62][rng.below(4) as usize];
        let config = Config {
            first_tx: first,
            first_rx: first,
            control: controls[rng.below(3) as usize],
            packet_size: [1024, 4096, 65_535][rng.below(3) as usize],
            source_ports: 1 + rng.below(4) as u8,
            window: [64, 4096][rng.below(2) as usize],
            ..Config::default()
        };
        let policy = Policy {
            link_rate_bps: (rng.below(2) == 0).then_some(10_000_000_000),
            ..Policy::default()
        };
        // Timestamps wrap around every 68 s.
        let now = Instant::from_nanos((1 << 36) - rng.below(3 * SECOND));
        Self {
            connection: Delivery::new(&config, now),
            pool: Pool::new(policy),
            now,
            sent: first,
            heard: first,
            stamps: alloc::vec![1],
            rng,
        }
    }

    /// Sends again what may be; gives how many packets that were.
    fn again(&mut self) -> usize {
        let mut count = 0;
        while let Some(lost) = self.connection.peek_retransmit(self.now) {
            let bytes = if lost.too_large { 60 } else { lost.bytes };
            let stamp = self.connection.retransmit(self.now, bytes);
            self.stamps.push(stamp.timestamp);
            count += 1;
        }
        count
    }

    /// What its owner does in a round.
    fn round(&mut self) {
        self.connection.handle_timeout(self.now, &self.pool);
        self.again();
        for _ in 0..self.rng.below(9) {
            let urgent = self.rng.below(4) == 0;
            let stamp = if urgent && self.connection.ready_urgent(self.now, &mut self.pool) {
                self.connection.record_urgent(self.now, self.sent, 100)
            } else if self.connection.ready(self.now, &mut self.pool) > 0 {
                let bytes = 64 + self.rng.below(60_000) as u32;
                self.connection.record(self.now, self.sent, bytes)
            } else {
                break;
            };
            self.stamps.push(stamp.timestamp);
            self.sent += 1;
        }
        let _ = self.connection.poll_ack(self.now);
        let narrow = self.connection.poll_event() == Some(Event::Narrow);
        if narrow || self.rng.below(200) == 0 {
            let bytes = [1232, 4096, 65_535][self.rng.below(3) as usize];
            self.connection.set_packet_size(bytes);
        }
    }

    fn lie(&mut self) {
        let Self { rng, stamps, .. } = self;
        let words: Vec<u64> = (0..rng.below(5))
            .map(|_| rng.below(3) << 48 | (rng.next() & rng.next()) >> (16 + rng.below(48)))
            .collect();
        let beyond = [3, 60][rng.below(2) as usize];
        let behind = rng.below(u64::from(self.connection.in_flight()) + beyond);
        let any = stamps[rng.below(stamps.len() as u64) as usize];
        let last = stamps[stamps.len() - 1];
        let random = rng.next() as u32;
        let ack = AckInfo {
            cumulative: self.sent.wrapping_sub(behind) as u32,
            sack: &words,
            echo: [0, random, any, last, last][rng.below(5) as usize],
            ce: (rng.below(2) == 0)
                .then(|| [random, u32::MAX, random % 999][rng.below(3) as usize]),
            delay_ns: [0, 15, random, random >> 12, u32::MAX][rng.below(5) as usize],
            waited_ns: 0,
        };
        let _ = self.connection.handle_ack(self.now, &ack, &mut |_| {});
        let packet = Received {
            timestamp: random,
            ce: rng.below(2) == 0,
            ack_req: rng.below(2) == 0,
        };
        let number = self.heard + rng.below(3);
        match self.connection.arrival(number) {
            Arrival::New => self
                .connection
                .accept(self.now, number, &packet, &mut self.pool),
            _ => self.heard += 1,
        }
        let _ = self.connection.try_idle(&mut self.pool);
    }

    /// The peer is silent: gives after how many ns, and of how many packets that were sent again
    /// meanwhile, the connection has died.
    fn dies_after(&mut self) -> (u64, usize) {
        let (began, mut again) = (self.now, 0);
        for _ in 0..5_000 {
            let at = self.connection.poll_timeout(&self.pool);
            self.now = self.now.max(at.expect("something waits for an answer"));
            self.connection.handle_timeout(self.now, &self.pool);
            again += self.again();
            let _ = self.connection.poll_ack(self.now);
            if self.connection.poll_event() == Some(Event::Dead) {
                return (self.now.since(began), again);
            }
        }
        panic!("it lives on after {} ns", self.now.since(began));
    }
}

#[test]
fn whatever_a_peer_has_acknowledged_its_silence_ends_its_connection() {
    let dead_after_ns = Policy::default().dead_after_ns;
    let mut silent = 0;
    for seed in 0..600 {
        let mut scene = Scene::new(seed);
        for _ in 0..300 {
            let pauses = [0, 16, 1_000, 100_000, MILLISECOND, 200 * MILLISECOND];
            let most = pauses[scene.rng.below(6) as usize];
            scene.now = scene.now + scene.rng.below(most + 1);
            scene.round();
            scene.lie();
            let stats = scene.connection.stats();
            assert!(stats.rtt_ns <= 10 * SECOND, "seed {seed}: {stats:?}");
            assert!(stats.window_bytes <= 128 << 20, "seed {seed}: {stats:?}");
        }
        scene.round();
        if scene.connection.is_dead() || scene.connection.in_flight() == 0 {
            continue;
        }
        let (ns, again) = scene.dies_after();
        // What pacing holds up has not left.
        assert!(ns <= 4 * dead_after_ns, "seed {seed}: {ns} ns");
        assert!(again <= 100, "seed {seed}: {again} packets");
        silent += 1;
    }
    assert!(silent > 300, "{silent}");
}
