//! Services that are stopped (SIGSTOP), and what programs do without them.

use super::peers::Peer;
use super::{Process, alone, play};
use crate::common::{PATIENCE, address, wait_for};
use std::os::unix::thread::JoinHandleExt;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use trunkline::{Node, RecvWr, SendWr, Status};

/// A service that does not run at the moment; it goes on when this is dropped.
struct Stopped(i32);

impl Stopped {
    /// Comes back once all threads of the process have stopped, which they do some time after the
    /// signal.
    fn new(process: &Process) -> Self {
        let pid = process.pid().cast_signed();
        // SAFETY: it is a child of this process, which lives.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGSTOP) }, 0);
        // SAFETY: all zeros are a value of the structure.
        let mut what: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let (id, how) = (process.pid(), libc::WSTOPPED);
        // SAFETY: the structure lives through the call.
        let stopped = unsafe { libc::waitid(libc::P_PID, id, &raw mut what, how) };
        assert_eq!((stopped, what.si_code), (0, libc::CLD_STOPPED));
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // SAFETY: as above.
        assert_eq!(unsafe { libc::kill(self.0, libc::SIGCONT) }, 0);
    }
}

/// The first posts of QPs and of an SRQ, as the service does not answer.
#[test]
fn no_post_asks_the_service_once_the_rings_are_made() {
    let _alone = alone();
    let path = format!("@trunkline-test/{}/stopped", std::process::id());
    let mut process = play(&format!("service {}", address()), &path);
    let begun: Result<(), String> = process.hear();
    begun.unwrap();
    let end = Peer::of(Node::attach(&path).unwrap());
    let ((qa, ca), (qb, cb)) = (end.qp(), end.qp());
    let srq = end.pd.create_srq(8, 1).unwrap();
    qa.connect(qb.address()).unwrap();
    qb.connect(qa.address()).unwrap();
    qa.make_rings().unwrap();
    qb.make_rings().unwrap();
    srq.make_ring().unwrap();
    let stopped = Stopped::new(&process);
    std::thread::scope(|threads| {
        let (done, posted) = channel();
        threads.spawn(move || {
            let sges = [end.mr.sge(0, 64)];
            let receive = RecvWr::new().sges(&sges);
            qb.post_recv(&[receive]).unwrap();
            srq.post_recv(&[receive]).unwrap();
            let send = SendWr::send().inline(b"hello").signaled();
            qa.post_send(&[send]).unwrap();
            done.send((end, qa, qb, srq)).unwrap();
        });
        let posted = posted.recv_timeout(PATIENCE);
        drop(stopped);
        let _all = posted.expect("they wait for the service");
        for cq in [&ca, &cb] {
            assert_eq!(wait_for(cq).status, Status::Success);
        }
    });
    process.tell(&());
    process.finish();
}

#[test]
fn a_node_ends_in_time_while_a_request_waits_for_a_service_that_is_stopped() {
    let _alone = alone();
    let path = format!("@trunkline-test/{}/asked", std::process::id());
    let mut process = play(&format!("service {}", address()), &path);
    let begun: Result<(), String> = process.hear();
    begun.unwrap();
    let node = Node::attach(&path).unwrap();
    let stopped = Stopped::new(&process);
    std::thread::scope(|threads| {
        let (done, ended) = channel();
        let asks = threads.spawn(|| node.create_cq(8).is_ok());
        std::thread::sleep(Duration::from_millis(200));
        let node = &node;
        threads.spawn(move || {
            let _ = node.shutdown(Duration::from_millis(100));
            // The test may have given up.
            let _ = done.send(());
        });
        let ended = ended.recv_timeout(Duration::from_secs(3));
        let until = Instant::now() + Duration::from_secs(3);
        while !asks.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        let in_time = asks.is_finished();
        drop(stopped);
        ended.expect("it waits for the service");
        assert!(in_time, "the request waits for the service");
        assert!(!asks.join().unwrap(), "nobody has answered");
    });
    process.tell(&());
    process.finish();
}

/// A signal begins a wait at a socket anew, and a timer of the program may send one all the time.
#[test]
fn a_node_ends_in_time_though_signals_come_while_its_service_is_stopped() {
    extern "C" fn nothing(_: libc::c_int) {}
    let _alone = alone();
    let path = format!("@trunkline-test/{}/signals", std::process::id());
    let mut process = play(&format!("service {}", address()), &path);
    let begun: Result<(), String> = process.hear();
    begun.unwrap();
    let node = Node::attach(&path).unwrap();
    let stopped = Stopped::new(&process);
    let handler = nothing as extern "C" fn(libc::c_int);
    // SAFETY: the handler does nothing.
    unsafe { libc::signal(libc::SIGUSR2, handler as libc::sighandler_t) };
    let ends = std::thread::spawn(move || node.shutdown(Duration::from_millis(100)));
    let start = Instant::now();
    while !ends.is_finished() && start.elapsed() < Duration::from_secs(4) {
        // SAFETY: the thread was not joined.
        unsafe { libc::pthread_kill(ends.as_pthread_t(), libc::SIGUSR2) };
        std::thread::sleep(Duration::from_millis(50));
    }
    let in_time = ends.is_finished();
    drop(stopped);
    let _ = ends.join();
    assert!(in_time, "signals keep it from its end");
    process.tell(&());
    process.finish();
}
