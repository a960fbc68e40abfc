//! Target `delivery`: packet delivery of a shared connection against a peer that acknowledges,
//! repeats and numbers packets as it likes.

use crate::input::Input;
use std::collections::BTreeSet;
use trunkline_conn::control::CongestionControl;
use trunkline_conn::delivery::{
    AckInfo, Arrival, Config, Delivery, Lost, MAX_SACK_WORDS, Policy, Pool, Received, Violation,
};
use trunkline_conn::time::{Instant, SECOND};
use trunkline_wire::AckPayload;

/// Operations of one run: enough for a window to wrap, few enough to be quick.
const MAX_OPERATIONS: usize = 4096;

/// Drives one end by `data`.
///
/// # Panics
/// When an invariant is broken: an item acknowledged that was not in flight, a violation that moved
/// something, a number accepted twice, an acknowledgement that takes back or invents.
pub fn delivery(data: &[u8]) {
    let mut input = Input::new(data);
    let mut end = End::new(&mut input);
    input.drive(MAX_OPERATIONS, |input| {
        end.step(input);
        end.check();
    });
    // What was accepted is acknowledged in the end, whatever was sent meanwhile.
    end.now = end.now + SECOND;
    end.acknowledge();
    assert!(!end.owed, "an acknowledgement was forgotten");
    end.connection.close(&mut end.pool);
    assert_eq!(end.pool.taken(), 0, "a window is lost");
}

/// The connection, and what a plain reading of its contract says about it.
struct End {
    connection: Delivery<u64>,
    pool: Pool<u64>,
    now: Instant,
    window: u64,
    /// Next number to be sent; items are numbers.
    next_tx: u64,
    unacked: BTreeSet<u64>,
    /// Everything below has been accepted, and what has above.
    next_rx: u64,
    above: BTreeSet<u64>,
    /// What was acknowledged last, and whether the peer has still to hear of something.
    told: u64,
    owed: bool,
    dead: bool,
}

impl End {
    fn new(input: &mut Input<'_>) -> Self {
        let shape = input.byte();
        // Most starts are shortly before a point where some width wraps.
        let first = |choice: u8, near: u8| match choice & 3 {
            0 => u64::from(near),
            1 => (1 << 24) - u64::from(near),
            2 => (1 << 32) - u64::from(near),
            _ => (1 << 63) - 1 - u64::from(near),
        };
        let (first_tx, first_rx) = (first(shape, input.byte()), first(shape >> 2, input.byte()));
        let window = 64 << (input.byte() % 7);
        let config = Config {
            first_tx,
            first_rx,
            packet_size: 256 + u32::from(input.u16()).min(65535 - 256),
            control: match shape >> 4 & 3 {
                0 => CongestionControl::None,
                1 => CongestionControl::Dcqcn,
                _ => CongestionControl::Delay,
            },
            window,
            source_ports: 1 + (shape >> 7) * 3,
            ..Config::default()
        };
        let policy = Policy {
            link_rate_bps: (shape & 0x40 != 0).then_some(100_000_000_000),
            ack_every: 1 + u16::from(input.byte()),
            ..Policy::default()
        };
        let now = Instant::from_nanos(u64::from(input.u32()));
        Self {
            connection: Delivery::new(&config, now),
            pool: Pool::new(policy),
            now,
            window: u64::from(window),
            next_tx: first_tx,
            unacked: BTreeSet::new(),
            next_rx: first_rx,
            above: BTreeSet::new(),
            told: first_rx,
            owed: false,
            dead: false,
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() & 7 {
            0 => self.send(input.byte()),
            1 => self.acknowledged_honestly(input),
            2 => self.acknowledged(input),
            3 => self.receive(input),
            4 => {
                self.now = self.now + (u64::from(input.u16()) << (input.byte() & 15));
                self.connection.handle_timeout(self.now, &self.pool);
                while self.connection.poll_event().is_some() {}
                self.dead = self.connection.is_dead();
            }
            5 => self.retransmit(),
            6 => self.acknowledge(),
            _ => self.idle(),
        }
    }

    fn send(&mut self, most: u8) {
        for _ in 0..most {
            if self.connection.ready(self.now, &mut self.pool) == 0 {
                break;
            }
            assert!(!self.dead, "a dead connection sends");
            let stamp = self
                .connection
                .record(self.now, self.next_tx, 64 + u32::from(most));
            assert_eq!(stamp.number, self.next_tx);
            self.owed &= !self.above.is_empty();
            self.tell(stamp.ack);
            self.unacked.insert(self.next_tx);
            self.next_tx += 1;
            self.connection.ack_piggybacked();
        }
        let oldest = self.unacked.first().copied().unwrap_or(self.next_tx);
        assert!(
            self.next_tx - oldest <= self.window,
            "more in flight than the window"
        );
    }

    /// What a peer could say: everything up to a packet in flight has arrived, and some after it.
    fn acknowledged_honestly(&mut self, input: &mut Input<'_>) {
        let oldest = self.unacked.first().copied().unwrap_or(self.next_tx);
        let cumulative = oldest + u64::from(input.byte()) % (self.next_tx - oldest + 1);
        let known = self.next_tx.saturating_sub(cumulative + 1).min(48);
        let mask = (1 << known) - 1;
        let sack = [input.u64() & mask];
        let echo = ((self.now.as_nanos() >> 4) as u32).wrapping_sub(u32::from(input.byte()));
        let ack = AckInfo {
            cumulative: cumulative as u32,
            sack: &sack,
            echo,
            ce: input.flag().then(|| input.u32()),
            delay_ns: input.u32(),
            waited_ns: input.u32(),
        };
        let moved = self.handle_ack(&ack);
        assert!(moved.is_ok(), "{ack:?} names only what was sent: {moved:?}");
    }

    /// What anybody could say.
    fn acknowledged(&mut self, input: &mut Input<'_>) {
        let near = self.next_tx as u32;
        let shape = input.byte();
        let cumulative = match shape & 3 {
            0 => input.u32(),
            1 => near.wrapping_add(u32::from(input.u16())),
            _ => near.wrapping_sub(u32::from(input.u16())),
        };
        let words = usize::from(shape >> 2) % (MAX_SACK_WORDS + 2);
        let sack: Vec<_> = (0..words).map(|_| input.u64()).collect();
        let ack = AckInfo {
            cumulative,
            sack: &sack,
            echo: input.u32(),
            ce: input.flag().then(|| input.u32()),
            delay_ns: input.u32(),
            waited_ns: input.u32(),
        };
        // Whether it is a violation is the connection's to say; the model holds it to the rest.
        let _ = self.handle_ack(&ack);
    }

    fn handle_ack(&mut self, ack: &AckInfo<'_>) -> Result<(), Violation> {
        let before = self.connection.stats();
        let mut acked = Vec::new();
        let result = self
            .connection
            .handle_ack(self.now, ack, &mut |item| acked.push(item));
        match result {
            Ok(summary) => assert_eq!(summary.packets as usize, acked.len()),
            Err(_) => {
                assert!(acked.is_empty(), "a violation acknowledged {acked:?}");
                assert_eq!(
                    self.connection.stats(),
                    before,
                    "a violation moved something"
                );
            }
        }
        for item in acked {
            assert!(
                self.unacked.remove(&item),
                "{item} acknowledged, but not in flight"
            );
        }
        result.map(|_| ())
    }

    fn receive(&mut self, input: &mut Input<'_>) {
        let shape = input.byte();
        let number = match shape & 3 {
            0 => input.u64(),
            1 => self.next_rx,
            2 => self.next_rx.wrapping_add(u64::from(input.u16())),
            _ => self.next_rx.wrapping_sub(u64::from(input.byte())),
        };
        let received = Received {
            timestamp: input.u32(),
            ce: shape & 4 != 0,
            ack_req: shape & 8 != 0,
        };
        let ahead = number.wrapping_sub(self.next_rx);
        let arrival = self.connection.arrival(number);
        match arrival {
            Arrival::New => {
                assert!(
                    ahead < self.window && !self.above.contains(&number),
                    "{number} again"
                );
                // Not all packets find room; those that do not come again.
                if shape & 16 == 0 {
                    self.connection
                        .accept(self.now, number, &received, &mut self.pool);
                    self.above.insert(number);
                    self.owed = true;
                    while self.above.remove(&self.next_rx) {
                        self.next_rx += 1;
                    }
                    assert_eq!(self.connection.arrival(number), Arrival::Duplicate);
                }
            }
            Arrival::Duplicate => {
                assert!(
                    self.above.contains(&number) || ahead > u64::MAX / 2,
                    "{number} is new"
                );
                self.connection
                    .duplicate(self.now, &received, &mut self.pool);
            }
            Arrival::Beyond => assert!(ahead >= self.window, "{number} is in the window"),
        }
    }

    fn retransmit(&mut self) {
        for _ in 0..self.window {
            let Some(Lost { item, bytes, .. }) = self.connection.peek_retransmit(self.now) else {
                return;
            };
            let stamp = self.connection.retransmit(self.now, bytes);
            assert_eq!(item, stamp.number);
            assert!(
                self.unacked.contains(&item),
                "{item} sent again, but not in flight"
            );
            assert!(stamp.attempt > 0 && !self.dead);
            self.tell(stamp.ack);
        }
    }

    /// A packet says this number: with holes, only a bitmap tells more than was told before.
    fn tell(&mut self, ack: u32) {
        if self.above.is_empty() {
            self.told = self.next_rx;
        }
        assert_eq!(ack, self.told as u32);
    }

    fn acknowledge(&mut self) {
        let Some(ack) = self.connection.poll_ack(self.now) else {
            return;
        };
        (self.told, self.owed) = (self.next_rx, false);
        assert_eq!(ack.cumulative, self.next_rx as u32);
        assert!(ack.sack.len() <= MAX_SACK_WORDS);
        let mut told: Vec<u64> = Vec::new();
        for entry in ack.sack {
            let base = self.next_rx + 1 + (entry >> AckPayload::BITS) * u64::from(AckPayload::BITS);
            let bits = (0..u64::from(AckPayload::BITS)).filter(|bit| entry >> bit & 1 == 1);
            told.extend(bits.map(|bit| base + bit));
        }
        assert!(
            told.iter().all(|number| self.above.contains(number)),
            "{told:?} in the bitmap"
        );
        let last = self.above.last().map_or(0, |last| last - self.next_rx);
        if ack.sack.len() < MAX_SACK_WORDS && last <= 16 * u64::from(AckPayload::BITS) {
            assert_eq!(told.len(), self.above.len(), "there is room for all");
        }
    }

    fn idle(&mut self) {
        let busy = !self.unacked.is_empty() || !self.above.is_empty();
        if self.connection.try_idle(&mut self.pool).is_some() {
            assert!(!busy && !self.owed, "idle with something left to say");
            self.told = self.next_rx;
            assert_eq!(self.pool.taken(), 0);
        }
    }

    fn check(&self) {
        assert_eq!(self.connection.in_flight() as usize, self.unacked.len());
        assert!(
            self.connection.unacked().eq(self.unacked.iter().copied()),
            "what would be replayed is not what is in flight"
        );
    }
}
