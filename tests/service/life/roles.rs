//! What the processes of these tests do.

use super::{forked, hear, rest, say, shortage, slow};
use crate::common::wait_for;
use std::net::IpAddr;
use std::ptr::NonNull;
use std::time::Duration;
use trunkline::service::{Limits, Service};
use trunkline::{
    Access, AttachOptions, Completion, Cq, Drive, Mr, MwType, Node, Pd, Promotion, Qp, QpAddress,
    QpOptions, RecvWr, Remote, SendWr, Srq, Status,
};

/// Bytes of the region of a program.
pub(super) const ROOM: usize = 1 << 20;
/// Bytes of a request.
pub(super) const LENGTH: usize = 64 << 10;
/// Requests that are under way.
pub(super) const UNDER_WAY: u64 = 8;

pub(super) fn play(role: &str, path: &str) {
    match role.split_once(' ') {
        Some(("service", address)) => serve(address.parse().unwrap(), path),
        Some(("many", qps)) => many(qps.parse().unwrap(), path),
        Some(("slow", how)) => slow::program(how, path),
        _ => match role {
            "connected" => {
                let _socket = connect(path);
                say(&());
                rest();
            }
            "attached" => {
                let _node = Node::attach(path).unwrap();
                say(&());
                rest();
            }
            "promoting" => promotes(path),
            "forks" => forked::forks(path),
            "silent forks" => forked::silent_forks(path),
            "lets go" => forked::lets_go_of_a_cq(path),
            "forked" => forked::calls_in_a_child(path),
            "no descriptors" => shortage::client_without_descriptors(path),
            "resizes" => shortage::resizes_without_descriptors(path),
            "no address space" => shortage::client_without_address_space(path),
            "no buffers" => shortage::client_without_buffers(path),
            "loses a queue" => shortage::loses_a_queue(path),
            "poor service" => shortage::poor_service(path),
            _ => Program::attach(role, path).live(),
        },
    }
}

/// Promotes memory and takes it back, over and over.
fn promotes(path: &str) {
    let promotion = Promotion::Always;
    let node = Node::attach_with(path, &AttachOptions { promotion }).unwrap();
    let pd = node.alloc_pd();
    let heap = Box::leak(vec![1_u8; 16 << 20].into_boxed_slice());
    let at = NonNull::new(heap.as_mut_ptr()).unwrap();
    say(&());
    loop {
        // SAFETY: it is leaked, and nobody else looks at it.
        drop(unsafe { pd.register_foreign(at, 16 << 20, Access::ALL) }.unwrap());
    }
}

/// A socket to a service, which says nothing.
pub(super) fn connect(path: &str) -> std::os::fd::OwnedFd {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, connect, socket};
    let socket = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    let name = path.strip_prefix('@').unwrap();
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    connect(&socket, &address).unwrap();
    socket
}

/// A service, which ends when it is told to.
fn serve(address: IpAddr, path: &str) {
    let node = Node::builder().address(address).drive(Drive::Threaded);
    let node = match node.build() {
        Ok(node) => node,
        Err(error) => return say(&Err::<(), _>(error.to_string())),
    };
    match Service::start(node, path, &Limits::default()) {
        Ok(service) => {
            say(&Ok::<_, String>(()));
            let () = hear();
            drop(service);
        }
        Err(error) => say(&Err::<(), _>(error.to_string())),
    }
}

/// A program with what it has, all of which is kept.
struct Program {
    role: String,
    node: Node,
    pd: Pd,
    cq: Cq,
    mr: Mr,
    srq: Option<Srq>,
    qp: Qp,
    peer: Remote,
}

impl Program {
    fn attach(role: &str, path: &str) -> Self {
        let node = Node::attach(path).unwrap();
        let (pd, cq) = (node.alloc_pd(), node.create_cq(1024).unwrap());
        let access = Access::ALL | Access::MW_BIND;
        let mr = match role {
            "foreign" => {
                let heap = Box::leak(vec![0_u8; ROOM].into_boxed_slice());
                let at = NonNull::new(heap.as_mut_ptr()).unwrap();
                // SAFETY: it is leaked, and nobody else looks at it.
                unsafe { pd.register_foreign(at, ROOM, access) }
            }
            _ => pd.register(ROOM, access),
        };
        let srq = (role == "srq").then(|| pd.create_srq(256, 1).unwrap());
        let options = QpOptions {
            srq: srq.clone(),
            ..QpOptions::default()
        };
        let qp = pd.create_qp(&cq, &cq, &options).unwrap();
        say(&qp.address());
        let (address, peer): (QpAddress, Remote) = hear();
        qp.connect(address).unwrap();
        let mr = mr.unwrap();
        let role = role.to_owned();
        Self {
            role,
            node,
            pd,
            cq,
            mr,
            srq,
            qp,
            peer,
        }
    }

    fn live(self) {
        let mut remote = self.mr.remote(0);
        let window = (self.role == "window").then(|| self.pd.alloc_mw(MwType::Type2).unwrap());
        if let Some(window) = &window {
            let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
            let bind = window.bind_to(&self.mr, 0, ROOM, access);
            remote.rkey = bind.rkey;
            self.qp
                .post_send(&[SendWr::bind_mw(bind).signaled()])
                .unwrap();
            assert_eq!(wait_for(&self.cq).status, Status::Success);
        }
        self.receive(2 * UNDER_WAY);
        say(&remote);
        match &*self.role {
            "sending" => self.request(SendWr::write(self.peer)),
            "reading" => self.request(SendWr::read(self.peer)),
            "receiving" | "srq" => loop {
                self.next();
                self.receive(1);
            },
            "leaving" => {
                let () = hear();
                self.node.shutdown(Duration::from_secs(5)).unwrap();
                rest()
            }
            _ => rest(),
        }
    }

    fn receive(&self, count: u64) {
        let sges = [self.mr.sge(0, LENGTH)];
        let request = [RecvWr::new().sges(&sges)];
        for _ in 0..count {
            match (&self.srq, &*self.role) {
                (Some(srq), _) => srq.post_recv(&request).unwrap(),
                (None, "receiving") => self.qp.post_recv(&request).unwrap(),
                _ => {}
            }
        }
    }

    fn request(&self, request: SendWr<'_>) -> ! {
        let sges = [self.mr.sge(0, LENGTH)];
        let request = [request.sges(&sges).signaled()];
        for _ in 0..UNDER_WAY {
            self.qp.post_send(&request).unwrap();
        }
        loop {
            self.next();
            self.qp.post_send(&request).unwrap();
        }
    }

    fn next(&self) -> Completion {
        let done = self.cq.wait(Duration::from_secs(60)).unwrap().unwrap();
        assert_eq!(done.status, Status::Success);
        done
    }
}

/// A program of many QPs, which writes what it is told to where it is told to, over and over.
fn many(qps: usize, path: &str) {
    let node = Node::attach(path).unwrap();
    let (pd, cq) = (node.alloc_pd(), node.create_cq(1024).unwrap());
    let mr = pd.register(4096, Access::ALL).unwrap();
    let options = QpOptions::default();
    let qps: Vec<_> = (0..qps)
        .map(|_| pd.create_qp(&cq, &cq, &options).unwrap())
        .collect();
    say(&qps.iter().map(Qp::address).collect::<Vec<_>>());
    let (seed, peers): (u64, Vec<(QpAddress, Remote)>) = hear();
    for (qp, (address, _)) in qps.iter().zip(&peers) {
        qp.connect(*address).unwrap();
    }
    let mut told = false;
    for round in 1.. {
        for ((at, qp), (_, remote)) in (0..).zip(&qps).zip(&peers) {
            let word = seed << 32 | at << 16 | round & 0xffff;
            let offset = 8 * at as usize;
            mr.write(offset, &word.to_ne_bytes()).unwrap();
            let sges = [mr.sge(offset, 8)];
            let request = SendWr::write(*remote).wr_id(word).sges(&sges).signaled();
            qp.post_send(&[request]).unwrap();
        }
        for _ in &qps {
            let done = cq.wait(Duration::from_secs(60)).unwrap().unwrap();
            assert_eq!(done.status, Status::Success);
        }
        if !told {
            say(&());
            told = true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
