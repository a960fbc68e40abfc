//! What a node tells of itself.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{Pair, inline};
use std::net::UdpSocket;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;
use trunkline::status::{self, Status, StatusError};
use trunkline::{ConnectionOptions, Node};
use trunkline_wire::ROCE_PORT;

const PATIENCE: Duration = Duration::from_secs(5);

fn ask(node: &Node) -> Status {
    status::ask(node.gid().address(), PATIENCE).unwrap()
}

fn step(status: &trunkline::status::CmStats, name: &str) -> u64 {
    status.steps[name].count
}

#[test]
fn each_qp_and_each_step_of_its_set_up_is_counted_at_both_ends() {
    let pair = Pair::new();
    let nodes = [&pair.a.node, &pair.b.node];
    let bound = |count| {
        pair.until("all QPs are bound", || {
            nodes.iter().all(|node| node.cm_stats().qps == count)
        });
    };
    // The first may be bound by the handshake itself.
    let first = pair.qps();
    bound(1);
    let before = nodes.map(Node::cm_stats);
    let qps: Vec<_> = (0..20).map(|_| pair.qps()).collect();
    bound(21);
    for (node, before) in nodes.into_iter().zip(before) {
        let stats = node.cm_stats();
        assert_eq!(stats.binding, 0);
        assert_eq!(stats.handshakes["established"], stats.established);
        assert_eq!(stats.opened, stats.established);
        let bind = stats.steps["bind"].since(&before.steps["bind"]);
        assert_eq!(bind.count, 20);
        let (p50, p99) = (bind.percentile(500), bind.percentile(990));
        assert!(p50 > Some(0) && p50 <= p99 && p99 <= Some(bind.max_ns));
        // Each connection was opened from here, or from there.
        let open = step(&stats, "node_open");
        assert_eq!(open, stats.established);
        let answered = step(&stats, "node_answer") + step(&stats, "node_confirm");
        assert_eq!(answered, open);
        assert!(stats.sent > 0 && stats.received > 0);
    }
    assert_eq!(nodes[0].cm_stats().sent, nodes[1].cm_stats().received);
    drop((first, qps));
}

#[test]
fn whoever_asks_hears_of_counters_and_drops() {
    let pair = Pair::new();
    let near = pair.a.node.gid().address();
    let _qps = pair.qps();
    pair.until("the QPs are bound", || pair.a.node.cm_stats().qps == 1);
    let socket = UdpSocket::bind((near, 0)).unwrap();
    // Shorter than any packet, and a management datagram without sense.
    let mut management = [0; 280];
    management[..12].copy_from_slice(&[100, 0, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 0]);
    for datagram in [&[0; 3][..], &management] {
        socket.send_to(datagram, (near, ROCE_PORT)).unwrap();
    }
    pair.until("both are dropped", || ask(&pair.a.node).drops.len() == 2);
    let status = ask(&pair.a.node);
    assert_eq!(
        (status.drops["malformed"], status.drops["cm_unreadable"]),
        (1, 1)
    );
    assert!(status.counters["sent"] > 0 && status.counters["received"] > 0);
    // Only a node that carries other programs writes its peers down.
    assert_eq!((status.peer_count, status.service), (0, None));
}

#[test]
fn a_connection_that_dies_shows() {
    let pair = Pair::new();
    let qps = pair.qps();
    pair.until("the QPs are bound", || pair.a.node.cm_stats().qps == 1);
    let peer = pair.b.node.gid().address();
    let own = pair
        .a
        .node
        .open_connection(peer, &ConnectionOptions::default());
    let own = own.unwrap();
    pair.until("a second connection is open", || own.is_open());
    qps.0.bind(&own).unwrap();
    pair.run_for(Duration::from_millis(10));
    own.close();
    pair.until("the QP went on with another", || {
        pair.a.node.cm_stats().rebound == 1
    });
    let stats = pair.a.node.cm_stats();
    assert_eq!((stats.failovers, stats.down, stats.qps), (1, 1, 1));
}

#[test]
fn who_asks_gets_what_the_node_itself_is_told() {
    let pair = Pair::new();
    let _qps = pair.qps();
    pair.until("the QPs are bound", || pair.b.node.cm_stats().qps == 1);
    pair.until("the handshake is over", || {
        pair.a.node.cm_stats().in_flight() + pair.b.node.cm_stats().in_flight() == 0
    });
    for node in [&pair.a.node, &pair.b.node] {
        let status = ask(node);
        assert_eq!(status.address, node.gid().address());
        assert_eq!(status.pid, std::process::id());
        assert!(status.uptime_ns > 0);
        assert_eq!(status.cm, node.cm_stats());
        assert!(status::nodes().unwrap().contains(&status.address));
    }
}

#[test]
fn a_node_that_is_gone_or_does_not_want_it_cannot_be_asked() {
    let node = inline().build().unwrap();
    assert!(node.is_watchable());
    let address = node.gid().address();
    drop(node);
    let gone = status::ask(address, PATIENCE);
    assert!(matches!(gone, Err(StatusError::NoNode(asked)) if asked == address));
    let node = inline().status(false).build().unwrap();
    assert!(!node.is_watchable());
    let silent = status::ask(node.gid().address(), PATIENCE);
    assert!(matches!(silent, Err(StatusError::NoNode(_))));
}

fn name(address: std::net::IpAddr) -> SocketAddr {
    SocketAddr::from_abstract_name(format!("trunkline/{address}")).unwrap()
}

#[test]
fn askers_that_misbehave_harm_neither_the_node_nor_others() {
    let node = inline().build().unwrap();
    let name = name(node.gid().address());
    // Some never read, some talk, some leave at once.
    let mut idle = Vec::new();
    for i in 0..60 {
        let mut asker = UnixStream::connect_addr(&name).unwrap();
        match i % 3 {
            0 => idle.push(asker),
            1 => {
                let _ = std::io::Write::write_all(&mut asker, &[0xff; 4096]);
                idle.push(asker);
            }
            _ => drop(asker),
        }
    }
    assert_eq!(ask(&node).address, node.gid().address());
    // It goes away all the same.
    drop(node);
}

#[test]
fn a_name_that_another_has_taken_is_no_reason_not_to_start() {
    let address = common::address();
    let taken = UnixListener::bind_addr(&name(address)).unwrap();
    let builder = || Node::builder().address(address);
    let node = builder().build().unwrap();
    assert!(!node.is_watchable());
    drop(node);
    let refused = builder().status(true).build().unwrap_err().to_string();
    assert!(refused.starts_with("name of the status socket (Builder::status): Address already"));
    // What it says is not believed.
    let liar = std::thread::spawn(move || {
        let (mut asker, _) = taken.accept().unwrap();
        std::io::Write::write_all(&mut asker, b"{\"pid\":1}").unwrap();
        drop(asker);
        let asker = taken.accept().unwrap();
        std::thread::sleep(Duration::from_millis(300));
        drop(asker);
    });
    let garbled = status::ask(address, PATIENCE);
    assert!(
        matches!(garbled, Err(StatusError::Garbled { .. })),
        "{garbled:?}"
    );
    let silent = status::ask(address, Duration::from_millis(50));
    assert!(matches!(silent, Err(StatusError::Silent(_))), "{silent:?}");
    liar.join().unwrap();
}
