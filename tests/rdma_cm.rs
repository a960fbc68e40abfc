//! RDMA-CM between two nodes on loopback.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::faulty::{self, Fault};
use common::host::{Host, PORT};
use common::{address, ah_to};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::net::SocketAddr;
use std::time::Duration;
use trunkline::rdma_cm::sync::{ConnectError, Endpoint, Listener, Request};
use trunkline::rdma_cm::{
    CmError, CmEventKind, EventChannel, Kind, Params, PortSpace, RejReason, ResolveError, Setting,
};
use trunkline::{ConnectionOptions, Error, Node, Qp, QpState, Qpn, SendWr, VerbsError};

const LIMIT: Duration = Duration::from_secs(20);

fn accept(server: &Host, request: Request, data: &[u8]) -> Endpoint {
    let params = Params {
        private_data: data,
        responder_resources: 4,
        initiator_depth: 4,
        ..Params::default()
    };
    request.accept(&server.resources(), &params, LIMIT).unwrap()
}

/// A connection from `client`, and what both ends said with it.
fn connected(server: &Host, listener: &Listener, client: &Host) -> (Endpoint, Endpoint) {
    let to = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| client.connect(to, b"question").unwrap());
        let request = listener.get_request(&server.node, LIMIT).unwrap();
        assert_eq!(&request.data[..8], b"question");
        assert_eq!(request.peer.ip(), client.address);
        let accepted = accept(server, request, b"answer");
        (asked.join().unwrap(), accepted)
    })
}

#[test]
fn a_connection_carries_private_data_and_messages_and_ends_at_both_ends() {
    let (server, client) = (Host::new(), Host::new());
    let listener = server.listen(0);
    let (near, far) = connected(&server, &listener, &client);
    assert_eq!(&near.data()[..6], b"answer");
    server.receive(far.qp());
    client.send(near.qp(), b"hello");
    server.done();
    let mut bytes = [0; 5];
    server.mr.read(2048, &mut bytes).unwrap();
    assert_eq!(&bytes, b"hello");
    // Both are Trunkline nodes: their QPs share a connection.
    assert!(near.qp().connection().is_some());
    near.disconnect(LIMIT).unwrap();
    far.wait_for_end(LIMIT).unwrap();
    assert_eq!(
        (near.qp().state(), far.qp().state()),
        (QpState::Error, QpState::Error)
    );
}

#[test]
fn what_a_peer_sends_first_finds_the_receive_that_was_posted_before_the_connection() {
    for there in [true, false] {
        let server = Host::with(Node::builder().sharing(there));
        let client = Host::new();
        let listener = server.listen(0);
        let to = listener.local_addr().unwrap();
        // Nobody waits for a receive that is not there.
        let params = Params {
            rnr_retry_count: 0,
            ..Params::default()
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let prepared = Endpoint::prepare(&client.node, &client.resources(), to, LIMIT);
                let prepared = prepared.unwrap();
                client.receive(prepared.qp());
                assert_eq!(prepared.qp().state(), QpState::Init);
                let near = prepared.connect(&params, LIMIT).unwrap();
                client.done();
                client.send(near.qp(), b"thanks");
                near.wait_for_end(LIMIT).unwrap();
            });
            let request = listener.get_request(&server.node, LIMIT).unwrap();
            let prepared = request.prepare(&server.resources()).unwrap();
            server.receive(prepared.qp());
            let far = prepared.accept(&params, LIMIT).unwrap();
            server.send(far.qp(), b"first");
            server.done();
            far.disconnect(LIMIT).unwrap();
        });
    }
}

#[test]
fn a_node_that_shares_no_connections_is_an_ordinary_host() {
    for (here, there) in [(false, true), (true, false), (false, false)] {
        let server = Host::with(Node::builder().sharing(there));
        let client = Host::with(Node::builder().sharing(here));
        let listener = server.listen(0);
        let (near, far) = connected(&server, &listener, &client);
        server.receive(far.qp());
        client.send(near.qp(), b"plain");
        server.done();
        for host in [&client, &server] {
            assert_eq!(host.node.connection_count(), 0, "{here} {there}");
        }
    }
}

#[test]
fn connections_stand_at_both_ends_whose_confirmations_are_all_lost() {
    for sharing in [true, false] {
        let own = address();
        let (node, fault) = faulty::node(own, Node::builder().sharing(sharing));
        let server = Host::of(node, own);
        let client = Host::with(Node::builder().sharing(sharing));
        fault.set(Fault::LosesConfirmations);
        let listener = server.listen(0);
        let to = listener.local_addr().unwrap();
        let (near, far) = std::thread::scope(|scope| {
            let accepted = scope.spawn(|| {
                let request = listener.get_request(&server.node, LIMIT).unwrap();
                accept(&server, request, b"answer")
            });
            let near = client.connect(to, b"question").unwrap();
            if !sharing {
                // QPs that share a connection agree on it unasked; these have to speak.
                write(&client, near.qp(), &server);
            }
            (near, accepted.join().unwrap())
        });
        assert_eq!(far.qp().state(), QpState::Rts);
        near.disconnect(LIMIT).unwrap();
        far.wait_for_end(LIMIT).unwrap();
    }
}

/// Writes a few bytes into the peer's memory, and waits until they are there.
fn write(host: &Host, qp: &Qp, to: &Host) {
    qp.post_send(&[SendWr::write(to.mr.remote(0))
        .wr_id(1)
        .sges(&[host.mr.sge(0, 4)])
        .signaled()])
        .unwrap();
    host.done();
}

#[test]
fn a_channel_is_readable_while_events_wait() {
    let host = Host::new();
    let channel = host.node.create_event_channel().unwrap();
    let readable = || {
        let mut fds = [PollFd::from_borrowed_fd(channel.fd(), PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).unwrap() == 1
    };
    assert!(!readable());
    let ids = [0, 1].map(|_| channel.create_id(PortSpace::Tcp, Kind::Rc).unwrap());
    for id in &ids {
        id.resolve_addr((host.address, PORT).into(), LIMIT).unwrap();
    }
    for _ in &ids {
        assert!(matches!(expect(&channel).1, CmEventKind::AddressResolved));
    }
    assert!(!readable(), "all were fetched");
    ids[0].resolve_route().unwrap();
    ids[1].resolve_route().unwrap();
    assert!(readable());
    assert!(channel.poll_event().is_some());
    assert!(readable(), "one is left");
    // What goes to another channel waits here no more.
    let other = host.node.create_event_channel().unwrap();
    ids[1].migrate(&other).unwrap();
    assert!(!readable());
    assert!(other.poll_event().is_some());
}

#[test]
fn who_is_refused_hears_why() {
    let (server, client) = (Host::new(), Host::new());
    let nobody = client
        .connect((server.address, PORT).into(), b"")
        .unwrap_err();
    let reason = |error| match error {
        ConnectError::Rejected { reason, data } => (reason, data[..4].to_vec()),
        other => panic!("{other}"),
    };
    assert_eq!(reason(nobody).0, RejReason::InvalidServiceId);
    let listener = server.listen(0);
    let to = listener.local_addr().unwrap();
    let refused = std::thread::scope(|scope| {
        let asked = scope.spawn(|| client.connect(to, b"").unwrap_err());
        let request = listener.get_request(&server.node, LIMIT).unwrap();
        request.reject(b"busy").unwrap();
        asked.join().unwrap()
    });
    assert_eq!(
        reason(refused),
        (RejReason::ConsumerDefined, b"busy".to_vec())
    );
}

#[test]
fn a_host_on_which_no_node_runs_says_so_before_it_would_count_as_silent() {
    let client = Host::new();
    let started = std::time::Instant::now();
    let error = client.connect((address(), PORT).into(), b"").unwrap_err();
    let took = started.elapsed();
    assert!(matches!(error, ConnectError::Nobody), "{error}");
    assert!(took < Duration::from_secs(5), "{took:?}");
    let counters = &client.node.cm_counters()[0].hosts;
    assert_eq!((counters.nobody, counters.misquoted), (1, 0));
}

#[test]
fn an_address_without_a_way_to_it_is_an_event() {
    let host = Host::new();
    let far: SocketAddr = "[fd00::1]:1".parse().unwrap();
    let error = host.connect(far, b"").unwrap_err();
    assert!(matches!(error, ConnectError::Address(_)), "{error}");
}

fn expect(channel: &EventChannel) -> (trunkline::rdma_cm::CmId, CmEventKind) {
    let event = channel.get_event(LIMIT).expect("an event");
    (event.id, event.kind)
}

#[test]
fn datagram_ids_learn_where_the_service_is() {
    let (server, client) = (Host::new(), Host::new());
    let there = server.node.create_event_channel().unwrap();
    let listener = there.create_id(PortSpace::Udp, Kind::Ud).unwrap();
    listener.bind((server.address, PORT).into()).unwrap();
    listener.listen(0).unwrap();
    let here = client.node.create_event_channel().unwrap();
    let id = here.create_id(PortSpace::Udp, Kind::Ud).unwrap();
    id.set(Setting::TypeOfService(8)).unwrap();
    id.resolve_addr((server.address, PORT).into(), LIMIT)
        .unwrap();
    assert!(matches!(expect(&here).1, CmEventKind::AddressResolved));
    id.resolve_route().unwrap();
    assert!(matches!(expect(&here).1, CmEventKind::RouteResolved));
    let own = |id: &trunkline::rdma_cm::CmId, host: &Host| {
        id.create_qp(&host.pd, &host.cq, &host.cq, &host.options)
            .unwrap()
    };
    own(&id, &client);
    let none = Params::default();
    id.connect(&none).unwrap();
    let (request, kind) = expect(&there);
    assert!(
        matches!(kind, CmEventKind::ConnectRequest { .. }),
        "{kind:?}"
    );
    let qp = own(&request, &server);
    request.accept(&none).unwrap();
    let (_, kind) = expect(&here);
    let CmEventKind::Established { ud: Some(peer), .. } = kind else {
        panic!("{kind:?}")
    };
    assert_eq!((peer.qpn, peer.qkey), (qp.qpn(), Params::UDP_QKEY));
}

#[test]
fn an_id_says_when_it_is_asked_at_the_wrong_time() {
    let host = Host::new();
    let channel = host.node.create_event_channel().unwrap();
    let id = channel.create_id(PortSpace::Tcp, Kind::Rc).unwrap();
    let wrong = |result: Result<(), Error>| matches!(result, Err(Error::Cm(CmError::State { .. })));
    let none = Params::default();
    assert!(wrong(id.resolve_route()));
    assert!(wrong(id.connect(&none)));
    assert!(wrong(id.accept(&none)));
    assert!(wrong(id.reject(b"")));
    assert!(wrong(id.disconnect()));
    assert!(wrong(id.notify()));
    let other = Host::new();
    let strange = other.node.create_event_channel().unwrap();
    assert!(id.migrate(&strange).is_err());
    assert!(channel.poll_event().is_none());
}

/// As the kernel has it: an ID is resolved once, but for one that had no way to its peer.
#[test]
fn an_id_is_resolved_once() {
    let host = Host::new();
    let to = (host.address, PORT).into();
    let channel = host.node.create_event_channel().unwrap();
    let id = channel.create_id(PortSpace::Tcp, Kind::Rc).unwrap();
    id.resolve_addr(to, LIMIT).unwrap();
    let again = || {
        let elsewhere = [
            "192.0.2.1:1".parse().unwrap(),
            "[fd00::1]:1".parse().unwrap(),
        ];
        for to in [to, elsewhere[0], elsewhere[1]] {
            let refused = id.resolve_addr(to, LIMIT);
            assert!(
                matches!(refused, Err(Error::Cm(CmError::State { .. }))),
                "{to}"
            );
        }
    };
    again();
    assert!(matches!(expect(&channel).1, CmEventKind::AddressResolved));
    again();
    assert_eq!(id.peer_addr(), Some(to));
    id.resolve_route().unwrap();
    assert!(matches!(expect(&channel).1, CmEventKind::RouteResolved));
    assert!(channel.poll_event().is_none());
}

#[test]
fn what_an_id_lacks_is_said() {
    let host = Host::new();
    let (_channel, id) = host.resolved((host.address, PORT).into());
    let said = |outcome: Result<(), Error>| outcome.unwrap_err().to_string();
    assert!(
        said(id.connect(&Params::default())).ends_with("has no QP, and the parameters name none")
    );
    let make = || id.create_qp(&host.pd, &host.cq, &host.cq, &host.options);
    make().unwrap();
    assert!(said(make().map(drop)).ends_with("has a QP already"));
    assert!(
        said(id.bind((host.address, 0).into()).map(drop)).contains("is resolved, or about to be")
    );
}

#[test]
fn an_id_takes_no_protection_domain_and_no_cq_of_another_node() {
    let (host, other) = (Host::new(), Host::new());
    let channel = host.node.create_event_channel().unwrap();
    let id = channel.create_id(PortSpace::Tcp, Kind::Rc).unwrap();
    for (from_other, pd, cq) in [
        ("PD", &other.pd, &other.cq),
        ("PD", &other.pd, &host.cq),
        ("CQ", &host.pd, &other.cq),
    ] {
        let made = id.create_qp(pd, cq, cq, &host.options);
        let Err(Error::Verbs(VerbsError::InvalidArgument { what })) = made else {
            panic!("{:?}", made.map(drop))
        };
        assert_eq!(what, from_other);
        assert!(id.qp().is_none());
    }
    let qps = [&host, &other].map(|host| host.node.live_objects().qps);
    assert_eq!(qps, [0, 0]);
    assert!(
        id.create_qp(&host.pd, &host.cq, &host.cq, &host.options)
            .is_ok()
    );
}

/// Nothing of the node's insides, for which a worker's lock would have to be taken.
#[test]
fn a_handle_says_what_it_is_in_a_line() {
    let (server, client) = (Host::new(), Host::new());
    let listener = server.listen(0);
    let (channel, id) = client.resolved(listener.local_addr().unwrap());
    let qp = id
        .create_qp(&client.pd, &client.cq, &client.cq, &client.options)
        .unwrap();
    id.connect(&Params::default()).unwrap();
    let request = listener.get_request(&server.node, LIMIT).unwrap();
    let here = server.node.create_event_channel().unwrap();
    let other = here.create_id(PortSpace::Tcp, Kind::Rc).unwrap();
    other.bind((server.address, 0).into()).unwrap();
    let to = other.listen(0).unwrap();
    let (_asking, asker) = client.resolved(to);
    let qpn = Qpn::from_wire(77);
    asker.connect(&Params::new(qpn)).unwrap();
    let event = here.get_event(LIMIT).unwrap();
    let peer = server.address;
    let connection = client
        .node
        .open_connection(peer, &ConnectionOptions::default());
    let handles: &[&dyn std::fmt::Debug] = &[
        &client.node,
        &client.pd,
        &client.cq,
        &client.mr,
        &qp,
        &client.pd.create_srq(4, 1).unwrap(),
        &client.pd.create_ah(&ah_to(peer.into())).unwrap(),
        &connection.unwrap(),
        &channel,
        &id,
        &event,
        &listener,
        &request,
    ];
    let said: Vec<_> = handles.iter().map(|handle| format!("{handle:?}")).collect();
    for line in &said {
        assert!(line.len() < 400, "{} bytes: {line}", line.len());
    }
    let qpn = qp.qpn();
    assert_eq!(
        said[4],
        format!("Qp {{ qpn: {qpn}, kind: Rc, state: Init }}")
    );
}

#[test]
fn requests_that_nobody_takes_end_with_their_listener() {
    let (server, client) = (Host::new(), Host::new());
    let listener = server.listen(0);
    let to = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| client.connect(to, b"").unwrap_err());
        // It is there now, unfetched.
        std::thread::sleep(Duration::from_millis(200));
        drop(listener);
        let error = asked.join().unwrap();
        assert!(matches!(error, ConnectError::Rejected { .. }), "{error}");
    });
}

#[test]
fn a_hundred_connections_come_and_go() {
    let (server, client) = (Host::new(), Host::new());
    let listener = server.listen(0);
    for _ in 0..100 {
        let (near, far) = connected(&server, &listener, &client);
        near.disconnect(LIMIT).unwrap();
        far.wait_for_end(LIMIT).unwrap();
    }
}

#[test]
fn an_active_end_hears_once_that_its_connection_stands() {
    let (server, client) = (Host::new(), Host::new());
    let listener = server.listen(0);
    let channel = client.node.create_event_channel().unwrap();
    let id = channel.create_id(PortSpace::Tcp, Kind::Rc).unwrap();
    id.resolve_addr((server.address, PORT).into(), LIMIT)
        .unwrap();
    assert!(matches!(expect(&channel).1, CmEventKind::AddressResolved));
    id.create_qp(&client.pd, &client.cq, &client.cq, &client.options)
        .unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let request = listener.get_request(&server.node, LIMIT).unwrap();
            accept(&server, request, b"answer")
                .disconnect(LIMIT)
                .unwrap();
        });
        id.connect(&Params::default()).unwrap();
        let (_, kind) = expect(&channel);
        assert!(matches!(kind, CmEventKind::Established { .. }), "{kind:?}");
        let (_, kind) = expect(&channel);
        assert!(matches!(kind, CmEventKind::Disconnected { .. }), "{kind:?}");
    });
}

#[test]
fn each_step_of_a_connection_is_timed_at_both_ends() {
    let (server, client) = (Host::new(), Host::new());
    let listener = server.listen(0);
    let ends = connected(&server, &listener, &client);
    let counts = |host: &Host, steps: &[&str]| -> Vec<u64> {
        let stats = host.node.cm_stats();
        steps.iter().map(|step| stats.steps[*step].count).collect()
    };
    let asking = [
        "rdma_address",
        "rdma_route",
        "rdma_connect",
        "ib_answer",
        "ib_ready",
        "ib_open",
    ];
    assert_eq!(counts(&client, &asking), [1; 6]);
    let asked = ["rdma_accept", "ib_decide", "ib_confirm", "ib_open"];
    assert_eq!(counts(&server, &asked), [1; 4]);
    let stats = client.node.cm_stats();
    let [answer, open] = ["ib_answer", "ib_open"].map(|step| stats.steps[step].sum_ns);
    assert!(0 < answer && answer <= open);
    assert_eq!(stats.connections["established"], 1);
    assert_eq!(stats.ids["established"], 1);
    drop(ends);
}

#[test]
fn an_address_that_does_not_resolve_says_why_in_time() {
    let host = Host::new();
    let channel = host.node.create_event_channel().unwrap();
    // From loopback nothing leads out, and broadcasts have no end.
    for address in [
        "192.0.2.1:1",
        "255.255.255.255:1",
        "127.255.255.255:1",
        "[fd00::1]:1",
        "0.0.0.0:1",
    ] {
        let id = channel.create_id(PortSpace::Tcp, Kind::Rc).unwrap();
        let started = std::time::Instant::now();
        id.resolve_addr(address.parse().unwrap(), Duration::from_secs(2))
            .unwrap();
        let (_, kind) = expect(&channel);
        let CmEventKind::AddressError(why) = kind else {
            panic!("{address}: {kind:?}")
        };
        assert!(matches!(why, ResolveError::Route(_)), "{address}: {why}");
        assert!(started.elapsed() < Duration::from_secs(3));
        assert!(id.resolve_route().is_err(), "it is not resolved");
        // Another address may do.
        id.resolve_addr((host.address, PORT).into(), LIMIT).unwrap();
        assert!(matches!(expect(&channel).1, CmEventKind::AddressResolved));
        id.resolve_route().unwrap();
        assert!(matches!(expect(&channel).1, CmEventKind::RouteResolved));
    }
    assert_eq!(host.node.cm_counters()[0].unresolved, 5);
}
