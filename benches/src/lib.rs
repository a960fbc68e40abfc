//! Benchmarks with yardsticks: every figure stands beside one measured in the same run.

pub mod engine;
pub mod pair;

use serde::Serialize;

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
}

impl Measurement {
    /// A figure and its yardstick.
    pub fn new(
        name: &'static str,
        value: f64,
        unit: &'static str,
        yardstick: &'static str,
        yardstick_value: f64,
    ) -> Self {
        Self { name, value, unit, yardstick, yardstick_value, ratio: value / yardstick_value }
    }
}
