//! Two RC engines on a link that loses, doubles, reorders and marks packets, in virtual time:
//! whatever it does, memory and completions are those of a plain model.

mod common;

use common::{Port, Qp, Region, Rng, Sent, path, pattern, receive, request, sge};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use trunkline_conn::mem::AtomicOp;
use trunkline_conn::rc::{Config, Dropped, Mtu, ReliableConnection, State, Stats};
use trunkline_conn::time::Instant;
use trunkline_conn::work::{
    Completion, Extra, Remote, Request, SendFlags, SendOp, Status, WorkOpcode,
};
use trunkline_wire::{Psn, Qpn, Rkey, parse_datagram};

/// Seeds tried; `TRUNKLINE_SEEDS` asks for another number, `TRUNKLINE_SEED` for one seed.
const SEEDS: u64 = 2000;
const LOCAL: u32 = 0x11;
const TARGET: u32 = 0x22;
const INBOX: u32 = 0x33;
/// First of the keys that are there to be invalidated.
const VICTIM: u32 = 0x1000;
const BASE: u64 = 0x7f00_0000_0000;
/// Bytes of the target that are read and written, and behind them counters.
const SHARED: u64 = 16 << 10;
const COUNTERS: u64 = 8;
/// Virtual time within which everything is done.
const DEADLINE_NS: u64 = 60_000_000_000;

/// What the draw of a seed gave.
#[derive(Clone, Copy, Debug)]
struct Weather {
    loss: u64,
    double: u64,
    late: u64,
    mark: u64,
    not_ready: u64,
    full: u64,
    delay_ns: u64,
}

/// What a request has to lead to.
#[derive(Debug)]
struct Expectation {
    sent: Sent,
    /// READs and atomics: what stands in local memory afterwards.
    result: Option<(u64, Vec<u8>)>,
    /// Messages received by then.
    arrived: usize,
}

/// One end: engine, QP, requests to come and what they have to lead to.
struct End {
    engine: ReliableConnection,
    qp: Qp,
    port: Port,
    requests: Vec<Request>,
    next: usize,
    expected: Vec<Expectation>,
    /// What this end has to receive, and the receives not yet posted.
    inbound: Vec<(Completion, Vec<u8>)>,
    posted: usize,
    checked: usize,
}

/// The plain model of one direction: the responder's memory in the order of requests.
struct Model {
    target: Vec<u8>,
    inbound: Vec<(Completion, Vec<u8>)>,
    expected: Vec<Expectation>,
    requests: Vec<Request>,
    /// An unfenced READ of what may be written next.
    read: bool,
}

impl Model {
    /// Draws `count` requests and executes them.
    fn run(rng: &mut Rng, count: u64, mtu: u64, local: &[u8], target: Vec<u8>) -> Self {
        let mut model = Self {
            target,
            inbound: Vec::new(),
            expected: Vec::new(),
            requests: Vec::new(),
            read: false,
        };
        for wr_id in 0..count {
            model.draw(rng, wr_id, mtu, local);
        }
        model
    }

    fn draw(&mut self, rng: &mut Rng, wr_id: u64, mtu: u64, local: &[u8]) {
        let length = match rng.below(6) {
            0 => 0,
            1 => 1 + rng.below(64),
            2 => mtu * (1 + rng.below(3)),
            3 => mtu + 1,
            _ => rng.below(6 * mtu),
        };
        // Results go behind the data, each to its own place.
        let from = rng.below(SHARED);
        let (mut element, mut result) = (sge(LOCAL, BASE + from, length as u32), None);
        let own = BASE + 2 * SHARED + wr_id * SHARED;
        let at = rng.below(SHARED - length + 1);
        let data = local[from as usize..(from + length) as usize].to_vec();
        let remote = Remote {
            addr: BASE + at,
            rkey: Rkey(TARGET),
        };
        let imm = rng.next() as u32;
        let op = match rng.below(9) {
            0 | 1 => self.send(SendOp::Send, Extra::None, data),
            2 => self.send(SendOp::SendImm(imm), Extra::Immediate(imm), data),
            3 => {
                let key = Rkey(VICTIM + wr_id as u32);
                self.send(SendOp::SendInvalidate(key), Extra::Invalidated(key), data)
            }
            4 => self.write(SendOp::Write(remote), at, &data),
            5 => {
                self.write(SendOp::WriteImm(remote, imm), at, &data);
                let opcode = WorkOpcode::ReceiveWriteImm;
                self.arrive(opcode, Extra::Immediate(imm), length as u32, Vec::new());
                SendOp::WriteImm(remote, imm)
            }
            6 | 7 => {
                let range = at as usize..(at + length) as usize;
                result = Some((own, self.target[range].to_vec()));
                element = sge(LOCAL, own, length as u32);
                SendOp::Read(remote)
            }
            _ => {
                element = sge(LOCAL, own, 8);
                let (op, before) = self.atomic(rng);
                result = Some((own, before.to_ne_bytes().to_vec()));
                op
            }
        };
        let mut request = request(wr_id, op, element);
        let changes = matches!(op, SendOp::Write(_) | SendOp::WriteImm(..));
        if changes && self.read || rng.percent(5) {
            request.flags = request.flags.with(SendFlags::FENCE);
            self.read = false;
        }
        self.read |= matches!(op, SendOp::Read(_));
        if rng.percent(20) {
            request.flags = request.flags.with(SendFlags::SOLICITED);
            if op.consumes_receive() {
                let last = self.inbound.last_mut().expect("it was just put there");
                last.0.solicited = true;
            }
        }
        let sent = Sent {
            wr_id,
            opcode: WorkOpcode::from(&op),
            status: Status::Success,
            byte_len: request.length,
        };
        self.requests.push(request);
        self.expected.push(Expectation {
            sent,
            result,
            arrived: self.inbound.len(),
        });
    }

    fn arrive(&mut self, opcode: WorkOpcode, extra: Extra, byte_len: u32, data: Vec<u8>) {
        let completion = Completion {
            wr_id: self.inbound.len() as u64,
            status: Status::Success,
            opcode,
            byte_len,
            extra,
            ..Completion::BLANK
        };
        self.inbound.push((completion, data));
    }

    fn send(&mut self, op: SendOp, extra: Extra, data: Vec<u8>) -> SendOp {
        self.arrive(WorkOpcode::Receive, extra, data.len() as u32, data);
        op
    }

    fn write(&mut self, op: SendOp, at: u64, data: &[u8]) -> SendOp {
        self.target[at as usize..at as usize + data.len()].copy_from_slice(data);
        op
    }

    fn atomic(&mut self, rng: &mut Rng) -> (SendOp, u64) {
        let at = SHARED + 8 * rng.below(COUNTERS);
        let place = self.target[at as usize..]
            .first_chunk_mut::<8>()
            .expect("counters are inside");
        let before = u64::from_ne_bytes(*place);
        let op = if rng.percent(50) {
            let add = rng.next();
            *place = before.wrapping_add(add).to_ne_bytes();
            AtomicOp::FetchAdd { add }
        } else {
            let compare = if rng.percent(70) { before } else { rng.next() };
            let swap = rng.next();
            if compare == before {
                *place = swap.to_ne_bytes();
            }
            AtomicOp::CompareSwap { compare, swap }
        };
        let remote = Remote {
            addr: BASE + at,
            rkey: Rkey(TARGET),
        };
        (SendOp::Atomic(remote, op), before)
    }
}

impl End {
    fn new(config: Config, local: Vec<u8>, target: Vec<u8>, requests: usize) -> Self {
        let mut qp = Qp::default();
        let results = vec![0; SHARED as usize * requests];
        qp.ram.regions = vec![
            Region::new(LOCAL, BASE, [local, results].concat()),
            Region::new(TARGET, BASE, target),
            Region::new(INBOX, BASE, vec![0; SHARED as usize * (requests + 1)]),
        ];
        for key in 0..requests as u32 {
            qp.ram
                .regions
                .push(Region::new(VICTIM + key, BASE, vec![0; 8]));
        }
        Self {
            engine: ReliableConnection::new(config),
            qp,
            port: Port::default(),
            requests: Vec::new(),
            next: 0,
            expected: Vec::new(),
            inbound: Vec::new(),
            posted: 0,
            checked: 0,
        }
    }

    /// Posts what fits.
    fn post(&mut self, rng: &mut Rng, not_ready: u64) {
        while self.next < self.requests.len() {
            match self.engine.post_send(self.requests[self.next].clone()) {
                Ok(()) => self.next += 1,
                Err(_) => break,
            }
        }
        while self.posted < self.inbound.len() && !rng.percent(not_ready) {
            let at = BASE + SHARED * self.posted as u64;
            let element = sge(INBOX, at, SHARED as u32);
            self.qp
                .receives
                .push_back(receive(self.posted as u64, element));
            self.posted += 1;
        }
    }

    /// Compares completions with the model; `peer_received`: messages the peer had by now.
    fn check(&mut self, peer_received: usize) {
        while self.checked < self.qp.sent.len() {
            let expected = &self.expected[self.checked];
            assert_eq!(self.qp.sent[self.checked], expected.sent);
            assert!(expected.arrived <= peer_received, "done before it arrived");
            if let Some((at, bytes)) = &expected.result {
                let placed = self.qp.ram.bytes(LOCAL, *at, bytes.len());
                assert!(
                    placed == *bytes,
                    "{:?} brought something else",
                    expected.sent
                );
            }
            self.checked += 1;
        }
    }

    fn check_inbound(&self) {
        assert_eq!(self.qp.received.len(), self.inbound.len());
        for (number, (completion, data)) in self.inbound.iter().enumerate() {
            let mut expected = *completion;
            expected.qpn = self.engine.config().qpn;
            assert_eq!(self.qp.received[number], expected);
            let at = BASE + SHARED * number as u64;
            assert!(self.qp.ram.bytes(INBOX, at, data.len()) == *data);
            if let Extra::Invalidated(key) = completion.extra {
                assert!(self.qp.ram.regions.iter().all(|region| region.key != key.0));
            }
        }
    }

    fn is_done(&self) -> bool {
        self.checked == self.expected.len()
    }
}

/// On its way: when it arrives, a number that breaks ties, to whom, marked or not, what.
type Flight = Reverse<(u64, u64, usize, bool, Vec<u8>)>;

struct World {
    now: u64,
    rng: Rng,
    weather: Weather,
    ends: [End; 2],
    /// What the targets of the two ends have to hold in the end.
    finals: [Vec<u8>; 2],
    air: BinaryHeap<Flight>,
    flights: u64,
}

/// The attributes of both ends.
fn configs(rng: &mut Rng) -> [Config; 2] {
    let mtu = Mtu::from_code(1 + rng.below(4) as u8).expect("codes 1 to 4 are known");
    // One of them wraps.
    let psns = [rng.next() as u32, 0x00ff_ff00 + rng.below(0x100) as u32];
    let resources = 1 + rng.below(8);
    // Small windows cut READs.
    let widest = if rng.percent(50) { 12 } else { 200 };
    [0, 1].map(|end: usize| Config {
        path_mtu: mtu,
        sq_psn: Psn::from_wire(psns[end]),
        rq_psn: Psn::from_wire(psns[1 - end]),
        timeout: 7,
        min_rnr_timer: 1,
        max_rd_atomic: 1 + rng.below(resources) as u8,
        max_dest_rd_atomic: resources as u8,
        send_capacity: 1 + rng.below(20) as usize,
        window: 1 + rng.below(widest) as u32,
        link_rate: Some(10_000_000_000),
        ..Config::new(
            Qpn::from_wire(0x10 + end as u32),
            Qpn::from_wire(0x11 - end as u32),
            path(end as u8 + 1, 2 - end as u8),
        )
    })
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let bad = |rng: &mut Rng, most: u64| match rng.percent(50) {
            true => rng.below(most + 1),
            false => 0,
        };
        let weather = Weather {
            loss: bad(&mut rng, 4),
            double: bad(&mut rng, 5),
            late: bad(&mut rng, 10),
            mark: bad(&mut rng, 5),
            not_ready: bad(&mut rng, 60),
            full: bad(&mut rng, 40),
            delay_ns: 500 + rng.below(30_000),
        };
        let configs = configs(&mut rng);
        let counts = [1 + rng.below(50), rng.below(50)];
        let most = counts[0].max(counts[1]) as usize;
        let mtu = configs[0].path_mtu.bytes().into();
        let target = |end: u64| pattern(seed * 4 + 2 + end, (SHARED + 8 * COUNTERS) as usize);
        let data = [0, 1].map(|end| pattern(seed * 4 + end, 2 * SHARED as usize));
        let forth = Model::run(&mut rng, counts[0], mtu, &data[0], target(1));
        let back = Model::run(&mut rng, counts[1], mtu, &data[1], target(0));
        let [first, second] = data;
        let mut ends = [
            End::new(configs[0], first, target(0), most),
            End::new(configs[1], second, target(1), most),
        ];
        (ends[0].requests, ends[0].expected) = (forth.requests, forth.expected);
        (ends[1].requests, ends[1].expected) = (back.requests, back.expected);
        (ends[0].inbound, ends[1].inbound) = (back.inbound, forth.inbound);
        Self {
            now: 0,
            rng,
            weather,
            ends,
            finals: [back.target, forth.target],
            air: BinaryHeap::new(),
            flights: 0,
        }
    }

    /// Sends what end `from` has, through the weather.
    fn drain(&mut self, from: usize) {
        let (weather, rng) = (self.weather, &mut self.rng);
        let end = &mut self.ends[from];
        let now = Instant::from_nanos(self.now);
        end.port.room = match rng.percent(weather.full) {
            true => rng.below(4) as usize,
            false => usize::MAX,
        };
        while end
            .engine
            .poll_transmit(now, &mut end.qp, &mut end.port)
            .is_packet()
        {}
        while let Some(datagram) = end.port.take() {
            let copies = match (rng.percent(weather.loss), rng.percent(weather.double)) {
                (true, _) => 0,
                (false, true) => 2,
                (false, false) => 1,
            };
            for _ in 0..copies {
                let late = match rng.percent(weather.late) {
                    true => rng.below(3 * weather.delay_ns),
                    false => 0,
                };
                let at = self.now + weather.delay_ns + late;
                let marked = rng.percent(weather.mark);
                self.flights += 1;
                let flight = (at, self.flights, 1 - from, marked, datagram.clone());
                self.air.push(Reverse(flight));
            }
        }
    }

    fn deliver(&mut self) {
        let now = Instant::from_nanos(self.now);
        while let Some(Reverse((at, ..))) = self.air.peek() {
            if *at > self.now {
                break;
            }
            let Some(Reverse((_, _, to, marked, datagram))) = self.air.pop() else {
                break;
            };
            let packet = parse_datagram(&datagram).expect("an engine built it");
            let end = &mut self.ends[to];
            // Drops are part of the game; the statistics count them.
            let _ = end.engine.handle_packet(now, &packet, marked, &mut end.qp);
            let here = end.qp.received.len();
            let there = self.ends[1 - to].qp.received.len();
            self.ends[to].check(there);
            self.ends[1 - to].check(here);
        }
    }

    fn run(&mut self) {
        for _ in 0..10_000_000_u64 {
            for end in 0..2 {
                self.ends[end].post(&mut self.rng, self.weather.not_ready);
                self.drain(end);
            }
            if self.ends.iter().all(End::is_done) {
                return;
            }
            let timers = self.ends.iter().filter_map(|end| end.engine.poll_timeout());
            let timer = timers.map(Instant::as_nanos).min().unwrap_or(u64::MAX);
            let air = self.air.peek().map_or(u64::MAX, |Reverse((at, ..))| *at);
            let owing = |end: &End| end.posted < end.inbound.len() || end.port.room == 0;
            let retry = match self.ends.iter().any(owing) {
                true => self.now + 5_000,
                false => u64::MAX,
            };
            self.now = self.now.max(timer.min(air).min(retry));
            assert!(self.now < DEADLINE_NS, "nothing gets done any more");
            self.deliver();
            let now = Instant::from_nanos(self.now);
            for end in &mut self.ends {
                end.engine.handle_timeout(now, &mut end.qp);
            }
        }
        panic!("it never ends");
    }

    /// After the last completion nothing is left, and memory is as the model has it.
    fn check(&self) {
        for (end, target) in self.ends.iter().zip(&self.finals) {
            assert_eq!(end.engine.state(), State::Ready);
            assert_eq!(end.engine.pending(), 0);
            end.check_inbound();
            assert!(end.qp.ram.bytes(TARGET, BASE, target.len()) == *target);
        }
    }
}

fn law(seed: u64) -> [Stats; 2] {
    let mut world = World::new(seed);
    world.run();
    world.check();
    world.ends.map(|end| *end.engine.stats())
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().expect("it is a number"))
}

#[test]
fn whatever_the_link_does_both_ends_agree_with_the_model() {
    let seeds = match number("TRUNKLINE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("TRUNKLINE_SEEDS").unwrap_or(SEEDS),
    };
    let many = seeds.end - seeds.start >= 100;
    let mut seen = [0; 9];
    for seed in seeds {
        let outcome = std::panic::catch_unwind(|| law(seed));
        let stats = outcome.unwrap_or_else(|_| panic!("TRUNKLINE_SEED={seed} replays it"));
        for one in &stats {
            let counts = [
                one.retransmitted,
                one.timeouts,
                one.implied_naks,
                one.sequence_naks_received,
                one.rnr_naks_received,
                one.duplicates,
                one.cnps_received,
                one.dropped(Dropped::StaleResponse),
                one.dropped(Dropped::PsnGap),
            ];
            for (sum, count) in seen.iter_mut().zip(counts) {
                *sum += count;
            }
        }
    }
    println!("seen: {seen:?}");
    // A link that shows nothing proves nothing.
    assert!(!many || seen.iter().all(|&count| count > 0), "{seen:?}");
}
