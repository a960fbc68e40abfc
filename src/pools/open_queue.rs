//! Peers that are asked when a place for a handshake is free: as many as may are being asked.
//!
//! Who stands in line for a pool is only named. What is asked for is gathered when its turn comes,
//! and the patience of the QPs that wait for it begins with that, as does a program's that opens a
//! connection of its own.

use super::{ConnectionState, NO_QP, PoolContext, Pools, workers_of};
use crate::error::NoConnection;
use crate::verbs::connection::ConnectionOptions;
use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;
use trunkline_cm::Purpose;
use trunkline_wire::{Gid, Qpn};

/// What waits until fewer are being asked.
#[derive(Clone, Copy, Debug)]
pub(super) enum Waiting {
    /// A connection of the pool to the worker of that peer with such a QP, as in a request: each
    /// once.
    Pool(IpAddr, u8),
    Private(Wanted),
}

/// A connection that a program opens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) handle: u64,
    pub(super) peer: IpAddr,
    pub(super) options: ConnectionOptions,
}

/// Who waits, in order.
#[derive(Debug, Default)]
pub(super) struct OpenQueue {
    waiting: VecDeque<Waiting>,
    /// Those of pools: each is in the line once.
    pools: BTreeSet<(IpAddr, u8)>,
}

impl OpenQueue {
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    fn push(&mut self, waiting: Waiting) {
        if let Waiting::Pool(peer, toward) = waiting {
            self.pools.insert((peer, toward));
        }
        self.waiting.push_back(waiting);
    }

    fn pop(&mut self) -> Option<Waiting> {
        let next = self.waiting.pop_front()?;
        if let Waiting::Pool(peer, toward) = next {
            self.pools.remove(&(peer, toward));
        }
        Some(next)
    }

    pub(super) fn state_bytes(&self) -> usize {
        self.waiting.len() * size_of::<Waiting>() + self.pools.len() * size_of::<(IpAddr, u8)>()
    }
}

impl Pools {
    /// Asks the worker of `peer` that has the QP `remote` for a connection of the pool, now or in
    /// its turn.
    pub(super) fn open_pool(&mut self, context: &mut PoolContext<'_>, peer: Gid, remote: Qpn) {
        if self.queue.is_empty() && context.manager.may_open() {
            self.request_pool(context, peer, remote);
        } else if !self.is_in_line(context, peer.address(), remote) {
            self.enqueue(Waiting::Pool(peer.address(), remote.get() as u8));
        }
    }

    /// The same for a connection that a program opens. Gives whether it may come to be: not if
    /// there are too many already.
    pub(super) fn open_wanted(&mut self, context: &mut PoolContext<'_>, wanted: Wanted) -> bool {
        let has_to_wait = self.turns.has_to_wait(wanted.peer);
        if !has_to_wait && self.is_queue_empty(context) {
            return self.request_wanted(context, &wanted);
        }
        // Programs bring entries of their own: no more than could ever be connections.
        let most = context.manager.config().limits.connections;
        let room = self.queue.len() + self.turns.len() < most as usize;
        if room && has_to_wait {
            self.turns.wait(wanted);
        } else if room {
            self.enqueue(Waiting::Private(wanted));
        }
        room
    }

    fn request_wanted(&mut self, context: &mut PoolContext<'_>, wanted: &Wanted) -> bool {
        let end = (wanted.peer, wanted.options.remote.unwrap_or(NO_QP));
        let handle = Some(wanted.handle);
        let opened = self.open(context, end, Purpose::Private, &wanted.options, handle);
        if opened {
            self.turns.begin(wanted.peer);
        }
        opened
    }

    pub(super) fn enqueue(&mut self, waiting: Waiting) {
        self.queue.push(waiting);
        self.recorder.queued(self.queue.len() as u64);
    }

    /// Whether a peer may be asked now without overtaking another.
    pub(super) fn is_queue_empty(&self, context: &PoolContext<'_>) -> bool {
        self.queue.is_empty() && context.manager.may_open()
    }

    pub(super) fn is_in_line(&self, context: &PoolContext<'_>, peer: IpAddr, remote: Qpn) -> bool {
        let workers = workers_of(context.engine, peer);
        let owner = workers.owner(remote.get());
        let mut of_peer = self.queue.pools.range((peer, 0)..=(peer, u8::MAX));
        of_peer.any(|(_, toward)| workers.owner((*toward).into()) == owner)
    }

    /// Asks the next in line, as many as there are places free. Gives whether there was one.
    pub(crate) fn open_next(&mut self, context: &mut PoolContext<'_>) -> bool {
        let before = self.queue.len();
        while context.manager.may_open()
            && let Some(next) = self.queue.pop()
        {
            self.recorder.in_line(self.queue.len() as u64);
            match next {
                Waiting::Pool(peer, toward) => self.pool_has_turn(context, (peer, toward)),
                Waiting::Private(wanted) => self.program_has_turn(context, &wanted),
            }
        }
        self.queue.len() != before
    }

    fn program_has_turn(&mut self, context: &mut PoolContext<'_>, wanted: &Wanted) {
        if !self.private.has(wanted.handle) {
            // The program has given it up meanwhile.
            self.turn_is_free(wanted.peer);
        } else if !self.turns.is_free(wanted.peer) {
            self.turns.wait(*wanted);
        } else if !self.request_wanted(context, wanted) {
            let why = NoConnection::TooMany;
            self.tell(wanted.handle, wanted.peer, ConnectionState::Failed(why));
            self.turn_is_free(wanted.peer);
        }
    }

    fn pool_has_turn(&mut self, context: &mut PoolContext<'_>, at: (IpAddr, u8)) {
        let (peer, remote) = (Gid::from(at.0), Qpn::from_wire(at.1.into()));
        if !self.is_waited_for(context, at.0, remote) {
            // The peer has asked itself meanwhile, or the QPs are gone.
            self.busy.remove(&at);
        } else if self.is_ordinary(context, at.0) {
            self.busy.remove(&at);
            context.engine.peer_is_ibta(peer);
        } else if !self.is_pool_opening(context, at.0, remote) {
            self.request_pool(context, peer, remote);
        }
    }

    /// Whether QPs wait for a connection to that worker of `peer`.
    pub(super) fn is_waited_for(
        &self,
        context: &PoolContext<'_>,
        peer: IpAddr,
        remote: Qpn,
    ) -> bool {
        let workers = workers_of(context.engine, peer);
        let owner = workers.owner(remote.get());
        let waiting = context.engine.waiting_for(peer.into());
        let mut owners = waiting.iter().map(|other| workers.owner(other.get()));
        owners.any(|other| other == owner)
    }
}
