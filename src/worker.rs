//! The thread of a threaded node, and how it sleeps.

use crate::error::Error;
use crate::node::Seat;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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

/// A running worker; dropping it stops the thread.
#[derive(Debug)]
pub(crate) struct Worker {
    stop: Arc<AtomicBool>,
    seat: Arc<Seat>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    pub(crate) fn start(seat: &Arc<Seat>) -> Result<Self, Error> {
        let waker = Waker::new()?;
        seat.waker.set(waker).expect("a node has one worker");
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

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(waker) = self.seat.waker.get() {
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
    seat.asleep.store(true, Ordering::SeqCst);
    let result = wait(seat, longest);
    seat.asleep.store(false, Ordering::SeqCst);
    result
}

pub(crate) fn wait(seat: &Seat, longest: Duration) -> Result<(), Error> {
    let core = seat.core();
    if core.engine.is_busy() {
        return Ok(());
    }
    let now = core.clock.now();
    let due = core
        .next_timeout()
        .map_or(longest, |at| Duration::from_nanos(at.since(now)));
    let Some(port) = core.port.fd().map(|fd| fd.try_clone_to_owned()) else {
        drop(core);
        std::thread::sleep(due.min(longest).min(Duration::from_micros(50)));
        return Ok(());
    };
    drop(core);
    let port = port.map_err(Error::system("dup"))?;
    let timeout = due.min(longest);
    if timeout.is_zero() {
        return Ok(());
    }
    let timeout = Timespec {
        tv_sec: timeout.as_secs() as i64,
        tv_nsec: i64::from(timeout.subsec_nanos()),
    };
    let waker = seat.waker.get();
    let mut fds = vec![PollFd::new(&port, PollFlags::IN)];
    fds.extend(waker.map(|waker| PollFd::from_borrowed_fd(waker.0.as_fd(), PollFlags::IN)));
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(Error::system("poll")(error.into())),
    }
    if let Some(waker) = waker {
        waker.clear();
    }
    Ok(())
}
