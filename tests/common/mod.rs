//! Two nodes on loopback addresses of their own, and how to drive them.
#![allow(dead_code, reason = "each test file uses its part of it")]
#![allow(
    unreachable_pub,
    reason = "a module that several test programs include"
)]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

pub mod faulty;
pub mod host;
pub mod process;
pub mod stranger;
pub mod written;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use trunkline::service::{Limits, Service};
use trunkline::{
    Access, AhAttributes, Attributes, Builder, Completion, Connection, ConnectionOptions,
    ConnectionState, Cq, Drive, Event, Gid, Mr, Node, Pd, Qp, QpModify, QpOptions, QpType, RecvWr,
    SendFlags, SendOp, SendWr,
};

/// How long anything may take before the test gives up on it: far more than it should.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes of each end's region.
pub const REGION: usize = 4 << 20;

/// Bytes of memory that this process has.
pub fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// A loopback address that no other test uses, of this process or of one that runs beside it.
pub fn address() -> IpAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let pid = std::process::id();
    let last = NEXT.fetch_add(1, Ordering::Relaxed);
    assert!(last < 255, "254 addresses are enough for one test binary");
    Ipv4Addr::new(127, 64 + (pid >> 8) as u8 % 128, pid as u8, last).into()
}

/// An inline node on an address of its own.
pub fn inline() -> Builder {
    Node::builder().address(address()).drive(Drive::Inline)
}

/// The next completion, which comes without the caller doing anything for it.
pub fn wait_for(cq: &Cq) -> Completion {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = cq.poll_one().unwrap() {
            return found;
        }
        assert!(Instant::now() < end, "no completion");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether the tests of this program are those of nodes that services carry.
pub const SERVED: bool = matches!(
    env!("CARGO_CRATE_NAME").as_bytes(),
    [.., b'_', b's', b'e', b'r', b'v', b'e', b'd']
);

/// Ends a test that looks at what only a node inside the program shows, where a service carries it.
#[macro_export]
macro_rules! not_served {
    ($why:literal) => {
        if $crate::common::SERVED {
            eprintln!("not for nodes that a service carries: {}", $why);
            return;
        }
    };
}

/// The events that wait for a program. A service hands them on by a thread of its own, which may be
/// about to.
pub fn events(node: &Node) -> Vec<Event> {
    if SERVED {
        std::thread::sleep(Duration::from_millis(100));
    }
    std::iter::from_fn(|| node.poll_event()).collect()
}

/// Whether a QP is bound to a connection, as far as its program can know.
pub fn is_bound(qp: &Qp) -> bool {
    SERVED || qp.connection().is_some()
}

/// A service with a node of that kind, and where programs attach to it.
pub fn service(builder: Builder) -> (Service, String) {
    service_of(builder, &Limits::default())
}

/// The same, of those limits.
pub fn service_of(builder: Builder, limits: &Limits) -> (Service, String) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let node = builder.drive(Drive::Threaded).build().unwrap();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = format!("@trunkline-test/{}/{number}", std::process::id());
    let service = Service::start(node, &path, limits).unwrap();
    (service, path)
}

/// A node with what a program usually has of it.
pub struct End {
    pub node: Node,
    /// The node that carries its packets: the same, or that of a service.
    pub carrier: Node,
    pub pd: Pd,
    pub send_cq: Cq,
    pub recv_cq: Cq,
    pub mr: Mr,
}

impl End {
    /// With a node of that kind, or attached to a service that has one.
    pub fn new(builder: Builder) -> Self {
        if !SERVED {
            return Self::of(builder.build().unwrap());
        }
        let (service, path) = service(builder);
        let carrier = service.node().clone();
        // It ends with the test program.
        std::mem::forget(service);
        Self {
            carrier,
            ..Self::of(Node::attach(path).unwrap())
        }
    }

    pub fn of(node: Node) -> Self {
        let pd = node.alloc_pd();
        let (send_cq, recv_cq) = (node.create_cq(4096).unwrap(), node.create_cq(4096).unwrap());
        let mr = pd.register(REGION, Access::ALL).unwrap();
        Self {
            carrier: node.clone(),
            node,
            pd,
            send_cq,
            recv_cq,
            mr,
        }
    }

    pub fn qp(&self, options: &QpOptions) -> Qp {
        self.pd
            .create_qp(&self.send_cq, &self.recv_cq, options)
            .unwrap()
    }

    /// Posts a receive into the region.
    pub fn receive(&self, qp: &Qp, wr_id: u64, offset: usize, length: usize) {
        let sges = [self.mr.sge(offset, length)];
        qp.post_recv(&[RecvWr::new().wr_id(wr_id).sges(&sges)])
            .unwrap();
    }

    /// Posts a signalled request from, or into, the region.
    pub fn post(&self, qp: &Qp, wr_id: u64, op: SendOp, offset: usize, length: usize) {
        self.try_post(qp, wr_id, op, SendFlags::SIGNALED, offset, length)
            .unwrap();
    }

    pub fn try_post(
        &self,
        qp: &Qp,
        wr_id: u64,
        op: SendOp,
        flags: SendFlags,
        offset: usize,
        length: usize,
    ) -> Result<(), trunkline::Error> {
        let sges = [self.mr.sge(offset, length)];
        qp.post_send(&[SendWr::new(op).wr_id(wr_id).sges(&sges).flags(flags)])
    }

    pub fn bytes(&self, offset: usize, length: usize) -> Vec<u8> {
        let mut out = vec![0; length];
        self.mr.read(offset, &mut out).unwrap();
        out
    }

    pub fn word(&self, offset: usize) -> u64 {
        u64::from_ne_bytes(self.bytes(offset, 8).try_into().unwrap())
    }
}

/// Two inline nodes.
pub struct Pair {
    pub a: End,
    pub b: End,
}

impl Pair {
    pub fn new() -> Self {
        Self {
            a: End::new(inline()),
            b: End::new(inline()),
        }
    }

    /// A pair of QPs, connected to each other.
    pub fn qps(&self) -> (Qp, Qp) {
        self.qps_with(&QpOptions::default(), &Attributes::default())
    }

    pub fn qps_with(&self, options: &QpOptions, attributes: &Attributes) -> (Qp, Qp) {
        let (qa, qb) = (self.a.qp(options), self.b.qp(options));
        qa.connect_with(qb.address(), Access::ALL, attributes)
            .unwrap();
        qb.connect_with(qa.address(), Access::ALL, attributes)
            .unwrap();
        (qa, qb)
    }

    pub fn turn(&self) {
        turn(&[&self.a.node, &self.b.node]);
    }

    pub fn until(&self, what: &str, done: impl FnMut() -> bool) {
        until(&[&self.a.node, &self.b.node], what, done);
    }

    /// The next completion of `cq`.
    pub fn next(&self, cq: &Cq) -> Completion {
        next(&[&self.a.node, &self.b.node], cq)
    }

    /// Lets both nodes run for a while, to see that nothing more happens.
    pub fn run_for(&self, time: Duration) {
        let started = Instant::now();
        while started.elapsed() < time {
            self.turn();
        }
    }
}

/// One round of each node.
pub fn turn(nodes: &[&Node]) {
    let mut busy = false;
    for node in nodes {
        busy |= node.poll().unwrap();
    }
    if !busy {
        std::thread::yield_now();
    }
}

/// Drives nodes until `done`.
pub fn until(nodes: &[&Node], what: &str, mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        turn(nodes);
        assert!(started.elapsed() < PATIENCE, "still waiting for: {what}");
    }
}

/// Drives nodes until `cq` has a completion.
pub fn next(nodes: &[&Node], cq: &Cq) -> Completion {
    let mut found = None;
    until(nodes, "a completion", || {
        found = cq.poll_one().unwrap();
        found.is_some()
    });
    found.unwrap()
}

/// Opens a connection and waits until it is open.
pub fn open(nodes: &[&Node], from: &End, to: &End, options: &ConnectionOptions) -> Connection {
    let connection = from
        .node
        .open_connection(to.node.gid().address(), options)
        .unwrap();
    until(nodes, "the connection to open", || {
        match connection.state() {
            ConnectionState::Opening => false,
            ConnectionState::Open(_) => true,
            other => panic!("{other:?}"),
        }
    });
    connection
}

/// An app-managed QP, ready to send and receive.
pub fn src_qp(end: &End, worker: Option<u8>) -> Qp {
    let qp = end.qp(&QpOptions {
        kind: QpType::Src,
        worker,
        ..QpOptions::default()
    });
    let access = Access::ALL;
    qp.modify(&QpModify::Init { access }).unwrap();
    qp.modify(&QpModify::Rtr(Attributes::default())).unwrap();
    qp.modify(&QpModify::Rts(Attributes::default())).unwrap();
    qp
}

/// Attributes of an address handle for a node.
pub fn ah_to(remote: Gid) -> AhAttributes {
    AhAttributes {
        remote,
        ..AhAttributes::default()
    }
}

/// Bytes that differ from place to place and from seed to seed.
pub fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 56) as u8
    };
    (0..length).map(|_| next()).collect()
}
