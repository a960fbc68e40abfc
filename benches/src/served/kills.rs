//! Clients that are killed in the middle of their traffic: when their peers hear it, and what their
//! neighbours and the services notice.
//!
//! A figure is of the round trips of neighbours that were under way within [`WATCHED`] of an end:
//! that is the end itself, what the system has to do when a process ends, and what the service does
//! for what is left. What comes before it is left out, since to start processes disturbs neighbours
//! far more, and so is the time in which nothing happens. Two more figures have the same shares of
//! such time, by turns: clients with the same traffic that end in order, which are the yardstick,
//! and processes of no service with as much traffic of their own that are killed, which show what
//! of it is the system's.

use super::calls::Beside;
use super::service::{Service, Trunkline};
use super::streams::introduce;
use super::victims::{Gone, now_ns};
use crate::process::Process;
use crate::rounds::{median, percentile};
use crate::{Measurement, Setting};
use anyhow::{Context, Result, bail};
use std::ops::Range;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

/// Victims are killed up to so many ms after that, one after another at another time.
const MOMENTS: usize = 8;
/// A peer has to hear the end within this, in ms.
const SOON: f64 = 100.0;
/// How many times the round trips beside ends in order those beside kills may take.
const TIMES: f64 = 1.5;
/// By how much the memory of a service may grow, in percent.
const MOST_GROWTH: f64 = 1.0;
/// What is counted begins with the end of a victim and lasts so long: some hundred round trips, so
/// that one in each that takes long shows in the 99th percentile.
const WATCHED: Duration = Duration::from_millis(20);
/// Victims before anything counts, of each way to end. The services' allocator keeps more and more
/// of what these had, up to some 300 KB, of which no byte is in use (tests/service_heap.rs).
const WARM_UP: [(Way, usize); 2] = [(Way::Killed, 700), (Way::InOrder, 70)];

/// What a victim is, and how it ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Way {
    Killed,
    InOrder,
    /// No program of a service: it is killed, too.
    Stranger,
}

/// All processes but the victims, and what was found.
struct Scene<'a> {
    setting: &'a Setting,
    witness: Process,
    ping: Process,
    _pong: Process,
    // They end after their clients.
    services: [Service; 2],
    /// How long peers did not hear of a kill, in ms.
    unheard: Vec<f64>,
    verified: u64,
}

impl<'a> Scene<'a> {
    fn new(setting: &'a Setting) -> Result<Self> {
        let trunkline = Trunkline::beside(&setting.program)?;
        let services = [
            Service::start(&trunkline, &[])?,
            Service::start(&trunkline, &[])?,
        ];
        for service in &services {
            start(setting, service, "churn")?.wait()?;
        }
        let witness = start(setting, &services[1], "witness")?;
        let mut ping = start(setting, &services[0], "ping")?;
        let mut pong = start(setting, &services[1], "pong")?;
        introduce(&mut ping, &mut pong)?;
        for end in [&mut ping, &mut pong] {
            end.hear::<()>()?;
        }
        ping.say_line("\n")?;
        Ok(Self {
            setting,
            witness,
            ping,
            _pong: pong,
            services,
            unheard: Vec::new(),
            verified: 0,
        })
    }

    /// What the neighbours' round trips took that were under way within these spans.
    fn beside(&mut self, spans: &[Range<u64>]) -> Result<Beside> {
        self.ping
            .say_line(&format!("{}\n", serde_json::to_string(spans)?))?;
        self.ping.hear().context("a neighbour")
    }

    /// The same while there are no victims.
    fn alone(&mut self) -> Result<Beside> {
        let begun = now_ns()?;
        sleep(self.setting.duration);
        let span = begun..now_ns()?;
        self.beside(std::slice::from_ref(&span))
    }

    /// So many victims, one after another.
    fn cycles(&mut self, count: usize, way: Way) -> Result<Beside> {
        let spans = (0..count).map(|at| {
            let span = match way {
                Way::Killed | Way::InOrder => self.cycle(at, way),
                Way::Stranger => self.stranger(at),
            };
            span.with_context(|| format!("victim {at}, {way:?}"))
        });
        let spans: Vec<_> = spans.collect::<Result<_>>()?;
        self.beside(&spans)
    }

    /// A victim. Gives what is counted of its time.
    fn cycle(&mut self, at: usize, way: Way) -> Result<Range<u64>> {
        let mut victim = start(self.setting, &self.services[0], "victim")?;
        self.witness.say_line("\n")?;
        let (of_victim, of_witness) = (victim.hear_line()?, self.witness.hear_line()?);
        self.witness.say_line(&of_victim)?;
        // The witness has posted its receives then.
        self.witness.hear::<()>()?;
        victim.say_line(&of_witness)?;
        self.witness.hear::<()>()?;
        let span = end(&mut victim, at, way)?;
        let gone: Gone = self.witness.hear().context("the victim's peer")?;
        self.verified += gone.verified;
        if way == Way::Killed {
            let Some(unheard) = gone.at_ns.checked_sub(span.start) else {
                bail!("the victim was gone before it was killed");
            };
            self.unheard.push(unheard as f64 / 1e6);
        }
        Ok(span)
    }

    fn stranger(&self, at: usize) -> Result<Range<u64>> {
        let mut stranger = start(self.setting, &self.services[0], "stranger")?;
        stranger.hear::<()>()?;
        end(&mut stranger, at, Way::Stranger)
    }

    fn resident(&self) -> Result<[u64; 2]> {
        let [one, other] = &self.services;
        Ok([one.resident_bytes()?, other.resident_bytes()?])
    }
}

fn start(setting: &Setting, service: &Service, role: &str) -> Result<Process> {
    let mut command = Command::new(&setting.program);
    command.args(["served", "--socket", service.socket(), role]);
    Process::start(command)
}

/// Ends a victim in the middle of its traffic. Gives what is counted of its time, which is over.
fn end(victim: &mut Process, at: usize, way: Way) -> Result<Range<u64>> {
    sleep(Duration::from_millis((at % MOMENTS) as u64));
    let begun = now_ns()?;
    match way {
        Way::Killed | Way::Stranger => {
            victim.kill()?;
            victim.wait_for_end()?;
        }
        Way::InOrder => {
            victim.say_line("\n")?;
            victim.wait()?;
        }
    }
    let end = begun + WATCHED.as_nanos() as u64;
    sleep(Duration::from_nanos(end.saturating_sub(now_ns()?)));
    Ok(begun..end)
}

/// What was found of each way to end: a figure of each round.
#[derive(Debug, Default)]
struct Found {
    ns: Vec<f64>,
    longest_ns: f64,
}

impl Found {
    fn add(&mut self, beside: Beside) {
        self.ns.push(beside.ns);
        self.longest_ns = self.longest_ns.max(beside.longest_ns);
    }

    /// The median of the rounds, in ns.
    fn median(&mut self) -> f64 {
        median(&mut self.ns)
    }
}

/// `served_kills`
///
/// # Errors
/// Wrong bytes, a process that fails.
pub fn kills(setting: &Setting) -> Result<Measurement> {
    let mut scene = Scene::new(setting)?;
    for (way, count) in WARM_UP {
        scene.cycles(count, way)?;
    }
    let alone = scene.alone()?;
    let before = scene.resident()?;
    let each = setting.cycles.div_ceil(setting.rounds);
    let [mut killed, mut in_order, mut strangers] = [(); 3].map(|()| Found::default());
    for _ in 0..setting.rounds {
        killed.add(scene.cycles(each, Way::Killed)?);
        in_order.add(scene.cycles(each, Way::InOrder)?);
        strangers.add(scene.cycles(each, Way::Stranger)?);
    }
    let after = scene.resident()?;
    let grown = [0, 1].map(|at| growth(before[at], after[at]));
    let kills = scene.unheard.len();
    let (middle, most) = (
        median(&mut scene.unheard),
        percentile(&mut scene.unheard, 100),
    );
    Ok(Measurement::new(
        "served_kills",
        "ns, 99th percentile of round trips of 64 B of other clients within 20 ms of the kill of a \
         client in the middle of traffic (lower is better)",
        "ns, the same where clients end in order, by turns; 1.5 times is wanted",
        (killed.median(), in_order.median()),
    )
    .note(format!(
        "{:.0} ns within 20 ms of kills of processes of no service, {:.0} ns where no processes \
         start and end; the longest round trips: {:.0} ns by kills, {:.0} ns by ends in order, \
         {:.0} ns by kills of processes of no service",
        strangers.median(),
        alone.ns,
        killed.longest_ns,
        in_order.longest_ns,
        strangers.longest_ns,
    ))
    .note(format!(
        "peers heard of {kills} kills after {middle:.2} ms (median), {most:.2} ms at most; \
         {SOON:.0} ms are wanted"
    ))
    .note(format!("{} bytes verified, none wrong", scene.verified))
    .note(format!(
        "resident bytes of the services: {} and {} after a warm-up, {:+.2} % and {:+.2} % \
         after the others; {MOST_GROWTH} % is wanted",
        before[0], before[1], grown[0], grown[1]
    ))
    .want(
        killed.median() <= TIMES * in_order.median(),
        format!("at most {TIMES} times the round trips beside ends in order"),
    )
    .want(most <= SOON, "each peer hears of a kill in time")
    .want(
        grown.into_iter().all(|percent| percent <= MOST_GROWTH),
        format!("memory grows by {MOST_GROWTH} % at most"),
    ))
}

/// In percent.
fn growth(before: u64, after: u64) -> f64 {
    100.0 * (after as f64 - before as f64) / before as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_in_percent_of_what_there_was() {
        assert_eq!(growth(200, 202), 1.0);
        assert_eq!(growth(200, 100), -50.0);
    }
}
