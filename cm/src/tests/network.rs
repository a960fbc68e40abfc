//! Nodes on a bad network, on virtual time. Each node is a manager and the least of an engine above
//! it: it accepts what is asked, keeps what stands, and closes what the other end does not know.

use super::air::{Air, Weather};
use super::{Seeded, address, ask, drain, offer, path};
use crate::event::{AskError, Established, Event, HandshakeId, Route};
use crate::hello::Purpose;
use crate::identity::Identity;
use crate::random::Random;
use crate::retry::Retry;
use crate::{Config, Manager};
use std::collections::BTreeMap;
use std::vec::Vec;
use trunkline_conn::time::Instant;
use trunkline_wire::Qpn;

/// Which events have come of a handshake.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Life {
    pub(super) established: bool,
    pub(super) ended: Option<Event>,
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) manager: Manager<Seeded>,
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

impl Node {
    fn new(host: u8, identity: Identity, seed: u64) -> Self {
        Self {
            manager: Manager::new(Config::new(identity), Seeded(seed)),
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

#[derive(Debug)]
pub(super) struct Network {
    pub(super) nodes: Vec<Node>,
    pub(super) now: Instant,
    pub(super) random: Seeded,
    pub(super) air: Air,
}

impl Network {
    /// Nodes at hosts 1, 2, ... with distinct random GUIDs.
    pub(super) fn new(seed: u64, nodes: u8, weather: Weather) -> Self {
        let mut random = Seeded(seed);
        let nodes = (1..=nodes).map(|host| {
            let (guid, epoch) = (random.next(), random.next());
            Node::new(host, Identity { guid, epoch }, random.next())
        });
        Self {
            nodes: nodes.collect(),
            now: Instant::ZERO,
            air: Air::new(weather),
            random,
        }
    }

    pub(super) fn route(from: usize, to: usize) -> Route {
        Route {
            local: address(from as u8 + 1),
            remote: address(to as u8 + 1),
        }
    }

    pub(super) fn open(
        &mut self,
        from: usize,
        to: usize,
        purpose: Purpose,
        retry: Retry,
    ) -> Result<HandshakeId, AskError> {
        let mut ask = ask(&mut self.random, purpose);
        ask.retry = retry;
        let node = &mut self.nodes[from];
        let id = node.manager.open(self.now, Self::route(from, to), ask)?;
        node.life(id);
        self.settle(from);
        Ok(id)
    }

    pub(super) fn close(&mut self, node: usize, id: HandshakeId) {
        // It may have ended already.
        let _ = self.nodes[node].manager.close(self.now, id);
        self.settle(node);
    }

    /// The node loses all it knew and starts anew.
    pub(super) fn restart(&mut self, node: usize) {
        let old = &self.nodes[node];
        let (guid, epoch) = (old.identity.guid, self.random.next());
        let seed = self.random.next();
        self.nodes[node] = Node::new(old.host, Identity { guid, epoch }, seed);
    }

    /// Takes up what a manager has to send and to say.
    pub(super) fn settle(&mut self, index: usize) {
        loop {
            let node = &mut self.nodes[index];
            let (sent, events) = drain(&mut node.manager);
            if sent.is_empty() && events.is_empty() {
                return;
            }
            for event in &events {
                node.note(event);
                if let Event::Incoming { id, .. } = event {
                    node.life(*id);
                    let offer = offer(&mut self.random);
                    // An ask of this node may have taken it up already.
                    if node.manager.accept(self.now, *id, offer).is_ok() {
                        node.accepted.insert(offer.connection.get(), *id);
                    }
                }
            }
            for out in sent {
                assert_eq!(out.route.local, address(self.nodes[index].host));
                let to = self
                    .nodes
                    .iter()
                    .find(|to| address(to.host) == out.route.remote);
                let to = to.expect("nobody else is addressed").host;
                let from = self.nodes[index].host;
                self.air.send(self.now, from, to, out.mad, &mut self.random);
            }
        }
    }

    /// Lets time pass until `end`.
    pub(super) fn run(&mut self, end: Instant) {
        loop {
            let arrival = self.air.next();
            let timers = self
                .nodes
                .iter()
                .filter_map(|node| node.manager.poll_timeout());
            let next = timers.chain(arrival).min();
            let Some(next) = next.filter(|&next| next <= end) else {
                self.now = end;
                return;
            };
            self.now = self.now.max(next);
            if arrival == Some(next) {
                let (from, to, mad) = self.air.land().expect("one arrives");
                let index = usize::from(to) - 1;
                let from = path(address(from), address(to));
                self.nodes[index].manager.handle_mad(self.now, &from, &mad);
                self.settle(index);
            }
            for index in 0..self.nodes.len() {
                self.nodes[index].manager.handle_timeout(self.now);
                self.settle(index);
            }
        }
    }

    /// Whether node `other` has the other end of a connection, standing.
    pub(super) fn mirrored(&self, terms: &Established, other: usize) -> bool {
        self.nodes[other].standing.values().any(|theirs| {
            (theirs.remote_id, theirs.remote_token) == (terms.local_id, terms.local_token)
                && (theirs.local_id, theirs.local_token) == (terms.remote_id, terms.remote_token)
                && (theirs.first_tx, theirs.first_rx) == (terms.first_rx, terms.first_tx)
                && (theirs.packet_size, theirs.window) == (terms.packet_size, terms.window)
                && (theirs.purpose, theirs.weight) == (terms.purpose, terms.weight)
                && theirs.role != terms.role
                && theirs.identity == self.identity_of(terms.route.local)
        })
    }

    fn identity_of(&self, host: core::net::IpAddr) -> Identity {
        let node = self.nodes.iter().find(|node| address(node.host) == host);
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
        for (index, node) in self.nodes.iter().enumerate() {
            for terms in node.standing.values() {
                let host = |to: &Node| address(to.host) == terms.route.remote;
                let other = self.nodes.iter().position(host).expect("it is there");
                if self.mirrored(terms, other) {
                    continue;
                }
                match self.nodes[other].waiting_end(terms.remote_id) {
                    Some(id) => confirmed.push((other, id)),
                    None => dead.push((index, terms.id)),
                }
            }
        }
        for (node, id) in confirmed {
            // An ask of its own may have gone before.
            let _ = self.nodes[node].manager.confirm(self.now, id);
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
