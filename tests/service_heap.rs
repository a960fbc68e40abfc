//! Programs that come and go leave nothing in the heap of their service, nor in that of the node
//! that they talked to. A program of its own, as its allocator counts, and one test, as nothing
//! else may allocate meanwhile.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::process::{Process, hear, say};
use common::{End, PATIENCE, Pair, address, service, wait_for};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use std::alloc::System;
use std::time::{Duration, Instant};
use trunkline::service::Service;
use trunkline::{
    Access, Cq, Drive, Mr, Node, Pd, Qp, QpAddress, QpOptions, RecvWr, SendWr, Status,
};

#[global_allocator]
static HEAP: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Says where the service is to a process that is programs of it.
const PATH: &str = "TRUNKLINE_TEST_PATH";
/// Seconds after which such a process ends, whatever happens.
const LIFE: u32 = 60;
/// Programs of a process, at the same time.
const TOGETHER: usize = 8;
/// Processes before anything counts: tables and queues get room for as much as there is at once.
const WARM_UP: usize = 90;
/// Processes that count. They are as many, so that a table which only grows doubles meanwhile.
const COUNTED: usize = 90;
/// Workers of the service.
const WORKERS: usize = 2;
/// More QPs than rest at a worker.
const RESTING: usize = 1100;
/// Bytes of a message.
const LENGTH: usize = 20_000;
/// Bytes for each program that a measurement may be off: half of the least that a program leaks.
const MOST: i64 = 8;
/// How long it takes until nothing changes any more.
const SETTLE: Duration = Duration::from_secs(2);

#[test]
#[ignore = "the other one runs it in processes of its own"]
fn a_process() {
    if let Ok(path) = std::env::var(PATH) {
        // SAFETY: it has no conditions.
        unsafe { libc::alarm(LIFE) };
        be_programs(&path);
    }
}

/// A program with some of everything.
struct Program {
    _node: Node,
    _pd: Pd,
    cq: Cq,
    mr: Mr,
    _mr: Mr,
    qp: Qp,
}

impl Program {
    fn attach(path: &str) -> Self {
        let node = Node::attach(path).unwrap();
        let (pd, cq) = (node.alloc_pd(), node.create_cq(64).unwrap());
        let mr = pd.register(LENGTH, Access::ALL).unwrap();
        let heap = Box::leak(vec![1; LENGTH].into_boxed_slice());
        let at = std::ptr::NonNull::new(heap.as_mut_ptr()).unwrap();
        // SAFETY: it is leaked, and nobody else looks at it.
        let other = unsafe { pd.register_foreign(at, LENGTH, Access::ALL) }.unwrap();
        let srq = pd.create_srq(16, 1).unwrap();
        let options = QpOptions {
            srq: Some(srq),
            ..QpOptions::default()
        };
        let qp = pd.create_qp(&cq, &cq, &options).unwrap();
        cq.arm(false);
        Self {
            _node: node,
            _pd: pd,
            cq,
            mr,
            _mr: other,
            qp,
        }
    }

    fn send(&self) {
        let sges = [self.mr.sge(0, LENGTH)];
        let request = SendWr::send().sges(&sges).signaled();
        self.qp.post_send(&[request]).unwrap();
    }
}

/// Programs that send, and end in order once they are told to.
fn be_programs(path: &str) {
    let programs: Vec<_> = (0..TOGETHER).map(|_| Program::attach(path)).collect();
    for program in &programs {
        say(&program.qp.address());
        program.qp.connect(hear()).unwrap();
        program.send();
        assert_eq!(wait_for(&program.cq).status, Status::Success);
        // For these there are no receives.
        program.send();
        program.send();
        say(&());
    }
    let () = hear();
}

/// A service, a node that programs of it talk to, and a pair of QPs between these that stays.
struct Scene {
    service: Service,
    path: String,
    pair: Pair,
    _qps: (Qp, Qp),
}

impl Scene {
    fn new() -> Self {
        let (service, path) = service(Node::builder().address(address()).workers(WORKERS as u8));
        let far = Node::builder().address(address()).drive(Drive::Threaded);
        let pair = Pair {
            a: End::of(Node::attach(&path).unwrap()),
            b: End::of(far.build().unwrap()),
        };
        let qps = pair.qps();
        Self {
            service,
            path,
            pair,
            _qps: qps,
        }
    }

    /// Programs that come, talk to the node and end.
    fn cycle(&self, in_order: bool) {
        let mut process = Process::start("a_process", &[(PATH, &self.path)]);
        let far = &self.pair.b;
        let mut qps = Vec::new();
        for _ in 0..TOGETHER {
            let theirs: QpAddress = process.hear();
            let qp = far.qp(&QpOptions::default());
            let sges = [far.mr.sge(0, LENGTH)];
            qp.connect(theirs).unwrap();
            qp.post_recv(&[RecvWr::new().sges(&sges)]).unwrap();
            process.tell(&qp.address());
            let () = process.hear();
            assert_eq!(wait_for(&far.recv_cq).status, Status::Success);
            qps.push(qp);
        }
        if in_order {
            process.tell(&());
            process.finish();
        } else {
            process.kill();
        }
        drop(qps);
        self.take_events();
        let start = Instant::now();
        while self.service.clients().len() > 1 {
            assert!(start.elapsed() < PATIENCE, "programs stay");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Numbers of QPs that are gone rest, and keep their places in tables, until so many have gone
    /// after them: lets that be so at both nodes.
    fn let_numbers_rest(&self) {
        for _ in 0..RESTING * WORKERS {
            drop(self.pair.qps());
            self.take_events();
        }
    }

    /// They wait for the programs, which have to take them.
    fn take_events(&self) {
        for end in [&self.pair.a, &self.pair.b] {
            while end.node.poll_event().is_some() {}
        }
    }

    fn cycles(&self, count: usize) {
        for number in 0..count {
            self.cycle(number % 2 == 0);
        }
    }
}

/// Live bytes.
fn allocated() -> i64 {
    let stats = HEAP.stats();
    // What it calls reallocated is part of both.
    stats.bytes_allocated as i64 - stats.bytes_deallocated as i64
}

/// The same once what is told and acknowledged late is: the least of a while.
fn settled() -> i64 {
    let start = Instant::now();
    let mut least = allocated();
    while start.elapsed() < SETTLE {
        std::thread::sleep(Duration::from_millis(10));
        least = least.min(allocated());
    }
    least
}

#[test]
fn programs_that_come_and_go_leave_no_byte_in_the_heap_of_a_service() {
    let scene = Scene::new();
    scene.let_numbers_rest();
    scene.cycles(WARM_UP);
    let before = settled();
    scene.cycles(COUNTED);
    let (more, programs) = (settled() - before, (COUNTED * TOGETHER) as i64);
    println!("{more} bytes more than before, after {programs} programs");
    assert!(more < programs * MOST, "{more} bytes more than before");
}
