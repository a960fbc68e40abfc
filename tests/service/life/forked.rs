//! Programs that made children by fork(2).

use super::peers::Peer;
use super::roles::connect;
use super::{alone, new_service, play, rest, say, within};
use crate::common::wait_for;
use std::sync::Arc;
use std::time::Duration;
use trunkline::{Access, Down, Error, Node, Notify, QpModify, QpOptions, RecvWr, SendWr, Status};

/// Makes a child that does this, and exits with what it gives.
fn fork(child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child calls what is given and ends.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: it has no conditions; who inherits a process has none of its alarm.
            unsafe { libc::alarm(20) };
            let code = child();
            // SAFETY: it has no conditions.
            unsafe { libc::_exit(code) }
        }
        pid => pid,
    }
}

/// Keeps all that it inherits, but what the test reads.
fn rest_alone() -> i32 {
    for fd in 0..=2 {
        // SAFETY: nobody uses it here.
        unsafe { libc::close(fd) };
    }
    rest()
}

/// Attaches, and has a child that keeps the socket open.
pub(super) fn forks(path: &str) {
    let _node = Node::attach(path).unwrap();
    say(&fork(rest_alone));
    rest();
}

/// Connects and says nothing, and has a child that keeps the socket open when it ends.
pub(super) fn silent_forks(path: &str) {
    let _socket = connect(path);
    say(&fork(rest_alone));
    rest();
}

fn kill_with_child(role: &str) {
    let _alone = alone();
    let (service, path) = new_service();
    let without = sockets();
    let mut process = play(role, &path);
    let child: i32 = process.hear();
    within(Duration::from_secs(2), "it is let in", || {
        sockets() > without && (role != "forks" || service.clients().len() == 1)
    });
    let pid = process.pid();
    let at = process.kill();
    if role == "forks" {
        within(Duration::from_secs(5), "clients() without it", || {
            let clients = service.clients();
            clients.iter().all(|client| client.pid != Some(pid))
        });
    }
    within(Duration::from_secs(5), "its socket is closed", || {
        sockets() <= without
    });
    println!("{role}: reaped after {:?}", at.elapsed());
    // SAFETY: it is the child's child, which lives until now.
    assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0);
}

fn sockets() -> usize {
    let fds = std::fs::read_dir("/proc/self/fd").unwrap();
    let links = fds.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
    links
        .filter(|link| link.to_string_lossy().starts_with("socket:"))
        .count()
}

#[test]
fn killed_while_a_child_keeps_its_socket() {
    kill_with_child("forks");
}

#[test]
fn killed_before_it_said_a_word_while_a_child_keeps_its_socket() {
    kill_with_child("silent forks");
}

/// Whether a call says that it is of another process.
fn is_forked<T>(result: Result<T, Error>) -> bool {
    matches!(result, Err(Error::Down(Down::Forked)))
}

/// Calls everything in a child, and then goes on.
pub(super) fn calls_in_a_child(path: &str) {
    let end = Peer::of(Node::attach(path).unwrap());
    let ((qa, ca), (qb, cb)) = (end.qp(), end.qp());
    qa.connect(qb.address()).unwrap();
    qb.connect(qa.address()).unwrap();
    let srq = end.pd.create_srq(8, 1).unwrap();
    let send = SendWr::send().inline(b"hello").signaled();
    let sges = [end.mr.sge(0, 64)];
    let receive = RecvWr::new().sges(&sges);
    // A completion waits, which is the parent's.
    qb.post_recv(&[receive]).unwrap();
    qa.post_send(&[send]).unwrap();
    assert_eq!(wait_for(&cb).status, Status::Success);
    let pid = fork(|| {
        let wrong = [
            is_forked(qa.post_send(&[send])),
            is_forked(qa.post_recv(&[receive])),
            is_forked(srq.post_recv(&[receive])),
            is_forked(end.node.create_cq(8)),
            is_forked(end.pd.register(64, Access::ALL)),
            is_forked(end.pd.create_qp(&ca, &ca, &QpOptions::default())),
            is_forked(qa.modify(&QpModify::Error)),
            is_forked(qa.query()),
            is_forked(ca.wait(Duration::from_millis(10))),
            is_forked(end.node.wait_event(Duration::from_millis(10))),
            matches!(ca.poll_one(), Ok(None)),
            end.node.poll_event().is_none(),
            end.node.health().down == Some(Down::Forked),
        ];
        let wrong = wrong.iter().position(|right| !right);
        ca.take_events();
        ca.arm(false);
        drop((qa, qb, ca, cb, srq, end));
        wrong.map_or(100, |at| at as i32)
    });
    let mut status = 0;
    // SAFETY: `status` is there to be written.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert_eq!(
        libc::WEXITSTATUS(status),
        100,
        "{status:#x}: which is wrong"
    );
}

/// Descriptors that the epoll instances of this process watch (`proc_pid_fdinfo(5)`).
fn watched() -> usize {
    let all = std::fs::read_dir("/proc/self/fdinfo").unwrap().flatten();
    let texts = all.filter_map(|fd| std::fs::read_to_string(fd.path()).ok());
    let of_one = |text: String| text.lines().filter(|line| line.starts_with("tfd:")).count();
    texts.map(of_one).sum()
}

/// Drops a CQ that notifies it, of which a child has the descriptors still.
pub(super) fn lets_go_of_a_cq(path: &str) {
    struct Silent;
    impl Notify for Silent {
        fn notify(&self) {}
    }
    let node = Node::attach(path).unwrap();
    let before = watched();
    let cq = node.create_cq_notifying(8, Arc::new(Silent)).unwrap();
    let with = watched();
    let child = fork(rest_alone);
    drop(cq);
    // What is left is that the CQ's own instance, which the child has, watches what it did.
    say(&(before, with, watched()));
    // SAFETY: it is a child of this process, which lives.
    assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0);
}

#[test]
fn a_cq_that_is_gone_is_watched_no_more_though_a_child_has_its_descriptors() {
    let _alone = alone();
    let (_service, path) = new_service();
    let mut process = play("lets go", &path);
    let (before, with, after): (usize, usize, usize) = process.hear();
    println!("{before} before, {with} with it, {after} after");
    assert!(with > before);
    assert_eq!(after, before);
    process.finish();
}

/// As above; what the parent has goes on.
#[test]
fn a_child_of_a_program_hears_that_it_has_none_of_it() {
    let _alone = alone();
    let (service, path) = new_service();
    play("forked", &path).finish();
    within(Duration::from_secs(2), "it is reaped", || {
        service.clients().is_empty()
    });
    assert_eq!(service.violations(), 0);
}
