//! The thread of a worker, and how it sleeps.

use crate::error::Error;
use crate::worker::handle::WorkerHandle;
use crate::worker::sleep::{wait, wait_out};
use crate::worker::spin::Spin;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use trunkline_dataplane::process::with_signals_blocked;

/// Longest sleep: it looks around now and then, whatever happens.
const LONGEST_SLEEP: Duration = Duration::from_millis(100);

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
    let mut spin = Spin::new();
    while !stop.load(Ordering::Relaxed) {
        match handle.round() {
            Ok(true) => spin.worked(),
            Ok(false) if spin.looks_again() => {}
            Ok(false) => sleep(handle, LONGEST_SLEEP)?,
            Err(Error::Port(error)) if error.is_passing() => wait_out(handle.life()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Sleeps until a packet comes, a program rings, a timer is due, or `longest` is over.
fn sleep(handle: &WorkerHandle, longest: Duration) -> Result<(), Error> {
    handle
        .wakeup
        .while_asleep(|| wait(&[handle], None, longest))?;
    handle.hear_programs()
}
