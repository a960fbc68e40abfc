//! Nodes on ports that have an interface to themselves: neighbours are found with no kernel.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::PATIENCE;
use common::host::{Host, PORT};
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use trunkline::rdma_cm::{CmEventKind, EventChannel, Kind, PortSpace, ResolveError};
use trunkline::{
    ConnectionOptions, Error, Instant as Time, NoConnection, Node, Port, PortCounters, PortError,
    QpAddress, SendWr, Status, VendorError,
};
use trunkline_dataplane::port::{Arrival, Capabilities, Egress, Slot};
use trunkline_dataplane::{Interface, MemoryConfig, MemoryPort, Neighbours, Routes};
use trunkline_wire::{Mac, Path};

/// Frames on their way from one interface to the other.
type Frames = Arc<Mutex<VecDeque<Vec<u8>>>>;

/// One end of a link of its own: datagrams by a memory port, what neighbours say to each other by
/// frames beside it.
struct LinkPort {
    datagrams: MemoryPort,
    neighbours: Arc<Mutex<Neighbours>>,
    out: Frames,
    incoming: Frames,
    started: Instant,
    /// Where datagrams are written that go nowhere.
    nowhere: Vec<u8>,
    /// The datagram that was reserved goes nowhere.
    lost: bool,
    unreachable: u64,
}

impl LinkPort {
    fn run(&self) {
        let now = Time::from_nanos(self.started.elapsed().as_nanos() as u64);
        let mut neighbours = self.neighbours.lock().unwrap();
        neighbours.handle_timeout(now);
        for frame in self.incoming.lock().unwrap().drain(..) {
            assert!(neighbours.receive(now, &frame));
        }
        while let Some(frame) = neighbours.poll_transmit() {
            self.out.lock().unwrap().push_back(frame);
        }
    }
}

impl Egress for LinkPort {
    fn reserve(&mut self, path: &Path, length: usize) -> Option<Slot<'_>> {
        let mut neighbours = self.neighbours.lock().unwrap();
        self.lost = neighbours.mac(path.dst).is_none();
        if self.lost {
            // What answers a stranger is sent again: by then it is known who that is.
            neighbours.solicit(path.dst);
            self.nowhere.resize(length, 0);
            return Some(Slot {
                datagram: &mut self.nowhere,
                identification: 0,
            });
        }
        drop(neighbours);
        self.datagrams.reserve(path, length)
    }

    fn commit(&mut self) {
        if self.lost {
            self.unreachable += 1;
        } else {
            self.datagrams.commit();
        }
    }
}

impl Port for LinkPort {
    fn capabilities(&self) -> Capabilities {
        self.datagrams.capabilities()
    }

    fn flush(&mut self) -> Result<(), PortError> {
        self.run();
        self.datagrams.flush()
    }

    fn receive(
        &mut self,
        limit: usize,
        sink: &mut dyn FnMut(&Arrival, &[u8]),
    ) -> Result<usize, PortError> {
        self.run();
        self.datagrams.receive(limit, sink)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn counters(&self) -> PortCounters {
        let counters = self.datagrams.counters();
        PortCounters {
            unreachable: counters.unreachable + self.unreachable,
            ..counters
        }
    }

    fn routes(&self, local: IpAddr) -> Option<Box<dyn Routes + Send>> {
        assert_eq!(local, self.neighbours.lock().unwrap().interface().address);
        Some(Box::new(Arc::clone(&self.neighbours)))
    }
}

const fn host(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 9, 0, last))
}

/// Two nodes on a link, and their neighbours.
fn linked() -> [(Host, Arc<Mutex<Neighbours>>); 2] {
    let (east, west) = MemoryPort::pair(MemoryConfig::default());
    let hops: [Frames; 2] = Default::default();
    let mut ports = [Some(east), Some(west)];
    [0, 1].map(|end: usize| {
        let address = host(1 + end as u8);
        let neighbours = Arc::new(Mutex::new(Neighbours::new(Interface {
            mac: Mac([2, 0, 0, 0, 0, end as u8]),
            address,
            prefix: 24,
            gateway: None,
            mtu: 4200,
        })));
        let port = LinkPort {
            datagrams: ports[end].take().unwrap(),
            neighbours: Arc::clone(&neighbours),
            out: Arc::clone(&hops[end]),
            incoming: Arc::clone(&hops[1 - end]),
            started: Instant::now(),
            nowhere: Vec::new(),
            lost: false,
            unreachable: 0,
        };
        let builder = Node::builder().address(address);
        let node = builder.build_on(Box::new(port)).unwrap();
        (Host::of(node, address), neighbours)
    })
}

/// What becomes of an address within `limit`.
fn resolve(channel: &EventChannel, to: SocketAddr, limit: Duration) -> CmEventKind {
    let id = channel.create_id(PortSpace::Tcp, Kind::Rc).unwrap();
    id.resolve_addr(to, limit).unwrap();
    channel.get_event(PATIENCE).unwrap().kind
}

#[test]
fn neighbours_are_asked_for_and_a_connection_follows() {
    let [(east, neighbours), (west, others)] = linked();
    let listener = west.listen(0);
    let to = (west.address, PORT).into();
    let (near, _far) = std::thread::scope(|scope| {
        let asked = scope.spawn(|| east.connect(to, b"").unwrap());
        let request = listener.get_request(&west.node, PATIENCE).unwrap();
        let params = trunkline::rdma_cm::Params::default();
        let far = request
            .accept(&west.resources(), &params, PATIENCE)
            .unwrap();
        west.receive(far.qp());
        (asked.join().unwrap(), far)
    });
    east.send(near.qp(), b"neighbour");
    west.done();
    let mut bytes = [0; 9];
    west.mr.read(2048, &mut bytes).unwrap();
    assert_eq!(&bytes, b"neighbour");
    let [east, west] = [neighbours, others].map(|each| *each.lock().unwrap().counters());
    // Whoever asks second may have been asked before: then its question teaches the other too.
    assert_eq!((east.asked, west.answered), (1, 1), "{east:?} {west:?}");
    assert_eq!((west.asked, east.answered), (1, 1), "{east:?} {west:?}");
    assert!(east.learned > 0 && west.learned > 0, "{east:?} {west:?}");
}

#[test]
fn an_address_that_nobody_has_is_silent_or_too_late() {
    let [(east, _), _west] = linked();
    let channel = east.node.create_event_channel().unwrap();
    let nobody = (host(77), PORT).into();
    let why = resolve(&channel, nobody, Duration::from_millis(200));
    assert!(
        matches!(why, CmEventKind::AddressError(ResolveError::Timeout(at)) if at == host(77)),
        "{why:?}"
    );
    // Three questions with a second behind each.
    let why = resolve(&channel, nobody, Duration::from_secs(10));
    assert!(
        matches!(why, CmEventKind::AddressError(ResolveError::Silent(at)) if at == host(77)),
        "{why:?}"
    );
    let elsewhere = (IpAddr::from([192, 0, 2, 1]), PORT).into();
    let why = resolve(&channel, elsewhere, Duration::from_secs(10));
    assert!(
        matches!(why, CmEventKind::AddressError(ResolveError::Route(_))),
        "{why:?}"
    );
}

#[test]
fn what_an_absent_host_fails_says_that_no_host_is_there() {
    let [(east, _), _west] = linked();
    let options = ConnectionOptions::default();
    let opened = east.node.open_connection(host(77), &options).unwrap();
    let qp = east
        .pd
        .create_qp(&east.cq, &east.cq, &east.options)
        .unwrap();
    // A host that does not answer may be an ordinary one: its QP tries as long as it was told to.
    qp.connect(QpAddress {
        gid: host(77).into(),
        ..qp.address()
    })
    .unwrap();
    qp.post_send(&[SendWr::send().wr_id(1).inline(b"nobody").signaled()])
        .unwrap();
    let done = east.next();
    assert_eq!(
        (done.status, done.vendor_err),
        (Status::RetryExceeded, VendorError::None)
    );
    assert!(east.node.port_counters().unreachable > 0);
    match opened.stats().unwrap_err() {
        Error::NoConnection { why, .. } => assert_eq!(why, NoConnection::NoHost),
        other => panic!("{other}"),
    }
}
