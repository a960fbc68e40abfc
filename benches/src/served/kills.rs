//! Clients that are killed in the middle of their traffic: when their peers hear it, and what their
//! neighbours and the services notice. As many that end in order are the yardstick, since to start
//! processes disturbs neighbours, too.

use super::service::{Service, Trunkline};
use super::streams::introduce;
use super::victims::{Gone, now_ns};
use crate::process::Process;
use crate::rounds::{alternate, median, percentile};
use crate::{Measurement, Setting};
use anyhow::{Context, Result, bail};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

/// Victims are killed up to so many ms after that, one after another at another time.
const MOMENTS: usize = 8;
/// A peer has to hear the end within this, in ms.
const SOON: f64 = 100.0;
/// One part of the cycles that goes before all that counts.
const WARM_UP: usize = 10;

/// How a victim ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Way {
    Killed,
    InOrder,
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

    /// The neighbours' 99th percentile since it was asked for last, in ns.
    fn neighbours(&mut self) -> Result<f64> {
        self.ping.say_line("\n")?;
        self.ping.hear().context("a neighbour")
    }

    /// The same while there are no victims.
    fn alone(&mut self) -> Result<f64> {
        self.neighbours()?;
        sleep(self.setting.duration);
        self.neighbours()
    }

    /// So many victims, one after another; gives the neighbours' 99th percentile meanwhile.
    fn cycles(&mut self, count: usize, way: Way) -> Result<f64> {
        self.neighbours()?;
        for at in 0..count {
            self.cycle(at, way)
                .with_context(|| format!("victim {at}, {way:?}"))?;
        }
        self.neighbours()
    }

    fn cycle(&mut self, at: usize, way: Way) -> Result<()> {
        let mut victim = start(self.setting, &self.services[0], "victim")?;
        self.witness.say_line("\n")?;
        let (of_victim, of_witness) = (victim.hear_line()?, self.witness.hear_line()?);
        self.witness.say_line(&of_victim)?;
        // The witness has posted its receives then.
        self.witness.hear::<()>()?;
        victim.say_line(&of_witness)?;
        self.witness.hear::<()>()?;
        sleep(Duration::from_millis((at % MOMENTS) as u64));
        let begun = now_ns()?;
        match way {
            Way::Killed => victim.kill()?,
            Way::InOrder => victim.say_line("\n")?,
        }
        let gone: Gone = self.witness.hear().context("the victim's peer")?;
        self.verified += gone.verified;
        match way {
            Way::Killed => {
                let Some(unheard) = gone.at_ns.checked_sub(begun) else {
                    bail!("the victim was gone before it was killed");
                };
                self.unheard.push(unheard as f64 / 1e6);
                Ok(())
            }
            Way::InOrder => victim.wait(),
        }
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

/// `served_kills`
///
/// # Errors
/// Wrong bytes, a process that fails.
pub fn kills(setting: &Setting) -> Result<Measurement> {
    let scene = std::cell::RefCell::new(Scene::new(setting)?);
    let cycles = |count, way| scene.borrow_mut().cycles(count, way);
    for way in [Way::Killed, Way::InOrder] {
        cycles(setting.cycles.div_ceil(WARM_UP), way)?;
    }
    let alone = scene.borrow_mut().alone()?;
    let before = scene.borrow().resident()?;
    let each = setting.cycles.div_ceil(setting.rounds);
    let medians = alternate(
        setting.rounds,
        || cycles(each, Way::Killed),
        || cycles(each, Way::InOrder),
    )?;
    let mut scene = scene.into_inner();
    let after = scene.resident()?;
    let grown = [0, 1].map(|at| growth(before[at], after[at]));
    let killed = scene.unheard.len();
    let (middle, most) = (
        median(&mut scene.unheard),
        percentile(&mut scene.unheard, 100),
    );
    Ok(Measurement::new(
        "served_kills",
        "ns, 99th percentile of round trips of 64 B of other clients while clients in the middle \
         of traffic are killed (lower is better)",
        "ns, the same while as many end in order, by turns; 1.5 times is wanted",
        medians,
    )
    .note(format!(
        "peers heard of {killed} kills after {middle:.2} ms (median), {most:.2} ms at most; \
         {SOON:.0} ms are wanted"
    ))
    .note(format!("{alone:.0} ns where no clients start and end"))
    .note(format!("{} bytes verified, none wrong", scene.verified))
    .note(format!(
        "resident bytes of the services: {} and {} after {} cycles of each, {:+.2} % and {:+.2} % \
         after the others; 1 % is wanted",
        before[0],
        before[1],
        setting.cycles.div_ceil(WARM_UP),
        grown[0],
        grown[1]
    )))
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
