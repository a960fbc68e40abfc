#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use crate::{Drive, Node};
use std::net::{IpAddr, Ipv4Addr};
use trunkline_conn::egress::Egress;
use trunkline_conn::ingress::{Arrival, Identification};
use trunkline_dataplane::{MemoryConfig, MemoryPort};
use trunkline_wire::{IpFields, Path};

const NODE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 0, 2));

/// Anybody can have packets come out at the wrong worker.
#[test]
fn a_flood_of_packets_by_another_worker_leaves_a_worker_half_of_each_round_for_its_own() {
    const EACH: u64 = 3 * BURST as u64 + 10;
    let ports = [(); 2].map(|()| MemoryPort::pair(MemoryConfig::default()));
    let [(first, _idle), (second, mut theirs)] = ports;
    let ports: Vec<PortBox> = vec![Box::new(first), Box::new(second)];
    let builder = Node::builder().address(NODE).drive(Drive::Inline);
    let node = builder.workers(2).build_on_all(ports).unwrap();
    let path = Path {
        src: IpAddr::V4(Ipv4Addr::new(10, 9, 0, 3)),
        dst: NODE,
        src_port: ROCE_PORT,
        traffic_class: 0,
        ip: IpFields::DEFAULT,
    };
    let arrival = Arrival {
        path,
        identification: Identification::Seen(0),
        ce: false,
        waited_ns: 0,
    };
    // To a number of the second worker that nobody has.
    let mut packet = [0; 16];
    packet[7] = 5;
    let mut core = node.shared.handle(0).core().unwrap();
    for _ in 0..EACH {
        let messages = core.messages.as_mut().unwrap();
        assert!(messages.pass_on(&arrival, &packet));
        let slot = theirs.reserve(&path, packet.len()).unwrap();
        slot.datagram.copy_from_slice(&packet);
        theirs.commit();
    }
    drop(core);
    theirs.flush().unwrap();
    let worker = node.shared.handle(1);
    let received = || worker.counters.received.get();
    for _ in 0..EACH.div_ceil(BURST as u64) {
        let before = received();
        worker.round().unwrap();
        let taken = received() - before;
        assert!(taken <= 2 * BURST as u64, "{taken} in a round");
    }
    assert_eq!(received(), 2 * EACH, "in as many rounds as its own take");
}
