//! How a node is watched: counts and times, a log, captures, and points for tracers.

pub(crate) mod capture;
pub(crate) mod cm_counters;
pub(crate) mod log;
#[cfg(feature = "metrics")]
mod metrics;
pub(crate) mod probes;
pub mod status;

use trunkline_qpmap::ConnId;

/// A connection as watchers see it: the serial in the upper half, the index in the lower.
const fn number(conn: ConnId) -> u64 {
    let (index, serial) = conn.key();
    (serial as u64) << 32 | index as u64
}
