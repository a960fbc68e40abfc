//! Nodes on loopback addresses of their own, and futures that are dropped before they are ready.
#![allow(dead_code, reason = "each test file uses its part of it")]
#![allow(
    unreachable_pub,
    reason = "a module that several test programs include"
)]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

pub mod process;

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use trunkline::rdma_cm::sync::{ConnectError, Resources};
use trunkline::{Access, Error, Mr, Pd, Qp, QpOptions, RecvWr, SendFlags, SendOp, SendWr};
use trunkline_tokio::rdma_cm::{Accepting, Connecting, Request};
use trunkline_tokio::{Cq, Node};

/// How long anything may take before the test gives up on it: far more than it should.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A loopback address that no other test uses, of this process or of one that runs beside it.
pub fn address() -> IpAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let pid = std::process::id();
    let last = NEXT.fetch_add(1, Ordering::Relaxed);
    assert!(last < 255, "254 addresses are enough for one test binary");
    Ipv4Addr::new(127, 64 + (pid >> 8) as u8 % 128, pid as u8, last).into()
}

/// A node on an address of its own, driven by the current runtime.
pub fn node() -> Node {
    Node::new(trunkline::Node::builder().address(address())).unwrap()
}

/// One that finds out within two seconds that a peer is gone: it asks a silent one after one.
pub fn wary() -> Node {
    let second = Duration::from_secs(1);
    let builder = trunkline::Node::builder().address(address());
    Node::new(builder.keep_alive(second).peer_timeout(second)).unwrap()
}

/// Both kinds of runtime.
pub fn runtimes() -> [Runtime; 2] {
    [
        Builder::new_current_thread().enable_all().build().unwrap(),
        Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap(),
    ]
}

/// Runs a test on both kinds of runtime, each within the test's patience.
pub fn on_both(test: impl AsyncFn()) {
    for runtime in runtimes() {
        runtime.block_on(async { in_time(test()).await });
    }
}

/// What a future gives, in time.
pub async fn in_time<F: Future>(future: F) -> F::Output {
    let ended = tokio::time::timeout(PATIENCE, future).await;
    ended.expect("it ends in time")
}

/// Polls a future so many times at most, each time when it was woken, and drops it then: `None` if
/// it was not ready.
pub async fn polled<F: Future>(future: F, most: usize) -> Option<F::Output> {
    struct Polled<'a, F> {
        future: Pin<&'a mut F>,
        left: usize,
    }
    impl<F: Future> Future for Polled<'_, F> {
        type Output = Option<F::Output>;
        fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
            if self.left == 0 {
                return Poll::Ready(None);
            }
            self.left -= 1;
            match self.future.as_mut().poll(cx) {
                Poll::Ready(output) => Poll::Ready(Some(output)),
                Poll::Pending if self.left == 0 => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            }
        }
    }
    let future = pin!(future);
    Polled { future, left: most }.await
}

/// A node with what a program usually has of it.
pub struct End {
    pub node: Node,
    pub pd: Pd,
    pub cq: Cq,
    pub mr: Mr,
}

impl End {
    pub fn new() -> Self {
        Self::of(node())
    }

    pub fn of(node: Node) -> Self {
        let (pd, cq) = (node.alloc_pd(), node.create_cq(4096).unwrap());
        let mr = pd.register(1 << 20, Access::ALL).unwrap();
        Self { node, pd, cq, mr }
    }

    pub fn qp(&self) -> Qp {
        let options = QpOptions::default();
        let cq = self.cq.verbs();
        self.pd.create_qp(cq, cq, &options).unwrap()
    }

    /// Where peers connect.
    pub fn at(&self) -> SocketAddr {
        (self.node.gid().address(), 7471).into()
    }

    fn resources<'a>(&'a self, options: &'a QpOptions) -> Resources<'a> {
        let cq = self.cq.verbs();
        Resources {
            pd: &self.pd,
            send_cq: cq,
            recv_cq: cq,
            options,
        }
    }

    /// The way to a peer, with a QP.
    pub async fn connecting(
        &self,
        to: SocketAddr,
        options: &QpOptions,
    ) -> Result<Connecting, ConnectError> {
        let limit = Duration::from_secs(5);
        Connecting::to(&self.node, &self.resources(options), to, limit).await
    }

    /// What a peer asks for, with a QP.
    pub fn accepting(&self, request: Request, options: &QpOptions) -> Result<Accepting, Error> {
        request.prepare(&self.resources(options))
    }

    /// Posts a SEND of 8 bytes.
    pub fn send(&self, qp: &Qp, number: u64) {
        self.post(qp, SendOp::Send, number);
    }

    /// Posts a WRITE of 8 bytes into a region of this end.
    pub fn write(&self, qp: &Qp, number: u64) {
        self.post(qp, SendOp::Write(self.mr.remote(0)), number);
    }

    fn post(&self, qp: &Qp, op: SendOp, number: u64) {
        qp.post_send(&[SendWr {
            wr_id: number,
            op,
            flags: SendFlags::SIGNALED,
            sges: &[],
            inline: Some(&number.to_ne_bytes()),
            route: 0,
        }])
        .unwrap();
    }

    /// Posts a receive of 8 bytes.
    pub fn receive(&self, qp: &Qp, wr_id: u64) {
        let sges = [self.mr.sge(wr_id as usize * 8, 8)];
        qp.post_recv(&[RecvWr { wr_id, sges: &sges }]).unwrap();
    }
}

/// Two nodes with a QP each, connected to one another.
pub fn pair() -> [(End, Qp); 2] {
    let ends = [(); 2].map(|()| {
        let end = End::new();
        let qp = end.qp();
        (end, qp)
    });
    let [(_, a), (_, b)] = &ends;
    a.connect(b.address()).unwrap();
    b.connect(a.address()).unwrap();
    ends
}
