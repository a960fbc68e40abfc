//! Packets that wait at a service for one that was lost, of programs that share its staging.

use super::peers::Peer;
use super::{alone, within};
use crate::common::{PATIENCE, address, service, wait_for};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use trunkline::{Cq, Drive, Node, Port, PortCounters, PortError, Qp, SendWr, Status};
use trunkline_dataplane::port::{Arrival, Capabilities, Egress, PortEvent, Slot};
use trunkline_dataplane::{Routes, UdpConfig, UdpPort};
use trunkline_wire::{Path, Workers};

/// Bytes for packets that wait.
const STAGING: usize = 64 << 10;
/// QPs of the program that takes all it can get, and what is under way on each.
const QPS: usize = 64;
const AHEAD: usize = 16;
const LENGTH: usize = 4096;
/// Of so many datagrams one is lost, once that is wanted.
const EACH: u64 = 16;

/// A port that loses datagrams.
struct Lossy {
    inner: UdpPort,
    loses: Arc<AtomicBool>,
    sent: u64,
}

impl Egress for Lossy {
    fn reserve(&mut self, path: &Path, length: usize) -> Option<Slot<'_>> {
        self.inner.reserve(path, length)
    }

    fn commit(&mut self) {
        self.sent += 1;
        // What is not committed is gone.
        if !self.loses.load(Ordering::Relaxed) || !self.sent.is_multiple_of(EACH) {
            self.inner.commit();
        }
    }
}

impl Port for Lossy {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn flush(&mut self) -> Result<(), PortError> {
        self.inner.flush()
    }

    fn receive(
        &mut self,
        limit: usize,
        sink: &mut dyn FnMut(&Arrival, &[u8]),
    ) -> Result<usize, PortError> {
        self.inner.receive(limit, sink)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.fd()
    }

    fn poll_event(&mut self) -> Option<PortEvent> {
        self.inner.poll_event()
    }

    fn counters(&self) -> PortCounters {
        self.inner.counters()
    }

    fn source_ports(&self) -> &[u16] {
        self.inner.source_ports()
    }

    fn routes(&self, local: IpAddr) -> Option<Box<dyn Routes + Send>> {
        self.inner.routes(local)
    }
}

/// A node whose packets are lost now and then.
fn lossy() -> (Peer, Arc<AtomicBool>) {
    let (own, loses) = (address(), Arc::new(AtomicBool::new(false)));
    let workers = Workers::new(1).unwrap();
    let group = UdpPort::open_group(&UdpConfig::new(own), workers).unwrap();
    let ports = group.into_iter().map(|inner| {
        let loses = Arc::clone(&loses);
        let port = Lossy {
            inner,
            loses,
            sent: 0,
        };
        Box::new(port) as Box<dyn Port + Send>
    });
    let builder = Node::builder().address(own).drive(Drive::Threaded);
    (
        Peer::of(builder.build_on_all(ports.collect()).unwrap()),
        loses,
    )
}

/// A QP of the peer to one of a program.
fn connect(peer: &Peer, end: &Peer) -> [(Qp, Cq); 2] {
    let ends = [peer.qp(), end.qp()];
    ends[0].0.connect(ends[1].0.address()).unwrap();
    ends[1].0.connect(ends[0].0.address()).unwrap();
    ends
}

#[test]
fn a_program_whose_packets_fill_the_staging_holds_up_no_other_one() {
    let _alone = alone();
    let (service, path) = service(Node::builder().address(address()).staging(STAGING));
    let (peer, loses) = lossy();
    let [greedy, modest] = [(); 2].map(|()| Peer::of(Node::attach(&path).unwrap()));
    let all: Vec<_> = (0..QPS).map(|_| connect(&peer, &greedy)).collect();
    let [(qp, cq), _end] = connect(&peer, &modest);
    let from = [peer.mr.sge(0, LENGTH)];
    let to_greedy = SendWr::write(greedy.mr.remote(0)).sges(&from).signaled();
    let to_modest = SendWr::write(modest.mr.remote(0)).sges(&from).signaled();
    let full = || service.node().counters().staging_full;
    let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|threads| {
        let _stops = Stops(&stop);
        threads.spawn(|| {
            for _ in 0..AHEAD {
                all.iter()
                    .for_each(|[(qp, _), _]| qp.post_send(&[to_greedy]).unwrap());
            }
            while !stop.load(Ordering::Relaxed) {
                for [(qp, cq), _] in &all {
                    while let Some(done) = cq.poll_one().unwrap() {
                        assert_eq!(done.status, Status::Success);
                        written.fetch_add(1, Ordering::Relaxed);
                        qp.post_send(&[to_greedy]).unwrap();
                    }
                }
                std::thread::yield_now();
            }
        });
        loses.store(true, Ordering::Relaxed);
        within(PATIENCE, "the staging is full", || full() > 0);
        let (before, mut slowest) = (full(), Duration::ZERO);
        for _ in 0..200 {
            let began = Instant::now();
            qp.post_send(&[to_modest]).unwrap();
            assert_eq!(wait_for(&cq).status, Status::Success);
            slowest = slowest.max(began.elapsed());
        }
        println!("{slowest:?} the slowest, {} found no room", full() - before);
        assert!(slowest < PATIENCE / 6, "{slowest:?}");
        within(PATIENCE, "it is full again", || full() > before);
        assert!(written.load(Ordering::Relaxed) > 0);
    });
    assert!(service.node().health().down.is_none());
}

/// Ends a thread, whatever becomes of the one that waits for it.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
