//! How a node is watched: counts and times, captures, and points for tracers.

pub(crate) mod capture;
pub(crate) mod cm_counters;
pub(crate) mod probes;
pub mod status;
