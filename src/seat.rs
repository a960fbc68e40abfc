//! What the handles of a node hold: its workers, each with a core of its own.

use crate::core::Core;
use crate::error::Error;
use crate::status::server::Server;
use crate::worker::{Bell, Thread};
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use trunkline_cm::rdma::Id;
use trunkline_conn::time::Instant;
use trunkline_qpmap::VerbsError;
use trunkline_qpmap::doorbell::Doorbells;
use trunkline_qpmap::mapping::Mapping;
use trunkline_wire::{Gid, Qpn, Workers};

/// What every handle of a node, of its QPs, CQs and regions holds: the last one stops its threads.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) seats: Vec<Arc<Seat>>,
    /// Those that drive the workers; none for an inline node.
    pub(crate) threads: Vec<Thread>,
    /// Tells other processes how it is; `None` if it does not.
    pub(crate) status: Option<Server>,
    pub(crate) gid: Gid,
    pub(crate) workers: Workers,
    /// The worker that gets the next QP, and the one that gets the next ID of RDMA-CM.
    dealt: AtomicU8,
    dealt_ids: AtomicU8,
    /// Held while something happens in all workers, so that it does in one order: then they give
    /// equal numbers to what they share.
    order: Mutex<()>,
}

impl Shared {
    pub(crate) const fn new(workers: Workers, gid: Gid, seats: Vec<Arc<Seat>>) -> Self {
        Self {
            seats,
            threads: Vec::new(),
            status: None,
            gid,
            workers,
            dealt: AtomicU8::new(0),
            dealt_ids: AtomicU8::new(0),
            order: Mutex::new(()),
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
    pub(crate) fn keeper(&self, port: u16) -> &Seat {
        self.seat(self.workers.owner(port.into()))
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
            Some(worker) if worker >= self.workers.count() => Err(VerbsError::BadAttribute {
                what: "worker",
                value: worker.into(),
            }
            .into()),
            Some(worker) => Ok(worker),
            None => Ok(self.deal()),
        }
    }

    /// Works on the cores of two workers, of which the second may be the first: there is no second
    /// core then. What they have to send goes out at once.
    pub(crate) fn on_two<T>(
        &self,
        (one, two): (u8, u8),
        work: impl FnOnce(&mut Core, Option<&mut Core>, Instant) -> T,
    ) -> T {
        let (low, high) = (self.seat(one.min(two)), self.seat(one.max(two)));
        let mut first = low.core();
        let mut second = (one != two).then(|| high.core());
        let now = first.clock.now();
        let done = match &mut second {
            None => work(&mut first, None, now),
            Some(second) if one < two => work(&mut first, Some(second), now),
            Some(second) => work(second, Some(&mut first), now),
        };
        first.pump(now);
        if let Some(second) = &mut second {
            second.pump(now);
        }
        drop((first, second));
        low.wake();
        high.wake();
        done
    }

    /// Keeps others from doing anything in all workers meanwhile.
    pub(crate) fn in_order(&self) -> MutexGuard<'_, ()> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does the same in all workers: gives what each gave.
    ///
    /// # Errors
    /// That of the first worker: nothing has happened then.
    ///
    /// # Panics
    /// The first could and another could not, though they are equal in what they share.
    pub(crate) fn on_all<T>(
        &self,
        mut work: impl FnMut(&mut Core) -> Result<T, VerbsError>,
    ) -> Result<Vec<T>, VerbsError> {
        let order = self.in_order();
        let mut done = Vec::with_capacity(self.seats.len());
        for seat in &self.seats {
            match work(&mut seat.core()) {
                Ok(given) => done.push(given),
                Err(error) if done.is_empty() => return Err(error),
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
    ) -> Result<T, VerbsError> {
        let mut given = self.on_all(work)?.into_iter();
        let first = given.next().expect("a node has a worker");
        assert!(given.all(|other| other == first), "workers differ");
        Ok(first)
    }

    /// What all workers together have.
    pub(crate) fn sum<T: Default>(&self, of: impl Fn(&Core) -> T, add: impl Fn(&mut T, &T)) -> T {
        let mut sum = T::default();
        for seat in &self.seats {
            let part = of(&seat.core());
            add(&mut sum, &part);
        }
        sum
    }
}

/// What the handles of a node and the thread of one worker share.
#[derive(Debug)]
pub(crate) struct Seat {
    core: Mutex<Core>,
    /// Threads that want the core: the worker gives way to them.
    waiting: AtomicU32,
    pub(crate) doorbells: Arc<Doorbells>,
    pub(crate) mapping: Arc<Mapping>,
    pub(crate) bell: Arc<Bell>,
}

impl Seat {
    pub(crate) fn new(core: Core, bell: Arc<Bell>) -> Self {
        Self {
            doorbells: Arc::clone(core.engine.doorbells()),
            mapping: Arc::clone(core.engine.mapping()),
            core: Mutex::new(core),
            waiting: AtomicU32::new(0),
            bell,
        }
    }

    /// The core, for a control call. Never held while waiting for anything but the core of a later
    /// worker.
    pub(crate) fn core(&self) -> MutexGuard<'_, Core> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let guard = self.core.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        guard
    }

    /// The core, for the thread that drives the worker: others go first.
    pub(crate) fn core_for_worker(&self) -> MutexGuard<'_, Core> {
        while self.waiting.load(Ordering::SeqCst) > 0 {
            std::thread::yield_now();
        }
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
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
