//! Clients that are killed in the middle of their traffic: when their peers hear it, and what their
//! neighbours and the services notice. As many that end in order are the yardstick, since to start
//! processes disturbs neighbours, too.

use super::client::{Addresses, End, Memory, Shape, check};
use super::service::{Service, Trunkline};
use super::streams::introduce;
use crate::process::{Parent, Process, SILENCE};
use crate::rounds::{alternate, median, percentile};
use crate::{Measurement, Setting};
use anyhow::{Context, Result, bail, ensure};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};
use trunkline::{Completion, RecvWr, SendWr, Status};

/// What victims and their witness have.
const TRAFFIC: Shape = Shape {
    qps: 0,
    depth: 16,
    size: 4096,
    memory: Memory::Segment,
};
/// What neighbours have.
const CALLS: Shape = Shape {
    qps: 1,
    depth: 4,
    size: 64,
    memory: Memory::Segment,
};
/// After so many messages a victim is in the middle of its traffic.
const FLOWING: u64 = 32;
/// Messages of a witness to its victim, without bytes, one always under way: an end that wants
/// nothing of its peer does not hear that it is gone.
const GREETING: u64 = u64::MAX;
/// Victims are killed up to so many ms after that, one after another at another time.
const MOMENTS: usize = 8;
/// A peer has to hear the end within this, in ms.
const SOON: f64 = 100.0;
/// One part of the cycles that goes before all that counts.
const WARM_UP: usize = 10;

/// Time that is the same in all processes, in ns.
fn now_ns() -> Result<u64> {
    let now: Duration = clock_gettime(ClockId::Monotonic).try_into()?;
    Ok(u64::try_from(now.as_nanos())?)
}

/// The bytes of a message, by its number.
fn fill(number: u64, bytes: &mut [u8]) {
    let first = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for (at, word) in (0..).zip(bytes.chunks_exact_mut(8)) {
        word.copy_from_slice(&first.wrapping_add(at).to_le_bytes());
    }
}

/// Sends until it is killed, or told to end.
///
/// # Errors
/// A request that failed.
pub(super) fn victim(parent: &Parent, socket: &str) -> Result<()> {
    let end = End::open(socket, Shape { qps: 1, ..TRAFFIC })?;
    end.connect(&parent.exchange(&end.addresses())?)?;
    let be_greeted = || end.qps[0].post_recv(&[RecvWr::new().wr_id(GREETING)]);
    be_greeted()?;
    be_greeted()?;
    let mut bytes = [0; TRAFFIC.size];
    let mut number = 0;
    let mut send = |slot: usize| {
        fill(number, &mut bytes);
        number += 1;
        end.mr.write(slot * TRAFFIC.size, &bytes)?;
        let sges = [end.mr.sge(slot * TRAFFIC.size, TRAFFIC.size)];
        let request = SendWr::send().wr_id(slot as u64).sges(&sges).signaled();
        anyhow::Ok(end.qps[0].post_send(&[request])?)
    };
    (0..TRAFFIC.depth).try_for_each(&mut send)?;
    let mut found = [Completion::BLANK; TRAFFIC.depth];
    while !parent.has_line() {
        for done in end.completions(&mut found, SILENCE)? {
            check(done)?;
            if done.wr_id == GREETING {
                be_greeted()?;
            } else {
                send(done.wr_id as usize)?;
            }
        }
    }
    Ok(())
}

/// What became of a victim, seen from its peer.
#[derive(Debug, Deserialize, Serialize)]
struct Gone {
    /// When its peer heard it.
    at_ns: u64,
    /// Bytes that came, all as they were sent.
    verified: u64,
}

/// Receives of one victim after another, each on a QP of its own.
///
/// # Errors
/// Wrong bytes, or a victim whose end is not heard.
pub(super) fn witness(parent: &Parent, socket: &str) -> Result<()> {
    let mut end = End::open(socket, TRAFFIC)?;
    for life in 0.. {
        parent.hear_line()?;
        end.add_qp()?;
        let victim: Addresses = parent.exchange(&end.addresses())?;
        end.connect(&victim)?;
        for slot in 0..TRAFFIC.depth {
            receive(&end, life, slot)?;
        }
        parent.say(&())?;
        let gone = watch(parent, &end, life)?;
        end.qps.clear();
        parent.say(&gone)?;
    }
    Ok(())
}

fn receive(end: &End, life: usize, slot: usize) -> Result<()> {
    let sges = [end.mr.sge(slot * TRAFFIC.size, TRAFFIC.size)];
    let id = (life * TRAFFIC.depth + slot) as u64;
    Ok(end.qps[0].post_recv(&[RecvWr::new().wr_id(id).sges(&sges)])?)
}

fn greet(end: &End) -> Result<()> {
    let greeting = SendWr::send().wr_id(GREETING).signaled();
    Ok(end.qps[0].post_send(&[greeting])?)
}

/// Receives until the victim is gone.
fn watch(parent: &Parent, end: &End, life: usize) -> Result<Gone> {
    greet(end)?;
    let (mut bytes, mut expected) = ([0; TRAFFIC.size], [0; TRAFFIC.size]);
    let mut number = 0;
    let mut found = [Completion::BLANK; TRAFFIC.depth];
    loop {
        let done = end.completions(&mut found, SILENCE)?;
        ensure!(!done.is_empty(), "nobody says that the victim is gone");
        for done in done {
            let id = done.wr_id as usize;
            if done.wr_id != GREETING && id / TRAFFIC.depth != life {
                // Of a QP that is gone.
                continue;
            }
            if done.status != Status::Success {
                return Ok(Gone {
                    at_ns: now_ns()?,
                    verified: number * TRAFFIC.size as u64,
                });
            }
            if done.wr_id == GREETING {
                greet(end)?;
                continue;
            }
            let slot = id % TRAFFIC.depth;
            end.mr.read(slot * TRAFFIC.size, &mut bytes)?;
            fill(number, &mut expected);
            ensure!(bytes == expected, "message {number} has wrong bytes");
            number += 1;
            receive(end, life, slot)?;
            if number == FLOWING {
                parent.say(&())?;
            }
        }
    }
}

/// One end of calls: what it sends, and what it receives into.
struct Caller {
    end: End,
}

impl Caller {
    fn open(parent: &Parent, socket: &str) -> Result<Self> {
        let caller = Self {
            end: End::open(socket, CALLS)?,
        };
        let others: Addresses = parent.exchange(&caller.end.addresses())?;
        caller.end.connect(&others)?;
        caller.receive()?;
        parent.say(&())?;
        Ok(caller)
    }

    fn receive(&self) -> Result<()> {
        let sges = [self.end.mr.sge(CALLS.size, CALLS.size)];
        Ok(self.end.qps[0].post_recv(&[RecvWr::new().sges(&sges)])?)
    }

    fn send(&self, number: u64) -> Result<()> {
        self.end.mr.write(0, &number.to_le_bytes())?;
        let sges = [self.end.mr.sge(0, CALLS.size)];
        let request = SendWr::send().wr_id(1).sges(&sges).signaled();
        Ok(self.end.qps[0].post_send(&[request])?)
    }

    /// The number that comes next; none: none has come for too long.
    fn heard(&self) -> Result<Option<u64>> {
        let mut found = [Completion::BLANK];
        loop {
            let [done] = self.end.completions(&mut found, SILENCE)? else {
                return Ok(None);
            };
            check(done)?;
            if done.wr_id == 0 {
                let mut bytes = [0; 8];
                self.end.mr.read(CALLS.size, &mut bytes)?;
                self.receive()?;
                return Ok(Some(u64::from_le_bytes(bytes)));
            }
        }
    }
}

/// Calls one after another. Whenever it is asked, it says the 99th percentile of how long those in
/// between took, in ns.
///
/// # Errors
/// A call that failed, or another answer.
pub(super) fn ping(parent: &Parent, socket: &str) -> Result<()> {
    let caller = Caller::open(parent, socket)?;
    parent.hear_line()?;
    let mut taken = Vec::new();
    for number in 0.. {
        let begun = Instant::now();
        caller.send(number)?;
        let answer = caller.heard()?;
        taken.push(begun.elapsed().as_nanos() as f64);
        ensure!(answer == Some(number), "{answer:?} answers call {number}");
        if parent.has_line() {
            parent.say(&percentile(&mut taken, 99))?;
            taken.clear();
        }
    }
    Ok(())
}

/// Answers calls until all is over.
///
/// # Errors
/// An answer that failed, or no calls any more.
pub(super) fn pong(parent: &Parent, socket: &str) -> Result<()> {
    let caller = Caller::open(parent, socket)?;
    loop {
        let number = caller.heard()?.context("nobody calls")?;
        caller.send(number)?;
    }
}

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
    cycles(setting.cycles.div_ceil(WARM_UP), Way::Killed)?;
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
    .note(format!("{} bytes verified, none wrong", scene.verified))
    .note(format!(
        "resident bytes of the services: {} and {} after {} cycles, {:+.2} % and {:+.2} % after \
         the others; 1 % is wanted",
        before[0],
        before[1],
        setting.cycles.div_ceil(WARM_UP),
        grown[0],
        grown[1]
    )))
}

/// In percent.
fn growth(before: u64, after: u64) -> f64 {
    100.0 * (after as f64 / before as f64 - 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_other_numbers_have_other_bytes_everywhere() {
        let [mut one, mut other] = [[0; 64]; 2];
        fill(1, &mut one);
        fill(2, &mut other);
        assert!(one.chunks(8).zip(other.chunks(8)).all(|(a, b)| a != b));
        let again = one;
        fill(1, &mut one);
        assert_eq!(one, again);
    }

    #[test]
    fn growth_is_in_percent_of_what_there_was() {
        assert_eq!(growth(200, 202), 1.0);
        assert_eq!(growth(200, 100), -50.0);
    }
}
