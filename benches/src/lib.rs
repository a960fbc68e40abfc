//! Benchmarks with yardsticks: every figure stands beside one measured in the same run.
//!
//! | module | what it measures |
//! | --- | --- |
//! | [`engine`] | two engines on a memory pair, one thread driving both |
//! | [`scale`] | the same with 100,000 QPs |
//! | [`resident`] | memory of idle QPs |
//! | [`goodput`] | WRITEs over a modelled link that loses or reorders packets |
//! | [`connect`] | connections opened by RDMA-CM |
//! | [`isolation`] | calls over the same link, beside QPs in trouble |
//! | [`warm`] | QPs connected between nodes that know each other, over loopback |
//! | [`probes`] | the same with and without probes |
//! | [`cold`] | the first byte to a node never met |
//! | [`storm`] | 64 nodes that connect to one at the same time |
//! | [`udp`] | two processes over UDP, in two namespaces, with a bottleneck between them or none |
//! | [`send64`] | SENDs of 64 bytes between two processes, against UCX over TCP |
//! | [`served`] | programs of services: costs, fairness, and clients that are killed |
//! | [`rpc`] | calls of 64 bytes between two processes, and gRPC, against the same over TCP |
//!
//! [`machine`] says on what. [`catalogue`] lists them all, `trunkline-benches` runs them.

pub mod catalogue;
pub mod cold;
pub mod connect;
mod cpus;
pub mod delay;
mod end;
pub mod engine;
pub mod goodput;
pub mod isolation;
pub mod link;
pub mod machine;
pub mod parts;
mod place;
pub mod probes;
mod process;
pub mod resident;
pub mod rounds;
pub mod rpc;
pub mod scale;
pub mod send64;
pub mod served;
pub mod storm;
pub mod udp;
pub mod virtual_link;
pub mod warm;
pub mod workers;

use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;

/// One figure and its yardstick.
#[derive(Clone, Debug, Serialize)]
pub struct Measurement {
    /// Name, as `cargo xtask bench --only` takes it.
    pub name: &'static str,
    /// What was measured: a median.
    pub value: f64,
    /// In what.
    pub unit: &'static str,
    /// What it is compared with.
    pub yardstick: &'static str,
    /// That, measured in the same run and the same unit.
    pub yardstick_value: f64,
    /// `value / yardstick_value`
    pub ratio: f64,
    /// Further figures, for people only.
    #[serde(skip)]
    pub notes: Vec<String>,
    /// What is wanted of it and was not found.
    pub missed: Vec<String>,
}

impl Measurement {
    /// A figure and its yardstick.
    pub fn new(
        name: &'static str,
        unit: &'static str,
        yardstick: &'static str,
        (value, yardstick_value): (f64, f64),
    ) -> Self {
        let ratio = value / yardstick_value;
        Self {
            name,
            value,
            unit,
            yardstick,
            yardstick_value,
            ratio,
            notes: Vec::new(),
            missed: Vec::new(),
        }
    }

    /// The same with a note.
    #[must_use]
    pub fn note(mut self, note: String) -> Self {
        self.notes.push(note);
        self
    }

    /// The same, which has missed `what` unless that was found.
    #[must_use]
    pub fn want(mut self, found: bool, what: impl Into<String>) -> Self {
        if !found {
            self.missed.push(what.into());
        }
        self
    }
}

/// How to measure.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Length of a round.
    pub duration: Duration,
    /// Rounds of the figure and of its yardstick, by turns.
    pub rounds: usize,
    /// Clients that are killed, and as many that end in order.
    pub cycles: usize,
    /// Also what takes minutes.
    pub full: bool,
    /// Nodes at the ends of links print what they counted.
    pub counters: bool,
    /// This program, to start further processes of.
    pub program: PathBuf,
}
