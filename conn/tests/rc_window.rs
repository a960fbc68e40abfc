//! What RC has under way to peers of any speed: many QPs share one that takes its packets slowly,
//! marks nothing and drops nothing, as soft-RoCE does in an emulated machine, in virtual time.

mod common;

use common::{Port, Qp, Region, path, request, sge};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use trunkline_conn::rc::{Config, Mtu, ReliableConnection, State, ack_timeout_ns};
use trunkline_conn::time::Instant;
use trunkline_conn::work::{Remote, SendFlags, SendOp, Status};
use trunkline_wire::{Qpn, Rkey, parse_datagram};

const KEY: u32 = 7;
const MTU: usize = 256;
const TIMEOUT: u8 = 14;
const ROOM: usize = 1024 * MTU;
/// Packets that the queue before the peer holds.
const DEEP: usize = 20_000;

struct End {
    engine: ReliableConnection,
    qp: Qp,
    port: Port,
}

impl End {
    fn new(config: Config) -> Self {
        let mut qp = Qp::default();
        qp.ram.regions = vec![Region::new(KEY, 0, vec![0; ROOM])];
        Self {
            engine: ReliableConnection::new(config),
            qp,
            port: Port::default(),
        }
    }

    /// Its next datagram.
    fn next(&mut self, now: u64) -> Option<Vec<u8>> {
        let (qp, port) = (&mut self.qp, &mut self.port);
        let _ = self
            .engine
            .poll_transmit(Instant::from_nanos(now), qp, port);
        port.take()
    }

    fn take(&mut self, now: u64, datagram: &[u8]) {
        let packet = parse_datagram(datagram).expect("an engine built it");
        // Duplicates are dropped, and counted.
        let now = Instant::from_nanos(now);
        let _ = self.engine.handle_packet(now, &packet, false, &mut self.qp);
    }
}

/// A packet on its way: when it arrives, a number that breaks ties, of which QP, whether to the
/// peer.
type Flight = Reverse<(u64, u64, usize, bool, Vec<u8>)>;

/// QPs of one host, and those of the peer that they are connected to.
struct World {
    now: u64,
    qps: Vec<End>,
    peers: Vec<End>,
    air: BinaryHeap<Flight>,
    flights: u64,
    delay_ns: u64,
    /// What came for each QP of the peer and waits there.
    queues: Vec<VecDeque<Vec<u8>>>,
    /// Time that the peer takes for a packet, and how many of a QP it takes in its turn, of those
    /// that wait when that begins.
    packet_ns: u64,
    turn: usize,
    /// Whose turn it is, what is left of it, and when the peer has time again.
    serves: usize,
    left: usize,
    free_at: u64,
    /// Packets sent, and the one of them that is lost.
    sent: u64,
    lost: Option<u64>,
    /// Packets that came back.
    answers: u64,
}

impl World {
    fn new(qps: u32, packet_ns: u64, change: impl Fn(Config) -> Config) -> Self {
        let config = |qp: u32, ours: bool| {
            let [from, to] = if ours { [1, 2] } else { [2, 1] };
            let qpn = Qpn::from_wire(0x10 + qp);
            change(Config {
                path_mtu: Mtu::B256,
                timeout: TIMEOUT,
                flow_control: false,
                ..Config::new(qpn, qpn, path(from, to))
            })
        };
        let ends = |ours| (0..qps).map(|qp| End::new(config(qp, ours))).collect();
        Self {
            now: 0,
            qps: ends(true),
            peers: ends(false),
            air: BinaryHeap::new(),
            flights: 0,
            delay_ns: 10_000,
            queues: vec![VecDeque::new(); qps as usize],
            packet_ns,
            turn: 1,
            serves: 0,
            left: 0,
            free_at: 0,
            sent: 0,
            lost: None,
            answers: 0,
        }
    }

    /// Posts `count` messages of `packets` packets on each QP.
    fn post(&mut self, count: u64, packets: usize, op: SendOp) {
        for end in &mut self.qps {
            for wr_id in 0..count {
                let element = sge(KEY, 0, (packets * MTU) as u32);
                assert!(end.engine.post_send(request(wr_id, op, element)).is_ok());
            }
        }
    }

    fn fly(&mut self, qp: usize, to_peer: bool, datagram: Vec<u8>) {
        self.flights += 1;
        let at = self.now + self.delay_ns;
        let flight = (at, self.flights, qp, to_peer, datagram);
        self.air.push(Reverse(flight));
    }

    fn send(&mut self) {
        for qp in 0..self.qps.len() {
            while let Some(datagram) = self.qps[qp].next(self.now) {
                self.sent += 1;
                if self.lost != Some(self.sent) {
                    self.fly(qp, true, datagram);
                }
            }
        }
    }

    fn deliver(&mut self) {
        while let Some(Reverse((at, ..))) = self.air.peek()
            && *at <= self.now
            && let Some(Reverse((_, _, qp, to_peer, datagram))) = self.air.pop()
        {
            match to_peer {
                true if self.waiting() < DEEP => self.queues[qp].push_back(datagram),
                true => {}
                false => {
                    self.answers += 1;
                    self.qps[qp].take(self.now, &datagram);
                }
            }
        }
    }

    /// Packets that wait at the peer.
    fn waiting(&self) -> usize {
        self.queues.iter().map(VecDeque::len).sum()
    }

    /// The peer does what it has time for: it sends what it has to, then takes one more packet.
    fn serve(&mut self) {
        let mut idle = 0;
        while self.free_at <= self.now && idle <= self.peers.len() {
            let qp = self.serves;
            if self.serve_one(qp) {
                idle = 0;
            } else {
                self.serves = (qp + 1) % self.peers.len();
                self.left = self.queues[self.serves].len().min(self.turn);
                idle += 1;
            }
        }
    }

    fn serve_one(&mut self, qp: usize) -> bool {
        if let Some(datagram) = self.peers[qp].next(self.now) {
            // An acknowledgement belongs to the packet that was taken.
            let has_data = datagram.len() > MTU;
            self.free_at = self.now + if has_data { self.packet_ns } else { 0 };
            self.fly(qp, false, datagram);
            return true;
        }
        if self.left == 0 {
            return false;
        }
        let Some(datagram) = self.queues[qp].pop_front() else {
            return false;
        };
        self.left -= 1;
        self.peers[qp].take(self.now, &datagram);
        self.free_at = self.now + self.packet_ns;
        true
    }

    /// Goes on to the next event; `false` when there is none.
    fn step(&mut self) -> bool {
        self.send();
        self.serve();
        self.send();
        let timers = self.qps.iter().filter_map(|end| end.engine.poll_timeout());
        let timer = timers.map(Instant::as_nanos).min();
        let air = self.air.peek().map(|Reverse((at, ..))| *at);
        let free = (self.free_at > self.now).then_some(self.free_at);
        let Some(next) = [timer, air, free].into_iter().flatten().min() else {
            return false;
        };
        self.now = self.now.max(next);
        self.deliver();
        for end in &mut self.qps {
            let now = Instant::from_nanos(self.now);
            end.engine.handle_timeout(now, &mut end.qp);
        }
        true
    }

    fn is_done(&self, count: usize) -> bool {
        self.qps.iter().all(|end| end.qp.sent.len() == count)
    }

    /// Runs until each QP has done `count` messages; gives the most packets that waited at the peer
    /// after `warm_ns`.
    fn run(&mut self, count: usize, warm_ns: u64) -> usize {
        let mut most = 0;
        while !self.is_done(count) && self.step() {
            if self.now > warm_ns {
                most = most.max(self.waiting());
            }
            let works = |end: &End| end.engine.state() == State::Ready;
            assert!(self.qps.iter().all(works), "a QP ended at {} ns", self.now);
        }
        let ends = self.qps.iter().flat_map(|end| &end.qp.sent);
        assert!(ends.into_iter().all(|end| end.status == Status::Success));
        assert!(self.is_done(count));
        most
    }

    fn timeouts(&self) -> u64 {
        let stats = self.qps.iter().map(|end| end.engine.stats());
        stats.map(|stats| stats.timeouts).sum()
    }
}

fn remote() -> Remote {
    Remote {
        addr: 0,
        rkey: Rkey(KEY),
    }
}

fn write() -> SendOp {
    SendOp::Write(remote())
}

fn read() -> SendOp {
    SendOp::Read(remote())
}

/// 10 MB/s in packets of 4,096 bytes, whatever the packets of the test are.
const SLOW_NS: u64 = 400_000;

fn timeout_ns() -> u64 {
    ack_timeout_ns(TIMEOUT).expect("it is on")
}

#[test]
fn many_qps_do_not_overrun_a_slow_peer_with_requests() {
    for turn in [1, usize::MAX] {
        let mut world = World::new(16, SLOW_NS, |config| config);
        world.turn = turn;
        world.post(64, 16, write());
        let most = world.run(64, 10 * timeout_ns());
        let queue_ns = most as u64 * SLOW_NS;
        assert!(queue_ns < timeout_ns() * 2 / 3, "{most} packets wait");
        assert!(world.timeouts() <= 4 * 16, "{} timeouts", world.timeouts());
        let least_ns = 16 * 64 * 16 * SLOW_NS;
        assert!(world.now < least_ns + least_ns / 10, "{} ns", world.now);
    }
}

#[test]
fn many_qps_do_not_overrun_a_slow_peer_with_reads() {
    // Turns, READs that may be outstanding, packets of each, one of all sizes.
    for (turn, max_rd_atomic, packets) in [
        (1, 16, 16),
        (usize::MAX, 16, 16),
        (1, 1, 1024),
        (usize::MAX, 1, 1024),
        (usize::MAX, 4, 100),
    ] {
        let mut world = World::new(16, SLOW_NS, |config| Config {
            max_rd_atomic,
            ..config
        });
        world.turn = turn;
        let count = 1024 / packets;
        world.post(count as u64, packets, read());
        world.run(count, 0);
        assert!(world.timeouts() <= 4 * 16, "{} timeouts", world.timeouts());
        // A request costs the peer as much as a packet of data here.
        let least_ns = (16 * count * packets) as u64 * SLOW_NS;
        assert!(world.now < least_ns + least_ns / 3, "{} ns", world.now);
    }
}

/// The packet that fills a window asks for no acknowledgement where one before it has.
#[test]
fn few_packets_of_a_full_window_ask_for_an_acknowledgement() {
    for (packet_ns, delay_ns, every) in [
        (FAST_NS, RTT_NS / 2, 40),
        (2 * FAST_NS, RTT_NS / 2, 40),
        (5000, RTT_NS / 2, 40),
        (SLOW_NS, 10_000, 5),
    ] {
        let mut world = World::new(1, packet_ns, |config| config);
        world.delay_ns = delay_ns;
        world.post(16, 1024, write());
        world.run(16, 0);
        let (packets, answers) = (world.sent, world.answers);
        assert!(
            answers * every < packets,
            "{packet_ns} ns: {answers} of {packets}"
        );
    }
}

/// As when its machine is stopped for a while, with full windows under way.
#[test]
fn a_peer_that_becomes_slow_is_not_given_up() {
    let mut world = World::new(16, 500, |config| config);
    world.turn = usize::MAX;
    world.post(64, 64, write());
    while world.sent < 16 * 1000 {
        assert!(world.step());
    }
    world.packet_ns = SLOW_NS;
    let most = world.run(64, world.now + 60 * timeout_ns());
    assert!(most as u64 * SLOW_NS < timeout_ns(), "{most} packets wait");
}

/// Round trip of a fast peer.
const RTT_NS: u64 = 100_000;
/// Time that it takes for a packet.
const FAST_NS: u64 = 100;

/// Time that 100 messages of a window each take, where packet number `lost` is lost.
fn fast(op: SendOp, lost: Option<u64>) -> u64 {
    let mut world = World::new(1, FAST_NS, |config| config);
    world.delay_ns = RTT_NS / 2;
    world.lost = lost;
    world.post(100, 256, op);
    world.run(100, 0);
    let again = world.qps[0].engine.stats().retransmitted;
    assert_eq!(again > 0, lost.is_some());
    world.now
}

#[test]
fn a_fast_peer_is_used_at_the_full_window_after_a_few_round_trips() {
    for op in [write(), read()] {
        let took = fast(op, None);
        assert!(took < 110 * (RTT_NS + 256 * FAST_NS), "{took} ns");
    }
    let mut world = World::new(1, FAST_NS, |config| config);
    world.delay_ns = RTT_NS / 2;
    world.post(100, 256, write());
    while world.qps[0].engine.window() < Config::DEFAULT_WINDOW {
        assert!(world.step());
    }
    assert!(world.now < 8 * RTT_NS, "{} ns", world.now);
}

#[test]
fn a_path_that_becomes_longer_is_used_at_the_full_window_again() {
    const LONGER_NS: u64 = 18_000_000;
    let mut world = World::new(1, FAST_NS, |config| config);
    world.post(128, 256, write());
    while world.qps[0].engine.window() < Config::DEFAULT_WINDOW {
        assert!(world.step());
    }
    world.delay_ns = LONGER_NS / 2;
    world.run(128, 0);
    assert_eq!(world.qps[0].engine.window(), Config::DEFAULT_WINDOW);
    // As many round trips as messages, and those that it takes to find out and to grow.
    assert!(world.now < 300 * LONGER_NS, "{} ns", world.now);
}

#[test]
fn a_loss_on_a_path_without_a_queue_costs_few_round_trips() {
    for op in [write(), read()] {
        for lost in [60, 300] {
            let (without, with) = (fast(op, None), fast(op, Some(lost)));
            assert!(with < without + 20 * RTT_NS, "{without} {with}");
        }
    }
}

/// Requests of all lengths, behind fences and not, on paths that become longer, which narrows
/// windows.
#[test]
fn where_nothing_is_lost_no_timer_runs_out_and_nothing_is_sent_again() {
    for seed in 1..=200_u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut draw = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let window = 1 + draw(300) as u32;
        let initial_window = 1 + draw(u64::from(window)) as u32;
        let max_rd_atomic = 1 + draw(16) as u8;
        let mut world = World::new(1, 100 + draw(4000), |config| Config {
            window,
            initial_window,
            max_rd_atomic,
            ..config
        });
        for wr_id in 0..60 {
            let packets = match draw(3) {
                0 => 1 + draw(4),
                1 => 1 + draw(80),
                _ => 1 + draw(500),
            };
            let op = if draw(3) == 0 { read() } else { write() };
            let element = sge(KEY, 0, (packets as usize * MTU) as u32);
            let mut posted = request(wr_id, op, element);
            if draw(4) == 0 {
                posted.flags = SendFlags::FENCE;
            }
            assert!(world.qps[0].engine.post_send(posted).is_ok());
        }
        while !world.is_done(60) {
            if draw(100) == 0 {
                // Packets do not overtake each other.
                world.delay_ns = world.delay_ns.max(draw(15_000_000));
            }
            assert!(world.step(), "seed {seed}: it stands still");
        }
        let stats = world.qps[0].engine.stats();
        let counts = (stats.timeouts, stats.retransmitted);
        assert_eq!(counts, (0, 0), "seed {seed}");
    }
}
