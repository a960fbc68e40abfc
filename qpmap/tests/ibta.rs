//! QPs with an IBTA connection of their own, and those of datagrams.

use crate::common::{Pair, RingMemory};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use trunkline_conn::time::MILLISECOND;
use trunkline_conn::work::SendOp;
use trunkline_qpmap::wqe::RecvWr;
use trunkline_qpmap::{Event, QpQueues, QpType};
use trunkline_wire::{Bth, Cnp, IpFields, Opcode, Path, Qpn, ROCE_PORT, Syndrome, icrc};

/// A congestion notification for a QP of the first node.
fn cnp(qp: &QpQueues<RingMemory>, source: [u8; 4]) -> (Path, Vec<u8>) {
    let path = Path {
        src: IpAddr::from(source),
        dst: IpAddr::from([10, 0, 0, 1]),
        src_port: ROCE_PORT,
        traffic_class: 0,
        ip: IpFields::DEFAULT,
    };
    let bth = Bth {
        opcode: Opcode::CNP,
        dest_qp: qp.qpn,
        pkey: 0xffff,
        becn: true,
        ..Bth::default()
    };
    let mut datagram = bth.to_bytes().to_vec();
    datagram.extend(Cnp::default().to_bytes());
    datagram.extend([0; 4]);
    icrc::seal(&path, 0, &mut datagram);
    (path, datagram)
}

#[test]
fn congestion_notifications_of_strangers_are_dropped_and_counted() {
    for kind in [QpType::Rc, QpType::Uc] {
        let mut pair = Pair::new(0);
        pair.ibta = true;
        let ends = [pair.qp(0, kind), pair.qp(1, kind)];
        pair.connect(0, &ends[0], &ends[1]);
        pair.connect(1, &ends[1], &ends[0]);
        pair.run(1_000);
        for _ in 0..10 {
            pair.deliver(0, &[cnp(&ends[0], [10, 0, 0, 9])]);
        }
        assert_eq!(pair.nodes[0].engine.counters().bad_source, 10, "{kind}");
        pair.deliver(0, &[cnp(&ends[0], [10, 0, 0, 2])]);
        assert_eq!(pair.nodes[0].engine.counters().bad_source, 10, "{kind}");
    }
}

/// IBTA Vol 1, 9.7.7.2: acknowledgements of SENDs carry as many credits as there are receives, and
/// none (code 31) where those are of an SRQ.
#[test]
fn acknowledgements_grant_as_many_receives_as_the_qp_has_and_none_of_an_srq() {
    for shared in [false, true] {
        let mut pair = Pair::new(0);
        pair.ibta = true;
        let srq = shared.then(|| {
            let node = &mut pair.nodes[1];
            let made = node.engine.create_srq(node.pd, 16, 1);
            made.expect("a first SRQ")
        });
        pair.srqs[1] = srq.as_ref().map(|(index, _)| *index);
        let ends = [pair.qp(0, QpType::Rc), pair.qp(1, QpType::Rc)];
        pair.connect(0, &ends[0], &ends[1]);
        pair.connect(1, &ends[1], &ends[0]);
        for wr_id in 0..9 {
            let sge = [pair.sge(1, 0, 64)];
            match &srq {
                Some((_, srq)) => srq.post(&[RecvWr { wr_id, sges: &sge }]).expect("room"),
                None => pair.receive(&ends[1], wr_id, &sge),
            }
        }
        let granted = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&granted);
        pair.fate = Box::new(move |from, datagram| {
            let (bth, rest) = Bth::read(datagram).expect("a BTH");
            if from == 1 && bth.opcode == Opcode::RC_ACKNOWLEDGE {
                let syndrome = Syndrome::from_byte(rest[0]).expect("a syndrome");
                seen.lock().expect("no test panics with it").push(syndrome);
            }
            1
        });
        for left in [8, 7, 6] {
            let sge = pair.sge(0, 0, 64);
            pair.post(0, &ends[0], left, SendOp::Send, &[sge]);
            pair.run(MILLISECOND);
        }
        let granted = granted.lock().expect("no test panics with it");
        let credits = |receives| match shared {
            false => Syndrome::ack_with(receives),
            true => Syndrome::ACK_WITHOUT_CREDITS,
        };
        assert_eq!(*granted, [8, 7, 6].map(credits), "SRQ: {shared}");
    }
}

/// IBTA Vol 1, 9.7.7.2: who has no credit sends one message and waits for its answer. Of ten SENDs
/// to a peer with three receives four leave before more is heard.
#[test]
fn a_requester_sends_no_more_than_it_has_credits_for() {
    let mut pair = Pair::new(0);
    pair.ibta = true;
    let ends = [pair.qp(0, QpType::Rc), pair.qp(1, QpType::Rc)];
    pair.connect(0, &ends[0], &ends[1]);
    pair.connect(1, &ends[1], &ends[0]);
    let sends = Arc::new(Mutex::new(0));
    let seen = Arc::clone(&sends);
    pair.fate = Box::new(move |from, _| {
        *seen.lock().expect("no test panics with it") += usize::from(from == 0);
        1
    });
    for wr_id in 0..3 {
        let sge = [pair.sge(1, 0, 64)];
        pair.receive(&ends[1], wr_id, &sge);
    }
    for wr_id in 0..10 {
        let sge = pair.sge(0, 0, 64);
        pair.post(0, &ends[0], wr_id, SendOp::Send, &[sge]);
    }
    pair.run(MILLISECOND / 2);
    // The first without a credit; two that its acknowledgement grants, and one more without.
    assert_eq!(*sends.lock().expect("no test panics with it"), 4);
}

/// QPs whose peers have shown that they work, at each node.
fn heard(pair: &mut Pair) -> [Vec<Qpn>; 2] {
    pair.run(100 * MILLISECOND);
    [0, 1].map(|node| {
        let engine = &mut pair.nodes[node].engine;
        let events = std::iter::from_fn(|| engine.poll_event());
        let qpn = |event| match event {
            Event::QpHeard { qpn } => Some(qpn),
            _ => None,
        };
        events.filter_map(qpn).collect()
    })
}

#[test]
fn a_node_hears_once_of_each_qp_that_its_peers_works() {
    let shared = (QpType::Rc, 1);
    for (kind, connections) in [shared, (QpType::Rc, 0), (QpType::Uc, 0)] {
        let mut pair = Pair::new(connections);
        pair.ibta = connections == 0;
        let ends = [pair.qp(0, kind), pair.qp(1, kind)];
        pair.connect(1, &ends[1], &ends[0]);
        assert_eq!(
            heard(&mut pair),
            [[], []],
            "{kind}: the other one is not ready"
        );
        pair.connect(0, &ends[0], &ends[1]);
        let both = [vec![ends[0].qpn], vec![ends[1].qpn]];
        let agreed = heard(&mut pair);
        match connections {
            0 => assert_eq!(agreed, [[], []], "{kind}: nothing was said"),
            _ => assert_eq!(agreed, both, "each has agreed to what the other sends"),
        }
        pair.deliver(0, &[cnp(&ends[0], [10, 0, 0, 2])]);
        for wr_id in 0..3 {
            let sges = [pair.sge(1, 0, 64)];
            pair.receive(&ends[1], wr_id, &sges);
            let sges = [pair.sge(0, 0, 64)];
            pair.post(0, &ends[0], wr_id, SendOp::Send, &sges);
        }
        let sent = heard(&mut pair);
        match (connections, kind) {
            (0, QpType::Rc) => assert_eq!(sent, both, "its request, and the answer"),
            (0, _) => assert_eq!(sent, [vec![], vec![ends[1].qpn]], "nobody answers"),
            _ => assert_eq!(sent, [[], []], "it is known"),
        }
    }
}
