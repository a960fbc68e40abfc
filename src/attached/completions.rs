//! Completion queues of the program.

use super::Client;
use crate::error::Error;
use crate::node::life::{HearsEnd, Life};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use trunkline_host::control::answers::{CqCreated, CqResized, EventsWatched};
use trunkline_host::control::attributes::RingKind;
use trunkline_host::control::requests::{CreateCq, DestroyCq, ResizeCq, WatchEvents};
use trunkline_host::{Handle, Words};
use trunkline_qpmap::VerbsError;
use trunkline_qpmap::cq::{CompletionQueue, MergedQueue, Notify};

/// What [`Signals`] has beside the events of the service.
const AGAIN: u64 = 1;

/// What a program waits on for the events of a CQ: an epoll instance that the service made over a
/// descriptor which it alone has, so that nobody else raises or takes events there.
#[derive(Debug)]
pub(crate) struct Signals {
    epoll: OwnedFd,
    again: Arc<Again>,
}

/// Raises events of one CQ from the program's side, and is readable for good once the node does
/// nothing any more. Each CQ has one of its own: epoll(7) lets a descriptor that many instances
/// watch be watched by 500 of them at most where others watch these in turn.
#[derive(Debug)]
struct Again {
    /// Read as a semaphore.
    event: OwnedFd,
    is_over: AtomicBool,
}

impl Again {
    /// Takes an event, if one was raised; the end is none.
    fn take(&self) -> bool {
        !self.is_over.load(Ordering::SeqCst) && rustix::io::read(&self.event, &mut [0; 8]).is_ok()
    }
}

impl HearsEnd for Again {
    fn hear_end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.event.hear_end();
    }
}

impl Signals {
    pub(super) fn new(epoll: OwnedFd, life: &Life) -> Result<Self, Error> {
        let system = |e: rustix::io::Errno| Error::system("epoll of a completion queue")(e.into());
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK | EventfdFlags::SEMAPHORE;
        let again = Arc::new(Again {
            event: eventfd(0, flags).map_err(system)?,
            is_over: AtomicBool::new(false),
        });
        let data = EventData::new_u64(AGAIN);
        epoll::add(&epoll, &again.event, data, EventFlags::IN).map_err(system)?;
        life.tell_end_to(&again);
        Ok(Self { epoll, again })
    }

    /// Takes the events that have come; gives how many.
    pub(crate) fn take(&self) -> u64 {
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let mut found = [MaybeUninit::uninit(); 2];
        let found = epoll::wait(&self.epoll, &mut found[..], Some(&now));
        let (found, _) = found.unwrap_or_default();
        let is_event = |event: &&epoll::Event| event.data.u64() != AGAIN || self.again.take();
        found.iter().filter(is_event).count() as u64
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Notify for Signals {
    fn notify(&self) {
        // It fails only when the counter is full, and then it is readable already.
        let _ = rustix::io::write(&self.again.event, &1u64.to_ne_bytes());
    }
}

/// The program's side of a queue is never notified: the service does that.
struct Silent;

impl Notify for Silent {
    fn notify(&self) {}
}

/// What a CQ is made of.
pub(crate) type ServedCq = (Handle, MergedQueue<Words>, Signals);

impl Client {
    pub(crate) fn create_cq(&self, depth: u32) -> Result<ServedCq, Error> {
        let CqCreated { cq, .. } = self.ask(CreateCq { depth })?;
        let made = self.cq_over(cq);
        if made.is_err() {
            self.destroy_cq(cq);
        }
        let (queue, signals) = made?;
        Ok((cq, queue, signals))
    }

    fn cq_over(&self, cq: Handle) -> Result<(MergedQueue<Words>, Signals), Error> {
        let mut headers = Vec::with_capacity(self.bells.len());
        for worker in 0..self.bells.len() as u8 {
            let header = self.ring(RingKind::CompletionHeader, Some(cq), worker)?;
            headers.push(header.0);
        }
        let entries = self.entries(cq)?;
        let first = headers[0].clone();
        let queue = MergedQueue::apart(headers.len(), first, Arc::new(Silent), |_| {
            let rings = headers.into_iter().zip(entries);
            let ring = |(header, entries)| CompletionQueue::over(header, entries).map(Arc::new);
            rings.map(ring).collect::<Result<_, _>>()
        });
        let queue = queue.map_err(|error: VerbsError| self.line.broken(&error.to_string()))?;
        let watch = WatchEvents { cq: Some(cq) };
        let (_, [epoll, _]) = self.line.ask::<EventsWatched>(watch, &[])?;
        let epoll = epoll.ok_or_else(|| self.line.broken("no descriptor came for events"))?;
        Ok((queue, Signals::new(epoll, self.line.life())?))
    }

    /// The memory of the completions of each worker.
    fn entries(&self, cq: Handle) -> Result<Vec<Words>, Error> {
        let workers = 0..self.bells.len() as u8;
        let entries = |worker| Ok(self.ring(RingKind::Completions, Some(cq), worker)?.0);
        workers.map(entries).collect()
    }

    pub(crate) fn resize_cq(
        &self,
        cq: Handle,
        queue: &MergedQueue<Words>,
        depth: u32,
    ) -> Result<(), Error> {
        queue.move_to(|| {
            // The service completes into the new entries at once.
            let room = self.line.room()?;
            let _: CqResized = self.ask(ResizeCq { cq, depth })?;
            drop(room);
            self.entries(cq).map_err(|error| self.line.lost(&error))
        })
    }

    /// Notifies the program of the events of a CQ in a way of its own. Gives what it is called for
    /// [`let_go_of`](Self::let_go_of).
    ///
    /// # Errors
    /// The system has no room for it.
    pub(crate) fn watch(&self, signals: Signals, notify: Arc<dyn Notify>) -> Result<u64, Error> {
        self.watcher.watch(signals, notify)
    }

    /// Notifies of them no more.
    pub(crate) fn let_go_of(&self, watched: u64) {
        self.watcher.unwatch(watched);
    }

    pub(crate) fn destroy_cq(&self, cq: Handle) {
        self.destroy(DestroyCq { cq });
    }
}
