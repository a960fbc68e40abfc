//! What a node knows of its peers: who shares connections, and the pools of connections to them.

mod book;
mod handshakes;
#[cfg(test)]
mod ids;
mod loops;
mod mark;
mod open_queue;
mod opening;
mod private;
mod turns;
mod unsent;

use crate::error::NoConnection;
use crate::observe::log::Log;
use crate::observe::status::recorder::Recorder;
use crate::platform::NodePlatform;
use crate::verbs::connection::ConnectionOptions;
use crate::verbs::event::Event;
use crate::worker::core::CoreConfig;
use crate::worker::event_queue::EventQueue;
use crate::worker::messages::WorkerMessage;
use book::Book;
use mark::Mark;
use open_queue::{OpenQueue, Wanted};
use opening::Opening;
use private::Private;
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use trunkline_cm::{
    Bind, Binds, ConnectRequest, Directory, Event as Cm, HandshakeId, NodeCm, Offer, OpenError,
    PeerMode, Purpose, Retry, Route, WINDOW_UNIT,
};
use trunkline_conn::secret::Stream;
use trunkline_conn::time::{Instant, MILLISECOND, SECOND};
use trunkline_dataplane::Errno;
use trunkline_qpmap::{ConnId, Engine, Event as EngineEvent};
use trunkline_wire::{Gid, Qpn, Worker, Workers};
use turns::Turns;
use unsent::Unsent;

/// How long a peer that is no Trunkline node is taken for one that stays so.
const PLAIN_FOR: u64 = 60 * SECOND;
/// Stands for a QP that is not known yet: one of the peer's first worker.
const NO_QP: Qpn = Qpn::from_wire(0);
/// How often idle connections are looked for.
const RECLAIM_EVERY: u64 = SECOND;
/// Requests that a busy peer may refuse before the QPs that wait for it fail, and the first pause
/// between them: each is twice as long as the one before, 2.5 s in all, give or take half. Those
/// that were refused together must not come again together.
const BUSY_TRIES: u8 = 8;
const BUSY_PAUSE: u64 = 10 * MILLISECOND;
/// How long a connection has to stand until all is said about its handshake: tries of both ends,
/// and datagrams that the network holds up.
const HAND_OVER_AFTER: u64 = 10 * SECOND;
/// Handshakes that are done with in one round.
const HANDED_OVER_AT_ONCE: usize = 1024;

/// The connection manager and the engine of a node: what [`Pools`] works with.
pub(crate) struct PoolContext<'a> {
    pub(crate) now: Instant,
    pub(crate) engine: &'a mut Engine<NodePlatform>,
    pub(crate) manager: &'a mut NodeCm<Stream>,
}

/// Where a connection that a program opened stands.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ConnectionState {
    /// The peer was asked, or is once fewer others are being asked (`Builder::connect_requests`).
    Opening,
    /// QPs may be bound to it.
    Open(ConnId),
    /// There is none, and why.
    Failed(NoConnection),
    /// It was open and is gone.
    Closed,
}

/// A handshake, and the connection that came of it, until it is [handed over](Pools::hand_over).
#[derive(Debug)]
struct Handshake {
    /// Number of our end of the connection. Not the key: when a connection goes down, its number is
    /// free before this hears of it.
    number: Qpn,
    peer: IpAddr,
    purpose: Purpose,
    /// Low byte of a number of the peer's worker.
    toward: u8,
    options: ConnectionOptions,
    /// The program's handle, where it opened the connection.
    handle: Option<u64>,
    /// The peer was asked when nothing was known of it: a few times only.
    stranger: bool,
    conn: Option<ConnId>,
}

/// A peer's worker that had no room for what it was asked.
#[derive(Debug)]
struct Busy {
    /// Requests in a row that it refused.
    times: u8,
    /// When it is asked again; `None` while it is.
    again: Option<Instant>,
}

/// A connection within the node, whose other end is another worker's.
#[derive(Debug)]
struct OpeningLoop {
    near: Offer,
    to: u8,
    options: ConnectionOptions,
    /// The program's handle, where it opened the connection.
    handle: Option<u64>,
}

/// All peers of a worker.
#[derive(Debug)]
pub(crate) struct Pools {
    address: IpAddr,
    worker: Worker,
    datagram: u32,
    window: u32,
    pool: u32,
    sharing: bool,
    idle_after_ns: u64,
    dead_after_ns: u64,
    directory: Directory,
    handshakes: Book,
    /// Those under way.
    opening: Opening,
    /// When which connection has stood for long, in order.
    standing: VecDeque<(Instant, HandshakeId)>,
    /// Connections that the program opened, by handle.
    private: Private,
    /// Peers that did not answer, until somebody has looked why, with the handles of connections
    /// that the program opened to them.
    unexplained: Vec<(Option<u64>, IpAddr)>,
    /// Peers to whom this machine refuses to send.
    unsent: Unsent,
    /// Connections within the node whose other end another worker is asked for.
    loops: Vec<OpeningLoop>,
    messages: VecDeque<(u8, WorkerMessage)>,
    /// By address, and by the QP that the worker was asked for, as in a request.
    busy: BTreeMap<(IpAddr, u8), Busy>,
    /// What is asked for when fewer are being asked.
    queue: OpenQueue,
    /// Connections of programs that wait for their peers.
    turns: Turns,
    recorder: Arc<Recorder>,
    /// What the program hears.
    events: Arc<EventQueue<Event>>,
    pauses: Stream,
    idle_since: BTreeMap<(u32, u32), Instant>,
    reclaim_at: Instant,
}

impl Pools {
    pub(crate) fn new(
        config: &CoreConfig,
        recorder: Arc<Recorder>,
        events: Arc<EventQueue<Event>>,
        pauses: Stream,
    ) -> Self {
        Self {
            address: config.engine.address,
            worker: config.engine.worker,
            datagram: config.engine.datagram,
            window: config.engine.window,
            pool: config.pool.max(1),
            sharing: config.sharing,
            idle_after_ns: config.idle_after_ns,
            dead_after_ns: config.engine.dead_after_ns,
            directory: Directory::default(),
            handshakes: Book::default(),
            opening: Opening::default(),
            private: Private::default(),
            standing: VecDeque::new(),
            unexplained: Vec::new(),
            unsent: Unsent::default(),
            loops: Vec::new(),
            messages: VecDeque::new(),
            busy: BTreeMap::new(),
            queue: OpenQueue::default(),
            turns: Turns::default(),
            recorder,
            events,
            pauses,
            idle_since: BTreeMap::new(),
            reclaim_at: Instant::ZERO,
        }
    }

    /// Bytes of what is known of peers and wanted of them, without what maps need beside their
    /// entries.
    pub(crate) fn state_bytes(&self) -> usize {
        self.directory.state_bytes()
            + self.handshakes.state_bytes()
            + self.turns.state_bytes()
            + self.opening.state_bytes()
            + self.private.state_bytes()
            + self.standing.capacity() * size_of::<(Instant, HandshakeId)>()
            + self.loops.len() * size_of::<OpeningLoop>()
            + self.messages.len() * size_of::<(u8, WorkerMessage)>()
            + self.busy.len() * size_of::<((IpAddr, u8), Busy)>()
            + self.queue.state_bytes()
            + self.idle_since.len() * size_of::<((u32, u32), Instant)>()
    }

    /// Returns the log of the worker.
    pub(crate) fn log(&self) -> &Log {
        &self.recorder.log
    }

    pub(crate) const fn address(&self) -> IpAddr {
        self.address
    }

    /// Whether connections are shared with peers that do so too.
    pub(crate) const fn is_sharing(&self) -> bool {
        self.sharing
    }

    pub(crate) fn private_state(
        &self,
        engine: &Engine<NodePlatform>,
        handle: u64,
    ) -> ConnectionState {
        self.private
            .state(handle, |conn| with_handle(engine, conn, handle))
    }

    /// Where a connection that a program opened to `peer` stands now, unless it has been given up.
    fn tell(&mut self, handle: u64, peer: IpAddr, state: ConnectionState) {
        if !self.private.has(handle) {
            return;
        }
        self.private.set(handle, state);
        let peer = peer.into();
        self.events.push(match state {
            ConnectionState::Opening => return,
            ConnectionState::Open(conn) => Event::ConnectionUp { conn, peer },
            ConnectionState::Failed(why) => Event::ConnectionFailed { peer, why },
            ConnectionState::Closed => {
                let why = NoConnection::Closed;
                Event::ConnectionFailed { peer, why }
            }
        });
    }

    /// Returns a peer that did not answer, with the handle of the connection that a program opened
    /// to it, if one did.
    pub(crate) fn poll_unexplained(&mut self) -> Option<(Option<u64>, IpAddr)> {
        self.unexplained.pop()
    }

    /// Takes up what routes and neighbours say of its silence.
    pub(crate) fn explain(
        &mut self,
        now: Instant,
        (handle, peer): (Option<u64>, IpAddr),
        why: NoConnection,
    ) {
        let unsent = self.unsent.why(now, peer).map(NoConnection::Unsent);
        let why = match why {
            // What does not leave this machine reaches nobody, and asks no neighbour.
            NoConnection::Silent | NoConnection::NoHost => unsent.unwrap_or(why),
            _ => why,
        };
        self.recorder.log.no_connection(peer, why, handle.is_some());
        if let Some(handle) = handle {
            self.tell(handle, peer, ConnectionState::Failed(why));
        }
    }

    /// Notes that this machine refuses to send to a peer.
    pub(crate) fn refused_to_send(&mut self, now: Instant, peer: IpAddr, error: Errno) {
        if self.unsent.note(now, peer, error) {
            self.recorder.log.refused_to_send(peer, error);
        }
    }

    pub(crate) fn forget_private(
        &mut self,
        engine: &Engine<NodePlatform>,
        handle: u64,
    ) -> Option<ConnId> {
        let conn = self.private.remove(handle)?;
        with_handle(engine, conn, handle)
    }

    /// Takes up an engine event.
    pub(crate) fn handle_engine(&mut self, context: &mut PoolContext<'_>, event: &EngineEvent) {
        match *event {
            EngineEvent::NeedsConnection { peer, remote } => self.decide(context, peer, remote),
            EngineEvent::Early {
                connection,
                token,
                source,
            } => self.early(context, connection, (token, source)),
            EngineEvent::Crowded { peer, remote } => {
                let places = self.pool_places(context.engine, peer.address(), remote);
                // To grow is no need: it waits until nobody else does.
                if places.count() < self.pool as usize && self.is_queue_empty(context) {
                    self.open_pool(context, peer, remote);
                }
            }
            EngineEvent::ConnectionDown {
                conn,
                peer,
                stranded,
                mark,
            } => {
                self.connection_down(context, (conn, Mark(mark)), peer);
                // Where the peer proved to be another incarnation, its connection may be there.
                if let Some(remote) = stranded
                    && self.is_waited_for(context, peer.address(), remote)
                    && !self.is_pool_opening(context, peer.address(), remote)
                {
                    self.open_pool(context, peer, remote);
                }
            }
            _ => {}
        }
    }

    /// A QP was connected to `remote` of `peer`, to whose worker there is no connection.
    fn decide(&mut self, context: &mut PoolContext<'_>, peer: Gid, remote: Qpn) {
        let address = peer.address();
        if address == self.address {
            let options = ConnectionOptions {
                remote: Some(remote),
                ..ConnectionOptions::default()
            };
            let owner = self.worker.of().owner(remote.get());
            let requested = |other: &OpeningLoop| other.to == owner && other.handle.is_none();
            if !self.loops.iter().any(requested)
                && self.open_loop(context, &options, None).is_none()
            {
                context
                    .engine
                    .connect_request_begins(context.now, peer, remote);
                let why = NoConnection::TooMany.to_requests();
                context.engine.peer_unreachable(peer, remote, why);
            }
            return;
        }
        if !self.sharing {
            context.engine.peer_is_ibta(peer);
            return;
        }
        if self.is_ordinary(context, address) {
            context.engine.peer_is_ibta(peer);
        } else if !self.is_pool_opening(context, address, remote) {
            // The answer to one that is being opened will bring a connection. One that a program
            // opens for itself does not.
            self.open_pool(context, peer, remote);
        }
    }

    /// Asks a peer of which nothing is known, unless others wait to be asked for a QP's sake.
    pub(crate) fn learn(&mut self, context: &mut PoolContext<'_>, peer: Gid) {
        let address = peer.address();
        let unknown = self.mode(context, address) == PeerMode::Unknown;
        let may = self.sharing && self.is_queue_empty(context);
        if may && address != self.address && unknown {
            self.open_pool(context, peer, NO_QP);
        }
    }

    /// Handshakes for the pool of connections to the worker of `peer` that has the QP `remote`. As
    /// long as its workers are not known, all to `peer`.
    fn pool(
        &self,
        engine: &Engine<NodePlatform>,
        peer: IpAddr,
        remote: Qpn,
    ) -> impl Iterator<Item = (u8, &Handshake)> {
        let workers = workers_of(engine, peer);
        let owner = workers.owner(remote.get());
        self.handshakes
            .pools_of(peer)
            .filter(move |shake| workers.owner(shake.toward.into()) == owner)
            .filter_map(|handshake| match handshake.purpose {
                Purpose::Pool(place) => Some((place, handshake)),
                Purpose::Private => None,
            })
    }

    /// Whether a connection of that pool is being opened, or will be.
    fn is_pool_opening(&self, context: &PoolContext<'_>, peer: IpAddr, remote: Qpn) -> bool {
        let mut pool = self.pool(context.engine, peer, remote);
        let workers = workers_of(context.engine, peer);
        let same = |toward: u8| workers.owner(toward.into()) == workers.owner(remote.get());
        let of_peer = self.busy.range((peer, 0)..=(peer, u8::MAX));
        let mut pauses = of_peer.filter(|(_, busy)| busy.again.is_some());
        pool.any(|(_, handshake)| handshake.conn.is_none())
            || pauses.any(|((_, toward), _)| same(*toward))
            || self.is_in_line(context, peer, remote)
    }

    /// Places of that pool that are taken.
    fn pool_places(
        &self,
        engine: &Engine<NodePlatform>,
        peer: IpAddr,
        remote: Qpn,
    ) -> impl Iterator<Item = u8> {
        let handed_over = engine.pool_to(peer.into(), remote);
        let handed_over = handed_over.filter_map(|(_, mark)| Mark(mark).place_in_pool());
        let here = self.pool(engine, peer, remote).map(|(place, _)| place);
        here.chain(handed_over)
    }

    fn request_pool(&mut self, context: &mut PoolContext<'_>, peer: Gid, remote: Qpn) {
        let taken: Vec<u8> = self
            .pool_places(context.engine, peer.address(), remote)
            .collect();
        let place = (0..Purpose::POOL_LAST).find(|place| !taken.contains(place));
        let options = ConnectionOptions::default();
        let opened = place.is_some_and(|place| {
            let purpose = Purpose::Pool(place);
            self.open(context, (peer.address(), remote), purpose, &options, None)
        });
        context
            .engine
            .connect_request_begins(context.now, peer, remote);
        if !opened {
            let why = NoConnection::TooMany.to_requests();
            context.engine.peer_unreachable(peer, remote, why);
        }
    }

    /// Opens a connection for the program; gives its handle.
    pub(crate) fn open_private(
        &mut self,
        context: &mut PoolContext<'_>,
        peer: IpAddr,
        options: &ConnectionOptions,
    ) -> Option<u64> {
        let handle = self.private.insert();
        let state = if peer == self.address {
            self.open_loop(context, options, Some(handle))
        } else if !self.sharing {
            Some(ConnectionState::Failed(NoConnection::NotSharing))
        } else {
            let wanted = Wanted {
                handle,
                peer,
                options: *options,
            };
            self.open_wanted(context, wanted)
                .then_some(ConnectionState::Opening)
        };
        match state {
            Some(state) => self.tell(handle, peer, state),
            None => {
                self.private.remove(handle);
            }
        }
        state.map(|_| handle)
    }

    /// How patiently a peer is asked. One whose connections have died of its silence has had its
    /// time already: it gets a quarter of that more.
    fn patience(&self, engine: &Engine<NodePlatform>, end: (IpAddr, Qpn), known: bool) -> Retry {
        if !known {
            Retry::UNKNOWN
        } else if self.dead_after_ns > 0 && engine.is_silent(end.0.into(), end.1) {
            Retry::KNOWN.within(self.dead_after_ns / 4)
        } else {
            Retry::KNOWN
        }
    }

    fn open(
        &mut self,
        context: &mut PoolContext<'_>,
        (peer, remote): (IpAddr, Qpn),
        purpose: Purpose,
        options: &ConnectionOptions,
        handle: Option<u64>,
    ) -> bool {
        let Some(offer) = self.offer(context.engine) else {
            return false;
        };
        let binds = match purpose {
            Purpose::Pool(_) => context
                .engine
                .early_binds(peer.into())
                .map(Bind::from)
                .collect(),
            Purpose::Private => Binds::default(),
        };
        let known = self.mode(context, peer) == PeerMode::Trunkline;
        let request = ConnectRequest {
            offer,
            purpose,
            toward: remote.get() as u8,
            traffic_class: options.traffic_class,
            binds,
            retry: self.patience(context.engine, (peer, remote), known),
        };
        let route = Route {
            local: self.address,
            remote: peer,
        };
        match context.manager.open(context.now, route, request) {
            Ok(id) => {
                if !known {
                    self.directory.connecting(context.now, peer);
                }
                let options = *options;
                let handshake = Handshake {
                    number: offer.connection,
                    peer,
                    purpose,
                    toward: request.toward,
                    options,
                    handle,
                    stranger: !known,
                    conn: None,
                };
                let own = request.binds.as_slice().iter().map(|bind| bind.src_qp);
                self.note_opening(id, handshake, offer.token, own.collect());
                true
            }
            Err(error) => {
                context.engine.release_connection(offer.connection);
                // Only a peer that started again with other workers is asked for what it is opening
                // itself, while we go by those it had. Who waits is looked after when that stands,
                // or has come to nothing.
                matches!(error, OpenError::Exists(_))
            }
        }
    }

    /// Our end of a connection that is about to be: its number, token and first packet are drawn.
    fn offer(&self, engine: &mut Engine<NodePlatform>) -> Option<Offer> {
        let (connection, token) = engine.draw_connection().ok()?;
        Some(Offer {
            connection,
            token,
            first_packet: engine.draw_first(),
            packet_size: self.datagram,
            window: (self.window / WINDOW_UNIT) as u16,
            workers: self.worker.of(),
            packs: true,
        })
    }

    /// QPs may still wait when a handshake has come to nothing: those that joined after it began,
    /// and all of them if the peer began it and did not end it.
    fn open_for_waiting(&mut self, context: &mut PoolContext<'_>, peer: IpAddr) {
        for remote in context.engine.waiting_for(peer.into()) {
            if self
                .pool_places(context.engine, peer, remote)
                .next()
                .is_none()
            {
                self.open_pool(context, peer.into(), remote);
            }
        }
    }

    /// A connection is gone: so is its handshake.
    fn connection_down(
        &mut self,
        context: &mut PoolContext<'_>,
        (conn, mark): (ConnId, Mark),
        peer: Gid,
    ) {
        if let Some(id) = self.handshakes.of_connection(conn) {
            self.handshakes.remove(id);
            // It is over already where the connection manager said so first.
            let _ = context.manager.release(context.now, id);
        } else if let Some(theirs) = mark.is_handed_over() {
            context.manager.ended(peer.address(), theirs);
        }
        if let Some(place) = mark.handle() {
            self.private.down(place, conn);
        }
        if peer.address() != self.address && !context.engine.reaches(peer) {
            // What the engine knows of a peer goes with the peer's last connection.
            self.directory.know(peer.address(), PeerMode::Trunkline);
        }
    }

    /// Forgets the handshakes of connections that have stood for long. The connection itself is
    /// all that is known of its peer from then on.
    pub(crate) fn hand_over(&mut self, context: &mut PoolContext<'_>) {
        for _ in 0..HANDED_OVER_AT_ONCE {
            let Some((_, id)) = self.standing.pop_front_if(|(at, _)| *at <= context.now) else {
                break;
            };
            let Some(conn) = self.handshakes.get(id).and_then(|stands| stands.conn) else {
                continue;
            };
            // One that has ended just now is over otherwise.
            if let Ok(theirs) = context.manager.hand_over(id)
                && let Some(over) = self.handshakes.remove(id)
            {
                let mark = Mark::new(over.purpose, over.handle).handed_over(theirs);
                context.engine.set_mark(conn, mark.0);
            }
        }
        if self.standing.is_empty() {
            self.standing.shrink_to_fit();
        }
    }

    /// How to talk to a peer. Who has connections to this node is one that shares them, and stands
    /// in no other book.
    fn mode(&self, context: &PoolContext<'_>, peer: IpAddr) -> PeerMode {
        match self.directory.mode(context.now, peer) {
            PeerMode::Unknown if context.engine.peer(peer.into()).is_some() => PeerMode::Trunkline,
            mode => mode,
        }
    }

    /// What a peer proves to be, the other workers need not ask again.
    fn learn_of(&mut self, context: &PoolContext<'_>, event: &Cm) {
        let peer = event.route().remote;
        let before = self.mode(context, peer);
        let mode = before.after(context.now, event, PLAIN_FOR);
        let noted = match mode {
            PeerMode::Trunkline if context.engine.peer(peer.into()).is_some() => PeerMode::Unknown,
            mode => mode,
        };
        self.directory.know(peer, noted);
        let known = matches!(mode, PeerMode::Trunkline | PeerMode::Ibta { .. });
        if !known || std::mem::discriminant(&mode) == std::mem::discriminant(&before) {
            return;
        }
        self.send_to_all(|| WorkerMessage::Peer(peer, mode));
    }

    /// Another worker has found out what a peer is.
    pub(crate) fn heard(&mut self, context: &mut PoolContext<'_>, peer: IpAddr, mode: PeerMode) {
        // What this worker is asking itself it will hear itself.
        if self.mode(context, peer) == PeerMode::Unknown {
            self.directory.know(peer, mode);
        }
    }

    /// The node ends, and with it all connections: nobody is asked for others.
    pub(crate) fn end_connections(&mut self, context: &mut PoolContext<'_>) {
        while let Some(event) = context.engine.poll_event() {
            if let EngineEvent::ConnectionDown {
                conn, peer, mark, ..
            } = event
            {
                self.connection_down(context, (conn, Mark(mark)), peer);
                self.hear(&event);
            }
        }
        self.private.all_down();
    }

    /// The program hears of what the engine says, if it concerns it.
    pub(crate) fn hear(&self, event: &EngineEvent) {
        if let Some(event) = Event::of(event) {
            self.events.push(event);
        }
    }

    /// Has something to say to another worker.
    pub(crate) fn send_to(&mut self, to: u8, message: WorkerMessage) {
        self.messages.push_back((to, message));
    }

    /// Writes to all other workers.
    pub(crate) fn send_to_all(&mut self, message: impl Fn() -> WorkerMessage) {
        let own = self.worker;
        for other in own.of().iter().filter(|other| *other != own) {
            self.send_to(other.index(), message());
        }
    }

    /// Whether this worker speaks for its node, where the program is told once of what happens at
    /// all workers.
    pub(crate) const fn speaks_for_node(&self) -> bool {
        self.worker.index() == 0
    }

    /// The next message for another worker.
    pub(crate) fn poll_message(&mut self) -> Option<(u8, WorkerMessage)> {
        self.messages.pop_front()
    }

    /// Closes connections of pools that have been without QPs for long.
    pub(crate) fn reclaim(&mut self, now: Instant, engine: &mut Engine<NodePlatform>) {
        if now < self.reclaim_at {
            return;
        }
        self.reclaim_at = now + RECLAIM_EVERY;
        self.directory.tidy(now);
        let before = std::mem::take(&mut self.idle_since);
        let since = |id: ConnId| before.get(&id.key()).copied().unwrap_or(now);
        self.idle_since = engine
            .idle_connections()
            .map(|id| (id.key(), since(id)))
            .collect();
        let idle: Vec<ConnId> = engine.idle_connections().collect();
        // The newest go first, at both ends: each keeps the one with which it began.
        for id in idle.into_iter().rev() {
            // What was closed just now may have left this one alone in its pool.
            if now.since(since(id)) >= self.idle_after_ns && engine.is_idle(id) {
                engine.reclaim_connection(id);
            }
        }
    }

    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let standing = self.standing.front().map(|(at, _)| *at);
        let reclaim = (!self.idle_since.is_empty()).then_some(self.reclaim_at);
        let pauses = self.busy.values().filter_map(|busy| busy.again).min();
        Instant::earliest([reclaim, standing, self.turns.next_timeout(), pauses])
    }
}

/// The connection at an index, if it is the one with that handle.
fn with_handle(engine: &Engine<NodePlatform>, conn: u32, handle: u64) -> Option<ConnId> {
    let (id, mark) = engine.connection_at(conn)?;
    (Mark(mark).handle() == Some(private::place(handle))).then_some(id)
}

/// The workers of a peer: one, as long as they are not known.
fn workers_of(engine: &Engine<NodePlatform>, peer: IpAddr) -> Workers {
    engine.peer(peer.into()).unwrap_or(Workers::ONE)
}
