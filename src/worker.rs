//! The thread of a threaded node, and how it sleeps.

use crate::error::Error;
use crate::life::Life;
use crate::seat::Seat;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::any::Any;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use trunkline_dataplane::process::with_signals_blocked;

/// How long the worker polls with nothing to do before it sleeps.
const SPIN: Duration = Duration::from_micros(50);
/// Longest sleep: it looks around now and then, whatever happens.
const LONGEST_SLEEP: Duration = Duration::from_millis(100);
/// Pause after an error of the operating system that passes.
const TROUBLE_PAUSE: Duration = Duration::from_millis(1);
/// Longest time that the kernel is asked to wait at once: a longer one begins again.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// Wakes a sleeping worker.
#[derive(Debug)]
pub(crate) struct Waker(OwnedFd);

impl Waker {
    fn new() -> Result<Self, Error> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let fd = eventfd(0, flags).map_err(|e| Error::system("eventfd of a worker")(e.into()))?;
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
        let thread = std::thread::Builder::new().name("trunkline".into());
        let thread = with_signals_blocked(|| thread.spawn(move || run(&node, &flag)))
            .map_err(Error::system("thread"))?;
        Ok(Self {
            stop,
            seat: Arc::clone(seat),
            thread: Some(thread),
        })
    }
}

impl Thread {
    /// Asks it to stop.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(waker) = self.seat.bell.waker.get() {
            waker.wake();
        }
    }

    /// Whether it has.
    pub(crate) fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        if self.seat.life().is_forked() {
            // The thread is the parent's: there is none here to wake or to wait for.
            std::mem::forget(self.thread.take());
            return;
        }
        self.stop();
        if let Some(thread) = self.thread.take() {
            // A worker that failed has said so on standard error.
            let _ = thread.join();
        }
    }
}

fn run(seat: &Seat, stop: &AtomicBool) {
    let driven = catch_unwind(AssertUnwindSafe(|| drive(seat, stop)));
    match &driven {
        Ok(Ok(())) => {}
        // Where the node is down already this changes nothing.
        Ok(Err(error)) => seat.fail(&error.to_string()),
        Err(panic) => seat.fail(&format!("it panicked: {}", message(&**panic))),
    }
    if !seat.life().is_up() {
        seat.bury();
    }
    seat.say_goodbye();
}

/// What a panic says.
fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("without a word")
}

/// Drives a worker until it is stopped. Errors that pass are waited out.
///
/// # Errors
/// The node is down, or the port does not work any more.
fn drive(seat: &Seat, stop: &AtomicBool) -> Result<(), Error> {
    let mut busy_at = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let polled = seat.core_for_worker()?.poll();
        match polled {
            Ok(true) => busy_at = Instant::now(),
            Ok(false) => std::hint::spin_loop(),
            Err(error) if error.is_passing() => wait_out(seat.life()),
            Err(error) => return Err(error.into()),
        }
        if busy_at.elapsed() >= SPIN {
            sleep(seat, LONGEST_SLEEP)?;
            busy_at = Instant::now();
        }
    }
    Ok(())
}

/// The operating system could not just now.
fn wait_out(life: &Life) {
    life.note_passing();
    std::thread::sleep(TROUBLE_PAUSE);
}

/// Sleeps until a packet comes, a program rings, a timer is due, or `longest` is over.
fn sleep(seat: &Seat, longest: Duration) -> Result<(), Error> {
    seat.bell.asleep.store(true, Ordering::SeqCst);
    let result = wait(&[seat], longest);
    seat.bell.asleep.store(false, Ordering::SeqCst);
    result
}

/// Waits until a packet comes for one of these workers, a port that was full takes more, a program
/// rings a worker, a timer of one is due, or `longest` is over.
///
/// # Errors
/// The node is down.
pub(crate) fn wait(seats: &[&Seat], longest: Duration) -> Result<(), Error> {
    let mut timeout = longest.min(LONGEST_WAIT);
    let mut full = Vec::with_capacity(seats.len());
    for seat in seats {
        seat.life().check()?;
        let mut core = seat.core()?;
        if core.is_busy() {
            return Ok(());
        }
        let now = core.clock.now();
        if let Some(at) = core.next_timeout() {
            timeout = timeout.min(Duration::from_nanos(at.since(now)));
        }
        full.push(core.port.full());
    }
    if seats.iter().any(|seat| seat.ports.is_empty()) {
        std::thread::sleep(timeout.min(Duration::from_micros(50)));
        return Ok(());
    }
    if timeout.is_zero() {
        return Ok(());
    }
    let timeout = Timespec {
        tv_sec: timeout.as_secs() as i64,
        tv_nsec: i64::from(timeout.subsec_nanos()),
    };
    let wakers = || seats.iter().filter_map(|seat| seat.bell.waker.get());
    // The first descriptor of a port receives. A full one tells when it takes more.
    let ports = seats
        .iter()
        .map(|seat| (seat.ports[0].as_fd(), PollFlags::IN));
    let full = seats.iter().zip(full);
    let full = full.filter_map(|(seat, at)| Some((seat.ports[at?].as_fd(), PollFlags::OUT)));
    let wakes = wakers().map(|waker| (waker.0.as_fd(), PollFlags::IN));
    let fds = ports.chain(full).chain(wakes);
    let fds = fds.map(|(fd, events)| PollFd::from_borrowed_fd(fd, events));
    let mut fds: Vec<_> = fds.collect();
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        // Too many descriptors for a limit that was lowered meanwhile, or no memory.
        Err(_) => wait_out(seats[0].life()),
    }
    wakers().for_each(Waker::clear);
    Ok(())
}

#[cfg(test)]
mod tests;
