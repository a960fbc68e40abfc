//! What a node's thread has of RDMA-CM: the manager, and where its events go.

use super::event::Notice;
use crate::peers::Seeded;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use trunkline_cm::rdma::{Config, Event, Id, Manager};
use trunkline_conn::time::Instant;

/// Payloads that the path MTUs of connections stand for, from code 1 on.
const MTUS: [u32; 5] = [256, 512, 1024, 2048, 4096];
/// The longest headers beside a payload, BTH and ICRC included.
const HEADERS: u32 = 12 + 28 + 4 + 4;

/// Events of a channel that the program has not fetched.
#[derive(Debug)]
pub(crate) struct Queue {
    notices: Mutex<VecDeque<Notice>>,
    pub(crate) fd: OwnedFd,
}

impl Queue {
    pub(crate) fn new() -> Result<Self, crate::Error> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let fd = eventfd(0, flags).map_err(|e| crate::Error::system("eventfd")(e.into()))?;
        Ok(Self {
            notices: Mutex::default(),
            fd,
        })
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Notice>> {
        self.notices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, notice: Notice) {
        let mut notices = self.lock();
        notices.push_back(notice);
        if notices.len() == 1 {
            // It fails only when the counter is full, and then it is readable already.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    pub(crate) fn pop(&self) -> Option<Notice> {
        let mut notices = self.lock();
        let notice = notices.pop_front()?;
        self.settle(&notices);
        Some(notice)
    }

    /// The descriptor is readable while notices wait: a system call where they begin and where they
    /// end, none in between. The caller holds the lock, so that neither overtakes the other.
    fn settle(&self, notices: &VecDeque<Notice>) {
        if notices.is_empty() {
            let _ = rustix::io::read(&self.fd, &mut [0; 8]);
        }
    }

    /// Takes out what was said of `id`, or of requests to it.
    fn take(&self, id: Id) -> Vec<Notice> {
        let mut taken = Vec::new();
        let mut notices = self.lock();
        for _ in 0..notices.len() {
            let Some(notice) = notices.pop_front() else {
                break;
            };
            if notice.concerns(id) {
                taken.push(notice);
            } else {
                notices.push_back(notice);
            }
        }
        if !taken.is_empty() {
            self.settle(&notices);
        }
        taken
    }
}

/// The manager of a node, and whose its IDs are.
#[derive(Debug)]
pub(crate) struct Desk {
    pub(crate) manager: Manager<Seeded>,
    owners: BTreeMap<Id, Arc<Queue>>,
}

impl Desk {
    /// A manager for a node with this GUID, whose datagrams have `datagram` bytes at most.
    pub(crate) fn new(guid: u64, datagram: u32, random: Seeded) -> Self {
        let mut config = Config::new(guid);
        let fitting = MTUS.iter().filter(|mtu| **mtu + HEADERS <= datagram);
        config.path.mtu = fitting.count().max(1) as u8;
        Self {
            manager: Manager::new(config, random),
            owners: BTreeMap::new(),
        }
    }

    /// Events of `id` go to `queue` from now on (`rdma_migrate_id(3)`), those not fetched too.
    pub(crate) fn own(&mut self, id: Id, queue: &Arc<Queue>) {
        if let Some(before) = self.owners.insert(id, Arc::clone(queue))
            && !Arc::ptr_eq(&before, queue)
        {
            before
                .take(id)
                .into_iter()
                .for_each(|notice| queue.push(notice));
        }
    }

    /// Gives up an ID; requests to it that nobody fetched are refused.
    pub(crate) fn destroy(&mut self, now: Instant, id: Id) {
        let unfetched = self.owners.remove(&id).map(|queue| queue.take(id));
        for notice in unfetched.into_iter().flatten() {
            if let Notice::Manager(Event::ConnectRequest { id: new, .. }) = notice
                && new != id
            {
                self.owners.remove(&new);
                let _ = self.manager.destroy(now, new);
            }
        }
        // It is gone already where its listener took it along.
        let _ = self.manager.destroy(now, id);
    }

    /// Hands out what happened; gives whether anything did.
    pub(crate) fn pump(&mut self, now: Instant) -> bool {
        let mut any = false;
        while let Some(event) = self.manager.poll_event(now) {
            any = true;
            let mut owner = event.id();
            if let Event::ConnectRequest { listener, id, .. } = event {
                if let Some(queue) = self.owners.get(&listener) {
                    let queue = Arc::clone(queue);
                    self.owners.insert(id, queue);
                }
                owner = id;
            }
            if let Some(queue) = self.owners.get(&owner) {
                queue.push(Notice::Manager(event));
            }
        }
        any
    }
}
