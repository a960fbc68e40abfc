//! A node: one software RNIC inside the program.

mod address;
pub(crate) mod attributes;
mod driving;
mod events;
pub(crate) mod life;
pub(crate) mod link;
pub(crate) mod ports;
pub(crate) mod shared;
pub(crate) mod state_bytes;

use crate::error::Error;
use crate::node::life::{Down, Health, Life};
use crate::node::link::{Link, LinkView};
use crate::node::ports::PortKind;
use crate::node::shared::{Own, Shared};
use crate::node::state_bytes::StateBytes;
use crate::observe::capture::{Capture, CaptureState};
use crate::observe::cm_counters::CmCounters;
use crate::observe::log;
use crate::observe::status::CmStats;
use crate::observe::status::server::Server;
use crate::observe::status::source::Source;
use crate::service::Serving;
use crate::verbs::connection::{Connection, ConnectionOptions};
use crate::verbs::cq::Cq;
use crate::verbs::mr::{Pd, PdInner};
use crate::verbs::qp::QpAddress;
use crate::worker::clock::Clock;
use crate::worker::core::{Core, CoreConfig, PortBox};
use crate::worker::deadline::Deadline;
use crate::worker::event_queue::EventQueue;
use crate::worker::handle::WorkerHandle;
use crate::worker::messages::HandOvers;
use crate::worker::thread::Thread;
use crate::worker::wakeup::Wakeup;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;
use trunkline_conn::control::CongestionControl;
use trunkline_conn::delivery::{Counters as DeliveryCounters, MAX_WINDOW};
use trunkline_conn::secret::{Purpose, Secret};
use trunkline_dataplane::{Port, PortCounters, UdpConfig};
use trunkline_qpmap::cq::Notify;
use trunkline_qpmap::regions::RegionTable;
use trunkline_qpmap::{Allowed, Counters, LiveObjects, VerbsError};
use trunkline_wire::{Gid, ROCE_PORT, Workers};

/// Packets that a shared connection may have in flight.
const WINDOWS: Allowed = Allowed::PowerOfTwo(64, MAX_WINDOW);
/// Bytes that a node must be able to send at once: headers and some payload.
const DATAGRAMS: Allowed = Allowed::AtLeast(256);
/// Connections of a pool.
const POOLS: Allowed = Allowed::Range(1, 254);
/// Peers asked at once.
const CONNECT_REQUESTS: Allowed = Allowed::Range(1, 65_536);
/// The least time after which a node takes a silent connection for dead, or asks whether it lives.
const LEAST_TIME: Duration = Duration::from_millis(1);
/// Bits per second: the largest datagram takes half a second, a quarter of the usual time after
/// which a silent connection is dead.
const LINK_RATES: Allowed = Allowed::AtLeast(1_000_000);
/// Pause between two looks at whether a node that ends has done all it had to.
const DRAIN_PAUSE: Duration = Duration::from_millis(1);
/// Most asynchronous events that wait for the program.
const MAX_EVENTS: usize = 65_536;
/// UDP ports that a node may have.
const UDP_PORTS: Allowed = Allowed::Range(1, u16::MAX as u32);
/// Source ports beside the node's own.
const EXTRA_SOURCE_PORTS: Allowed = Allowed::Range(0, 7);

/// A software RNIC. Clones name the same node; it stops when the last handle to it, its QPs, CQs
/// and regions is gone.
#[derive(Clone)]
pub struct Node {
    pub(crate) shared: Arc<Shared>,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node")
            .field("address", &self.shared.gid.address())
            .field("workers", &self.shared.workers.count())
            .finish_non_exhaustive()
    }
}

/// Who drives a node.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Drive {
    /// The program, by calling [`Node::poll`]. In between it waits in [`Node::wait`], or on
    /// [`Node::fd`] beside other descriptors.
    Inline,
    /// A thread of the node's own; it sleeps when there is nothing to do.
    #[default]
    Threaded,
}

/// Sets up a [`Node`].
#[derive(Debug)]
pub struct Builder {
    address: IpAddr,
    port: PortKind,
    udp_port: u16,
    source_ports: usize,
    workers: u8,
    drive: Drive,
    clock: Clock,
    pub(crate) config: CoreConfig,
    control: Option<CongestionControl>,
    seed: Option<u64>,
    status: Option<bool>,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: PortKind::default(),
            udp_port: ROCE_PORT,
            source_ports: 0,
            workers: 1,
            drive: Drive::default(),
            clock: Clock::real(),
            config: CoreConfig::default(),
            control: None,
            seed: None,
            status: None,
        }
    }
}

impl Builder {
    /// The address of its port; loopback if not set. An IPv4 address that is mapped into IPv6 is
    /// the IPv4 address.
    #[must_use]
    pub const fn address(mut self, address: IpAddr) -> Self {
        self.address = address.to_canonical();
        self
    }

    /// What carries its packets: a UDP socket if not set.
    #[must_use]
    pub fn port(mut self, kind: PortKind) -> Self {
        self.port = kind;
        self
    }

    /// Who drives it.
    #[must_use]
    pub const fn drive(mut self, drive: Drive) -> Self {
        self.drive = drive;
        self
    }

    /// Its workers, 1 to 64: each has QPs and connections of its own, and a thread if the node is
    /// threaded. 1 if not set.
    #[must_use]
    pub const fn workers(mut self, count: u8) -> Self {
        self.workers = count;
        self
    }

    /// The UDP port that it receives on and sends to; 4791, that of RoCEv2, if not set. All nodes
    /// that are to meet have the same, and those with another one meet no ordinary hosts. So
    /// several nodes may have one address, each with a port and peers of its own; other processes
    /// can watch the first of them ([`status`](crate::status)).
    ///
    /// The ICRC of their packets is computed as for 4791, and captures show them so.
    #[must_use]
    pub const fn udp_port(mut self, port: u16) -> Self {
        self.udp_port = port;
        self
    }

    /// Source ports beside the node's own that multipath connections may use, 0 to 7.
    #[must_use]
    pub const fn extra_source_ports(mut self, count: usize) -> Self {
        self.source_ports = count;
        self
    }

    /// The clock it lives by.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Most shared connections opened to a peer when QPs need them, 1 to 254.
    #[must_use]
    pub const fn pool(mut self, connections: u32) -> Self {
        self.config.pool = connections;
        self
    }

    /// Most peers that each worker asks for connections at once, 1 to 65,536; 4,096 if not set. QPs
    /// that need others, and connections that the program opens, wait in the order in which they
    /// began to, and their patience begins when their peer is asked.
    #[must_use]
    pub const fn connect_requests(mut self, peers: u32) -> Self {
        self.config.connect_requests = peers;
        self
    }

    /// Whether QPs share connections with those of other Trunkline nodes, which is so if not set.
    /// Otherwise this node is an ordinary host to all others: each RC QP has an InfiniBand
    /// connection of its own.
    #[must_use]
    pub const fn sharing(mut self, sharing: bool) -> Self {
        self.config.sharing = sharing;
        self
    }

    /// Congestion control of shared connections. If not set: [`CongestionControl::default`], which
    /// is by delay; none where all ports are lossless.
    #[must_use]
    pub const fn control(mut self, control: CongestionControl) -> Self {
        self.control = Some(control);
        self
    }

    /// Rate of the link in bits per second, 1,000,000 or more, if it should pace by it.
    #[must_use]
    pub const fn link_rate(mut self, bits_per_second: u64) -> Self {
        self.config.engine.link_rate_bps = Some(bits_per_second);
        self
    }

    /// Packets a shared connection may have in flight: a power of two, 64 to 65,536, which it is
    /// unless set. Memory is only taken for those that are.
    #[must_use]
    pub const fn window(mut self, packets: u32) -> Self {
        self.config.engine.window = packets;
        self
    }

    /// A connection whose peer acknowledges nothing for so long is dead; 2 s if not set, at least 1
    /// ms. Where its QPs have no other, the peer is asked for one, for a quarter of that time more:
    /// they fail within a third more than this, unless their own timeout and retry count ask for
    /// more than [`failover_grace`](Self::failover_grace).
    #[must_use]
    pub fn peer_timeout(mut self, timeout: Duration) -> Self {
        self.config.engine.dead_after_ns = nanoseconds(timeout);
        self
    }

    /// How long QPs on shared connections wait for a silent peer at least, whatever their timeout
    /// and retry count say: time for another connection to take over. 3 s if not set. Those whose
    /// connection died of the silence wait as [`peer_timeout`](Self::peer_timeout) says. With less,
    /// down to nothing, a QP that asks for a short time ends after it, though another connection
    /// might have saved it.
    #[must_use]
    pub fn failover_grace(mut self, grace: Duration) -> Self {
        self.config.engine.failover_grace_ns = nanoseconds(grace);
        self
    }

    /// A shared connection over which nothing came for so long is asked for a sign of life; 10 s if
    /// not set, at least 1 ms. A peer that vanished is found out this time and
    /// [`peer_timeout`](Self::peer_timeout) later, though nothing was sent to it.
    #[must_use]
    pub fn keep_alive(mut self, pause: Duration) -> Self {
        self.config.engine.keep_alive_ns = nanoseconds(pause);
        self
    }

    /// Idle connections beyond the first of a pool close after so long.
    #[must_use]
    pub fn idle_timeout(mut self, timeout: Duration) -> Self {
        self.config.idle_after_ns = nanoseconds(timeout);
        self
    }

    /// Largest datagram (BTH to ICRC) it sends, in bytes, if less than its port carries; at least
    /// 256.
    #[must_use]
    pub const fn max_datagram(mut self, bytes: u32) -> Self {
        self.config.max_datagram = bytes;
        self
    }

    /// Bytes that packets which wait for an earlier one of their QP may take at each worker, 8 MiB
    /// if not set. A lone peer gets half of it at most, a lone QP pair a quarter.
    #[must_use]
    pub const fn staging(mut self, bytes: usize) -> Self {
        self.config.engine.staging_bytes = bytes;
        self
    }

    /// GUID by which peers know it, the same whenever it starts (an EUI-64, say). If not set, each
    /// start draws one. Peers tell a start from the one before by an epoch that is always drawn.
    ///
    /// No two nodes should have the same. A peer is its address, its GUID and its epoch: nodes with
    /// one GUID at two addresses are two peers, and [`CmCounters`] counts them
    /// (`nodes.duplicate_guid`). Hosts that are no Trunkline nodes are told GUIDs that are drawn.
    #[must_use]
    pub const fn guid(mut self, guid: u64) -> Self {
        self.config.guid = Some(guid);
        self
    }

    /// Fixes all randomness: for simulation. Otherwise 32 bytes of the operating system decide.
    /// Whoever knows the seed knows all QPNs, keys and tokens of the node.
    #[must_use]
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Writes the management datagrams that the node sends and receives (those of QP 1) to `writer`
    /// as pcapng, with their ICRCs. The packets of QPs pass untouched. Where the writer blocks the
    /// node waits; when it fails the node goes on without, and [`Node::capture_state`] says why.
    ///
    /// # Errors
    /// The head of the file cannot be written.
    pub fn capture_management(
        mut self,
        writer: impl std::io::Write + Send + 'static,
    ) -> Result<Self, Error> {
        self.config.capture = Some(Capture::new(Box::new(writer))?);
        Ok(self)
    }

    /// Whether connection management is counted, timed and probed; it is if not set. Without,
    /// [`Node::cm_stats`] stays at nothing and only messages have probes.
    #[must_use]
    pub const fn watched(mut self, watched: bool) -> Self {
        self.config.watched = watched;
        self
    }

    /// Whether other processes of the same user can watch it ([`status`](crate::status)). If not
    /// set, they can where it is built on a UDP socket and nobody else has taken the name for that.
    #[must_use]
    pub const fn status(mut self, offered: bool) -> Self {
        self.status = Some(offered);
        self
    }

    /// A node on a port of its own ([`port`](Self::port)).
    ///
    /// # Errors
    /// A setting out of range; an address that cannot be bound: where another process owns the
    /// port, the error names it; a port of a kind that this machine, or this user, does not have;
    /// one that carries less than a message of connection management ([`Error::TooNarrow`]).
    pub fn build(mut self) -> Result<Node, Error> {
        self.check()?;
        let config = UdpConfig {
            port: self.udp_port,
            extra_source_ports: self.source_ports,
            ..UdpConfig::new(self.address)
        };
        let opened = self.port.open(&config, self.all_workers()?)?;
        self.config.engine.control = self.control.unwrap_or_default();
        let default = self.status.is_none();
        self.status = self.status.or(Some(true));
        self.finish(opened.ports, &opened.name, default)
    }

    /// A node on a port of the program's choice.
    ///
    /// # Errors
    /// A setting out of range; the operating system has no thread or descriptor left.
    pub fn build_on(self, port: Box<dyn Port + Send>) -> Result<Node, Error> {
        self.build_on_all(vec![port])
    }

    /// A node on ports of the program's choice, one for each worker. All have the node's address.
    /// Each should get what names a number of its worker ([`Workers`]); the rest is handed over.
    ///
    /// # Errors
    /// As [`build_on`](Self::build_on); there are not as many ports as workers.
    pub fn build_on_all(self, ports: Vec<Box<dyn Port + Send>>) -> Result<Node, Error> {
        self.finish(ports, ports::OWN, false)
    }

    /// A node on `ports` of that name; it starts without telling others of it where it `may`.
    fn finish(mut self, ports: Vec<PortBox>, name: &str, may: bool) -> Result<Node, Error> {
        self.check()?;
        let workers = self.all_workers()?;
        let count = workers.count().into();
        Allowed::Range(count, count).check("ports", ports.len() as u64)?;
        let secret = match self.seed {
            Some(seed) => Secret::from_seed(seed),
            None => system_secret()?,
        };
        if let Some(control) = self.control {
            self.config.engine.control = control;
        } else if ports.iter().all(|port| port.capabilities().lossless) {
            self.config.engine.control = CongestionControl::None;
        }
        self.config.engine.address = self.address;
        self.config.engine.secret = secret;
        let capabilities = ports[0].capabilities();
        let changes = ports[0].link_changes(self.address);
        let wakeups: Vec<_> = ports.iter().map(|_| Arc::new(Wakeup::default())).collect();
        let life = Arc::new(Life::new(wakeups.clone())?);
        let regions = RegionTable::new(&secret.derive(Purpose::Regions));
        let events = Arc::new(EventQueue::new("eventfd of a node", MAX_EVENTS)?);
        life.tell_end_to(&events);
        let link = match changes {
            Some(changes) => Some(Arc::new(Link::new(changes, &events)?)),
            None => None,
        };
        let of_all = (workers, &regions, &events);
        let cores = Core::all(&self.config, of_all, &self.clock, &ports, &wakeups);
        let serving = Arc::new(Serving::default());
        let status = match self.status {
            Some(true) => match offer(&life, (self.address, name), &cores, &serving) {
                Err(_) if may => None,
                server => Some(server?),
            },
            _ => None,
        };
        let mut handles = Vec::with_capacity(cores.len());
        let places = cores.into_iter().zip(ports).zip(wakeups);
        for (index, ((mut core, port), wakeup)) in (0..).zip(places) {
            core.link = link.clone().map(LinkView::new);
            let mut handle = WorkerHandle::new(Arc::clone(&life), index, (core, port), wakeup)?;
            handle.link = link.clone().filter(|_| index == 0);
            handles.push(Arc::new(handle));
        }
        let mut own = Own::new(regions, events, handles);
        own.link = link;
        (own.status, own.serving) = (status, serving);
        if self.drive == Drive::Threaded {
            for handle in &own.handles {
                own.threads.push(Thread::start(handle)?);
            }
        }
        log::started(self.address, workers, (name, &capabilities));
        let shared = Shared::own(life, self.address.into(), workers, own);
        Ok(Node {
            shared: Arc::new(shared),
        })
    }

    fn all_workers(&self) -> Result<Workers, Error> {
        let allowed = Allowed::Range(1, Workers::MOST.into());
        let workers = Workers::new(self.workers);
        Ok(workers.ok_or(allowed.refuse("workers", self.workers.into()))?)
    }
}

impl Builder {
    /// Whether every setting is in its range.
    fn check(&self) -> Result<(), Error> {
        Node::check_address(self.address)?;
        let (config, engine) = (&self.config, &self.config.engine);
        let settings = [
            ("window", engine.window.into(), WINDOWS),
            ("max_datagram", config.max_datagram.into(), DATAGRAMS),
            ("pool", config.pool.into(), POOLS),
            (
                "connect_requests",
                config.connect_requests.into(),
                CONNECT_REQUESTS,
            ),
            (
                "link_rate",
                engine.link_rate_bps.unwrap_or(u64::MAX),
                LINK_RATES,
            ),
            ("udp_port", self.udp_port.into(), UDP_PORTS),
            (
                "extra_source_ports",
                self.source_ports as u64,
                EXTRA_SOURCE_PORTS,
            ),
        ];
        for (what, value, allowed) in settings {
            allowed.check(what, value)?;
        }
        for (what, ns) in [
            ("keep_alive", engine.keep_alive_ns),
            ("peer_timeout", engine.dead_after_ns),
        ] {
            let (value, least) = (Duration::from_nanos(ns), LEAST_TIME);
            if value < least {
                return Err(VerbsError::TooShort { what, value, least }.into());
            }
        }
        Ok(())
    }
}

/// Lets other processes ask how the node is.
fn offer(
    life: &Arc<Life>,
    (address, port): (IpAddr, &str),
    cores: &[Core],
    serving: &Arc<Serving>,
) -> Result<Server, Error> {
    let of = |core: &Core| {
        let counters = core.engine.live_counters();
        (Arc::clone(&core.recorder), Arc::clone(counters))
    };
    let source = Source {
        address,
        port: port.to_owned(),
        started: std::time::Instant::now(),
        workers: cores.iter().map(of).collect(),
        serving: Arc::clone(serving),
    };
    Server::start(life, address, move || source.describe())
}

/// A time of a setting; one that no node lives to see is as long as can be.
fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn system_secret() -> Result<Secret, Error> {
    let mut bytes = [0; 32];
    let mut filled = 0;
    while filled < bytes.len() {
        let flags = rustix::rand::GetRandomFlags::empty();
        let rest = &mut bytes[filled..];
        // A signal may interrupt it while the system's source is not ready yet.
        filled += rustix::io::retry_on_intr(|| rustix::rand::getrandom(&mut *rest, flags))
            .map_err(|e| Error::system("getrandom")(e.into()))?;
    }
    Ok(Secret::new(bytes))
}

impl Node {
    /// Starts to set up a node.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// GID of its port.
    pub fn gid(&self) -> Gid {
        self.shared.gid
    }

    /// Its workers. The worker of a QP shows in its number.
    pub fn workers(&self) -> Workers {
        self.shared.workers
    }

    /// The worker for a QP that talks to `peer` where few connections are wanted; `None`: any.
    pub fn worker_facing(&self, peer: &QpAddress) -> Option<u8> {
        self.shared.facing(peer.gid.address(), peer.qpn)
    }

    /// Whether it works, and why not.
    ///
    /// A worker ends by itself when its port is gone or when something in it panics. Then all QPs
    /// of the node are in error with their requests flushed, [`poll_event`](Self::poll_event) gives
    /// [`DeviceFatal`](crate::Event::DeviceFatal), one line on standard error says why, and calls
    /// fail with [`Error::Down`]. In a child that `fork(2)` made, calls fail in the same way: the
    /// node goes on in the parent, and dropping it in the child does nothing.
    pub fn health(&self) -> Health {
        self.shared.life.health()
    }

    /// Ends it: what was posted is done and what peers are owed has reached them, or `timeout` is
    /// over; then every connection ends, peers and IDs of RDMA-CM hear so, and all QPs are in error
    /// with the rest flushed. Handles stay valid; calls that begin something fail with
    /// [`Error::Down`]. An inline node is driven meanwhile.
    ///
    /// Programs stop posting before: what is posted meanwhile is waited for too. Receives are not
    /// waited for. Dropping the last handle of a node ends it in the same way, but waits for
    /// nothing. Where the node is down already, all is flushed when this returns, too. A service
    /// that carries it touches no memory of the program from then on; it has a second at least.
    ///
    /// # Errors
    /// Time was up: [`Error::Unfinished`]. The node is down for another reason than this.
    pub fn shutdown(&self, timeout: Duration) -> Result<(), Error> {
        let ended = self.end(timeout);
        // Where another thread ended it, or it failed, that may not have flushed all yet.
        if !self.shared.life.is_up() && !self.shared.life.is_forked() {
            self.shared.bury();
            while !self.shared.threads().iter().all(Thread::is_over) {
                std::thread::sleep(DRAIN_PAUSE);
            }
            if let Some(client) = self.shared.client() {
                client.settle();
            }
        }
        ended
    }

    /// Ends it when nothing is under way, or time is up. What is left is not flushed yet.
    fn end(&self, timeout: Duration) -> Result<(), Error> {
        match self.health().down {
            None => {}
            Some(Down::ShutDown) => return Ok(()),
            Some(down) => return Err(down.into()),
        }
        let drained = match self.drain(Deadline::after(timeout)) {
            // Another thread did not wait for so long.
            Err(Error::Down(Down::ShutDown)) => return Ok(()),
            drained => drained?,
        };
        let ended = match self.shared.client() {
            None => self.shared.life.end(Down::ShutDown),
            Some(client) => client.detach(timeout),
        };
        if ended {
            log::ended(self.shared.gid.address());
        }
        if drained {
            Ok(())
        } else {
            Err(Error::Unfinished)
        }
    }

    /// Whether all that was posted is done, receives aside, and what peers are owed has reached
    /// them: what [`shutdown`](Self::shutdown) waits for.
    ///
    /// # Errors
    /// The node failed, or is another process's.
    pub fn is_drained(&self) -> Result<bool, Error> {
        let mut drained = true;
        for handle in self.shared.handles() {
            drained &= handle.is_drained()?;
        }
        Ok(drained)
    }

    /// Waits until nothing is under way; `false`: time was up.
    fn drain(&self, end: Deadline) -> Result<bool, Error> {
        loop {
            if self.is_drained()? {
                return Ok(true);
            }
            let Some(left) = end.wait() else {
                return Ok(false);
            };
            let pause = left.min(DRAIN_PAUSE);
            // An error that passes is one of the next round, if it has not passed.
            let worked = self.is_inline() && self.poll().is_ok();
            self.shared.life.check()?;
            if worked {
                self.wait(pause)?;
            } else {
                std::thread::sleep(pause);
            }
        }
    }

    /// Allocates a protection domain. Of a node that is down nothing can be made in it.
    pub fn alloc_pd(&self) -> Pd {
        Pd(Arc::new(PdInner::alloc(&self.shared)))
    }

    /// Creates a completion queue for `depth` completions or, rounded up, a few more
    /// ([`Cq::depth`]); [`Cq::resize`] changes it later.
    ///
    /// As many as its QPs have requests (`max_send_wr` and `max_recv_wr` together) do for a program
    /// that counts: it posts a request only once the completion of an earlier one was polled. A
    /// queue has room again as soon as a request is done, so one that posts until the queue is full
    /// may overrun a CQ of any depth if it does not poll in between.
    ///
    /// # Errors
    /// A depth of 0 or too large.
    pub fn create_cq(&self, depth: u32) -> Result<Cq, Error> {
        Cq::create(&self.shared, depth)
    }

    /// The same for a program that has a quicker way to be woken than a descriptor: when a
    /// completion arrives on the armed queue, `notify` is called instead of
    /// [`Cq::fd`](Cq::fd) becoming readable.
    ///
    /// Whoever drives the node calls it, in the middle of that: `notify` notes, or wakes a thread
    /// or a task, and calls nothing of the node.
    ///
    /// # Errors
    /// As [`create_cq`](Self::create_cq).
    pub fn create_cq_notifying(&self, depth: u32, notify: Arc<dyn Notify>) -> Result<Cq, Error> {
        Cq::notifying(&self.shared, depth, notify)
    }

    /// Opens a shared connection to the node at `peer`, for the program itself: QPs use it only
    /// where they are bound to it. It is open when [`Connection::state`] says so.
    ///
    /// # Errors
    /// Too many connections, an address of another family than the node's own, or one that is not
    /// that of one host.
    pub fn open_connection(
        &self,
        peer: IpAddr,
        options: &ConnectionOptions,
    ) -> Result<Connection, Error> {
        Connection::open(&self.shared, peer, options)
    }

    /// The connections of the pool to `peer`.
    pub fn connections(&self, peer: IpAddr) -> Vec<Connection> {
        Connection::of_peer(&self.shared, peer)
    }

    /// What the engine counted. It is read without a lock, while the workers go on.
    pub fn counters(&self) -> Counters {
        let mut sum = Counters::default();
        for handle in self.shared.own_handles() {
            sum.add(&handle.counters.read());
        }
        sum
    }

    /// How the capture of management datagrams goes, if there is one.
    pub fn capture_state(&self) -> Option<CaptureState> {
        let capture = self.shared.handles().first()?.capture.as_ref();
        capture.map(Capture::state)
    }

    /// Whether other processes of the same user can watch it.
    pub fn is_watchable(&self) -> bool {
        {
            let own = self.shared.inside("status");
            own.is_ok_and(|own| own.status.is_some())
        }
    }

    /// What its connection management does, and how long each step takes. It is read without a
    /// lock, while the workers go on.
    pub fn cm_stats(&self) -> CmStats {
        let mut stats = CmStats::default();
        for handle in self.shared.own_handles() {
            handle.recorder.add_to(&mut stats);
        }
        stats
    }

    /// What the connection management of each of its workers dropped or refused, by reason.
    pub fn cm_counters(&self) -> Vec<CmCounters> {
        let handles = self.shared.handles().iter();
        let counters = |core: MutexGuard<'_, Core>| core.cm_counters();
        handles
            .filter_map(|handle| handle.core().ok().map(counters))
            .collect()
    }

    /// What all its shared connections counted, those that are gone included.
    pub fn delivery_counters(&self) -> DeliveryCounters {
        let of = |core: &Core| core.engine.delivery_counters();
        self.shared.sum(of, DeliveryCounters::add)
    }

    /// What the port counted.
    pub fn port_counters(&self) -> PortCounters {
        let mut sum = PortCounters::default();
        let handles = self.shared.handles().iter();
        for port in handles.filter_map(|handle| handle.port().ok()) {
            sum.add(&port.counters());
        }
        sum
    }

    /// What its workers handed to each other because it had come out at another one's port.
    pub fn hand_overs(&self) -> HandOvers {
        self.shared.sum(Core::hand_overs, HandOvers::add)
    }

    /// Shared connections that are open, of all peers.
    pub fn connection_count(&self) -> usize {
        let of = |core: &Core| core.engine.connections().len();
        self.shared.sum(of, |sum, part| *sum += part)
    }

    /// What the engine holds on behalf of QPs: nothing, once they are gone and all is delivered.
    pub fn live_objects(&self) -> LiveObjects {
        let of = |core: &Core| core.engine.live_objects();
        self.shared.sum(of, LiveObjects::add)
    }

    /// Bytes of state of its QPs and connections and of their management, counted from the
    /// structures themselves.
    pub fn state_bytes(&self) -> StateBytes {
        let mut sum = self.shared.sum(Core::state_bytes, StateBytes::add);
        for handle in self.shared.own_handles() {
            sum.room += handle.new_qps_bytes();
        }
        sum
    }
}
