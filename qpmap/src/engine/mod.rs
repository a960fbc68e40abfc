//! The engine of one worker: QPs, the connections they share, and the packets between the two.
//!
//! Everything is owned by one thread and driven from outside, like the floors below: packets and
//! time come in through `handle_*`, packets go out through [`Engine::poll_transmit`], news through
//! [`Engine::poll_event`].
//!
//! | file | what it does |
//! | --- | --- |
//! | `verbs`, `changes`, `query`, `resources` | what programs ask for: QPs; regions, CQs, SRQs |
//! | `qps` | the owner of QPs: their records, their numbers, which numbers rest |
//! | `completions` | the owner of CQs: who uses them, what is not published, which are in error |
//! | `srq` | the owner of SRQs, which workers share: what is posted, who uses them, their limits |
//! | `links` | the owner of connections: their records, their numbers, their peers, their pools |
//! | `connections`, `peers` | how they are opened and end, and what ends with them |
//! | `path_mtu` | how large packets may be on the way to a peer |
//! | `flows` | the owner of flows: their records, groups, turns, clocks |
//! | `attach` | which connection a flow uses, and how it moves |
//! | `binding` | what one end of a pair of QPs knows of the other, and what follows |
//! | `binds`, `early` | BINDs and consent: how QPs of two nodes find each other |
//! | `ending`, `endings`, `leaving` | how they hear that the other is gone, and what follows |
//! | `requester` | work requests become messages; answers become completions |
//! | `tenants` | the owner of tenants: who QPs belong to, and how much of a connection each gets |
//! | `schedule` | the scheduler: whose turn it is, and who shares the room of a full port |
//! | `transmit` | a turn of a connection: which packet goes next |
//! | `send` | packets of requests, responses and control messages; what is sent again |
//! | `routing`, `routes` | QPs that programs route themselves; the table of routes |
//! | `dormancy` | flows of routes that nothing happens on |
//! | `backlog` | work for many flows, some in each round |
//! | `build` | headers, payload, ICRC of one packet |
//! | `packet` | one packet taken apart |
//! | `burst` | datagrams one right after another, and what one says about the next |
//! | `receive` | from a datagram to the flow it is for |
//! | `look_ahead` | what the entries of a packet are about, read before they are taken up |
//! | `responder` | a peer's requests: order, staging, execution, answers |
//! | `requests` | the owner of work requests: in posting order, in flows, READs among them |
//! | `coverage` | which bytes of a message have come |
//! | `responses` | the owner of responses on their way |
//! | `inbound` | the owner of messages that come in: those being put together, staged packets |
//! | `control_messages`, `ack_delay` | answers and BINDs, batched; how long they wait for company |
//! | `control` | the owner of what such packets hold, and of what is told where there is no flow |
//! | `pairing` | the owner of pairs that do not talk: QPs and BINDs that wait, QPs that ended |
//! | `waiting` | QPs and flows without a connection yet, or any more |
//! | `watch` | the QP's own clock: what waits for its peer in vain |
//! | `ibta` | QPs with an IBTA connection of their own, UC and UD |
//! | `posted`, `rx`, `tx`, `seeded` | the owners of what stays from one call to the next |
//! | `events`, `trace` | what the node hears, and those who only watch |

mod ack_delay;
mod attach;
mod backlog;
mod binding;
mod binds;
mod build;
mod burst;
mod changes;
mod completions;
mod connections;
mod contents;
mod control;
mod control_messages;
mod counters;
mod coverage;
mod dormancy;
mod early;
mod ending;
mod endings;
mod events;
mod execute;
mod flows;
mod ibta;
mod in_vain;
mod inbound;
mod leaving;
mod links;
mod look_ahead;
mod own_memory;
mod pack;
mod packet;
mod packs;
mod pairing;
mod path_mtu;
mod peers;
mod posted;
mod qp;
mod qps;
mod query;
mod receive;
mod requester;
mod requests;
mod resources;
mod responder;
mod responses;
mod routes;
mod routing;
mod rx;
mod schedule;
mod seeded;
mod send;
mod srq;
mod state_bytes;
mod tenants;
mod timer;
mod trace;
mod transmit;
mod tx;
mod unpack;
mod verbs;
mod waiting;
mod watch;

pub use burst::Burst;
pub use changes::Changes;
pub use completions::{CqId, Indexed};
pub use connections::{ConnectionParams, ConnectionStats};
pub use counters::{Count, Counters, LiveCounters};
pub use links::PeerIdentity;
pub use qp::{Attributes, FIRST_MSN, LAST_WQE, Place, QpInit, QpQueues};
pub use srq::{SharedReceives, SrqAttributes, SrqId};
pub use state_bytes::{LiveObjects, StateBytes};
pub use tenants::Tenant;
pub use trace::{Cause, Trace};
pub use verbs::{QpModify, check_address};

use crate::cq::Notifications;
use crate::doorbell::{Apart, Bells, Doorbells};
use crate::error::VerbsError;
use crate::hash::Keyed;
use crate::key::Secret24;
use crate::mapping::Mapping;
use crate::regions::{RegionTable, Regions};
use crate::ring::RingMemory;
use crate::slab::NONE;
use crate::state::QpState;
use backlog::{Backlog, PER_ROUND};
use completions::Completions;
use control::Control;
use events::Events;
use flows::Flows;
use ibta::IbtaConns;
use inbound::Inbound;
use links::Links;
use pairing::Pairing;
use posted::{Bell, Posted};
use qp::Cold;
use qps::Qps;
use requests::Requests;
use responses::Responses;
use rx::Rx;
use srq::Srqs;
use std::net::IpAddr;
use std::sync::Arc;
use timer::Timer;
use trunkline_conn::control::CongestionControl;
use trunkline_conn::delivery::{self, Policy};
use trunkline_conn::host::QpEvent;
use trunkline_conn::mem::RegionMemory;
use trunkline_conn::mem::Responder;
use trunkline_conn::secret::{Purpose, Secret};
use trunkline_conn::time::Instant;
use trunkline_conn::wheel::{Step, Wheel};
use trunkline_wire::{Gid, IpFields, Path, Qpn, ROCE_PORT, Worker};
use tx::Tx;

/// Timers that run, or are sorted, in a round: there may be one of each QP due at once.
const MOST_TIMERS: u32 = 1024;
/// Bells that are heard in a round, and requests that are taken up with them: each QP may have
/// rung. One in error is flushed at once, of what its rings have room for.
const MOST_BELLS: u32 = 1024;

/// What the floors above provide: memory behind keys, memory of rings.
pub trait Platform: 'static {
    /// Registered memory.
    type RegionMemory: RegionMemory;
    /// Memory of rings.
    type RingMemory: RingMemory;
}

/// How an [`Engine`] is set up.
#[derive(Clone, Debug)]
pub struct Config {
    /// Address of the port.
    pub address: IpAddr,
    /// UDP source ports of its packets, 1 to 8; the first is used unless a connection is multipath.
    pub source_ports: Vec<u16>,
    /// Largest datagram (BTH to ICRC) the port carries, in bytes.
    pub datagram: u32,
    /// Congestion control of shared connections, unless they say otherwise.
    pub control: CongestionControl,
    /// Rate of the link in bits per second, where it is known.
    pub link_rate_bps: Option<u64>,
    /// Packets a shared connection may have in flight: a power of two in `64 ..= 65536`.
    pub window: u32,
    /// A shared connection is dead when nothing in flight was acknowledged for so long, in ns.
    pub dead_after_ns: u64,
    /// A QP on shared connections waits for its peer at least so long before it ends, in ns: time
    /// for another connection to take over.
    pub failover_grace_ns: u64,
    /// A silent shared connection is probed after so long, in ns.
    pub keep_alive_ns: u64,
    /// Longest an acknowledgement waits for company, in ns.
    pub max_ack_delay_ns: u64,
    /// Bytes of packets that may wait for an earlier one of their QP, overhead included. A lone
    /// QP pair gets a quarter of it, a lone peer half.
    pub staging_bytes: usize,
    /// Most QPs.
    pub max_qps: u32,
    /// From which all random numbers are drawn. The default is no secret: who makes an engine
    /// brings one.
    pub secret: Secret,
    /// Which worker of its node it is.
    pub worker: Worker,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            address: IpAddr::V4(std::net::Ipv4Addr::LOCALHOST),
            source_ports: vec![trunkline_wire::ROCE_PORT],
            datagram: 4096 + build::OVERHEAD,
            control: CongestionControl::Delay,
            link_rate_bps: None,
            window: delivery::MAX_WINDOW,
            dead_after_ns: 2 * trunkline_conn::time::SECOND,
            failover_grace_ns: 3 * trunkline_conn::time::SECOND,
            keep_alive_ns: 10 * trunkline_conn::time::SECOND,
            max_ack_delay_ns: 100 * trunkline_conn::time::MICROSECOND,
            staging_bytes: 8 << 20,
            max_qps: 1 << 22,
            secret: Secret::from_seed(0),
            worker: Worker::ONLY,
        }
    }
}

/// Index of a shared connection of this engine.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct ConnId {
    pub(crate) index: u32,
    pub(crate) serial: u32,
}

impl ConnId {
    /// Both parts of it, to sort by.
    pub const fn key(self) -> (u32, u32) {
        (self.index, self.serial)
    }
}

/// Something that an engine tells its node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Event {
    /// A QP is connected to one to whose worker no connection leads: ask.
    NeedsConnection {
        /// The address.
        peer: Gid,
        /// The QP there.
        remote: Qpn,
    },
    /// A connection of a pool carries many flows: another one may help.
    Crowded {
        /// Address of its peer.
        peer: Gid,
        /// A QP there that one of them leads to.
        remote: Qpn,
    },
    /// A packet for a connection that is still being opened: whoever was offered this number and
    /// token has accepted. It comes again.
    Early {
        /// Number of our end.
        connection: Qpn,
        /// Token that it carried.
        token: u32,
        /// From where it came.
        source: Gid,
    },
    /// Something happened to a QP.
    Qp {
        /// Its number.
        qpn: Qpn,
        /// What.
        event: QpEvent,
    },
    /// The QP that one is connected to works: it has agreed to what is sent to it, or sent
    /// something itself. For the node, whose connection managers may wait for a word of the peer.
    QpHeard {
        /// Number of the QP here.
        qpn: Qpn,
    },
    /// The QP which one of ours is connected to is gone, or in another life: it left in order, or
    /// failed while ours had nothing to send. Ours stays as it is; its next request fails, or goes
    /// to that life. Once for each life of ours.
    PeerQpGone {
        /// Number of the QP here.
        qpn: Qpn,
    },
    /// A QP went to error, and not because its program said so: for the node, which ends its
    /// connection. Programs hear of it by completions, and by `Qp` events where verbs have one.
    QpFailed {
        /// Its number.
        qpn: Qpn,
        /// Its CQ, where that overran and so ended it.
        cq: Option<CqId>,
    },
    /// A completion came when its CQ was full: the CQ is in error for good (`IBV_EVENT_CQ_ERR`),
    /// and so are its QPs, each with its own event. Once for each CQ.
    CqError {
        /// The CQ.
        cq: CqId,
    },
    /// The receives that were posted to an SRQ and not taken were fewer than its limit
    /// (`IBV_EVENT_SRQ_LIMIT_REACHED`), which is not armed any more.
    SrqLimitReached {
        /// The SRQ.
        srq: SrqId,
    },
    /// The ring of an SRQ holds what cannot be (`IBV_EVENT_SRQ_ERR`): nothing more is taken from
    /// it, and a QP that needs a receive goes to ERROR. Once for each SRQ.
    SrqError {
        /// The SRQ.
        srq: SrqId,
    },
    /// A shared connection is gone. QPs that the engine manages move by themselves.
    ConnectionDown {
        /// The connection.
        conn: ConnId,
        /// Address of its peer.
        peer: Gid,
        /// Of flows that wait for another connection, where there are any, the QP that one leads
        /// to.
        stranded: Option<Qpn>,
        /// What the owner had [noted](Engine::set_mark) of it.
        mark: u32,
    },
    /// A QP finished moving to another connection.
    Moved {
        /// The QP.
        qpn: Qpn,
        /// Where it is now.
        conn: ConnId,
    },
}

/// Something with packets to send.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Ready {
    Conn(u32),
    Ibta(u32),
}

/// One worker's QPs and connections.
pub struct Engine<P: Platform> {
    pub(crate) config: Config,
    pub(crate) regions: Regions<P::RegionMemory>,
    srqs: Srqs<P::RingMemory>,
    completions: Completions<P::RingMemory>,
    qps: Qps<P::RingMemory>,
    plains: IbtaConns,
    flows: Flows,
    links: Links,
    pairing: Pairing,
    posted: Posted<P::RingMemory>,
    requests: Requests,
    responses: Responses,
    inbound: Inbound,
    control: Control,
    backlog: Backlog,
    tx: Tx,
    rx: Rx,
    timers: Wheel,
    events: Events,
    counters: Arc<LiveCounters>,
}

impl<P: Platform> std::fmt::Debug for Engine<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("address", &self.config.address)
            .field("qps", &self.qps.len())
            .field("connections", &self.links.len())
            .finish_non_exhaustive()
    }
}

impl<P: Platform> Engine<P> {
    /// An engine with no QPs and no connections, and regions of its own.
    pub fn new(config: Config) -> Self {
        let regions = RegionTable::new(&config.secret.derive(Purpose::Regions));
        Self::sharing(config, &regions)
    }

    /// An engine with no QPs and no connections, one of those of a node that share its regions.
    pub fn sharing(config: Config, regions: &RegionTable<P::RegionMemory>) -> Self {
        let (worker, secret) = (config.worker, &config.secret);
        let qpns = Secret24::new(secret.stream(Purpose::Qpns), worker);
        let pairs = Keyed::of(secret.stream(Purpose::Routes));
        let coverage = Keyed::of(secret.stream(Purpose::Coverage));
        let policy = Policy {
            link_rate_bps: config.link_rate_bps,
            max_ack_delay_ns: config.max_ack_delay_ns,
            dead_after_ns: config.dead_after_ns,
            keep_alive_ns: config.keep_alive_ns,
            ..Policy::default()
        };
        let path = Path {
            src: config.address,
            dst: config.address,
            src_port: ROCE_PORT,
            traffic_class: 0,
            ip: IpFields::DEFAULT,
        };
        Self {
            regions: regions.view(),
            srqs: Srqs::new(),
            completions: Completions::new(),
            qps: Qps::new(qpns, config.max_qps),
            plains: IbtaConns::default(),
            flows: Flows::new(pairs),
            links: Links::new(secret, worker, pairs, policy),
            pairing: Pairing::new(pairs),
            posted: Posted::new(),
            requests: Requests::new(coverage),
            responses: Responses::default(),
            inbound: Inbound::new(config.staging_bytes, coverage),
            control: Control::new(pairs),
            backlog: Backlog::default(),
            tx: Tx::new(path),
            rx: Rx::new(path),
            timers: Wheel::new(),
            events: Events::new(),
            counters: Arc::default(),
            config,
        }
    }

    /// Doorbells: programs ring them after posting.
    pub const fn doorbells(&self) -> &Arc<Doorbells> {
        self.posted.doorbells()
    }

    /// The table QP -> connection, to read without locks.
    pub const fn mapping(&self) -> &Arc<Mapping> {
        self.qps.mapping()
    }

    /// UDP source ports that a connection may spread its packets over.
    pub const fn source_ports(&self) -> usize {
        self.config.source_ports.len()
    }

    /// What was counted so far.
    pub fn counters(&self) -> Counters {
        self.counters.read()
    }

    /// Its counts, for others to read while it works.
    pub const fn live_counters(&self) -> &Arc<LiveCounters> {
        &self.counters
    }

    /// The next piece of news.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop()
    }

    /// Whether [`poll_event`](Self::poll_event) would give something.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due next, or earlier where many timers are
    /// about as near. May change after any other call.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Whether packets may be waiting to go out: poll again soon.
    pub fn is_busy(&self) -> bool {
        !self.tx.schedule().is_empty() || self.has_pending_closes() || self.has_work()
    }

    /// The same for what needs no room in the port: programs have posted something, or packets that
    /// came have not been taken up yet.
    pub fn has_work(&self) -> bool {
        !self.posted.is_empty()
            || self.inbound.staging().is_busy()
            || !self.flows.is_idle()
            || !self.backlog.is_empty()
    }

    /// Whether programs have posted something that was not taken up yet.
    pub fn has_posted(&self) -> bool {
        !self.posted.is_empty()
    }

    /// Runs timers that are due, as many as a round has time for: where there are more
    /// [`poll_timeout`](Self::poll_timeout) is still due. Early or repeated calls are harmless.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.completions.begin(now);
        for _ in 0..MOST_TIMERS {
            match self.timers.step(now) {
                Step::Fired(key) => self.timer_fired(now, Timer::from_key(key)),
                Step::Sorted => {}
                Step::Idle => return,
            }
        }
    }

    fn timer_fired(&mut self, now: Instant, timer: Timer) {
        match timer {
            Timer::Conn(conn) => self.conn_timeout(now, conn),
            Timer::Control(conn) => self.control_timeout(conn),
            Timer::Rnr(flow) => self.rnr_over(flow),
            Timer::Ask(flow) => self.ask_again(flow),
            Timer::Ibta(ibta) => self.ibta_timeout(now, ibta),
            Timer::Widen(peer) => self.widen(now, peer),
            Timer::Watch(flow) => self.watch_over(now, flow),
            Timer::Trim => self.trim(now),
            Timer::RecentBinds => self.time_binds(now),
            Timer::Calendar => self.look_at_idle(now),
            Timer::ForgetCounts => self.forget_counts(now),
            Timer::Dormancy => self.flows.routes_mut().begin_looks(),
        }
    }

    /// Makes completions visible to programs; those that asked for it are woken when what this
    /// gives is dropped. Called once per burst, so that a cache line goes to the program once.
    pub fn publish(&mut self) -> Notifications {
        self.completions.publish()
    }

    /// Whether [`publish`](Self::publish) would show programs something.
    pub fn has_completions(&self) -> bool {
        self.completions.are_unpublished()
    }

    /// Takes in what programs posted since the last call, as much as a round has time for, and goes
    /// on with what is to be done for many QPs.
    pub fn handle_doorbells(&mut self) {
        self.carry_on();
        let mut left = MOST_BELLS;
        while left > 0
            && let Some(qp) = self.posted.next()
        {
            let taken = self.on_doorbell(qp, left.min(PER_ROUND));
            left = left.saturating_sub(taken.max(1));
        }
        self.hear_programs(MOST_BELLS);
    }

    /// Takes in what programs of other processes posted, at most so much: each has its turn.
    fn hear_programs(&mut self, mut left: u32) {
        for _ in 0..self.posted.programs().heard() {
            if left == 0 {
                // The next round begins with those that had no turn.
                return;
            }
            let Some(mut turn) = self.posted.programs().begin() else {
                return;
            };
            while let Some(bell) = self.posted.programs().next(&mut turn) {
                let taken = match bell {
                    Bell::Qp(qp) => self.on_doorbell(qp, turn.left()),
                    Bell::Nothing => {
                        self.counters.bad_doorbell.add(1);
                        1
                    }
                };
                turn.spend(taken.max(1));
                left = left.saturating_sub(taken.max(1));
            }
            self.posted.programs().end(turn);
        }
    }

    /// The same for all that they posted before, however long that takes: for a node that ends.
    pub fn handle_all_doorbells(&mut self) {
        self.carry_on();
        // Twice: a bell may ring again behind a sweep that is under way.
        for _ in 0..2 * self.qps.len() {
            let Some(qp) = self.posted.next() else {
                break;
            };
            self.on_doorbell(qp, u32::MAX);
        }
        self.hear_programs(u32::MAX);
    }

    /// A program of another process rings these bells from now on, each for the QP that it is
    /// [given](Self::assign_bell). Returns what the program is called.
    pub fn add_program(&mut self, bells: Bells<Apart<P::RingMemory>>) -> u32 {
        self.posted.programs().add(bells)
    }

    /// Lets a bell of a program stand for a QP; `None`: for none any more.
    ///
    /// # Errors
    /// No such program, bell or QP.
    pub fn assign_bell(
        &mut self,
        program: u32,
        bell: u32,
        qpn: Option<Qpn>,
    ) -> Result<(), VerbsError> {
        let qp = qpn.map(|qpn| self.known(qpn)).transpose()?;
        self.posted.programs().assign(program, bell, qp)
    }

    /// A program found that nobody looked when it [rang](Bells::ring_and_look): looks from now on.
    ///
    /// # Errors
    /// No such program.
    pub fn hear_program(&mut self, program: u32) -> Result<(), VerbsError> {
        self.posted.programs().hear(program)
    }

    /// A program is gone: looks at its bells no more.
    ///
    /// # Errors
    /// No such program.
    pub fn remove_program(&mut self, program: u32) -> Result<(), VerbsError> {
        self.posted.programs().remove(program)
    }

    pub(crate) fn qp_index(&self, qpn: Qpn) -> Option<u32> {
        self.qps.find(qpn)
    }

    pub(crate) fn cold(&self, qp: u32) -> &Cold {
        self.qps.cold(qp)
    }

    pub(crate) fn cold_mut(&mut self, qp: u32) -> &mut Cold {
        self.qps.cold_mut(qp)
    }

    /// Something happened to a QP. Of what ends it only the first is told: whoever sends on to a QP
    /// in error must not crowd out the news of others.
    pub(crate) fn qp_event(&mut self, qp: u32, event: QpEvent) {
        let ends = [QpEvent::RequestError, QpEvent::AccessError, QpEvent::Fatal];
        if self.qps[qp].state == QpState::Error && ends.contains(&event) {
            return;
        }
        let qpn = self.qp_number(qp);
        self.events.push(Event::Qp { qpn, event });
    }

    pub(crate) fn qp_number(&self, qp: u32) -> Qpn {
        self.qps.number_at(qp)
    }

    #[inline]
    pub(crate) fn responder(&self, qp: u32) -> Responder {
        self.qps.responder(qp)
    }
}

const _: () = assert!(NONE == u32::MAX);
