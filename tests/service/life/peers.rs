//! The other side of programs that are killed, and programs beside them.

use super::roles::{LENGTH, ROOM, UNDER_WAY};
use crate::common::{PATIENCE, address, pattern};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use trunkline::{Access, Cq, Drive, Mr, Node, Pd, Qp, QpOptions, RecvWr, Remote, SendWr, Status};

/// A node with what its QPs need.
pub(super) struct Peer {
    pub(super) node: Node,
    pub(super) pd: Pd,
    pub(super) mr: Mr,
}

impl Peer {
    /// One with a node of its own.
    pub(super) fn new() -> Self {
        let node = Node::builder().address(address()).drive(Drive::Threaded);
        Self::of(node.build().unwrap())
    }

    pub(super) fn of(node: Node) -> Self {
        let pd = node.alloc_pd();
        let mr = pd.register(ROOM, Access::ALL).unwrap();
        Self { node, pd, mr }
    }

    pub(super) fn qp(&self) -> (Qp, Cq) {
        let cq = self.node.create_cq(1024).unwrap();
        let qp = self.pd.create_qp(&cq, &cq, &QpOptions::default()).unwrap();
        (qp, cq)
    }
}

/// What a peer asks of a program, until that is gone.
pub(super) struct Asking {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<(Instant, Status)>,
}

impl Asking {
    /// Keeps requests of that kind under way.
    pub(super) fn start(peer: &Peer, (qp, cq): (Qp, Cq), role: &str, remote: Remote) -> Self {
        let request = match role {
            "foreign" | "window" => SendWr::write(remote),
            "idle read" | "foreign read" => SendWr::read(remote),
            _ => SendWr::send(),
        };
        let sge = peer.mr.sge(0, LENGTH);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let sges = [sge];
            let request = [request.sges(&sges).signaled()];
            for _ in 0..UNDER_WAY {
                qp.post_send(&request).unwrap();
            }
            loop {
                match cq.wait(Duration::from_millis(20)).unwrap() {
                    Some(done) if done.status == Status::Success => {
                        // It may be in error by now, which the next completion says.
                        let _ = qp.post_send(&request);
                    }
                    Some(done) => return (Instant::now(), done.status),
                    None => assert!(!stopped.load(Ordering::Relaxed), "no error came"),
                }
            }
        });
        Self { stop, thread }
    }

    /// Whether an error came.
    pub(super) fn has_failed(&self) -> bool {
        self.thread.is_finished()
    }

    /// When the first error came, and which one: it has two seconds for that.
    pub(super) fn end(self) -> (Instant, Status) {
        let start = Instant::now();
        while !self.thread.is_finished() && start.elapsed() < Duration::from_secs(2) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// A program that exchanges messages with a peer all the time, and looks at each.
pub(super) struct Neighbour {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<(u64, Duration)>,
    /// Its node, which stays.
    pub(super) end: Arc<Peer>,
}

impl Neighbour {
    pub(super) fn start(path: &str, peer: &Peer) -> Self {
        let end = Arc::new(Peer::of(Node::attach(path).unwrap()));
        Self::exchange(end, peer)
    }

    /// The same with a node that is there. The first message has been exchanged when this returns,
    /// so both have all that they take for it.
    pub(super) fn exchange(end: Arc<Peer>, peer: &Peer) -> Self {
        let ((qa, ca), (qb, cb)) = (end.qp(), peer.qp());
        qa.connect(qb.address()).unwrap();
        qb.connect(qa.address()).unwrap();
        let (ma, mb) = (end.pd.register(8192, Access::ALL).unwrap(), {
            peer.pd.register(8192, Access::ALL).unwrap()
        });
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let (exchanged, first) = channel();
        let thread = std::thread::spawn(move || {
            let (mut round, mut slowest) = (0, Duration::ZERO);
            while !stopped.load(Ordering::Relaxed) {
                let start = Instant::now();
                let data = pattern(round, 1500);
                ma.write(0, &data).unwrap();
                carry((&qa, &ca, &ma), (&qb, &cb, &mb), 0, 4096);
                carry((&qb, &cb, &mb), (&qa, &ca, &ma), 4096, 4096);
                let mut got = vec![0; 1500];
                ma.read(4096, &mut got).unwrap();
                assert_eq!(got, data, "round {round}");
                slowest = slowest.max(start.elapsed());
                round += 1;
                // Only the first is waited for.
                let _ = exchanged.send(());
            }
            (round, slowest)
        });
        first.recv_timeout(PATIENCE).expect("a message");
        Self { stop, thread, end }
    }

    /// Gives how many messages it exchanged and how long the slowest took, and its node.
    pub(super) fn stop(self) -> (u64, Duration, Arc<Peer>) {
        self.stop.store(true, Ordering::Relaxed);
        let (rounds, slowest) = self.thread.join().unwrap();
        (rounds, slowest, self.end)
    }
}

type Side<'a> = (&'a Qp, &'a Cq, &'a Mr);

fn carry(from: Side<'_>, to: Side<'_>, at: usize, target: usize) {
    let receive = [to.2.sge(target, 1500)];
    to.0.post_recv(&[RecvWr::new().sges(&receive)]).unwrap();
    let send = [from.2.sge(at, 1500)];
    from.0
        .post_send(&[SendWr::send().sges(&send).signaled()])
        .unwrap();
    for cq in [from.1, to.1] {
        let done = cq.wait(PATIENCE).unwrap().expect("a completion");
        assert_eq!(done.status, Status::Success);
    }
}
