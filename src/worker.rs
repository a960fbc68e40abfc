//! The thread of a threaded node, and how it sleeps.

use crate::error::Error;
use crate::seat::Seat;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the worker polls with nothing to do before it sleeps.
const SPIN: Duration = Duration::from_micros(50);
/// Longest sleep: it looks around now and then, whatever happens.
const LONGEST_SLEEP: Duration = Duration::from_millis(100);

/// Wakes a sleeping worker.
#[derive(Debug)]
pub(crate) struct Waker(OwnedFd);

impl Waker {
    fn new() -> Result<Self, Error> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let fd = eventfd(0, flags).map_err(|e| Error::system("eventfd")(e.into()))?;
        Ok(Self(fd))
    }

    pub(crate) fn wake(&self) {
        // It fails only when the counter is full, and then the worker wakes anyway.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    fn clear(&self) {
        let mut count = [0; 8];
        // Nothing to read is as good.
        let _ = rustix::io::read(&self.0, &mut count);
    }
}

/// Wakes the worker that has it, if that sleeps.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    /// The worker sleeps: whoever has work for it must wake it.
    asleep: AtomicBool,
    waker: OnceLock<Waker>,
}

impl Bell {
    /// Wakes a sleeping worker. What there is to do was said before, in the total order: either the
    /// worker's last look sees it, which comes after its store of `asleep`, or this load sees that.
    pub(crate) fn ring(&self) {
        if self.asleep.load(Ordering::SeqCst)
            && let Some(waker) = self.waker.get()
        {
            waker.wake();
        }
    }
}

/// The thread of a worker; dropping it stops it.
#[derive(Debug)]
pub(crate) struct Thread {
    stop: Arc<AtomicBool>,
    seat: Arc<Seat>,
    thread: Option<JoinHandle<()>>,
}

impl Thread {
    pub(crate) fn start(seat: &Arc<Seat>) -> Result<Self, Error> {
        let waker = Waker::new()?;
        let set = seat.bell.waker.set(waker);
        set.expect("a worker has one thread");
        let stop = Arc::new(AtomicBool::new(false));
        let (flag, node) = (Arc::clone(&stop), Arc::clone(seat));
        let thread = std::thread::Builder::new()
            .name("trunkline".into())
            .spawn(move || run(&node, &flag))
            .map_err(Error::system("thread"))?;
        Ok(Self {
            stop,
            seat: Arc::clone(seat),
            thread: Some(thread),
        })
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(waker) = self.seat.bell.waker.get() {
            waker.wake();
        }
        if let Some(thread) = self.thread.take() {
            // A worker that panicked has said so on standard error.
            let _ = thread.join();
        }
    }
}

fn run(seat: &Seat, stop: &AtomicBool) {
    let mut busy_at = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        match seat.core_for_worker().poll() {
            Ok(true) => busy_at = Instant::now(),
            Ok(false) => std::hint::spin_loop(),
            Err(_) => return,
        }
        if busy_at.elapsed() >= SPIN {
            if sleep(seat, LONGEST_SLEEP).is_err() {
                return;
            }
            busy_at = Instant::now();
        }
    }
}

/// Sleeps until a packet comes, a program rings, a timer is due, or `longest` is over.
fn sleep(seat: &Seat, longest: Duration) -> Result<(), Error> {
    seat.bell.asleep.store(true, Ordering::SeqCst);
    let result = wait(&[seat], longest);
    seat.bell.asleep.store(false, Ordering::SeqCst);
    result
}

/// Waits until a packet comes for one of these workers, a program rings one, a timer of one is due,
/// or `longest` is over.
pub(crate) fn wait(seats: &[&Seat], longest: Duration) -> Result<(), Error> {
    let (mut timeout, mut ports) = (longest, Vec::with_capacity(seats.len()));
    for seat in seats {
        let mut core = seat.core();
        if core.is_busy() {
            return Ok(());
        }
        let now = core.clock.now();
        if let Some(at) = core.next_timeout() {
            timeout = timeout.min(Duration::from_nanos(at.since(now)));
        }
        ports.extend(core.port.fd().map(|fd| fd.try_clone_to_owned()));
    }
    if ports.len() < seats.len() {
        std::thread::sleep(timeout.min(Duration::from_micros(50)));
        return Ok(());
    }
    let ports: Result<Vec<OwnedFd>, _> = ports.into_iter().collect();
    let ports = ports.map_err(Error::system("dup"))?;
    if timeout.is_zero() {
        return Ok(());
    }
    let timeout = Timespec {
        tv_sec: timeout.as_secs() as i64,
        tv_nsec: i64::from(timeout.subsec_nanos()),
    };
    let wakers = || seats.iter().filter_map(|seat| seat.bell.waker.get());
    let ports = ports.iter().map(AsFd::as_fd);
    let mut fds: Vec<_> = ports
        .chain(wakers().map(|waker| waker.0.as_fd()))
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        .collect();
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(Error::system("poll")(error.into())),
    }
    wakers().for_each(Waker::clear);
    Ok(())
}
