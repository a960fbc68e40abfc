//! What a node knows of its peers: who shares connections, and the pools of connections to them.

use crate::connection::ConnectionOptions;
use crate::core::CoreConfig;
use crate::platform::Embedded;
use std::collections::BTreeMap;
use std::net::IpAddr;
use trunkline_cm::manager::{AskId, Refusal};
use trunkline_cm::{Directory, HandshakeId, Hello, Identity, Manager, PeerMode, Purpose};
use trunkline_conn::time::{Instant, SECOND};
use trunkline_qpmap::{ConnId, ConnectionParams, Engine, Event, PeerIdentity};
use trunkline_wire::Gid;

/// How long a peer that is no Trunkline node is taken for one that stays so.
const PLAIN_FOR: u64 = 60 * SECOND;
/// How often idle connections are looked for.
const RECLAIM_EVERY: u64 = SECOND;

/// Whether an engine event was a question to us.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Ask {
    None,
    Answered,
}

/// Where a connection that a program opened stands.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ConnectionState {
    /// The peer was asked.
    Opening,
    /// QPs may be bound to it.
    Open(ConnId),
    /// The peer is not there, is no Trunkline node, or refused.
    Failed(&'static str),
    /// It was open and is gone.
    Closed,
}

/// A handshake of ours.
#[derive(Debug)]
struct Opening {
    peer: Gid,
    hello: Hello,
    options: ConnectionOptions,
    /// The program's handle, for a private one.
    handle: Option<u64>,
}

/// All peers of a node.
#[derive(Debug)]
pub(crate) struct Peers {
    address: IpAddr,
    datagram: u32,
    window: u16,
    pool: u32,
    idle_after_ns: u64,
    directory: Directory,
    opening: BTreeMap<HandshakeId, Opening>,
    /// Connections that the program opened, by handle.
    private: BTreeMap<u64, ConnectionState>,
    next_handle: u64,
    idle_since: BTreeMap<(u32, u32), Instant>,
    reclaim_at: Instant,
}

impl Peers {
    pub(crate) fn new(config: &CoreConfig) -> Self {
        Self {
            address: config.engine.address,
            datagram: config.engine.datagram,
            window: config.engine.window,
            pool: config.pool.max(1),
            idle_after_ns: config.idle_after_ns,
            directory: Directory::default(),
            opening: BTreeMap::new(),
            private: BTreeMap::new(),
            next_handle: 0,
            idle_since: BTreeMap::new(),
            reclaim_at: Instant::ZERO,
        }
    }

    pub(crate) const fn address(&self) -> IpAddr {
        self.address
    }

    pub(crate) fn private_state(&self, handle: u64) -> ConnectionState {
        self.private.get(&handle).copied().unwrap_or(ConnectionState::Closed)
    }

    pub(crate) fn forget_private(&mut self, handle: u64) -> Option<ConnId> {
        match self.private.remove(&handle) {
            Some(ConnectionState::Open(id)) => Some(id),
            _ => None,
        }
    }

    /// Takes up an engine event if it is for us.
    pub(crate) fn handle_engine(
        &mut self,
        now: Instant,
        engine: &mut Engine<Embedded>,
        manager: &mut Manager,
        event: &Event,
    ) -> Ask {
        match *event {
            Event::Ask { peer } => self.decide(now, engine, manager, peer),
            Event::Crowded { peer } => {
                let open = engine.pool_size(peer) + self.opening_to(peer);
                if open < self.pool {
                    self.open_pool(now, engine, manager, peer);
                }
            }
            Event::ConnectionDown { conn, peer, stranded } => {
                for state in self.private.values_mut() {
                    if *state == ConnectionState::Open(conn) {
                        *state = ConnectionState::Closed;
                    }
                }
                if stranded && self.opening_to(peer) == 0 {
                    self.open_pool(now, engine, manager, peer);
                }
                return Ask::None;
            }
            _ => return Ask::None,
        }
        Ask::Answered
    }

    /// A QP was connected to `peer`, to which there is no connection.
    fn decide(
        &mut self,
        now: Instant,
        engine: &mut Engine<Embedded>,
        manager: &mut Manager,
        peer: Gid,
    ) {
        if peer.address() == self.address {
            self.open_loop(now, engine, manager.identity());
            return;
        }
        match self.directory.mode(peer, now) {
            PeerMode::Asking => {}
            PeerMode::Plain { .. } => engine.peer_is_plain(peer),
            PeerMode::Unknown | PeerMode::Trunkline => {
                self.directory.learn(peer, PeerMode::Asking);
                self.open_pool(now, engine, manager, peer);
            }
        }
    }

    fn opening_to(&self, peer: Gid) -> u32 {
        let pool = |opening: &&Opening| opening.peer == peer && opening.handle.is_none();
        self.opening.values().filter(pool).count() as u32
    }

    fn open_pool(
        &mut self,
        now: Instant,
        engine: &mut Engine<Embedded>,
        manager: &mut Manager,
        peer: Gid,
    ) {
        let options = ConnectionOptions::default();
        if !self.open(now, engine, manager, peer, &options, None) {
            engine.peer_unreachable(peer);
            self.directory.learn(peer, PeerMode::Unknown);
        }
    }

    pub(crate) fn open_private(
        &mut self,
        now: Instant,
        engine: &mut Engine<Embedded>,
        manager: &mut Manager,
        peer: IpAddr,
        options: &ConnectionOptions,
    ) -> Option<u64> {
        self.next_handle += 1;
        let handle = self.next_handle;
        self.private.insert(handle, ConnectionState::Opening);
        if self.open(now, engine, manager, peer.into(), options, Some(handle)) {
            return Some(handle);
        }
        self.private.remove(&handle);
        None
    }

    fn open(
        &mut self,
        now: Instant,
        engine: &mut Engine<Embedded>,
        manager: &mut Manager,
        peer: Gid,
        options: &ConnectionOptions,
        handle: Option<u64>,
    ) -> bool {
        let purpose = if handle.is_some() { Purpose::Private } else { Purpose::Pool };
        let Some(hello) = self.hello(engine, manager.identity(), options, purpose) else {
            return false;
        };
        let Some(id) = manager.open(now, peer.address(), &hello) else {
            engine.release_connection(hello.connection);
            return false;
        };
        self.opening.insert(id, Opening { peer, hello, options: *options, handle });
        true
    }

    /// What we say of a connection that is about to be: its number, token and first packet are drawn.
    fn hello(
        &self,
        engine: &mut Engine<Embedded>,
        identity: Identity,
        options: &ConnectionOptions,
        purpose: Purpose,
    ) -> Option<Hello> {
        let (connection, token) = engine.draw_connection().ok()?;
        Some(Hello {
            identity,
            connection,
            purpose,
            traffic_class: options.traffic_class,
            weight: options.weight,
            token,
            datagram: self.datagram,
            first: engine.draw_first(),
            window: self.window,
        })
    }

    pub(crate) fn handle_manager(
        &mut self,
        now: Instant,
        engine: &mut Engine<Embedded>,
        manager: &mut Manager,
        event: trunkline_cm::Event,
    ) {
        use trunkline_cm::Event as Cm;
        match event {
            Cm::Incoming { peer, hello, ask } => {
                self.incoming(now, engine, manager, peer, &hello, ask);
            }
            Cm::Established { id, peer, hello } => {
                let Some(opening) = self.opening.remove(&id) else { return };
                self.drop_other_incarnation(engine, peer, &hello);
                self.directory.learn(peer.into(), PeerMode::Trunkline);
                let added = self.add(now, engine, peer, &opening.hello, &hello, &opening.options);
                self.settle(engine, &opening, added.ok_or("another incarnation is still there"));
            }
            Cm::NotTrunkline { id, peer } | Cm::Silent { id, peer } => {
                let silent = matches!(event, Cm::Silent { .. });
                let Some(opening) = self.opening.remove(&id) else { return };
                let why = if silent { "it does not answer" } else { "it is no Trunkline node" };
                let pool = opening.handle.is_none();
                self.settle(engine, &opening, Err(why));
                if pool {
                    self.peer_without_connections(now, engine, peer.into());
                }
            }
            Cm::Refused { id, peer, why } => {
                let Some(opening) = self.opening.remove(&id) else { return };
                let text = match why {
                    Refusal::Crossed => "both opened at once",
                    Refusal::DuplicateGuid => "another live node has the same GUID",
                    Refusal::Busy => "it has too many connections",
                    Refusal::Other => "it refused",
                };
                let pool = opening.handle.is_none();
                self.settle(engine, &opening, Err(text));
                if pool && why != Refusal::Crossed {
                    self.directory.learn(peer.into(), PeerMode::Unknown);
                    engine.peer_unreachable(peer.into());
                }
            }
        }
    }

    /// Nobody at `peer` shares connections with us: a host that never did is an ordinary one, a node
    /// that did is gone.
    fn peer_without_connections(
        &mut self,
        now: Instant,
        engine: &mut Engine<Embedded>,
        peer: Gid,
    ) {
        if engine.peer(peer).is_some() {
            self.directory.learn(peer, PeerMode::Unknown);
            engine.peer_unreachable(peer);
            return;
        }
        self.directory.learn(peer, PeerMode::Plain { until: now + PLAIN_FOR });
        engine.peer_is_plain(peer);
    }

    fn incoming(
        &mut self,
        now: Instant,
        engine: &mut Engine<Embedded>,
        manager: &mut Manager,
        peer: IpAddr,
        hello: &Hello,
        ask: AskId,
    ) {
        if engine.has_guid_elsewhere(hello.identity.guid, peer.into()) {
            manager.refuse(now, ask, Refusal::DuplicateGuid);
            return;
        }
        self.drop_other_incarnation(engine, peer, hello);
        self.directory.learn(peer.into(), PeerMode::Trunkline);
        let options = ConnectionOptions {
            traffic_class: hello.traffic_class,
            weight: hello.weight,
            ..ConnectionOptions::default()
        };
        let own = self.hello(engine, manager.identity(), &options, hello.purpose);
        let Some(mut own) = own else {
            manager.refuse(now, ask, Refusal::Busy);
            return;
        };
        own.window = own.window.min(hello.window);
        if self.add(now, engine, peer, &own, hello, &options).is_some() {
            manager.accept(now, ask, &own);
        } else {
            engine.release_connection(own.connection);
            manager.refuse(now, ask, Refusal::Other);
        }
    }

    fn drop_other_incarnation(
        &mut self,
        engine: &mut Engine<Embedded>,
        peer: IpAddr,
        hello: &Hello,
    ) {
        let other = engine.peer(peer.into()).is_some_and(|known| {
            (known.guid, known.epoch) != (hello.identity.guid, hello.identity.epoch)
        });
        if other {
            engine.drop_peer(peer.into());
        }
    }

    fn add(
        &self,
        now: Instant,
        engine: &mut Engine<Embedded>,
        peer: IpAddr,
        own: &Hello,
        theirs: &Hello,
        options: &ConnectionOptions,
    ) -> Option<ConnId> {
        let identity = PeerIdentity {
            guid: theirs.identity.guid,
            epoch: theirs.identity.epoch,
            address: peer.into(),
        };
        let params = params(own, theirs, options);
        engine.add_connection(now, identity, &params).ok()
    }

    /// A handshake of ours ended.
    fn settle(
        &mut self,
        engine: &mut Engine<Embedded>,
        opening: &Opening,
        result: Result<ConnId, &'static str>,
    ) {
        if result.is_err() {
            engine.release_connection(opening.hello.connection);
        }
        if let Some(handle) = opening.handle {
            let state = match result {
                Ok(id) => ConnectionState::Open(id),
                Err(why) => ConnectionState::Failed(why),
            };
            self.private.insert(handle, state);
        }
    }

    /// QPs of this node that talk to each other: two connections that lead to one another.
    fn open_loop(&mut self, now: Instant, engine: &mut Engine<Embedded>, identity: Identity) {
        let options = ConnectionOptions::default();
        let ends = [0, 1].map(|_| self.hello(engine, identity, &options, Purpose::Pool));
        let [Some(a), Some(b)] = ends else { return };
        for (own, theirs) in [(&a, &b), (&b, &a)] {
            let added = self.add(now, engine, self.address, own, theirs, &options);
            debug_assert!(added.is_some(), "we are no other incarnation of ourselves");
        }
    }

    /// Closes connections of pools that have been without QPs for long.
    pub(crate) fn reclaim(&mut self, now: Instant, engine: &mut Engine<Embedded>) {
        if now < self.reclaim_at {
            return;
        }
        self.reclaim_at = now + RECLAIM_EVERY;
        let idle = engine.idle_connections();
        self.idle_since.retain(|key, _| idle.iter().any(|id| id.key() == *key));
        for id in idle {
            let since = *self.idle_since.entry(id.key()).or_insert(now);
            if now.since(since) >= self.idle_after_ns {
                engine.close_connection(id);
            }
        }
    }

    pub(crate) fn next_reclaim(&self) -> Option<Instant> {
        (!self.idle_since.is_empty()).then_some(self.reclaim_at)
    }
}

fn params(own: &Hello, theirs: &Hello, options: &ConnectionOptions) -> ConnectionParams {
    ConnectionParams {
        local_id: own.connection,
        local_token: own.token,
        remote_id: theirs.connection,
        remote_token: theirs.token,
        first_tx: theirs.first,
        first_rx: own.first,
        datagram: own.datagram.min(theirs.datagram),
        window: own.window.min(theirs.window),
        control: options.control,
        traffic_class: options.traffic_class,
        weight: options.weight,
        source_ports: options.source_ports,
        private: own.purpose == Purpose::Private,
    }
}

