//! Nodes on a bad network: each is a manager and the least of an engine above it. It accepts what
//! is asked, keeps what stands, and closes what the other end does not know.

use super::air::Weather;
use super::network::Party;
use super::{Rng, address, ask, drain, offer};
use crate::binds::{Bind, Bound, Bounds};
use crate::event::{Established, Event, HandshakeId, OpenError, Outgoing};
use crate::hello::Purpose;
use crate::identity::Identity;
use crate::message::Mad;
use crate::retry::Retry;
use crate::{Config, NodeCm, Phase, Step};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::vec::Vec;
use trunkline_conn::time::Instant;
use trunkline_wire::{Path, Qpn};

/// Which events have come of a handshake.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Life {
    pub(super) established: bool,
    pub(super) ended: Option<Event>,
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) manager: NodeCm<Rng>,
    /// What a watcher knows of its handshakes, by number.
    phases: Arc<Mutex<BTreeMap<u32, Phase>>>,
    pub(super) identity: Identity,
    host: u8,
    /// All handshakes of this incarnation, with what came of them.
    pub(super) lives: Vec<(HandshakeId, Life)>,
    /// Places in `lives` of those that have not ended.
    current: BTreeMap<u32, usize>,
    /// Connections that stand.
    pub(super) standing: BTreeMap<u32, Established>,
    /// Accepted connections by the number of our end: their first packets confirm them.
    accepted: BTreeMap<u32, HandshakeId>,
    pub(super) restarts_seen: u32,
}

/// Takes a step down; it begins where the one before has ended.
fn note(phases: &mut BTreeMap<u32, Phase>, step: &Step) {
    let before = match step.to {
        Phase::Gone => phases.remove(&step.id.0),
        to => phases.insert(step.id.0, to),
    };
    assert_eq!(before.unwrap_or(Phase::Gone), step.from, "{step:?}");
}

impl Node {
    /// Whoever watches counts what the manager counts.
    pub(super) fn check_phases(&self) {
        let phases = self.phases.lock().expect("nobody panics here");
        let count = |which: &[Phase]| phases.values().filter(|at| which.contains(at)).count();
        let load = self.manager.load();
        let counted = [
            load.opening,
            load.half_open,
            load.established,
            load.closing,
            load.time_wait,
        ];
        let seen = [
            count(&[Phase::ReqSent]),
            count(&[Phase::ReqReceived, Phase::RepSent]),
            count(&[Phase::Established]),
            count(&[Phase::DreqSent]),
            count(&[Phase::TimeWait]),
        ];
        assert_eq!(counted.map(|count| count as usize), seen);
    }

    fn new(host: u8, identity: Identity, seed: u64) -> Self {
        let mut manager = NodeCm::new(Config::new(identity), Rng::new(seed));
        let phases = Arc::default();
        let seen: Arc<Mutex<_>> = Arc::clone(&phases);
        manager.observe(move |step| note(&mut seen.lock().expect("nobody panics here"), step));
        Self {
            manager,
            phases,
            identity,
            host,
            lives: Vec::new(),
            current: BTreeMap::new(),
            standing: BTreeMap::new(),
            accepted: BTreeMap::new(),
            restarts_seen: 0,
        }
    }

    fn life(&mut self, id: HandshakeId) -> &mut Life {
        let place = *self.current.entry(id.0.0).or_insert_with(|| {
            self.lives.push((id, Life::default()));
            self.lives.len() - 1
        });
        &mut self.lives[place].1
    }

    fn note(&mut self, event: &Event) {
        if let Some(id) = event.ends() {
            assert!(
                self.current.contains_key(&id.0.0),
                "{id:?} ends twice: {event:?}"
            );
            self.life(id).ended = Some(*event);
            // Its number may be used again.
            self.current.remove(&id.0.0);
            self.standing.remove(&id.0.0);
        }
        if let Event::Established(terms) = event {
            let life = self.life(terms.id);
            assert!(!life.established && life.ended.is_none(), "{terms:?}");
            life.established = true;
            self.standing.insert(terms.id.0.0, *terms);
        }
        if let Event::PeerRestarted { .. } = event {
            self.restarts_seen += 1;
        }
    }
}

impl Party for Node {
    fn next(&self) -> Option<Instant> {
        self.manager.poll_timeout()
    }

    fn handle_mad(&mut self, now: Instant, from: &Path, mad: &Mad) {
        self.manager.handle_mad(now, from, mad);
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.manager.handle_timeout(now);
    }

    fn take_up(&mut self, now: Instant, random: &mut Rng) -> Option<Vec<Outgoing>> {
        let (sent, events) = drain(&mut self.manager);
        for event in &events {
            self.note(event);
            if let Event::Incoming { id, hello, .. } = event {
                self.life(*id);
                let offer = offer(random);
                let bounds: Bounds = hello.binds.as_slice().iter().map(agree).collect();
                // A request of this node may have taken it up already.
                if self.manager.accept(now, *id, offer, bounds).is_ok() {
                    self.accepted.insert(offer.connection.get(), *id);
                }
            }
        }
        (!sent.is_empty() || !events.is_empty()).then_some(sent)
    }
}

pub(super) type Network = super::network::Network<Node>;

impl Network {
    /// Nodes with distinct random GUIDs.
    pub(super) fn new(seed: u64, nodes: u8, weather: Weather) -> Self {
        Self::of(seed, nodes, weather, |host, random| {
            let (guid, epoch) = (random.next(), random.next());
            Node::new(host, Identity { guid, epoch }, random.next())
        })
    }

    pub(super) fn open(
        &mut self,
        from: usize,
        to: usize,
        purpose: Purpose,
        retry: Retry,
    ) -> Result<HandshakeId, OpenError> {
        let mut ask = ask(&mut self.random, purpose);
        ask.retry = retry;
        let node = &mut self.parties[from];
        let id = node.manager.open(self.now, Self::route(from, to), ask)?;
        node.life(id);
        self.settle(from);
        Ok(id)
    }

    pub(super) fn close(&mut self, node: usize, id: HandshakeId) {
        // It may have ended already.
        let _ = self.parties[node].manager.close(self.now, id);
        self.settle(node);
    }

    /// The node loses all it knew and starts anew.
    pub(super) fn restart(&mut self, node: usize) {
        let old = &self.parties[node];
        let (guid, epoch) = (old.identity.guid, self.random.next());
        let seed = self.random.next();
        self.parties[node] = Node::new(old.host, Identity { guid, epoch }, seed);
    }

    /// Whether node `other` has the other end of a connection, standing.
    pub(super) fn mirrored(&self, terms: &Established, other: usize) -> bool {
        self.parties[other].standing.values().any(|theirs| {
            (theirs.remote_id, theirs.remote_token) == (terms.local_id, terms.local_token)
                && (theirs.local_id, theirs.local_token) == (terms.remote_id, terms.remote_token)
                && (theirs.first_tx, theirs.first_rx) == (terms.first_rx, terms.first_tx)
                && (theirs.packet_size, theirs.window) == (terms.packet_size, terms.window)
                && theirs.purpose == terms.purpose
                && theirs.role != terms.role
                && theirs.identity == self.identity_of(terms.route.local)
        })
    }

    fn identity_of(&self, host: core::net::IpAddr) -> Identity {
        let node = self.parties.iter().find(|node| address(node.host) == host);
        node.expect("it is a host of this network").identity
    }

    /// What the engines do: packets on standing connections confirm the ends that wait for it, and
    /// an end whose other end does not exist is dead after a while.
    pub(super) fn exchange_packets(&mut self) {
        for (node, id) in self.confirm_by_packets() {
            self.close(node, id);
        }
    }

    /// The first half of that; the dead ends.
    pub(super) fn confirm_by_packets(&mut self) -> Vec<(usize, HandshakeId)> {
        let mut dead = Vec::new();
        let mut confirmed = Vec::new();
        for (index, node) in self.parties.iter().enumerate() {
            for terms in node.standing.values() {
                let host = |to: &Node| address(to.host) == terms.route.remote;
                let other = self.parties.iter().position(host).expect("it is there");
                if self.mirrored(terms, other) {
                    continue;
                }
                match self.parties[other].waiting_end(terms.remote_id) {
                    Some(id) => confirmed.push((other, id)),
                    None => dead.push((index, terms.id)),
                }
            }
        }
        for (node, id) in confirmed {
            // A request of its own may have gone before.
            let _ = self.parties[node].manager.confirm(self.now, id);
            self.settle(node);
        }
        dead
    }
}

impl Node {
    fn waiting_end(&self, number: Qpn) -> Option<HandshakeId> {
        let id = *self.accepted.get(&number.get())?;
        let waits = self.manager.state_of(id).is_some_and(|state| {
            matches!(state, crate::state::State::RepSent(state) if state.offer.connection == number)
        });
        waits.then_some(id)
    }
}

/// Consent of a QP in its first incarnation.
pub(super) fn agree(bind: &Bind) -> Bound {
    Bound {
        src_qp: bind.dest_qp,
        dest_qp: bind.src_qp,
        generation: bind.generation,
        own_generation: 1,
    }
}
