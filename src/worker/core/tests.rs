#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use crate::{Access, Cq, Drive, Mr, Node, QpOptions, RecvWr, SendWr};
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

/// One of two nodes that a cable joins, and a QP to the other one.
struct End {
    node: Node,
    cq: Cq,
    qp: Qp,
    mr: Mr,
}

impl End {
    fn new(last: u8, port: MemoryPort, sharing: bool) -> Self {
        let address = IpAddr::V4(Ipv4Addr::new(10, 9, 0, last));
        let builder = Node::builder().address(address).drive(Drive::Inline);
        let node = builder.sharing(sharing).build_on(Box::new(port)).unwrap();
        let pd = node.alloc_pd();
        let cq = node.create_cq(256).unwrap();
        let mr = pd.register(64, Access::ALL).unwrap();
        let qp = pd.create_qp(&cq, &cq, &QpOptions::default()).unwrap();
        Self { node, cq, qp, mr }
    }

    fn pair(sharing: bool) -> [Self; 2] {
        let (first, second) = MemoryPort::pair(MemoryConfig::default());
        let ends = [Self::new(2, first, sharing), Self::new(3, second, sharing)];
        ends[0].qp.connect(ends[1].qp.address()).unwrap();
        ends[1].qp.connect(ends[0].qp.address()).unwrap();
        // The first message opens a connection.
        ends[1].receive();
        ends[0].send();
        let (mut completed, mut idle) = ([0, 0], 0);
        while completed != [1, 1] || idle < 100 {
            let worked = ends.each_ref().map(End::round);
            idle = if worked == [false; 2] { idle + 1 } else { 0 };
            for (completed, end) in completed.iter_mut().zip(&ends) {
                *completed += end.completed();
            }
        }
        ends
    }

    fn receive(&self) {
        let sges = [self.mr.sge(0, 8)];
        self.qp.post_recv(&[RecvWr::new().sges(&sges)]).unwrap();
    }

    fn send(&self) {
        let sges = [self.mr.sge(0, 8)];
        let request = SendWr::send().sges(&sges).signaled();
        self.qp.post_send(&[request]).unwrap();
    }

    fn round(&self) -> bool {
        self.node.shared.handle(0).round().unwrap()
    }

    fn sent(&self) -> u64 {
        self.node.shared.handle(0).counters.sent.get()
    }

    fn completed(&self) -> u32 {
        let mut completed = 0;
        while self.cq.poll_one().unwrap().is_some() {
            completed += 1;
        }
        completed
    }
}

#[test]
fn a_message_is_seen_before_what_else_its_round_would_do() {
    let [from, to] = End::pair(true);
    for _ in 0..3 {
        to.receive();
        from.send();
        from.round();
        let before = to.sent();
        assert!(to.round());
        assert!(to.node.shared.handle(0).core().unwrap().is_behind);
        assert_eq!((to.completed(), to.sent()), (1, before));
        // It is not forgotten what was left, and the answer has waited for a round.
        assert!(to.node.shared.handle(0).is_busy().unwrap());
        to.round();
        assert_eq!(to.sent(), before + 1);
        assert!(!to.node.shared.handle(0).core().unwrap().is_behind);
        while from.completed() == 0 {
            from.round();
            to.round();
        }
    }
}

/// Whoever opens a connection waits for its answer.
#[test]
fn a_round_that_receives_management_does_all_of_it() {
    let [from, to] = End::pair(true);
    to.receive();
    from.send();
    from.round();
    let path = Path {
        src: IpAddr::V4(Ipv4Addr::new(10, 9, 0, 2)),
        dst: IpAddr::V4(Ipv4Addr::new(10, 9, 0, 3)),
        src_port: ROCE_PORT,
        traffic_class: 0,
        ip: IpFields::DEFAULT,
    };
    let mut datagram = [0; gsi::LEN];
    datagram[7] = 1;
    assert!(gsi::is_management(&datagram));
    let handle = from.node.shared.handle(0);
    let mut port = handle.port().unwrap();
    let slot = port.reserve(&path, datagram.len()).unwrap();
    slot.datagram.copy_from_slice(&datagram);
    port.commit();
    port.flush().unwrap();
    drop(port);
    assert!(to.round());
    let is_behind = to.node.shared.handle(0).core().unwrap().is_behind;
    assert_eq!((to.completed(), is_behind), (1, false));
}

#[test]
fn an_acknowledgement_that_waits_for_nothing_leaves_in_the_round_of_its_message() {
    let [from, to] = End::pair(false);
    to.receive();
    from.send();
    from.round();
    let before = to.sent();
    assert!(to.round());
    assert_eq!((to.completed(), to.sent()), (1, before + 1));
}

/// There is something to receive in each round.
#[test]
fn messages_that_come_one_by_one_do_not_keep_a_worker_from_its_answers() {
    const MESSAGES: u32 = 100;
    let [from, to] = End::pair(true);
    let (mut answered, mut seen) = (0, 0);
    for _ in 0..MESSAGES {
        to.receive();
        from.send();
        from.round();
        to.round();
        answered += from.completed();
        seen += to.completed();
    }
    assert_eq!(seen, MESSAGES);
    assert!(answered >= MESSAGES / 2, "{answered} of {MESSAGES}");
}
