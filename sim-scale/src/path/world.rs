//! Flows over one bottleneck in virtual time.

use super::bottleneck::{Bottleneck, Load};
use super::report::{Flow as FlowReport, Outcome};
use super::scenario::{Change, Scenario};
use super::{shared, tcp};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use trunkline_conn::time::MILLISECOND;
use trunkline_dataplane::prng::Prng;

/// Bytes of an IP packet of TCP with nothing but an acknowledgement.
const TCP_ACK: u32 = 72;
/// Throughput is counted over so many ns.
pub const BIN: u64 = 10 * MILLISECOND;
/// Flows start one after the other within this time.
const START_WITHIN: u64 = 10 * MILLISECOND;

#[derive(Clone, Debug)]
enum Frame {
    Shared(shared::Frame),
    Segment(tcp::Segment),
    Ack(tcp::Ack),
}

#[derive(Debug)]
struct Packet {
    flow: u32,
    bytes: u32,
    ce: bool,
    frame: Frame,
}

impl Load for Packet {
    fn bytes(&self) -> u32 {
        self.bytes
    }

    fn mark(&mut self) {
        self.ce = matches!(self.frame, Frame::Shared(_));
    }
}

#[derive(Debug)]
enum Event {
    /// The packet on the bottleneck has left it.
    Departure,
    /// A packet comes to an end of its flow: 1 behind the bottleneck, 0 where it began.
    Arrival(usize, Packet),
    /// An end of a flow wants a turn.
    Turn(u32, usize),
    /// The next step.
    Step,
}

#[derive(Debug)]
struct Due {
    at: u64,
    order: u64,
    event: Event,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

#[derive(Debug)]
enum Kind {
    Shared(Box<shared::Flow>),
    Tcp(Box<(tcp::Sender, tcp::Receiver)>),
}

#[derive(Debug)]
struct Flow {
    name: &'static str,
    kind: Kind,
    start: u64,
    /// The turn that is in the heap for each end.
    armed: [u64; 2],
    /// Bytes of packets that came for the first time, by [`BIN`].
    bins: Vec<u64>,
}

impl Flow {
    fn next(&self, side: usize) -> u64 {
        match &self.kind {
            Kind::Shared(flow) => flow.next(side),
            Kind::Tcp(ends) if side == 0 => ends.0.next(),
            Kind::Tcp(ends) => ends.1.next(),
        }
    }
}

/// The whole run.
#[derive(Debug)]
pub(super) struct World<'a> {
    scenario: &'a Scenario,
    now: u64,
    order: u64,
    heap: BinaryHeap<Reverse<Due>>,
    link: Bottleneck<Packet>,
    flows: Vec<Flow>,
    random: Prng,
    rtt: u64,
    /// Last arrival at each end: order stays.
    last: [u64; 2],
    steps: usize,
    ack_delay: u64,
    lost: u64,
    queue_bins: Vec<u64>,
}

impl<'a> World<'a> {
    pub(super) fn new(scenario: &'a Scenario) -> Self {
        let mut random = Prng::new(scenario.seed);
        let mut flows = Vec::new();
        let mut add = |name, kind, flows: &mut Vec<Flow>| {
            let start = if flows.is_empty() {
                0
            } else {
                random.below(START_WITHIN)
            };
            flows.push(Flow {
                name,
                kind,
                start,
                armed: [u64::MAX; 2],
                bins: Vec::new(),
            });
        };
        for index in 0..scenario.flows {
            let flow = shared::Flow::new(scenario.control, scenario.mtu, index);
            add("trunkline", Kind::Shared(Box::new(flow)), &mut flows);
        }
        if let Some(rival) = scenario.rival {
            for _ in 0..scenario.rivals {
                let ends = (tcp::Sender::new(rival), tcp::Receiver::default());
                let kind = Kind::Tcp(Box::new(ends));
                add(rival.name(), kind, &mut flows);
            }
        }
        Self {
            scenario,
            now: 0,
            order: 0,
            heap: BinaryHeap::new(),
            link: Bottleneck::new(scenario.rate, scenario.queue, scenario.mark),
            flows,
            random,
            rtt: scenario.rtt,
            last: [0; 2],
            steps: 0,
            ack_delay: 0,
            lost: 0,
            queue_bins: Vec::new(),
        }
    }

    fn schedule(&mut self, at: u64, event: Event) {
        self.order += 1;
        let order = self.order;
        self.heap.push(Reverse(Due { at, order, event }));
    }

    pub(super) fn run(mut self) -> Outcome {
        for flow in 0..self.flows.len() {
            let start = self.flows[flow].start;
            self.schedule(start, Event::Turn(flow as u32, 0));
        }
        // Flows that fell idle are woken when they have something to send again.
        for (_, end) in &self.scenario.idle {
            for flow in 0..self.scenario.flows {
                self.schedule(*end, Event::Turn(flow, 0));
            }
        }
        for step in &self.scenario.steps {
            self.schedule(step.at, Event::Step);
        }
        while let Some(Reverse(due)) = self.heap.pop() {
            if due.at >= self.scenario.length {
                break;
            }
            self.now = due.at;
            self.handle(due.event);
        }
        self.outcome()
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Departure => self.departed(),
            Event::Arrival(side, packet) => self.arrived(side, packet),
            Event::Turn(flow, side) => {
                // A turn that was moved to an earlier time finds nothing to do here.
                let armed = &mut self.flows[flow as usize].armed[side];
                if *armed <= self.now {
                    *armed = u64::MAX;
                }
                self.turn(flow, side);
            }
            Event::Step => {
                let change = self.scenario.steps[self.steps].change;
                self.steps += 1;
                match change {
                    Change::Rtt(rtt) => self.rtt = rtt,
                    Change::Rate(rate) => self.link.set_rate(rate),
                    Change::AckDelay(delay) => self.ack_delay = delay,
                }
            }
        }
    }

    fn departed(&mut self) {
        let (packet, next) = self.link.departed();
        if let Some(after) = next {
            self.schedule(self.now + after, Event::Departure);
        }
        let ppm = (self.scenario.loss * 1e6).round() as u32;
        if ppm > 0 && self.random.chance(ppm) {
            self.lost += 1;
            return;
        }
        self.carry(1, packet);
    }

    /// Takes a packet to an end.
    fn carry(&mut self, side: usize, packet: Packet) {
        let jitter = match self.scenario.jitter {
            0 => 0,
            most => self.random.below(most + 1),
        };
        let at = (self.now + self.rtt / 2 + jitter).max(self.last[side]);
        self.last[side] = at;
        self.schedule(at, Event::Arrival(side, packet));
    }

    fn arrived(&mut self, side: usize, packet: Packet) {
        let flow = &mut self.flows[packet.flow as usize];
        let new = match (&mut flow.kind, &packet.frame) {
            (Kind::Shared(flow), Frame::Shared(frame)) => {
                flow.arrive(side, self.now, packet.ce, frame)
            }
            (Kind::Tcp(ends), Frame::Segment(segment)) => ends.1.receive(self.now, *segment),
            (Kind::Tcp(ends), Frame::Ack(ack)) => {
                ends.0.handle_ack(self.now, ack);
                false
            }
            _ => unreachable!("a flow gets its own frames"),
        };
        if new {
            count(&mut flow.bins, self.now, u64::from(packet.bytes));
        }
        self.turn(packet.flow, side);
    }

    fn turn(&mut self, index: u32, side: usize) {
        let now = self.now;
        let mut out = Vec::new();
        let idle = |(from, to): &(u64, u64)| (*from..*to).contains(&now);
        let flow = &mut self.flows[index as usize];
        match &mut flow.kind {
            Kind::Shared(shared) => {
                let wants = now >= flow.start && !self.scenario.idle.iter().any(idle);
                shared.turn(side, now, wants, |bytes, frame| {
                    out.push((bytes, Frame::Shared(frame)));
                });
            }
            Kind::Tcp(ends) if side == 0 => {
                let sender = &mut ends.0;
                sender.handle_timeout(now);
                while let Some(segment) = sender.transmit(now) {
                    out.push((self.scenario.mtu, Frame::Segment(segment)));
                }
            }
            Kind::Tcp(ends) => {
                let ack = ends.1.poll(now);
                out.extend(ack.map(|ack| (TCP_ACK, Frame::Ack(ack))));
            }
        }
        for (bytes, frame) in out {
            self.send(index, side, bytes, frame);
        }
        let next = self.flows[index as usize].next(side).max(now + 1);
        let armed = &mut self.flows[index as usize].armed[side];
        if next < *armed {
            *armed = next;
            self.schedule(next, Event::Turn(index, side));
        }
    }

    fn send(&mut self, flow: u32, side: usize, bytes: u32, mut frame: Frame) {
        if let Frame::Shared(shared::Frame::Ack { delay_ns, .. }) = &mut frame {
            let more = u32::try_from(std::mem::take(&mut self.ack_delay)).unwrap_or(u32::MAX);
            *delay_ns = delay_ns.saturating_add(more);
        }
        let packet = Packet {
            flow,
            bytes,
            ce: false,
            frame,
        };
        if side == 1 {
            self.carry(0, packet);
            return;
        }
        if let Some(after) = self.link.offer(packet) {
            self.schedule(self.now + after, Event::Departure);
        }
        let bin = (self.now / BIN) as usize;
        if self.queue_bins.len() <= bin {
            self.queue_bins.resize(bin + 1, 0);
        }
        self.queue_bins[bin] = self.queue_bins[bin].max(self.link.waiting());
    }

    fn outcome(self) -> Outcome {
        let bins = self.scenario.length.div_ceil(BIN) as usize;
        let flows = self.flows.into_iter().map(|flow| {
            let mut bytes = flow.bins;
            bytes.resize(bins, 0);
            FlowReport::new(flow.name, bytes, self.scenario.length)
        });
        let mut queue = self.queue_bins;
        queue.resize(bins, 0);
        Outcome {
            flows: flows.collect(),
            drops: self.link.drops + self.lost,
            max_queue: self.link.most,
            queue,
        }
    }
}

fn count(bins: &mut Vec<u64>, now: u64, bytes: u64) {
    let bin = (now / BIN) as usize;
    if bins.len() <= bin {
        bins.resize(bin + 1, 0);
    }
    bins[bin] += bytes;
}
