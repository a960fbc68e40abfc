//! A link with a queue, delay, loss, duplication and reordering, and two connections on it.

use alloc::collections::BinaryHeap;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;

use trunkline_wire::Qpn;

use super::super::{
    AckInfo, Arrival, Config, Delivery, EVERY_PATH, Event, Lost, Policy, Pool, Received, Stamp,
};
use crate::time::Instant;
use trunkline_testkit::Rng;

/// Bytes of a packet with nothing in it.
const EMPTY: u32 = 56;

/// One direction. Rates and probabilities hold until `faults_end`, after that only rate, queue and
/// delay do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    pub(super) bytes_per_us: u64,
    pub(super) delay_ns: u64,
    pub(super) queue_bytes: u64,
    /// Packets that find more than this in the queue are marked.
    pub(super) mark_bytes: u64,
    pub(super) loss_ppm: u64,
    pub(super) dup_ppm: u64,
    pub(super) reorder_ppm: u64,
    /// Reordered packets are late by up to this.
    pub(super) late_ns: u64,
    /// Larger packets are dropped, from `narrow_at` on.
    pub(super) mtu: u64,
    pub(super) narrow_at: u64,
    /// Each source port takes a path longer by this than the one before.
    pub(super) port_skew_ns: u64,
    /// Whoever receives looks only so often, where this is not 0, and has room for so many bytes
    /// meanwhile.
    pub(super) looks_ns: u64,
    pub(super) room_bytes: u64,
    pub(super) faults_end: u64,
}

impl Link {
    /// 100 Gb/s, 10 us round trip, no faults.
    pub(super) const CLEAN: Self = Self {
        bytes_per_us: 12_500,
        delay_ns: 5_000,
        queue_bytes: 1 << 20,
        mark_bytes: u64::MAX,
        loss_ppm: 0,
        dup_ppm: 0,
        reorder_ppm: 0,
        late_ns: 0,
        mtu: u64::MAX,
        narrow_at: 0,
        port_skew_ns: 0,
        looks_ns: 0,
        room_bytes: u64::MAX,
        faults_end: u64::MAX,
    };
}

/// What an item stands for: who sent it, which of theirs, how large.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Item {
    pub(super) from: u8,
    pub(super) index: u64,
    pub(super) bytes: u32,
}

#[derive(Clone, Debug)]
enum Frame {
    Data {
        stamp: Stamp,
        item: Item,
    },
    Ack {
        cumulative: u32,
        sack: Vec<u64>,
        ce: u32,
        delay_ns: u32,
        echo: u32,
    },
}

#[derive(Debug)]
struct Flying {
    at: u64,
    sequence: u64,
    to: usize,
    ce: bool,
    frame: Frame,
}

impl PartialEq for Flying {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.sequence) == (other.at, other.sequence)
    }
}
impl Eq for Flying {}
impl PartialOrd for Flying {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Flying {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}

/// One end: a connection and the model it is held against.
#[derive(Debug)]
pub(super) struct End {
    pub(super) connection: Delivery<Item>,
    pub(super) pool: Pool<Item>,
    /// Items to send, and those sent so far.
    pub(super) want: u64,
    sent: u64,
    pub(super) packet: u32,
    /// Packets are of any size up to `packet`, not all of it.
    pub(super) mixed: bool,
    /// Accepted and acknowledged, by index of item.
    got: Vec<bool>,
    pub(super) got_count: u64,
    pub(super) got_bytes: u64,
    acked: Vec<bool>,
    pub(super) acked_count: u64,
    /// Packets refused although they were new.
    pub(super) refuse_ppm: u64,
    pub(super) events: Vec<Event>,
    /// When the path was first found to carry no large packets.
    pub(super) narrowed_at: Option<u64>,
    next_turn: u64,
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) now: u64,
    pub(super) ends: [End; 2],
    pub(super) links: [Link; 2],
    free_at: [u64; 2],
    /// When receivers look next, and what they find then.
    held: [(u64, u64); 2],
    air: BinaryHeap<Reverse<Flying>>,
    sequence: u64,
    pub(super) rng: Rng,
    pub(super) dropped: u64,
    pub(super) idle_often: bool,
    pub(super) cut: bool,
}

impl World {
    pub(super) fn new(
        seed: u64,
        config: &Config,
        policy: &Policy,
        links: [Link; 2],
        want: [u64; 2],
    ) -> Self {
        let start = Instant::from_nanos(1_000_000);
        let end = |want: u64, other: u64, mirrored: bool| {
            let mut config = *config;
            if mirrored {
                (config.first_tx, config.first_rx) = (config.first_rx, config.first_tx);
                (config.local_id, config.remote_id) = (Qpn::from_wire(2), Qpn::from_wire(1));
            }
            End {
                connection: Delivery::new(&config, start),
                pool: Pool::new(*policy),
                want,
                sent: 0,
                packet: config.packet_size,
                mixed: false,
                got: vec![false; other as usize],
                got_count: 0,
                got_bytes: 0,
                acked: vec![false; want as usize],
                acked_count: 0,
                refuse_ppm: 0,
                events: Vec::new(),
                narrowed_at: None,
                next_turn: 0,
            }
        };
        Self {
            now: start.as_nanos(),
            ends: [end(want[0], want[1], false), end(want[1], want[0], true)],
            links,
            free_at: [0; 2],
            held: [(0, 0); 2],
            air: BinaryHeap::new(),
            sequence: 0,
            rng: Rng::new(seed),
            dropped: 0,
            idle_often: false,
            cut: false,
        }
    }

    fn send(&mut self, from: usize, bytes: u64, port: u8, frame: Frame) {
        let mut link = self.links[from];
        if self.now >= link.faults_end {
            (link.loss_ppm, link.dup_ppm, link.reorder_ppm) = (0, 0, 0);
        }
        let wire = bytes + 66; // Ethernet, IPv4, UDP, preamble and gap.
        let queued_ns = self.free_at[from].saturating_sub(self.now);
        let queued = queued_ns * link.bytes_per_us / 1_000;
        let too_large = bytes > link.mtu && self.now >= link.narrow_at;
        if self.cut || too_large || queued + wire > link.queue_bytes {
            self.dropped += 1;
            return;
        }
        self.free_at[from] =
            self.free_at[from].max(self.now) + (wire * 1_000).div_ceil(link.bytes_per_us);
        let copies = 1 + u64::from(self.rng.chance(link.dup_ppm));
        for _ in 0..copies {
            if self.rng.chance(link.loss_ppm) {
                self.dropped += 1;
                continue;
            }
            let mut at = self.free_at[from] + link.delay_ns;
            at += u64::from(port) * link.port_skew_ns;
            if self.rng.chance(link.reorder_ppm) {
                at += 1 + self.rng.below(link.late_ns.max(1));
            }
            if link.looks_ns > 0 {
                at = at.next_multiple_of(link.looks_ns);
                let (look, held) = &mut self.held[from];
                if *look != at {
                    (*look, *held) = (at, 0);
                }
                // What is small finds room where what is large finds none.
                if *held + bytes > link.room_bytes {
                    self.dropped += 1;
                    continue;
                }
                *held += bytes;
            }
            self.sequence += 1;
            self.air.push(Reverse(Flying {
                at,
                sequence: self.sequence,
                to: 1 - from,
                ce: queued > link.mark_bytes,
                frame: frame.clone(),
            }));
        }
    }

    fn receive(&mut self, flying: Flying) {
        let now = Instant::from_nanos(self.now);
        let refused = self.rng.chance(self.ends[flying.to].refuse_ppm);
        let end = &mut self.ends[flying.to];
        match flying.frame {
            Frame::Ack {
                cumulative,
                sack,
                ce,
                delay_ns,
                echo,
            } => {
                let ack = AckInfo {
                    cumulative,
                    sack: &sack,
                    echo,
                    ce: Some(ce),
                    delay_ns,
                    waited_ns: 0,
                };
                end.acknowledge(now, &ack);
            }
            Frame::Data { stamp, item } => {
                let ack = AckInfo {
                    cumulative: stamp.ack,
                    sack: &[],
                    echo: stamp.echo,
                    ce: None,
                    delay_ns: 0,
                    waited_ns: 0,
                };
                end.acknowledge(now, &ack);
                let packet = Received {
                    timestamp: stamp.timestamp,
                    ce: flying.ce,
                    ack_req: stamp.ack_req,
                };
                end.take(now, stamp.number, item, &packet, refused);
            }
        }
        self.turn(flying.to);
    }

    /// One turn of an owner, in the order the module documents.
    fn turn(&mut self, who: usize) {
        let now = Instant::from_nanos(self.now);
        let mut out = Vec::new();
        let end = &mut self.ends[who];
        end.connection.handle_timeout(now, &end.pool);
        while let Some(Lost {
            item,
            bytes,
            too_large,
        }) = end.connection.peek_retransmit(now)
        {
            let bytes = if too_large { EMPTY } else { bytes };
            let stamp = end.connection.retransmit(now, bytes);
            assert!(bytes == item.bytes || bytes == EMPTY);
            assert!(
                !end.acked[item.index as usize],
                "sent again what was acknowledged"
            );
            out.push((u64::from(bytes), stamp.port, Frame::Data { stamp, item }));
            end.connection.ack_piggybacked();
        }
        'all: while end.sent < end.want {
            let ready = end.connection.ready(now, &mut end.pool);
            if ready == 0 {
                break;
            }
            for _ in 0..ready {
                if end.sent == end.want {
                    break 'all;
                }
                let bytes = if end.mixed {
                    64 + self.rng.below(u64::from(end.packet) - 64) as u32
                } else {
                    end.packet
                };
                let item = Item {
                    from: who as u8,
                    index: end.sent,
                    bytes,
                };
                let stamp = end.connection.record(now, item, bytes);
                assert_eq!(stamp.attempt, 0);
                end.sent += 1;
                out.push((u64::from(bytes), stamp.port, Frame::Data { stamp, item }));
                end.connection.ack_piggybacked();
            }
        }
        if let Some(ack) = end.connection.poll_ack(now) {
            let frame = Frame::Ack {
                cumulative: ack.cumulative,
                sack: ack.sack.to_vec(),
                ce: ack.ce,
                delay_ns: ack.delay_ns,
                echo: ack.echo,
            };
            out.push((64 + 8 * ack.sack.len() as u64, 0, frame));
        }
        while let Some(event) = end.connection.poll_event() {
            if event == Event::Narrow {
                end.narrow(self.now);
            }
            end.events.push(event);
        }
        if self.idle_often {
            let _ = end.connection.try_idle(&mut end.pool);
        }
        let at = end
            .connection
            .poll_timeout(&end.pool)
            .map_or(u64::MAX, Instant::as_nanos);
        assert!(
            at > self.now,
            "a turn leaves nothing due: {at} at {}",
            self.now
        );
        end.next_turn = at;
        for (bytes, port, frame) in out {
            self.send(who, bytes, port, frame);
        }
    }

    /// Runs until `done` or until `deadline`; whether it was done.
    pub(super) fn run(&mut self, deadline: u64, done: impl Fn(&Self) -> bool) -> bool {
        self.turn(0);
        self.turn(1);
        while !done(self) {
            let arrival = self
                .air
                .peek()
                .map_or(u64::MAX, |Reverse(flying)| flying.at);
            let turn = self.ends[0].next_turn.min(self.ends[1].next_turn);
            let at = arrival.min(turn);
            if at > deadline {
                self.now = deadline;
                return false;
            }
            self.now = at;
            if arrival <= turn {
                let Reverse(flying) = self.air.pop().expect("peeked");
                self.receive(flying);
            } else {
                let who = usize::from(self.ends[1].next_turn == at);
                self.turn(who);
            }
        }
        true
    }

    /// Everything was accepted and acknowledged.
    pub(super) fn is_done(&self) -> bool {
        let [a, b] = &self.ends;
        a.got_count == b.want
            && b.got_count == a.want
            && a.acked_count == a.want
            && b.acked_count == b.want
    }
}

impl End {
    /// What it sends from now on is small.
    fn narrow(&mut self, now: u64) {
        self.connection.set_packet_size(EVERY_PATH);
        self.packet = self.packet.min(EVERY_PATH);
        self.narrowed_at.get_or_insert(now);
    }

    fn acknowledge(&mut self, now: Instant, ack: &AckInfo<'_>) {
        let (acked, count) = (&mut self.acked, &mut self.acked_count);
        self.connection
            .handle_ack(now, ack, &mut |item: Item| {
                assert!(!acked[item.index as usize], "acknowledged twice: {item:?}");
                acked[item.index as usize] = true;
                *count += 1;
            })
            .expect("an honest peer acknowledges what was sent");
    }

    fn take(&mut self, now: Instant, number: u64, item: Item, packet: &Received, refused: bool) {
        match self.connection.arrival(number) {
            Arrival::New if refused => {}
            Arrival::New => {
                assert!(!self.got[item.index as usize], "accepted twice: {item:?}");
                self.got[item.index as usize] = true;
                self.got_count += 1;
                self.got_bytes += u64::from(item.bytes);
                self.connection.accept(now, number, packet, &mut self.pool);
            }
            Arrival::Duplicate => {
                assert!(
                    self.got[item.index as usize],
                    "taken for a duplicate: {item:?}"
                );
                self.connection.duplicate(now, packet, &mut self.pool);
            }
            Arrival::Beyond => panic!("an honest peer stays in the window: {number}"),
        }
    }
}
