//! QPs with an IBTA connection of their own, and those of datagrams.

#[allow(dead_code, reason = "this test uses its part of it")]
mod common;

use common::{Pair, Words};
use std::net::IpAddr;
use trunkline_qpmap::{QpQueues, QpType};
use trunkline_wire::{Bth, Cnp, Opcode, Path, ROCE_PORT, icrc};

/// A congestion notification for a QP of the first node.
fn cnp(qp: &QpQueues<Words>, source: [u8; 4]) -> (Path, Vec<u8>) {
    let path = Path {
        src: IpAddr::from(source),
        dst: IpAddr::from([10, 0, 0, 1]),
        src_port: ROCE_PORT,
        traffic_class: 0,
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
        pair.plain = true;
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
