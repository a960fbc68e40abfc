//! What becomes of a node whose worker meets trouble, and of its handles in a child process.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::faulty::{self, Fault, Switch};
use common::{End, PATIENCE, address, inline, next, until, wait_for};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use trunkline::{
    Access, ConnectionOptions, Down, Drive, Error, Event, Node, Qp, QpModify, QpOptions, QpState,
    SendFlags, SendOp, Status,
};

/// A threaded node on a faulty port, with a QP towards a node that is not there: what is posted to
/// it is outstanding.
struct Bench {
    end: End,
    qp: Qp,
    fault: Switch,
}

fn bench() -> Bench {
    let builder = Node::builder().peer_timeout(Duration::from_secs(600));
    let (node, fault) = faulty::node(address(), builder);
    let end = End::of(node);
    let qp = end.qp(&QpOptions::default());
    qp.modify(&trunkline::QpModify::Init {
        access: Access::ALL,
    })
    .unwrap();
    end.receive(&qp, 7, 0, 64);
    Bench { end, qp, fault }
}

/// The node says that it failed because of `why`, in every way that there is.
fn has_failed(bench: &Bench, why: &str) {
    let flushed = wait_for(&bench.end.recv_cq);
    assert_eq!((flushed.status, flushed.wr_id), (Status::Flushed, 7));
    assert_eq!(bench.qp.state(), QpState::Error);
    let node = &bench.end.node;
    let down = node.health().down.unwrap();
    assert!(
        matches!(&down, Down::Failed { worker: 0, why: says } if says.contains(why)),
        "{down}"
    );
    assert!(matches!(node.poll_event(), Some(Event::DeviceFatal)));
    assert!(node.poll_event().is_none(), "it is told once");
    let send = SendOp::Send;
    let posted = bench
        .end
        .try_post(&bench.qp, 1, send, SendFlags::SIGNALED, 0, 8);
    assert!(
        matches!(posted, Err(Error::Down(Down::Failed { .. }))),
        "{posted:?}"
    );
    assert!(node.create_cq(1).is_err());
    assert!(node.alloc_pd().register(64, Access::ALL).is_err());
}

#[test]
fn a_worker_that_panics_ends_the_node_loudly() {
    let bench = bench();
    bench.fault.set(Fault::ReceivePanics);
    has_failed(&bench, faulty::PANIC);
}

#[test]
fn a_port_that_is_gone_ends_the_node_loudly() {
    let bench = bench();
    bench.fault.set(Fault::IsGone);
    has_failed(&bench, "recvmsg");
}

#[test]
fn no_call_of_a_program_waits_for_a_system_call() {
    let Bench { end, qp, fault } = bench();
    fault.set(Fault::Stalls);
    end.node
        .open_connection(address(), &ConnectionOptions::default())
        .unwrap();
    until(&[], "the worker sends", || fault.is(Fault::Stalled));
    let (done, is_done) = mpsc::channel();
    std::thread::spawn(move || {
        let another = end.qp(&QpOptions::default());
        another
            .modify(&QpModify::Init {
                access: Access::ALL,
            })
            .unwrap();
        drop((another, qp));
        assert_eq!(end.node.connection_count(), 0);
        done.send(end).unwrap();
    });
    let end = is_done.recv_timeout(PATIENCE);
    assert!(fault.is(Fault::Stalled), "the worker still sends");
    fault.set(Fault::None);
    end.expect("the calls waited for the worker");
}

/// Standard error may be a file on a full disk.
#[test]
fn a_node_that_fails_where_it_cannot_say_so_has_its_qps_in_error_all_the_same() {
    let full = std::fs::File::options().write(true).open("/dev/full");
    let mut tests = Command::new(std::env::current_exe().unwrap());
    tests.args(["--exact", "a_port_that_is_gone_ends_the_node_loudly"]);
    tests.arg("--nocapture").stderr(full.unwrap());
    let output = tests.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("1 passed"), "{said}");
}

#[test]
fn a_call_that_panics_in_the_node_ends_it_loudly() {
    let bench = bench();
    bench.fault.set(Fault::CountersPanic);
    let called = catch_unwind(AssertUnwindSafe(|| bench.end.node.port_counters()));
    assert!(called.is_err());
    has_failed(&bench, "panicked");
}

#[test]
fn a_shortage_of_buffers_passes_and_is_counted() {
    let (bench, peer) = (bench(), End::new(Node::builder().address(address())));
    bench.fault.set(Fault::LacksBuffers);
    let end = Instant::now() + PATIENCE;
    while bench.end.node.health().passing_errors < 5 {
        assert!(Instant::now() < end, "errors are counted");
        std::thread::sleep(Duration::from_millis(1));
    }
    bench.fault.set(Fault::None);
    assert_eq!(bench.end.node.health().down, None);
    let qps = (
        bench.end.qp(&QpOptions::default()),
        peer.qp(&QpOptions::default()),
    );
    qps.0.connect(qps.1.address()).unwrap();
    qps.1.connect(qps.0.address()).unwrap();
    let write = SendOp::Write(peer.mr.remote(0));
    bench.end.post(&qps.0, 1, write, 0, 64);
    assert_eq!(wait_for(&bench.end.send_cq).status, Status::Success);
}

#[test]
fn a_passing_error_of_one_worker_is_told_and_keeps_no_other_one_from_its_round() {
    let builder = Node::builder().drive(Drive::Inline);
    let (node, [fault, _]) = faulty::node_of_workers(address(), builder);
    let (end, peer) = (End::of(node), End::new(Node::builder().address(address())));
    let qps = [(); 2].map(|()| end.qp(&QpOptions::default()));
    let qp = qps.iter().find(|qp| qp.worker() == 1).unwrap();
    let theirs = peer.qp(&QpOptions::default());
    qp.connect(theirs.address()).unwrap();
    theirs.connect(qp.address()).unwrap();
    let write = SendOp::Write(peer.mr.remote(0));
    end.post(qp, 1, write, 0, 64);
    assert_eq!(next(&[&end.node], &end.send_cq).status, Status::Success);
    fault.set(Fault::LacksBuffers);
    end.post(qp, 2, write, 0, 64);
    let patience = Instant::now() + Duration::from_secs(5);
    let done = loop {
        let error = end.node.poll().unwrap_err();
        assert!(matches!(error, Error::Port(_)), "{error}");
        if let Some(done) = end.send_cq.poll_one().unwrap() {
            break done;
        }
        assert!(Instant::now() < patience, "the other worker has no round");
    };
    assert_eq!((done.wr_id, done.status), (2, Status::Success));
}

/// An inline node that lacks buffers, with a WRITE to a peer under way that went well before.
fn lacking_buffers() -> (End, End, [Qp; 2], Switch) {
    let (node, fault) = faulty::node(address(), Node::builder().drive(Drive::Inline));
    let (end, peer) = (End::of(node), End::new(Node::builder().address(address())));
    let qps = [&end, &peer].map(|end| end.qp(&QpOptions::default()));
    qps[0].connect(qps[1].address()).unwrap();
    qps[1].connect(qps[0].address()).unwrap();
    let write = SendOp::Write(peer.mr.remote(0));
    end.post(&qps[0], 1, write, 0, 64);
    assert_eq!(next(&[&end.node], &end.send_cq).status, Status::Success);
    fault.set(Fault::LacksBuffers);
    end.post(&qps[0], 2, write, 0, 64);
    (end, peer, qps, fault)
}

#[test]
fn a_node_that_ends_outlasts_an_error_that_passes() {
    let (end, _peer, _qps, fault) = lacking_buffers();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            fault.set(Fault::None);
        });
        end.node.shutdown(Duration::from_secs(30)).unwrap();
    });
    assert_eq!(wait_for(&end.send_cq).status, Status::Success);
    assert_eq!(end.node.health().down, Some(Down::ShutDown));
}

/// Runs `child` in a child process; gives what it says, 0 if all is well.
fn in_child(child: impl FnOnce() -> u8) -> i32 {
    // SAFETY: the child runs `child` and ends; the C library's locks are whole in it, as fork(3)
    // sees to those of memory and streams.
    match unsafe { libc::fork() } {
        0 => {
            let code = catch_unwind(AssertUnwindSafe(child)).unwrap_or(99);
            // SAFETY: it ends the child without running what belongs to the parent.
            unsafe { libc::_exit(code.into()) }
        }
        child => {
            let mut status = 0;
            // SAFETY: a child of ours, and room for its status.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert!(libc::WIFEXITED(status), "the child died of {status:#x}");
            libc::WEXITSTATUS(status)
        }
    }
}

#[test]
fn a_childs_calls_fail_cleanly_and_its_parent_goes_on() {
    let [a, b] = [(); 2].map(|()| End::new(Node::builder().address(address()).workers(2)));
    let (qa, qb) = (a.qp(&QpOptions::default()), b.qp(&QpOptions::default()));
    qa.connect(qb.address()).unwrap();
    qb.connect(qa.address()).unwrap();
    let write = || {
        a.post(&qa, 1, SendOp::Write(b.mr.remote(0)), 0, 64);
        assert_eq!(wait_for(&a.send_cq).status, Status::Success);
    };
    write();
    let channel = a.node.create_event_channel().unwrap();
    let forked = |result: Result<(), Error>| matches!(result, Err(Error::Down(Down::Forked)));
    let mut ends = Some((a, qa, channel));
    let code = in_child(|| {
        let (a, qa, channel) = ends.take().unwrap();
        let write = SendOp::Write(b.mr.remote(0));
        let sges = SendFlags::SIGNALED;
        let checks = [
            forked(a.try_post(&qa, 1, write, sges, 0, 64)),
            forked(qa.modify(&trunkline::QpModify::Error)),
            forked(a.node.create_cq(4).map(drop)),
            forked(a.node.alloc_pd().register(64, Access::ALL).map(drop)),
            forked(a.node.poll().map(drop)),
            forked(a.node.fd().map(drop)),
            forked(a.node.try_wait().map(drop)),
            a.node.health().down == Some(Down::Forked),
            a.send_cq.poll_one().unwrap().is_none(),
            a.node.poll_event().is_none(),
            channel.get_event(Duration::from_secs(60)).is_none(),
            a.node.connection_count() == 0,
            a.node.counters() == trunkline::Counters::default(),
            a.node.cm_stats() == trunkline::status::CmStats::default(),
            a.node.state_bytes().total() == 0,
        ];
        // Neither is joined what runs in the parent, nor does the peer hear of it.
        drop((qa, channel, a));
        match checks.iter().position(|good| !good) {
            Some(bad) => bad as u8 + 1,
            None => 0,
        }
    });
    assert_eq!(code, 0, "the first check that failed in the child");
    let (a, qa, _channel) = ends.as_ref().unwrap();
    assert_eq!((qa.state(), qb.state()), (QpState::Rts, QpState::Rts));
    a.post(qa, 1, SendOp::Write(b.mr.remote(0)), 0, 64);
    assert_eq!(wait_for(&a.send_cq).status, Status::Success);
}

#[test]
fn a_child_waits_on_no_descriptor_of_its_parent_and_reads_none() {
    for workers in [1, 2] {
        let end = End::new(inline().workers(workers));
        let (node, qp) = (&end.node, end.qp(&QpOptions::default()));
        qp.connect(qp.address()).unwrap();
        let write = SendOp::Write(end.mr.remote(0));
        end.post(&qp, 1, write, 0, 64);
        assert_eq!(next(&[node], &end.send_cq).status, Status::Success);
        let is_readable = || {
            let fd = PollFd::from_borrowed_fd(node.fd().unwrap(), PollFlags::IN);
            rustix::event::poll(&mut [fd], Some(&Timespec::default())) == Ok(1)
        };
        until(&[node], "a moment of rest", || {
            node.try_wait().unwrap() && !is_readable()
        });
        end.post(&qp, 2, write, 0, 64);
        assert!(is_readable(), "a request was posted");
        let forked = |error: Option<Error>| matches!(error, Some(Error::Down(Down::Forked)));
        let code = in_child(|| {
            let checks = [
                forked(node.poll().err()),
                forked(node.wait(Duration::ZERO).err()),
                forked(node.fd().err()),
                forked(node.worker_fd(0).err()),
                forked(node.try_wait().err()),
                forked(node.try_wait_worker(0).err()),
            ];
            checks
                .iter()
                .position(|good| !good)
                .map_or(0, |bad| bad as u8 + 1)
        });
        assert_eq!(code, 0, "the first check that failed in the child");
        assert!(is_readable(), "the child read what was written to wake");
    }
}

#[test]
fn no_thread_of_a_node_takes_the_programs_signals() {
    let own = address();
    let _node = Node::builder().address(own).workers(2).build().unwrap();
    // A thread gives itself its name once it runs.
    until(&[], "two workers and the status server", || {
        named_threads() >= 3
    });
}

/// Threads of nodes. None of them takes signals of the program.
fn named_threads() -> usize {
    let mut threads = 0;
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let task = task.unwrap().path();
        // Other tests' threads come and go.
        let Ok(status) = std::fs::read_to_string(task.join("status")) else {
            continue;
        };
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_default().trim().to_owned()
        };
        if !field("Name:").starts_with("trunkline") {
            continue;
        }
        threads += 1;
        let blocked = u64::from_str_radix(&field("SigBlk:"), 16).unwrap();
        for signal in [libc::SIGUSR1, libc::SIGINT, libc::SIGTERM, libc::SIGALRM] {
            assert_ne!(
                blocked & 1 << (signal - 1),
                0,
                "{} {signal}",
                field("Name:")
            );
        }
    }
    threads
}

#[test]
fn a_node_that_fails_while_it_ends_says_so_at_once() {
    let (end, _peer, _qps, fault) = lacking_buffers();
    let began = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            fault.set(Fault::IsGone);
        });
        let ended = end.node.shutdown(Duration::from_secs(30));
        assert!(
            matches!(ended, Err(Error::Down(Down::Failed { .. }))),
            "{ended:?}"
        );
    });
    assert!(began.elapsed() < Duration::from_secs(10));
    assert_eq!(wait_for(&end.send_cq).status, Status::Flushed);
}

#[test]
fn a_node_that_ends_gives_up_an_error_that_stays_when_time_is_up() {
    for workers in [1, 2] {
        let builder = Node::builder().drive(Drive::Inline);
        let (node, faults) = match workers {
            1 => {
                let (node, fault) = faulty::node(address(), builder);
                (node, vec![fault])
            }
            _ => {
                let (node, faults) = faulty::node_of_workers::<2>(address(), builder);
                (node, faults.to_vec())
            }
        };
        let end = End::of(node);
        let qp = end.qp(&QpOptions::default());
        qp.connect(qp.address()).unwrap();
        faults
            .iter()
            .for_each(|fault| fault.set(Fault::LacksBuffers));
        let write = SendOp::Write(end.mr.remote(0));
        end.post(&qp, 2, write, 0, 64);
        let began = Instant::now();
        let ended = end.node.shutdown(Duration::from_millis(200));
        assert!(matches!(ended, Err(Error::Unfinished)), "{ended:?}");
        let took = began.elapsed();
        assert!((200..5000).contains(&(took.as_millis() as u64)), "{took:?}");
        assert_eq!(end.node.health().down, Some(Down::ShutDown));
        assert_eq!(wait_for(&end.send_cq).status, Status::Flushed);
    }
}

#[test]
fn who_waits_for_the_end_of_a_node_that_another_thread_ends_has_no_error() {
    for drive in [Drive::Inline, Drive::Threaded] {
        let (node, _fault) = faulty::node(
            address(),
            Node::builder()
                .drive(drive)
                .peer_timeout(Duration::from_secs(600)),
        );
        let (end, peer) = (End::of(node), End::new(Node::builder().address(address())));
        let (qp, theirs) = (
            end.qp(&QpOptions::default()),
            peer.qp(&QpOptions::default()),
        );
        qp.connect(theirs.address()).unwrap();
        theirs.connect(qp.address()).unwrap();
        // There is no receive.
        end.post(&qp, 2, SendOp::Send, 0, 64);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| end.node.shutdown(Duration::from_secs(30)));
            std::thread::sleep(Duration::from_millis(50));
            let ended = end.node.shutdown(Duration::ZERO);
            assert!(matches!(ended, Err(Error::Unfinished)), "{ended:?}");
            let ended = waits.join().unwrap();
            assert!(!matches!(ended, Err(Error::Down(_))), "{ended:?}");
        });
    }
}

#[test]
fn a_childs_shutdown_says_whose_the_node_is_at_once() {
    for drive in [Drive::Inline, Drive::Threaded] {
        let end = End::new(Node::builder().address(address()).drive(drive));
        let qp = end.qp(&QpOptions::default());
        qp.connect(qp.address()).unwrap();
        let began = Instant::now();
        let code = in_child(|| {
            let ended = end.node.shutdown(Duration::from_secs(20));
            u8::from(!matches!(ended, Err(Error::Down(Down::Forked))))
        });
        assert_eq!(code, 0);
        assert!(began.elapsed() < Duration::from_secs(5));
        assert_eq!(end.node.health().down, None);
    }
}

#[test]
fn who_reads_ahead_may_outlive_the_qp_and_the_node() {
    let end = End::new(Node::builder().address(address()));
    let qp = end.qp(&QpOptions::default());
    let ahead = qp.look_ahead();
    ahead.post_send();
    qp.connect(qp.address()).unwrap();
    let write = SendOp::Write(end.mr.remote(0));
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                ahead.clone().post_send();
            }
        });
        for wr_id in 0..500 {
            end.post(&qp, wr_id, write, 0, 64);
            assert_eq!(wait_for(&end.send_cq).status, Status::Success);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    let number = qp.qpn();
    assert!(format!("{ahead:?}").contains(&number.to_string()));
    let with_qp = end.node.state_bytes().total();
    drop(qp);
    ahead.post_send();
    until(&[], "the QP goes", || {
        end.node.state_bytes().total() < with_qp
    });
    // Its CQ is not held by it, nor its place.
    let again = end.qp(&QpOptions::default());
    again.connect(again.address()).unwrap();
    end.post(&again, 1, write, 0, 64);
    assert_eq!(wait_for(&end.send_cq).status, Status::Success);
    drop(again);
    drop(end);
    ahead.post_send();
}
