//! Target `nodes`: two whole nodes of several workers each, through the public API, on a network
//! that loses, doubles, delays, damages, forges, and brings packets to the wrong worker. So their
//! handshakes, their hellos, the BINDs in them and the mail between workers meet anything.

use crate::input::Input;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use trunkline::{
    Access, Clock, Completion, Cq, Drive, Mr, Node, Pd, Qp, QpOptions, RecvWr, SendFlags, SendOp,
    SendWr,
};
use trunkline_conn::egress::{Egress, Slot};
use trunkline_conn::ingress::{Arrival, Identification};
use trunkline_dataplane::{Capabilities, Port, PortCounters, PortError};
use trunkline_wire::{Bth, IpFields, Path, ROCE_PORT, Workers, icrc};

const MAX_OPERATIONS: usize = 400;
/// Datagrams under way; later ones are lost.
const MAX_FLYING: usize = 64;
/// Most bytes of a datagram.
const DATAGRAM: usize = 2048;
/// QPs of a node, and bytes of its memory.
const QPS: usize = 3;
const MEMORY: usize = 8192;
/// Rounds of the calm at the end, and how long each takes.
const CALM: usize = 64;
const CALM_NS: u64 = 20_000_000;

type Datagram = (Arrival, Vec<u8>);

/// What is between the nodes.
#[derive(Debug, Default)]
struct Air {
    flying: VecDeque<(usize, Datagram)>,
    /// By node and worker.
    inboxes: [Vec<VecDeque<Datagram>>; 2],
}

#[derive(Clone, Debug)]
struct Network(Arc<Mutex<Air>>);

impl Network {
    fn air(&self) -> MutexGuard<'_, Air> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn address(node: usize) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, node as u8 + 1).into()
}

#[derive(Debug)]
struct AirPort {
    network: Network,
    node: usize,
    worker: usize,
    reserved: Option<Path>,
    buffer: Vec<u8>,
}

impl Egress for AirPort {
    fn reserve(&mut self, path: &Path, length: usize) -> Option<Slot<'_>> {
        if length == 0 || length > DATAGRAM {
            return None;
        }
        self.reserved = Some(*path);
        self.buffer.clear();
        self.buffer.resize(length, 0xdb);
        Some(Slot {
            datagram: &mut self.buffer,
            identification: 0,
        })
    }

    fn commit(&mut self) {
        let path = self.reserved.take().expect("commit follows reserve");
        let arrival = Arrival {
            path,
            identification: Identification::Seen(0),
            ce: false,
            waited_ns: 0,
        };
        let to = (0..2).find(|node| address(*node) == path.dst);
        let mut air = self.network.air();
        if let Some(to) = to
            && air.flying.len() < MAX_FLYING
        {
            air.flying.push_back((to, (arrival, self.buffer.clone())));
        }
    }
}

impl Port for AirPort {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            max_datagram: DATAGRAM,
            sees_identification: true,
            super_packets: false,
            coalesced_receive: false,
            lossless: false,
        }
    }

    fn flush(&mut self) -> Result<(), PortError> {
        Ok(())
    }

    fn receive(
        &mut self,
        limit: usize,
        sink: &mut dyn FnMut(&Arrival, &[u8]),
    ) -> Result<usize, PortError> {
        for count in 0..limit {
            let next = self.network.air().inboxes[self.node][self.worker].pop_front();
            let Some((arrival, bytes)) = next else {
                return Ok(count);
            };
            sink(&arrival, &bytes);
        }
        Ok(limit)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn counters(&self) -> PortCounters {
        PortCounters::default()
    }

    fn source_ports(&self) -> &[u16] {
        &[ROCE_PORT]
    }
}

struct Host {
    node: Node,
    workers: Workers,
    pd: Pd,
    cq: Cq,
    mr: Mr,
    qps: Vec<Qp>,
    posted: usize,
    completed: usize,
}

impl Host {
    fn new(network: &Network, index: usize, workers: u8, clock: &Clock) -> Self {
        let ports = (0..usize::from(workers)).map(|worker| {
            let port = AirPort {
                network: network.clone(),
                node: index,
                worker,
                reserved: None,
                buffer: Vec::new(),
            };
            Box::new(port) as Box<dyn Port + Send>
        });
        network.air().inboxes[index] = vec![VecDeque::new(); workers.into()];
        let node = Node::builder()
            .address(address(index))
            .drive(Drive::Inline)
            .clock(clock.clone())
            .seed(index as u64 + 1)
            .pool(2)
            .peer_timeout(Duration::from_millis(500))
            .workers(workers)
            .build_on_all(ports.collect())
            .expect("an address, and as many ports as workers");
        let pd = node.alloc_pd();
        let cq = node.create_cq(4096).expect("a CQ of ordinary size");
        let mr = pd.register(MEMORY, Access::ALL).expect("a page or two");
        let mut host = Self {
            workers: Workers::new(workers).expect("few workers"),
            node,
            pd,
            cq,
            mr,
            qps: Vec::new(),
            posted: 0,
            completed: 0,
        };
        (0..QPS).for_each(|_| host.add_qp());
        host
    }

    fn add_qp(&mut self) {
        let made = self.pd.create_qp(&self.cq, &self.cq, &QpOptions::default());
        self.qps.push(made.expect("a QP of ordinary size"));
    }

    /// The worker that a packet is for, as the kernel's steering has it.
    fn worker_of(&self, datagram: &[u8]) -> usize {
        let number = match datagram {
            [_, _, _, _, _, a, b, c, ..] => u32::from_be_bytes([0, *a, *b, *c]),
            _ => 0,
        };
        let mut workers = self.workers.iter();
        workers.position(|worker| worker.owns(number)).unwrap_or(0)
    }

    fn poll(&mut self, worker: usize) {
        let worker = (worker % usize::from(self.workers.count())) as u8;
        self.node.poll_worker(worker).expect("a port that works");
    }

    fn take(&mut self) {
        let mut done = [Completion::BLANK; 64];
        loop {
            let got = self.cq.poll(&mut done).expect("room in the CQ");
            self.completed += got;
            if got == 0 {
                break;
            }
        }
        assert!(
            self.completed <= self.posted,
            "more completions than requests"
        );
        while self.node.poll_event().is_some() {}
    }
}

struct World {
    network: Network,
    clock: Clock,
    hosts: [Host; 2],
}

/// Connects, sends, destroys; delivers, loses, forges.
///
/// # Panics
/// When a node does, or completes what was not posted.
pub fn nodes(data: &[u8]) {
    let mut input = Input::new(data);
    let workers = [1 + (input.byte() & 1), 1 + input.byte() % 3];
    let network = Network(Arc::default());
    let clock = Clock::manual();
    clock.set(trunkline_conn::time::Instant::from_nanos(1_000_000_000));
    let hosts = [0, 1].map(|index| Host::new(&network, index, workers[index], &clock));
    let mut world = World {
        network,
        clock,
        hosts,
    };
    input.drive(MAX_OPERATIONS, |input| world.step(input));
    world.calm();
}

impl World {
    fn step(&mut self, input: &mut Input<'_>) {
        let operation = input.byte();
        let host = usize::from(operation >> 7);
        match operation & 0x0f {
            0..=3 => self.deliver(None),
            // To a worker that it may not be for.
            4 => self.deliver(Some(input.byte().into())),
            5 => self.delay(),
            6 => drop(self.network.air().flying.pop_front()),
            7 => self.double(),
            8 => self.forge(input),
            9 => self.stranger(host, input),
            10 => self.pass(1 << (input.byte() & 31)),
            11 | 12 => self.round(),
            13 => self.connect(input),
            14 => self.post(host, input),
            _ => self.replace(host, input),
        }
        self.hosts[host].poll(usize::from(operation >> 4));
        self.hosts.iter_mut().for_each(Host::take);
    }

    /// The first packet in the air comes out at a port.
    fn deliver(&self, astray: Option<usize>) {
        let mut air = self.network.air();
        let Some((to, datagram)) = air.flying.pop_front() else {
            return;
        };
        let right = self.hosts[to].worker_of(&datagram.1);
        let worker = astray.unwrap_or(right) % air.inboxes[to].len();
        air.inboxes[to][worker].push_back(datagram);
    }

    /// The first packet is overtaken by all others.
    fn delay(&self) {
        let mut air = self.network.air();
        if let Some(first) = air.flying.pop_front() {
            air.flying.push_back(first);
        }
    }

    fn double(&self) {
        let mut air = self.network.air();
        if let Some(copy) = air.flying.front().cloned() {
            air.flying.push_back(copy);
        }
    }

    /// A peer that says something else, with the right ICRC mostly, and sometimes of a stranger's
    /// address.
    fn forge(&self, input: &mut Input<'_>) {
        let mut air = self.network.air();
        let Some((_, (arrival, bytes))) = air.flying.front_mut() else {
            return;
        };
        let how = input.byte();
        for _ in 0..=how & 3 {
            let at = usize::from(input.byte()) % bytes.len();
            bytes[at] = input.byte();
        }
        if how & 4 != 0 {
            bytes.truncate(Bth::LEN.max(usize::from(input.byte())).min(bytes.len()));
        }
        if how & 0x18 == 0x18 {
            arrival.path.src = Ipv4Addr::new(10, 0, 0, 9).into();
        }
        if how & 0xe0 != 0 {
            reseal(&arrival.path, bytes);
        }
    }

    /// Bytes of the fuzzer's own.
    fn stranger(&self, host: usize, input: &mut Input<'_>) {
        let length = usize::from(input.byte());
        let mut bytes = input.bytes(length).to_vec();
        bytes.resize(bytes.len() + icrc::LEN, 0);
        let from = usize::from(input.byte());
        let path = Path {
            src: address(from % 4),
            dst: address(host),
            src_port: ROCE_PORT,
            traffic_class: 0,
            ip: IpFields::DEFAULT,
        };
        reseal(&path, &mut bytes);
        let arrival = Arrival {
            path,
            identification: Identification::Seen(0),
            ce: from & 0x80 != 0,
            waited_ns: 0,
        };
        self.network
            .air()
            .flying
            .push_front((host, (arrival, bytes)));
    }

    fn pass(&self, ns: u64) {
        self.clock.set(self.clock.now() + ns);
    }

    /// All workers have a turn, and all that flies arrives.
    fn round(&mut self) {
        for host in &mut self.hosts {
            for worker in 0..usize::from(host.workers.count()) {
                host.poll(worker);
            }
        }
        let flying = self.network.air().flying.len();
        for _ in 0..flying {
            self.deliver(None);
        }
    }

    fn connect(&self, input: &mut Input<'_>) {
        let pick = input.byte();
        let [near, far] = [pick & 0x0f, pick >> 4].map(|pick| usize::from(pick) % QPS);
        let (near, far) = (&self.hosts[0].qps[near], &self.hosts[1].qps[far]);
        // A QP that is connected refuses, and says so.
        let _ = near.connect(far.address());
        if input.flag() {
            let _ = far.connect(near.address());
        }
    }

    fn post(&mut self, host: usize, input: &mut Input<'_>) {
        let (what, which) = (input.byte(), usize::from(input.byte()) % QPS);
        let remote = self.hosts[1 - host].mr.remote(usize::from(what) * 8);
        let host = &mut self.hosts[host];
        let length = 1 << (input.byte() % 13);
        let sges = [host.mr.sge(0, length)];
        let wr_id = host.posted as u64;
        let posted = if what & 3 == 0 {
            let sges = &sges;
            host.qps[which].post_recv(&[RecvWr { wr_id, sges }])
        } else {
            let op = match what & 3 {
                1 => SendOp::Send,
                2 => SendOp::Write(remote),
                _ => SendOp::Read(remote),
            };
            host.qps[which].post_send(&[SendWr {
                wr_id,
                op,
                flags: SendFlags::SIGNALED,
                sges: &sges,
                inline: None,
                route: 0,
            }])
        };
        host.posted += usize::from(posted.is_ok());
    }

    /// A QP goes, another one comes.
    fn replace(&mut self, host: usize, input: &mut Input<'_>) {
        let host = &mut self.hosts[host];
        let which = usize::from(input.byte()) % QPS;
        drop(host.qps.swap_remove(which));
        host.add_qp();
    }

    /// Time passes on a network without faults: nodes that heard anything still work.
    fn calm(&mut self) {
        for _ in 0..CALM {
            self.pass(CALM_NS);
            self.round();
            self.hosts.iter_mut().for_each(Host::take);
        }
    }
}

fn reseal(path: &Path, bytes: &mut [u8]) {
    if bytes.len() >= Bth::LEN + icrc::LEN {
        icrc::seal(path, 0, bytes);
    }
}
