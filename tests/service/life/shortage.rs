//! Programs and services that have run out of something.

use super::peers::{Asking, Neighbour, Peer};
use super::roles::{LENGTH, ROOM};
use super::{alone, hear, new_service, play, say, within};
use crate::common::written::Written;
use crate::common::{PATIENCE, address, wait_for};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tracing_subscriber::filter::LevelFilter;
use trunkline::service::{Limits, Service};
use trunkline::{
    Access, AttachOptions, Cq, Drive, Node, Promotion, Qp, QpOptions, RecvWr, Remote, SendWr,
    Status,
};

/// Lets this process have so many descriptors.
fn allow(descriptors: u64) {
    let limit = libc::rlimit {
        rlim_cur: descriptors,
        rlim_max: 4096,
    };
    // SAFETY: `limit` is there to be read.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
}

/// A service that may have few descriptors, and more when it is told so.
pub(super) fn poor_service(path: &str) {
    let log = Written::install(LevelFilter::WARN);
    let node = Node::builder().address(address()).drive(Drive::Threaded);
    let service = Service::start(node.build().unwrap(), path, &Limits::default()).unwrap();
    allow(super::count("fd") as u64 + 40);
    say(&());
    let () = hear();
    let turned_away = service.without_descriptor();
    say(&(service.clients().len(), service.violations(), turned_away));
    say(&log.lines("LimitNOFILE"));
    allow(1024);
    say(&());
    let () = hear();
}

#[test]
fn a_service_without_descriptors_turns_programs_away_and_recovers() {
    let _alone = alone();
    let path = format!("@trunkline-test/{}/poor", std::process::id());
    let mut process = play("poor service", &path);
    let () = process.hear();
    let peer = Peer::new();
    let neighbour = Neighbour::start(&path, &peer);
    let mut nodes = Vec::new();
    let mut refused = Vec::new();
    for _ in 0..40 {
        match Node::attach(&path) {
            Ok(node) => nodes.push(node),
            Err(error) => refused.push(error.to_string()),
        }
    }
    println!(
        "{} attached, {} refused: {:?}",
        nodes.len(),
        refused.len(),
        refused.last()
    );
    assert!(!refused.is_empty() && !nodes.is_empty());
    assert!(refused.iter().all(|why| why.contains("LimitNOFILE")));
    let count = refused.len();
    // Those that are here are refused what takes descriptors, and nothing else.
    let refused = (0..40).find_map(|_| nodes[0].create_cq(8).err());
    println!("a CQ: {refused:?}");
    assert!(refused.is_some());
    assert!(nodes.iter().all(|node| node.health().down.is_none()));
    process.tell(&());
    let (clients, violations, turned_away): (usize, u64, usize) = process.hear();
    assert_eq!(clients, nodes.len() + 1);
    assert_eq!(violations, 0, "to be turned away is no violation");
    assert_eq!(turned_away, count, "each is counted");
    let log: Vec<String> = process.hear();
    // The first is told of at once, and others rarely.
    assert!((1..=3).contains(&log.len()), "{log:#?}");
    let () = process.hear();
    let (rounds, slowest, beside) = neighbour.stop();
    println!("{rounds} messages beside, {slowest:?} the slowest");
    assert!(rounds > 0);
    let late = Peer::of(Node::attach(&path).unwrap());
    Neighbour::exchange(late.into(), &peer).stop();
    Neighbour::exchange(beside, &peer).stop();
}

#[test]
fn programs_hear_that_no_descriptor_is_left_when_another_has_taken_the_last() {
    let _alone = alone();
    let path = format!("@trunkline-test/{}/emptied", std::process::id());
    let mut process = play("poor service", &path);
    let () = process.hear();
    let promotion = Promotion::Always;
    let taker = Node::attach_with(&path, &AttachOptions { promotion }).unwrap();
    let pd = taker.alloc_pd();
    let _cqs: Vec<_> = (0..40).map_while(|_| taker.create_cq(8).ok()).collect();
    let (mut nodes, mut taken, mut refused) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..60 {
        match Node::attach(&path) {
            Ok(node) => nodes.push(node),
            Err(why) => refused.push(why.to_string()),
        }
        // Whoever was turned away has given a descriptor back. Memory that is promoted takes one.
        let heap = Box::leak(vec![1_u8; 4 << 20].into_boxed_slice());
        let at = NonNull::new(heap.as_mut_ptr()).unwrap();
        // SAFETY: it is leaked, and nobody else looks at it.
        taken.extend(unsafe { pd.register_foreign(at, 4 << 20, Access::ALL) });
    }
    println!("{} regions, {} refused", taken.len(), refused.len());
    assert!(!refused.is_empty());
    let clear = |why: &String| why.contains("LimitNOFILE");
    assert!(refused.iter().all(clear), "{refused:#?}");
    assert!(taker.health().down.is_none());
}

/// A program that has no descriptors any more.
pub(super) fn client_without_descriptors(path: &str) {
    let end = Peer::of(Node::attach(path).unwrap());
    let ((qa, ca), (qb, cb)) = (end.qp(), end.qp());
    qa.connect(qb.address()).unwrap();
    qb.connect(qa.address()).unwrap();
    let exchange = || {
        qb.post_recv(&[RecvWr::new().sges(&[end.mr.sge(0, 64)])])
            .unwrap();
        qa.post_send(&[SendWr::send().inline(b"hello").signaled()])
            .unwrap();
        assert_eq!(wait_for(&ca).status, Status::Success);
        assert_eq!(wait_for(&cb).status, Status::Success);
    };
    exchange();
    let most = super::count("fd") as u64;
    let mut errors = Vec::new();
    // From some that are left to none.
    for more in (0..8).rev() {
        allow(most + more - 3);
        if let Err(error) = Node::attach(path) {
            errors.push(format!("attach: {error}"));
        }
        if let Err(error) = end.node.create_cq(8) {
            errors.push(format!("CQ: {error}"));
        }
        // What does without descriptors goes on.
        if end.node.health().down.is_none() {
            exchange();
        } else {
            errors.push(format!("with {more} more: {:?}", end.node.health().down));
            break;
        }
    }
    allow(1024);
    let down = end.node.health().down.map(|down| down.to_string());
    say(&(errors, down));
}

#[test]
fn a_program_without_descriptors_hears_so_and_goes_on() {
    let _alone = alone();
    let (service, path) = new_service();
    let mut process = play("no descriptors", &path);
    let (errors, down): (Vec<String>, Option<String>) = process.hear();
    println!("{errors:#?} {down:?}");
    let clear = |why: &String| why.contains("escriptor") || why.contains("Too many open files");
    assert!(!errors.is_empty() && errors.iter().all(clear));
    assert!(down.is_none(), "{down:?}");
    assert_eq!(service.violations(), 0);
    process.finish();
}

/// A program that makes its queues longer while it has no descriptor left.
pub(super) fn resizes_without_descriptors(path: &str) {
    let end = Peer::of(Node::attach(path).unwrap());
    let srq = end.pd.create_srq(4, 1).unwrap();
    let [ca, cb] = [(); 2].map(|()| end.node.create_cq(4).unwrap());
    let mut options = QpOptions::default();
    let qa = end.pd.create_qp(&ca, &ca, &options).unwrap();
    options.srq = Some(srq.clone());
    let qb = end.pd.create_qp(&cb, &cb, &options).unwrap();
    qa.connect(qb.address()).unwrap();
    qb.connect(qa.address()).unwrap();
    let sges = [end.mr.sge(0, 64)];
    let post = |number| {
        let receive = RecvWr::new().wr_id(number).sges(&sges);
        srq.post_recv(&[receive]).unwrap();
    };
    // One waits all the time: a message takes the last.
    post(u64::MAX);
    let exchange = |number| {
        post(number);
        let send = SendWr::send().wr_id(number).inline(b"hello").signaled();
        qa.post_send(&[send]).unwrap();
        for cq in [&ca, &cb] {
            let done = wait_for(cq);
            assert_eq!((done.wr_id, done.status), (number, Status::Success));
        }
    };
    (0..10).for_each(exchange);
    let resize = || [ca.resize(64), cb.resize(64), srq.resize(64)];
    allow(3);
    let refused = resize().map(|resized| resized.err().map(|error| error.to_string()));
    (10..100).for_each(exchange);
    allow(1024);
    for resized in resize() {
        resized.unwrap();
    }
    (100..200).for_each(exchange);
    say(&refused);
}

#[test]
fn queues_that_a_program_cannot_resize_for_want_of_descriptors_stay_as_they_are() {
    let _alone = alone();
    let (_service, path) = new_service();
    let mut process = play("resizes", &path);
    let refused: [Option<String>; 3] = process.hear();
    println!("{refused:#?}");
    let clear = |why: &String| why.contains("escriptor");
    assert!(refused.iter().flatten().all(clear));
    process.finish();
}

/// From here on the system has no room for what this thread sends.
fn refuse_to_send() {
    const LOAD_NUMBER: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const SKIP_UNLESS: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let line = |code, k, jf| libc::sock_filter { code, jt: 0, jf, k };
    let mut lines = [
        line(LOAD_NUMBER, 0, 0),
        line(SKIP_UNLESS, libc::SYS_sendmsg as u32, 1),
        line(
            RETURN,
            libc::SECCOMP_RET_ERRNO | libc::ENOBUFS.cast_unsigned(),
            0,
        ),
        line(RETURN, libc::SECCOMP_RET_ALLOW, 0),
    ];
    let filter = libc::sock_fprog {
        len: lines.len() as u16,
        filter: lines.as_mut_ptr(),
    };
    // SAFETY: it takes numbers.
    let set = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(set, 0);
    let mode = libc::SECCOMP_MODE_FILTER;
    // SAFETY: the filter is there to be read.
    let set = unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const filter) };
    assert_eq!(set, 0);
}

/// A program that asks its service for something while the system has no room for messages.
pub(super) fn client_without_buffers(path: &str) {
    let node = Node::attach(path).unwrap();
    let refused = std::thread::scope(|scope| {
        let asks = scope.spawn(|| {
            refuse_to_send();
            node.create_cq(8).err().map(|error| error.to_string())
        });
        asks.join().unwrap()
    });
    let cq = node.create_cq(8).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            refuse_to_send();
            drop(cq);
        });
    });
    // The service cannot hear that it is gone.
    assert!(node.health().down.is_some());
    say(&refused);
}

#[test]
fn a_request_that_the_system_does_not_send_fails_and_nothing_else_does() {
    let _alone = alone();
    let (_service, path) = new_service();
    let mut process = play("no buffers", &path);
    let refused: Option<String> = process.hear();
    println!("{refused:?}");
    assert!(refused.is_some_and(|why| why.contains("buffer")));
    process.finish();
}

/// Does something while this process can map so many bytes more.
fn with_room_for<T>(bytes: u64, work: impl FnOnce() -> T) -> T {
    let limit = |bytes| {
        let limit = libc::rlimit {
            rlim_cur: bytes,
            rlim_max: libc::RLIM_INFINITY,
        };
        // SAFETY: `limit` is there to be read.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
    };
    let sizes = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = sizes.split(' ').next().unwrap().parse().unwrap();
    limit(pages * 4096 + bytes);
    let done = work();
    limit(libc::RLIM_INFINITY);
    done
}

/// A program that a peer writes to, and that has no room for a queue which its service has moved.
pub(super) fn loses_a_queue(path: &str) {
    let promotion = Promotion::Never;
    let node = Node::attach_with(path, &AttachOptions { promotion }).unwrap();
    let (pd, cq) = (node.alloc_pd(), node.create_cq(16).unwrap());
    let qp = pd.create_qp(&cq, &cq, &QpOptions::default()).unwrap();
    let words = (0..LENGTH / 8).map(|_| AtomicU64::new(0));
    let memory: &[AtomicU64] = Vec::leak(words.collect());
    let written = || {
        let words = memory.iter().map(|word| word.load(Ordering::Relaxed));
        words.filter(|word| *word != 0).count()
    };
    let at = NonNull::from(memory).cast();
    // SAFETY: it is leaked, and all look at it as at atomics.
    let mr = unsafe { pd.register_foreign(at, LENGTH, Access::ALL) }.unwrap();
    say(&qp.address());
    qp.connect(hear()).unwrap();
    say(&mr.remote(0));
    within(PATIENCE, "a peer writes", || written() > 0);
    assert!(with_room_for(1 << 20, || cq.resize(1 << 16)).is_err());
    drop(mr);
    for word in memory {
        word.store(0, Ordering::Relaxed);
    }
    std::thread::sleep(Duration::from_millis(100));
    say(&written());
}

#[test]
fn memory_of_a_program_that_gives_its_service_up_is_its_own_again() {
    let _alone = alone();
    let (_service, path) = new_service();
    let peer = Peer::new();
    peer.mr.write(0, &[0xff; LENGTH]).unwrap();
    let mut process = play("loses a queue", &path);
    let (qp, cq) = peer.qp();
    qp.connect(process.hear()).unwrap();
    process.tell(&qp.address());
    let remote: Remote = process.hear();
    let asking = Asking::start(&peer, (qp, cq), "foreign", remote);
    let written: usize = process.hear();
    assert_eq!(written, 0, "words were written behind the end");
    process.finish();
    let _ = asking.end();
}

/// A program that has no room for the segments of its service for a while.
pub(super) fn client_without_address_space(path: &str) {
    const LARGE: usize = 8 << 20;
    let promotion = Promotion::Never;
    let node = Node::attach_with(path, &AttachOptions { promotion }).unwrap();
    let pd = node.alloc_pd();
    let refuses = |_: &u32| pd.register(LARGE, Access::ALL).is_err();
    let refused = with_room_for(LARGE as u64 / 2, || (0..20).filter(refuses).count());
    let mr = pd.register(LARGE, Access::ALL).unwrap();
    say(&(refused, mr.shared_len()));
    let () = hear();
    let cq = node.create_cq(16).unwrap();
    let resized = with_room_for(1 << 20, || cq.resize(1 << 16));
    let error = resized.expect_err("there is no room");
    // The service has moved it: what the program would poll is not what completes.
    assert!(node.health().down.is_some() && cq.poll_one().is_err());
    say(&error.to_string());
}

#[test]
fn memory_that_a_program_has_no_room_for_is_its_service_s_again() {
    let _alone = alone();
    let (service, path) = new_service();
    let mut process = play("no address space", &path);
    let (refused, shared): (usize, usize) = process.hear();
    assert_eq!((refused, shared), (20, 8 << 20));
    within(Duration::from_secs(1), "all but one are given back", || {
        service.clients()[0].segment_bytes <= 16 << 20
    });
    process.tell(&());
    let moved: String = process.hear();
    println!("{moved}");
    process.finish();
}

#[test]
fn memory_for_a_domain_that_was_refused_is_its_service_s_again() {
    let _alone = alone();
    let node = Node::builder().address(address()).drive(Drive::Threaded);
    let path = format!("@trunkline-test/{}/domains", std::process::id());
    let mut limits = Limits::default();
    limits.mrs = 4;
    let _service = Service::start(node.build().unwrap(), &path, &limits).unwrap();
    let promotion = Promotion::Never;
    let node = Node::attach_with(&path, &AttachOptions { promotion }).unwrap();
    let pds = [(); 5].map(|()| node.alloc_pd());
    for _ in 0..8 {
        assert!(pds[4].register(4096, Access::ALL).is_err());
        assert!(pds[4].register_iova(4096, 0, Access::ALL).is_err());
    }
    let mr = pds[0].register(4096, Access::ALL).unwrap();
    assert_eq!(mr.shared_len(), 4096, "there is no memory left");
}

/// Sends some bytes from one QP to another one.
fn send(end: &Peer, (qa, ca): (&Qp, &Cq), (qb, cb): (&Qp, &Cq)) {
    qb.post_recv(&[RecvWr::new().sges(&[end.mr.sge(0, 64)])])
        .unwrap();
    qa.post_send(&[SendWr::send().inline(b"hello").signaled()])
        .unwrap();
    for cq in [ca, cb] {
        assert_eq!(wait_for(cq).status, Status::Success);
    }
}

#[test]
fn a_program_whose_segments_are_full_has_memory_of_its_own() {
    let _alone = alone();
    let node = Node::builder().address(address()).drive(Drive::Threaded);
    let path = format!("@trunkline-test/{}/full", std::process::id());
    let mut limits = Limits::default();
    limits.segment_bytes = 8 << 20;
    let service = Service::start(node.build().unwrap(), &path, &limits).unwrap();
    let end = Peer::of(Node::attach(&path).unwrap());
    let ((qa, ca), (qb, cb)) = (end.qp(), end.qp());
    qa.connect(qb.address()).unwrap();
    qb.connect(qa.address()).unwrap();
    send(&end, (&qa, &ca), (&qb, &cb));
    let idle: Vec<_> = (0..2).map(|_| end.qp()).collect();
    idle[0].0.connect(idle[1].0.address()).unwrap();
    idle[1].0.connect(idle[0].0.address()).unwrap();
    let mut regions = Vec::new();
    for length in [ROOM, 64 << 10, 4096, 64] {
        let before = foreign(&service);
        while foreign(&service) == before {
            assert!(regions.len() < 1 << 17, "the quota is never used up");
            regions.push(end.pd.register(length, Access::ALL).unwrap());
            // The service says how much that is when it has answered.
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    println!("{} regions, {:?}", regions.len(), service.clients());
    // The last one works though it is the program's own.
    let own = regions.last().unwrap();
    let word = 7_u64.to_ne_bytes();
    own.write(0, &word).unwrap();
    let target = end.mr.remote(512);
    let sges = [own.sge(0, 8)];
    qa.post_send(&[SendWr::write(target).sges(&sges).signaled()])
        .unwrap();
    assert_eq!(wait_for(&ca).status, Status::Success);
    let mut got = [0; 8];
    end.mr.read(512, &mut got).unwrap();
    assert_eq!(got, word);
    let error = idle[0].0.post_send(&[SendWr::send().inline(b"hello")]);
    println!("{error:?}");
    let error = error.expect_err("there is no room for its ring");
    assert!(!error.to_string().is_empty());
    send(&end, (&qa, &ca), (&qb, &cb));
    drop(regions);
    send(&end, (&idle[0].0, &idle[0].1), (&idle[1].0, &idle[1].1));
}

fn foreign(service: &Service) -> u64 {
    service
        .clients()
        .first()
        .map_or(0, |client| client.foreign_bytes)
}

/// A peer asks for memory that the program gave back to the system meanwhile. What is promoted the
/// service has still.
fn unmap(request: fn(Remote) -> SendWr<'static>, promotion: Promotion) {
    let _alone = alone();
    let (service, path) = new_service();
    let peer = Peer::new();
    let options = AttachOptions { promotion };
    let end = Peer::of(Node::attach_with(&path, &options).unwrap());
    let neighbour = Neighbour::start(&path, &peer);
    let connect = || {
        let ((qa, ca), (qb, cb)) = (peer.qp(), end.qp());
        qa.connect(qb.address()).unwrap();
        qb.connect(qa.address()).unwrap();
        ((qa, ca), (qb, cb))
    };
    let ((qa, ca), (_qb, _cb)) = connect();
    let ((other, of_other), (_to_other, _cq)) = connect();
    let (protection, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    // SAFETY: it is new memory.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), ROOM, protection, flags, -1, 0) };
    let start = NonNull::new(at.cast::<u8>()).unwrap();
    // SAFETY: it is there for now; the service has to bear that it is not.
    let mr = unsafe { end.pd.register_foreign(start, ROOM, Access::ALL) }.unwrap();
    let sges = [peer.mr.sge(0, ROOM)];
    let request = [request(mr.remote(0)).sges(&sges).signaled()];
    qa.post_send(&request).unwrap();
    assert_eq!(wait_for(&ca).status, Status::Success);
    for _ in 0..16 {
        qa.post_send(&request).unwrap();
    }
    // SAFETY: nobody but the service looks at it.
    assert_eq!(unsafe { libc::munmap(at, ROOM) }, 0);
    let mut ended = Status::Success;
    for _ in 0..16 {
        if ended == Status::Success {
            ended = wait_for(&ca).status;
        }
    }
    println!("{ended:?}, {} bytes promoted", mr.shared_len());
    assert_ne!(ended, Status::Flushed);
    assert_eq!(ended == Status::Success, mr.shared_len() > 0);
    let sges = [peer.mr.sge(0, 64)];
    let request = SendWr::write(end.mr.remote(0)).sges(&sges).signaled();
    other.post_send(&[request]).unwrap();
    assert_eq!(wait_for(&of_other).status, Status::Success);
    let _beside = neighbour.stop();
    assert!(service.node().health().down.is_none());
    within(Duration::from_secs(1), "both are here", || {
        service.clients().len() == 2
    });
}

#[test]
fn memory_that_is_unmapped_while_a_peer_writes_ends_that_qp_alone() {
    unmap(SendWr::write, Promotion::Never);
}

#[test]
fn memory_that_is_unmapped_while_a_peer_reads_ends_that_qp_alone() {
    unmap(SendWr::read, Promotion::Never);
}

#[test]
fn promoted_memory_that_is_unmapped_while_a_peer_writes_ends_nothing() {
    unmap(SendWr::write, Promotion::Always);
}
