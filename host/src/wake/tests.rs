use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{FdFlags, fcntl_getfd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// Longer than any wake takes.
const LIMIT: Duration = Duration::from_secs(20);

const HOSTILE: u64 = 7;
const OTHER: u64 = 8;

/// A set of two clients, and what they were sent.
fn two_clients() -> (WakeSet, OwnedFd, OwnedFd) {
    let mut set = WakeSet::new().unwrap();
    let [hostile, other] = [HOSTILE, OTHER].map(|token| {
        set.add(token).unwrap();
        let event = set.fd_for_client(token).unwrap();
        event.try_clone_to_owned().unwrap()
    });
    (set, hostile, other)
}

fn taken(set: &WakeSet) -> Vec<u64> {
    let mut tokens = [0; TAKEN_AT_ONCE];
    let count = set.take(&mut tokens).unwrap();
    tokens[..count].to_vec()
}

/// Whether a token is to be taken within the limit.
fn is_readable(set: &WakeSet, limit: Duration) -> bool {
    let limit = Timespec::try_from(limit).unwrap();
    let mut watched = [PollFd::new(set, PollFlags::IN)];
    poll(&mut watched, Some(&limit)).unwrap() == 1
}

fn set_blocking(file: &OwnedFd) {
    let flags = fcntl_getfl(file).unwrap();
    fcntl_setfl(file, flags - OFlags::NONBLOCK).unwrap();
}

fn fill(event: &OwnedFd) {
    rustix::io::write(event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
}

#[test]
fn each_ring_is_taken_once() {
    let (set, one, other) = two_clients();
    assert!(!is_readable(&set, Duration::ZERO));
    assert_eq!(taken(&set), []);
    for _ in 0..3 {
        ring(other.as_fd()).unwrap();
        ring(one.as_fd()).unwrap();
        ring(one.as_fd()).unwrap();
        assert!(is_readable(&set, Duration::ZERO));
        assert_eq!(set.take(&mut []).unwrap(), 0);
        assert_eq!(taken(&set), [OTHER, HOSTILE]);
        assert!(!is_readable(&set, Duration::ZERO));
        assert_eq!(taken(&set), []);
    }
}

#[test]
fn what_finds_no_room_comes_next() {
    let mut set = WakeSet::new().unwrap();
    let tokens = 0..3 * TAKEN_AT_ONCE as u64 / 2;
    for token in tokens.clone() {
        set.add(token).unwrap();
        ring(set.fd_for_client(token).unwrap()).unwrap();
    }
    let mut all = Vec::new();
    let mut some = [0; 10];
    assert_eq!(set.take(&mut some).unwrap(), some.len());
    all.extend(some);
    // Those that ring again come after those that are left.
    ring(set.fd_for_client(0).unwrap()).unwrap();
    let rest = taken(&set);
    assert_eq!(rest.len(), TAKEN_AT_ONCE);
    all.extend(rest);
    all.extend(taken(&set));
    assert!(all.into_iter().eq(tokens.chain([0])));
}

#[test]
fn a_token_that_is_removed_is_not_taken() {
    let (mut set, one, other) = two_clients();
    ring(one.as_fd()).unwrap();
    let closed = set.remove(HOSTILE).unwrap();
    assert!(set.remove(HOSTILE).is_none());
    assert!(set.fd_for_client(HOSTILE).is_none());
    ring(one.as_fd()).unwrap();
    ring(other.as_fd()).unwrap();
    assert_eq!(taken(&set), [OTHER]);
    drop((closed, one));
    set.add(HOSTILE).unwrap();
    assert_eq!(taken(&set), []);
    ring(set.fd_for_client(HOSTILE).unwrap()).unwrap();
    assert_eq!(taken(&set), [HOSTILE]);
}

#[test]
#[should_panic(expected = "in use")]
fn a_token_is_added_once() {
    let (mut set, ..) = two_clients();
    let _ = set.add(OTHER);
}

#[test]
fn a_client_that_breaks_its_eventfd_harms_nobody_else() {
    let breaks: [fn(&OwnedFd); 3] = [
        |event| {
            set_blocking(event);
            fill(event);
        },
        |event| {
            fill(event);
            let _ = rustix::io::read(event, &mut [0; 8]);
        },
        |event| {
            let own = instance().unwrap();
            let (data, flags) = (EventData::new_u64(OTHER), EventFlags::IN);
            epoll::add(&own, event, data, flags).unwrap();
            fill(event);
        },
    ];
    for harm in breaks {
        let (mut set, hostile, other) = two_clients();
        for close in [false, true] {
            harm(&hostile);
            ring(other.as_fd()).unwrap();
            let tokens = taken(&set);
            assert!(tokens.contains(&OTHER), "{tokens:?}");
            assert_eq!(taken(&set), []);
            let _ = rustix::io::read(&hostile, &mut [0; 8]);
            if close {
                drop(set.remove(HOSTILE).unwrap());
            }
        }
        drop(hostile);
        ring(other.as_fd()).unwrap();
        assert_eq!(taken(&set), [OTHER]);
    }
}

#[test]
fn a_client_that_rings_without_pause_does_not_drown_another() {
    let (set, hostile, other) = two_clients();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                ring(hostile.as_fd()).unwrap();
                let _ = rustix::io::read(&hostile, &mut [0; 8]);
            }
        });
        for _ in 0..1000 {
            ring(other.as_fd()).unwrap();
            assert!(taken(&set).contains(&OTHER));
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_client_takes_each_wake_once() {
    let signal = Signal::new().unwrap();
    let client = signal.fd_for_client().try_clone_to_owned().unwrap();
    assert!(!take(client.as_fd()).unwrap());
    for _ in 0..3 {
        signal.notify();
        signal.notify();
        assert!(wait(client.as_fd(), None).unwrap());
        assert!(!wait(client.as_fd(), Some(Duration::from_millis(2))).unwrap());
        signal.notify();
        assert!(take(client.as_fd()).unwrap());
        assert!(!take(client.as_fd()).unwrap());
    }
}

#[test]
fn a_client_has_no_means_to_stop_the_service_that_wakes_it() {
    let signal = Signal::new().unwrap();
    let client = signal.fd_for_client().try_clone_to_owned().unwrap();
    set_blocking(&client);
    assert!(rustix::io::write(&client, &u64::MAX.to_ne_bytes()).is_err());
    assert!(rustix::io::read(&client, &mut [0; 8]).is_err());
    let own = watched_by(&client, 1).unwrap();
    ring(own.as_fd()).unwrap();
    (0..10_000).for_each(|_| signal.notify());
    drop((own, client));
    signal.notify();
    let [instance, event] = signal.into_fds();
    drop(instance);
    ring(event.as_fd()).unwrap();
}

#[test]
fn what_is_no_signal_is_an_error() {
    let (_set, event, _) = two_clients();
    assert!(take(event.as_fd()).is_err());
    let signal = Signal::new().unwrap();
    assert!(ring(signal.fd_for_client()).is_err());
}

/// Writes numbers in bursts, with a wake after each number, while `sleep` waits for a wake. Each
/// burst ends when its last number was seen after a wake; the next one begins then.
fn no_wake_is_lost(bursts: &[u64], wake: impl Fn() + Sync, sleep: impl Fn() -> bool) {
    let [written, seen] = [const { AtomicU64::new(0) }; 2];
    thread::scope(|scope| {
        scope.spawn(|| {
            for burst in bursts {
                for _ in 0..*burst {
                    // Relaxed: the wake itself has to bring the number along.
                    let number = written.fetch_add(1, Ordering::Relaxed) + 1;
                    wake();
                    if number == bursts.iter().sum() {
                        return;
                    }
                }
                while seen.load(Ordering::Acquire) < written.load(Ordering::Relaxed) {
                    thread::yield_now();
                }
            }
        });
        while seen.load(Ordering::Relaxed) < bursts.iter().sum() {
            assert!(sleep(), "a wake was lost");
            seen.store(written.load(Ordering::Relaxed), Ordering::Release);
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn no_wake_of_a_client_is_lost(bursts in vec(1..6_u64, 1..200)) {
        let signal = Signal::new().unwrap();
        let client = signal.fd_for_client();
        no_wake_is_lost(&bursts, || signal.notify(), || wait(client, Some(LIMIT)).unwrap());
    }

    #[test]
    fn no_wake_of_a_service_is_lost(bursts in vec(1..6_u64, 1..200)) {
        let (set, _, client) = two_clients();
        let wake = || ring(client.as_fd()).unwrap();
        no_wake_is_lost(&bursts, wake, || is_readable(&set, LIMIT) && taken(&set) == [OTHER]);
    }
}

#[test]
fn every_descriptor_is_closed_on_exec() {
    let (set, hostile, _other) = two_clients();
    let given = set.fd_for_client(HOSTILE).unwrap();
    let signal = Signal::new().unwrap();
    for fd in [
        given,
        set.as_fd(),
        signal.event.as_fd(),
        signal.instance.as_fd(),
    ] {
        assert_eq!(fcntl_getfd(fd).unwrap(), FdFlags::CLOEXEC);
    }
    drop(hostile);
}
