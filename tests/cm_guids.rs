//! The GUIDs in requests for connections of ordinary hosts: they tell a QP that has lost its
//! connection, as its host was started again, from a request that somebody else forged.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::PATIENCE;
use common::host::{Host, PORT};
use common::stranger::Wire;
use std::time::{Duration, Instant};
use trunkline::rdma_cm::sync::{Endpoint, Listener, Request};
use trunkline::rdma_cm::{Kind, Params, PortSpace, RejReason};
use trunkline::{Node, QpState, Qpn};
use trunkline_cm::rdma::{Config, Event, Id, RdmaCm};
use trunkline_conn::time;
use trunkline_dataplane::prng::Prng;

const GUID: u64 = 0x0211_22ff_fe33_4455;
/// The QP of a host that the test plays.
const QPN: Qpn = Qpn::from_wire(0x4321);

/// A host that the test plays: RDMA-CM without QPs, until it is started again.
struct Played {
    wire: Wire,
    manager: RdmaCm<Box<dyn FnMut() -> u64>>,
}

impl Played {
    fn new(server: &Host) -> Self {
        Self::start(Wire::to(&server.node), GUID, 1)
    }

    fn start(wire: Wire, guid: u64, life: u64) -> Self {
        let mut random = Prng::new(life);
        let random: Box<dyn FnMut() -> u64> = Box::new(move || random.next_u64());
        let manager = RdmaCm::new(Config::new(guid), random);
        Self { wire, manager }
    }

    /// The same host without memory of what was before, or somebody at its address with another
    /// GUID.
    fn again(self, guid: u64, life: u64) -> Self {
        Self::start(self.wire, guid, life)
    }

    fn ask(&mut self) -> Id {
        let id = self.manager.create(PortSpace::Tcp, Kind::Rc).unwrap();
        self.manager.resolve(id, self.wire.route, PORT).unwrap();
        let now = time::Instant::ZERO;
        self.manager.connect(now, id, &Params::new(QPN)).unwrap();
        self.say();
        id
    }

    fn say(&mut self) {
        while let Some(message) = self.manager.poll_transmit() {
            self.wire.say(&message);
        }
    }

    /// What the manager is told next.
    fn next(&mut self) -> Event {
        let (end, now) = (Instant::now() + PATIENCE, time::Instant::ZERO);
        loop {
            self.say();
            if let Some(event) = self.manager.poll_event(now) {
                return event;
            }
            let manager = &mut self.manager;
            self.wire
                .hear(|path, mad| manager.handle_mad(now, path, mad));
            assert!(Instant::now() < end, "it hears nothing");
            std::thread::yield_now();
        }
    }

    /// Connects to the server, whose program accepts.
    fn connected(&mut self, server: &Host, listener: &Listener) -> Endpoint {
        self.ask();
        std::thread::scope(|scope| {
            let accepted = scope.spawn(|| accept(server, requested(server, listener)));
            let Event::ConnectResponse { id, .. } = self.next() else {
                panic!("it was not accepted")
            };
            let now = time::Instant::ZERO;
            self.manager.accept(now, id, &Params::new(QPN)).unwrap();
            let established = self.next();
            assert!(matches!(established, Event::Established { .. }));
            self.say();
            accepted.join().unwrap()
        })
    }
}

fn server() -> (Host, Listener) {
    let server = Host::with(Node::builder().sharing(false));
    let listener = server.listen(0);
    (server, listener)
}

fn requested(server: &Host, listener: &Listener) -> Request {
    listener.get_request(&server.node, PATIENCE).unwrap()
}

fn accept(server: &Host, request: Request) -> Endpoint {
    let params = Params::default();
    let accepted = request.accept(&server.resources(), &params, PATIENCE);
    accepted.unwrap()
}

/// Connections that ended as stale, or were refused as such.
fn stale(server: &Host) -> u64 {
    server.node.cm_counters()[0].hosts.stale
}

fn established(server: &Host) -> u64 {
    server.node.cm_stats().connections["established"]
}

#[test]
fn two_hosts_with_one_guid_have_their_own_connections() {
    let (server, listener) = server();
    // As nodes.
    let host = || Host::with(Node::builder().sharing(false).guid(GUID));
    let clients = [host(), host()];
    let to = listener.local_addr().unwrap();
    let ends = clients.each_ref().map(|client| {
        std::thread::scope(|scope| {
            let near = scope.spawn(|| client.connect(to, b"").unwrap());
            let far = accept(&server, requested(&server, &listener));
            (near.join().unwrap(), far)
        })
    });
    for (client, (near, far)) in clients.iter().zip(&ends) {
        server.receive(far.qp());
        client.send(near.qp(), b"here");
        server.done();
    }
    // With QPs of one number.
    let played = [(); 2].map(|()| {
        let mut played = Played::new(&server);
        let end = played.connected(&server, &listener);
        (played, end)
    });
    assert_eq!((established(&server), stale(&server)), (4, 0));
    drop((played, ends));
}

#[test]
fn a_host_that_was_started_again_ends_what_its_qp_had_and_gets_in() {
    let (server, listener) = server();
    let mut played = Played::new(&server);
    let old = played.connected(&server, &listener);
    let mut reborn = played.again(GUID, 2);
    let asked = reborn.ask();
    let Event::Rejected { id, reason, .. } = reborn.next() else {
        panic!("its connection is still there")
    };
    assert_eq!((id, reason), (asked, RejReason::StaleConnection));
    // The program hears of the end, and nobody has to wait for it.
    old.wait_for_end(PATIENCE).unwrap();
    assert_eq!(old.qp().state(), QpState::Error);
    // Its own QP of that number waits a while after the refusal, a further life's does not.
    let new = reborn.again(GUID, 3).connected(&server, &listener);
    assert_eq!((established(&server), stale(&server)), (1, 1));
    assert_eq!(new.qp().state(), QpState::Rts);
}

#[test]
fn a_forged_request_for_a_connected_qp_ends_nothing_and_hides_nothing() {
    let (server, listener) = server();
    let mut played = Played::new(&server);
    let old = played.connected(&server, &listener);
    let mut forger = played.again(GUID ^ 1, 2);
    forger.ask();
    // It is a request like others: the program says what becomes of it.
    let request = requested(&server, &listener);
    assert_eq!(request.peer.ip(), forger.wire.route.local);
    request.reject(b"").unwrap();
    let refused = forger.next();
    let Event::Rejected { reason, .. } = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(reason, RejReason::ConsumerDefined);
    assert!(old.wait_for_end(Duration::from_millis(50)).is_err());
    assert_eq!(old.qp().state(), QpState::Rts);
    assert_eq!((established(&server), stale(&server)), (1, 0));
    // Whom the connection belongs to still ends it.
    let mut reborn = forger.again(GUID, 3);
    reborn.ask();
    let refused = reborn.next();
    assert!(matches!(
        refused,
        Event::Rejected {
            reason: RejReason::StaleConnection,
            ..
        }
    ));
    old.wait_for_end(PATIENCE).unwrap();
    assert_eq!(stale(&server), 1);
}
