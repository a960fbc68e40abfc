//! Nodes that agree on a UDP port of their own.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{End, PATIENCE, address};
use std::net::IpAddr;
use trunkline::{
    ConnectionOptions, Error, Event, NoConnection, Node, QpOptions, SendOp, Status, UdpOpenError,
    VerbsError,
};

fn end(address: IpAddr, port: u16, workers: u8) -> End {
    let builder = Node::builder().address(address).udp_port(port);
    End::new(builder.workers(workers).extra_source_ports(1))
}

#[test]
fn nodes_with_one_address_and_ports_of_their_own_have_peers_of_their_own() {
    let [here, there] = [address(), address()];
    // All four at once: two at each address.
    for workers in [1, 2] {
        let pairs = [4791, 5791].map(|port| [here, there].map(|at| end(at, port, workers)));
        for (seed, [a, b]) in (1..).zip(&pairs) {
            let (qa, qb) = (a.qp(&QpOptions::default()), b.qp(&QpOptions::default()));
            qa.connect(qb.address()).unwrap();
            qb.connect(qa.address()).unwrap();
            a.mr.write(0, &common::pattern(seed, 100_000)).unwrap();
            a.post(&qa, 1, SendOp::Write(b.mr.remote(0)), 0, 100_000);
            let done = a.send_cq.wait(PATIENCE).unwrap().unwrap();
            assert_eq!(done.status, Status::Success);
            assert_eq!(b.bytes(0, 100_000), common::pattern(seed, 100_000));
        }
        for [a, b] in &pairs {
            assert_eq!(
                (a.node.connection_count(), b.node.connection_count()),
                (1, 1)
            );
            assert_eq!(b.node.counters().bad_icrc, 0);
        }
    }
}

#[test]
fn nodes_with_other_ports_do_not_meet() {
    let (a, b) = (end(address(), 5791, 1), end(address(), 5792, 1));
    let options = ConnectionOptions::default();
    let peer = b.node.gid();
    let _connection = a.node.open_connection(peer.address(), &options).unwrap();
    let why = NoConnection::Nobody;
    let event = a.node.wait_event(PATIENCE).unwrap();
    assert_eq!(event, Some(Event::ConnectionFailed { peer, why }));
}

#[test]
fn one_address_and_port_is_one_nodes_and_port_0_nobodys() {
    let at = address();
    let _first = end(at, 5791, 1);
    let builder = || Node::builder().address(at);
    let taken = builder().udp_port(5791).build().unwrap_err();
    assert!(
        matches!(taken, Error::Open(UdpOpenError::InUse { .. })),
        "{taken}"
    );
    let none = builder().udp_port(0).build().unwrap_err();
    assert!(
        matches!(none, Error::Verbs(VerbsError::BadAttribute { .. })),
        "{none}"
    );
}
