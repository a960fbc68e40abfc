//! Programs that a service carries.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;
#[path = "service/holds.rs"]
mod holds;
#[path = "service/hostile.rs"]
mod hostile;
#[path = "service/link.rs"]
mod link;
#[path = "service/promotion.rs"]
mod promotion;

use common::{End, PATIENCE, Pair, address, pattern, service};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::time::{Duration, Instant};
use trunkline::service::{Limits, Service};
use trunkline::status;
use trunkline::{
    Access, Down, Drive, Error, Event, Node, QpOptions, RecvWr, SendOp, Status, WorkOpcode,
};

/// Where received or read bytes go; what is sent lies at 0.
const TARGET: usize = 2 << 20;

fn attached(path: &str) -> End {
    End::of(Node::attach(path).unwrap())
}

/// Programs of two services.
fn pair(workers: u8) -> ([Service; 2], Pair) {
    let [near, far] = [0, 1].map(|_| service(Node::builder().address(address()).workers(workers)));
    let (a, b) = (attached(&near.1), attached(&far.1));
    ([near.0, far.0], Pair { a, b })
}

/// Sends a message whole, by way of whatever memory the ends have.
fn send(pair: &Pair, (qa, qb): (&trunkline::Qp, &trunkline::Qp), length: usize) {
    let data = pattern(length as u64, length);
    pair.a.mr.write(0, &data).unwrap();
    pair.b.receive(qb, 1, TARGET, length);
    pair.a.post(qa, 2, SendOp::Send, 0, length);
    let received = pair.b.recv_cq.wait(PATIENCE).unwrap().unwrap();
    assert_eq!((received.wr_id, received.status), (1, Status::Success));
    assert!(pair.b.bytes(TARGET, length) == data, "{length} bytes");
    let sent = pair.a.send_cq.wait(PATIENCE).unwrap().unwrap();
    assert_eq!((sent.wr_id, sent.status), (2, Status::Success));
}

#[test]
fn programs_of_two_services_talk_whether_these_sleep_or_not() {
    for workers in [1, 2] {
        let (services, pair) = pair(workers);
        let (qa, qb) = pair.qps();
        for round in 0..40 {
            send(&pair, (&qa, &qb), 1 << (round % 20));
            if round % 10 == 0 {
                // Long enough for workers to look away from the programs' bells, and to sleep.
                std::thread::sleep(Duration::from_millis(30));
            }
        }
        let clients = services[0].clients();
        assert_eq!(clients.len(), 1);
        let client = &clients[0];
        assert_eq!(
            (client.qps, client.cqs, client.mrs, client.pds),
            (1, 2, 1, 1)
        );
        assert_eq!(client.pid, Some(std::process::id()));
        assert_eq!(services[0].violations(), 0);
    }
}

#[test]
fn programs_of_one_service_talk_with_each_other() {
    let (_service, path) = service(Node::builder().address(address()));
    let pair = Pair {
        a: attached(&path),
        b: attached(&path),
    };
    let (qa, qb) = pair.qps();
    send(&pair, (&qa, &qb), 100_000);
}

#[test]
fn twenty_programs_share_the_connections_between_two_hosts() {
    let [near, far] = [0, 1].map(|_| service(Node::builder().address(address())));
    let pairs: Vec<_> = (0..20)
        .map(|_| Pair {
            a: attached(&near.1),
            b: attached(&far.1),
        })
        .collect();
    let qps: Vec<_> = pairs.iter().map(Pair::qps).collect();
    for (pair, (qa, qb)) in pairs.iter().zip(&qps) {
        send(pair, (qa, qb), 5000);
    }
    assert_eq!(near.0.clients().len(), 20);
    let [near, far] = [&near, &far].map(|(service, _)| service.node().connection_count());
    assert!((1..=4).contains(&near) && near == far, "{near}, {far}");
}

#[test]
fn memory_of_the_programs_own_is_read_and_written_where_it_is() {
    let (_services, pair) = pair(1);
    let (qa, _qb) = pair.qps();
    let mut heap = vec![7_u8; 100_000];
    let base = NonNull::new(heap.as_mut_ptr()).unwrap();
    // SAFETY: the region ends before the memory does, and nobody looks at the memory meanwhile.
    let own = unsafe { pair.b.pd.register_foreign(base, heap.len(), Access::ALL) }.unwrap();
    let data = pattern(3, 90_001);
    pair.a.mr.write(0, &data).unwrap();
    pair.a
        .post(&qa, 1, SendOp::Write(own.remote(11)), 0, data.len());
    let done = pair.a.send_cq.wait(PATIENCE).unwrap().unwrap();
    assert_eq!((done.wr_id, done.status), (1, Status::Success));
    pair.a
        .post(&qa, 2, SendOp::Read(own.remote(11)), TARGET, data.len());
    let done = pair.a.send_cq.wait(PATIENCE).unwrap().unwrap();
    assert_eq!(
        (done.status, done.opcode),
        (Status::Success, WorkOpcode::Read)
    );
    assert!(pair.a.bytes(TARGET, data.len()) == data);
    drop(own);
    assert_eq!(
        (heap[10], heap[11 + data.len()]),
        (7, 7),
        "nothing beside it"
    );
    assert!(heap[11..11 + data.len()] == data);
}

#[test]
fn an_atomic_of_a_peer_is_one_towards_the_program_itself_in_shared_memory() {
    let (_services, pair) = pair(1);
    let (qa, _qb) = pair.qps();
    let cell = pair.b.mr.remote(64);
    const EACH: u64 = 2000;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..EACH {
                let add = trunkline::AtomicOp::FetchAdd { add: 1 };
                pair.b.mr.atomic(64, add).unwrap();
            }
        });
        for wr_id in 0..EACH {
            let add = trunkline::AtomicOp::FetchAdd { add: 1 };
            pair.a.post(&qa, wr_id, SendOp::Atomic(cell, add), 0, 8);
            let done = pair.a.send_cq.wait(PATIENCE).unwrap().unwrap();
            assert_eq!(done.status, Status::Success);
        }
    });
    assert_eq!(pair.b.word(64), 2 * EACH);
}

#[test]
fn what_the_service_does_not_offer_is_named() {
    let (_services, pair) = pair(1);
    let node = &pair.a.node;
    let options = trunkline::ConnectionOptions::default();
    let named = |error: Error, what: &str| {
        assert!(matches!(error, Error::NotOffered { .. }), "{error}");
        assert!(error.to_string().contains(what), "{error}");
    };
    named(
        node.open_connection(address(), &options).unwrap_err(),
        "connections",
    );
    named(node.create_event_channel().unwrap_err(), "RDMA-CM");
    let routed = QpOptions {
        kind: trunkline::QpType::Src,
        ..QpOptions::default()
    };
    let (pd, cq) = (&pair.a.pd, &pair.a.send_cq);
    named(
        pd.create_qp(cq, cq, &routed).unwrap_err(),
        "manage their connections",
    );
    assert!(node.connections(address()).is_empty());
}

#[test]
fn a_program_hears_that_its_service_ends() {
    let (service, path) = service(Node::builder().address(address()));
    let end = attached(&path);
    let qp = end.qp(&QpOptions::default());
    drop(service);
    let event = end.node.wait_event(PATIENCE).unwrap();
    assert_eq!(event, Some(Event::DeviceFatal));
    let down = end.node.health().down.unwrap();
    assert!(
        matches!(&down, Down::Service { why } if why.contains("ended")),
        "{down}"
    );
    let error = end.recv_cq.wait(PATIENCE).unwrap_err();
    assert!(
        matches!(error, Error::Down(Down::Service { .. })),
        "{error}"
    );
    let sges = [end.mr.sge(0, 8)];
    let error = qp.post_recv(&[RecvWr::new().sges(&sges)]).unwrap_err();
    assert!(matches!(error, Error::Down(_)), "{error}");
    assert!(end.node.create_cq(4).is_err());
}

#[test]
fn a_program_can_clean_up_after_its_service_has_ended() {
    let (service, path) = service(Node::builder().address(address()));
    let End { node, pd, mr, .. } = attached(&path);
    drop(service);
    let event = node.wait_event(PATIENCE).unwrap();
    assert_eq!(event, Some(Event::DeviceFatal));
    assert!(mr.deregister().is_ok(), "there is no service to ask");
    let error = pd.register(64, Access::ALL).unwrap_err();
    assert!(matches!(error, Error::Down(_)), "{error}");
}

#[test]
fn a_taken_place_and_a_node_that_is_no_good_are_refused() {
    let (service, path) = service(Node::builder().address(address()));
    let other = Node::builder().address(address()).build().unwrap();
    let error = Service::start(other, &path, &Limits::default()).unwrap_err();
    let (error, pid) = (error.to_string(), std::process::id());
    assert!(
        error.contains(&path) && error.contains(&pid.to_string()),
        "{error}"
    );
    let inline = Node::builder().address(address()).drive(Drive::Inline);
    let error = Service::start(inline.build().unwrap(), "@x", &Limits::default()).unwrap_err();
    assert!(matches!(error, Error::NotOffered { .. }), "{error}");
    let carried = Node::attach(&path).unwrap();
    let error = Service::start(carried, "@x", &Limits::default()).unwrap_err();
    assert!(matches!(error, Error::NotOffered { .. }), "{error}");
    drop(service);
    let error = Node::attach(&path).unwrap_err().to_string();
    assert!(error.contains(&path), "{error}");
}

#[test]
fn whoever_asks_a_node_hears_of_its_service_until_that_ends() {
    let (service, path) = service(Node::builder().address(address()));
    let node = service.node().clone();
    let ask = || status::ask(node.gid().address(), PATIENCE).unwrap().service;
    assert_eq!(ask().unwrap().client_count, 0);
    let end = attached(&path);
    let _qps: Vec<_> = (0..3).map(|_| end.qp(&QpOptions::default())).collect();
    let told = loop {
        // It is told once the answers are on their way.
        let told = ask().unwrap();
        if told.qps == 3 {
            break told;
        }
    };
    assert_eq!((told.client_count, told.violations), (1, 0));
    assert_eq!(told.clients, service.clients());
    drop(service);
    assert_eq!(ask(), None);
}

#[test]
fn whoever_asks_the_node_of_a_service_hears_of_its_peers() {
    let (services, pair) = pair(1);
    let (qa, qb) = pair.qps();
    send(&pair, (&qa, &qb), 100);
    let [near, far] = [0, 1].map(|at| services[at].node());
    let status = status::ask(near.gid().address(), PATIENCE).unwrap();
    let [peer] = &status.peers[..] else {
        panic!("{:?}", status.peers)
    };
    let standing = near.connection_count() as u64;
    let expected = (far.gid().address(), standing, 0);
    assert_eq!((peer.address, peer.connections, peer.gone), expected);
    assert_eq!(status.peer_count, 1);
}

#[test]
fn a_cq_notifies_its_program_in_a_way_of_its_own_and_of_the_end_of_the_service() {
    #[derive(Debug)]
    struct Bell(std::sync::mpsc::SyncSender<()>);
    impl trunkline::Notify for Bell {
        fn notify(&self) {
            // One that waits to be heard is as good as two.
            let _ = self.0.try_send(());
        }
    }

    let (service, path) = service(Node::builder().address(address()));
    let end = attached(&path);
    let (ring, rung) = std::sync::mpsc::sync_channel(1);
    let bell = std::sync::Arc::new(Bell(ring));
    let cq = end.node.create_cq_notifying(64, bell).unwrap();
    let qp = end.pd.create_qp(&cq, &cq, &QpOptions::default()).unwrap();
    qp.connect(qp.address()).unwrap();
    for round in 0..20 {
        cq.arm(false);
        assert_eq!(cq.poll_one(), Ok(None));
        assert!(rung.try_recv().is_err(), "nothing has completed");
        end.post(&qp, round, SendOp::Write(end.mr.remote(TARGET)), 0, 8);
        rung.recv_timeout(PATIENCE).unwrap();
        assert_eq!(cq.poll_one().unwrap().map(|done| done.wr_id), Some(round));
    }
    drop(service);
    rung.recv_timeout(PATIENCE).unwrap();
    assert!(cq.poll_one().is_err());
}

#[test]
fn epolls_of_epolls_watch_any_number_of_cqs_until_the_service_ends_and_then_for_good() {
    const CQS: usize = 150;
    let (service, path) = service(Node::builder().address(address()));
    let node = Node::attach(&path).unwrap();
    let cqs: Vec<_> = (0..CQS).map(|_| node.create_cq(4).unwrap()).collect();
    let [inner, outer] = [(); 2].map(|()| epoll::create(CreateFlags::CLOEXEC).unwrap());
    for (cq, data) in cqs.iter().zip((0..).map(EventData::new_u64)) {
        epoll::add(&inner, cq, data, EventFlags::IN).unwrap();
    }
    epoll::add(&outer, &inner, EventData::new_u64(0), EventFlags::IN).unwrap();
    let found = |epoll, limit| {
        let mut room = [const { MaybeUninit::uninit() }; CQS];
        let limit = Timespec::try_from(limit).unwrap();
        epoll::wait(epoll, &mut room[..], Some(&limit))
            .unwrap()
            .0
            .len()
    };
    assert_eq!(found(&outer, Duration::ZERO), 0);
    drop(service);
    assert_eq!(found(&outer, PATIENCE), 1);
    let until = Instant::now() + PATIENCE;
    while found(&inner, Duration::ZERO) < CQS {
        assert!(Instant::now() < until, "some are not readable");
    }
    assert!(cqs.iter().all(|cq| cq.take_events() == 0));
    assert_eq!(found(&inner, Duration::ZERO), CQS);
}
