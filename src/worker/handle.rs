//! What programs and the thread of a worker share of it: its core and its port, each behind a lock,
//! and what needs none.

use crate::error::Error;
use crate::node::life::{Down, Life};
use crate::node::link::Link;
use crate::observe::capture::Capture;
use crate::observe::status::recorder::Recorder;
use crate::worker::core::{Core, PortBox};
use crate::worker::new_qps::{NewQp, NewQps};
use crate::worker::priority_lock::PriorityLock;
use crate::worker::programs::Programs;
use crate::worker::sleep::WaitFd;
use crate::worker::wakeup::Wakeup;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, LockResult, MutexGuard, OnceLock, PoisonError};
use trunkline_conn::time::Instant;
use trunkline_qpmap::doorbell::Doorbells;
use trunkline_qpmap::mapping::Mapping;
use trunkline_qpmap::{LiveCounters, QpInit};

/// What the handles of a node and the thread of one worker share.
#[derive(Debug)]
pub(crate) struct WorkerHandle {
    life: Arc<Life>,
    /// Index of the worker.
    index: u8,
    /// Taken before the core, by whoever takes both.
    port: PriorityLock<PortBox>,
    core: PriorityLock<Core>,
    /// What programs have made that the core does not know yet.
    pub(super) new_qps: NewQps,
    /// Where management datagrams are written down.
    pub(crate) capture: Option<Capture>,
    /// What the port is slept on by, if it can be: opened once, as a sleep must not need a
    /// descriptor that may not be there.
    pub(crate) ports: Vec<OwnedFd>,
    /// The link of the node's port, where the worker is the one that looks at it.
    pub(crate) link: Option<Arc<Link>>,
    pub(crate) doorbells: Arc<Doorbells>,
    pub(crate) mapping: Arc<Mapping>,
    /// What its engine counts.
    pub(crate) counters: Arc<LiveCounters>,
    /// What its connection management counts and times.
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) wakeup: Arc<Wakeup>,
    /// Made when the program that drives the worker asks for it.
    wait_fd: OnceLock<WaitFd>,
    /// What programs of other processes wake it by.
    pub(super) programs: Programs,
}

impl WorkerHandle {
    /// That of the worker with this index.
    ///
    /// # Errors
    /// The operating system has no descriptor left.
    pub(crate) fn new(
        life: Arc<Life>,
        index: u8,
        (core, port): (Core, PortBox),
        wakeup: Arc<Wakeup>,
    ) -> Result<Self, Error> {
        let fds = port.fds().into_iter();
        let ports: std::io::Result<_> = fds.map(|fd| fd.try_clone_to_owned()).collect();
        Ok(Self {
            life,
            index,
            ports: ports.map_err(Error::system("dup"))?,
            link: None,
            doorbells: Arc::clone(core.engine.doorbells()),
            mapping: Arc::clone(core.engine.mapping()),
            counters: Arc::clone(core.engine.live_counters()),
            recorder: Arc::clone(&core.recorder),
            capture: core.capture.clone(),
            core: PriorityLock::new(core),
            new_qps: NewQps::default(),
            port: PriorityLock::new(port),
            wakeup,
            wait_fd: OnceLock::new(),
            programs: Programs::default(),
        })
    }

    pub(crate) const fn life(&self) -> &Arc<Life> {
        &self.life
    }

    /// The core, for a control call. Never held while waiting for anything but the core of a later
    /// worker. A node that was shut down still has it: its objects can be looked at and given up.
    ///
    /// # Errors
    /// Whoever had it panicked: the node fails. Or it is another process's.
    pub(crate) fn core(&self) -> Result<MutexGuard<'_, Core>, Error> {
        self.life.check_own()?;
        self.unless_poisoned(self.core.lock())
            .map(|core| self.up_to_date(core))
    }

    /// Makes a QP that counts among the users of its protection domain already. The worker's lock
    /// is not taken for it, but where the stock of places is empty.
    ///
    /// # Errors
    /// Sizes out of range, or too many QPs; as [`core`](Self::core).
    pub(crate) fn create_qp(&self, init: &QpInit) -> Result<NewQp, Error> {
        loop {
            if let Some(made) = self.new_qps.make(init)? {
                return Ok(made);
            }
            self.new_qps.fill(&mut *self.core()?)?;
        }
    }

    /// Bytes of the stock that QPs are made from.
    pub(crate) fn new_qps_bytes(&self) -> u64 {
        self.new_qps.state_bytes() as u64
    }

    /// The core, with what programs have made since it was taken last.
    #[inline]
    fn up_to_date<'a>(&self, mut core: MutexGuard<'a, Core>) -> MutexGuard<'a, Core> {
        self.new_qps.take_up(&mut core);
        core
    }

    /// The port, for a call of a program that has no core.
    ///
    /// # Errors
    /// As [`core`](Self::core).
    pub(crate) fn port(&self) -> Result<MutexGuard<'_, PortBox>, Error> {
        self.life.check_own()?;
        self.unless_poisoned(self.port.lock())
    }

    /// What the program that drives the worker may wait on.
    ///
    /// # Errors
    /// The port has to be polled, or the clock is turned by hand; the operating system has no
    /// descriptor left.
    pub(crate) fn wait_fd(&self) -> Result<&WaitFd, Error> {
        if let Some(fd) = self.wait_fd.get() {
            return Ok(fd);
        }
        if self.ports.is_empty() {
            let why = "its port has to be polled";
            return Err(Error::NoFd { why });
        }
        if self.core()?.clock.is_manual() {
            let why = "its clock is turned by hand";
            return Err(Error::NoFd { why });
        }
        let fd = WaitFd::new(self)?;
        Ok(self.wait_fd.get_or_init(|| fd))
    }

    /// Whether there is something to do right now, apart from packets that come in.
    pub(crate) fn is_busy(&self) -> Result<bool, Error> {
        let port = self.port()?;
        Ok(self.core()?.is_busy(&**port))
    }

    /// Whether all that programs posted is done, and all that is owed to peers has left.
    pub(crate) fn is_drained(&self) -> Result<bool, Error> {
        let port = self.port()?;
        Ok(self.core()?.is_drained(&**port))
    }

    /// What is behind a lock whose holder panicked cannot be believed any more.
    #[inline]
    fn unless_poisoned<'a, T>(
        &self,
        guard: LockResult<MutexGuard<'a, T>>,
    ) -> Result<MutexGuard<'a, T>, Error> {
        guard.map_err(|poisoned| self.fail_poisoned(poisoned))
    }

    #[cold]
    fn fail_poisoned<T>(&self, poisoned: PoisonError<MutexGuard<'_, T>>) -> Error {
        drop(poisoned);
        self.fail("a thread panicked in it");
        self.life.check().err().unwrap_or(Down::ShutDown.into())
    }

    /// After [`Life::end`]: all QPs are in error, and what they had outstanding is flushed, as far
    /// as the state can still be worked on.
    pub(crate) fn bury(&self) {
        if self.life.is_forked() {
            return;
        }
        match self.core.lock() {
            Ok(core) => self.up_to_date(core).bury(self.life.has_failed()),
            Err(poisoned) => {
                let mut core = poisoned.into_inner();
                // As far as the pieces still go together.
                let _ = catch_unwind(AssertUnwindSafe(|| self.new_qps.take_up(&mut core)));
                core.bury(true);
                core.abandon_ids();
            }
        }
    }

    /// The node ends: its peers hear so, unless a panic left the core in pieces.
    pub(crate) fn say_goodbye(&self) {
        if !self.life.is_forked()
            && let Ok(mut port) = self.port.lock()
            && let Ok(core) = self.core.lock()
        {
            let mut core = self.up_to_date(core);
            // There is nobody left to tell if this fails.
            let failed = self.life.has_failed();
            let _ = catch_unwind(AssertUnwindSafe(|| core.say_goodbye(&mut **port, failed)));
        }
    }

    /// Flushes what a program posted while the node went down, behind the last look of its worker.
    #[cold]
    pub(crate) fn flush_late(&self) {
        if let Ok(mut core) = self.core() {
            core.engine.handle_all_doorbells();
            core.engine.publish();
        }
    }

    /// The worker met an error that does not pass.
    pub(crate) fn fail(&self, why: &str) {
        self.life.fail(self.index, why);
    }

    /// Works on the core. What it has to send goes out at once. What it completes can be polled
    /// when the program gets the answer, and the events that follow.
    ///
    /// # Errors
    /// As [`core`](Self::core).
    pub(crate) fn act<T>(&self, work: impl FnOnce(&mut Core, Instant) -> T) -> Result<T, Error> {
        let mut core = self.core()?;
        let now = core.clock.now();
        let done = work(&mut core, now);
        core.pump(now);
        let notifications = core.engine.publish();
        drop(core);
        drop(notifications);
        self.wake();
        Ok(done)
    }

    /// The core, for the thread that drives the worker: others go first.
    ///
    /// # Errors
    /// The node does not work any more.
    pub(crate) fn core_for_worker(&self) -> Result<MutexGuard<'_, Core>, Error> {
        self.life.check()?;
        let core = self.unless_poisoned(self.core.lock_last());
        core.map(|core| self.up_to_date(core))
    }

    /// The port, for the thread that drives the worker and has no core: others go first.
    ///
    /// # Errors
    /// As [`core_for_worker`](Self::core_for_worker).
    pub(crate) fn port_for_worker(&self) -> Result<MutexGuard<'_, PortBox>, Error> {
        self.life.check()?;
        self.unless_poisoned(self.port.lock_last())
    }

    /// Tells the worker that a QP has new work. The doorbell's read-modify-write comes before the
    /// look at whether the worker sleeps.
    pub(crate) fn ring(&self, qp: u32) {
        self.doorbells.ring(qp);
        self.wake();
    }

    /// The program that drives the worker looks for work. If the worker slept before, the link may
    /// be what woke it.
    #[inline]
    pub(crate) fn awake(&self) {
        if self.wakeup.awake()
            && let Some(link) = &self.link
        {
            link.look();
        }
    }

    /// Wakes a sleeping worker.
    pub(crate) fn wake(&self) {
        self.wakeup.ring();
    }
}
