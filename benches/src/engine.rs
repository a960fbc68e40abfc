//! The engine alone: two of them on a memory pair, one thread driving both ends.

use crate::rounds::alternate;
use crate::{Measurement, Setting};
use std::convert::Infallible;
use std::net::IpAddr;
use std::time::{Duration, Instant};
use trunkline_conn::egress::Egress;
use trunkline_conn::mem::RegionMemory;
use trunkline_conn::work::{Completion, Remote, SendFlags, SendOp, Status};
use trunkline_dataplane::{MemoryConfig, MemoryPort, Port, Region};
use trunkline_pieces::pair::{Ends, PairConfig, send};
use trunkline_qpmap::wqe::{RecvWr, SendWr};
use trunkline_wire::{Bth, Crc, IpFields, Path, SrcExt};

/// Bytes of a small message.
const SMALL: u32 = 64;
/// Requests under way on each QP.
const DEPTH: u64 = 8;
/// Messages under way on all QPs together.
const BUDGET: u64 = 4096;
/// QPs that post between two rounds of the engines.
const POSTERS: usize = 16;
/// Bytes of a large message.
const LARGE: usize = 1 << 20;

/// SENDs of 64 bytes on QPs of one connection, each with a completion at both ends.
#[derive(Debug)]
pub struct Sender {
    ends: Ends,
    active: usize,
    /// Requests without a completion yet, by QP.
    under_way: Vec<u64>,
    budget: u64,
    /// The QP that posts next.
    next: usize,
    sent: u64,
    received: u64,
}

impl Sender {
    /// `qps` QPs, of which `active` will send.
    ///
    /// # Panics
    /// When memory runs out.
    pub fn new(qps: usize, active: usize) -> Self {
        let ends = Ends::new(&PairConfig {
            qps,
            ..PairConfig::default()
        });
        let under_way = vec![0; active];
        Self {
            ends,
            active,
            under_way,
            budget: BUDGET,
            next: 0,
            sent: 0,
            received: 0,
        }
    }

    /// The two ends.
    pub const fn ends(&mut self) -> &mut Ends {
        &mut self.ends
    }

    /// QPs take turns, each with a batch.
    fn post(&mut self) {
        let (from, to) = (
            self.ends.nodes[0].sge(0, SMALL),
            self.ends.nodes[1].sge(0, SMALL),
        );
        let (from, to) = ([from], [to]);
        for _ in 0..POSTERS {
            let qp = self.next;
            if self.budget < DEPTH || self.under_way[qp] >= DEPTH {
                return;
            }
            self.next = if qp + 1 == self.active { 0 } else { qp + 1 };
            let receives = [RecvWr {
                wr_id: qp as u64,
                sges: &to,
            }; DEPTH as usize];
            self.ends.post_recv(1, qp, &receives);
            self.ends
                .post_send(0, qp, &[send(qp, &from); DEPTH as usize]);
            self.under_way[qp] += DEPTH;
            self.budget -= DEPTH;
        }
    }

    /// One round: posts, drives both ends, takes completions.
    ///
    /// # Panics
    /// When a SEND fails.
    pub fn turn(&mut self) {
        self.post();
        self.drive();
    }

    fn drive(&mut self) {
        let mut done = [Completion::BLANK; 256];
        self.ends.turn();
        loop {
            let got = self.ends.nodes[0]
                .cq
                .poll(&mut done)
                .expect("room in the CQ");
            for completion in &done[..got] {
                assert_eq!(completion.status, Status::Success, "a SEND failed");
                self.under_way[completion.wr_id as usize] -= 1;
            }
            self.budget += got as u64;
            self.sent += got as u64;
            if got < done.len() {
                break;
            }
        }
        loop {
            let got = self.ends.nodes[1]
                .cq
                .poll(&mut done)
                .expect("room in the CQ");
            assert!(
                done[..got].iter().all(|c| c.byte_len == SMALL),
                "a SEND came mutilated"
            );
            self.received += got as u64;
            if got < done.len() {
                break;
            }
        }
    }

    /// Lets every active QP send at least once, and all of it arrive.
    ///
    /// # Panics
    /// When a SEND fails, or never arrives.
    pub fn go_round(&mut self) {
        let aim = self.sent + self.active as u64 * DEPTH;
        let mut turns = 0;
        while self.sent < aim {
            self.turn();
            turns += 1;
            assert!(turns < 10_000_000, "nothing moves");
        }
        self.settle();
    }

    /// Sends at least `count` messages, at most one turn's more, and lets all of them arrive.
    ///
    /// # Panics
    /// When a SEND fails or gets lost.
    pub fn send(&mut self, count: u64) {
        let aim = self.sent + BUDGET - self.budget + count;
        while self.sent + BUDGET - self.budget < aim {
            self.turn();
        }
        self.settle();
    }

    /// Lets everything under way arrive.
    fn settle(&mut self) {
        for _ in 0..10_000_000 {
            if self.budget == BUDGET && self.received == self.sent {
                return;
            }
            self.drive();
        }
        panic!("{} SENDs got lost", BUDGET - self.budget);
    }

    /// Messages per second over about `duration`.
    ///
    /// # Panics
    /// When a SEND fails or gets lost.
    pub fn run(&mut self, duration: Duration) -> f64 {
        let before = self.sent;
        let started = Instant::now();
        while started.elapsed() < duration {
            for _ in 0..16 {
                self.turn();
            }
        }
        let count = self.sent - before;
        let seconds = started.elapsed().as_secs_f64();
        self.settle();
        assert!(count > 0, "nothing moved");
        count as f64 / seconds
    }
}

/// The yardstick of `engine_send64`: the same datagrams through the same port, copied and summed at
/// each end, with no engine and no rings: datagrams per second.
#[derive(Debug)]
pub struct BarePort {
    ends: [MemoryPort; 2],
    memory: [Region; 2],
    path: Path,
}

impl Default for BarePort {
    fn default() -> Self {
        let config = MemoryConfig {
            slot_bytes: PairConfig::default().datagram as usize,
            slots: 1024,
        };
        let (a, b) = MemoryPort::pair(config);
        let region = || Region::allocate(4096).expect("memory");
        let address = |last| IpAddr::from([10, 0, 0, last]);
        let path = Path {
            src: address(1),
            dst: address(2),
            src_port: 4791,
            traffic_class: 0,
            ip: IpFields::DEFAULT,
        };
        Self {
            ends: [a, b],
            memory: [region(), region()],
            path,
        }
    }
}

impl BarePort {
    /// Datagrams per second over about `duration`.
    ///
    /// # Panics
    /// When bytes change on the way.
    pub fn run(&mut self, duration: Duration) -> f64 {
        const HEADERS: usize = Bth::LEN + SrcExt::LEN;
        const END: usize = HEADERS + SMALL as usize;
        const BURST: usize = POSTERS * DEPTH as usize;
        let [from, to] = &mut self.ends;
        let [source, target] = &self.memory;
        let mut count = 0;
        let started = Instant::now();
        while started.elapsed() < duration {
            for _ in 0..16 {
                for _ in 0..BURST {
                    let slot = from
                        .reserve(&self.path, END + 4)
                        .expect("the other end reads");
                    let mut crc = Crc::new();
                    slot.datagram[..HEADERS].fill(1);
                    source.copy_out(0, &mut slot.datagram[HEADERS..END], Some(&mut crc));
                    slot.datagram[END..].copy_from_slice(&crc.value().to_le_bytes());
                    from.commit();
                }
                from.flush().expect("memory does not fail");
                let got = to.receive(BURST, &mut |_, datagram| {
                    let mut crc = Crc::new();
                    target.copy_in(0, &datagram[HEADERS..END], Some(&mut crc));
                    assert_eq!(crc.value().to_le_bytes(), datagram[END..], "the same bytes");
                });
                count += got.expect("memory does not fail");
            }
        }
        count as f64 / started.elapsed().as_secs_f64()
    }
}

/// `engine_send64`
pub fn send64(setting: &Setting) -> Measurement {
    let (mut engine, mut port) = (Sender::new(1000, 1000), BarePort::default());
    let Ok(medians) = alternate::<Infallible>(
        setting.rounds,
        || Ok(engine.run(setting.duration)),
        || Ok(port.run(setting.duration)),
    );
    Measurement::new(
        "engine_send64",
        "messages/s, SENDs of 64 B with completions at both ends, 1,000 QPs on one connection, one \
         thread",
        "the same datagrams through the bare memory port, copied and summed once per end",
        medians,
    )
}

/// WRITEs of 1 MiB, going round a buffer of `span` bytes at each end; of `span` bytes if that is
/// less.
#[derive(Debug)]
pub struct Writer {
    ends: Ends,
    span: usize,
    offset: usize,
}

impl Writer {
    /// Two engines on packets of 4096 bytes.
    ///
    /// # Panics
    /// When memory runs out.
    pub fn new(span: usize) -> Self {
        let config = PairConfig {
            qps: 1,
            bytes: span,
            ..PairConfig::default()
        };
        Self {
            ends: Ends::new(&config),
            span,
            offset: 0,
        }
    }

    /// Bytes per second over about `duration`.
    ///
    /// # Panics
    /// When a WRITE fails.
    pub fn run(&mut self, duration: Duration) -> f64 {
        let message = LARGE.min(self.span);
        let mut done = [Completion::BLANK; 16];
        let (mut under_way, mut bytes) = (0, 0);
        let started = Instant::now();
        loop {
            let over = started.elapsed() >= duration;
            if over && under_way == 0 {
                return bytes as f64 / started.elapsed().as_secs_f64();
            }
            while under_way < 4 && !over {
                self.post(message);
                under_way += 1;
            }
            self.ends.turn();
            let got = self.ends.nodes[0]
                .cq
                .poll(&mut done)
                .expect("room in the CQ");
            for completion in &done[..got] {
                assert_eq!(completion.status, Status::Success, "a WRITE failed");
            }
            under_way -= got;
            bytes += got * message;
        }
    }

    fn post(&mut self, message: usize) {
        let [client, server] = &self.ends.nodes;
        let addr = server.region.addr() + self.offset as u64;
        let op = SendOp::Write(Remote {
            addr,
            rkey: server.key,
        });
        let sges = [client.sge_at(self.offset, message as u32)];
        let flags = SendFlags::SIGNALED;
        let request = SendWr {
            wr_id: 0,
            op,
            flags,
            sges: &sges,
            inline: None,
            route: 0,
        };
        self.ends.post_send(0, 0, &[request]);
        self.offset = (self.offset + message) % self.span;
    }
}

/// Room for a packet's payload, as the port has it: it begins a cache line, and the next one begins
/// elsewhere in its page. Copies across lines take half as long again, and loads wait for stores
/// whose addresses end alike; where an allocator puts bytes would be chance.
#[derive(Clone, Debug)]
#[repr(align(64))]
struct Frame {
    payload: [u8; 4096],
    _apart: [u8; 64],
}

/// The yardstick of [`Writer`]: each byte copied and summed once per end, over as large buffers, by
/// the same kernel, with nothing else.
#[derive(Debug)]
pub struct CopyTwice {
    source: Region,
    target: Region,
    frames: Vec<Frame>,
}

impl CopyTwice {
    /// Over `span` bytes.
    ///
    /// # Panics
    /// When memory runs out.
    pub fn new(span: usize) -> Self {
        let region = || Region::allocate(span).expect("memory");
        Self {
            source: region(),
            target: region(),
            frames: vec![
                Frame {
                    payload: [0; 4096],
                    _apart: [0; 64],
                };
                64
            ],
        }
    }

    /// Bytes per second over about `duration`.
    ///
    /// # Panics
    /// When bytes change on the way.
    pub fn run(&mut self, duration: Duration) -> f64 {
        let (mut bytes, mut offset) = (0, 0);
        let started = Instant::now();
        while started.elapsed() < duration {
            for Frame { payload: frame, .. } in &mut self.frames {
                let (mut crc, mut check) = (Crc::new(), Crc::new());
                self.source.copy_out(offset, frame, Some(&mut crc));
                self.target.copy_in(offset, frame, Some(&mut check));
                assert_eq!(crc, check, "the same bytes");
                offset = (offset + frame.len()) % self.source.len();
                bytes += frame.len();
            }
        }
        bytes as f64 / started.elapsed().as_secs_f64()
    }
}

/// `engine_write1m_l2`: over 128 KiB at each end, so that messages are 128 KiB too.
pub fn write1m_l2(setting: &Setting) -> Measurement {
    write1m("engine_write1m_l2", 128 << 10, setting)
}

/// `engine_write1m_64m`
pub fn write1m_64m(setting: &Setting) -> Measurement {
    write1m("engine_write1m_64m", 64 << 20, setting)
}

fn write1m(name: &'static str, span: usize, setting: &Setting) -> Measurement {
    let (mut engine, mut copy) = (Writer::new(span), CopyTwice::new(span));
    let Ok(medians) = alternate::<Infallible>(
        setting.rounds,
        || Ok(engine.run(setting.duration)),
        || Ok(copy.run(setting.duration)),
    );
    let yardstick = "fused copy and CRC once per end over the same buffers, nothing else";
    Measurement::new(
        name,
        "bytes/s, WRITEs in packets of 4096 B, one thread",
        yardstick,
        medians,
    )
}
