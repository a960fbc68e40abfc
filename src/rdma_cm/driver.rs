//! What a node's thread has of RDMA-CM: the manager, and where its events go.

use super::event::ChannelEvent;
use super::resolve::{Outcome, ResolveError, Resolver};
use crate::error::NoConnection;
use crate::observe::status::Span;
use crate::observe::status::recorder::Recorder;
use crate::worker::event_queue::EventQueue;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use trunkline_cm::ib::{Guids, PathTerms};
use trunkline_cm::rdma::{Config, Event, Id, RdmaCm};
use trunkline_conn::secret::Stream;
use trunkline_conn::time::Instant;
use trunkline_dataplane::{NextHop, Routes};
use trunkline_qpmap::Attributes;
use trunkline_wire::{Qpn, Worker};

/// The longest headers beside a payload, BTH and ICRC included.
const HEADERS: u32 = 12 + 28 + 4 + 4;
/// What IP and UDP add to that.
const IPV4_UDP: u32 = 20 + 8;
const IPV6_UDP: u32 = 40 + 8;

/// Code of the largest path MTU whose packets fit into so many bytes, BTH to ICRC; 0 if none does.
fn mtu_code(datagram: u32) -> u8 {
    let fits = |mtu: &&u16| u32::from(**mtu) + HEADERS <= datagram;
    Attributes::PATH_MTUS.iter().filter(fits).count() as u8
}

impl EventQueue<ChannelEvent> {
    /// The requests to `listener` that wait here.
    fn requests_to(&self, listener: Id) -> Vec<Id> {
        let events = self.lock();
        let requests = events.iter().filter_map(|event| event.request());
        requests
            .filter(|(at, _)| *at == listener)
            .map(|(_, new)| new)
            .collect()
    }

    /// Takes out what was said of `id`, or of requests to it.
    fn take(&self, id: Id) -> Vec<ChannelEvent> {
        let mut taken = Vec::new();
        let mut events = self.lock();
        for _ in 0..events.len() {
            let Some(event) = events.pop_front() else {
                break;
            };
            if event.concerns(id) {
                taken.push(event);
            } else {
                events.push_back(event);
            }
        }
        if !taken.is_empty() {
            self.settle(&events);
        }
        taken
    }
}

/// The manager of a node, and whose its IDs are.
#[derive(Debug)]
pub(crate) struct CmDriver {
    pub(crate) manager: RdmaCm<Stream>,
    /// Addresses and routes that could not be resolved.
    pub(crate) unresolved: u64,
    owners: BTreeMap<Id, Arc<EventQueue<ChannelEvent>>>,
    /// QPs of this worker whose connections are another one's, where programs wished for that.
    elsewhere: BTreeMap<Qpn, u8>,
    resolver: Resolver<Box<dyn Routes + Send>>,
    /// Addresses that wait to be resolved, and since when.
    sought: BTreeMap<Id, (SocketAddr, std::time::Instant)>,
}

impl CmDriver {
    /// A manager for one worker of a node with this address and these GUIDs, whose datagrams have
    /// `datagram` bytes at most, and go where `routes` say.
    pub(crate) fn new(
        (local, guids): (IpAddr, Guids),
        worker: Worker,
        datagram: u32,
        random: Stream,
        routes: Option<Box<dyn Routes + Send>>,
    ) -> Self {
        let mut config = Config::new(0);
        config.ib.guids = guids;
        config.ib.worker = worker;
        config.path.mtu = mtu_code(datagram).max(1);
        Self {
            manager: RdmaCm::new(config, random),
            unresolved: 0,
            owners: BTreeMap::new(),
            elsewhere: BTreeMap::new(),
            resolver: Resolver::new(local, routes),
            sought: BTreeMap::new(),
        }
    }

    /// Whether routes know nothing that keeps an address from being one host's.
    pub(crate) fn is_one_host(&mut self, now: Instant, address: IpAddr) -> bool {
        self.resolver.is_one_host(now, address)
    }

    /// What routes and neighbours say of a peer that does not answer.
    pub(crate) fn why_silent(&mut self, now: Instant, peer: IpAddr) -> NoConnection {
        self.resolver.why_silent(now, peer)
    }

    /// Finds out within `timeout_ns` whether there is a way to `peer`.
    pub(crate) fn resolve_address(
        &mut self,
        now: Instant,
        id: Id,
        peer: SocketAddr,
        timeout_ns: u64,
        recorder: &Recorder,
    ) {
        let sought = (peer, std::time::Instant::now());
        match self.resolver.begin(now, id, peer, timeout_ns) {
            Some(outcome) => self.tell_address(id, sought, outcome, recorder),
            None => {
                self.sought.insert(id, sought);
            }
        }
    }

    fn tell_address(
        &mut self,
        id: Id,
        (peer, begun): (SocketAddr, std::time::Instant),
        outcome: Outcome,
        recorder: &Recorder,
    ) {
        if outcome.is_err() {
            self.unresolved += 1;
            self.manager.unresolve(id);
        }
        recorder.took(Span::RdmaAddress, begun.elapsed().as_nanos() as u64);
        self.tell(id, ChannelEvent::Address(id, peer, outcome.map(drop)));
    }

    fn tell(&self, id: Id, event: ChannelEvent) {
        if let Some(queue) = self.owners.get(&id) {
            queue.push(event);
        }
    }

    /// Finds out what packets the path to a resolved peer takes.
    pub(crate) fn resolve_route(&mut self, now: Instant, id: Id, peer: SocketAddr) {
        let outcome = self.resolver.next_hop(now, peer);
        let outcome = outcome.and_then(|hop| match hop {
            Some(hop) => self.take_way(id, &hop),
            None => Ok(()),
        });
        self.unresolved += u64::from(outcome.is_err());
        self.tell(id, ChannelEvent::Route(id, outcome));
    }

    /// Bytes of the largest path MTU whose packets the port carries.
    pub(crate) fn path_mtu(&self) -> u16 {
        let code = self.manager.config().path.mtu;
        Attributes::PATH_MTUS[usize::from(code) - 1]
    }

    fn take_way(&mut self, id: Id, hop: &NextHop) -> Result<(), ResolveError> {
        let headers = match hop.source {
            IpAddr::V4(_) => IPV4_UDP,
            IpAddr::V6(_) => IPV6_UDP,
        };
        let fits = mtu_code(hop.mtu.saturating_sub(headers));
        if fits == 0 {
            return Err(ResolveError::Narrow(hop.mtu));
        }
        if let Some(path) = self.manager.path(id) {
            let mtu = self.manager.config().path.mtu.min(fits);
            let path = PathTerms { mtu, ..path };
            // One that is connecting keeps its path.
            let _ = self.manager.set_path(id, path);
        }
        Ok(())
    }

    /// Does what is due.
    pub(crate) fn handle_timeout(&mut self, now: Instant, recorder: &Recorder) {
        self.manager.handle_timeout(now);
        while let Some((id, outcome)) = self.resolver.poll(now) {
            if let Some(sought) = self.sought.remove(&id) {
                self.tell_address(id, sought, outcome, recorder);
            }
        }
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) next.
    /// Bytes of what the managers of ordinary hosts and of addresses keep.
    pub(crate) fn state_bytes(&self) -> usize {
        self.manager.state_bytes() + self.resolver.state_bytes()
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        Instant::earliest([self.manager.poll_timeout(), self.resolver.poll_timeout()])
    }

    /// A QP of this worker has its connection at another one.
    pub(crate) fn serve_elsewhere(&mut self, qpn: Qpn, worker: u8) {
        self.elsewhere.insert(qpn, worker);
    }

    /// A QP has a connection no longer.
    pub(crate) fn serve_no_longer(&mut self, qpn: Qpn) {
        self.elsewhere.remove(&qpn);
    }

    /// The peer of a QP of this worker works: their connection stands. Gives the worker that has to
    /// hear of it, if it is another one.
    pub(crate) fn qp_heard(&mut self, qpn: Qpn) -> Option<u8> {
        let other = self.elsewhere.get(&qpn).copied();
        if other.is_none() {
            self.manager.qp_heard(qpn);
        }
        other
    }

    /// The peer of a QP of this worker is gone. Gives the worker that has to hear of it, if it is
    /// another one.
    pub(crate) fn peer_qp_gone(&mut self, now: Instant, qpn: Qpn) -> Option<u8> {
        let other = self.elsewhere.get(&qpn).copied();
        if other.is_none() {
            self.manager.peer_qp_gone(now, qpn);
        }
        other
    }

    /// A QP of this worker has failed: so has its connection. Gives the worker that has to hear of
    /// it, if it is another one.
    pub(crate) fn qp_failed(&mut self, now: Instant, qpn: Qpn) -> Option<u8> {
        let other = self.elsewhere.get(&qpn).copied();
        if other.is_none() {
            self.manager.qp_failed(now, qpn);
        }
        other
    }

    /// Whether an ID is known here: a listener is at all workers.
    pub(crate) fn knows(&self, id: Id) -> bool {
        self.owners.contains_key(&id)
    }

    /// Events of `id` go to `queue` from now on (`rdma_migrate_id(3)`), those not fetched too, and
    /// with them all that is said of requests which were not fetched.
    pub(crate) fn own(&mut self, id: Id, queue: &Arc<EventQueue<ChannelEvent>>) {
        let before = self.owners.insert(id, Arc::clone(queue));
        let Some(before) = before.filter(|before| !Arc::ptr_eq(before, queue)) else {
            return;
        };
        let moved = before.take(id);
        moved.into_iter().for_each(|event| queue.push(event));
        // Another worker may have moved requests that came to this one.
        for request in queue.requests_to(id) {
            if self.owners.contains_key(&request) {
                self.own(request, queue);
            }
        }
    }

    /// Gives up an ID. Requests to it that nobody fetched come back: destroy them, each at its
    /// worker, so that they are refused.
    pub(crate) fn destroy(&mut self, now: Instant, id: Id) -> Vec<Id> {
        if self.sought.remove(&id).is_some() {
            self.resolver.forget(id);
        }
        let unfetched = self.owners.remove(&id).map(|queue| queue.take(id));
        // It is gone already where its listener took it along.
        let _ = self.manager.destroy(now, id);
        let unfetched = unfetched.into_iter().flatten();
        let requests = unfetched.filter_map(|event| event.request());
        let requests = requests.map(|(_, new)| new);
        requests.filter(|new| *new != id).collect()
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
                queue.push(ChannelEvent::Cm(event));
            }
        }
        any
    }
}
