//! The node's clock: real, or turned by hand.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use trunkline_conn::time::Instant;

/// Where a node takes its time from. Clones share it.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    Real(std::time::Instant),
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// The machine's monotonic clock, from now on.
    pub fn real() -> Self {
        // One second ahead of zero: nothing that counts backwards meets the origin.
        Self(Source::Real(
            std::time::Instant::now() - std::time::Duration::from_secs(1),
        ))
    }

    /// A clock that stands until [`set`](Self::set) moves it: for simulation. It wakes nobody: a
    /// node that has it has no descriptor to wait on ([`Error::NoFd`](crate::Error::NoFd)), and is
    /// to be polled once the clock was set.
    pub fn manual() -> Self {
        Self(Source::Manual(Arc::new(AtomicU64::new(0))))
    }

    /// Now.
    pub fn now(&self) -> Instant {
        match &self.0 {
            Source::Real(origin) => Instant::from_nanos(origin.elapsed().as_nanos() as u64),
            Source::Manual(ns) => Instant::from_nanos(ns.load(Ordering::Relaxed)),
        }
    }

    /// Whether it stands while nobody moves it.
    pub(crate) const fn is_manual(&self) -> bool {
        matches!(self.0, Source::Manual(_))
    }

    /// Moves a manual clock forward to `to`; it never goes back. No effect on a real one.
    pub fn set(&self, to: Instant) {
        if let Source::Manual(ns) = &self.0 {
            ns.fetch_max(to.as_nanos(), Ordering::Relaxed);
        }
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::real()
    }
}
