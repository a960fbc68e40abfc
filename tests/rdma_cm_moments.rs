//! RDMA-CM at odd moments: IDs that move, are dropped or end while something else happens.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::host::{Host, PORT};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use trunkline::rdma_cm::sync::Resources;
use trunkline::rdma_cm::{CmEvent, CmEventKind, CmId, EventChannel, Kind, Params, PortSpace};
use trunkline::{QpOptions, QpState, Status};

const LIMIT: Duration = Duration::from_secs(10);

fn asking(host: &Host, to: std::net::SocketAddr) -> (EventChannel, CmId) {
    let (channel, id) = host.resolved(to);
    id.create_qp(&host.pd, &host.cq, &host.cq, &host.options)
        .unwrap();
    (channel, id)
}

fn readable(channel: &EventChannel) -> bool {
    waits(channel, LIMIT)
}

/// Whether something waits at a channel within `limit`.
fn waits(channel: &EventChannel, limit: Duration) -> bool {
    let left = Timespec {
        tv_sec: limit.as_secs() as i64,
        tv_nsec: 0,
    };
    let fd = channel.fd();
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&left)).unwrap() == 1
}

/// A request waits, not fetched, when its listener moves to another channel: the asker's channel
/// and ID, the old and the new channel, and the listener.
fn moved(server: &Host, client: &Host) -> (EventChannel, CmId, [EventChannel; 2], CmId) {
    let [old, new] = [(); 2].map(|()| server.node.create_event_channel().unwrap());
    let listener = old.create_id(PortSpace::Tcp, Kind::Rc).unwrap();
    let to = listener.bind((server.address, PORT).into()).unwrap();
    listener.listen(0).unwrap();
    let (channel, id) = asking(client, to);
    id.connect(&Params::default()).unwrap();
    assert!(readable(&old), "the request came");
    listener.migrate(&new).unwrap();
    (channel, id, [old, new], listener)
}

/// It comes out there, and so does all that happens to its ID.
#[test]
fn a_request_that_waits_while_its_listener_moves_has_its_events_where_it_came_out() {
    let [server, client] = [(); 2].map(|()| Host::new());
    let (channel, _id, [old, new], _listener) = moved(&server, &client);
    assert!(old.poll_event().is_none());
    let request = new.get_event(LIMIT).expect("it moved").id;
    request
        .create_qp(&server.pd, &server.cq, &server.cq, &server.options)
        .unwrap();
    request.accept(&Params::default()).unwrap();
    let event = channel.get_event(LIMIT).unwrap();
    assert!(
        matches!(event.kind, CmEventKind::Established { .. }),
        "{event:?}"
    );
    let here = new.get_event(Duration::from_secs(3));
    let there = old.poll_event();
    let told = |event: Option<CmEvent>| {
        event.is_some_and(|event| matches!(event.kind, CmEventKind::Established { .. }))
    };
    assert_eq!(
        (told(here), told(there)),
        (true, false),
        "(new, old) channel"
    );
}

/// The same, and the peer gives up before the program looks: it hears that.
#[test]
fn a_request_that_is_over_before_it_is_fetched_from_where_its_listener_moved_says_so() {
    let [server, client] = [(); 2].map(|()| Host::new());
    let (_channel, id, [old, new], _listener) = moved(&server, &client);
    drop(old);
    drop(id);
    std::thread::sleep(Duration::from_millis(300));
    let request = new.get_event(LIMIT).expect("it moved");
    let over = new.get_event(Duration::from_secs(3));
    assert!(over.is_some(), "nothing is said of its end");
    drop(request);
}

/// One thread moves a listener between channels while another one listens with it.
#[test]
fn an_id_may_move_while_another_thread_listens_with_it() {
    let host = Host::new();
    let (tell, hear) = mpsc::channel();
    std::thread::spawn(move || {
        // All of it is this thread's: what hangs does not hang the test.
        let host = host;
        for _ in 0..2000 {
            let [a, b] = [(); 2].map(|()| host.node.create_event_channel().unwrap());
            let listener = a.create_id(PortSpace::Tcp, Kind::Rc).unwrap();
            listener.bind((host.address, 0).into()).unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for _ in 0..4 {
                        let _ = listener.listen(0);
                    }
                });
                scope.spawn(|| {
                    for _ in 0..4 {
                        listener.migrate(&b).unwrap();
                        listener.migrate(&a).unwrap();
                    }
                });
            });
        }
        tell.send(()).unwrap();
    });
    hear.recv_timeout(Duration::from_secs(60))
        .expect("both threads end");
}

/// A call that is refused changes nothing.
#[test]
fn a_refused_resolve_leaves_what_is_known_of_the_peer() {
    let (server, client) = (Host::new(), Host::new());
    let listener = server.listen(0);
    let to = listener.local_addr().unwrap();
    let params = Params::default();
    let (near, _far) = std::thread::scope(|scope| {
        let asked = scope.spawn(|| client.connect(to, b"").unwrap());
        let request = listener.get_request(&server.node, LIMIT).unwrap();
        let accepted = request.accept(&server.resources(), &params, LIMIT);
        (asked.join().unwrap(), accepted.unwrap())
    });
    assert_eq!(near.id().peer_addr(), Some(to));
    near.id().resolve_addr(to, LIMIT).unwrap_err();
    assert_eq!(near.id().peer_addr(), Some(to));
}

#[test]
fn who_connects_from_a_node_that_is_shut_down_hears_so() {
    let client = Host::new();
    let channel = client.node.create_event_channel().unwrap();
    let id = channel.create_id(PortSpace::Tcp, Kind::Rc).unwrap();
    // Nobody has this address.
    id.resolve_addr("127.250.250.250:7471".parse().unwrap(), LIMIT)
        .unwrap();
    assert!(channel.get_event(LIMIT).is_some());
    let qp = id
        .create_qp(&client.pd, &client.cq, &client.cq, &client.options)
        .unwrap();
    client.receive(&qp);
    id.connect(&Params::default()).unwrap();
    client.node.shutdown(LIMIT).unwrap();
    let kind = channel
        .get_event(Duration::from_secs(3))
        .map(|event| event.kind);
    assert!(kind.is_some(), "nothing is heard");
    assert_eq!(qp.state(), QpState::Error);
}

#[test]
fn a_request_for_which_there_is_no_room_is_answered_at_once() {
    let (server, client) = (Host::new(), Host::new());
    let listener = server.listen(0);
    let to = listener.local_addr().unwrap();
    let (channel, id) = asking(&client, to);
    id.connect(&Params::default()).unwrap();
    let request = listener.get_request(&server.node, LIMIT).unwrap();
    let options = QpOptions {
        max_send_wr: u32::MAX,
        ..server.options.clone()
    };
    let resources = Resources {
        options: &options,
        ..server.resources()
    };
    assert!(
        request
            .accept(&resources, &Params::default(), LIMIT)
            .is_err()
    );
    let begun = Instant::now();
    let event = channel.get_event(LIMIT).expect("an answer").kind;
    assert!(matches!(event, CmEventKind::Rejected { .. }), "{event:?}");
    assert!(begun.elapsed() < Duration::from_secs(2));
}

/// A program that sleeps on the descriptor alone looks, finds what is left, and asks.
#[test]
fn a_channel_is_readable_once_its_node_does_nothing_any_more() {
    let [server, client] = [(); 2].map(|()| Host::new());
    let listener = server.listen(0);
    let (channel, id) = asking(&client, listener.local_addr().unwrap());
    assert!(!waits(&channel, Duration::ZERO));
    id.connect(&Params::default()).unwrap();
    drop(listener);
    assert!(readable(&channel), "it was rejected");
    client.node.shutdown(LIMIT).unwrap();
    let late = client.node.create_event_channel();
    while let Some(event) = channel.poll_event() {
        assert!(waits(&channel, Duration::ZERO), "{event:?}");
    }
    assert!(waits(&channel, Duration::ZERO) && channel.check().is_err());
    assert!(late.is_err() || waits(&late.unwrap(), Duration::ZERO));
}

#[test]
fn receives_of_a_request_that_was_prepared_and_dropped_are_flushed() {
    let (server, client) = (Host::new(), Host::new());
    let listener = server.listen(0);
    let to = listener.local_addr().unwrap();
    for keep in [true, false] {
        let (channel, id) = asking(&client, to);
        id.connect(&Params::default()).unwrap();
        let request = listener.get_request(&server.node, LIMIT).unwrap();
        let accepting = request.prepare(&server.resources()).unwrap();
        server.receive(accepting.qp());
        let kept = keep.then(|| accepting.qp().clone());
        if keep {
            drop(id);
            std::thread::sleep(Duration::from_millis(100));
        }
        drop(accepting);
        if let Some(qp) = kept {
            assert_eq!(qp.state(), QpState::Error);
            assert_eq!(server.next().status, Status::Flushed);
        } else {
            let event = channel.get_event(LIMIT).expect("an answer").kind;
            assert!(matches!(event, CmEventKind::Rejected { .. }), "{event:?}");
        }
    }
    let end = Instant::now() + LIMIT;
    while server.node.live_objects().qps > 0 {
        assert!(Instant::now() < end, "a QP is left");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Who accepts after the peer has given up hears so, and its QP ends.
#[test]
fn who_accepts_when_the_peer_has_given_up_hears_so() {
    let (server, client) = (Host::new(), Host::new());
    let listener = server.listen(0);
    let to = listener.local_addr().unwrap();
    for _ in 0..20 {
        let (_channel, id) = asking(&client, to);
        id.connect(&Params::default()).unwrap();
        let request = listener.get_request(&server.node, LIMIT).unwrap();
        let accepting = request.prepare(&server.resources()).unwrap();
        server.receive(accepting.qp());
        let qp = accepting.qp().clone();
        let dropping = std::thread::spawn(move || drop(id));
        let begun = Instant::now();
        let accepted = accepting.accept(&Params::default(), LIMIT);
        dropping.join().unwrap();
        if let Ok(endpoint) = accepted {
            endpoint.wait_for_end(LIMIT).unwrap();
        }
        assert!(begun.elapsed() < LIMIT / 2, "{:?}", begun.elapsed());
        let end = Instant::now() + LIMIT;
        while qp.state() != QpState::Error {
            assert!(Instant::now() < end, "the QP is left in {:?}", qp.state());
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(server.next().status, Status::Flushed);
    }
}
