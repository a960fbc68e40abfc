//! How connections of RDMA-CM end, and what is left of them: nothing.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::PATIENCE;
use common::faulty::{self, Fault};
use common::host::{Host, PORT};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use trunkline::rdma_cm::sync::{ConnectError, Endpoint, Listener};
use trunkline::rdma_cm::{
    CloseReason, CmEventKind, CmId, EventChannel, Kind, Params, PortSpace, Setting,
};
use trunkline::{Completion, Error, Node, Qp, QpModify, QpState, RecvWr, SendWr, Status};

const LIMIT: Duration = PATIENCE;

/// A node that finds out that its peer is gone by what the peer says, or never.
fn trusting() -> Host {
    let never = Duration::from_secs(3600);
    Host::with(Node::builder().peer_timeout(never).keep_alive(never))
}

fn params() -> Params<'static> {
    Params {
        responder_resources: 4,
        initiator_depth: 4,
        ..Params::default()
    }
}

fn connected(server: &Host, listener: &Listener, client: &Host) -> (Endpoint, Endpoint) {
    let to = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| client.connect(to, b"").unwrap());
        let request = listener.get_request(&server.node, LIMIT).unwrap();
        let accepted = request.accept(&server.resources(), &params(), LIMIT);
        (asked.join().unwrap(), accepted.unwrap())
    })
}

fn completion(host: &Host) -> Completion {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(done) = host.cq.poll_one().unwrap() {
            return done;
        }
        assert!(Instant::now() < end, "no completion");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn write(host: &Host, qp: &Qp, to: &Host) -> Result<(), Error> {
    host.mr.write(0, b"late").unwrap();
    qp.post_send(&[SendWr::write(to.mr.remote(0))
        .wr_id(9)
        .sges(&[host.mr.sge(0, 4)])
        .signaled()])
}

/// The end of a connection, as its ID hears it.
fn end_of(channel: &EventChannel) -> CloseReason {
    loop {
        let event = channel.get_event(LIMIT).expect("the ID hears of the end");
        if let CmEventKind::Disconnected { reason } = event.kind {
            return reason;
        }
    }
}

/// An ID with a QP that has a receive posted, on a channel of its own, that knows the way to `to`.
fn asking(host: &Host, to: SocketAddr) -> (EventChannel, CmId, Qp) {
    let channel = host.node.create_event_channel().unwrap();
    let id = channel.create_id(PortSpace::Tcp, Kind::Rc).unwrap();
    id.resolve_addr(to, LIMIT).unwrap();
    assert!(channel.get_event(LIMIT).is_some());
    let qp = id.create_qp(&host.pd, &host.cq, &host.cq, &host.options);
    let qp = qp.unwrap();
    let sges = [host.mr.sge(0, 64)];
    qp.post_recv(&[RecvWr::new().wr_id(5).sges(&sges)]).unwrap();
    (channel, id, qp)
}

#[test]
fn no_packet_reaches_memory_through_an_id_that_was_dropped() {
    let (server, client) = (Host::new(), Host::new());
    let listener = server.listen(0);
    let (near, far) = connected(&server, &listener, &client);
    server.mr.write(0, b"mine").unwrap();
    drop(far);
    // The program has not fetched the event yet: its QP is ready to send as ever.
    if write(&client, near.qp(), &server).is_ok() {
        assert_ne!(completion(&client).status, Status::Success);
    }
    let mut bytes = [0; 4];
    server.mr.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"mine");
}

#[test]
fn a_qp_that_outlives_its_id_is_flushed() {
    let (server, client) = (Host::new(), Host::new());
    let listener = server.listen(0);
    let (near, far) = connected(&server, &listener, &client);
    server.receive(far.qp());
    let qp = far.qp().clone();
    drop(far);
    assert_eq!(qp.state(), QpState::Error);
    assert_eq!(completion(&server).status, Status::Flushed);
    near.wait_for_end(LIMIT).unwrap();
}

#[test]
fn a_refused_attempt_leaves_its_qp_in_error_and_flushed() {
    let (server, client) = (Host::new(), Host::new());
    let (channel, id, qp) = asking(&client, (server.address, PORT).into());
    id.connect(&params()).unwrap();
    let event = channel.get_event(LIMIT).unwrap();
    assert!(
        matches!(event.kind, CmEventKind::Rejected { .. }),
        "{event:?}"
    );
    assert_eq!(qp.state(), QpState::Error);
    let flushed = completion(&client);
    assert_eq!((flushed.wr_id, flushed.status), (5, Status::Flushed));
}

#[test]
fn an_accept_that_fails_says_nothing_and_may_be_followed_by_a_reject() {
    let (server, client) = (Host::new(), Host::new());
    let listening = server.node.create_event_channel().unwrap();
    let listener = listening.create_id(PortSpace::Tcp, Kind::Rc).unwrap();
    listener.bind((server.address, PORT).into()).unwrap();
    listener.listen(0).unwrap();
    let (channel, id, _qp) = asking(&client, (server.address, PORT).into());
    id.connect(&params()).unwrap();
    let request = listening.get_event(LIMIT).unwrap().id;
    let qp = request.create_qp(&server.pd, &server.cq, &server.cq, &server.options);
    // It cannot become ready from here.
    qp.unwrap().modify(&QpModify::Error).unwrap();
    let accepted = request.accept(&params());
    assert!(matches!(accepted, Err(Error::Verbs(_))), "{accepted:?}");
    request.reject(b"sorry").unwrap();
    let event = channel.get_event(LIMIT).unwrap();
    assert!(
        matches!(&event.kind, CmEventKind::Rejected { data, .. } if data[..5] == *b"sorry"),
        "{event:?}"
    );
}

#[test]
fn both_ends_may_disconnect_and_whoever_comes_second_is_right_too() {
    let (server, client) = (Host::new(), Host::new());
    let listener = server.listen(0);
    for _ in 0..40 {
        let (near, far) = connected(&server, &listener, &client);
        std::thread::scope(|scope| {
            scope.spawn(|| near.disconnect(LIMIT).unwrap());
            scope.spawn(|| far.disconnect(LIMIT).unwrap());
        });
        // And again, when all is over.
        near.disconnect(LIMIT).unwrap();
        far.wait_for_end(Duration::ZERO).unwrap();
    }
}

#[test]
fn any_duration_is_a_limit() {
    let (server, client) = (Host::new(), Host::new());
    let listener = server.listen(0);
    let to = listener.local_addr().unwrap();
    let (near, far) = std::thread::scope(|scope| {
        let (resources, params) = (client.resources(), params());
        let node = &client.node;
        let max = Duration::MAX;
        let asked = scope.spawn(move || Endpoint::connect(node, &resources, to, &params, max));
        let request = listener.get_request(&server.node, max).unwrap();
        let accepted = request.accept(&server.resources(), &params, max);
        (asked.join().unwrap().unwrap(), accepted.unwrap())
    });
    near.disconnect(Duration::MAX).unwrap();
    far.wait_for_end(Duration::MAX).unwrap();
    let nothing = listener.get_request(&server.node, Duration::ZERO);
    assert!(matches!(nothing, Err(ConnectError::Timeout)));
    let inline = common::inline()
        .peer_timeout(Duration::MAX)
        .build()
        .unwrap();
    inline.poll().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| inline.wait(Duration::MAX).unwrap());
        // It wakes for any packet.
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = SocketAddr::new(inline.gid().address(), 4791);
        std::thread::sleep(Duration::from_millis(20));
        socket.send_to(&[0; 64], to).unwrap();
    });
}

#[test]
fn a_goodbye_leaves_before_its_node_does() {
    for how in 0..2 {
        let server = trusting();
        let listener = server.listen(0);
        for _ in 0..5 {
            let client = Host::new();
            let (near, far) = connected(&server, &listener, &client);
            if how == 0 {
                near.id().disconnect().unwrap();
            }
            drop(near);
            drop(client);
            far.wait_for_end(LIMIT).unwrap();
            assert_eq!(far.qp().state(), QpState::Error);
        }
    }
}

#[test]
fn a_request_is_answered_though_the_node_goes_at_once() {
    let client = trusting();
    let (channel, id, _qp) = {
        let server = Host::new();
        let listener = server.listen(0);
        let asking = asking(&client, listener.local_addr().unwrap());
        asking.1.connect(&params()).unwrap();
        let request = listener.get_request(&server.node, LIMIT).unwrap();
        request.reject(b"we close").unwrap();
        asking
    };
    let event = channel.get_event(LIMIT).unwrap();
    assert!(
        matches!(event.kind, CmEventKind::Rejected { .. }),
        "{event:?}"
    );
    drop(id);
}

#[test]
fn who_was_accepted_is_answered_though_the_node_is_shut_down_at_once() {
    let client = trusting();
    for _ in 0..20 {
        let (channel, id, _qp) = {
            let server = Host::new();
            let events = server.node.create_event_channel().unwrap();
            let listener = events.create_id(PortSpace::Tcp, Kind::Rc).unwrap();
            let to = listener.bind((server.address, PORT).into()).unwrap();
            listener.listen(0).unwrap();
            let asking = asking(&client, to);
            asking.1.connect(&params()).unwrap();
            let request = events.get_event(LIMIT).unwrap().id;
            let Host {
                pd, cq, options, ..
            } = &server;
            drop(request.create_qp(pd, cq, cq, options).unwrap());
            request.accept(&params()).unwrap();
            server.node.shutdown(LIMIT).unwrap();
            asking
        };
        // Whether it confirms before it hears that the node has ended is chance.
        let heard = channel.get_event(LIMIT / 4).unwrap().kind;
        assert!(
            matches!(
                heard,
                CmEventKind::Established { .. } | CmEventKind::Rejected { .. }
            ),
            "{heard:?}"
        );
        drop(id);
    }
}

#[test]
fn an_id_hears_of_a_node_that_ends_and_of_one_that_vanishes() {
    // It ends.
    let server = trusting();
    let listener = server.listen(0);
    let listening = server.node.create_event_channel().unwrap();
    let client = Host::new();
    let (near, far) = connected(&server, &listener, &client);
    far.id().migrate(&listening).unwrap();
    client.node.shutdown(LIMIT).unwrap();
    assert_eq!(end_of(&listening), CloseReason::Peer);
    // Its own ID has heard it too.
    near.wait_for_end(LIMIT).unwrap();
    drop(far);
    // It vanishes: nothing that it says comes through any more.
    let quick = Node::builder()
        .peer_timeout(Duration::from_millis(400))
        .keep_alive(Duration::from_millis(50));
    let server = Host::with(quick);
    let listener = server.listen(0);
    let own = common::address();
    let (node, fault) = faulty::node(own, Node::builder());
    let client = Host::of(node, own);
    let (channel, id, _qp) = asking(&client, listener.local_addr().unwrap());
    // QPs that ask for long timeouts would outlast their connection.
    id.set(Setting::AckTimeout(8)).unwrap();
    id.connect(&params()).unwrap();
    let request = listener.get_request(&server.node, LIMIT).unwrap();
    let far = std::thread::scope(|scope| {
        // The QP of this end becomes ready when the event is fetched.
        scope.spawn(|| assert!(channel.get_event(LIMIT).is_some()));
        let accepted = request.accept(&server.resources(), &params(), LIMIT);
        accepted.unwrap()
    });
    fault.set(Fault::Silent);
    far.id().migrate(&listening).unwrap_err();
    let listening = server.node.create_event_channel().unwrap();
    far.id().migrate(&listening).unwrap();
    assert_eq!(end_of(&listening), CloseReason::Failed);
    assert_eq!(far.qp().state(), QpState::Error);
}

/// An idle ID whose peer ends, as `end` does it, while the path carries nothing.
fn end_in_a_cut<Kept>(end: impl FnOnce(Endpoint) -> Kept) -> Kept {
    let quick = || {
        Node::builder()
            .peer_timeout(Duration::from_millis(400))
            .keep_alive(Duration::from_millis(50))
    };
    let own = common::address();
    let (node, fault) = faulty::node(own, quick());
    let (server, client) = (Host::of(node, own), Host::with(quick()));
    let listener = server.listen(0);
    let (near, far) = connected(&server, &listener, &client);
    fault.set(Fault::Silent);
    let kept = end(far);
    // It is said for six seconds that the connection ends.
    std::thread::sleep(Duration::from_secs(8));
    assert_eq!(near.qp().state(), QpState::Rts);
    fault.set(Fault::None);
    near.wait_for_end(LIMIT).unwrap();
    assert_eq!(near.qp().state(), QpState::Error);
    kept
}

#[test]
fn an_idle_id_hears_of_an_end_of_which_a_cut_path_lost_every_word() {
    end_in_a_cut(drop);
}

#[test]
fn an_idle_id_hears_of_an_end_in_a_cut_though_its_peers_qp_is_reset_and_kept() {
    let kept = end_in_a_cut(|far| {
        let kept = far.qp().clone();
        drop(far);
        kept.modify(&QpModify::Reset).unwrap();
        kept
    });
    assert_eq!(kept.state(), QpState::Reset);
}

#[test]
fn no_read_is_served_or_sent_unless_both_ends_have_agreed_on_some() {
    // What each end serves and what it has under way: `Params::new` says none.
    for (depth, resources, status) in [
        (0, 0, Status::LocalQpOperation),
        (0, 4, Status::LocalQpOperation),
        (4, 0, Status::LocalQpOperation),
        (4, 4, Status::Success),
    ] {
        let (server, client) = (Host::new(), Host::new());
        let listener = server.listen(0);
        let to = listener.local_addr().unwrap();
        let asks = Params {
            initiator_depth: depth,
            ..Params::default()
        };
        let grants = Params {
            responder_resources: resources,
            ..Params::default()
        };
        let (near, _far) = std::thread::scope(|scope| {
            let (node, own) = (&client.node, client.resources());
            let asked = scope.spawn(move || Endpoint::connect(node, &own, to, &asks, LIMIT));
            let request = listener.get_request(&server.node, LIMIT).unwrap();
            let accepted = request.accept(&server.resources(), &grants, LIMIT);
            (asked.join().unwrap().unwrap(), accepted.unwrap())
        });
        let into = [client.mr.sge(0, 4)];
        let read = SendWr::read(server.mr.remote(0))
            .wr_id(9)
            .sges(&into)
            .signaled();
        near.qp().post_send(&[read]).unwrap();
        assert_eq!(completion(&client).status, status, "{depth} {resources}");
    }
}

#[test]
fn addresses_that_nobody_can_connect_to_are_refused() {
    let host = Host::new();
    let channel = host.node.create_event_channel().unwrap();
    for (address, why) in [
        ("8.8.8.8:0", "not the address of the node"),
        ("224.0.0.1:0", "multicast"),
        ("255.255.255.255:0", "broadcast"),
        ("[::1]:0", "not the address of the node"),
        ("[ff02::1]:0", "multicast"),
    ] {
        let id = channel.create_id(PortSpace::Tcp, Kind::Rc).unwrap();
        let refused = id.bind(address.parse().unwrap()).unwrap_err().to_string();
        assert!(refused.contains(why), "{address}: {refused}");
    }
    for address in ["0.0.0.0:0", "[::]:0"] {
        let id = channel.create_id(PortSpace::Tcp, Kind::Rc).unwrap();
        id.bind(address.parse().unwrap()).unwrap();
        id.listen(0).unwrap();
    }
    for (address, why) in [
        ("0.0.0.0", "one address"),
        ("::", "one address"),
        ("224.0.0.1", "multicast"),
        ("255.255.255.255", "broadcast"),
    ] {
        let built = Node::builder().address(address.parse().unwrap()).build();
        let refused = built.unwrap_err().to_string();
        assert!(refused.contains(why), "{address}: {refused}");
    }
    let v6 = Node::builder()
        .address("::1".parse().unwrap())
        .build()
        .unwrap();
    let channel = v6.create_event_channel().unwrap();
    let id = channel.create_id(PortSpace::Tcp, Kind::Rc).unwrap();
    let refused = id.bind("0.0.0.0:0".parse().unwrap()).unwrap_err();
    assert!(refused.to_string().contains("IPv6"), "{refused}");
}
