#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use crate::{Drive, Error, Node, Qp, QpOptions, RecvWr, SendWr};
use std::net::{IpAddr, Ipv4Addr};
use trunkline_dataplane::{MemoryConfig, MemoryPort};

/// How often the worker was woken since it was asked last: an eventfd counts what is written to it.
fn woken(wakeup: &Wakeup) -> u64 {
    let mut count = [0; 8];
    match rustix::io::read(wakeup.fd().unwrap(), &mut count) {
        Ok(_) => u64::from_ne_bytes(count),
        Err(rustix::io::Errno::AGAIN) => 0,
        Err(error) => panic!("{error}"),
    }
}

/// A QP in RTS of a node whose worker sleeps.
fn qp_of_a_sleeping_worker() -> (Node, Qp) {
    let address = IpAddr::V4(Ipv4Addr::new(10, 9, 0, 1));
    let builder = Node::builder().address(address).drive(Drive::Inline);
    let (port, _peer) = MemoryPort::pair(MemoryConfig::default());
    let node = builder.build_on(Box::new(port)).unwrap();
    let (pd, cq) = (node.alloc_pd(), node.create_cq(64).unwrap());
    let qp = pd.create_qp(&cq, &cq, &QpOptions::default()).unwrap();
    qp.connect(qp.address()).unwrap();
    let wakeup = &node.shared.handle(0).wakeup;
    wakeup.equip().unwrap();
    wakeup.asleep.store(true, Ordering::SeqCst);
    (node, qp)
}

const fn send(bytes: &[u8]) -> SendWr<'_> {
    SendWr::send().wr_id(1).inline(bytes).signaled()
}

#[test]
fn a_list_of_requests_wakes_the_worker_once() {
    let (node, qp) = qp_of_a_sleeping_worker();
    let wakeup = &node.shared.handle(0).wakeup;
    qp.post_send(&[send(b"one")]).unwrap();
    assert_eq!(woken(wakeup), 1);
    qp.post_send(&[send(b"of"), send(b"a"), send(b"list")])
        .unwrap();
    assert_eq!(woken(wakeup), 1);
    // The third is out of range: the two before it are posted, and the worker hears of them.
    let long = [0; 4096];
    let refused = qp.post_send(&[send(b"two"), send(b"go"), send(&long), send(b"late")]);
    assert!(
        matches!(&refused, Err(Error::Post(why)) if why.posted == 2),
        "{refused:?}"
    );
    assert_eq!(woken(wakeup), 1);
    // A receive request is nothing that the worker must hear of.
    let receive = RecvWr::new().wr_id(2);
    qp.post_recv(&[receive; 3]).unwrap();
    assert_eq!(woken(wakeup), 0);
}

#[test]
fn a_worker_that_is_awake_is_not_woken() {
    let (node, qp) = qp_of_a_sleeping_worker();
    let wakeup = &node.shared.handle(0).wakeup;
    wakeup.asleep.store(false, Ordering::SeqCst);
    qp.post_send(&[send(b"one"), send(b"two")]).unwrap();
    assert_eq!(woken(wakeup), 0);
}

/// Counts how often it was called.
#[derive(Default)]
struct Calls(std::sync::atomic::AtomicU64);

impl Notify for Calls {
    fn notify(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_worker_that_is_woken_by_a_call_has_no_descriptor_for_that() {
    let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let builder = Node::builder().address(address).drive(Drive::Inline);
    let (port, _peer) = MemoryPort::pair(MemoryConfig::default());
    let node = builder.build_on(Box::new(port)).unwrap();
    let calls = Arc::new(Calls::default());
    node.wake_by(0, Arc::clone(&calls) as _).unwrap();
    let wakeup = &node.shared.handle(0).wakeup;
    wakeup.equip().unwrap();
    assert!(wakeup.fd().is_none());
    let (pd, cq) = (node.alloc_pd(), node.create_cq(64).unwrap());
    let qp = pd.create_qp(&cq, &cq, &QpOptions::default()).unwrap();
    qp.connect(qp.address()).unwrap();
    let called = || calls.0.swap(0, Ordering::Relaxed);
    called();
    // While it is polled nobody calls; while it sleeps whoever posts does.
    qp.post_send(&[send(b"one")]).unwrap();
    assert_eq!(called(), 0);
    wakeup.fall_asleep();
    qp.post_send(&[send(b"two")]).unwrap();
    assert_eq!(called(), 1);
    wakeup.awake();
    qp.post_send(&[send(b"three")]).unwrap();
    assert_eq!(called(), 0);
    node.shutdown(std::time::Duration::ZERO).unwrap_err();
    assert_eq!(called(), 1, "the end is told, too");
    let again = node.wake_by(0, calls);
    assert!(matches!(again, Err(Error::NoFd { .. })), "{again:?}");
}
