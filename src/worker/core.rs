//! The heart of a worker: engine, connection managers and pools, joined by one loop.

use crate::node::link::LinkView;
use crate::node::state_bytes::StateBytes;
use crate::observe::capture::Capture;
use crate::observe::cm_counters::CmCounters;
use crate::observe::log::Log;
use crate::observe::probes;
use crate::observe::status::recorder::Recorder;
use crate::platform::{NodePlatform, Reach};
use crate::pools::{PoolContext, Pools};
use crate::rdma_cm::CmDriver;
use crate::verbs::event::Event;
use crate::verbs::qp::Qp;
use crate::worker::clock::Clock;
use crate::worker::deadline::Deadline;
use crate::worker::event_queue::EventQueue;
use crate::worker::management::{
    ManagementSender, check_management, concerns_here, deliver, manage,
};
use crate::worker::messages::{HandOvers, Messages, WorkerMessage};
use crate::worker::new_qps::NewQps;
use crate::worker::wakeup::Wakeup;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use trunkline_cm::ib::Guids;
use trunkline_cm::{Concerns, Config as CmConfig, Identity, NodeCm, Outgoing, gsi};
use trunkline_conn::secret::{Purpose, Secret, Stream};
use trunkline_conn::time::{Instant, SECOND};
use trunkline_dataplane::{Port, PortError};
use trunkline_qpmap::regions::RegionTable;
use trunkline_qpmap::{Attributes, Config, Engine, Event as EngineEvent, QpModify, VerbsError};
use trunkline_wire::{Gid, Psn, Qpn, ROCE_PORT, Workers};

/// Datagrams taken from the port per round.
const BURST: usize = 256;

/// A round that receives no more datagrams than that may end with them.
const FEW: usize = 2;

/// Longest that a node which ends waits for its port to take what it has to say.
const GOODBYE: Duration = Duration::from_millis(100);
/// IDs whose ends are said before the port is given what that makes: less than a manager's outbox
/// holds.
const ENDED_AT_ONCE: usize = 1024;

/// How a [`Core`] is set up.
#[derive(Clone, Debug)]
pub(crate) struct CoreConfig {
    pub(crate) engine: Config,
    /// Most connections of a pool.
    pub(crate) pool: u32,
    /// Peers that are asked for connections at once.
    pub(crate) connect_requests: u32,
    /// GUID of the node; `None` draws one.
    pub(crate) guid: Option<u64>,
    /// Idle connections beyond the first of a pool close after so long.
    pub(crate) idle_after_ns: u64,
    /// Whether connections are shared with peers that do so too.
    pub(crate) sharing: bool,
    /// Largest datagram, if less than the port carries.
    pub(crate) max_datagram: u32,
    /// Whether connection management is counted, timed and probed.
    pub(crate) watched: bool,
    /// Where management datagrams are written down.
    pub(crate) capture: Option<Capture>,
}

impl Default for CoreConfig {
    fn default() -> Self {
        Self {
            engine: Config::default(),
            pool: 4,
            connect_requests: 4096,
            guid: None,
            idle_after_ns: 30 * SECOND,
            sharing: true,
            max_datagram: u32::MAX,
            watched: true,
            capture: None,
        }
    }
}

/// The port of a worker.
pub(crate) type PortBox = Box<dyn Port + Send>;

/// How many workers a node has, and what they share.
type Shares<'a> = (Workers, &'a RegionTable<Reach>, &'a Arc<EventQueue<Event>>);

/// Everything a worker has but its port.
pub(crate) struct Core {
    pub(crate) engine: Engine<NodePlatform>,
    pub(crate) clock: Clock,
    pub(crate) pools: Pools,
    /// Connections of programs that ask for them by IP address and port.
    pub(crate) cm: CmDriver,
    /// What connection management counts and times.
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) capture: Option<Capture>,
    pub(crate) manager: NodeCm<Stream>,
    psns: Stream,
    psn: Psn,
    bad_management: u64,
    /// A message that the port had no room for.
    unsent: Option<Outgoing>,
    said_goodbye: bool,
    /// The last round ended with what it received, and left to this one what else was due.
    is_behind: bool,
    /// The way to the other workers, if there are any.
    pub(crate) messages: Option<Messages>,
    /// The link of the node's port, if that tells of it.
    pub(crate) link: Option<LinkView>,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core")
            .field("engine", &self.engine)
            .finish_non_exhaustive()
    }
}

impl Core {
    /// Those of all workers of a node, which share its regions.
    pub(crate) fn all(
        config: &CoreConfig,
        (workers, regions, events): Shares<'_>,
        clock: &Clock,
        ports: &[PortBox],
        wakeups: &[Arc<Wakeup>],
    ) -> Vec<Self> {
        let secret = config.engine.secret;
        let alone = workers == Workers::ONE;
        let identity = draw_identity(config.guid, &secret);
        let guids = secret.derive(Purpose::HostGuids);
        let messages = Messages::between(workers, wakeups).into_iter().map(Some);
        let places = workers.iter().zip(ports).zip(messages);
        places
            .map(|((worker, port), messages)| {
                let mut config = config.clone();
                config.engine.worker = worker;
                config.engine.secret = secret.derive(Purpose::Worker(worker.index()));
                let messages = messages.filter(|_| !alone);
                let own = (clock.clone(), &**port, messages);
                Self::new(config, (identity, guids), (regions, events), own)
            })
            .collect()
    }

    fn new(
        mut config: CoreConfig,
        (identity, guids): (Identity, Secret),
        (regions, events): (&RegionTable<Reach>, &Arc<EventQueue<Event>>),
        (clock, port, messages): (Clock, &(dyn Port + Send), Option<Messages>),
    ) -> Self {
        let capabilities = port.capabilities();
        let carried = u32::try_from(capabilities.max_datagram).unwrap_or(u32::MAX);
        config.engine.datagram = carried.min(config.max_datagram).min(65_535);
        let mut ports: Vec<u16> = port.source_ports().to_vec();
        if ports.is_empty() {
            ports.push(ROCE_PORT);
        }
        config.engine.source_ports = ports;
        let secret = config.engine.secret;
        config.engine.secret = secret.derive(Purpose::Engine);
        let worker = config.engine.worker;
        let mut nodes = CmConfig::new(identity);
        (nodes.worker, nodes.limits.opening) = (worker, config.connect_requests);
        let mut manager = NodeCm::new(nodes, secret.stream(Purpose::Nodes));
        let log = Log::of(config.engine.address, worker.index());
        let recorder = Arc::new(Recorder::new(log));
        let pauses = secret.stream(Purpose::Pauses);
        let pools = Pools::new(&config, Arc::clone(&recorder), Arc::clone(events), pauses);
        let mut cm = CmDriver::new(
            (config.engine.address, Guids::PerPeer(guids)),
            worker,
            config.engine.datagram,
            secret.stream(Purpose::Hosts),
            port.routes(config.engine.address),
        );
        let capture = config.capture;
        let mut psns = secret.stream(Purpose::Psns);
        let mut engine = Engine::sharing(config.engine, regions);
        if config.watched {
            recorder.attach(&clock, &mut engine, &mut manager, &mut cm.manager);
        }
        Self {
            engine,
            recorder,
            capture,
            clock,
            pools,
            cm,
            manager,
            psn: draw_psn(&mut psns),
            psns,
            bad_management: 0,
            unsent: None,
            said_goodbye: false,
            is_behind: false,
            messages,
            link: None,
        }
    }

    /// The node has `failed`, or was shut down: all QPs are in error, and what they had outstanding
    /// is flushed. Where a panic left the engine in pieces, no QP takes requests at least.
    pub(crate) fn bury(&mut self, failed: bool) {
        for qpn in self.engine.qp_numbers() {
            let ended = catch_unwind(AssertUnwindSafe(|| self.engine.end_qp(qpn, failed)));
            if ended.is_err() {
                self.engine.condemn_qps();
                break;
            }
        }
        // There is nobody left to tell if this fails.
        let _ = catch_unwind(AssertUnwindSafe(|| self.engine.publish()));
    }

    /// The IDs of a node that failed hear so; whether their peers do is left to chance.
    pub(crate) fn abandon_ids(&mut self) {
        let now = self.clock.now();
        let abandon = || {
            while self.cm.manager.end_some(now, ENDED_AT_ONCE) {}
            self.cm.pump(now);
        };
        // There is nobody left to tell if this fails.
        let _ = catch_unwind(AssertUnwindSafe(abandon));
    }

    /// The node ends, in order or since it `failed`: what is queued leaves, IDs and connections
    /// end, and their peers are told. It waits for nobody but the port, and not long.
    pub(crate) fn say_goodbye(&mut self, port: &mut (dyn Port + Send), failed: bool) {
        if std::mem::replace(&mut self.said_goodbye, true) {
            return;
        }
        // Where the node's time stands still, so does its patience: nothing but what the port takes
        // decides what leaves.
        let patience = match self.clock.is_manual() {
            true => Duration::MAX,
            false => GOODBYE,
        };
        let end = Deadline::after(patience);
        let now = self.clock.now();
        self.engine.handle_all_doorbells();
        self.pump(now);
        self.engine.hasten();
        self.send_out(port, end);
        loop {
            let more = self.cm.manager.end_some(now, ENDED_AT_ONCE);
            self.cm.pump(now);
            self.send_out(port, end);
            if !more {
                break;
            }
        }
        self.engine.say_goodbye(failed);
        let mut context = PoolContext {
            now,
            engine: &mut self.engine,
            manager: &mut self.manager,
        };
        self.pools.end_connections(&mut context);
        self.send_out(port, end);
        self.engine.publish();
    }

    /// Sends what there is to send, until `end` if the port has no room.
    fn send_out(&mut self, port: &mut (dyn Port + Send), end: Deadline) {
        while end.left().is_some() {
            let sent = self.transmit(port, self.clock.now());
            let flushed = port.flush();
            while let Some(event) = port.poll_event() {
                self.heed(event);
            }
            match flushed.map(|()| sent) {
                Ok(true) => {}
                Err(error) if !error.is_passing() => return,
                // A connection that waits for acknowledgements has nothing to send.
                Ok(false) if self.unsent.is_none() && !self.engine.has_pending_closes() => return,
                // What the port refuses now, it refuses for as long as time stands still.
                _ if self.clock.is_manual() => return,
                _ => std::thread::yield_now(),
            }
        }
    }

    /// Whether all that programs posted is done, and all that is owed to peers has left.
    pub(crate) fn is_drained(&mut self, port: &(dyn Port + Send)) -> bool {
        self.engine.is_drained() && self.unsent.is_none() && !self.is_busy(port)
    }

    pub(crate) fn state_bytes(&self) -> StateBytes {
        let management =
            self.manager.state_bytes() + self.cm.state_bytes() + self.pools.state_bytes();
        StateBytes::of(&self.engine.state_bytes(), management)
    }

    /// A PSN to begin with.
    pub(crate) fn draw_psn(&mut self) -> Psn {
        draw_psn(&mut self.psns)
    }

    /// The part of a round that the port has `fetched` packets for, or not: packets in, timers, new
    /// work, packets out. What other workers say may concern `new_qps`. Gives whether anything
    /// happened. Where few packets come, they may be all that it takes up.
    ///
    /// The clock is read anew where time has passed that somebody measures: after packets have
    /// arrived, for all of them; and before packets are built, which are stamped with it.
    pub(crate) fn work(
        &mut self,
        port: &mut (dyn Port + Send),
        fetched: bool,
        new_qps: &NewQps,
    ) -> Result<bool, PortError> {
        let mut now = self.clock.now();
        let mut received = 0;
        if fetched {
            let managed;
            (received, managed) = self.receive(port, now)?;
            if !managed && self.ends_early(now, received) {
                return Ok(true);
            }
        }
        self.is_behind = false;
        received += self.read_mail(now, new_qps);
        if received > 0 {
            now = self.clock.now();
        }
        self.heed_link(now);
        self.engine.handle_timeout(now);
        self.manager.handle_timeout(now);
        self.cm.handle_timeout(now, &self.recorder);
        self.engine.handle_doorbells();
        self.pump(now);
        let sent = self.transmit(port, now);
        Ok(received > 0 || sent)
    }

    /// Whether a round ends with the datagrams that it `received`, none of connection management:
    /// these are few and complete something, of which programs learn the sooner, and there is
    /// nothing that could leave now. What else is due waits for the next round, which does all of
    /// it.
    fn ends_early(&mut self, now: Instant, received: usize) -> bool {
        let engine = &mut self.engine;
        let completes = (1..=FEW).contains(&received) && engine.has_completions();
        let may = completes && !self.is_behind && !engine.has_events();
        self.is_behind = may && engine.may_wait(now);
        self.is_behind
    }

    /// A round found nothing that was left over.
    pub(crate) fn catch_up(&mut self) {
        self.is_behind = false;
    }

    /// Where the link has come up, what is in flight does not wait for as long as it was down.
    fn heed_link(&mut self, now: Instant) {
        let Some(link) = &mut self.link else {
            return;
        };
        link.look(now);
        if link.take_up() {
            self.engine.link_up(now);
        }
    }

    /// Puts what was posted since the last round into the port. Gives whether that was anything;
    /// `None`: nothing was posted. What is left of earlier rounds goes when the port was asked for
    /// answers: what they let go leaves with it.
    pub(crate) fn send_posted(&mut self, port: &mut (dyn Port + Send)) -> Option<bool> {
        if !self.engine.has_posted() {
            return None;
        }
        let now = self.clock.now();
        self.engine.handle_doorbells();
        Some(self.transmit(port, now))
    }

    /// Puts what there is to send into the port. Gives whether there was any.
    ///
    /// Management goes first: a peer that has our confirmation knows the connection that the
    /// packets behind it are on.
    fn transmit(&mut self, port: &mut (dyn Port + Send), now: Instant) -> bool {
        let Self {
            engine,
            manager,
            pools,
            cm,
            recorder,
            capture,
            psn,
            unsent,
            ..
        } = self;
        let mut clerk = ManagementSender {
            manager,
            cm,
            recorder,
            capture: capture.as_ref(),
            address: pools.address(),
            psn,
            unsent,
            sent: false,
        };
        let sent = engine.poll_transmit_with(now, port, &mut |port| clerk.send(port));
        if clerk.sent {
            self.recorder.counted(&self.cm_counters());
        }
        sent > 0
    }

    /// Takes in what the port has fetched. Gives how many datagrams that were, and whether any were
    /// of connection management.
    fn receive(
        &mut self,
        port: &mut (dyn Port + Send),
        now: Instant,
    ) -> Result<(usize, bool), PortError> {
        let Self {
            engine,
            manager,
            pools,
            cm,
            recorder,
            capture,
            bad_management,
            messages,
            ..
        } = self;
        let sharing = pools.is_sharing();
        let (mut burst, mut managed) = (engine.burst(now), false);
        let received = port.receive(BURST, &mut |arrival, datagram| {
            if !gsi::is_management(datagram) {
                let elsewhere = |messages: &mut Messages| messages.pass_on(arrival, datagram);
                if !messages.as_mut().is_some_and(elsewhere) {
                    burst.handle_datagram(arrival, datagram);
                }
                return;
            }
            managed = true;
            if let Some(capture) = capture {
                capture.received(arrival, datagram);
            }
            let Some(mad) = check_management(arrival, datagram) else {
                *bad_management += 1;
                return;
            };
            recorder.message_received();
            probes::cm_received(arrival.path.src, mad);
            let concerns = match messages {
                None => Some(Concerns::of(mad)),
                Some(messages) => deliver(messages, &arrival.path, mad),
            };
            if let Some(concerns) = concerns {
                let concerns = concerns_here(sharing, concerns);
                manage(now, (manager, cm), &arrival.path, mad, concerns);
            }
            // Packets behind a confirmation are on the connection that it opens.
            let mut context = PoolContext {
                now,
                engine: burst.engine(),
                manager,
            };
            exchange_events(&mut context, pools, cm);
        });
        if managed {
            self.recorder.counted(&self.cm_counters());
        }
        Ok((received?, managed))
    }

    /// Takes up what other workers say; gives how much that was.
    fn read_mail(&mut self, now: Instant, new_qps: &NewQps) -> usize {
        let mut read = 0;
        while read < BURST
            && let Some(message) = self.messages.as_mut().and_then(Messages::next)
        {
            read += 1;
            // It may have been sent since the core was taken, about a QP made since then.
            new_qps.take_up(self);
            let may_go_on = |taken| read + taken < BURST && !new_qps.is_waiting();
            read += self.take_up(now, message, may_go_on);
        }
        read
    }

    /// Takes up a message, and packets behind one, as long as that `may` go on; gives how many
    /// these were.
    fn take_up(
        &mut self,
        now: Instant,
        message: WorkerMessage,
        may_go_on: impl Fn(usize) -> bool,
    ) -> usize {
        let Self {
            engine,
            manager,
            pools,
            cm,
            messages,
            ..
        } = self;
        let mut context = PoolContext {
            now,
            engine,
            manager,
        };
        match message {
            WorkerMessage::Packet(first) => {
                let burst = context.engine.burst_handed_over(now);
                let messages = messages.as_mut().expect("it came by them");
                return messages.take_in(burst, first, may_go_on);
            }
            WorkerMessage::Mad(mad) => {
                let (path, mad, concerns) = *mad;
                let concerns = concerns_here(pools.is_sharing(), concerns);
                manage(now, (manager, cm), &path, &mad, concerns);
            }
            WorkerMessage::Met(met) => cm.manager.handle_met(now, &met),
            WorkerMessage::QpHeard(qpn) => cm.manager.qp_heard(qpn),
            WorkerMessage::PeerQpGone(qpn) => cm.manager.peer_qp_gone(now, qpn),
            WorkerMessage::QpFailed(qpn) => cm.manager.qp_failed(now, qpn),
            WorkerMessage::CqFailed(cq) => {
                if context.engine.fail_cq(cq) && pools.speaks_for_node() {
                    self.recorder.log.cq_overran(cq);
                    pools.hear(&EngineEvent::CqError { cq });
                }
            }
            WorkerMessage::Peer(address, mode) => pools.heard(&mut context, address, mode),
            WorkerMessage::Incarnation(identity, at) => engine.heed_incarnation(&identity, at),
            WorkerMessage::Refused(peer, quote) => self.refused(now, peer, &quote),
            WorkerMessage::Loop(ask) => pools.looped_to(&mut context, &ask),
            WorkerMessage::Looped(near, far) => pools.looped(&mut context, &near, far.as_ref()),
        }
        0
    }

    /// Hands over what the peers of this worker have for other ones.
    fn post_mail(&mut self) {
        let Some(messages) = &mut self.messages else {
            return;
        };
        while let Some((to, message)) = self.pools.poll_message() {
            messages.send(to, message);
        }
        while let Some(met) = self.cm.manager.poll_met() {
            messages.send_all(|| WorkerMessage::Met(met));
        }
        messages.retry();
    }

    /// Whether there is something to do right now, apart from packets that come in. What waits for
    /// the medium to take more ([`Port::full`]) is not.
    pub(crate) fn is_busy(&mut self, port: &(dyn Port + Send)) -> bool {
        let waits = self.engine.is_out_of_room() && port.full().is_some();
        let busy = if waits {
            self.engine.has_work()
        } else {
            self.engine.is_busy()
                || self.unsent.is_some()
                || self.manager.has_outgoing()
                || self.cm.manager.has_outgoing()
        };
        // What came up when packets were built is told in the next round.
        let came_up = self.link.as_ref().is_some_and(LinkView::came_up);
        let news = self.engine.has_events() || came_up;
        busy || news || self.messages.as_mut().is_some_and(Messages::is_busy)
    }

    /// Whether there is nothing to do until a packet comes, a timer is due or a program asks for
    /// something, and nothing waits in the port.
    pub(crate) fn is_idle(&mut self, port: &(dyn Port + Send)) -> bool {
        let now = self.clock.now();
        if let Some(link) = &mut self.link {
            link.look(now);
        }
        let rests = port.full().is_none() && self.next_timeout().is_none_or(|at| at > now);
        rests && !self.is_busy(port)
    }

    /// What was handed to other workers.
    pub(crate) fn hand_overs(&self) -> HandOvers {
        let messages = self.messages.as_ref();
        messages.map_or_else(HandOvers::default, |messages| messages.counters)
    }

    /// Lets engine, connection manager and peers talk until none has news.
    pub(crate) fn pump(&mut self, now: Instant) {
        let Self {
            engine,
            manager,
            pools,
            cm,
            ..
        } = self;
        let mut context = PoolContext {
            now,
            engine,
            manager,
        };
        pools.retry_busy(&mut context);
        exchange_events(&mut context, pools, cm);
        pools.hand_over(&mut context);
        pools.reclaim(now, context.engine);
        self.post_mail();
    }

    /// Whether packets to this address reach one host, as far as it can be known without asking
    /// anybody.
    pub(crate) fn check_peer(&mut self, now: Instant, peer: Gid) -> Result<(), VerbsError> {
        let (peer_at, own) = (peer.address(), self.pools.address());
        if peer_at.is_ipv4() != own.is_ipv4() {
            return Err(VerbsError::OtherFamily { peer: peer_at, own });
        }
        // Who has answered is one host.
        if self.engine.peer(peer).is_some() || self.cm.is_one_host(now, peer_at) {
            return Ok(());
        }
        Err(VerbsError::NotOneHost { address: peer_at })
    }

    /// Changes the state of a QP.
    pub(crate) fn modify_qp(&mut self, qpn: Qpn, change: &QpModify) -> Result<(), VerbsError> {
        self.engine.modify_qp(qpn, change)?;
        if matches!(change, QpModify::Reset) {
            self.pools.withdraw(&mut self.manager, qpn);
        }
        Ok(())
    }

    /// Destroys a QP; its peer hears that it left, or of an error if it was `abandoned`.
    pub(crate) fn destroy_qp(&mut self, qpn: Qpn, abandoned: bool) -> Result<(), VerbsError> {
        self.pools.withdraw(&mut self.manager, qpn);
        if abandoned {
            return self.engine.abandon_qp(qpn);
        }
        self.engine.destroy_qp(qpn)
    }

    /// Asks a peer what it is, before a QP needs to know.
    pub(crate) fn learn(&mut self, now: Instant, peer: Gid) {
        let Self {
            engine,
            manager,
            pools,
            ..
        } = self;
        let mut context = PoolContext {
            now,
            engine,
            manager,
        };
        pools.learn(&mut context, peer);
    }

    /// Opens a connection for the program.
    pub(crate) fn open_private(
        &mut self,
        now: Instant,
        peer: std::net::IpAddr,
        options: &crate::verbs::connection::ConnectionOptions,
    ) -> Option<u64> {
        let Self {
            engine,
            manager,
            pools,
            ..
        } = self;
        let mut context = PoolContext {
            now,
            engine,
            manager,
        };
        pools.open_private(&mut context, peer, options)
    }

    /// What connection management dropped or refused.
    pub(crate) const fn cm_counters(&self) -> CmCounters {
        CmCounters {
            unreadable: self.bad_management,
            unresolved: self.cm.unresolved,
            nodes: *self.manager.counters(),
            hosts: *self.cm.manager.ib().counters(),
            rdma: *self.cm.manager.counters(),
        }
    }

    /// When the next timer is due.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        Instant::earliest([
            self.engine.poll_timeout(),
            self.manager.poll_timeout(),
            self.cm.poll_timeout(),
            self.pools.next_timeout(),
        ])
    }
}

/// Takes a QP in INIT to RTS.
pub(crate) fn ready(
    engine: &mut Engine<NodePlatform>,
    qp: &Qp,
    attributes: &Attributes,
) -> Result<(), VerbsError> {
    engine.modify_qp(qp.qpn(), &QpModify::Rtr(*attributes))?;
    engine.modify_qp(qp.qpn(), &QpModify::Rts(*attributes))
}

/// Lets engine, connection managers and peers talk until none has news.
fn exchange_events(context: &mut PoolContext<'_>, pools: &mut Pools, cm: &mut CmDriver) {
    loop {
        let mut idle = true;
        while let Some(event) = context.engine.poll_event() {
            idle = false;
            if let EngineEvent::QpHeard { qpn } = event {
                if let Some(other) = cm.qp_heard(qpn) {
                    pools.send_to(other, WorkerMessage::QpHeard(qpn));
                }
                continue;
            }
            if let EngineEvent::PeerQpGone { qpn } = event
                && let Some(other) = cm.peer_qp_gone(context.now, qpn)
            {
                pools.send_to(other, WorkerMessage::PeerQpGone(qpn));
            }
            if let EngineEvent::QpFailed { qpn, cq } = event {
                pools.log().qp_failed(qpn, cq);
                if let Some(other) = cm.qp_failed(context.now, qpn) {
                    pools.send_to(other, WorkerMessage::QpFailed(qpn));
                }
                continue;
            }
            if let EngineEvent::CqError { cq } = event {
                pools.send_to_all(|| WorkerMessage::CqFailed(cq));
                if !pools.speaks_for_node() {
                    continue;
                }
                pools.log().cq_overran(cq);
            }
            pools.handle_engine(context, &event);
            pools.hear(&event);
        }
        while let Some(event) = context.manager.poll_event() {
            idle = false;
            pools.handle_manager(context, &event);
        }
        while let Some(silent) = pools.poll_unexplained() {
            let why = cm.why_silent(context.now, silent.1);
            pools.explain(context.now, silent, why);
        }
        idle &= !cm.pump(context.now);
        idle &= !pools.open_next(context);
        if idle {
            break;
        }
    }
}

/// An identity with the GUID that the program gave, if it gave one.
fn draw_identity(guid: Option<u64>, secret: &Secret) -> Identity {
    let mut random = secret.stream(Purpose::Identity);
    let drawn = random.next_u64();
    Identity {
        guid: guid.unwrap_or(drawn),
        epoch: random.next_u64(),
    }
}

fn draw_psn(random: &mut Stream) -> Psn {
    Psn::from_wire(random.next_u64() as u32)
}

#[cfg(test)]
mod tests;
