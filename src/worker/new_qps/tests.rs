#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use crate::node::life::Down;
use crate::{
    Access, Cq, Drive, Error, Node, Pd, Port, Qp, QpModify, QpOptions, QpState, SendWr, Status,
};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use trunkline_conn::ingress::Arrival;
use trunkline_dataplane::{MemoryConfig, MemoryPort};

/// An inline node, with what QPs need.
fn node() -> (Node, Pd, Cq) {
    node_with(u32::MAX)
}

/// The same with at most `most` QPs.
fn node_with(most: u32) -> (Node, Pd, Cq) {
    let address = IpAddr::V4(Ipv4Addr::new(10, 9, 0, 2));
    let mut builder = Node::builder().address(address).drive(Drive::Inline);
    builder.config.engine.max_qps = most;
    let (port, _peer) = MemoryPort::pair(MemoryConfig::default());
    let node = builder.build_on(Box::new(port)).unwrap();
    let (pd, cq) = (node.alloc_pd(), node.create_cq(64).unwrap());
    (node, pd, cq)
}

fn create(pd: &Pd, cq: &Cq) -> Result<Qp, Error> {
    pd.create_qp(cq, cq, &QpOptions::default())
}

#[test]
fn a_qp_is_made_while_its_worker_is_in_the_middle_of_a_round() {
    let (node, pd, cq) = node();
    let mut qps = Vec::new();
    // Of few QPs, and of many.
    for (there, more) in [(1, FEW), (100, 25), (5 * STOCK, STOCK)] {
        qps.resize_with(there, || create(&pd, &cq).unwrap());
        let core = node.shared.handle(0).core().unwrap();
        // The lock would never be given to this thread.
        qps.resize_with(there + more, || create(&pd, &cq).unwrap());
        assert_eq!(core.engine.qp_count(), there);
        drop(core);
        assert_eq!(node.live_objects().qps, there + more);
    }
    let numbers: BTreeSet<_> = qps.iter().map(|qp| qp.qpn().get()).collect();
    assert_eq!(numbers.len(), qps.len());
    for qp in qps {
        assert_eq!(qp.query().unwrap().0, QpState::Reset);
        qp.modify(&QpModify::Init {
            access: Access::ALL,
        })
        .unwrap();
    }
}

#[test]
fn a_qp_that_goes_before_its_worker_knew_it_leaves_nothing() {
    let (node, pd, cq) = node();
    for _ in 0..3 * STOCK {
        drop(create(&pd, &cq).unwrap());
    }
    assert_eq!(node.live_objects().qps, 0);
    // They assert that nobody uses them.
    drop((cq, pd));
}

#[test]
fn there_are_as_many_qps_as_may_be_and_the_next_one_is_refused_until_one_goes() {
    let most = STOCK as u32 + 10;
    let (_node, pd, cq) = node_with(most);
    let mut qps: Vec<_> = (0..most).map(|_| create(&pd, &cq).unwrap()).collect();
    for _ in 0..2 {
        let refused = create(&pd, &cq).unwrap_err();
        assert!(
            matches!(refused, Error::Verbs(VerbsError::Limit { what: "QPs", .. })),
            "{refused:?}"
        );
        qps.pop();
        qps.push(create(&pd, &cq).unwrap());
    }
}

#[test]
fn a_number_rests_as_long_as_there_are_others() {
    const MOST: u32 = 10;
    let (_node, pd, cq) = node_with(MOST);
    let mut numbers = (0..3 * MOST).map(|_| create(&pd, &cq).unwrap().qpn().get());
    let first: Vec<_> = numbers.by_ref().take(MOST as usize).collect();
    assert_eq!(first.iter().collect::<BTreeSet<_>>().len(), first.len());
    // Then that which has rested longest.
    assert!(numbers.eq(first.iter().chain(&first).copied()));
}

#[test]
fn sizes_that_are_refused_cost_no_place() {
    let (node, pd, cq) = node();
    let wrong = QpOptions {
        max_send_sge: 17,
        ..QpOptions::default()
    };
    let first = create(&pd, &cq).unwrap();
    let core = node.shared.handle(0).core().unwrap();
    for _ in 0..2 * STOCK {
        let refused = pd.create_qp(&cq, &cq, &wrong);
        assert!(matches!(refused, Err(Error::Verbs(_))));
    }
    let last = create(&pd, &cq).unwrap();
    drop(core);
    drop((first, last));
    assert_eq!(node.live_objects().qps, 0);
}

#[test]
fn qps_that_wait_for_their_worker_are_in_error_once_the_node_ends() {
    fn end(node: &Node) {
        node.shared.life.end(Down::ShutDown);
    }
    fn poison(node: &Node) {
        let hold = || {
            let _core = node.shared.handle(0).core().unwrap();
            panic!("the test wants it");
        };
        std::thread::scope(|scope| scope.spawn(hold).join().unwrap_err());
    }
    for (end, make_first) in [(end as fn(&Node), true), (poison, true), (poison, false)] {
        let (node, pd, cq) = node();
        let first = create(&pd, &cq).unwrap();
        let made = make_first.then(|| create(&pd, &cq).unwrap());
        end(&node);
        let made = made.unwrap_or_else(|| create(&pd, &cq).unwrap());
        node.poll().unwrap_err();
        assert_eq!([first.state(), made.state()], [QpState::Error; 2]);
        let refused = create(&pd, &cq).unwrap_err();
        assert_eq!(
            Some(refused.to_string()),
            node.health().down.map(|down| down.to_string())
        );
    }
}

#[test]
fn threads_that_make_qps_at_once_get_different_ones() {
    const EACH: usize = 5_000;
    let (node, pd, cq) = node();
    let made: Vec<Vec<Qp>> = std::thread::scope(|scope| {
        let make = || (0..EACH).map(|_| create(&pd, &cq).unwrap()).collect();
        let threads = [scope.spawn(make), scope.spawn(make)];
        while !threads.iter().all(|thread| thread.is_finished()) {
            node.poll().unwrap();
        }
        threads.map(|thread| thread.join().unwrap()).into()
    });
    let numbers: BTreeSet<_> = made.iter().flatten().map(|qp| qp.qpn().get()).collect();
    assert_eq!(numbers.len(), 2 * EACH);
    assert_eq!(node.live_objects().qps, 2 * EACH);
    drop(made);
    assert_eq!(node.live_objects().qps, 0);
}

/// The packets that have come to the first worker of a node.
fn fetch(node: &Node) -> Vec<(Arrival, Vec<u8>)> {
    let mut packets = Vec::new();
    let mut port = node.shared.handle(0).port().unwrap();
    port.fetch().unwrap();
    port.receive(64, &mut |arrival, datagram| {
        packets.push((*arrival, datagram.to_vec()))
    })
    .unwrap();
    packets
}

#[test]
fn a_packet_finds_a_qp_that_was_made_just_now_also_where_another_worker_hands_it_over() {
    let ports = [(); 2].map(|()| MemoryPort::pair(MemoryConfig::default()));
    let [(ours, theirs), (idle, _gone)] = ports;
    let builder = |last: u8| {
        let address = IpAddr::V4(Ipv4Addr::new(10, 9, 0, last));
        Node::builder().address(address).drive(Drive::Inline)
    };
    let ports: Vec<Box<dyn Port + Send>> = vec![Box::new(ours), Box::new(idle)];
    let node = builder(2).workers(2).build_on_all(ports).unwrap();
    let peer = builder(3).build_on(Box::new(theirs)).unwrap();
    let [(pd, cq), (their_pd, their_cq)] =
        [&node, &peer].map(|node| (node.alloc_pd(), node.create_cq(64).unwrap()));
    let options = QpOptions {
        worker: Some(0),
        ..QpOptions::default()
    };
    let create_ours = || pd.create_qp(&cq, &cq, &options).unwrap();
    let region = pd.register(64, Access::ALL).unwrap();
    let write = |qp: &Qp| {
        let request = SendWr::write(region.remote(0)).wr_id(1).signaled();
        qp.post_send(&[request]).unwrap();
    };
    let completed = || {
        for _ in 0..100_000 {
            node.poll().unwrap();
            peer.poll().unwrap();
            if let Some(done) = their_cq.poll_one().unwrap() {
                return done.status;
            }
        }
        panic!("the request does not end");
    };
    // The nodes have a connection.
    let (first, their_first) = (create_ours(), create(&their_pd, &their_cq).unwrap());
    first.connect(their_first.address()).unwrap();
    their_first.connect(first.address()).unwrap();
    write(&their_first);
    assert_eq!(completed(), Status::Success);
    while node.poll().unwrap() | peer.poll().unwrap() {}

    for by_another in [true, false] {
        let their_qp = create(&their_pd, &their_cq).unwrap();
        let handle = node.shared.handle(0);
        let mut core = handle.core().unwrap();
        let qp = create_ours();
        their_qp.connect(qp.address()).unwrap();
        write(&their_qp);
        while peer.poll().unwrap() {}
        if by_another {
            let packets = fetch(&node);
            let handed_over = packets.len();
            let mut other = node.shared.handle(1).core().unwrap();
            for packet in packets {
                let messages = other.messages.as_mut().unwrap();
                assert!(messages.pass_on(&packet.0, &packet.1));
            }
            drop(other);
            let mut port = handle.port().unwrap();
            core.work(&mut **port, false, &handle.new_qps).unwrap();
            drop((core, port));
            assert!(handed_over > 0, "the peer's QP asks for ours");
        } else {
            drop(core);
            node.poll().unwrap();
        }
        qp.connect(their_qp.address()).unwrap();
        assert_eq!(completed(), Status::Success);
    }
}
