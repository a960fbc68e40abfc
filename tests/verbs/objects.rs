//! What belongs together: objects of one node, and values that make sense.

use crate::common::{End, PATIENCE, Pair, inline, open, until};
use crate::{TARGET, verbs_error};
use std::net::IpAddr;
use std::process::Command;
use std::time::Duration;
use trunkline::rdma_cm::{CmEventKind, Kind, PortSpace};
use trunkline::{
    Access, AtomicOp, ConnectionOptions, ConnectionState, Error, NoConnection, Node, Psn,
    QpAddress, QpModify, QpOptions, Qpn, RecvWr, Remote, SendOp, SendWr, VerbsError,
};

fn of_another_node(error: Error) -> &'static str {
    match verbs_error(error) {
        VerbsError::InvalidArgument { what } => what,
        other => panic!("{other}"),
    }
}

#[test]
fn queues_of_another_node_are_refused_and_can_be_dropped() {
    let pair = Pair::new();
    let options = QpOptions::default();
    let (own, other) = (&pair.a, &pair.b);
    for (send_cq, recv_cq) in [
        (&other.send_cq, &own.recv_cq),
        (&own.send_cq, &other.recv_cq),
    ] {
        let error = own.pd.create_qp(send_cq, recv_cq, &options).unwrap_err();
        assert_eq!(of_another_node(error), "CQ");
    }
    let srq = other.pd.create_srq(8, 1).unwrap();
    let with_srq = QpOptions {
        srq: Some(srq.clone()),
        ..options
    };
    let made = own.pd.create_qp(&own.send_cq, &own.recv_cq, &with_srq);
    assert_eq!(of_another_node(made.unwrap_err()), "SRQ");
    drop((srq, with_srq));
    let Pair { a, b } = pair;
    drop(b);
    let qp = a.qp(&QpOptions::default());
    qp.modify(&QpModify::Init {
        access: Access::LOCAL_READ,
    })
    .unwrap();
}

#[test]
fn connections_of_another_node_are_refused() {
    crate::not_served!("the program opens connections");
    let pair = Pair::new();
    let nodes = [&pair.a.node, &pair.b.node];
    let options = ConnectionOptions::default();
    let theirs = open(&nodes, &pair.b, &pair.a, &options);
    let (qa, _qb) = pair.qps();
    pair.a
        .post(&qa, 1, SendOp::Write(pair.b.mr.remote(TARGET)), 0, 8);
    pair.next(&pair.a.send_cq);
    assert_eq!(of_another_node(qa.bind(&theirs).unwrap_err()), "connection");
    let managed = crate::common::src_qp(&pair.a, None);
    let error = managed.route(&theirs, qa.qpn()).unwrap_err();
    assert_eq!(of_another_node(error), "connection");
    let error = managed.bind_route(1, &theirs).unwrap_err();
    assert_eq!(of_another_node(error), "connection");
}

#[test]
fn an_element_of_four_gigabytes_is_refused_and_not_taken_for_an_empty_one() {
    let pair = Pair::new();
    let (qa, qb) = pair.qps();
    let sges = [pair.a.mr.sge(0, 1 << 32)];
    let request = SendWr::write(pair.b.mr.remote(TARGET))
        .wr_id(1)
        .sges(&sges)
        .signaled();
    let too_long = |error| matches!(verbs_error(error), VerbsError::MessageTooLong { .. });
    assert!(too_long(qa.post_send(&[request]).unwrap_err()));
    let receive = RecvWr::new().wr_id(1).sges(&sges);
    assert!(too_long(qb.post_recv(&[receive]).unwrap_err()));
}

#[test]
fn options_of_a_connection_are_checked() {
    crate::not_served!("the program opens connections");
    let pair = Pair::new();
    let usual = ConnectionOptions::default();
    let wrong = [
        ("weight", ConnectionOptions { weight: 0, ..usual }),
        (
            "source_ports",
            ConnectionOptions {
                source_ports: 0,
                ..usual
            },
        ),
        (
            "source_ports",
            ConnectionOptions {
                source_ports: 9,
                ..usual
            },
        ),
    ];
    let peer = pair.b.node.gid().address();
    for (name, options) in wrong {
        let error = pair.a.node.open_connection(peer, &options).unwrap_err();
        let VerbsError::BadAttribute { what, .. } = verbs_error(error) else {
            panic!("{options:?}");
        };
        assert_eq!(what, name);
    }
    // The node was built with one source port, and another one with four.
    let two = ConnectionOptions {
        source_ports: 2,
        ..usual
    };
    assert!(pair.a.node.open_connection(peer, &two).is_err());
    let many = End::new(inline().extra_source_ports(3));
    assert!(many.node.open_connection(peer, &two).is_ok());
}

#[test]
fn counts_of_a_connection_go_on_while_it_rests() {
    crate::not_served!("the program opens connections");
    let pair = Pair::new();
    let nodes = [&pair.a.node, &pair.b.node];
    let own = open(&nodes, &pair.a, &pair.b, &ConnectionOptions::default());
    let (qa, _qb) = pair.qps();
    pair.a
        .post(&qa, 1, SendOp::Write(pair.b.mr.remote(TARGET)), 0, 8);
    pair.next(&pair.a.send_cq);
    qa.bind(&own).unwrap();
    let mut before = (0, 0);
    for wr_id in 2..5 {
        let write = SendOp::Write(pair.b.mr.remote(TARGET));
        pair.a.post(&qa, wr_id, write, 0, 100_000);
        pair.next(&pair.a.send_cq);
        // What is in flight is acknowledged: its window is given back.
        pair.until("nothing in flight", || own.stats().unwrap().in_flight == 0);
        pair.run_for(std::time::Duration::from_millis(2));
        let counters = own.stats().unwrap().delivery.counters;
        // Of a packet that is sent again after its request ended, nothing but the number is left.
        let now = (counters.acked, counters.acked_bytes);
        assert!(now.0 > before.0 && now.1 > before.1, "{counters:?}");
        assert!(counters.sent >= counters.acked, "{counters:?}");
        before = now;
    }
}

/// Why a connection to a neighbour of this namespace does not come about, and its address is not
/// resolved.
fn why_not(peer: IpAddr) -> [String; 2] {
    let builder = Node::builder().address([10, 9, 0, 1].into());
    let node = builder.status(false).build().unwrap();
    let channel = node.create_event_channel().unwrap();
    let id = channel.create_id(PortSpace::Tcp, Kind::Rc).unwrap();
    id.resolve_addr((peer, 1).into(), Duration::from_millis(50))
        .unwrap();
    let event = channel.get_event(PATIENCE).unwrap();
    let CmEventKind::AddressError(address) = event.kind else {
        panic!("{:?}", event.kind)
    };
    let options = ConnectionOptions::default();
    let opened = node.open_connection(peer, &options).unwrap();
    while opened.state() == ConnectionState::Opening {
        std::thread::sleep(Duration::from_millis(1));
    }
    match opened.stats().unwrap_err() {
        Error::NoConnection { why, .. } => [address.to_string(), why.to_string()],
        other => panic!("{other}"),
    }
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_link_that_is_down_is_named() {
    let inside = || {
        // SAFETY: concerns this thread only, which began for that.
        let entered = unsafe { libc::unshare(libc::CLONE_NEWNET) };
        let error = std::io::Error::last_os_error();
        assert_eq!(entered, 0, "a network namespace takes privileges: {error}");
        let ip = |words: &str| {
            let status = Command::new("ip").args(words.split(' ')).status();
            assert!(status.unwrap().success(), "ip {words}");
        };
        ip("link add near type veth peer name far");
        ip("address add 10.9.0.1/24 dev near");
        // Down first by somebody's wish, then because its other end is.
        for _ in 0..2 {
            let says = [
                "interface near, which leads to 10.9.0.2, is down",
                "interface near, which leads to it, is down",
            ];
            assert_eq!(why_not([10, 9, 0, 2].into()), says);
            ip("link set near up");
        }
    };
    std::thread::spawn(inside).join().unwrap();
}

#[test]
fn no_route_and_no_answer_are_told_apart() {
    crate::not_served!("the program opens connections");
    let pair = Pair::new();
    let nodes = [&pair.a.node, &pair.b.node];
    let why = |peer: &str| {
        let options = ConnectionOptions::default();
        let peer = peer.parse().unwrap();
        let opened = pair.a.node.open_connection(peer, &options).unwrap();
        until(&nodes, "the failure", || {
            opened.state() != ConnectionState::Opening
        });
        match opened.stats().unwrap_err() {
            Error::NoConnection { why, .. } => why,
            other => panic!("{other}"),
        }
    };
    // A loopback address reaches nothing beyond the host, and all of loopback.
    assert_eq!(why("192.0.2.1"), NoConnection::NoRoute);
    // Its kernel says that nobody listens there.
    assert_eq!(why("127.1.2.3"), NoConnection::Nobody);
    let alone = End::new(inline().sharing(false));
    let peer = pair.b.node.gid().address();
    let options = ConnectionOptions::default();
    let opened = alone.node.open_connection(peer, &options).unwrap();
    let why = NoConnection::NotSharing;
    assert_eq!(opened.state(), ConnectionState::Failed(why));
    let plain = alone.node.gid().address();
    let nodes = [&pair.a.node, &alone.node];
    let opened = pair.a.node.open_connection(plain, &options).unwrap();
    until(&nodes, "the failure", || {
        opened.state() != ConnectionState::Opening
    });
    let why = NoConnection::NoNode;
    assert_eq!(opened.state(), ConnectionState::Failed(why));
}

#[test]
fn memory_of_no_bytes_and_an_srq_without_room_are_refused() {
    let pair = Pair::new();
    let pd = &pair.a.pd;
    let empty = verbs_error(pd.register(0, Access::ALL).unwrap_err());
    assert!(matches!(empty, VerbsError::EmptyRegion), "{empty}");
    let mut word = 0_u64;
    let at = std::ptr::NonNull::from(&mut word).cast();
    // SAFETY: the word outlives the region, and nobody else touches it.
    let foreign = unsafe { pd.register_foreign(at, 0, Access::ALL) };
    let empty = verbs_error(foreign.unwrap_err());
    assert!(matches!(empty, VerbsError::EmptyRegion), "{empty}");
    // Both are EINVAL, as the Linux kernel has it.
    assert_eq!(empty.errno(), 22);
    let none = verbs_error(pd.create_srq(0, 1).unwrap_err());
    assert_eq!(none.errno(), 22);
    let VerbsError::BadAttribute { what, .. } = none else {
        panic!("{none}");
    };
    assert_eq!(what, "max_wr");
    // Receives of no bytes need no elements, and a QP that only sends has no receives.
    assert!(pd.create_srq(1, 0).is_ok());
    let sender = QpOptions {
        max_recv_wr: 0,
        ..QpOptions::default()
    };
    drop(pair.a.qp(&sender));
}

#[test]
fn an_atomic_at_an_odd_address_says_that_it_has_to_be_aligned() {
    let pair = Pair::new();
    let mr = &pair.a.mr;
    let add = AtomicOp::FetchAdd { add: 1 };
    let odd = mr.atomic(12, add).unwrap_err();
    let says = "an atomic at offset 12 is not aligned: its address has to be a multiple of 8";
    assert_eq!(odd.to_string(), says);
    let beyond = mr.atomic(mr.len() - 4, add).unwrap_err();
    assert!(matches!(beyond, Error::OutOfRegion { .. }), "{beyond}");
    assert_eq!(mr.atomic(8, add).unwrap(), 0);
}

#[test]
fn what_programs_tell_each_other_is_the_same_after_json() {
    let pair = Pair::new();
    let qp = pair
        .a
        .pd
        .create_qp(&pair.a.send_cq, &pair.a.recv_cq, &QpOptions::default());
    let address = qp.unwrap().address();
    let memory = pair.a.mr.remote(17);
    let text = serde_json::to_string(&(address, memory)).unwrap();
    assert_eq!(
        serde_json::from_str::<(QpAddress, Remote)>(&text).unwrap(),
        (address, memory)
    );

    let v6 = QpAddress {
        gid: IpAddr::from([0xfe80, 0, 0, 0, 0, 0, 0, 1]).into(),
        ..address
    };
    let v4 = QpAddress {
        gid: IpAddr::from([192, 0, 2, 1]).into(),
        qpn: Qpn::new(17).unwrap(),
        psn: Psn::from_wire(0xff_ffff),
    };
    let text = r#"{"gid":"192.0.2.1","qpn":17,"psn":16777215}"#;
    assert_eq!(serde_json::to_string(&v4).unwrap(), text);
    for address in [v4, v6] {
        let text = serde_json::to_string(&address).unwrap();
        assert_eq!(serde_json::from_str::<QpAddress>(&text).unwrap(), address);
    }
    for too_large in ["17", "16777215"] {
        let wrong = text.replace(too_large, "16777216");
        let error = serde_json::from_str::<QpAddress>(&wrong)
            .unwrap_err()
            .to_string();
        assert!(error.contains("a number of 24 bits"), "{error}");
    }
}
