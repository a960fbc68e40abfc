//! WRITEs as fast as they go, of one program into memory of another: which share several such
//! programs have of a service, and what memory of each kind costs.

use super::client::{Addresses, End, Memory, Shape, check};
use super::service::{Service, Trunkline, cpu_ns_of};
use crate::process::{Parent, Process, SILENCE};
use crate::rounds::median;
use crate::{Measurement, Setting};
use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};
use trunkline::{Completion, SendOp, SendWr};

/// Before anything counts.
const WARM_UP: Duration = Duration::from_millis(200);
/// Completions taken at once.
const BATCH: usize = 64;
/// A client with many QPs has so many of them.
const MANY: usize = 10_000;

/// Writes until all is over. Whenever it is asked, it says how many bytes have arrived.
///
/// # Errors
/// A request that failed.
pub(super) fn write(parent: &Parent, socket: &str, shape: Shape) -> Result<()> {
    let end = End::open(socket, shape)?;
    let theirs: Addresses = parent.exchange(&end.addresses())?;
    end.connect(&theirs)?;
    parent.say(&())?;
    parent.wait()?;
    let post = |qp: usize, slot: usize| {
        let at = slot * shape.size;
        let sges = [end.mr.sge(at, shape.size)];
        let id = (qp * shape.depth + slot) as u64;
        let request = SendWr::new(SendOp::Write(theirs.remote(at))).wr_id(id);
        end.qps[qp].post_send(&[request.sges(&sges).signaled()])
    };
    for slot in 0..shape.depth {
        for qp in 0..shape.qps {
            post(qp, slot)?;
        }
    }
    let mut found = [Completion::BLANK; BATCH];
    let (mut arrived, mut moved) = (0, Instant::now());
    loop {
        let done = end.completions(&mut found, SILENCE / 4)?;
        if !done.is_empty() {
            moved = Instant::now();
        }
        ensure!(moved.elapsed() < SILENCE, "nothing moved for {SILENCE:?}");
        for done in done {
            check(done)?;
            let id = done.wr_id as usize;
            post(id / shape.depth, id % shape.depth)?;
        }
        arrived += (done.len() * shape.size) as u64;
        if parent.has_line() {
            parent.say(&arrived)?;
        }
    }
}

/// Lets others write until all is over.
///
/// # Errors
/// The service refuses, or is gone.
pub(super) fn be_written(parent: &Parent, socket: &str, shape: Shape) -> Result<()> {
    let end = End::open(socket, shape)?;
    end.connect(&parent.exchange(&end.addresses())?)?;
    parent.say(&())?;
    parent.hear_line()?;
    Ok(())
}

/// A program that writes, and one that is written to.
#[derive(Debug)]
struct Stream {
    writer: Process,
    _target: Process,
}

impl Stream {
    /// Starts both and connects them; the writer waits to be told to begin.
    fn start(program: &Path, [from, to]: &[Service; 2], shape: Shape) -> Result<Self> {
        let mut writer = Process::start(shape.command(program, from, "writer"))?;
        let mut target = Process::start(shape.command(program, to, "target"))?;
        introduce(&mut writer, &mut target)?;
        for end in [&mut writer, &mut target] {
            end.hear::<()>()?;
        }
        Ok(Self {
            writer,
            _target: target,
        })
    }

    fn begin(&mut self) -> Result<()> {
        self.writer.say_line("\n")
    }

    /// Bytes that have arrived since the beginning.
    fn arrived(&mut self) -> Result<u64> {
        self.writer.say_line("\n")?;
        self.writer.hear().context("the writer")
    }
}

/// Tells each of two programs what the other says of itself.
pub(super) fn introduce(one: &mut Process, other: &mut Process) -> Result<()> {
    let (of_one, of_other) = (one.hear_line()?, other.hear_line()?);
    one.say_line(&of_other)?;
    other.say_line(&of_one)
}

impl Shape {
    fn command(self, program: &Path, service: &Service, role: &str) -> Command {
        let mut command = Command::new(program);
        command.args(["served", "--socket", service.socket(), role]);
        for (option, value) in [
            ("--qps", self.qps),
            ("--depth", self.depth),
            ("--size", self.size),
        ] {
            command.args([option, &value.to_string()]);
        }
        command.args(["--memory", self.memory.word()]);
        command
    }
}

/// Two services with these options.
fn services(trunkline: &Trunkline, options: &[&str]) -> Result<[Service; 2]> {
    Ok([
        Service::start(trunkline, options)?,
        Service::start(trunkline, options)?,
    ])
}

/// `served_fair`
///
/// # Errors
/// A process that fails.
pub fn fair(setting: &Setting) -> Result<Measurement> {
    let mut shares = shares_of(setting, &[])?;
    let mut alone = shares_of(setting, &["--connections", "1"])?;
    let all: Vec<_> = shares.iter().map(|share| format!("{share:.1}")).collect();
    let share = median(&mut shares);
    Ok(Measurement::new(
        "served_fair",
        "% of all bytes that a client with one QP has beside one with 10,000 busy ones, both of \
         equal weight and to the same peer",
        "half; 45 to 55 are wanted",
        (share, 50.0),
    )
    .want((45.0..=55.0).contains(&share), "45 to 55 %")
    .note(format!("each round: {}", all.join(", ")))
    .note(format!(
        "{:.1} where the services have one connection to each other",
        median(&mut alone)
    )))
}

/// The share of the client with one QP in each round, in %, between services with these options.
fn shares_of(setting: &Setting, options: &[&str]) -> Result<Vec<f64>> {
    let services = services(&Trunkline::beside(&setting.program)?, options)?;
    let start = |qps, depth| {
        let shape = Shape {
            qps,
            depth,
            size: 16 << 10,
            memory: Memory::Segment,
        };
        Stream::start(&setting.program, &services, shape)
    };
    let mut streams = [start(1, 256)?, start(MANY, 1)?];
    streams.iter_mut().try_for_each(Stream::begin)?;
    sleep(WARM_UP);
    let rounds = (0..setting.rounds).map(|_| {
        let before = both(&mut streams)?;
        sleep(setting.duration);
        let after = both(&mut streams)?;
        let [one, many] = [0, 1].map(|at| (after[at] - before[at]) as f64);
        ensure!(one + many > 0.0, "nothing arrived in a round");
        Ok(100.0 * one / (one + many))
    });
    rounds.collect()
}

fn both(streams: &mut [Stream; 2]) -> Result<[u64; 2]> {
    let [one, many] = streams;
    Ok([one.arrived()?, many.arrived()?])
}

/// One way in which a service reaches memory.
struct Tier {
    name: &'static str,
    memory: Memory,
    /// Whose memory it reaches by itself.
    trust: &'static str,
    /// Of each round, in GB per second.
    rates: Vec<f64>,
    /// Of each round, time of a CPU that the services took, in ms per GB.
    costs: Vec<f64>,
}

impl Tier {
    const fn new(name: &'static str, memory: Memory, trust: &'static str) -> Self {
        Self {
            name,
            memory,
            trust,
            rates: Vec::new(),
            costs: Vec::new(),
        }
    }

    /// One round, between services of its own.
    fn round(&mut self, setting: &Setting) -> Result<()> {
        let trunkline = Trunkline::beside(&setting.program)?;
        let services = services(&trunkline, &["--trust", self.trust])?;
        let shape = Shape {
            qps: 1,
            depth: 16,
            size: 64 << 10,
            memory: self.memory,
        };
        let mut stream = Stream::start(&setting.program, &services, shape)?;
        stream.begin()?;
        sleep(WARM_UP);
        let (cpu_ns, arrived) = (cpu_ns_of(&services)?, stream.arrived()?);
        let begun = Instant::now();
        sleep(setting.duration);
        let bytes = (stream.arrived()? - arrived) as f64;
        let (elapsed, cpu_ns) = (begun.elapsed(), cpu_ns_of(&services)? - cpu_ns);
        ensure!(bytes > 0.0, "{}: nothing arrived in a round", self.name);
        self.rates.push(bytes / elapsed.as_secs_f64() / 1e9);
        // Nanoseconds per byte are seconds per GB.
        self.costs.push(cpu_ns as f64 / bytes * 1e3);
        Ok(())
    }

    fn note(&mut self) -> String {
        let (rate, cost) = (median(&mut self.rates), median(&mut self.costs));
        format!("{}: {rate:.2} GB/s, {cost:.0} ms of CPU per GB", self.name)
    }
}

/// `served_memory`
///
/// # Errors
/// A process that fails.
pub fn memory(setting: &Setting) -> Result<Measurement> {
    let mut tiers = [
        Tier::new("memory in segments", Memory::Segment, "own"),
        Tier::new("promoted memory", Memory::Promoted, "own"),
        Tier::new("other memory, of a trusted user", Memory::Heap, "own"),
        Tier::new("other memory, by a thread", Memory::Heap, "nobody"),
    ];
    for _ in 0..setting.rounds {
        tiers.iter_mut().try_for_each(|tier| tier.round(setting))?;
    }
    let notes: Vec<_> = tiers.iter_mut().map(Tier::note).collect();
    let [segments, _, _, thread] = tiers.each_mut().map(|tier| median(&mut tier.costs));
    let measurement = Measurement::new(
        "served_memory",
        "ms of CPU per GB of two services, WRITEs of 64 KiB between memory of programs that a \
         thread of each service reaches (lower is better)",
        "the same between memory in segments (lower is better)",
        (thread, segments),
    );
    Ok(notes.into_iter().fold(measurement, Measurement::note))
}
