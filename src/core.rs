//! The heart of a node: engine, connection manager and port, joined by one loop.

use crate::clock::Clock;
use crate::peers::{Ask, Peers};
use crate::platform::Embedded;
use std::collections::VecDeque;
use trunkline_cm::{Manager, Outgoing, gsi};
use trunkline_conn::control::ControlKind;
use trunkline_conn::ingress::Arrival;
use trunkline_conn::time::{Instant, SECOND};
use trunkline_dataplane::{Port, PortError};
use trunkline_qpmap::{Config, Engine, Event};
use trunkline_wire::{MAD_LEN, Path, Psn, icrc};

/// Datagrams taken from the port per round.
const BURST: usize = 256;
/// Most asynchronous events that wait for the program.
const MAX_EVENTS: usize = 65_536;

/// How a [`Core`] is set up.
#[derive(Clone, Debug)]
pub(crate) struct CoreConfig {
    pub(crate) engine: Config,
    /// Most connections of a pool.
    pub(crate) pool: u32,
    /// Idle connections beyond the first of a pool close after so long.
    pub(crate) idle_after_ns: u64,
    /// Largest datagram, if less than the port carries.
    pub(crate) max_datagram: u32,
}

impl Default for CoreConfig {
    fn default() -> Self {
        Self {
            engine: Config::default(),
            pool: 4,
            idle_after_ns: 30 * SECOND,
            max_datagram: u32::MAX,
        }
    }
}

/// Everything a node's thread owns.
pub(crate) struct Core {
    pub(crate) engine: Engine<Embedded>,
    pub(crate) port: Box<dyn Port + Send>,
    pub(crate) clock: Clock,
    pub(crate) events: VecDeque<Event>,
    pub(crate) peers: Peers,
    manager: Manager,
    random: u64,
    psn: Psn,
    bad_management: u64,
    /// A message that the port had no room for.
    unsent: Option<Outgoing>,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core").field("engine", &self.engine).finish_non_exhaustive()
    }
}

impl Core {
    pub(crate) fn new(mut config: CoreConfig, clock: Clock, port: Box<dyn Port + Send>) -> Self {
        let capabilities = port.capabilities();
        let carried = u32::try_from(capabilities.max_datagram).unwrap_or(u32::MAX);
        config.engine.datagram = carried.min(config.max_datagram).min(65_535);
        if capabilities.lossless {
            config.engine.control = ControlKind::None;
        }
        let mut ports: Vec<u16> = port.source_ports().to_vec();
        if ports.is_empty() {
            ports.push(trunkline_wire::ROCE_PORT);
        }
        config.engine.source_ports = ports;
        let mut random = config.engine.seed ^ 0x6e6f_6465;
        let identity = trunkline_cm::Identity { guid: draw(&mut random), epoch: draw(&mut random) };
        let manager = Manager::new(identity, config.engine.address, draw(&mut random));
        let peers = Peers::new(&config);
        Self {
            engine: Engine::new(config.engine),
            port,
            clock,
            events: VecDeque::new(),
            peers,
            manager,
            psn: Psn::from_wire(draw(&mut random) as u32),
            random,
            bad_management: 0,
            unsent: None,
        }
    }

    pub(crate) fn draw(&mut self) -> u64 {
        draw(&mut self.random)
    }

    /// One round: packets in, timers, new work, packets out, completions. Gives whether anything
    /// happened.
    pub(crate) fn poll(&mut self) -> Result<bool, PortError> {
        let now = self.clock.now();
        let received = self.receive(now)?;
        self.engine.handle_timeout(now);
        self.manager.handle_timeout(now);
        self.engine.handle_doorbells();
        self.pump(now);
        let sent = self.engine.poll_transmit(now, &mut *self.port);
        self.send_management();
        self.port.flush()?;
        self.engine.publish();
        Ok(received > 0 || sent > 0)
    }

    fn receive(&mut self, now: Instant) -> Result<usize, PortError> {
        let Self { engine, manager, port, bad_management, .. } = self;
        port.receive(BURST, &mut |arrival, datagram| {
            if !gsi::is_management(datagram) {
                engine.handle_datagram(now, arrival, datagram);
            } else if let Some(mad) = management(arrival, datagram) {
                manager.handle_mad(now, arrival.path.src, mad);
            } else {
                *bad_management += 1;
            }
        })
    }

    /// Lets engine, connection manager and peers talk until none has news.
    pub(crate) fn pump(&mut self, now: Instant) {
        let Self { engine, manager, peers, events, .. } = self;
        loop {
            let mut idle = true;
            while let Some(event) = engine.poll_event() {
                idle = false;
                let asked = peers.handle_engine(now, engine, manager, &event);
                if asked == Ask::None && events.len() < MAX_EVENTS {
                    events.push_back(event);
                }
            }
            while let Some(event) = manager.poll_event() {
                idle = false;
                peers.handle_manager(now, engine, manager, event);
            }
            if idle {
                break;
            }
        }
        peers.reclaim(now, engine);
    }

    /// Opens a connection for the program.
    pub(crate) fn open_private(
        &mut self,
        now: Instant,
        peer: std::net::IpAddr,
        options: &crate::connection::ConnectionOptions,
    ) -> Option<u64> {
        self.peers.open_private(now, &mut self.engine, &mut self.manager, peer, options)
    }

    fn send_management(&mut self) {
        loop {
            let next = self.unsent.take().or_else(|| self.manager.poll_transmit());
            let Some(message) = next else { return };
            let path = Path {
                src: self.peers.address(),
                dst: message.peer,
                src_port: trunkline_wire::ROCE_PORT,
                traffic_class: 0,
            };
            let Some(slot) = self.port.reserve(&path, gsi::LEN) else {
                self.unsent = Some(message);
                return;
            };
            let out = slot.datagram.first_chunk_mut().expect("exactly that much was reserved");
            gsi::build(&path, slot.identification, self.psn, &message.mad, out);
            self.psn = self.psn.advance(1);
            self.port.commit();
        }
    }

    /// When the next timer is due.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let timers = [
            self.engine.poll_timeout(),
            self.manager.poll_timeout(),
            self.peers.next_reclaim(),
        ];
        timers.into_iter().flatten().min()
    }
}

/// The MAD of a management datagram whose ICRC is right. Foreign peers use identifications that a
/// UDP socket does not see: where the predicted one is wrong, the right one is solved for.
fn management<'a>(arrival: &Arrival, datagram: &'a [u8]) -> Option<&'a [u8; MAD_LEN]> {
    use trunkline_conn::ingress::Identification;
    let mad = gsi::parse(datagram).ok()?;
    let right = icrc::verify(&arrival.path, arrival.identification.guess(), datagram)
        || matches!(arrival.identification, Identification::Predicted(_))
            && icrc::solve_identification(&arrival.path, datagram).is_some();
    right.then_some(mad)
}

/// SplitMix64.
fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
