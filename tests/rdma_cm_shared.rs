//! Calls of RDMA-CM whose IDs share an event channel, and calls that share a deadline.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::PATIENCE;
use common::host::{Host, PORT};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use trunkline::rdma_cm::sync::{ConnectError, Deadline, Endpoint, Events, Listener};
use trunkline::rdma_cm::{CmEventKind, EventChannel, Params};

fn params() -> Params<'static> {
    Params {
        responder_resources: 4,
        initiator_depth: 4,
        ..Params::default()
    }
}

/// A connection between two hosts whose ends come out where it is said.
fn connected<'a>(
    (server, listener, far): (&Host, &Listener, Events<'a>),
    (client, near): (&Host, Events<'a>),
) -> (Endpoint, Endpoint) {
    let to = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| {
            Endpoint::connect(near, &client.resources(), to, &params(), PATIENCE).unwrap()
        });
        let request = listener.get_request(far, PATIENCE).unwrap();
        let far = request.accept(&server.resources(), &params(), PATIENCE);
        (asked.join().unwrap(), far.unwrap())
    })
}

/// The ID whose end comes out next.
fn ended(channel: &EventChannel) -> u64 {
    loop {
        let event = channel.get_event(PATIENCE).expect("an end");
        if let CmEventKind::Disconnected { .. } = event.kind {
            return event.id.number();
        }
    }
}

#[test]
fn the_ends_of_all_that_share_a_channel_come_out_of_it_once() {
    let (server, client) = (Host::new(), Host::new());
    let listener = server.listen(0);
    let [here, there] = [&client, &server].map(|host| host.node.create_event_channel().unwrap());
    let pairs: Vec<_> = (0..4)
        .map(|_| {
            connected(
                (&server, &listener, (&there).into()),
                (&client, (&here).into()),
            )
        })
        .collect();
    for (near, far) in &pairs {
        // This end asks, and hears of it in its call alone.
        near.disconnect(PATIENCE).unwrap();
        assert_eq!(ended(&there), far.id().number());
        far.wait_for_end(Duration::ZERO).unwrap();
    }
    for channel in [&here, &there] {
        while let Some(event) = channel.poll_event() {
            let kind = event.kind;
            assert!(matches!(kind, CmEventKind::TimewaitExit), "{kind:?}");
        }
    }
}

#[test]
fn what_a_call_waits_for_is_told_to_it_alone_though_others_fetch_from_its_channel() {
    const EACH: usize = 8;
    let (server, client) = (Host::new(), Host::new());
    let [here, there] = [&client, &server].map(|host| host.node.create_event_channel().unwrap());
    let bind = |port| Listener::bind(&there, (server.address, port).into(), 0).unwrap();
    let listeners = [bind(PORT), bind(PORT + 1)];
    let accept = |listener: &Listener| {
        let port = listener.local_addr().unwrap().port();
        let accept = |i| {
            let request = listener.get_request(&there, PATIENCE).unwrap();
            assert_eq!(request.data[..2], [i, port as u8]);
            let accepted = request.accept(&server.resources(), &params(), PATIENCE);
            accepted.unwrap()
        };
        (0..EACH as u8).map(accept).collect::<Vec<_>>()
    };
    let connect = |listener: &Listener| {
        let to = listener.local_addr().unwrap();
        let connect = |i| {
            let params = Params {
                private_data: &[i, to.port() as u8],
                ..params()
            };
            Endpoint::connect(&here, &client.resources(), to, &params, PATIENCE).unwrap()
        };
        (0..EACH as u8).map(connect).collect::<Vec<_>>()
    };
    let done = AtomicBool::new(false);
    let until = Instant::now() + PATIENCE;
    let fetch = |channel: &EventChannel| {
        let mut fetched = Vec::new();
        while !done.load(Ordering::Relaxed) && Instant::now() < until {
            fetched.extend(channel.get_event(Duration::from_millis(1)));
        }
        fetched
    };
    std::thread::scope(|scope| {
        let fetching = [&here, &there].map(|channel| scope.spawn(|| fetch(channel)));
        let calls = listeners.each_ref().map(|listener| {
            let accepts = scope.spawn(|| accept(listener));
            (accepts, scope.spawn(|| connect(listener)))
        });
        let ends = calls.map(|(far, near)| (far.join().unwrap(), near.join().unwrap()));
        assert!(
            ends.iter()
                .all(|(far, near)| (far.len(), near.len()) == (EACH, EACH))
        );
        // Nobody else heard of anything.
        done.store(true, Ordering::Relaxed);
        let fetched = fetching.map(|fetching| fetching.join().unwrap());
        assert!(fetched.iter().all(Vec::is_empty), "{fetched:?}");
    });
}

#[test]
fn a_call_leaves_what_happened_to_others_and_so_do_many_that_wait_for_one_end() {
    let (server, client) = (Host::new(), Host::new());
    let listener = server.listen(0);
    let channel = client.node.create_event_channel().unwrap();
    let pairs = [(); 3].map(|()| {
        let far = Events::Own(&server.node);
        connected((&server, &listener, far), (&client, (&channel).into()))
    });
    let [first, second, third] = &pairs;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| third.0.wait_for_end(PATIENCE).unwrap());
        }
        first.1.disconnect(PATIENCE).unwrap();
        second.1.disconnect(PATIENCE).unwrap();
        third.1.disconnect(PATIENCE).unwrap();
    });
    let told = BTreeSet::from([ended(&channel), ended(&channel)]);
    let expected = [first, second].map(|(near, _)| near.id().number());
    assert_eq!(told, BTreeSet::from(expected));
}

#[test]
fn an_endpoint_may_move_to_the_channel_of_others() {
    let (server, client) = (Host::new(), Host::new());
    let listener = server.listen(0);
    let far = Events::from(&server.node);
    let (near, far) = connected((&server, &listener, far), (&client, (&client.node).into()));
    let channel = client.node.create_event_channel().unwrap();
    near.id().migrate(&channel).unwrap();
    far.disconnect(PATIENCE).unwrap();
    assert_eq!(ended(&channel), near.id().number());
    near.wait_for_end(Duration::ZERO).unwrap();
}

#[test]
fn one_deadline_bounds_all_calls_that_get_it() {
    let (server, client) = (Host::new(), Host::new());
    let listener = server.listen(0);
    let to = listener.local_addr().unwrap();
    let limit = Duration::from_millis(600);
    let began = Instant::now();
    let end = Deadline::after(limit);
    let connecting = Endpoint::prepare(&client.node, &client.resources(), to, end).unwrap();
    client.receive(connecting.qp());
    std::thread::sleep(limit / 2);
    // Nobody decides: what is left of the limit is all that this waits.
    let connected = connecting.connect(&params(), end);
    assert!(
        matches!(connected, Err(ConnectError::Timeout)),
        "{connected:?}"
    );
    let took = began.elapsed();
    assert!(
        limit <= took && took < limit + limit / 2 - limit / 10,
        "{took:?}"
    );
    // One that is over leaves no time, as an instant no less.
    for over in [end, began.into()] {
        assert_eq!(over.rest(), Duration::ZERO);
        let began = Instant::now();
        let asked = Endpoint::connect(&client.node, &client.resources(), to, &params(), over);
        assert!(asked.is_err() && began.elapsed() < limit, "{asked:?}");
    }
}
