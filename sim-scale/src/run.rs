//! One run: faults first, then calm; what must hold meanwhile, and at the end.

use crate::area::Maybe;
use crate::endpoint::{Stage, WORDS};
use crate::failure::{Failure, Kind, Verdict};
use crate::net::{NetCounters, Sabotage};
use crate::options::{MS, Options};
use crate::path::marks;
use crate::world::{Doom, Phase, Tally, World};
use serde::Serialize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use trunkline::QpState;
use trunkline_conn::control::CongestionControl;
use trunkline_conn::time::SECOND;
use trunkline_dataplane::prng::Prng;

/// Longest a run may take to post all it has to, in ns.
const SAFETY_LIMIT: u64 = 600 * SECOND;
/// Longest everything may take to end once the faults are over, in ns.
const CALM_LIMIT: u64 = 40 * SECOND;
/// How long nodes get to put away what is left, in ns: several times what it takes to find out
/// that a peer is gone, since farewells try one connection to it after the other.
const REST: u64 = 20 * SECOND;
/// Lines of the trace shown with a failure.
const SHOWN: usize = 60;

/// How one seed went.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// Stands for everything that happened.
    pub digest: u64,
    /// Events in the trace.
    pub events: u64,
    /// Virtual time in ns.
    pub virtual_ns: u64,
    /// Requests posted.
    pub posted: u64,
    /// Requests that succeeded.
    pub succeeded: u64,
    /// Requests that did not.
    pub failed: u64,
    /// Messages received.
    pub received: u64,
    /// Troubles made.
    pub troubles: u64,
    /// Groups that took a peer for gone, as the network let no answer of it through.
    pub silences: u64,
    /// Paths that nodes which lived to the end found narrow.
    pub narrowed: u64,
    /// Packets sent.
    pub packets: u64,
    /// Packets lost.
    pub dropped: u64,
    /// Lies that one node told.
    pub lies: u64,
    /// What is wrong, if anything is.
    #[serde(skip)]
    pub failure: Option<Failure>,
    /// The same as text.
    pub error: Option<String>,
    /// What the seed decided.
    #[serde(skip)]
    pub options: String,
    /// The end of the trace, if something is wrong.
    #[serde(skip)]
    pub trace: Vec<String>,
}

/// How a run is to be run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settings {
    /// Breaks the network on purpose.
    pub sabotage: Sabotage,
    /// Prints the trace as it happens.
    pub print: bool,
}

/// Runs one seed.
pub fn run(seed: u64, settings: &Settings) -> Report {
    let options = Options::draw(&mut Prng::new(seed));
    run_with(seed, options, settings)
}

/// Runs one seed with options of choice.
pub fn run_with(seed: u64, options: Options, settings: &Settings) -> Report {
    let text = options.to_string();
    let mut network = None;
    let mut tally = Tally::default();
    let mut now = 0;
    let mut nodes = Vec::new();
    // Nothing that the closure touches is used after a panic but the trace of the network, which is
    // a plain record.
    let result = catch_unwind(AssertUnwindSafe(|| {
        let mut world = World::new(seed, options, settings.sabotage, settings.print)?;
        network = Some(world.network().clone());
        let result = phases(&mut world, seed);
        (tally, now) = (world.tally(), world.now());
        if result.is_err() {
            nodes = world.describe_nodes();
            // What is left is in a state that nobody knows: taking it apart might panic.
            std::mem::forget(world);
        }
        result
    }));
    let failure = match result {
        Ok(Ok(())) => None,
        Ok(Err(failure)) => Some(failure),
        Err(panic) => Some(Failure {
            kind: Kind::Crash,
            what: panic_text(panic.as_ref()),
        }),
    };
    let (mut digest, mut events, mut counters, mut trace) =
        (0, 0, NetCounters::default(), Vec::new());
    if let Some(network) = &network {
        let net = network.net();
        (digest, events, counters) = (net.trace.digest(), net.trace.events(), net.counters());
        if failure.is_some() {
            trace = net.trace.tail(SHOWN);
            trace.append(&mut nodes);
        }
    }
    Report {
        seed,
        digest,
        events,
        virtual_ns: now,
        posted: tally.posted,
        succeeded: tally.succeeded,
        failed: tally.failed,
        received: tally.received,
        troubles: tally.troubles,
        silences: tally.silences,
        narrowed: tally.narrowed,
        packets: counters.packets,
        dropped: counters.dropped,
        lies: counters.lies,
        error: failure.as_ref().map(ToString::to_string),
        failure,
        options: text,
        trace,
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "a panic without words".to_owned())
}

fn phases(world: &mut World, seed: u64) -> Verdict {
    let end = world.now() + SAFETY_LIMIT;
    while world.left > 0 && world.now() < end {
        if !world.step(end)? {
            break;
        }
    }
    world.calm_down()?;
    let end = world.now() + CALM_LIMIT;
    while !world.is_quiet()? {
        if world.now() >= end {
            return Err(world.what_is_stuck());
        }
        let next = (world.now() + 5 * MS).min(end);
        while world.step(next)? {}
    }
    world.final_checks()?;
    world.close_all()?;
    let end = world.now() + REST;
    while world.step(end)? {}
    world.check_leaks()?;
    check_marks(world, seed)
}

/// Under control by delay, marks keep a queue short, at a bottleneck beside the cluster.
fn check_marks(world: &World, seed: u64) -> Verdict {
    if world.options().control != CongestionControl::Delay {
        return Ok(());
    }
    let queues = marks::queues(seed);
    world.act(
        "queue without and with marks",
        queues.0 as usize,
        queues.1 as usize,
    );
    marks::judge(queues)
}

impl World {
    /// The faults are over.
    fn calm_down(&mut self) -> Verdict {
        self.act("calm", 0, 0);
        (self.calm, self.calm_at) = (true, self.now);
        self.idle_until = 0;
        self.network.net().heal();
        self.dismiss_liar();
        for index in 0..self.options.nodes {
            if self.node(index).is_none() {
                self.boot(index)?;
            }
            for process in 0..self.places[index].processes.len() {
                self.places[index].processes[process].stopped_until = 0;
                self.read_completions(index, process)?;
                self.top_up_shared(index, process)?;
            }
            self.places[index].stopped.fill(0);
            self.places[index].stirred = true;
        }
        (0..self.endpoints.len()).try_for_each(|endpoint| self.top_up(endpoint))?;
        // Nothing is in the way any more: what is made now has to come about.
        (0..self.groups.len()).try_for_each(|group| self.build(group))
    }

    /// Whether everything posted has ended and everything sent was received.
    fn is_quiet(&mut self) -> Result<bool, Failure> {
        for endpoint in 0..self.endpoints.len() {
            let state = &self.endpoints[endpoint];
            if state.stage == Stage::Live
                && !state.posted.is_empty()
                && state.posted.iter().all(|posted| !posted.signaled)
            {
                self.nudge(endpoint)?;
            }
            let state = &self.endpoints[endpoint];
            if state.stage == Stage::Live && self.groups[state.group].doom.is_none() {
                self.prove(endpoint)?;
            }
        }
        if let Some(twice) = self.network.net().asks.set_up_twice() {
            return Err(Failure::wrong(twice));
        }
        Ok(self.first_open().is_none())
    }

    fn first_open(&self) -> Option<String> {
        for (index, group) in self.groups.iter().enumerate() {
            let looked_after = group.doom.is_some() && group.phase == Phase::Up;
            let failed = |member: &usize| self.endpoints[*member].stage == Stage::Failed;
            if group.phase == Phase::Closing || looked_after && group.members.iter().any(failed) {
                return Some(format!("group {index} is not closed ({:?})", group.doom));
            }
        }
        for (index, state) in self.endpoints.iter().enumerate() {
            if matches!(state.stage, Stage::Gone) {
                continue;
            }
            let group = &self.groups[state.group];
            if state.stage == Stage::Made && group.doom.is_none() {
                return Some(format!(
                    "e{index} of group {} is not connected",
                    state.group
                ));
            }
            if let Some(posted) = state.posted.front() {
                return Some(format!(
                    "e{index} #{} ({:?} to e{}), posted at {} us, has not completed; {} are \
                     outstanding there; QP {:?} in group {} ({:?})",
                    posted.seq,
                    posted.doing,
                    self.channels[posted.channel].to,
                    posted.at / 1000,
                    state.posted.len(),
                    state.qp.as_ref().map(trunkline::Qp::state),
                    state.group,
                    self.groups[state.group].doom
                ));
            }
        }
        let waiting = |channel: &&crate::channel::Channel| {
            !channel.closed
                && self.endpoints[channel.from].stage != Stage::Gone
                && self.groups[self.endpoints[channel.to].group].doom.is_none()
                && channel.expected_messages() > 0
        };
        let late = self.channels.iter().find(waiting).map(|channel| {
            format!(
                "{} messages have not arrived at e{}",
                channel.expected_messages(),
                channel.to
            )
        });
        late.or_else(|| self.first_unproved())
            .or_else(|| self.first_odd_pool())
    }

    /// A channel without a request that was posted after the last fault and succeeded.
    fn first_unproved(&self) -> Option<String> {
        let unproved = |channel: &&crate::channel::Channel| {
            let from = &self.endpoints[channel.from];
            !channel.proved
                && from.stage == Stage::Live
                && self.groups[from.group].phase == Phase::Up
                && self.groups[from.group].doom.is_none()
        };
        self.channels.iter().find(unproved).map(|channel| {
            format!(
                "nothing has gone from e{} to e{} since",
                channel.from, channel.to
            )
        })
    }

    /// Two nodes that do not agree on how many connections there are between them.
    fn first_odd_pool(&self) -> Option<String> {
        let all = |a: usize, b: usize| {
            let node = self.node(a);
            node.map_or(0, |node| node.connections(self.addresses[b]).len())
        };
        let pairs = (0..self.options.nodes).flat_map(|b| (0..b).map(move |a| (a, b)));
        let mut odd = pairs.filter_map(|(a, b)| {
            let (here, there) = (all(a, b), all(b, a));
            (here != there)
                .then(|| format!("node {a} has {here} connections to node {b}, which has {there}"))
        });
        odd.next()
    }

    /// What the nodes counted, for people who look for a fault.
    fn describe_nodes(&self) -> Vec<String> {
        let lines = self.places.iter().enumerate().map(|(index, place)| {
            let Some(node) = &place.node else {
                return format!("node {index} is down");
            };
            let counters = node.counters().named().filter(|(_, count)| *count > 0);
            let counters: Vec<String> = counters
                .map(|(name, count)| format!("{name} {count}"))
                .collect();
            format!(
                "node {index}: {} connections, {:?}; {}",
                node.connection_count(),
                node.live_objects(),
                counters.join(", ")
            )
        });
        let mut lines: Vec<String> = lines.collect();
        for (index, endpoint) in self.endpoints.iter().enumerate() {
            if let Some(qp) = endpoint.qp.as_ref().filter(|_| !endpoint.posted.is_empty()) {
                lines.push(format!(
                    "e{index} at node {}: {}",
                    endpoint.node,
                    qp.describe()
                ));
            }
        }
        lines
    }

    fn what_is_stuck(&self) -> Failure {
        let what = self.first_open().unwrap_or_default();
        Failure::stuck(format!(
            "{} s after the last fault: {what}",
            CALM_LIMIT / SECOND
        ))
    }

    /// Memory is byte for byte what it should be, and QPs that nothing was done to still work.
    fn final_checks(&mut self) -> Verdict {
        for index in 0..self.endpoints.len() {
            let state = &self.endpoints[index];
            if state.stage == Stage::Gone || self.groups[state.group].doom.is_some() {
                continue;
            }
            let open = state.stage == Stage::Live;
            let qp = state.qp.as_ref().map(trunkline::Qp::state);
            if open && qp != Some(QpState::Rts) {
                return Err(Failure::wrong(format!(
                    "e{index} is {qp:?} at the end, not RTS"
                )));
            }
            let maybe: Vec<Maybe<'_>> = state
                .incoming
                .iter()
                .flat_map(|channel| self.channels[*channel].maybe())
                .collect();
            for area in [&state.area, &state.pool].into_iter().flatten() {
                area.check(0..area.len(), &maybe, "at the end")?;
            }
        }
        Ok(())
    }

    /// Counters and cells, once no request is under way any more.
    fn check_words(&mut self) -> Verdict {
        for (index, place) in self.places.iter_mut().enumerate() {
            for (number, process) in place.processes.iter_mut().enumerate() {
                let at = |failure: Failure| {
                    let what = failure.what;
                    Failure::wrong(format!("words of process {number} of node {index}: {what}"))
                };
                for word in 0..2 * WORDS {
                    let bytes = process
                        .words
                        .actual(word * 8..word * 8 + 8)
                        .unwrap_or_default();
                    let value = u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
                    match word.checked_sub(WORDS) {
                        None => process.counters[word].settle(value).map_err(at)?,
                        Some(word) => process.cells[word].settle(value).map_err(at)?,
                    }
                }
                if let Some((_, area, receives)) = &process.srq {
                    area.check(receives.range(), &[], "at the end")?;
                }
            }
        }
        Ok(())
    }

    fn close_all(&mut self) -> Verdict {
        for index in 0..self.places.len() {
            for process in 0..self.places[index].processes.len() {
                self.read_completions(index, process)?;
            }
        }
        self.left = 0;
        if let Some(liar) = &mut self.liar {
            liar.clear();
            // QPs of nodes that have nobody else to talk to were among its.
            self.places
                .iter_mut()
                .for_each(|place| place.stirred = true);
        }
        for group in &mut self.groups {
            (group.phase, group.doom) = (Phase::Closing, Some(Doom::Any("the run is over")));
        }
        for endpoint in 0..self.endpoints.len() {
            self.close(endpoint)?;
            let state = &mut self.endpoints[endpoint];
            (state.qp, state.area, state.pool) = (None, None, None);
        }
        Ok(())
    }

    /// Nothing is left of QPs that are gone.
    fn check_leaks(&mut self) -> Verdict {
        self.check_words()?;
        self.check_liar_is_forgotten()?;
        for (index, place) in self.places.iter().enumerate() {
            let Some(node) = &place.node else { continue };
            self.tally.narrowed += node.counters().narrowed;
            let handed = node.hand_overs().packets;
            if handed > 0 && self.options.astray_ppm == 0 {
                return Err(Failure::wrong(format!(
                    "node {index} handed over {handed} packets that came out where they belong"
                )));
            }
            for (what, count) in node.live_objects().named() {
                if count != 0 {
                    return Err(Failure::wrong(format!(
                        "node {index} still has {count} {what} after all QPs are gone"
                    )));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs what a seed draws, changed.
    fn changed(seed: u64, change: impl FnOnce(&mut Options)) -> Report {
        let mut options = Options::draw(&mut Prng::new(seed));
        change(&mut options);
        run_with(seed, options, &Settings::default())
    }

    #[test]
    fn nodes_of_several_workers_pass_wherever_packets_come_out_and_whoever_is_slow() {
        let drawn = |seed, astray_ppm| {
            changed(seed, |options| {
                (options.workers, options.astray_ppm) = (3, astray_ppm);
                options.troubles.slow_workers = true;
            })
        };
        let mut differing = 0;
        for seed in 0..20 {
            let (right, anywhere) = (drawn(seed, 0), drawn(seed, 1_000_000));
            assert_eq!((right.error, anywhere.error), (None, None), "seed {seed}");
            differing += u32::from(right.digest != anywhere.digest);
            let again = drawn(seed, 1_000_000);
            assert_eq!(again.digest, anywhere.digest, "seed {seed}");
        }
        // In some all nodes draw one worker.
        assert!(differing > 10, "{differing} of 20");
    }

    /// A run's memory lies elsewhere in each thread, and what one run does must not be seen by
    /// another.
    #[test]
    fn runs_of_a_seed_are_alike_whatever_runs_beside_them() {
        let run = |seed| {
            let report = changed(seed, |options| {
                options.requests = options.requests.min(200);
                options.workers = 3;
                options.astray_ppm = 1_000_000;
                options.link.corrupt_ppm = 20_000;
                // In some, nodes take each other for ordinary hosts.
                options.link.management.loss_ppm = if seed % 2 == 0 { 0 } else { 700_000 };
                options.troubles.restarts = true;
            });
            assert_eq!(report.error, None, "seed {seed}");
            (report.digest, report.events)
        };
        for seed in 0..20 {
            let runs = std::thread::scope(|scope| {
                let runs = [(); 3].map(|()| scope.spawn(|| run(seed)));
                runs.map(|run| run.join().expect("a run does not panic"))
            });
            assert!(
                runs.iter().all(|run| *run == runs[0]),
                "seed {seed}: {runs:?}"
            );
        }
    }

    #[test]
    fn honest_nodes_notice_nothing_of_one_that_lies() {
        let mut lies = 0;
        for seed in 0..40 {
            let report = changed(seed, |options| {
                options.lies_ppm = [20_000, 200_000, 600_000][seed as usize % 3];
            });
            assert_eq!(report.error, None, "seed {seed}");
            lies += report.lies;
        }
        assert!(lies > 5_000, "{lies}");
    }

    #[test]
    fn what_a_receiver_took_does_not_fail_when_its_qp_ends_right_after() {
        let mut doomed = 0;
        for seed in 0..30 {
            let report = changed(seed, |options| {
                let troubles = &mut options.troubles;
                (troubles.closing, troubles.partitions) = (false, false);
                (troubles.restarts, troubles.slow_workers) = (false, false);
                troubles.destruction = true;
            });
            assert_eq!(report.error, None, "seed {seed}");
            doomed += report.failed;
        }
        assert!(doomed > 100, "{doomed} requests were cut off");
    }

    #[test]
    fn no_qp_fails_for_a_fifth_of_the_management_packets_lost() {
        for seed in 0..60 {
            let report = changed(seed, |options| {
                options.link.management.loss_ppm = 200_000;
            });
            assert_eq!((report.error, report.silences), (None, 0), "seed {seed}");
        }
    }

    #[test]
    fn paths_that_carry_less_for_a_while_are_noticed_by_no_qp() {
        let mut narrowed = 0;
        for seed in 0..80 {
            let report = changed(seed, |options| {
                options.port.max_datagram = options.port.max_datagram.max(4176);
                options.troubles.narrowing = true;
            });
            assert_eq!(report.error, None, "seed {seed}");
            narrowed += report.narrowed;
        }
        // Most runs are over before it is noticed.
        assert!(narrowed >= 8, "{narrowed} paths became narrow");
    }

    #[test]
    fn peers_that_take_each_other_for_ordinary_hosts_meet_all_the_same() {
        // In the last ones, questions of other workers and of programs are answered meanwhile.
        for seed in (0..40).chain([129, 146, 235]) {
            let report = changed(seed, |options| {
                options.link.management.loss_ppm = 700_000;
            });
            assert_eq!(report.error, None, "seed {seed}");
        }
    }

    /// A QP that ends of silence with nothing outstanding says so with its next request, which may
    /// come long after.
    ///
    /// Where so much is lost a question may wait for longer than a QP does, until a worker has
    /// asked all it asked before; the model does not know of such silence. These seeds have none.
    #[test]
    fn a_qp_may_end_of_silence_long_before_its_program_hears_of_it() {
        let mut silences = 0;
        for seed in [8, 41, 115, 235, 273] {
            let report = changed(seed, |options| {
                options.link.management.loss_ppm = 850_000;
                options.troubles.partitions = true;
            });
            assert_eq!(report.error, None, "seed {seed}");
            silences += report.silences;
        }
        assert!(silences > 0, "none was kept silent");
    }
}
