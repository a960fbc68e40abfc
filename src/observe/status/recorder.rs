//! What one worker's connection management counts and times.

use super::drops::Refusals;
use super::histogram::{Histogram, Times};
use super::peers::{Peers, Unsaid};
use super::{CmStats, Span};
use crate::observe::cm_counters::CmCounters;
use crate::observe::log::{self, Log};
use crate::observe::probes;
use crate::platform::NodePlatform;
use crate::worker::clock::Clock;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use trunkline_cm::rdma::{self, Id, IdPhase, IdStep};
use trunkline_cm::{NodeCm, Phase, Step};
use trunkline_conn::secret::Stream;
use trunkline_conn::time::Instant;
use trunkline_qpmap::{Engine, Trace};

/// One of the counters.
pub(super) type Counter = fn(&CmCounters) -> u64;

/// Those that say that there was too much, with the names under which they are shown.
const OVERLOAD: [(&str, Counter); 8] = [
    ("node_busy", |of| of.nodes.busy),
    ("node_share", |of| of.nodes.unfair),
    ("ib_busy", |of| of.hosts.busy),
    ("ib_share", |of| of.hosts.unfair),
    ("ib_late", |of| of.hosts.late),
    ("backlog", |of| of.rdma.backlog),
    ("backlog_share", |of| of.rdma.unfair),
    ("ids", |of| of.rdma.ids),
];

/// A number that goes up and down.
#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    fn up(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn down(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Written by the worker, read by whoever wants to know, at any time and without locks.
#[derive(Debug)]
pub(crate) struct Recorder {
    pub(crate) log: Log,
    handshakes: [Count; Phase::ALL.len()],
    connections: [Count; Phase::ALL.len()],
    ids: [Count; IdPhase::ALL.len()],
    established: Count,
    qps: Count,
    rebound: Count,
    binding: Count,
    opened: Count,
    down: Count,
    failovers: Count,
    sent: Count,
    received: Count,
    in_line: Count,
    queued: Count,
    overload: [Count; OVERLOAD.len()],
    pub(super) refusals: Refusals,
    pub(super) peers: Peers,
    spans: [Histogram; Span::ALL.len()],
}

impl Recorder {
    /// Writes down how many connections each peer has, from now on.
    pub(crate) fn keep_peers(&self) {
        self.peers.keep();
    }

    /// With everything at nothing.
    pub(crate) fn new(log: Log) -> Self {
        Self {
            log,
            handshakes: Default::default(),
            connections: Default::default(),
            ids: Default::default(),
            established: Count::default(),
            qps: Count::default(),
            rebound: Count::default(),
            binding: Count::default(),
            opened: Count::default(),
            down: Count::default(),
            failovers: Count::default(),
            sent: Count::default(),
            received: Count::default(),
            in_line: Count::default(),
            queued: Count::default(),
            overload: Default::default(),
            refusals: Refusals::default(),
            peers: Peers::default(),
            spans: Default::default(),
        }
    }

    /// From now on it is told everything.
    pub(crate) fn attach(
        self: &Arc<Self>,
        clock: &Clock,
        engine: &mut Engine<NodePlatform>,
        nodes: &mut NodeCm<Stream>,
        rdma: &mut rdma::RdmaCm<Stream>,
    ) {
        engine.observe(watch_engine(self));
        nodes.observe(watch_handshakes(self, clock));
        rdma.observe_ib(watch_connections(self, clock));
        rdma.observe(watch_ids(self, clock));
    }

    /// A step took `ns` nanoseconds.
    pub(crate) fn took(&self, span: Span, ns: u64) {
        self.spans[span as usize].record(ns);
    }

    /// A management datagram left.
    pub(crate) fn message_sent(&self) {
        self.sent.up();
    }

    /// A management datagram came.
    pub(crate) fn message_received(&self) {
        self.received.up();
    }

    /// One more peer has to wait until it is asked; so many do now.
    pub(crate) fn queued(&self, in_line: u64) {
        self.queued.up();
        self.in_line(in_line);
    }

    /// So many peers wait to be asked.
    pub(crate) fn in_line(&self, count: u64) {
        self.in_line.set(count);
    }

    /// What connection management has counted by now.
    pub(crate) fn counted(&self, counters: &CmCounters) {
        self.refusals.set(counters);
        for (count, (_, of)) in self.overload.iter().zip(OVERLOAD) {
            count.set(of(counters));
        }
    }

    /// Adds what it knows to `stats`.
    pub(crate) fn add_to(&self, stats: &mut CmStats) {
        let name = |phase: Phase| phase.name();
        add(&mut stats.handshakes, &Phase::ALL, name, &self.handshakes);
        add(&mut stats.connections, &Phase::ALL, name, &self.connections);
        let name = |phase: IdPhase| phase.name();
        add(&mut stats.ids, &IdPhase::ALL, name, &self.ids);
        for (sum, count) in [
            (&mut stats.established, &self.established),
            (&mut stats.qps, &self.qps),
            (&mut stats.rebound, &self.rebound),
            (&mut stats.binding, &self.binding),
            (&mut stats.opened, &self.opened),
            (&mut stats.down, &self.down),
            (&mut stats.failovers, &self.failovers),
            (&mut stats.sent, &self.sent),
            (&mut stats.received, &self.received),
            (&mut stats.in_line, &self.in_line),
            (&mut stats.queued, &self.queued),
        ] {
            *sum += count.get();
        }
        for (count, (name, _)) in self.overload.iter().zip(OVERLOAD) {
            *stats.overload.entry(name.to_owned()).or_default() += count.get();
        }
        for (span, histogram) in Span::ALL.into_iter().zip(&self.spans) {
            let mut times = Times::default();
            histogram.add_to(&mut times);
            stats
                .steps
                .entry(span.name().to_owned())
                .or_default()
                .add(&times);
        }
    }

    fn step(counts: &[Count], from: usize, to: usize) {
        // What is gone is not counted.
        if from != 0 {
            counts[from].down();
        }
        if to != 0 {
            counts[to].up();
        }
    }

    fn trace(&self, trace: &Trace, binds: &mut Binds) {
        match *trace {
            Trace::Opened { .. } => self.opened.up(),
            Trace::Down { .. } => self.down.up(),
            Trace::Failover { flow, .. } => {
                self.failovers.up();
                binds.fail(flow);
            }
            Trace::BindSent { now, flow, .. } => {
                if binds.begin(flow, now) {
                    self.binding.up();
                }
            }
            Trace::Bound { now, flow, .. } => {
                let bind = binds.end(flow);
                if bind.is_again() {
                    self.rebound.up();
                } else {
                    self.qps.up();
                }
                if let Some(ns) = bind.took(now) {
                    self.binding.down();
                    self.took(Span::Bind, ns);
                }
            }
            Trace::BindRefused { flow, .. } | Trace::Ended { flow } => {
                if binds.end(flow).is_under_way() {
                    self.binding.down();
                }
            }
            Trace::BindReceived { .. } | Trace::Moved { .. } => {}
        }
    }
}

fn add<P: Copy>(
    sums: &mut BTreeMap<String, u64>,
    phases: &[P],
    name: impl Fn(P) -> &'static str,
    counts: &[Count],
) {
    for (phase, count) in phases.iter().zip(counts).skip(1) {
        *sums.entry(name(*phase).to_owned()).or_default() += count.get();
    }
}

/// Where a flow's question for consent stands, in 4 bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Bind(u32);

impl Bind {
    /// The flow has lost a connection since it last heard.
    const AGAIN: u32 = 1 << 31;
    /// Unit of the times: 2^6 ns. They wrap after 2 minutes.
    const TICK: u32 = 6;

    /// When, in 31 bits; 0 says that nothing is under way.
    const fn tick(now: Instant) -> u32 {
        let tick = (now.as_nanos() >> Self::TICK) as u32 & !Self::AGAIN;
        if tick == 0 { 1 } else { tick }
    }

    const fn is_again(self) -> bool {
        self.0 & Self::AGAIN != 0
    }

    const fn is_under_way(self) -> bool {
        self.0 & !Self::AGAIN != 0
    }

    /// Nanoseconds since it was asked, if it was.
    fn took(self, now: Instant) -> Option<u64> {
        let passed = Self::tick(now).wrapping_sub(self.0) & !Self::AGAIN;
        self.is_under_way()
            .then_some(u64::from(passed) << Self::TICK)
    }
}

/// Those of all flows, by their number.
#[derive(Debug, Default)]
struct Binds(Vec<Bind>);

impl Binds {
    fn of(&mut self, flow: u32) -> &mut Bind {
        let at = flow as usize;
        if self.0.len() <= at {
            self.0.resize(at + 1, Bind::default());
        }
        &mut self.0[at]
    }

    /// False where it had asked already.
    fn begin(&mut self, flow: u32, now: Instant) -> bool {
        let bind = self.of(flow);
        let first = !bind.is_under_way();
        if first {
            bind.0 |= Bind::tick(now);
        }
        first
    }

    fn fail(&mut self, flow: u32) {
        self.of(flow).0 |= Bind::AGAIN;
    }

    fn end(&mut self, flow: u32) -> Bind {
        std::mem::take(self.of(flow))
    }
}

/// Times the steps of a manager's connections while they are under way.
#[derive(Debug)]
struct Timing {
    clock: Clock,
    under_way: BTreeMap<u32, UnderWay>,
    /// Between whom, for the log.
    between: &'static str,
}

/// A handshake that is neither settled nor gone.
#[derive(Debug)]
struct UnderWay {
    begun: Instant,
    /// When it came to where it is.
    since: Instant,
    setup: tracing::Span,
}

/// What a change of phase ends.
type Ends = fn(Phase, Phase) -> Option<Span>;

impl Timing {
    fn step(&mut self, recorder: &Recorder, step: &Step, (ends, whole): (Ends, Span)) {
        let (id, now) = (step.id.0, self.clock.now());
        let known = self.under_way.remove(&id);
        if let Some(known) = &known {
            if let Some(span) = ends(step.from, step.to) {
                recorder.took(span, now.since(known.since));
            }
            if step.to == Phase::Established {
                recorder.took(whole, now.since(known.begun));
            }
        }
        if step.to == Phase::Established {
            recorder.established.up();
        }
        let mut known = known.unwrap_or_else(|| UnderWay {
            begun: now,
            since: now,
            setup: recorder.log.setup(self.between, step),
        });
        log::step(&known.setup, step);
        if step.to.is_under_way() {
            known.since = now;
            self.under_way.insert(id, known);
        }
    }
}

const fn node_span(from: Phase, to: Phase) -> Option<Span> {
    match (from, to) {
        (Phase::ReqSent, Phase::Established) => Some(Span::NodeAnswer),
        (Phase::ReqReceived, Phase::RepSent) => Some(Span::NodeDecide),
        (Phase::RepSent, Phase::Established) => Some(Span::NodeConfirm),
        (Phase::DreqSent, Phase::TimeWait) => Some(Span::NodeClose),
        _ => None,
    }
}

const fn ib_span(from: Phase, to: Phase) -> Option<Span> {
    match (from, to) {
        (Phase::ReqSent, Phase::Replied) => Some(Span::IbAnswer),
        (Phase::Replied, Phase::Established) => Some(Span::IbReady),
        (Phase::ReqReceived, Phase::RepSent) => Some(Span::IbDecide),
        (Phase::RepSent, Phase::Established) => Some(Span::IbConfirm),
        (Phase::DreqSent, Phase::TimeWait) => Some(Span::IbClose),
        _ => None,
    }
}

/// Counts and times handshakes between nodes, and fires their probes.
fn watch_handshakes(recorder: &Arc<Recorder>, clock: &Clock) -> impl FnMut(&Step) + use<> {
    let (recorder, mut timing) = (Arc::clone(recorder), timing(clock, "nodes"));
    move |step| {
        probes::node_state(step);
        Recorder::step(&recorder.handshakes, step.from as usize, step.to as usize);
        timing.step(&recorder, step, (node_span, Span::NodeOpen));
    }
}

/// The same for connections and questions of ordinary hosts.
fn watch_connections(recorder: &Arc<Recorder>, clock: &Clock) -> impl FnMut(&Step) + use<> {
    let (recorder, mut timing) = (Arc::clone(recorder), timing(clock, "hosts"));
    move |step| {
        probes::ib_state(step);
        Recorder::step(&recorder.connections, step.from as usize, step.to as usize);
        timing.step(&recorder, step, (ib_span, Span::IbOpen));
    }
}

fn timing(clock: &Clock, between: &'static str) -> Timing {
    Timing {
        clock: clock.clone(),
        under_way: BTreeMap::new(),
        between,
    }
}

/// The same for IDs of RDMA-CM.
fn watch_ids(recorder: &Arc<Recorder>, clock: &Clock) -> impl FnMut(&IdStep) + use<> {
    let (recorder, clock) = (Arc::clone(recorder), clock.clone());
    let mut begun: BTreeMap<Id, (Span, Instant)> = BTreeMap::new();
    move |step| {
        probes::rdma_state(step);
        Recorder::step(&recorder.ids, step.from as usize, step.to as usize);
        match step.to {
            IdPhase::Connecting => {
                begun.insert(step.id, (Span::RdmaConnect, clock.now()));
            }
            IdPhase::Requested => {
                begun.insert(step.id, (Span::RdmaAccept, clock.now()));
            }
            IdPhase::Responded | IdPhase::Accepted => {}
            to => {
                let found = begun.remove(&step.id);
                if let (IdPhase::Established, Some((span, at))) = (to, found) {
                    recorder.took(span, clock.now().since(at));
                }
            }
        }
    }
}

/// The same for shared connections and the flows on them.
fn watch_engine(recorder: &Arc<Recorder>) -> impl FnMut(&Trace) + use<> {
    let (recorder, mut binds) = (Arc::clone(recorder), Binds::default());
    let mut unsaid = Unsaid::default();
    move |trace| {
        probes::trace(trace);
        recorder.log.trace(trace);
        recorder.trace(trace, &mut binds);
        recorder.peers.heed(trace, &mut unsaid);
    }
}
