//! Laws of packets that come by another worker of the node that gets them: their sender goes on to
//! another source port, if it can and they are its own.

use crate::common::Pair;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use trunkline_conn::time::{MILLISECOND, SECOND};
use trunkline_conn::work::{Remote, SendOp};
use trunkline_wire::Opcode;

const DATAGRAM: u32 = 1100;
const PORTS: [u16; 3] = [4791, 50_000, 50_001];

/// Two nodes with these source ports, of which some lead to another worker.
fn pair(ports: &[u16], astray: fn(u16) -> bool) -> Pair {
    let mut pair = Pair::configured(1, DATAGRAM, |config| config.source_ports = ports.to_vec());
    pair.astray = Some(astray);
    pair
}

/// WRITEs from both nodes, one after the other.
fn write(pair: &mut Pair, count: u64) {
    let qps = pair.connected();
    for number in 0..count {
        for (node, qp) in qps.iter().enumerate() {
            let (addr, rkey) = (pair.nodes[1 - node].buffer.addr, pair.nodes[1 - node].key);
            let op = SendOp::Write(Remote { addr, rkey });
            pair.post(node, qp, number, op, &[pair.sge(node, 4096, 3000)]);
        }
        pair.run(MILLISECOND);
    }
    pair.run(SECOND);
    for node in [0, 1] {
        assert_eq!(pair.completions(node).len() as u64, count);
    }
}

fn moves(pair: &Pair) -> [u64; 2] {
    let nodes = pair.nodes.each_ref();
    nodes.map(|node| node.engine.counters().source_port_changed)
}

fn is_ack(datagram: &[u8]) -> bool {
    Opcode(datagram[0]) == Opcode::SRC_ACK
}

/// An acknowledgement that says that packets came by another worker.
fn is_told(datagram: &[u8]) -> bool {
    is_ack(datagram) && datagram[14..16] != [0; 2]
}

#[test]
fn a_sender_goes_on_until_its_packets_come_right_and_then_stays() {
    let mut right = pair(&PORTS, |_| false);
    write(&mut right, 100);
    assert_eq!(moves(&right), [0, 0]);
    let mut second = pair(&PORTS, |port| port == PORTS[0]);
    write(&mut second, 100);
    assert_eq!(moves(&second), [1, 1]);
    let mut last = pair(&PORTS, |port| port != PORTS[2]);
    write(&mut last, 100);
    assert_eq!(moves(&last), [2, 2]);
}

#[test]
fn who_can_do_nothing_about_it_is_told_for_a_while_and_acknowledged_as_ever() {
    let acknowledgements = |ports: &'static [u16], astray| {
        let mut pair = pair(ports, astray);
        let (all, told) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let counts = (Rc::clone(&all), Rc::clone(&told));
        pair.fate = Box::new(move |_, datagram| {
            counts.0.set(counts.0.get() + u32::from(is_ack(datagram)));
            counts.1.set(counts.1.get() + u32::from(is_told(datagram)));
            1
        });
        write(&mut pair, 200);
        (all.get(), told.get())
    };
    let (usual, none) = acknowledgements(&PORTS, |_| false);
    assert_eq!(none, 0);
    for ports in [&PORTS[..1], &PORTS] {
        let (all, told) = acknowledgements(ports, |_| true);
        assert!(told > 0 && told <= 50 * ports.len() as u32, "{told} words");
        assert!(
            all <= usual + told,
            "{all} acknowledgements, {usual} where all is well"
        );
    }
}

/// It has paths of its own in mind.
#[test]
fn who_spreads_packets_over_several_source_ports_keeps_to_those_whatever_is_said_of_them() {
    let used = |astray| {
        let mut pair = Pair::configured(0, DATAGRAM, |config| config.source_ports = PORTS.to_vec());
        (pair.astray, pair.spread) = (Some(astray), 2);
        pair.open();
        let told = Rc::new(Cell::new(0));
        let count = Rc::clone(&told);
        pair.fate = Box::new(move |_, datagram| {
            count.set(count.get() + u32::from(is_told(datagram)));
            1
        });
        let [qp, _] = pair.connected();
        let (addr, rkey) = (pair.nodes[1].buffer.addr, pair.nodes[1].key);
        let op = SendOp::Write(Remote { addr, rkey });
        let mut used = BTreeMap::new();
        for number in 0..200 {
            pair.post(0, &qp, number, op, &[pair.sge(0, 4096, 3000)]);
            let sent = pair.sent_by(0);
            for (path, _) in &sent {
                *used.entry(path.src_port).or_insert(0) += 1;
            }
            pair.deliver(1, &sent);
            pair.run(MILLISECOND);
        }
        pair.run(SECOND);
        assert_eq!(pair.completions(0).len(), 200);
        (used, told.get(), moves(&pair))
    };
    let (usual, none, _) = used(|_| false);
    assert!(usual.keys().copied().eq([PORTS[0], PORTS[1]]), "{usual:?}");
    assert_eq!(none, 0);
    for astray in [|port| port == PORTS[0], |port| port == PORTS[1], |_| true] {
        let (ports, told, moves) = used(astray);
        assert!(told > 0);
        assert_eq!((ports, moves), (usual.clone(), [0, 0]));
    }
}

#[test]
fn packets_that_do_not_prove_themselves_move_nobody() {
    let mut pair = pair(&PORTS, |port| port == PORTS[0]);
    let [qp, _] = pair.connected();
    let (addr, rkey) = (pair.nodes[1].buffer.addr, pair.nodes[1].key);
    let op = SendOp::Write(Remote { addr, rkey });
    pair.astray = Some(|_| false);
    pair.post(0, &qp, 1, op, &[pair.sge(0, 4096, 900)]);
    pair.run(SECOND);
    pair.post(0, &qp, 2, op, &[pair.sge(0, 4096, 900)]);
    let sent = pair.sent_by(0);
    let (path, datagram) = sent.last().expect("the WRITE").clone();
    pair.astray = Some(|_| true);
    for flipped in [datagram.len() - 1, 16] {
        // The sum, or the token.
        let mut forged = datagram.clone();
        forged[flipped] ^= 1;
        for _ in 0..100 {
            pair.deliver(1, &[(path, forged.clone())]);
        }
    }
    pair.astray = Some(|_| false);
    pair.deliver(1, &[(path, datagram)]);
    pair.run(SECOND);
    assert_eq!(pair.completions(0).len(), 2);
    assert_eq!(moves(&pair), [0, 0]);
}
