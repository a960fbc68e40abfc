//! What the handles of a node hold: its workers, each with a core of its own.

use crate::core::Core;
use crate::error::Error;
use crate::life::{Down, Life};
use crate::rdma_cm::Ids;
use crate::status::server::Server;
use crate::worker::{Bell, Thread};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, LockResult, Mutex, MutexGuard, PoisonError};
use trunkline_cm::rdma::{Id, keeper};
use trunkline_conn::time::Instant;
use trunkline_qpmap::doorbell::Doorbells;
use trunkline_qpmap::mapping::Mapping;
use trunkline_qpmap::{Allowed, VerbsError};
use trunkline_wire::{Gid, Qpn, Workers};

/// Nodes that the program has made.
static NODES: AtomicU32 = AtomicU32::new(0);

/// What every handle of a node, of its QPs, CQs and regions holds: the last one stops its threads.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) life: Arc<Life>,
    pub(crate) seats: Vec<Arc<Seat>>,
    /// Those that drive the workers; none for an inline node.
    pub(crate) threads: Vec<Thread>,
    /// Tells other processes how it is; `None` if it does not.
    pub(crate) status: Option<Server>,
    pub(crate) gid: Gid,
    /// The handles of its IDs of RDMA-CM.
    pub(crate) ids: Ids,
    /// Tells it from other nodes of the program.
    pub(crate) tag: u32,
    pub(crate) workers: Workers,
    /// The worker that gets the next QP, and the one that gets the next ID of RDMA-CM.
    dealt: AtomicU8,
    dealt_ids: AtomicU8,
    /// Held while something happens in all workers, so that it does in one order: then they give
    /// equal numbers to what they share.
    order: Mutex<()>,
}

impl Shared {
    pub(crate) fn new(life: Arc<Life>, workers: Workers, gid: Gid, seats: Vec<Arc<Seat>>) -> Self {
        Self {
            life,
            seats,
            threads: Vec::new(),
            status: None,
            gid,
            ids: Ids::default(),
            tag: NODES.fetch_add(1, Ordering::Relaxed),
            workers,
            dealt: AtomicU8::new(0),
            dealt_ids: AtomicU8::new(0),
            order: Mutex::new(()),
        }
    }

    /// Whether an object of this node serves one of `other`.
    ///
    /// # Errors
    /// It is another node; `what` names the object.
    pub(crate) fn check_same(
        self: &Arc<Self>,
        other: &Arc<Self>,
        what: &'static str,
    ) -> Result<(), VerbsError> {
        if Arc::ptr_eq(self, other) {
            Ok(())
        } else {
            Err(VerbsError::InvalidArgument { what })
        }
    }

    /// A worker.
    ///
    /// # Panics
    /// There is none with this index.
    pub(crate) fn seat(&self, worker: u8) -> &Seat {
        &self.seats[usize::from(worker)]
    }

    /// The worker that a QP or connection belongs to.
    pub(crate) fn owner(&self, number: Qpn) -> &Seat {
        self.seat(self.workers.owner(number.get()))
    }

    /// The worker that an ID of RDMA-CM belongs to.
    pub(crate) fn owner_of_id(&self, id: Id) -> &Seat {
        self.seat(id.worker(self.workers))
    }

    /// The worker that keeps a port of RDMA-CM.
    pub(crate) const fn keeper(&self, port: u16) -> u8 {
        keeper(port, self.workers)
    }

    /// The worker whose turn it is to get a QP.
    pub(crate) fn deal(&self) -> u8 {
        self.next(&self.dealt)
    }

    /// The worker whose turn it is to get an ID of RDMA-CM.
    pub(crate) fn deal_id(&self) -> u8 {
        self.next(&self.dealt_ids)
    }

    fn next(&self, dealt: &AtomicU8) -> u8 {
        let count = self.workers.count();
        let next = |at: u8| Some((at + 1) % count);
        let dealt = dealt.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        dealt.unwrap_or(0)
    }

    /// The worker that a program chose, or the one whose turn it is.
    ///
    /// # Errors
    /// There is none with this index.
    pub(crate) fn chosen(&self, worker: Option<u8>) -> Result<u8, Error> {
        match worker {
            Some(worker) => {
                let last = u32::from(self.workers.count()) - 1;
                Allowed::Range(0, last).check("worker", worker)?;
                Ok(worker)
            }
            None => Ok(self.deal()),
        }
    }

    /// Works on the cores of two workers, of which the second may be the first: there is no second
    /// core then. What they have to send goes out at once.
    ///
    /// # Errors
    /// The node failed, or is another process's: nothing was done.
    pub(crate) fn on_two<T>(
        &self,
        (one, two): (u8, u8),
        work: impl FnOnce(&mut Core, Option<&mut Core>, Instant) -> T,
    ) -> Result<T, Error> {
        if one == two {
            return self.seat(one).act(|core, now| work(core, None, now));
        }
        let (low, high) = (self.seat(one.min(two)), self.seat(one.max(two)));
        let (mut first, mut second) = (low.core()?, high.core()?);
        let now = first.clock.now();
        let done = if one < two {
            work(&mut first, Some(&mut second), now)
        } else {
            work(&mut second, Some(&mut first), now)
        };
        first.pump(now);
        second.pump(now);
        drop((first, second));
        low.wake();
        high.wake();
        Ok(done)
    }

    /// Keeps others from doing anything in all workers meanwhile.
    pub(crate) fn in_order(&self) -> MutexGuard<'_, ()> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does the same in all workers: gives what each gave.
    ///
    /// # Errors
    /// That of the first worker: nothing has happened then. The node failed.
    ///
    /// # Panics
    /// The first could and another could not, though they are equal in what they share.
    pub(crate) fn on_all<T>(
        &self,
        mut work: impl FnMut(&mut Core) -> Result<T, VerbsError>,
    ) -> Result<Vec<T>, Error> {
        if self.life.is_forked() {
            // A thread of the parent may have held the lock.
            return Err(Down::Forked.into());
        }
        let order = self.in_order();
        let mut done = Vec::with_capacity(self.seats.len());
        for seat in &self.seats {
            let mut core = seat.core()?;
            match work(&mut core) {
                Ok(given) => done.push(given),
                Err(error) if done.is_empty() => return Err(error.into()),
                Err(error) => panic!("workers differ: {error}"),
            }
        }
        drop(order);
        Ok(done)
    }

    /// As [`on_all`](Self::on_all), where all workers give one and the same.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// They do not.
    pub(crate) fn as_one<T: PartialEq>(
        &self,
        work: impl FnMut(&mut Core) -> Result<T, VerbsError>,
    ) -> Result<T, Error> {
        let mut given = self.on_all(work)?.into_iter();
        let first = given.next().expect("a node has a worker");
        assert!(given.all(|other| other == first), "workers differ");
        Ok(first)
    }

    /// What all workers together have; nothing of one whose state is lost.
    pub(crate) fn sum<T: Default>(&self, of: impl Fn(&Core) -> T, add: impl Fn(&mut T, &T)) -> T {
        let mut sum = T::default();
        for core in self.seats.iter().filter_map(|seat| seat.core().ok()) {
            let part = of(&core);
            add(&mut sum, &part);
        }
        sum
    }

    /// The outcome of giving an object up: only a node that is down may refuse, and has nothing to
    /// give it back to.
    pub(crate) fn gave_up<T>(&self, outcome: Result<T, Error>, law: &str) {
        let fine = !matches!(outcome, Err(Error::Verbs(_)));
        debug_assert!(fine, "{law}");
    }

    /// After [`Life::end`]: the QPs of all workers are in error, and peers are told, where no
    /// threads see to it.
    pub(crate) fn bury(&self) {
        if self.threads.is_empty() {
            for seat in &self.seats {
                seat.bury();
                seat.say_goodbye();
            }
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.life.is_forked() {
            // The parent's threads were in the middle of it when the child was made: it is neither
            // whole nor ours. Its descriptors go when the child ends or becomes another program.
            std::mem::forget(std::mem::take(&mut self.seats));
            return;
        }
        if self.threads.is_empty() {
            self.seats.iter().for_each(|seat| seat.say_goodbye());
        }
        // All at once, and then one after the other is waited for.
        self.threads.iter().for_each(Thread::stop);
    }
}

/// What the handles of a node and the thread of one worker share.
#[derive(Debug)]
pub(crate) struct Seat {
    life: Arc<Life>,
    /// Index of the worker.
    index: u8,
    core: Mutex<Core>,
    /// What the port is slept on by, if it can be: opened once, as a sleep must not need a
    /// descriptor that may not be there.
    pub(crate) ports: Vec<OwnedFd>,
    /// Threads that want the core: the worker gives way to them.
    waiting: AtomicU32,
    pub(crate) doorbells: Arc<Doorbells>,
    pub(crate) mapping: Arc<Mapping>,
    pub(crate) bell: Arc<Bell>,
}

impl Seat {
    /// That of the worker with this index.
    ///
    /// # Errors
    /// The operating system has no descriptor left.
    pub(crate) fn new(
        life: Arc<Life>,
        index: u8,
        core: Core,
        bell: Arc<Bell>,
    ) -> Result<Self, Error> {
        let fds = core.port.fds().into_iter();
        let ports: std::io::Result<_> = fds.map(|fd| fd.try_clone_to_owned()).collect();
        Ok(Self {
            life,
            index,
            ports: ports.map_err(Error::system("dup"))?,
            doorbells: Arc::clone(core.engine.doorbells()),
            mapping: Arc::clone(core.engine.mapping()),
            core: Mutex::new(core),
            waiting: AtomicU32::new(0),
            bell,
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
        if self.life.is_forked() {
            return Err(Down::Forked.into());
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let guard = self.core.lock();
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        self.unless_poisoned(guard)
    }

    /// What is behind a lock whose holder panicked cannot be believed any more.
    #[inline]
    fn unless_poisoned<'a>(
        &self,
        guard: LockResult<MutexGuard<'a, Core>>,
    ) -> Result<MutexGuard<'a, Core>, Error> {
        guard.map_err(|poisoned| self.fail_poisoned(poisoned))
    }

    #[cold]
    fn fail_poisoned(&self, poisoned: PoisonError<MutexGuard<'_, Core>>) -> Error {
        drop(poisoned);
        self.life.fail(self.index, "a thread panicked in it");
        self.life.check().err().unwrap_or(Down::ShutDown.into())
    }

    /// After [`Life::end`]: all QPs are in error, and what they had outstanding is flushed, as far
    /// as the state can still be worked on.
    pub(crate) fn bury(&self) {
        if self.life.is_forked() {
            return;
        }
        match self.core.lock() {
            Ok(mut core) => core.bury(),
            Err(poisoned) => {
                let mut core = poisoned.into_inner();
                core.bury();
                core.abandon_ids();
            }
        }
    }

    /// The node ends: its peers hear so, unless a panic left the core in pieces.
    pub(crate) fn say_goodbye(&self) {
        if !self.life.is_forked()
            && let Ok(mut core) = self.core.lock()
        {
            // There is nobody left to tell if this fails.
            let _ = catch_unwind(AssertUnwindSafe(|| core.say_goodbye()));
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
        core.engine.publish();
        drop(core);
        self.wake();
        Ok(done)
    }

    /// The core, for the thread that drives the worker: others go first.
    ///
    /// # Errors
    /// The node does not work any more.
    pub(crate) fn core_for_worker(&self) -> Result<MutexGuard<'_, Core>, Error> {
        self.life.check()?;
        while self.waiting.load(Ordering::SeqCst) > 0 {
            std::thread::yield_now();
        }
        self.unless_poisoned(self.core.lock())
    }

    /// Tells the worker that a QP has new work. The doorbell's read-modify-write comes before the
    /// look at whether the worker sleeps.
    pub(crate) fn ring(&self, qp: u32) {
        self.doorbells.ring(qp);
        self.wake();
    }

    /// Wakes a sleeping worker.
    pub(crate) fn wake(&self) {
        self.bell.ring();
    }
}
