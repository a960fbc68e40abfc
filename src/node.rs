//! A node: one software RNIC inside the program.

use crate::capture::{Capture, CaptureState};
use crate::clock::Clock;
use crate::cm_counters::CmCounters;
use crate::connection::{Connection, ConnectionOptions};
use crate::core::{Core, CoreConfig};
use crate::cq::Cq;
use crate::error::Error;
use crate::mail::HandOvers;
use crate::mr::{Pd, PdInner};
use crate::seat::{Seat, Shared};
use crate::state_bytes::StateBytes;
use crate::status::recorder::Recorder;
use crate::status::server::Server;
use crate::status::{CmStats, Status};
use crate::worker::{self, Bell, Thread};
use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;
use trunkline_conn::control::ControlKind;
use trunkline_conn::src::Counters as DeliveryCounters;
use trunkline_conn::time::Instant;
use trunkline_dataplane::{Port, PortCounters, UdpConfig, UdpPort};
use trunkline_qpmap::{Counters, Event, LiveObjects, VerbsError};
use trunkline_wire::{Gid, Workers};

/// Packets that a shared connection may have in flight.
const WINDOWS: RangeInclusive<u16> = 64..=4096;
/// Least that a node must be able to send at once: headers and some payload.
const MIN_DATAGRAM: u32 = 256;
/// Connections of a pool.
const POOLS: RangeInclusive<u32> = 1..=254;
/// Peers asked at once.
const ASKS: RangeInclusive<u32> = 1..=65_536;
/// Source ports beside 4791.
const MAX_EXTRA_SOURCE_PORTS: usize = 7;

/// A software RNIC. Clones name the same node; it stops when the last handle to it, its QPs, CQs
/// and regions is gone.
#[derive(Clone, Debug)]
pub struct Node {
    pub(crate) shared: Arc<Shared>,
}

/// Who drives a node.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Drive {
    /// The program, by calling [`Node::poll`].
    Inline,
    /// A thread of the node's own; it sleeps when there is nothing to do.
    #[default]
    Threaded,
}

/// Sets up a [`Node`].
#[derive(Debug)]
pub struct Builder {
    address: IpAddr,
    source_ports: usize,
    workers: u8,
    drive: Drive,
    clock: Clock,
    config: CoreConfig,
    control: Option<ControlKind>,
    seed: Option<u64>,
    status: Option<bool>,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
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
    /// The address of its port; loopback if not set.
    #[must_use]
    pub const fn address(mut self, address: IpAddr) -> Self {
        self.address = address;
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

    /// Source ports beside 4791 that multipath connections may use, 0 to 7.
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
    pub const fn asks(mut self, peers: u32) -> Self {
        self.config.asks = peers;
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

    /// Congestion control of shared connections. If not set: by delay, with patience for the kernel
    /// on UDP sockets; none on lossless ports.
    #[must_use]
    pub const fn control(mut self, control: ControlKind) -> Self {
        self.control = Some(control);
        self
    }

    /// Rate of the link in bits per second, if it should pace by it.
    #[must_use]
    pub const fn link_rate(mut self, bits_per_second: u64) -> Self {
        self.config.engine.link_rate_bps = Some(bits_per_second);
        self
    }

    /// Packets a shared connection may have in flight: a power of two, 64 to 4096.
    #[must_use]
    pub const fn window(mut self, packets: u16) -> Self {
        self.config.engine.window = packets;
        self
    }

    /// A peer that acknowledges nothing for so long is gone.
    #[must_use]
    pub fn peer_timeout(mut self, timeout: Duration) -> Self {
        self.config.engine.dead_after_ns = timeout.as_nanos() as u64;
        self
    }

    /// Idle connections beyond the first of a pool close after so long.
    #[must_use]
    pub fn idle_timeout(mut self, timeout: Duration) -> Self {
        self.config.idle_after_ns = timeout.as_nanos() as u64;
        self
    }

    /// Largest datagram (BTH to ICRC) it sends, in bytes, if less than its port carries; at least
    /// 256.
    #[must_use]
    pub const fn max_datagram(mut self, bytes: u32) -> Self {
        self.config.max_datagram = bytes;
        self
    }

    /// Bytes of packets that may wait for an earlier one of their QP.
    #[must_use]
    pub const fn staging(mut self, bytes: usize) -> Self {
        self.config.engine.staging_bytes = bytes;
        self
    }

    /// GUID by which peers know it, the same whenever it starts (an EUI-64, say). If not set, each
    /// start draws one. Peers tell a start from the one before by an epoch that is always drawn.
    ///
    /// No two nodes may have the same. A node refuses another that has its own, or that of a peer
    /// behind another address to which it has a connection: QPs towards it fail, and what stands
    /// stays.
    #[must_use]
    pub const fn guid(mut self, guid: u64) -> Self {
        self.config.guid = Some(guid);
        self
    }

    /// Fixes all randomness: for simulation. Otherwise it comes from the operating system.
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

    /// Whether other processes of the same user can watch it ([`crate::status`]). If not set, they
    /// can where it is built on a UDP socket and nobody else has taken the name for that.
    #[must_use]
    pub const fn status(mut self, offered: bool) -> Self {
        self.status = Some(offered);
        self
    }

    /// A node on a UDP socket.
    ///
    /// # Errors
    /// A setting out of range; an address that cannot be bound: where another process owns the
    /// port, the error names it.
    pub fn build(mut self) -> Result<Node, Error> {
        self.check()?;
        let config = UdpConfig {
            extra_source_ports: self.source_ports,
            ..UdpConfig::new(self.address)
        };
        let group = UdpPort::open_group(&config, self.all_workers()?)?;
        let ports = group
            .into_iter()
            .map(|port| Box::new(port) as Box<dyn Port + Send>);
        self.config.engine.control = self.control.unwrap_or(ControlKind::HostDelay);
        let default = self.status.is_none();
        self.status = self.status.or(Some(true));
        self.finish(ports.collect(), default)
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
        self.finish(ports, false)
    }

    /// A node on `ports`; it starts without telling others of it where it `may`.
    fn finish(mut self, ports: Vec<Box<dyn Port + Send>>, may: bool) -> Result<Node, Error> {
        self.check()?;
        let workers = self.all_workers()?;
        if ports.len() != usize::from(workers.count()) {
            let (what, value) = ("ports", ports.len() as u64);
            return Err(VerbsError::BadAttribute { what, value }.into());
        }
        let seed = match self.seed {
            Some(seed) => seed,
            None => system_random()?,
        };
        if let Some(control) = self.control {
            self.config.engine.control = control;
        } else if ports.iter().all(|port| port.capabilities().lossless) {
            self.config.engine.control = ControlKind::None;
        }
        self.config.engine.address = self.address;
        self.config.engine.seed = seed;
        let bells: Vec<_> = ports.iter().map(|_| Arc::new(Bell::default())).collect();
        let cores = Core::all(&self.config, workers, &self.clock, ports, &bells);
        let recorders: Vec<_> = cores
            .iter()
            .map(|core| Arc::clone(&core.recorder))
            .collect();
        let status = match self.status {
            Some(true) => match offer(self.address, recorders) {
                Err(_) if may => None,
                server => Some(server?),
            },
            _ => None,
        };
        let seats = cores.into_iter().zip(bells);
        let seats = seats.map(|(core, bell)| Arc::new(Seat::new(core, bell)));
        let mut shared = Shared::new(workers, self.address.into(), seats.collect());
        shared.status = status;
        if self.drive == Drive::Threaded {
            for seat in &shared.seats {
                shared.threads.push(Thread::start(seat)?);
            }
        }
        Ok(Node {
            shared: Arc::new(shared),
        })
    }

    fn all_workers(&self) -> Result<Workers, Error> {
        let (what, value) = ("workers", self.workers.into());
        let workers = Workers::new(self.workers);
        Ok(workers.ok_or(VerbsError::BadAttribute { what, value })?)
    }
}

impl Builder {
    /// Whether every setting is in its range.
    fn check(&self) -> Result<(), Error> {
        let (window, datagram) = (self.config.engine.window, self.config.max_datagram);
        let settings = [
            (
                "window",
                window.into(),
                window.is_power_of_two() && WINDOWS.contains(&window),
            ),
            ("max_datagram", datagram.into(), datagram >= MIN_DATAGRAM),
            (
                "pool",
                self.config.pool.into(),
                POOLS.contains(&self.config.pool),
            ),
            (
                "asks",
                self.config.asks.into(),
                ASKS.contains(&self.config.asks),
            ),
            (
                "extra_source_ports",
                self.source_ports as u64,
                self.source_ports <= MAX_EXTRA_SOURCE_PORTS,
            ),
        ];
        match settings.into_iter().find(|(.., good)| !good) {
            Some((what, value, _)) => Err(VerbsError::BadAttribute { what, value }.into()),
            None => Ok(()),
        }
    }
}

/// Lets other processes ask how the node is.
fn offer(address: IpAddr, recorders: Vec<Arc<Recorder>>) -> Result<Server, Error> {
    let started = std::time::Instant::now();
    Server::start(address, move || {
        let mut cm = CmStats::default();
        recorders
            .iter()
            .for_each(|recorder| recorder.add_to(&mut cm));
        Status {
            address,
            pid: std::process::id(),
            uptime_ns: started.elapsed().as_nanos() as u64,
            cm,
        }
    })
}

fn system_random() -> Result<u64, Error> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|e| Error::system("getrandom")(e.into()))?;
    Ok(u64::from_ne_bytes(bytes))
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

    /// Whether the program drives it.
    pub fn is_inline(&self) -> bool {
        self.shared.threads.is_empty()
    }

    /// Its workers. The worker of a QP shows in its number.
    pub fn workers(&self) -> Workers {
        self.shared.workers
    }

    /// One round of all workers of an inline node: takes packets in, sends packets, runs timers,
    /// publishes completions. Gives whether anything happened. A threaded node needs no polling;
    /// calling it there is harmless.
    ///
    /// # Errors
    /// The port does not work any more.
    pub fn poll(&self) -> Result<bool, Error> {
        let mut any = false;
        for seat in &self.shared.seats {
            any |= seat.core_for_worker().poll()?;
        }
        Ok(any)
    }

    /// The same of one worker, from 0: for programs with a thread for each.
    ///
    /// # Errors
    /// The port does not work any more.
    ///
    /// # Panics
    /// There is no such worker.
    pub fn poll_worker(&self, worker: u8) -> Result<bool, Error> {
        Ok(self.shared.seat(worker).core_for_worker().poll()?)
    }

    /// Blocks an inline node until a packet comes, a timer is due, or `timeout` is over. Returns at
    /// once when there is something to do.
    ///
    /// # Errors
    /// The port does not work any more.
    pub fn wait(&self, timeout: Duration) -> Result<(), Error> {
        let seats: Vec<&Seat> = self.shared.seats.iter().map(|seat| &**seat).collect();
        worker::wait(&seats, timeout)
    }

    /// When a timer of an inline node is due next, by its clock.
    pub fn next_timeout(&self) -> Option<Instant> {
        let seats = self.shared.seats.iter();
        seats.filter_map(|seat| seat.core().next_timeout()).min()
    }

    /// The same of one worker, from 0.
    ///
    /// # Panics
    /// There is no such worker.
    pub fn worker_timeout(&self, worker: u8) -> Option<Instant> {
        self.shared.seat(worker).core().next_timeout()
    }

    /// Whether an inline node has something to do right now, apart from packets that come in.
    pub fn is_busy(&self) -> bool {
        let mut seats = self.shared.seats.iter();
        seats.any(|seat| seat.core().is_busy())
    }

    /// The same of one worker, from 0.
    ///
    /// # Panics
    /// There is no such worker.
    pub fn is_worker_busy(&self, worker: u8) -> bool {
        self.shared.seat(worker).core().is_busy()
    }

    /// Allocates a protection domain.
    pub fn alloc_pd(&self) -> Pd {
        let id = self.shared.as_one(|core| Ok(core.engine.alloc_pd()));
        let id = id.expect("there is always room for one more");
        Pd(Arc::new(PdInner {
            node: Arc::clone(&self.shared),
            id,
        }))
    }

    /// Creates a completion queue for `depth` completions.
    ///
    /// # Errors
    /// A depth of 0 or too large.
    pub fn create_cq(&self, depth: u32) -> Result<Cq, Error> {
        Cq::create(&self.shared, depth)
    }

    /// Opens a shared connection to the node at `peer`, for the program itself: QPs use it only
    /// where they are bound to it. It is open when [`Connection::state`] says so.
    ///
    /// # Errors
    /// Too many connections.
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

    /// The next asynchronous event (`ibv_get_async_event(3)`, without blocking).
    pub fn poll_event(&self) -> Option<Event> {
        let mut seats = self.shared.seats.iter();
        seats.find_map(|seat| seat.core().events.pop_front())
    }

    /// What the engine counted.
    pub fn counters(&self) -> Counters {
        self.shared
            .sum(|core| *core.engine.counters(), Counters::add)
    }

    /// How the capture of management datagrams goes, if there is one.
    pub fn capture_state(&self) -> Option<CaptureState> {
        let capture = self.shared.seat(0).core().capture.clone();
        capture.map(|capture| capture.state())
    }

    /// Whether other processes of the same user can watch it.
    pub fn is_watchable(&self) -> bool {
        self.shared.status.is_some()
    }

    /// What its connection management does, and how long each step takes. Cheap: the node goes on
    /// meanwhile.
    pub fn cm_stats(&self) -> CmStats {
        let mut stats = CmStats::default();
        for seat in &self.shared.seats {
            let recorder = Arc::clone(&seat.core().recorder);
            recorder.add_to(&mut stats);
        }
        stats
    }

    /// What the connection management of each of its workers dropped or refused, by reason.
    pub fn cm_counters(&self) -> Vec<CmCounters> {
        let seats = self.shared.seats.iter();
        seats.map(|seat| seat.core().cm_counters()).collect()
    }

    /// What all its shared connections counted, those that are gone included.
    pub fn delivery_counters(&self) -> DeliveryCounters {
        let of = |core: &Core| core.engine.delivery_counters();
        self.shared.sum(of, DeliveryCounters::add)
    }

    /// What the port counted.
    pub fn port_counters(&self) -> PortCounters {
        self.shared
            .sum(|core| core.port.counters(), PortCounters::add)
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
        self.shared.sum(Core::state_bytes, StateBytes::add)
    }
}
