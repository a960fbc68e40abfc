use super::*;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

type Events = CqEvents<OwnedFd>;

/// A CQ of a test: its descriptor, and its name in the channel.
struct Listed {
    raised: OwnedFd,
    token: Token,
    unacked: Arc<Unacked>,
}

fn list(events: &Events, cq: usize) -> Listed {
    let raised = eventfd(0, EventfdFlags::CLOEXEC).expect("a descriptor");
    let (token, unacked) = (events.token(), Arc::default());
    let theirs = raised.try_clone().expect("a descriptor");
    let watched = events.watch(token, theirs, cq, &unacked);
    watched.expect("room for it");
    Listed {
        raised,
        token,
        unacked,
    }
}

impl Listed {
    fn raise(&self) {
        let written = rustix::io::write(&self.raised, &1u64.to_ne_bytes());
        assert_eq!(written, Ok(8));
    }
}

fn set_nonblocking(events: &Events) {
    rustix::fs::fcntl_setfl(&events.epoll, rustix::fs::OFlags::NONBLOCK).expect("a flag");
}

fn is_readable(events: &Events) -> bool {
    let mut fds = [PollFd::new(&events.epoll, PollFlags::IN)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut fds, Some(&now)).expect("poll of one descriptor") == 1
}

/// The CQ of the next event; `None`: none waits.
fn taken(events: &Events) -> Option<usize> {
    match next(events.fd(), &events.looks) {
        Ok(token) => events.take(token),
        Err(errno) => {
            assert_eq!(errno, Errno(libc::EAGAIN));
            None
        }
    }
}

#[test]
fn each_event_is_told_once_and_the_descriptor_is_readable_until_then() {
    let events = Events::new().expect("a descriptor");
    set_nonblocking(&events);
    let cqs = [list(&events, 10), list(&events, 11)];
    assert!(!is_readable(&events));
    assert_eq!(taken(&events), None);
    for round in 0..3 {
        cqs[0].raise();
        cqs[1].raise();
        assert!(
            is_readable(&events) && is_readable(&events),
            "round {round}"
        );
        let mut told = [taken(&events), taken(&events)];
        told.sort_unstable();
        assert_eq!(told, [Some(10), Some(11)], "round {round}");
        assert!(!is_readable(&events), "round {round}");
        assert_eq!(taken(&events), None);
    }
    for cq in &cqs {
        cq.unacked.acknowledge(3);
        cq.unacked.wait_for_none();
    }
}

#[test]
fn what_is_raised_again_before_it_was_told_is_told_once() {
    let events = Events::new().expect("a descriptor");
    set_nonblocking(&events);
    let cq = list(&events, 10);
    (0..5).for_each(|_| cq.raise());
    assert_eq!(taken(&events), Some(10));
    assert_eq!(taken(&events), None);
}

#[test]
fn nothing_is_told_of_a_cq_that_was_forgotten() {
    let events = Events::new().expect("a descriptor");
    set_nonblocking(&events);
    let [first, second] = [list(&events, 10), list(&events, 11)];
    first.raise();
    events.forget(first.token);
    assert!(!is_readable(&events));
    // Its descriptor lives on here, as in a child of the process.
    first.raise();
    assert_eq!(taken(&events), None);
    // One who was told is too late.
    second.raise();
    let token = next(events.fd(), &events.looks).expect("it was raised");
    events.forget(second.token);
    assert_eq!(events.take(token), None);
    second.unacked.wait_for_none();
    let third = list(&events, 12);
    assert_ne!(third.token, token);
}

#[test]
fn one_thread_of_many_that_wait_gets_an_event() {
    const THREADS: usize = 4;
    let events = Events::new().expect("a descriptor");
    let (cq, woken) = (list(&events, 10), AtomicU32::new(0));
    std::thread::scope(|threads| {
        for _ in 0..THREADS {
            threads.spawn(|| {
                let token = next(events.fd(), &events.looks).expect("an event");
                assert_eq!(events.take(token), Some(10));
                woken.fetch_add(1, Ordering::SeqCst);
            });
        }
        for count in 1..=THREADS as u32 {
            cq.raise();
            while woken.load(Ordering::SeqCst) < count {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(10));
            assert_eq!(woken.load(Ordering::SeqCst), count);
        }
    });
}

#[test]
fn who_insists_wakes_all_that_wait() {
    let events = Events::new().expect("a descriptor");
    let cq = list(&events, 10);
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                let token = next(events.fd(), &events.looks).expect("an event");
                events.insist(token);
                assert_eq!(events.take(token), Some(10));
            });
        }
        cq.raise();
    });
    assert!(is_readable(&events));
}

#[test]
fn what_is_no_channel_is_not_waited_for() {
    assert_eq!(next(-1, &Looks::default()), Err(Errno(libc::EBADF)));
}
