//! The thread of a worker, and how it sleeps.

use crate::error::Error;
use crate::node::life::Life;
use crate::worker::handle::WorkerHandle;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::any::Any;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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

/// The thread of a worker; dropping it stops it.
#[derive(Debug)]
pub(crate) struct Thread {
    stop: Arc<AtomicBool>,
    handle: Arc<WorkerHandle>,
    thread: Option<JoinHandle<()>>,
}

impl Thread {
    pub(crate) fn start(handle: &Arc<WorkerHandle>) -> Result<Self, Error> {
        handle.wakeup.equip()?;
        let stop = Arc::new(AtomicBool::new(false));
        let (flag, node) = (Arc::clone(&stop), Arc::clone(handle));
        let thread = std::thread::Builder::new().name("trunkline".into());
        let thread = with_signals_blocked(|| thread.spawn(move || run(&node, &flag)))
            .map_err(Error::system("thread"))?;
        Ok(Self {
            stop,
            handle: Arc::clone(handle),
            thread: Some(thread),
        })
    }
}

impl Thread {
    /// Asks it to stop.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.handle.wakeup.wake();
    }

    /// Whether it has.
    pub(crate) fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        if self.handle.life().is_forked() {
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

fn run(handle: &WorkerHandle, stop: &AtomicBool) {
    let driven = catch_unwind(AssertUnwindSafe(|| drive(handle, stop)));
    match &driven {
        Ok(Ok(())) => {}
        // Where the node is down already this changes nothing.
        Ok(Err(error)) => handle.fail(&error.to_string()),
        Err(panic) => handle.fail(&format!("it panicked: {}", message(&**panic))),
    }
    if !handle.life().is_up() {
        handle.bury();
    }
    handle.say_goodbye();
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
fn drive(handle: &WorkerHandle, stop: &AtomicBool) -> Result<(), Error> {
    let mut busy_at = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        match handle.round() {
            Ok(true) => busy_at = Instant::now(),
            Ok(false) => std::hint::spin_loop(),
            Err(Error::Port(error)) if error.is_passing() => wait_out(handle.life()),
            Err(error) => return Err(error),
        }
        if busy_at.elapsed() >= SPIN {
            sleep(handle, LONGEST_SLEEP)?;
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
fn sleep(handle: &WorkerHandle, longest: Duration) -> Result<(), Error> {
    handle.wakeup.while_asleep(|| wait(&[handle], longest))
}

/// Waits until a packet comes for one of these workers, a port that was full takes more, a program
/// rings a worker, a timer of one is due, or `longest` is over.
///
/// # Errors
/// The node is down.
pub(crate) fn wait(handles: &[&WorkerHandle], longest: Duration) -> Result<(), Error> {
    let mut timeout = longest.min(LONGEST_WAIT);
    let mut full = Vec::with_capacity(handles.len());
    for handle in handles {
        handle.life().check()?;
        let port = handle.port()?;
        let mut core = handle.core()?;
        if core.is_busy(&**port) {
            return Ok(());
        }
        let now = core.clock.now();
        if let Some(at) = core.next_timeout() {
            timeout = timeout.min(Duration::from_nanos(at.since(now)));
        }
        full.push(port.full());
    }
    if handles.iter().any(|handle| handle.ports.is_empty()) {
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
    // The first descriptor of a port receives. A full one tells when it takes more.
    let ports = handles
        .iter()
        .map(|handle| (handle.ports[0].as_fd(), PollFlags::IN));
    let full = handles.iter().zip(full);
    let full = full.filter_map(|(handle, at)| Some((handle.ports[at?].as_fd(), PollFlags::OUT)));
    let wakes = handles.iter().filter_map(|handle| handle.wakeup.fd());
    let wakes = wakes.map(|fd| (fd, PollFlags::IN));
    let fds = ports.chain(full).chain(wakes);
    let fds = fds.map(|(fd, events)| PollFd::from_borrowed_fd(fd, events));
    let mut fds: Vec<_> = fds.collect();
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        // Too many descriptors for a limit that was lowered meanwhile, or no memory.
        Err(_) => wait_out(handles[0].life()),
    }
    handles.iter().for_each(|handle| handle.wakeup.clear());
    Ok(())
}
