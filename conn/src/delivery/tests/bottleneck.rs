//! One bottleneck in virtual time: connections of ours, and models of TCP beside them.

use alloc::collections::{BinaryHeap, VecDeque};
use alloc::vec::Vec;
use core::cmp::Reverse;

use super::super::{AckInfo, Arrival, Config, Delivery, Lost, Policy, Pool, Received, Stamp};
use crate::control::CongestionControl;
use crate::time::{Instant, MILLISECOND, SECOND};
use trunkline_testkit::Rng;

/// BTH to ICRC of a full packet, and IP and UDP headers around it.
const PACKET: u32 = 1472;
const HEADERS: u64 = 28;
/// A TCP segment with its IP header.
const SEGMENT: u64 = 1500;
const START: u64 = MILLISECOND;

/// What lies between senders and receivers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path {
    pub(super) rate_bps: u64,
    pub(super) rtt_ns: u64,
    pub(super) queue_bytes: u64,
    /// Packets that find more than this in the queue are marked.
    pub(super) mark_bytes: u64,
    pub(super) loss_ppm: u64,
    /// Each packet is late by up to this, in order.
    pub(super) jitter_ns: u64,
    /// Our senders look for acknowledgements, and send, at multiples of this; 0: at any time.
    pub(super) round_ns: u64,
}

impl Path {
    pub(super) const fn new(rate_bps: u64, rtt_ns: u64, queue_bytes: u64) -> Self {
        Self {
            rate_bps,
            rtt_ns,
            queue_bytes,
            mark_bytes: u64::MAX,
            loss_ppm: 0,
            jitter_ns: 0,
            round_ns: 0,
        }
    }

    /// When a sender of ours has its next round.
    const fn round(&self, at: u64) -> u64 {
        match self.round_ns {
            0 => at,
            round => at.next_multiple_of(round),
        }
    }
}

/// What happens at a time.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    Rate(u64),
    Rtt(u64),
    /// The next acknowledgement to the first flow says that its receiver held it for so long.
    AckDelay(u32),
    /// The first flow has nothing to send, or has again.
    Idle(bool),
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Tcp {
    Reno,
    Cubic,
}

#[derive(Clone, Debug)]
enum Packet {
    Ours(Stamp, bool),
    Tcp(u64),
}

#[derive(Debug)]
enum Kind {
    Served,
    Arrived(usize, Packet),
    Acked(usize, u32, Vec<u64>, u32, u32, u32),
    TcpAcked(usize, u64, u64),
    Turn(usize, bool),
    Change(Change),
}

#[derive(Debug)]
struct Event(u64, u64, Kind);

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        (self.0, self.1) == (other.0, other.1)
    }
}
impl Eq for Event {}
impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Event {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

#[derive(Debug)]
struct Pair {
    tx: Delivery<u64>,
    tx_pool: Pool<u64>,
    rx: Delivery<u64>,
    rx_pool: Pool<u64>,
    turns: [u64; 2],
    idle: bool,
    next: u64,
}

#[derive(Debug)]
struct TcpFlow {
    kind: Tcp,
    cwnd: f64,
    threshold: f64,
    order: u64,
    /// Transmissions under way: order, whether delivered.
    under_way: VecDeque<(u64, bool)>,
    pipe: u64,
    recover: u64,
    most: f64,
    since: u64,
    srtt: u64,
    heard: u64,
    turn: u64,
}

#[derive(Debug)]
enum Flow {
    Ours(alloc::boxed::Box<Pair>),
    Tcp(TcpFlow),
}

#[derive(Debug)]
pub(super) struct Bottleneck {
    pub(super) now: u64,
    pub(super) path: Path,
    flows: Vec<Flow>,
    /// IP bytes delivered first, and packets dropped, by flow.
    pub(super) got: Vec<u64>,
    pub(super) dropped: Vec<u64>,
    /// Largest backlog since it was last reset, in bytes.
    pub(super) deepest: u64,
    queue: VecDeque<(usize, u64, Packet)>,
    backlog: u64,
    events: BinaryHeap<Reverse<Event>>,
    sequence: u64,
    rng: Rng,
    latest: Vec<u64>,
    ack_delay: Option<u32>,
}

impl Bottleneck {
    pub(super) fn new(path: Path) -> Self {
        Self {
            now: START,
            path,
            flows: Vec::new(),
            got: Vec::new(),
            dropped: Vec::new(),
            deepest: 0,
            queue: VecDeque::new(),
            backlog: 0,
            events: BinaryHeap::new(),
            sequence: 0,
            rng: Rng::new(11),
            latest: Vec::new(),
            ack_delay: None,
        }
    }

    /// A flow of ours that begins at `at_ns`.
    pub(super) fn ours(mut self, control: CongestionControl, at_ns: u64) -> Self {
        let config = Config {
            packet_size: PACKET,
            control,
            ..Config::default()
        };
        let now = Instant::from_nanos(START);
        self.flows.push(Flow::Ours(alloc::boxed::Box::new(Pair {
            tx: Delivery::new(&config, now),
            tx_pool: Pool::new(Policy::default()),
            rx: Delivery::new(&config, now),
            rx_pool: Pool::new(Policy::default()),
            turns: [START + at_ns, u64::MAX],
            idle: false,
            next: 0,
        })));
        self.joined(at_ns)
    }

    pub(super) fn tcp(mut self, kind: Tcp, at_ns: u64) -> Self {
        self.flows.push(Flow::Tcp(TcpFlow {
            kind,
            cwnd: 10.0,
            threshold: f64::MAX,
            order: 0,
            under_way: VecDeque::new(),
            pipe: 0,
            recover: 0,
            most: 0.0,
            since: 0,
            srtt: 0,
            heard: START + at_ns,
            turn: START + at_ns,
        }));
        self.joined(at_ns)
    }

    fn joined(mut self, at_ns: u64) -> Self {
        self.got.push(0);
        self.dropped.push(0);
        self.latest.push(0);
        let flow = self.flows.len() - 1;
        self.post(START + at_ns, Kind::Turn(flow, false));
        self
    }

    pub(super) fn at(mut self, at_ns: u64, change: Change) -> Self {
        self.post(START + at_ns, Kind::Change(change));
        self
    }

    fn post(&mut self, at: u64, kind: Kind) {
        self.sequence += 1;
        self.events.push(Reverse(Event(at, self.sequence, kind)));
    }

    pub(super) fn connection(&self, flow: usize) -> &Delivery<u64> {
        match &self.flows[flow] {
            Flow::Ours(pair) => &pair.tx,
            Flow::Tcp(_) => panic!("a model of TCP"),
        }
    }

    /// Runs until `at_ns`, counted from the start; Mb/s of each flow meanwhile.
    pub(super) fn run(&mut self, at_ns: u64) -> Vec<f64> {
        let (from, before) = (self.now, self.got.clone());
        while let Some(Reverse(Event(at, ..))) = self.events.peek() {
            if *at > START + at_ns {
                break;
            }
            let Reverse(Event(at, _, kind)) = self.events.pop().expect("peeked");
            self.now = at;
            self.handle(kind);
        }
        self.now = START + at_ns;
        let took = (self.now - from) as f64;
        let got = self.got.iter().zip(before);
        got.map(|(got, before)| (got - before) as f64 * 8_000.0 / took)
            .collect()
    }

    fn handle(&mut self, kind: Kind) {
        match kind {
            Kind::Served => self.served(),
            Kind::Arrived(flow, packet) => self.arrived(flow, packet),
            Kind::Acked(flow, cumulative, sack, ce, delay_ns, echo) => {
                let ack = AckInfo {
                    cumulative,
                    sack: &sack,
                    echo,
                    ce: Some(ce),
                    delay_ns,
                    waited_ns: 0,
                };
                if let Flow::Ours(pair) = &mut self.flows[flow] {
                    let now = Instant::from_nanos(self.now);
                    pair.tx
                        .handle_ack(now, &ack, &mut |_| {})
                        .expect("of what was sent");
                }
                self.turn(flow);
            }
            Kind::TcpAcked(flow, order, sent) => {
                if let Flow::Tcp(tcp) = &mut self.flows[flow] {
                    tcp.acked(self.now, order, sent);
                }
                self.turn(flow);
            }
            Kind::Turn(flow, receiver) => {
                let due = match &self.flows[flow] {
                    Flow::Ours(pair) => pair.turns[usize::from(receiver)],
                    Flow::Tcp(tcp) => tcp.turn,
                };
                if due == self.now && receiver {
                    self.acknowledge(flow);
                } else if due == self.now {
                    self.turn(flow);
                }
            }
            Kind::Change(change) => match change {
                Change::Rate(rate) => self.path.rate_bps = rate,
                Change::Rtt(rtt) => self.path.rtt_ns = rtt,
                Change::AckDelay(delay) => self.ack_delay = Some(delay),
                Change::Idle(idle) => {
                    if let Flow::Ours(pair) = &mut self.flows[0] {
                        pair.idle = idle;
                    }
                    self.turn(0);
                }
            },
        }
    }

    fn send(&mut self, flow: usize, bytes: u64, packet: Packet) {
        if self.backlog + bytes > self.path.queue_bytes {
            self.dropped[flow] += 1;
            return;
        }
        let packet = match packet {
            Packet::Ours(stamp, _) => Packet::Ours(stamp, self.backlog > self.path.mark_bytes),
            tcp => tcp,
        };
        self.backlog += bytes;
        self.deepest = self.deepest.max(self.backlog);
        self.queue.push_back((flow, bytes, packet));
        if self.queue.len() == 1 {
            self.serve();
        }
    }

    fn serve(&mut self) {
        if let Some((_, bytes, _)) = self.queue.front() {
            let took = u128::from(bytes * 8) * u128::from(SECOND) / u128::from(self.path.rate_bps);
            self.post(self.now + took as u64, Kind::Served);
        }
    }

    fn served(&mut self) {
        let (flow, bytes, packet) = self.queue.pop_front().expect("one is being served");
        self.backlog -= bytes;
        self.serve();
        if self.rng.chance(self.path.loss_ppm) {
            return;
        }
        let late = self.rng.below(self.path.jitter_ns + 1);
        let at = self.now + self.path.rtt_ns / 2 + late;
        let at = if self.path.jitter_ns == 0 {
            at
        } else {
            at.max(self.latest[flow])
        };
        self.latest[flow] = at;
        self.post(at, Kind::Arrived(flow, packet));
    }

    fn arrived(&mut self, flow: usize, packet: Packet) {
        match (&mut self.flows[flow], packet) {
            (Flow::Ours(pair), Packet::Ours(stamp, ce)) => {
                let now = Instant::from_nanos(self.now);
                let packet = Received {
                    timestamp: stamp.timestamp,
                    ce,
                    ack_req: stamp.ack_req,
                };
                if pair.rx.arrival(stamp.number) == Arrival::New {
                    self.got[flow] += u64::from(PACKET) + HEADERS;
                    pair.rx
                        .accept(now, stamp.number, &packet, &mut pair.rx_pool);
                } else {
                    pair.rx.duplicate(now, &packet, &mut pair.rx_pool);
                }
                self.acknowledge(flow);
            }
            (Flow::Tcp(tcp), Packet::Tcp(order)) => {
                self.got[flow] += SEGMENT;
                let sent = tcp.srtt;
                let at = self.now + self.path.rtt_ns - self.path.rtt_ns / 2;
                self.post(at, Kind::TcpAcked(flow, order, sent));
            }
            _ => panic!("a packet of another flow"),
        }
    }

    fn acknowledge(&mut self, flow: usize) {
        let now = Instant::from_nanos(self.now);
        let Flow::Ours(pair) = &mut self.flows[flow] else {
            return;
        };
        pair.rx.handle_timeout(now, &pair.rx_pool);
        let mut acks = Vec::new();
        while let Some(ack) = pair.rx.poll_ack(now) {
            let delay = match self.ack_delay.filter(|_| flow == 0) {
                Some(delay) => {
                    self.ack_delay = None;
                    delay
                }
                None => ack.delay_ns,
            };
            let sack = ack.sack.to_vec();
            acks.push(Kind::Acked(
                flow,
                ack.cumulative,
                sack,
                ack.ce,
                delay,
                ack.echo,
            ));
        }
        let turn = pair.rx.poll_timeout(&pair.rx_pool);
        let turn = turn.map_or(u64::MAX, Instant::as_nanos);
        let known = core::mem::replace(&mut pair.turns[1], turn);
        if turn != known && turn != u64::MAX {
            self.post(turn.max(self.now), Kind::Turn(flow, true));
        }
        for ack in acks {
            let back = self.path.rtt_ns - self.path.rtt_ns / 2;
            self.post(self.path.round(self.now + back), ack);
        }
    }

    fn turn(&mut self, flow: usize) {
        let mut out = Vec::new();

        let turn = match &mut self.flows[flow] {
            Flow::Ours(pair) => {
                pair.turn(self.now, &mut out);
                if pair.turns[0] != u64::MAX {
                    pair.turns[0] = self.path.round(pair.turns[0]);
                }
                pair.turns[0]
            }
            Flow::Tcp(tcp) => {
                tcp.turn(self.now, &mut out);
                tcp.turn
            }
        };
        if turn != u64::MAX {
            self.post(turn, Kind::Turn(flow, false));
        }
        for (bytes, packet) in out {
            self.send(flow, bytes, packet);
        }
    }
}

impl Pair {
    fn turn(&mut self, now: u64, out: &mut Vec<(u64, Packet)>) {
        let at = Instant::from_nanos(now);
        self.tx.handle_timeout(at, &self.tx_pool);
        while let Some(Lost { bytes, .. }) = self.tx.peek_retransmit(at) {
            let stamp = self.tx.retransmit(at, bytes);
            out.push((u64::from(bytes) + HEADERS, Packet::Ours(stamp, false)));
        }
        while !self.idle {
            let ready = self.tx.ready(at, &mut self.tx_pool);
            if ready == 0 {
                break;
            }
            for _ in 0..ready {
                let stamp = self.tx.record(at, self.next, PACKET);
                self.next += 1;
                out.push((u64::from(PACKET) + HEADERS, Packet::Ours(stamp, false)));
            }
        }
        if self.idle {
            let _ = self.tx.try_idle(&mut self.tx_pool);
        }
        let next = self.tx.poll_timeout(&self.tx_pool);
        self.turns[0] = next.map_or(u64::MAX, Instant::as_nanos).max(now + 1);
    }
}

impl TcpFlow {
    fn acked(&mut self, now: u64, order: u64, _: u64) {
        self.heard = now;
        let Some((first, _)) = self.under_way.front() else {
            return;
        };
        let Some(place) = order.checked_sub(*first) else {
            return;
        };
        let Some((_, delivered)) = self.under_way.get_mut(place as usize) else {
            return;
        };
        if core::mem::replace(delivered, true) {
            return;
        }
        self.pipe -= 1;
        let mut lost = false;
        while let Some(&(first, delivered)) = self.under_way.front() {
            if !delivered && first + 3 > order {
                break;
            }
            self.under_way.pop_front();
            if !delivered {
                self.pipe -= 1;
                lost |= first >= self.recover;
            }
        }
        if lost {
            self.lose(now);
        } else if order >= self.recover {
            self.grow(now);
        }
    }

    fn lose(&mut self, now: u64) {
        self.recover = self.order;
        let beta = match self.kind {
            Tcp::Reno => 0.5,
            Tcp::Cubic => 0.7,
        };
        self.most = if self.cwnd < self.most && self.kind == Tcp::Cubic {
            self.cwnd * 0.85
        } else {
            self.cwnd
        };
        self.cwnd = (self.cwnd * beta).max(2.0);
        self.threshold = self.cwnd;
        self.since = now;
    }

    fn grow(&mut self, now: u64) {
        if self.cwnd < self.threshold {
            self.cwnd += 1.0;
            return;
        }
        let reno = 1.0 / self.cwnd;
        if self.kind == Tcp::Reno {
            self.cwnd += reno;
            return;
        }
        let elapsed = (now - self.since) as f64 / 1e9 + self.srtt as f64 / 1e9;
        let k = libm_cbrt(self.most * 0.3 / 0.4);
        let target = 0.4 * (elapsed - k) * (elapsed - k) * (elapsed - k) + self.most;
        let cubic = ((target - self.cwnd) / self.cwnd).clamp(0.0, 0.5);
        self.cwnd += cubic.max(0.53 * reno);
    }

    fn turn(&mut self, now: u64, out: &mut Vec<(u64, Packet)>) {
        if self.pipe > 0 && now >= self.heard + SECOND {
            self.under_way.clear();
            self.pipe = 0;
            self.threshold = (self.cwnd / 2.0).max(2.0);
            self.cwnd = 1.0;
            self.recover = self.order;
            self.heard = now;
        }
        while (self.pipe as f64) < self.cwnd {
            if self.pipe == 0 {
                self.heard = now;
            }
            self.under_way.push_back((self.order, false));
            out.push((SEGMENT, Packet::Tcp(self.order)));
            self.order += 1;
            self.pipe += 1;
        }
        self.turn = if self.pipe > 0 {
            self.heard + SECOND
        } else {
            u64::MAX
        };
    }
}

/// The cube root, by Newton.
fn libm_cbrt(x: f64) -> f64 {
    let mut root = x.max(1.0);
    for _ in 0..40 {
        root -= (root * root * root - x) / (3.0 * root * root);
    }
    root
}

/// How equal shares are: 1 when they are, 1 / n when one has all.
pub(super) fn jain(rates: &[f64]) -> f64 {
    let sum: f64 = rates.iter().sum();
    let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
    sum * sum / (rates.len() as f64 * squares)
}
