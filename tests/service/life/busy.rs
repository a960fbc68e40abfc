//! System calls of programs that are busy, and sleep of the worker beside them: there is none for
//! each request.

use super::peers::Peer;
use super::{alone, play};
use crate::common::{PATIENCE, address};
use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};
use trunkline::{Cq, Node, Qp, SendWr, Status};

/// Requests of a round.
const POSTS: u64 = 10_000;
/// Requests that are under way at a time.
const AHEAD: u64 = 64;
/// Rounds of which one has to have few system calls: where others have the processors, a worker
/// sleeps as soon as it has nothing to do, and is woken.
const ROUNDS: usize = 30;
/// Most of a round.
const FEW: u64 = POSTS / 10;

/// From here on each system call of this thread waits until somebody has read of it from the
/// descriptor; `None`: the kernel does not do that here.
fn be_watched() -> Option<OwnedFd> {
    let mut lines = [libc::sock_filter {
        code: (libc::BPF_RET | libc::BPF_K) as u16,
        jt: 0,
        jf: 0,
        k: libc::SECCOMP_RET_USER_NOTIF,
    }];
    let filter = libc::sock_fprog {
        len: lines.len() as u16,
        filter: lines.as_mut_ptr(),
    };
    // SAFETY: it takes numbers.
    let set = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(set, 0);
    let (what, how) = (
        libc::SECCOMP_SET_MODE_FILTER,
        libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
    );
    // SAFETY: the filter is there to be read.
    let fd = unsafe { libc::syscall(libc::SYS_seccomp, what, how, &raw const filter) };
    // SAFETY: the kernel made it just now.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd.try_into().unwrap()) })
}

/// Lets the system calls of a thread go on, which it counts by number until the thread has ended.
fn watch(fd: &OwnedFd, count: impl Fn(i32)) {
    loop {
        let mut seen = MaybeUninit::<libc::seccomp_notif>::zeroed();
        let mut ready = libc::pollfd {
            fd: fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one that is there.
        unsafe { libc::poll(&raw mut ready, 1, -1) };
        if ready.revents & libc::POLLIN == 0 {
            return;
        }
        let receive = libc::SECCOMP_IOCTL_NOTIF_RECV;
        // SAFETY: there is room for what it writes.
        let received = unsafe { libc::ioctl(fd.as_raw_fd(), receive, seen.as_mut_ptr()) };
        if received != 0 {
            continue;
        }
        // SAFETY: zeros are numbers, and so is what the kernel has written there.
        let seen = unsafe { seen.assume_init() };
        count(seen.data.nr);
        let mut answer = libc::seccomp_notif_resp {
            id: seen.id,
            val: 0,
            error: 0,
            flags: libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
        };
        let send = libc::SECCOMP_IOCTL_NOTIF_SEND;
        // SAFETY: the answer is there; the thread may have been interrupted, and asks again.
        unsafe { libc::ioctl(fd.as_raw_fd(), send, &raw mut answer) };
    }
}

/// What a thread that is to be watched has found: nothing yet.
const UNKNOWN: i32 = -1;
/// That it cannot be.
const NEVER: i32 = -2;

/// Runs something in a thread, which `count` hears each system call of; whether it could.
fn watched(work: impl FnOnce() + Send, count: impl Fn(i32)) -> bool {
    let found = AtomicI32::new(UNKNOWN);
    std::thread::scope(|threads| {
        let thread = threads.spawn(|| {
            let fd = be_watched();
            let number = fd.as_ref().map_or(NEVER, AsRawFd::as_raw_fd);
            // Whoever watches closes it.
            std::mem::forget(fd);
            found.store(number, Ordering::Release);
            if number != NEVER {
                work();
            }
        });
        // The thread can wake nobody before it is watched.
        while found.load(Ordering::Acquire) == UNKNOWN {
            std::thread::sleep(Duration::from_millis(1));
        }
        let fd = found.load(Ordering::Acquire);
        if fd != NEVER {
            // SAFETY: the thread has left it to this one.
            watch(&unsafe { OwnedFd::from_raw_fd(fd) }, count);
        }
        thread.join().unwrap();
        fd != NEVER
    })
}

/// How often threads of a process went to sleep.
fn sleeps(pid: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let of_task = |task: std::fs::DirEntry| {
        let status = std::fs::read_to_string(task.path().join("status")).ok()?;
        let count = status
            .lines()
            .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        count?.trim().parse::<u64>().ok()
    };
    tasks.flatten().filter_map(of_task).sum()
}

/// Posts each request alone, and polls until all are done.
fn round(qp: &Qp, cq: &Cq, request: SendWr<'_>) {
    let end = Instant::now() + PATIENCE;
    let (mut posted, mut done) = (0, 0);
    while done < POSTS {
        if posted < POSTS && posted - done < AHEAD {
            qp.post_send(&[request]).unwrap();
            posted += 1;
        }
        while let Some(completion) = cq.poll_one().unwrap() {
            assert_eq!(completion.status, Status::Success);
            done += 1;
        }
        assert!(Instant::now() < end, "{done} of {posted} are done");
    }
}

#[test]
fn a_busy_program_and_its_worker_make_no_system_call_for_each_request() {
    let _alone = alone();
    let path = format!("@trunkline-test/{}/busy", std::process::id());
    let mut process = play(&format!("service {}", address()), &path);
    let begun: Result<(), String> = process.hear();
    begun.unwrap();
    let end = Peer::of(Node::attach(&path).unwrap());
    let ((qa, ca), (qb, _cb)) = (end.qp(), end.qp());
    qa.connect(qb.address()).unwrap();
    qb.connect(qa.address()).unwrap();
    qa.make_rings().unwrap();
    let (from, to) = ([end.mr.sge(0, 8)], end.mr.remote(64));
    let request = SendWr::write(to).sges(&from).signaled();
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let calls = Mutex::new(BTreeMap::<i32, u64>::new());
        let count = |number| *calls.lock().unwrap().entry(number).or_default() += 1;
        let before = sleeps(process.pid());
        if !watched(|| round(&qa, &ca, request), count) {
            eprintln!("not run: the kernel tells nobody of system calls (seccomp(2))");
            return;
        }
        let of_worker = sleeps(process.pid()) - before;
        let calls = calls.into_inner().unwrap();
        let of_program: u64 = calls.values().sum();
        println!("{of_program} system calls {calls:?}, {of_worker} times the worker slept");
        rounds.push((of_program, of_worker));
        if of_program < FEW && of_worker < FEW {
            process.tell(&());
            return process.finish();
        }
    }
    panic!("system calls of the program, and sleep of the service: {rounds:?}");
}
