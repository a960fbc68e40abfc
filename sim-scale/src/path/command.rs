//! `trunkline-sim path` and `trunkline-sim suite`.

use super::scenario::{self, CONTROLS, MOST_FLOWS, MTUS, Rival, Scenario, Step};
use super::{plot, suite, units};
use crate::output::{self, Sink};
use anyhow::{Result, bail};
use clap::Args;
use std::path::PathBuf;
use trunkline_conn::control::CongestionControl;
use trunkline_conn::time::SECOND;

/// Runs connections over one bottleneck in virtual time, beside a model of TCP if asked for.
///
/// Rates are in bits of IP packets per second (100m, 1g), times have a unit (50us, 2ms, 10s), sizes
/// are in bytes (30000, 250k). Equal arguments give equal results.
#[derive(Args, Debug)]
pub struct PathArgs {
    /// Rate of the bottleneck.
    #[arg(long, value_name = "RATE", default_value = "1g", value_parser = units::rate)]
    rate: u64,
    /// Round trip without queueing.
    #[arg(long, value_name = "TIME", default_value = "2ms", value_parser = units::time)]
    rtt: u64,
    /// What may wait at the bottleneck.
    #[arg(long, value_name = "BYTES", default_value = "250k", value_parser = units::bytes)]
    queue: u64,
    /// Marks packets that find more than this waiting (ECN). TCP's flows do not ask for marks.
    #[arg(long, value_name = "BYTES", value_parser = units::bytes)]
    ecn: Option<u64>,
    /// Share of packets that gets lost behind the bottleneck (0.01 or 1%).
    #[arg(long, value_name = "P", default_value = "0", value_parser = units::share)]
    loss: f64,
    /// Packets are late by up to this in each direction; their order stays.
    #[arg(long, value_name = "TIME", default_value = "0ms", value_parser = units::time)]
    jitter: u64,
    /// Largest IP packet in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 1500, value_parser = units::whole(MTUS))]
    mtu: u32,
    /// Changes the path: TIME:rtt=TIME and TIME:rate=RATE for good, TIME:ack-delay=TIME for what
    /// the next acknowledgement alone reports. May be given several times.
    #[arg(long = "at", value_name = "CHANGE", value_parser = scenario::step)]
    steps: Vec<Step>,
    /// Our flows have nothing to send in this time (5s..7s). May be given several times.
    #[arg(long, value_name = "FROM..TO", value_parser = scenario::span)]
    idle: Vec<(u64, u64)>,
    /// Flows of ours.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = units::whole(0..=MOST_FLOWS))]
    flows: u32,
    /// A flow of TCP beside them: reno or cubic.
    #[arg(long, value_name = "NAME", value_parser = rival)]
    rival: Option<Rival>,
    /// Flows of TCP, if there is a rival.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "rival")]
    #[arg(value_parser = units::whole(1..=MOST_FLOWS))]
    rivals: u32,
    /// Congestion control of our flows.
    #[arg(long, value_name = "NAME", default_value = CONTROLS[0].0, value_parser = control)]
    control: CongestionControl,
    /// How long, in virtual seconds.
    #[arg(long, value_name = "N", default_value_t = 30.0)]
    seconds: f64,
    /// Everything random is drawn from it.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = units::whole(0..=u64::MAX))]
    seed: u64,
    /// Writes the rates of all flows to this file, as one JSON object.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draws rates and queue over time into this file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Runs the table of paths, and holds each to the laws of its cells.
#[derive(Args, Debug)]
pub struct SuiteArgs {
    /// All cells; else the cut that CI runs.
    #[arg(long)]
    full: bool,
    /// Congestion control of our flows.
    #[arg(long, value_name = "NAME", default_value = CONTROLS[0].0, value_parser = control)]
    control: CongestionControl,
    /// Only cells whose names contain this text; may be given several times.
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Writes the table to this file, in Markdown.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Writes an array of cells to this file, in JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Threads; 0 takes one per processor.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = units::whole(0..=usize::MAX))]
    jobs: usize,
}

fn rival(text: &str) -> Result<Rival, String> {
    let all = [Rival::Reno, Rival::Cubic];
    let found = all.into_iter().find(|rival| rival.name() == text);
    found.ok_or_else(|| format!("`{text}` is not reno or cubic"))
}

fn control(text: &str) -> Result<CongestionControl, String> {
    let found = CONTROLS.iter().find(|(name, _)| *name == text);
    found.map(|(_, kind)| *kind).ok_or_else(|| {
        let names: Vec<_> = CONTROLS.iter().map(|(name, _)| *name).collect();
        format!("`{text}` is none of {}", names.join(", "))
    })
}

impl PathArgs {
    fn scenario(&self) -> Result<Scenario> {
        if !(0.1..=3600.0).contains(&self.seconds) {
            bail!("--seconds {} is not between 0.1 and 3600", self.seconds);
        }
        let mut steps = self.steps.clone();
        steps.sort_by_key(|step| step.at);
        let scenario = Scenario {
            rate: self.rate,
            rtt: self.rtt,
            queue: self.queue,
            mark: self.ecn,
            loss: self.loss,
            jitter: self.jitter,
            mtu: self.mtu,
            steps,
            idle: self.idle.clone(),
            flows: self.flows,
            rival: self.rival,
            rivals: self.rivals,
            control: self.control,
            length: (self.seconds * SECOND as f64) as u64,
            seed: self.seed,
        };
        scenario.check().map_err(anyhow::Error::msg)?;
        Ok(scenario)
    }
}

/// # Errors
/// Arguments that make no sense; a file or standard output that cannot be written.
pub fn path(args: &PathArgs) -> Result<()> {
    let scenario = args.scenario()?;
    let [json, svg] = Sink::open_two([args.json.as_ref(), args.svg.as_ref()])?;
    let outcome = super::run(&scenario);
    if let Some(file) = json {
        file.fill(&(serde_json::to_string(&outcome)? + "\n"))?;
    }
    if let Some(file) = svg {
        file.fill(&plot::draw(&scenario, &outcome)?)?;
    }
    output::print(&outcome.table())
}

/// Whether all cells kept to their laws.
///
/// # Errors
/// No cell has such a name; a file or standard output that cannot be written.
pub fn suite(args: &SuiteArgs) -> Result<bool> {
    let cells = suite::cells(args.full, args.control, &args.only);
    if cells.is_empty() {
        bail!("no cell has {} in its name", args.only.join(" or "));
    }
    let [markdown, json] = Sink::open_two([args.markdown.as_ref(), args.json.as_ref()])?;
    let results = suite::run(&cells, args.jobs);
    if let Some(file) = markdown {
        file.fill(&suite::markdown(&results))?;
    }
    if let Some(file) = json {
        file.fill(&(serde_json::to_string_pretty(&results)? + "\n"))?;
    }
    let broken: Vec<_> = results.iter().filter(|result| result.is_broken()).collect();
    let reported = results.iter().filter(|r| r.bound.is_none()).count();
    let mut text = String::new();
    for result in &broken {
        text += &format!("BROKEN {}\n", result.line());
    }
    text += &format!(
        "{}: {} keep their law, {} do not, {reported} are only reported\n",
        output::counted(results.len() as u64, "cell"),
        results.len() - broken.len() - reported,
        broken.len()
    );
    output::print(&text)?;
    Ok(broken.is_empty())
}
