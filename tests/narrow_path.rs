//! Nodes on paths whose MTU falls under load: at a router between them, or at their own interface.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{End, PATIENCE};
use std::fs::File;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpStream};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::{Duration, Instant};
use trunkline::{Drive, Node, Qp, QpOptions, SendOp, Status};

/// Bytes of a message, and how many are under way in each direction.
const LENGTH: usize = 64 << 10;
const DEPTH: u64 = 8;
/// What goes on takes no longer than this.
const LAW: Duration = Duration::from_secs(1);

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status();
    assert!(status.unwrap().success(), "ip {arguments}");
}

/// East and west, and a router between them, each in a namespace, removed at the end.
struct Network([String; 3]);

impl Network {
    /// All links carry 9000 bytes.
    fn new(test: &str) -> Self {
        let name = |end| format!("tl{}-{test}-{end}", std::process::id());
        let network = Self(["east", "west", "router"].map(name));
        let [east, west, router] = &network.0;
        for namespace in &network.0 {
            ip(&format!("netns add {namespace}"));
            ip(&format!("-n {namespace} link set lo up"));
        }
        for (end, at, subnet) in [(east, "east", 0), (west, "west", 1)] {
            ip(&format!(
                "-n {end} link add veth0 type veth peer name {at} netns {router}"
            ));
            for (namespace, link, last) in [(end, "veth0", 2), (router, at, 1)] {
                ip(&format!(
                    "-n {namespace} address add 10.79.{subnet}.{last}/24 dev {link}"
                ));
                ip(&format!(
                    "-n {namespace} address add fd79:{subnet}::{last}/64 dev {link} nodad"
                ));
                ip(&format!("-n {namespace} link set {link} mtu 9000 up"));
            }
            ip(&format!("-n {end} route add default via 10.79.{subnet}.1"));
            ip(&format!("-n {end} route add default via fd79:{subnet}::1"));
        }
        for forwarding in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
            let script = format!("echo 1 > /proc/sys/net/{forwarding}");
            ip_exec(router, &script);
        }
        network
    }

    fn set_mtu(&self, namespace: usize, link: &str, mtu: u32) {
        let namespace = &self.0[namespace];
        ip(&format!("-n {namespace} link set {link} mtu {mtu}"));
    }

    /// Moves the calling thread into a namespace.
    fn enter(&self, namespace: usize) {
        let file = File::open(format!("/var/run/netns/{}", self.0[namespace])).unwrap();
        // SAFETY: an open namespace file; only the calling thread moves.
        let result = unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    }

    /// Inline nodes at both ends.
    fn nodes(&self, ipv6: bool) -> [End; 2] {
        let addresses = [0, 1].map(|subnet| match ipv6 {
            false => IpAddr::from(Ipv4Addr::new(10, 79, subnet, 2)),
            true => Ipv6Addr::new(0xfd79, subnet.into(), 0, 0, 0, 0, 0, 2).into(),
        });
        [0, 1].map(|namespace| {
            self.enter(namespace);
            await_way(addresses[1 - namespace]);
            let builder = Node::builder().address(addresses[namespace]);
            End::new(builder.drive(Drive::Inline).status(false))
        })
    }
}

/// Until the kernels on the way have found their neighbours: a port that is closed says so.
fn await_way(to: IpAddr) {
    let begin = Instant::now();
    loop {
        let closed = TcpStream::connect_timeout(&(to, 9).into(), Duration::from_millis(100));
        if closed.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused) {
            return;
        }
        assert!(begin.elapsed() < PATIENCE, "no way to {to}");
    }
}

/// Runs a script in a namespace.
fn ip_exec(namespace: &str, script: &str) {
    let status = Command::new("ip")
        .args(["netns", "exec", namespace, "sh", "-c", script])
        .status();
    assert!(status.unwrap().success(), "{script}");
}

impl Drop for Network {
    fn drop(&mut self) {
        for namespace in &self.0 {
            let _ = Command::new("ip")
                .args(["netns", "delete", namespace])
                .status();
        }
    }
}

/// WRITEs in both directions, again and again.
struct Load {
    ends: [End; 2],
    qps: [Qp; 2],
    done: [u64; 2],
}

impl Load {
    fn new(ends: [End; 2]) -> Self {
        let qps = [0, 1].map(|i: usize| ends[i].qp(&QpOptions::default()));
        for i in [0, 1] {
            qps[i].connect(qps[1 - i].address()).unwrap();
        }
        let load = Self {
            ends,
            qps,
            done: [0; 2],
        };
        for i in [0, 1] {
            (0..DEPTH).for_each(|_| load.post(i));
        }
        load
    }

    fn post(&self, i: usize) {
        let target = SendOp::Write(self.ends[1 - i].mr.remote(0));
        self.ends[i].post(&self.qps[i], 1, target, LENGTH, LENGTH);
    }

    fn turn(&mut self) {
        for i in [0, 1] {
            self.ends[i].node.poll().unwrap();
            while let Some(done) = self.ends[i].send_cq.poll_one().unwrap() {
                assert_eq!(done.status, Status::Success);
                self.done[i] += 1;
                self.post(i);
            }
        }
    }

    /// Until both directions have done `count` messages more; the time it took.
    fn run(&mut self, count: u64) -> Duration {
        let (begin, goal) = (Instant::now(), self.done.map(|done| done + count));
        while self.done.iter().zip(goal).any(|(done, goal)| *done < goal) {
            self.turn();
            let took = begin.elapsed();
            assert!(
                took < 20 * LAW,
                "{:?} of {goal:?} after {took:?}",
                self.done
            );
        }
        begin.elapsed()
    }

    fn narrowed(&self) -> u64 {
        let of = |end: &End| end.node.counters().narrowed;
        self.ends.iter().map(of).sum()
    }
}

/// The MTU of what `narrow` says falls under load.
fn falls(test: &'static str, ipv6: bool, narrow: fn(&Network)) -> Load {
    let run = move || {
        let network = Network::new(test);
        let mut load = Load::new(network.nodes(ipv6));
        load.run(500);
        assert_eq!(load.narrowed(), 0);
        narrow(&network);
        // What is under way, and more than windows hold.
        let took = load.run(2 * DEPTH);
        println!("{test}, ipv6 {ipv6}: {took:?}");
        assert!(took < LAW, "{took:?}");
        assert!(load.narrowed() > 0);
        load.run(500);
        load
    };
    std::thread::spawn(run).join().unwrap()
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_router_that_carries_less_costs_less_than_a_second() {
    for ipv6 in [false, true] {
        let load = falls("router", ipv6, |network| {
            network.set_mtu(2, "west", 1500);
            network.set_mtu(2, "east", 1500);
        });
        let failed = load.ends.iter().map(|end| end.node.counters().failovers);
        assert_eq!(failed.sum::<u64>(), 0);
    }
}

#[test]
#[ignore = "needs root and network namespaces"]
fn an_interface_that_carries_less_is_noticed_by_its_port() {
    let load = falls("own", false, |network| {
        network.set_mtu(0, "veth0", 1500);
        network.set_mtu(2, "east", 1500);
    });
    assert!(load.ends[0].node.port_counters().too_long > 0);
}

/// A link that is narrower than any of RoCEv2 may be: handshakes fit, packets of data do not.
#[test]
#[ignore = "needs root and network namespaces"]
fn a_qp_ends_whose_path_carries_handshakes_and_none_of_its_data() {
    let run = || {
        let network = Network::new("tiny");
        let mut load = Load::new(network.nodes(false));
        load.run(500);
        network.set_mtu(2, "west", 400);
        network.set_mtu(2, "east", 400);
        let (begin, [east, west]) = (Instant::now(), &load.ends);
        let mut ended = [None; 2];
        while ended.contains(&None) {
            assert!(begin.elapsed() < 2 * PATIENCE, "{ended:?} have ended");
            for (end, ended) in [east, west].into_iter().zip(&mut ended) {
                end.node.poll().unwrap();
                while let Some(done) = end.send_cq.poll_one().unwrap() {
                    // Those which were executed before, and those behind the first in vain.
                    let status = Some(done.status);
                    *ended = ended.or(status.filter(|status| *status != Status::Success));
                }
            }
        }
        println!("both have ended after {:?}", begin.elapsed());
        assert!(ended.contains(&Some(Status::RetryExceeded)), "{ended:?}");
        let lost = load.ends.iter().map(|end| end.node.counters().failovers);
        assert!(lost.sum::<u64>() >= 3, "connections came and were lost");
    };
    std::thread::spawn(run).join().unwrap();
}
