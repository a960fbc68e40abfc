//! A socket whose buffer is full: a link of 20 Mbit/s, and more to send than it takes.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::End;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use trunkline::{Builder, CongestionControl, Drive, Node, Qp, QpOptions, SendOp, Status};
use trunkline_dataplane::{UdpConfig, UdpPort};

/// Bytes of a message of the stream, and how many are under way.
const LARGE: usize = 64 << 10;
const DEPTH: u64 = 16;
/// Requests of the stream and of others, by number.
const STREAM: u64 = 1;
const SMALL: u64 = 2;

fn run(words: &str) {
    let mut words = words.split(' ');
    let program = words.next().unwrap();
    let output = Command::new(program).args(words).output().unwrap();
    assert!(output.status.success(), "{program}: {output:?}");
}

fn at(last: u8) -> IpAddr {
    Ipv4Addr::new(127, 0, 0, last).into()
}

fn inline(last: u8) -> Builder {
    let builder = Node::builder().address(at(last)).drive(Drive::Inline);
    builder.control(CongestionControl::None).status(false)
}

/// CPU time of this thread.
fn cpu() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes one `timespec`.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Waits in a call of the node.
fn by_call(node: &Node) {
    node.wait(Duration::from_millis(50)).unwrap();
}

/// Waits on the node's descriptor, and for as long as it takes.
fn by_descriptor(node: &Node) {
    const LONG: Timespec = Timespec {
        tv_sec: 10,
        tv_nsec: 0,
    };
    if node.try_wait().unwrap() {
        let fd = node.fd().unwrap();
        let woken = poll(
            &mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)],
            Some(&LONG),
        );
        assert_ne!(woken, Ok(0), "nobody woke the node");
    }
}

struct Sender {
    end: End,
    wait: fn(&Node),
    stream: Qp,
    target: SendOp,
}

impl Sender {
    fn post(&self) {
        let target = self.target;
        self.end.post(&self.stream, STREAM, target, 0, LARGE);
    }

    /// One round, and a wait where there is nothing to do; gives small requests that ended.
    fn turn(&self) -> u32 {
        if !self.end.node.poll().unwrap() {
            (self.wait)(&self.end.node);
        }
        let mut small = 0;
        while let Some(done) = self.end.send_cq.poll_one().unwrap() {
            assert_eq!(done.status, Status::Success);
            if done.wr_id == STREAM {
                self.post();
            } else {
                small += 1;
            }
        }
        small
    }
}

fn joined(a: &End, b: &End) -> (Qp, Qp) {
    let [qa, qb] = [a, b].map(|end| end.qp(&QpOptions::default()));
    qa.connect(qb.address()).unwrap();
    qb.connect(qa.address()).unwrap();
    (qa, qb)
}

fn test(extra_source_ports: usize, wait: fn(&Node)) {
    run("ip link set lo mtu 1500 up");
    run("tc qdisc add dev lo root tbf rate 20mbit burst 16kb limit 16mb");
    let port = UdpPort::open(&UdpConfig {
        socket_bytes: 64 << 10,
        extra_source_ports,
        ..UdpConfig::new(at(1))
    });
    let sender = inline(1).build_on(Box::new(port.unwrap())).unwrap();
    let sender = End::of(sender);
    let peers = [2, 3, 4].map(|last| End::new(inline(last)));
    let (stream, _far) = joined(&sender, &peers[0]);
    let (small, far) = joined(&sender, &peers[1]);
    (0..32).for_each(|at| peers[1].receive(&far, at, 0, 64));
    let target = SendOp::Write(peers[0].mr.remote(0));
    let sender = Sender {
        end: sender,
        wait,
        stream,
        target,
    };
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                while peers[1].recv_cq.poll_one().unwrap().is_some() {
                    peers[1].receive(&far, 0, 0, 64);
                }
                let any = peers.iter().map(|end| end.node.poll().unwrap());
                if !any.fold(false, |any, busy| any | busy) {
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
        });
        (0..DEPTH).for_each(|_| sender.post());
        let fill = Instant::now();
        while fill.elapsed() < Duration::from_secs(1) {
            sender.turn();
        }
        let full = sender.end.node.port_counters().full;
        assert!(full > 0, "the socket took it all");
        // Others are served beside the stream.
        let (began, worked) = (Instant::now(), cpu());
        let mut answered = 0;
        sender.end.post(&small, SMALL, SendOp::Send, 0, 64);
        while began.elapsed() < Duration::from_secs(4) {
            for _ in 0..sender.turn() {
                answered += 1;
                sender.end.post(&small, SMALL, SendOp::Send, 0, 64);
            }
        }
        let (wall, worked) = (began.elapsed(), cpu() - worked);
        println!("{answered} answers, {worked:?} of {wall:?} at work");
        assert!(answered >= 8, "{answered} answers in {wall:?}");
        assert!(worked < wall / 10, "{worked:?} of {wall:?} at work");
        // So is a peer that is met only now.
        let (fresh, far) = joined(&sender.end, &peers[2]);
        peers[2].receive(&far, 1, 0, 64);
        sender.end.post(&fresh, SMALL, SendOp::Send, 0, 64);
        let (began, mut left) = (Instant::now(), 2);
        while left > 0 {
            left -= sender.turn().min(left);
            assert!(began.elapsed() < Duration::from_secs(15), "{left} left");
        }
        done.store(true, Ordering::Release);
    });
}

fn in_a_namespace(test: impl FnOnce() + Send + 'static) {
    let inside = move || {
        // SAFETY: concerns this thread only, which began for that.
        let entered = unsafe { libc::unshare(libc::CLONE_NEWNET) };
        let error = std::io::Error::last_os_error();
        assert_eq!(entered, 0, "a network namespace takes privileges: {error}");
        test();
    };
    std::thread::spawn(inside).join().unwrap();
}

#[test]
#[ignore = "needs root, network namespaces and tc"]
fn a_full_socket_is_shared_and_waited_for() {
    in_a_namespace(|| test(0, by_call));
}

#[test]
#[ignore = "needs root, network namespaces and tc"]
fn a_full_socket_is_waited_for_by_the_descriptor_of_its_node() {
    in_a_namespace(|| test(0, by_descriptor));
}

#[test]
#[ignore = "needs root, network namespaces and tc"]
fn full_sockets_of_other_source_ports_are_waited_for_by_the_descriptor_of_their_node() {
    in_a_namespace(|| test(3, by_descriptor));
}
