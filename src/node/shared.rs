//! What the handles of a node's objects hold: its workers, and what they share.

use crate::attached::Client;
use crate::error::Error;
use crate::node::life::Life;
use crate::node::link::Link;
use crate::observe::log;
use crate::observe::status::server::Server;
use crate::platform::Reach;
use crate::rdma_cm::Ids;
use crate::service::Serving;
use crate::verbs::event::Event;
use crate::worker::core::Core;
use crate::worker::event_queue::EventQueue;
use crate::worker::handle::WorkerHandle;
use crate::worker::thread::Thread;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use trunkline_cm::rdma::{Id, keeper};
use trunkline_conn::time::Instant;
use trunkline_qpmap::regions::{RegionTable, Unregistered};
use trunkline_qpmap::{Allowed, VerbsError};
use trunkline_wire::{Gid, Qpn, Rkey, Workers};

/// Nodes that the program has made.
static NODES: AtomicU32 = AtomicU32::new(0);

/// What every handle of a node, of its QPs, CQs and regions holds: the last one stops its threads.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) life: Arc<Life>,
    pub(crate) gid: Gid,
    /// Tells it from other nodes of the program.
    pub(crate) tag: u32,
    pub(crate) workers: Workers,
    carrier: Carrier,
}

/// Who carries the packets of a node.
#[derive(Debug)]
enum Carrier {
    /// The program itself.
    Own(Box<Own>),
    /// A service, to which the program is attached.
    Service(Client),
}

/// What only a node inside the program has.
#[derive(Debug)]
pub(crate) struct Own {
    pub(crate) handles: Vec<Arc<WorkerHandle>>,
    /// Those that drive the workers; none for an inline node.
    pub(crate) threads: Vec<Thread>,
    /// Readable when one of several workers that the program drives has something to do.
    pub(crate) wait_fd: OnceLock<OwnedFd>,
    /// Tells other processes how it is; `None` if it does not.
    pub(crate) status: Option<Server>,
    /// The service that carries other programs by it.
    pub(crate) serving: Arc<Serving>,
    /// The link of its port; `None`: nobody tells whether it changes.
    pub(crate) link: Option<Arc<Link>>,
    /// The handles of its IDs of RDMA-CM.
    pub(crate) ids: Ids,
    regions: RegionTable<Reach>,
    pub(crate) events: Arc<EventQueue<Event>>,
    /// The worker that gets the next QP, and the one that gets the next ID of RDMA-CM.
    dealt: AtomicU8,
    dealt_ids: AtomicU8,
    /// Held while something happens in all workers, so that it does in one order: then they give
    /// equal numbers to what they share.
    order: Mutex<()>,
}

impl Own {
    pub(crate) fn new(
        regions: RegionTable<Reach>,
        events: Arc<EventQueue<Event>>,
        handles: Vec<Arc<WorkerHandle>>,
    ) -> Self {
        Self {
            handles,
            threads: Vec::new(),
            wait_fd: OnceLock::new(),
            status: None,
            serving: Arc::default(),
            link: None,
            ids: Ids::default(),
            regions,
            events,
            dealt: AtomicU8::new(0),
            dealt_ids: AtomicU8::new(0),
            order: Mutex::new(()),
        }
    }
}

impl Shared {
    pub(crate) fn own(life: Arc<Life>, gid: Gid, workers: Workers, own: Own) -> Self {
        Self::new(life, gid, workers, Carrier::Own(Box::new(own)))
    }

    /// Of a program that is attached to a service.
    pub(crate) fn attached(life: Arc<Life>, gid: Gid, workers: Workers, client: Client) -> Self {
        Self::new(life, gid, workers, Carrier::Service(client))
    }

    fn new(life: Arc<Life>, gid: Gid, workers: Workers, carrier: Carrier) -> Self {
        Self {
            life,
            gid,
            tag: NODES.fetch_add(1, Ordering::Relaxed),
            workers,
            carrier,
        }
    }

    /// The service that carries it, if one does.
    #[inline]
    pub(crate) const fn client(&self) -> Option<&Client> {
        match &self.carrier {
            Carrier::Own(_) => None,
            Carrier::Service(client) => Some(client),
        }
    }

    /// What it has as a node inside the program.
    ///
    /// # Errors
    /// A service carries it; `what` is not offered there.
    pub(crate) fn inside(&self, what: &'static str) -> Result<&Own, Error> {
        match &self.carrier {
            Carrier::Own(own) => Ok(own),
            Carrier::Service(_) => Err(Error::NotOffered { what }),
        }
    }

    /// The same for objects that only such nodes have.
    ///
    /// # Panics
    /// A service carries it.
    #[inline]
    pub(crate) fn here(&self) -> &Own {
        match &self.carrier {
            Carrier::Own(own) => own,
            Carrier::Service(_) => {
                unreachable!("a node that a service carries has no such objects")
            }
        }
    }

    /// Its workers, as far as they are in this process.
    #[inline]
    pub(crate) fn handles(&self) -> &[Arc<WorkerHandle>] {
        match &self.carrier {
            Carrier::Own(own) => &own.handles,
            Carrier::Service(_) => &[],
        }
    }

    /// Its threads that drive workers.
    pub(crate) fn threads(&self) -> &[Thread] {
        match &self.carrier {
            Carrier::Own(own) => &own.threads,
            Carrier::Service(_) => &[],
        }
    }

    /// The protection domains and regions of the node, which its workers find there.
    ///
    /// # Errors
    /// The node is another process's.
    pub(crate) fn regions(&self) -> Result<&RegionTable<Reach>, Error> {
        // A thread of the parent may have held the lock.
        self.life.check_own()?;
        Ok(&self.inside("regions of this process")?.regions)
    }

    /// Ends a registration: when this returns no worker touches the memory any more.
    ///
    /// # Errors
    /// No region has the key; a worker failed, which touches nothing any more; the node is another
    /// process's.
    pub(crate) fn deregister(&self, key: Rkey) -> Result<(), Error> {
        let taken = self.regions()?.unregister_with_windows(key)?;
        self.retire(taken)
    }

    /// Waits until no worker touches the memory of a registration that has ended.
    ///
    /// # Errors
    /// A worker failed, which touches nothing any more.
    pub(crate) fn retire(&self, mut taken: Unregistered<Reach>) -> Result<(), Error> {
        let mut outcome = Ok(());
        for handle in self.handles() {
            match handle.core() {
                Ok(mut core) => core.engine.quiesce(&mut taken),
                Err(error) => outcome = Err(error),
            }
        }
        taken.reclaim();
        outcome
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
    pub(crate) fn handle(&self, worker: u8) -> &WorkerHandle {
        &self.here().handles[usize::from(worker)]
    }

    /// Whether the program drives it.
    pub(crate) fn is_inline(&self) -> bool {
        self.client().is_none() && self.threads().is_empty()
    }

    pub(crate) fn all_handles(&self) -> Vec<&WorkerHandle> {
        self.handles().iter().map(|handle| &**handle).collect()
    }

    /// The workers; none in a child of fork(2), where a thread of the parent may have held a lock
    /// of theirs.
    pub(crate) fn own_handles(&self) -> impl Iterator<Item = &Arc<WorkerHandle>> {
        let own = self.life.check_own().is_ok();
        self.handles().iter().filter(move |_| own)
    }

    /// The worker that a QP or connection belongs to.
    pub(crate) fn owner(&self, number: Qpn) -> &WorkerHandle {
        self.handle(self.workers.owner(number.get()))
    }

    /// The worker that an ID of RDMA-CM belongs to.
    pub(crate) fn owner_of_id(&self, id: Id) -> &WorkerHandle {
        self.handle(id.worker(self.workers))
    }

    /// The worker that keeps a port of RDMA-CM.
    pub(crate) const fn keeper(&self, port: u16) -> u8 {
        keeper(port, self.workers)
    }

    /// The worker whose turn it is to get a QP.
    pub(crate) fn deal(&self) -> u8 {
        self.next(&self.here().dealt)
    }

    /// The worker whose turn it is to get an ID of RDMA-CM.
    pub(crate) fn deal_id(&self) -> u8 {
        self.next(&self.here().dealt_ids)
    }

    fn next(&self, dealt: &AtomicU8) -> u8 {
        let count = self.workers.count();
        let next = |at: u8| Some((at + 1) % count);
        let dealt = dealt.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        dealt.unwrap_or(0)
    }

    /// The worker that faces that of a peer's QP; `None` where nothing is known of the peer's
    /// workers, or there is one of this node.
    pub(crate) fn facing(&self, peer: IpAddr, qpn: Qpn) -> Option<u8> {
        if self.workers == Workers::ONE {
            return None;
        }
        let known = |handle: &Arc<WorkerHandle>| handle.core().ok()?.engine.peer(peer.into());
        let theirs = self.handles().iter().find_map(known)?;
        Some(self.workers.facing(theirs, qpn.get()))
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
            return self.handle(one).act(|core, now| work(core, None, now));
        }
        let (low, high) = (self.handle(one.min(two)), self.handle(one.max(two)));
        let (mut first, mut second) = (low.core()?, high.core()?);
        let now = first.clock.now();
        let done = if one < two {
            work(&mut first, Some(&mut second), now)
        } else {
            work(&mut second, Some(&mut first), now)
        };
        first.pump(now);
        second.pump(now);
        let notifications = (first.engine.publish(), second.engine.publish());
        drop((first, second));
        drop(notifications);
        low.wake();
        high.wake();
        Ok(done)
    }

    /// Keeps others from doing anything in all workers meanwhile.
    pub(crate) fn in_order(&self) -> MutexGuard<'_, ()> {
        self.here()
            .order
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
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
        // A thread of the parent may have held the lock.
        self.life.check_own()?;
        let order = self.in_order();
        let mut done = Vec::with_capacity(self.handles().len());
        for handle in self.handles() {
            let mut core = handle.core()?;
            match work(&mut core) {
                Ok(given) => done.push(given),
                Err(error) if done.is_empty() => return Err(error.into()),
                Err(error) => panic!("workers differ: {error}"),
            }
        }
        drop(order);
        Ok(done)
    }

    /// Takes the cores of all workers, in their order: none of them does anything meanwhile.
    ///
    /// # Errors
    /// The node failed, or is another process's.
    pub(crate) fn all_cores(&self) -> Result<Vec<MutexGuard<'_, Core>>, Error> {
        self.handles().iter().map(|handle| handle.core()).collect()
    }

    /// What all workers together have; nothing of one whose state is lost.
    pub(crate) fn sum<T: Default>(&self, of: impl Fn(&Core) -> T, add: impl Fn(&mut T, &T)) -> T {
        let mut sum = T::default();
        for core in self
            .handles()
            .iter()
            .filter_map(|handle| handle.core().ok())
        {
            let part = of(&core);
            add(&mut sum, &part);
        }
        sum
    }

    /// The outcome of giving an object up: only a node that is down may refuse, and has nothing to
    /// give it back to.
    pub(crate) fn gave_up<T>(&self, outcome: Result<T, Error>, law: &str) {
        // A worker that failed kept the QPs that were its own, and they what they belong to.
        let fine = !matches!(outcome, Err(Error::Verbs(_))) || !self.life.is_up();
        debug_assert!(fine, "{law}");
    }

    /// After [`Life::end`]: the QPs of all workers are in error, and peers are told, where no
    /// threads see to it.
    pub(crate) fn bury(&self) {
        if self.is_inline() {
            for handle in self.handles() {
                handle.bury();
                handle.say_goodbye();
            }
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.life.is_forked() {
            // The parent's threads were in the middle of it when the child was made: it is neither
            // whole nor ours. Its descriptors go when the child ends or becomes another program.
            if let Carrier::Own(own) = &mut self.carrier {
                std::mem::forget(std::mem::take(&mut own.handles));
            }
            return;
        }
        if self.life.check().is_ok() {
            log::ended(self.gid.address());
        }
        if self.is_inline() {
            self.handles()
                .iter()
                .for_each(|handle| handle.say_goodbye());
        }
        // All at once, and then one after the other is waited for.
        self.threads().iter().for_each(Thread::stop);
    }
}
