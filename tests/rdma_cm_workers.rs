//! RDMA-CM between nodes of several workers.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::address;
use common::host::{Host, PORT};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use trunkline::rdma_cm::sync::{ConnectError, Endpoint, Listener};
use trunkline::rdma_cm::{CmError, EventChannel, Kind, Params, PortSpace, RejReason};
use trunkline::{Error, Node, QpOptions, QpState};
use trunkline_dataplane::fault::{Direction, Faults};
use trunkline_dataplane::{Fault, Port, UdpConfig, UdpPort};
use trunkline_wire::Workers;

const LIMIT: Duration = Duration::from_secs(20);

fn host(workers: u8) -> Host {
    Host::with(Node::builder().workers(workers))
}

fn data(text: &[u8]) -> Params<'_> {
    Params {
        private_data: text,
        ..Params::default()
    }
}

/// So many connections from `client`, one after the other, each with what both ends say.
fn connected(
    server: &Host,
    listener: &Listener,
    client: &Host,
    count: usize,
) -> Vec<(Endpoint, Endpoint)> {
    let to = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let asked = (0..count).map(|i| client.connect(to, &i.to_be_bytes()).unwrap());
            asked.collect::<Vec<_>>()
        });
        let accepted: Vec<_> = (0..count)
            .map(|i| {
                let request = listener.get_request(&server.node, LIMIT).unwrap();
                assert_eq!(request.data[..8], i.to_be_bytes());
                let answer = (2 * i).to_be_bytes();
                request
                    .accept(&server.resources(), &data(&answer), LIMIT)
                    .unwrap()
            })
            .collect();
        let asked = asking.join().unwrap();
        for (i, near) in asked.iter().enumerate() {
            assert_eq!(near.data()[..8], (2 * i).to_be_bytes());
        }
        asked.into_iter().zip(accepted).collect()
    })
}

/// How many of the ends belong to each worker.
fn shares<'a>(ends: impl Iterator<Item = &'a Endpoint>, workers: u8) -> Vec<usize> {
    let mut shares = vec![0; workers.into()];
    for end in ends {
        shares[usize::from(end.qp().worker())] += 1;
    }
    shares
}

fn connections_belong_to_all_workers(workers: u8) {
    const COUNT: usize = 200;
    let (server, client) = (host(workers), host(workers));
    let listener = server.listen(0);
    let ends = connected(&server, &listener, &client, COUNT);
    let even = COUNT / usize::from(workers);
    let near = shares(ends.iter().map(|(near, _)| near), workers);
    assert_eq!(near, vec![even; workers.into()]);
    let far = shares(ends.iter().map(|(_, far)| far), workers);
    assert!(far.iter().all(|share| *share > even / 4), "{far:?}");
    for (near, far) in &ends {
        // Its QP is where it is itself: one worker does all there is to do.
        assert_eq!(near.id().worker(), near.qp().worker());
        server.receive(far.qp());
        client.send(near.qp(), b"hello");
        server.done();
    }
    for (near, far) in &ends {
        near.disconnect(LIMIT).unwrap();
        far.wait_for_end(LIMIT).unwrap();
        let states = [near, far].map(|end| end.qp().state());
        assert_eq!(states, [QpState::Error; 2]);
    }
    for host in [&server, &client] {
        // The kernel brings messages to their worker, but for those that name none of ours.
        let handed = host.node.hand_overs();
        assert!(handed.management < 10 && handed.lost == 0, "{handed:?}");
    }
    assert_eq!(server.node.cm_stats().ids["listening"], 1);
}

/// Two nodes that know each other need a pool of connections for each worker of the larger one.
fn few_pairs_of_workers_talk(near: u8, far: u8) {
    const COUNT: usize = 96;
    let (server, client) = (host(far), host(near));
    let listener = server.listen(0);
    let talk = |ends: &[(Endpoint, Endpoint)]| {
        for (near, far) in ends {
            server.receive(far.qp());
            client.send(near.qp(), b"hello");
            server.done();
        }
    };
    let first = connected(&server, &listener, &client, 1);
    talk(&first);
    let ends = connected(&server, &listener, &client, COUNT);
    talk(&ends);
    let pair = |(near, far): &(Endpoint, Endpoint)| (near.qp().worker(), far.qp().worker());
    let pairs: BTreeSet<_> = ends.iter().map(pair).collect();
    let larger = usize::from(near.max(far));
    assert_eq!(pairs.len(), larger, "{pairs:?}");
    // And a pool for the first one, which met a stranger.
    let pools = server.node.connection_count();
    assert!(pools <= larger + 1, "{pools} connections");
    let shares = shares(ends.iter().map(|(_, far)| far), far);
    let even = COUNT / usize::from(far);
    assert!(
        shares
            .iter()
            .all(|share| (even / 4..=4 * even).contains(share)),
        "{shares:?}"
    );
}

#[test]
fn few_pairs_of_workers_talk_between_nodes_of_as_many() {
    few_pairs_of_workers_talk(4, 4);
}

#[test]
fn few_pairs_of_workers_talk_between_nodes_of_more_and_of_less() {
    few_pairs_of_workers_talk(2, 4);
    few_pairs_of_workers_talk(4, 2);
}

/// A request for a service of datagrams has no QP that one of ours could face.
#[test]
fn qps_for_datagrams_are_where_their_ids_are_also_between_nodes_that_know_each_other() {
    const COUNT: usize = 24;
    let (server, client) = (host(3), host(3));
    let listener = server.listen(0);
    let known = connected(&server, &listener, &client, 1);
    server.receive(known[0].1.qp());
    client.send(known[0].0.qp(), b"hello");
    server.done();
    let there = server.node.create_event_channel().unwrap();
    let service = there.create_id(PortSpace::Udp, Kind::Ud).unwrap();
    service.bind((server.address, PORT).into()).unwrap();
    service.listen(0).unwrap();
    let here = client.node.create_event_channel().unwrap();
    let next = |channel: &EventChannel| channel.get_event(LIMIT).expect("an event");
    let mut shares = [0; 3];
    // They live until the end, so that each has a QP of its own.
    let mut all = Vec::new();
    for _ in 0..COUNT {
        let id = here.create_id(PortSpace::Udp, Kind::Ud).unwrap();
        id.resolve_addr((server.address, PORT).into(), LIMIT)
            .unwrap();
        next(&here);
        id.resolve_route().unwrap();
        next(&here);
        id.connect(&Params::default()).unwrap();
        let request = next(&there).id;
        let own = QpOptions::default();
        let qp = request
            .create_qp(&server.pd, &server.cq, &server.cq, &own)
            .unwrap();
        assert_eq!(qp.worker(), request.worker());
        shares[usize::from(qp.worker())] += 1;
        all.push((id, request, qp));
    }
    assert!(shares.iter().all(|share| *share > 0), "{shares:?}");
}

#[test]
fn connections_belong_to_both_of_two_workers() {
    connections_belong_to_all_workers(2);
}

#[test]
fn connections_belong_to_all_of_four_workers() {
    connections_belong_to_all_workers(4);
}

#[test]
fn a_qp_may_be_at_any_worker_wherever_its_id_is() {
    let (mut server, mut client) = (host(3), host(2));
    let listener = server.listen(0);
    for at in 0..6 {
        let worker = |at| QpOptions {
            worker: Some(at),
            ..QpOptions::default()
        };
        (server.options, client.options) = (worker(at % 3), worker(at % 2));
        for (near, far) in connected(&server, &listener, &client, 4) {
            assert_eq!((near.qp().worker(), far.qp().worker()), (at % 2, at % 3));
            server.receive(far.qp());
            client.send(near.qp(), b"hello");
            server.done();
            far.disconnect(LIMIT).unwrap();
            near.wait_for_end(LIMIT).unwrap();
        }
    }
}

#[test]
fn every_worker_says_why_it_refuses() {
    let (server, client) = (host(4), host(4));
    let to = SocketAddr::new(server.address, PORT);
    let refused = |i: u64| match client.connect(to, &i.to_be_bytes()) {
        Err(ConnectError::Rejected { reason, data }) => (reason, data),
        other => panic!("{other:?}"),
    };
    for _ in 0..16 {
        assert_eq!(refused(0).0, RejReason::InvalidServiceId);
    }
    let listener = server.listen(0);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // A request that came twice may be asked about twice, once it was refused.
            while !done.load(Ordering::Relaxed) {
                let next = listener.get_request(&server.node, Duration::from_millis(10));
                if let Ok(request) = next {
                    let said = request.data;
                    request.reject(&said[..8]).unwrap();
                }
            }
        });
        for i in 0..16_u64 {
            let (reason, data) = refused(i);
            assert_eq!(reason, RejReason::ConsumerDefined);
            assert_eq!(data[..8], i.to_be_bytes());
        }
        done.store(true, Ordering::Relaxed);
    });
    drop(listener);
    assert_eq!(refused(0).0, RejReason::InvalidServiceId);
}

/// A host whose datagrams meet `faults` on their way out.
fn faulty(workers: u8, faults: Faults) -> Host {
    let address = address();
    let count = Workers::new(workers).unwrap();
    let ports = UdpPort::open_group(&UdpConfig::new(address), count).unwrap();
    let ports = ports.into_iter().zip(1..).map(|(port, seed)| {
        let mut port = Fault::new(port, seed);
        port.set(Direction::Outbound, faults);
        Box::new(port) as Box<dyn Port + Send>
    });
    let builder = Node::builder().address(address).workers(workers);
    Host::of(builder.build_on_all(ports.collect()).unwrap(), address)
}

fn requests_meet_their_worker_however_often_they_come(workers: u8) {
    const THREADS: usize = 8;
    // So many that each worker has some that come twice.
    const EACH: usize = 12;
    // Answers are lost, so that requests come again, and each may come twice. No confirmation is
    // lost: who has asked for patience (MRA) would be left alone for a minute then.
    let (server, client) = (
        faulty(
            workers,
            Faults {
                loss_ppm: 200_000,
                ..Faults::default()
            },
        ),
        faulty(
            workers,
            Faults {
                duplicate_ppm: 500_000,
                ..Faults::default()
            },
        ),
    );
    let listener = server.listen(0);
    let to = listener.local_addr().unwrap();
    let ask =
        || Endpoint::connect(&client.node, &client.resources(), to, &data(b""), LIMIT).unwrap();
    let accept = || {
        let request = listener.get_request(&server.node, LIMIT).unwrap();
        let accepted = request.accept(&server.resources(), &data(b""), LIMIT);
        accepted.unwrap()
    };
    let each = |work: &dyn Fn() -> Endpoint| (0..EACH).map(|_| work()).collect::<Vec<_>>();
    let ends: Vec<Endpoint> = std::thread::scope(|scope| {
        let threads = (0..2 * THREADS).map(|i| match i % 2 {
            0 => scope.spawn(|| each(&ask)),
            _ => scope.spawn(|| each(&accept)),
        });
        let threads: Vec<_> = threads.collect();
        let ends = threads.into_iter().flat_map(|ends| ends.join().unwrap());
        ends.collect()
    });
    assert_eq!(ends.len(), 2 * THREADS * EACH);
    let counters = server.node.cm_counters();
    assert!(counters.iter().all(|worker| worker.hosts.duplicate > 0));
    assert!(counters.iter().all(|worker| worker.hosts.stale == 0));
    // None was taken for two.
    let more = listener.get_request(&server.node, Duration::from_millis(100));
    assert!(matches!(more, Err(ConnectError::Timeout)));
}

#[test]
fn requests_meet_one_of_two_workers_however_often_they_come() {
    requests_meet_their_worker_however_often_they_come(2);
}

#[test]
fn requests_meet_one_of_four_workers_however_often_they_come() {
    requests_meet_their_worker_however_often_they_come(4);
}

#[test]
fn a_port_is_one_ids_whichever_workers_they_are_at() {
    let server = host(3);
    let channel = server.node.create_event_channel().unwrap();
    let id = || channel.create_id(PortSpace::Tcp, Kind::Rc).unwrap();
    for port in PORT..PORT + 8 {
        let at = SocketAddr::new(server.address, port);
        let in_use = |refused| matches!(refused, Err(Error::Cm(CmError::AddressInUse(_))));
        let (first, second, third) = (id(), id(), id());
        assert_eq!(first.bind(at).unwrap(), at);
        assert!(in_use(second.bind(at)) && in_use(third.bind(at)));
        assert_eq!(first.listen(1).unwrap(), at);
        assert!(in_use(second.bind(at)));
        drop(first);
        assert_eq!(second.bind(at).unwrap(), at);
        drop(second);
        assert_eq!(third.bind(at).unwrap(), at);
        assert_eq!(third.listen(1).unwrap(), at);
        // And one of nobody's choice is no other's.
        let free = [id(), id(), id()].map(|id| (id.listen(1).unwrap(), id));
        let ports: Vec<_> = free.iter().map(|(at, _)| at.port()).collect();
        assert!(ports[0] != ports[1] && ports[1] != ports[2] && ports[0] != ports[2]);
        for (free, _) in &free {
            assert!(in_use(id().bind(*free)));
        }
    }
}

#[test]
fn what_waits_at_any_worker_ends_with_its_listener() {
    let (server, client) = (host(4), host(4));
    let listener = server.listen(0);
    let to = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        let asking: Vec<_> = (0..16)
            .map(|_| scope.spawn(|| client.connect(to, b"").unwrap_err()))
            .collect();
        // They are there now, unfetched.
        std::thread::sleep(Duration::from_millis(300));
        drop(listener);
        for asking in asking {
            let error = asking.join().unwrap();
            assert!(matches!(error, ConnectError::Rejected { .. }), "{error}");
        }
    });
    assert!(!server.node.cm_stats().ids.values().any(|count| *count > 0));
}

#[test]
fn what_icmp_says_of_an_ask_reaches_the_worker_that_asks() {
    let client = host(3);
    let nobody = SocketAddr::new(address(), PORT);
    std::thread::scope(|scope| {
        let asking: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| client.connect(nobody, b"").unwrap_err()))
            .collect();
        for asking in asking {
            let error = asking.join().unwrap();
            assert!(matches!(error, ConnectError::Nobody), "{error}");
        }
    });
    let counters = client.node.cm_counters();
    let by_worker = counters.iter().map(|worker| worker.hosts.nobody);
    assert_eq!(by_worker.sum::<u64>(), 8);
}
