//! Laws of a service about programs that keep to no rule: they lose what is theirs, and nobody else
//! notices.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[path = "raw.rs"]
pub(crate) mod raw;

#[path = "intrusions.rs"]
mod intrusions;
#[path = "lies.rs"]
mod lies;
#[path = "lingering.rs"]
mod lingering;
#[path = "quotas.rs"]
mod quotas;
#[path = "scribbles.rs"]
mod scribbles;
#[path = "stalls.rs"]
mod stalls;

use crate::common::{PATIENCE, address, wait_for};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use trunkline::service::{Limits, Service};
use trunkline::{Access, Cq, Drive, Mr, Node, Pd, Qp, QpOptions, RecvWr, SendWr, Status};

/// How long a program may wait for the service while another one does its worst.
const SOON: Duration = Duration::from_secs(5);

/// A service of those limits, and where programs attach to it.
fn service(change: impl FnOnce(&mut Limits)) -> (Service, String) {
    service_of(1, change)
}

fn service_of(workers: u8, change: impl FnOnce(&mut Limits)) -> (Service, String) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let mut limits = Limits::default();
    change(&mut limits);
    let builder = Node::builder().address(address()).drive(Drive::Threaded);
    let builder = builder.workers(workers);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = format!("@trunkline-hostile/{}/{number}", std::process::id());
    let service = Service::start(builder.build().unwrap(), &path, &limits).unwrap();
    (service, path)
}

/// Waits until something is so.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// One end of a pair of QPs.
struct Side {
    _node: Node,
    _pd: Pd,
    cq: Cq,
    mr: Mr,
    qp: Qp,
}

impl Side {
    fn new(node: Node) -> Self {
        let pd = node.alloc_pd();
        let cq = node.create_cq(64).unwrap();
        let mr = pd.register(4096, Access::ALL).unwrap();
        let qp = pd.create_qp(&cq, &cq, &QpOptions::default()).unwrap();
        Self {
            _node: node,
            _pd: pd,
            cq,
            mr,
            qp,
        }
    }
}

/// A well-behaved program of the service, and its peer at another node.
struct Neighbours {
    near: Side,
    far: Side,
    sent: u64,
}

impl Neighbours {
    fn of(path: &str) -> Self {
        let near = Side::new(Node::attach(path).unwrap());
        let far = Node::builder().address(address()).drive(Drive::Threaded);
        let far = Side::new(far.build().unwrap());
        near.qp.connect(far.qp.address()).unwrap();
        far.qp.connect(near.qp.address()).unwrap();
        let sent = 0;
        Self { near, far, sent }
    }

    /// A message to the peer and one back arrive. Gives how long that took.
    fn exchange(&mut self) -> Duration {
        let start = Instant::now();
        for (from, to) in [(&self.near, &self.far), (&self.far, &self.near)] {
            self.sent += 1;
            let sent = self.sent;
            from.mr.write(0, &sent.to_ne_bytes()).unwrap();
            let receive = RecvWr::new().wr_id(sent);
            to.qp
                .post_recv(&[receive.sges(&[to.mr.sge(64, 64)])])
                .unwrap();
            let send = SendWr::send().wr_id(sent).signaled();
            from.qp
                .post_send(&[send.sges(&[from.mr.sge(0, 8)])])
                .unwrap();
            for cq in [&from.cq, &to.cq] {
                let done = wait_for(cq);
                assert_eq!((done.wr_id, done.status), (sent, Status::Success));
            }
            let mut got = [0; 8];
            to.mr.read(64, &mut got).unwrap();
            assert_eq!(u64::from_ne_bytes(got), sent);
        }
        start.elapsed()
    }
}

/// The service is up, and carries a program that comes now.
fn still_serves((service, path): &(Service, String)) {
    assert_eq!(service.node().health().down, None);
    let start = Instant::now();
    let mut neighbours = Neighbours::of(path);
    for _ in 0..4 {
        neighbours.exchange();
    }
    let waited = start.elapsed();
    assert!(waited < SOON, "a new program waited for {waited:?}");
    assert_eq!(service.node().health().down, None);
}

/// Nothing of any program is left.
fn is_clean(service: &Service) {
    until("programs are parted with", || service.clients().is_empty());
    let nothing = trunkline::LiveObjects::default();
    until("nothing of them is left", || {
        service.node().live_objects() == nothing
    });
}
