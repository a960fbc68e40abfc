//! The list of cases, run one by one.

use crate::pair::Place;
use crate::{cm, errors, loss, perftest, pingpong, verbs};
use anyhow::Result;
use serde::Serialize;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

type Run = Box<dyn Fn(Place) -> Result<()> + Send>;

/// One thing to try.
pub(crate) struct Case {
    pub(crate) name: String,
    run: Run,
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.fmt(f)
    }
}

impl Case {
    pub(crate) fn new(name: String, run: impl Fn(Place) -> Result<()> + Send + 'static) -> Self {
        Self {
            name,
            run: Box::new(run),
        }
    }

    /// Whether an ordinary run has it over IPv6, too: one of each kind.
    pub(crate) fn in_both_families(&self) -> bool {
        ["mtu1024", "atomics", "bad-rkey-write", "pingpong/", "cm/"]
            .iter()
            .any(|part| self.name.contains(part))
            && !self.name.contains("imm")
    }
}

/// How a case ended.
#[derive(Debug, Serialize)]
pub(crate) struct Outcome {
    pub(crate) name: String,
    pub(crate) seconds: f64,
    /// What went wrong; nothing if all is well.
    pub(crate) error: Option<String>,
}

/// Every case, or the cut for an ordinary run; only those with a part of `only` in their names.
pub(crate) fn cases(full: bool, only: &[String]) -> Vec<Case> {
    let mut cases = verbs::cases(full);
    cases.extend(errors::cases());
    cases.extend(pingpong::cases());
    cases.extend(perftest::cases(full));
    cases.extend(loss::cases(full));
    cases.extend(cm::cases());
    cases.retain(|case| only.is_empty() || only.iter().any(|part| case.name.contains(part)));
    cases
}

/// Runs cases until `stop`; their names get `prefix`.
pub(crate) fn run(place: Place, prefix: &str, cases: Vec<Case>, stop: &AtomicBool) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for case in cases {
        let name = format!("{prefix}{}", case.name);
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let started = Instant::now();
        let error = (case.run)(place).err().map(|error| format!("{error:#}"));
        let seconds = started.elapsed().as_secs_f64();
        let word = if error.is_some() { "FAILED" } else { "ok" };
        println!("{name:<44} {word:<6} {seconds:6.2} s");
        if let Some(error) = &error {
            println!("    {error}");
        }
        outcomes.push(Outcome {
            name,
            seconds,
            error,
        });
    }
    outcomes
}
