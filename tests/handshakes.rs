//! Handshakes between nodes, as programs see them: confirmations that are lost, and GUIDs.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::stranger::{Stranger, offer};
use common::{End, address, inline, next, until};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use trunkline::{
    Clock, ConnectionOptions, Drive, Gid, Node, Qp, QpAddress, QpOptions, Qpn, SendOp, Status,
};
use trunkline_cm::{Bounds, RefusalCode, gsi};
use trunkline_conn::egress::{Egress, Slot};
use trunkline_conn::ingress::Arrival;
use trunkline_dataplane::{Capabilities, Port, PortCounters, PortError, UdpConfig, UdpPort};
use trunkline_wire::Path;
use trunkline_wire::cm::{CmMad, Message};

/// Where received bytes go.
const TARGET: usize = 2 << 20;
const GUID: u64 = 0x0211_22ff_fe33_4455;

/// A port that never gets a confirmation (RTU).
struct Unconfirmed {
    port: UdpPort,
    lost: Arc<AtomicU64>,
}

impl Egress for Unconfirmed {
    fn reserve(&mut self, path: &Path, length: usize) -> Option<Slot<'_>> {
        self.port.reserve(path, length)
    }

    fn commit(&mut self) {
        self.port.commit();
    }

    fn part(&mut self) {
        self.port.part();
    }
}

impl Port for Unconfirmed {
    fn capabilities(&self) -> Capabilities {
        self.port.capabilities()
    }

    fn flush(&mut self) -> Result<(), PortError> {
        self.port.flush()
    }

    fn receive(
        &mut self,
        limit: usize,
        sink: &mut dyn FnMut(&Arrival, &[u8]),
    ) -> Result<usize, PortError> {
        let lost = &self.lost;
        self.port.receive(limit, &mut |arrival, datagram| {
            if is_rtu(datagram) {
                lost.fetch_add(1, Ordering::Relaxed);
            } else {
                sink(arrival, datagram);
            }
        })
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.port.fd()
    }

    fn fetch(&mut self) -> Result<bool, PortError> {
        self.port.fetch()
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.port.fds()
    }

    fn full(&self) -> Option<usize> {
        self.port.full()
    }

    fn counters(&self) -> PortCounters {
        self.port.counters()
    }
}

fn is_rtu(datagram: &[u8]) -> bool {
    // Behind BTH and DETH, and before the ICRC.
    let mad = datagram.get(20..276).filter(|_| datagram.len() == gsi::LEN);
    let said = mad.and_then(|mad| CmMad::parse(mad).ok());
    said.is_some_and(|said| matches!(said.message, Message::Rtu(_)))
}

#[test]
fn the_first_packet_confirms_a_connection_whose_confirmation_is_lost() {
    // Time stands still, so that nothing is said twice.
    let clock = Clock::manual();
    let asking = End::new(inline().clock(clock.clone()));
    let (at, lost) = (address(), Arc::new(AtomicU64::new(0)));
    let port = Unconfirmed {
        port: UdpPort::open(&UdpConfig::new(at)).unwrap(),
        lost: Arc::clone(&lost),
    };
    let builder = Node::builder().address(at).drive(Drive::Inline);
    let asked = End::of(builder.clock(clock).build_on(Box::new(port)).unwrap());
    let nodes = [&asking.node, &asked.node];
    let counts = || nodes.map(Node::connection_count);
    // Where no program has anything to say, the opener does.
    let options = ConnectionOptions::default();
    let unused = asking.node.open_connection(at, &options).unwrap();
    until(&nodes, "the first word", || counts() == [1, 1]);
    assert!(unused.is_open());
    assert_eq!(lost.load(Ordering::Relaxed), 1);
    let options = QpOptions::default();
    let (near, far) = (asking.qp(&options), asked.qp(&options));
    near.connect(far.address()).unwrap();
    until(&nodes, "the first packet", || counts() == [2, 2]);
    assert_eq!(lost.load(Ordering::Relaxed), 2);
    far.connect(near.address()).unwrap();
    asking.post(&near, 1, SendOp::Write(asked.mr.remote(TARGET)), 0, 64);
    let done = next(&nodes, &asking.send_cq);
    assert_eq!((done.wr_id, done.status), (1, Status::Success));
    let handshakes = asked.node.cm_stats().handshakes;
    let found = (handshakes["rep_sent"], handshakes["established"]);
    assert_eq!((found, counts()), ((0, 2), [2, 2]));
}

/// A QP of the node whose peer is a stranger's.
fn asking(end: &End, stranger: &Stranger) -> Qp {
    let qp = end.qp(&QpOptions::default());
    let peer = QpAddress {
        gid: Gid::from(stranger.route.local),
        qpn: Qpn::from_wire(77),
        psn: qp.address().psn,
    };
    qp.connect(peer).unwrap();
    qp
}

#[test]
fn a_peer_whose_answers_were_lost_is_asked_again() {
    let end = End::new(inline());
    let mut stranger = Stranger::new(&end.node);
    let qp = asking(&end, &stranger);
    end.post(&qp, 1, SendOp::Write(end.mr.remote(TARGET)), 0, 64);
    let mut refused = 0;
    until(&[&end.node], "a connection", || {
        stranger.turn();
        while let Some(event) = stranger.manager.poll_event() {
            let trunkline_cm::Event::Incoming { id, .. } = event else {
                continue;
            };
            let manager = &mut stranger.manager;
            if refused < 3 {
                refused += 1;
                manager.reject(id, RefusalCode::Unconfirmed).unwrap();
            } else {
                let now = trunkline::Instant::ZERO;
                manager
                    .accept(now, id, offer(64), Bounds::default())
                    .unwrap();
            }
        }
        end.node.connection_count() == 1
    });
    assert_eq!(refused, 3);
    assert!(end.send_cq.poll_one().unwrap().is_none(), "its QP waits");
}

#[test]
fn a_guid_that_the_program_gives_is_in_what_the_node_asks() {
    let mut known = Vec::new();
    for _ in 0..2 {
        let end = End::new(inline().guid(GUID));
        let mut stranger = Stranger::new(&end.node);
        let _qp = asking(&end, &stranger);
        until(&[&end.node], "the question", || {
            stranger.turn();
            let Some(trunkline_cm::Event::Incoming { hello, .. }) = stranger.manager.poll_event()
            else {
                return false;
            };
            known.push(hello.end.identity);
            true
        });
    }
    // The same at each start, which the epoch tells from the one before.
    assert_eq!([known[0].guid, known[1].guid], [GUID; 2]);
    assert_ne!(known[0].epoch, known[1].epoch);
}

#[test]
fn a_guid_that_is_not_given_is_another_at_each_start() {
    let guids = [(); 2].map(|()| {
        let end = End::new(inline());
        let mut stranger = Stranger::new(&end.node);
        let options = ConnectionOptions::default();
        let opening = end.node.open_connection(stranger.route.local, &options);
        let _opening = opening.unwrap();
        let mut guid = None;
        until(&[&end.node], "the question", || {
            stranger.turn();
            if let Some(trunkline_cm::Event::Incoming { hello, .. }) = stranger.manager.poll_event()
            {
                guid = Some(hello.end.identity.guid);
            }
            guid.is_some()
        });
        guid.unwrap()
    });
    assert_ne!(guids[0], guids[1]);
}

#[test]
fn two_nodes_with_one_guid_meet_and_count_it() {
    let twins = [(); 2].map(|()| End::new(inline().guid(GUID)));
    let nodes = [&twins[0].node, &twins[1].node];
    let options = QpOptions::default();
    let (near, far) = (twins[0].qp(&options), twins[1].qp(&options));
    near.connect(far.address()).unwrap();
    far.connect(near.address()).unwrap();
    let to = SendOp::Write(twins[1].mr.remote(TARGET));
    twins[0].post(&near, 1, to, 0, 64);
    assert_eq!(next(&nodes, &twins[0].send_cq).status, Status::Success);
    for node in nodes {
        assert_eq!(node.cm_counters()[0].nodes.duplicate_guid, 1);
    }
}

#[test]
fn nodes_with_one_guid_at_two_addresses_are_two_peers() {
    let middle = End::new(inline());
    let twins = [(); 2].map(|()| End::new(inline().guid(GUID)));
    let nodes = [&middle.node, &twins[0].node, &twins[1].node];
    let options = QpOptions::default();
    let (near, first) = (middle.qp(&options), twins[0].qp(&options));
    near.connect(first.address()).unwrap();
    first.connect(near.address()).unwrap();
    let write = |wr_id| {
        let to = SendOp::Write(twins[0].mr.remote(TARGET));
        middle.post(&near, wr_id, to, 0, 64);
        let done = next(&nodes, &middle.send_cq);
        assert_eq!((done.wr_id, done.status), (wr_id, Status::Success));
    };
    write(1);
    let (second, other) = (twins[1].qp(&options), middle.qp(&options));
    second.connect(other.address()).unwrap();
    other.connect(second.address()).unwrap();
    let to = SendOp::Write(twins[1].mr.remote(TARGET));
    middle.post(&other, 2, to, 0, 64);
    let done = next(&nodes, &middle.send_cq);
    assert_eq!((done.wr_id, done.status), (2, Status::Success));
    write(3);
    assert_eq!(middle.node.cm_counters()[0].nodes.duplicate_guid, 1);
}

#[test]
fn only_a_packet_with_the_token_that_was_offered_stands_for_a_lost_confirmation() {
    let end = End::new(inline());
    let mut stranger = Stranger::new(&end.node);
    stranger.ask(64);
    let mut terms = None;
    until(&[&end.node], "the answer", || {
        // Its confirmation is never said.
        if end.node.cm_stats().handshakes["rep_sent"] == 0 {
            stranger.say();
        }
        stranger.hear();
        while let Some(event) = stranger.manager.poll_event() {
            if let trunkline_cm::Event::Established(established) = event {
                terms = Some(established);
            }
        }
        terms.is_some()
    });
    let terms = terms.unwrap();
    let unknown = || end.node.counters().unknown_connection;
    for guess in [
        0,
        1,
        terms.remote_token ^ 1,
        terms.remote_token.swap_bytes(),
    ] {
        let before = unknown();
        stranger.send_packet(terms.remote_id, guess);
        until(&[&end.node], "the packet", || unknown() > before);
        assert_eq!(end.node.connection_count(), 0, "token {guess:#x}");
    }
    stranger.send_packet(terms.remote_id, terms.remote_token);
    until(&[&end.node], "the connection", || {
        end.node.connection_count() == 1
    });
}
