//! Many runs, each held to a law.

use super::report::{Outcome, jain};
use super::scenario::{Change, Rival, Scenario, Step};
use super::{BIN, run as run_scenario};
use crate::output;
use serde::Serialize;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use trunkline_conn::control::CongestionControl;
use trunkline_conn::time::{MICROSECOND, MILLISECOND, SECOND};

/// What a cell is held to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Law {
    /// One flow has at least 95 % of the bottleneck once it has found its rate.
    Alone,
    /// Ours and a flow of TCP have at least 10 % of the bottleneck each.
    Beside,
    /// Flows of ours are fair to each other: Jain's index at least 0.9.
    Fair,
    /// Half the rate again within 1 s, or 20 round trips where that is longer, of a change.
    Recovers,
}

impl Law {
    const fn name(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::Beside => "beside",
            Self::Fair => "fair",
            Self::Recovers => "recovers",
        }
    }

    const fn bound(self) -> f64 {
        match self {
            Self::Alone => 0.95,
            Self::Beside => 0.10,
            Self::Fair => 0.90,
            Self::Recovers => 0.50,
        }
    }
}

/// One run with its law.
#[derive(Clone, Debug)]
pub struct Cell {
    name: String,
    scenario: Scenario,
    law: Law,
    /// Part of what CI runs.
    cut: bool,
}

/// What became of it.
#[derive(Clone, Debug, Serialize)]
pub struct CellResult {
    /// The path, and who is on it.
    pub name: String,
    /// The law's name.
    pub law: &'static str,
    /// What is to be at least the bound.
    pub value: f64,
    /// `None`: the law does not hold for such a path, the figure is only reported.
    pub bound: Option<f64>,
    /// Megabits per second of each flow, once they have found their rates.
    pub mbps: Vec<f64>,
    /// Packets dropped.
    pub drops: u64,
    /// Most bytes that waited.
    pub max_queue: u64,
}

impl CellResult {
    /// Whether the law is broken.
    pub fn is_broken(&self) -> bool {
        self.bound.is_some_and(|bound| self.value < bound)
    }

    /// All of it, in a line.
    pub fn line(&self) -> String {
        let mbps: Vec<_> = self
            .mbps
            .iter()
            .take(5)
            .map(|r| format!("{r:.1}"))
            .collect();
        let bound = self.bound.map_or("-".to_owned(), |bound| bound.to_string());
        format!(
            "{} ({}): {:.3} of {bound}; Mb/s {}; {} drops, {} bytes waited",
            self.name,
            self.law,
            self.value,
            mbps.join(" "),
            self.drops,
            self.max_queue
        )
    }
}

const RATES: [(&str, u64); 5] = [
    ("10m", 10_000_000),
    ("100m", 100_000_000),
    ("1g", 1_000_000_000),
    ("10g", 10_000_000_000),
    ("100g", 100_000_000_000),
];
const RTTS: [(&str, u64); 5] = [
    ("10us", 10 * MICROSECOND),
    ("100us", 100 * MICROSECOND),
    ("1ms", MILLISECOND),
    ("10ms", 10 * MILLISECOND),
    ("100ms", 100 * MILLISECOND),
];
/// Queues in bandwidth-delay products; at least ten packets.
const QUEUES: [(&str, f64); 4] = [("10p", 0.0), ("bdp/4", 0.25), ("bdp", 1.0), ("4bdp", 4.0)];
/// Beyond this product a cell is only reported.
const MOST_PRODUCT: u64 = 62_500_000;
const QUEUE_PACKETS: u64 = 10;

fn path(rate: u64, rtt: u64, products: f64, control: CongestionControl) -> Scenario {
    let fast = rate >= 10_000_000_000;
    let mut scenario = Scenario {
        rate,
        rtt,
        mtu: if fast { 9000 } else { 1500 },
        control,
        length: if fast { 2 * SECOND } else { 10 * SECOND },
        ..Scenario::default()
    };
    // Slow start of TCP and its first sawteeth take many round trips.
    scenario.length = scenario.length.max(60 * rtt);
    let least = QUEUE_PACKETS * u64::from(scenario.mtu);
    scenario.queue = ((scenario.product() as f64 * products) as u64).max(least);
    scenario
}

/// The cells, all or the cut for CI, whose names contain one of `only`.
pub fn cells(full: bool, control: CongestionControl, only: &[String]) -> Vec<Cell> {
    let mut all = Vec::new();
    grid(&mut all, control);
    fair(&mut all, control);
    steps(&mut all, control);
    troubles(&mut all, control);
    all.retain(|cell| full || cell.cut);
    all.retain(|cell| only.is_empty() || only.iter().any(|text| cell.name.contains(text)));
    all
}

fn grid(all: &mut Vec<Cell>, control: CongestionControl) {
    for (rate_name, rate) in RATES {
        for (rtt_name, rtt) in RTTS {
            let mut last = 0;
            for (queue_name, products) in QUEUES {
                let scenario = path(rate, rtt, products, control);
                if std::mem::replace(&mut last, scenario.queue) == scenario.queue {
                    continue;
                }
                let place = format!("{rate_name} {rtt_name} {queue_name}");
                let middle =
                    matches!(rate_name, "100m" | "1g") && matches!(rtt_name, "1ms" | "10ms");
                // An acknowledgement tells of nearly as much as the queue holds.
                let coarse = place == "100g 100us bdp/4";
                all.push(Cell {
                    name: format!("{place}, alone"),
                    scenario: scenario.clone(),
                    law: Law::Alone,
                    cut: middle || coarse || rate_name == "10g" && rtt_name == "1ms",
                });
                let mark = scenario.queue / 4;
                all.push(Cell {
                    name: format!("{place}, alone, ecn"),
                    scenario: Scenario {
                        mark: Some(mark),
                        ..scenario.clone()
                    },
                    law: Law::Alone,
                    cut: coarse || middle && queue_name == "bdp",
                });
                for rival in [Rival::Reno, Rival::Cubic] {
                    for flows in [1, 4] {
                        all.push(Cell {
                            name: format!("{place}, {flows} beside {}", rival.name()),
                            scenario: Scenario {
                                rival: Some(rival),
                                flows,
                                length: scenario.length * 3,
                                ..scenario.clone()
                            },
                            law: Law::Beside,
                            cut: middle && flows == 1,
                        });
                    }
                }
            }
        }
    }
}

fn fair(all: &mut Vec<Cell>, control: CongestionControl) {
    for (flows, rate_name, rate, rtt_name, rtt) in [
        (2, "100m", RATES[1].1, "10ms", 10 * MILLISECOND),
        (2, "1g", RATES[2].1, "1ms", MILLISECOND),
        (4, "100m", RATES[1].1, "1ms", MILLISECOND),
        (4, "1g", RATES[2].1, "10ms", 10 * MILLISECOND),
        (4, "10g", RATES[3].1, "100us", 100 * MICROSECOND),
        (64, "10g", RATES[3].1, "100us", 100 * MICROSECOND),
        (64, "1g", RATES[2].1, "1ms", MILLISECOND),
    ] {
        for (queue_name, products) in QUEUES {
            let mut scenario = path(rate, rtt, products, control);
            scenario.flows = flows;
            scenario.length *= 2;
            let what = if flows == 64 { "incast of" } else { "fair," };
            all.push(Cell {
                name: format!("{rate_name} {rtt_name} {queue_name}, {what} {flows}"),
                scenario,
                law: Law::Fair,
                cut: flows < 64 || queue_name == "bdp",
            });
        }
    }
}

fn steps(all: &mut Vec<Cell>, control: CongestionControl) {
    let ms = MILLISECOND;
    let at = 4 * SECOND;
    let cases = [
        (
            "1g 2ms, an ACK 5 ms wrong",
            1_000,
            2 * ms,
            Change::AckDelay(5 * ms),
        ),
        (
            "1g 2ms, an ACK 50 ms wrong",
            1_000,
            2 * ms,
            Change::AckDelay(50 * ms),
        ),
        (
            "100m 2ms, an ACK 5 ms wrong",
            100,
            2 * ms,
            Change::AckDelay(5 * ms),
        ),
        (
            "10g 2ms, an ACK 5 ms wrong",
            10_000,
            2 * ms,
            Change::AckDelay(5 * ms),
        ),
        ("10g 2ms, rtt to 6ms", 10_000, 2 * ms, Change::Rtt(6 * ms)),
        (
            "10g 0.2ms, rtt to 1.2ms",
            10_000,
            ms / 5,
            Change::Rtt(6 * ms / 5),
        ),
        (
            "1g 0.2ms, rtt to 1.2ms",
            1_000,
            ms / 5,
            Change::Rtt(6 * ms / 5),
        ),
        ("1g 2ms, rtt to 6ms", 1_000, 2 * ms, Change::Rtt(6 * ms)),
        ("1g 6ms, rtt to 2ms", 1_000, 6 * ms, Change::Rtt(2 * ms)),
        ("100m 2ms, rtt to 20ms", 100, 2 * ms, Change::Rtt(20 * ms)),
        (
            "100m 10ms, rtt to 100ms",
            100,
            10 * ms,
            Change::Rtt(100 * ms),
        ),
        (
            "1g 2ms, rate to 100m",
            1_000,
            2 * ms,
            Change::Rate(100_000_000),
        ),
        (
            "100m 2ms, rate to 1g",
            100,
            2 * ms,
            Change::Rate(1_000_000_000),
        ),
        (
            "1g 10ms, rate to 10m",
            1_000,
            10 * ms,
            Change::Rate(10_000_000),
        ),
        (
            "10m 10ms, rate to 100m",
            10,
            10 * ms,
            Change::Rate(100_000_000),
        ),
    ];
    for (name, mbps, rtt, change) in cases {
        let mut scenario = path(mbps * 1_000_000, rtt, 1.0, control);
        scenario.steps = vec![Step { at, change }];
        scenario.length = at + 4 * SECOND;
        all.push(Cell {
            name: name.to_owned(),
            scenario,
            law: Law::Recovers,
            cut: true,
        });
    }
    // What is to be full again is the path after the silence.
    for (name, change) in [
        (
            "1g 2ms, idle, rate to 100m meanwhile",
            Change::Rate(100_000_000),
        ),
        ("1g 2ms, idle, rtt to 50ms meanwhile", Change::Rtt(50 * ms)),
    ] {
        let mut idle = path(1_000_000_000, 2 * ms, 1.0, control);
        idle.idle = vec![(2 * SECOND, at)];
        idle.length = at + 4 * SECOND;
        idle.steps = vec![Step { at, change }];
        all.push(Cell {
            name: name.to_owned(),
            scenario: idle,
            law: Law::Recovers,
            cut: true,
        });
    }
}

fn troubles(all: &mut Vec<Cell>, control: CongestionControl) {
    for (name, mbps, rtt, loss, jitter) in [
        ("100m 2ms, loss 0.1 %", 100, 2 * MILLISECOND, 0.001, 0),
        ("1g 2ms, loss 1 %", 1_000, 2 * MILLISECOND, 0.01, 0),
        (
            "1g 2ms, jitter 0.5 ms",
            1_000,
            2 * MILLISECOND,
            0.0,
            MILLISECOND / 2,
        ),
        (
            "100m 10ms, jitter 5 ms",
            100,
            10 * MILLISECOND,
            0.0,
            5 * MILLISECOND,
        ),
    ] {
        let mut scenario = path(mbps * 1_000_000, rtt, 1.0, control);
        (scenario.loss, scenario.jitter) = (loss, jitter);
        all.push(Cell {
            name: name.to_owned(),
            scenario,
            law: Law::Alone,
            cut: true,
        });
    }
}

/// Runs cells on so many threads (0: one per processor); results in the order of the cells.
pub fn run(cells: &[Cell], jobs: usize) -> Vec<CellResult> {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let jobs = if jobs == 0 { processors } else { jobs };
    let next = AtomicUsize::new(0);
    let results = Mutex::new(vec![None; cells.len()]);
    std::thread::scope(|scope| {
        for _ in 0..jobs.min(cells.len()) {
            scope.spawn(|| {
                while let at = next.fetch_add(1, Ordering::Relaxed)
                    && let Some(cell) = cells.get(at)
                {
                    let result = judge(cell);
                    output::tell(result.line());
                    let mut results = results.lock().unwrap_or_else(|e| e.into_inner());
                    results[at] = Some(result);
                }
            });
        }
    });
    let results = results.into_inner().unwrap_or_else(|e| e.into_inner());
    results.into_iter().flatten().collect()
}

fn judge(cell: &Cell) -> CellResult {
    let outcome = run_scenario(&cell.scenario);
    let settled = settled(&cell.scenario);
    let rates = rates(&outcome, settled, cell.scenario.length);
    let whole = cell.scenario.rate as f64 / 1e6;
    let ours = &rates[..cell.scenario.flows as usize];
    let value = match cell.law {
        Law::Alone => ours[0] / whole,
        // Ours together, however many they are, or the rival: who has less.
        Law::Beside => {
            let rival = rates.last().copied().unwrap_or(0.0);
            ours.iter().sum::<f64>().min(rival) / whole
        }
        Law::Fair => jain(ours),
        Law::Recovers => recovered(cell, &outcome),
    };
    CellResult {
        name: cell.name.clone(),
        law: cell.law.name(),
        value: (value * 1e4).round() / 1e4,
        bound: is_held(cell).then(|| cell.law.bound()),
        mbps: rates.iter().map(|r| (r * 10.0).round() / 10.0).collect(),
        drops: outcome.drops,
        max_queue: outcome.max_queue,
    }
}

/// When flows have found their rates: the first second, or 20 round trips, are for that.
fn settled(scenario: &Scenario) -> u64 {
    (20 * scenario.rtt).max(SECOND).min(scenario.length / 2)
}

fn rates(outcome: &Outcome, from: u64, to: u64) -> Vec<f64> {
    let flows = outcome.flows.iter();
    flows.map(|flow| flow.between(from, to)).collect()
}

/// Whether the cell's law is claimed for its path.
fn is_held(cell: &Cell) -> bool {
    let scenario = &cell.scenario;
    if scenario.product() > MOST_PRODUCT {
        return false;
    }
    match cell.law {
        Law::Alone => {
            let least = scenario.product() / 4;
            scenario.loss == 0.0 && scenario.jitter == 0 && scenario.queue >= least
        }
        Law::Beside => {
            // Where TCP alone does not fill the path, room that nobody uses proves nothing.
            let alone = Scenario {
                flows: 0,
                ..scenario.clone()
            };
            let outcome = run_scenario(&alone);
            let rate = rates(&outcome, settled(&alone), alone.length)[0];
            rate >= 0.8 * scenario.rate as f64 / 1e6
        }
        Law::Fair | Law::Recovers => true,
    }
}

/// The share of the new rate in the tenth of a second (or two round trips) that ends the time a
/// flow has to recover.
fn recovered(cell: &Cell, outcome: &Outcome) -> f64 {
    let scenario = &cell.scenario;
    let Some(step) = scenario.steps.last() else {
        return 0.0;
    };
    let (mut rate, mut rtt) = (scenario.rate, scenario.rtt);
    match step.change {
        Change::Rate(now) => rate = now,
        Change::Rtt(now) => rtt = now,
        Change::AckDelay(_) => {}
    }
    let deadline = step.at + (20 * rtt).max(SECOND);
    let span = (10 * rtt).max(SECOND / 2).div_ceil(BIN) * BIN;
    outcome.flows[0].between(deadline, deadline + span) / (rate as f64 / 1e6)
}

/// The table for docs/.
pub fn markdown(results: &[CellResult]) -> String {
    let mut text = String::from(
        "| path | law | value | bound | Mb/s | drops | most bytes waiting |\n\
         | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for result in results {
        let mbps: Vec<_> = result
            .mbps
            .iter()
            .take(5)
            .map(|r| format!("{r:.1}"))
            .collect();
        let more = if result.mbps.len() > 5 { " ..." } else { "" };
        let bound = result
            .bound
            .map_or("reported".to_owned(), |b| b.to_string());
        let broken = if result.is_broken() {
            " **broken**"
        } else {
            ""
        };
        text += &format!(
            "| {} | {} | {:.3}{broken} | {bound} | {}{more} | {} | {} |\n",
            result.name,
            result.law,
            result.value,
            mbps.join(" "),
            result.drops,
            result.max_queue
        );
    }
    text
}
