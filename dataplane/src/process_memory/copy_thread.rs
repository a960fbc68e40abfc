//! A thread that reads and writes the memory of one process, so that nobody else has to wait there.
//!
//! Whoever wants something done posts it in an [`Exchange`], and waits until it is done, or until
//! the [`Patience`] with this user's programs is used up. Then the thread is given up: it is left
//! where it is, until the kernel lets it go. Everything that it touches is its own: the file, and a
//! buffer through which all bytes go.
//!
//! Only the time is charged in which the thread has begun and sleeps, as it does where a page
//! blocks. A thread that waits for a core is not at fault, and on a busy machine all do at times.

use super::file::MemoryFile;
use super::patience::Patience;
use crate::process::with_signals_blocked;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};
use trunkline_conn::mem::{AtomicOp, Order, Unreachable};

/// Bytes of the buffer: what a datagram carries at most. More is done in parts.
const BUFFER: usize = 64 << 10;
/// Bytes of the stack of the thread, which calls little else than the kernel.
const STACK: usize = 64 << 10;
/// How long either side looks for the other before it sleeps, which costs both a system call.
const SPIN: Duration = Duration::from_micros(20);
/// How often who waits looks at what the thread does: at first, and at most.
const LOOK: Duration = Duration::from_micros(50);
const LONGEST_LOOK: Duration = Duration::from_millis(1);

/// States of an exchange. Who wants something posts it, and takes what was done or has failed; the
/// thread does everything in between. Once it is closed it stays so.
const FREE: u8 = 0;
const POSTED: u8 = 1;
const RUNNING: u8 = 2;
const DONE: u8 = 3;
const FAILED: u8 = 4;
const CLOSED: u8 = 5;

/// What the thread is to do.
#[derive(Clone, Copy, Debug)]
enum Task {
    Read { length: usize },
    Write { length: usize, order: Order },
    Atomic(AtomicOp),
}

/// A task, and what it needs.
#[derive(Debug)]
struct Job {
    task: Task,
    addr: u64,
    buffer: Box<[u8]>,
    /// What an atomic found.
    before: u64,
    /// Who waits for it.
    waiter: Option<Thread>,
}

impl Job {
    fn run(&mut self, memory: &MemoryFile) -> Result<(), Unreachable> {
        match self.task {
            Task::Read { length } => memory.read(self.addr, &mut self.buffer[..length]),
            Task::Write { length, order } => memory.write(self.addr, &self.buffer[..length], order),
            Task::Atomic(op) => {
                self.before = memory.atomic(self.addr, op)?;
                Ok(())
            }
        }
    }
}

/// What the thread and those who want something share.
#[derive(Debug)]
struct Exchange {
    state: AtomicU8,
    /// That of the thread while a job is posted or runs, and of who posts otherwise: nobody waits
    /// for the lock.
    job: Mutex<Job>,
    /// Tells what the thread does (proc_pid_stat(5)), where it could be opened.
    stat: OnceLock<File>,
}

impl Exchange {
    fn new() -> Self {
        Self {
            state: AtomicU8::new(FREE),
            job: Mutex::new(Job {
                task: Task::Read { length: 0 },
                addr: 0,
                buffer: vec![0; BUFFER].into(),
                before: 0,
                waiter: None,
            }),
            stat: OnceLock::new(),
        }
    }

    fn job(&self) -> MutexGuard<'_, Job> {
        self.job.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is(&self, state: u8) -> bool {
        self.state.load(Ordering::Acquire) == state
    }

    fn moves(&self, from: u8, to: u8) -> bool {
        let order = (Ordering::AcqRel, Ordering::Acquire);
        let moved = self.state.compare_exchange(from, to, order.0, order.1);
        moved.is_ok()
    }

    /// What the thread does, until the exchange is closed.
    fn serve(&self, memory: &MemoryFile) {
        self.tell_of_this_thread();
        loop {
            let has_news = || self.is(POSTED) || self.is(CLOSED);
            while !comes_soon(has_news) && !has_news() {
                thread::park();
            }
            if !self.moves(POSTED, RUNNING) {
                return;
            }
            let (done, waiter) = {
                let mut job = self.job();
                (job.run(memory), job.waiter.take())
            };
            let state = if done.is_ok() { DONE } else { FAILED };
            if !self.moves(RUNNING, state) {
                return;
            }
            if let Some(waiter) = waiter {
                waiter.unpark();
            }
        }
    }

    /// Lets others see what this thread does, where that can be had.
    fn tell_of_this_thread(&self) {
        if let Ok(stat) = File::open("/proc/thread-self/stat") {
            // Nobody else sets it.
            let _ = self.stat.set(stat);
        }
    }

    /// Whether the thread has begun what was posted, and sleeps. Where nothing tells, it does.
    fn is_blocked(&self) -> bool {
        // In this order, or it is blamed for sleep before it began. Sleep after the end is the end.
        self.is(RUNNING) && !self.has_core()
    }

    /// Whether the thread has a core, or waits for one.
    fn has_core(&self) -> bool {
        let mut text = [0; 64];
        let read = self.stat.get().map(|stat| stat.read_at(&mut text, 0));
        matches!(read, Some(Ok(length)) if runs(&text[..length]))
    }
}

/// Whether a thread is in state R, by its `stat`: the state comes after the name, which is in
/// parentheses.
fn runs(stat: &[u8]) -> bool {
    let name_ends = stat.iter().rposition(|byte| *byte == b')');
    name_ends.is_some_and(|at| stat.get(at + 2) == Some(&b'R'))
}

/// Looks for a while whether something is so, in turns with whoever else is on this core.
fn comes_soon(is_so: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    loop {
        for _ in 0..32 {
            if is_so() {
                return true;
            }
            std::hint::spin_loop();
        }
        thread::yield_now();
        if start.elapsed() >= SPIN {
            return false;
        }
    }
}

/// What whoever waits for memory of a process keeps to.
pub(super) struct Terms {
    pub(super) patience: Arc<Patience>,
    /// Called once, when the thread is given up.
    pub(super) on_slow: Box<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for Terms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let patience = &self.patience;
        f.debug_struct("Terms")
            .field("patience", patience)
            .finish_non_exhaustive()
    }
}

/// The thread, for those who want something of it. It ends when this is dropped, or as soon as the
/// kernel lets it.
#[derive(Debug)]
pub(super) struct CopyThread {
    exchange: Arc<Exchange>,
    thread: Thread,
    terms: Arc<Terms>,
    /// Of whoever uses the exchange.
    turn: Mutex<()>,
}

impl CopyThread {
    /// # Errors
    /// The system has no thread left.
    pub(super) fn start(
        memory: Arc<MemoryFile>,
        terms: Arc<Terms>,
    ) -> io::Result<(Self, JoinHandle<()>)> {
        let exchange = Arc::new(Exchange::new());
        let served = Arc::clone(&exchange);
        let thread = thread::Builder::new()
            .name("trunkline-copy".into())
            .stack_size(STACK);
        let handle = with_signals_blocked(|| thread.spawn(move || served.serve(&memory)))?;
        let thread = Self {
            exchange,
            thread: handle.thread().clone(),
            terms,
            turn: Mutex::new(()),
        };
        Ok((thread, handle))
    }

    /// Reads the bytes at `addr`.
    pub(super) fn read(&self, addr: u64, out: &mut [u8]) -> Result<(), Unreachable> {
        let mut addr = addr;
        for part in out.chunks_mut(BUFFER) {
            let length = part.len();
            let prepare = |_: &mut [u8]| Task::Read { length };
            self.run(addr, prepare, |job| {
                part.copy_from_slice(&job.buffer[..length]);
            })?;
            addr += length as u64;
        }
        Ok(())
    }

    /// Writes the bytes at `addr`.
    pub(super) fn write(&self, addr: u64, data: &[u8], order: Order) -> Result<(), Unreachable> {
        let mut addr = addr;
        for part in data.chunks(BUFFER) {
            let length = part.len();
            let prepare = |buffer: &mut [u8]| {
                buffer[..length].copy_from_slice(part);
                Task::Write { length, order }
            };
            self.run(addr, prepare, |_| {})?;
            addr += length as u64;
        }
        Ok(())
    }

    /// An atomic towards all others by the same thread. Gives the value before.
    pub(super) fn atomic(&self, addr: u64, op: AtomicOp) -> Result<u64, Unreachable> {
        self.run(addr, |_| Task::Atomic(op), |job| job.before)
    }

    /// Has the thread do something, and takes what came of it.
    fn run<T>(
        &self,
        addr: u64,
        prepare: impl FnOnce(&mut [u8]) -> Task,
        take: impl FnOnce(&Job) -> T,
    ) -> Result<T, Unreachable> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if self.exchange.is(CLOSED) {
            return Err(Unreachable);
        }
        {
            let mut job = self.exchange.job();
            job.task = prepare(&mut job.buffer);
            job.addr = addr;
            job.waiter = Some(thread::current());
        }
        self.exchange.state.store(POSTED, Ordering::Release);
        self.thread.unpark();
        self.wait()?;
        let taken = match self.exchange.is(DONE) {
            true => Ok(take(&self.exchange.job())),
            false => Err(Unreachable),
        };
        self.exchange.state.store(FREE, Ordering::Release);
        taken
    }

    /// Waits until what was posted is done or has failed, for as long as patience lasts.
    fn wait(&self) -> Result<(), Unreachable> {
        let is_over = || self.exchange.is(DONE) || self.exchange.is(FAILED);
        if comes_soon(is_over) {
            return Ok(());
        }
        let (patience, mut pause) = (&self.terms.patience, LOOK);
        let mut from = Instant::now();
        loop {
            let is_blocked = self.exchange.is_blocked();
            let left = patience.left(from);
            thread::park_timeout(if is_blocked { pause.min(left) } else { pause });
            let now = Instant::now();
            if is_blocked {
                patience.charge(now - from, now);
            }
            if is_over() {
                return Ok(());
            }
            if is_blocked && patience.left(now).is_zero() {
                self.close();
                (self.terms.on_slow)();
                return Err(Unreachable);
            }
            (from, pause) = (now, (2 * pause).min(LONGEST_LOOK));
        }
    }

    /// Has nothing more done by the thread.
    fn close(&self) {
        self.exchange.state.store(CLOSED, Ordering::Release);
        self.thread.unpark();
    }
}

impl Drop for CopyThread {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(all(test, not(miri)))]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;

    /// An access that another thread ends by `serve`, without any of its own.
    fn wait_while(state: u8, serve: impl FnOnce(&Exchange) + Send) -> Duration {
        let exchange = Arc::new(Exchange::new());
        exchange.state.store(state, Ordering::Release);
        let terms = Terms {
            patience: Arc::default(),
            on_slow: Box::new(|| {}),
        };
        std::thread::scope(|scope| {
            let served = Arc::clone(&exchange);
            let thread = scope.spawn(move || {
                served.tell_of_this_thread();
                serve(&served);
                served.state.store(DONE, Ordering::Release);
            });
            let waits = CopyThread {
                exchange,
                thread: thread.thread().clone(),
                terms: Arc::new(terms),
                turn: Mutex::new(()),
            };
            assert_eq!(waits.wait(), Ok(()));
            Patience::MOST - waits.terms.patience.left(Instant::now())
        })
    }

    const LONG: Duration = Duration::from_millis(300);

    #[test]
    fn a_thread_that_has_not_begun_costs_no_patience() {
        assert_eq!(wait_while(POSTED, |_| thread::sleep(LONG)), Duration::ZERO);
    }

    #[test]
    fn a_thread_that_works_or_waits_for_a_core_costs_no_patience() {
        let used = wait_while(POSTED, |exchange| {
            exchange.state.store(RUNNING, Ordering::Release);
            let start = Instant::now();
            while start.elapsed() < LONG {
                std::hint::spin_loop();
            }
        });
        assert_eq!(used, Duration::ZERO);
    }

    #[test]
    fn a_thread_sleeps_unless_its_state_says_that_it_runs() {
        assert!(runs(b"7 (a thread) R 1 2 3"));
        assert!(runs(b"7 (S) R) R"));
        for asleep in [&b"7 (a thread) S 1"[..], b"7 (R) D 1", b"7 (a)", b"", b"R"] {
            assert!(!runs(asleep), "{}", asleep.escape_ascii());
        }
    }
}
