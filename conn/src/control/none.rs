//! No congestion control.

use super::{Acked, Control, Start};
use crate::time::Instant;

/// Lets the whole packet window fly, paced at the link rate if that is known.
#[derive(Clone, Debug)]
pub struct Unlimited {
    window: u64,
    rate: Option<u64>,
}

impl Unlimited {
    /// The controller for a path.
    pub fn new(start: &Start) -> Self {
        Self {
            window: start.max_window.max(start.packet),
            rate: start.link_rate,
        }
    }
}

impl Control for Unlimited {
    fn on_ack(&mut self, _: &Acked) {}

    fn on_loss(&mut self, _: Instant, _: u64) {}

    fn on_timeout(&mut self, _: Instant) {}

    fn on_spurious_timeout(&mut self) {}

    fn window(&self) -> u64 {
        self.window
    }

    fn rate(&self) -> Option<u64> {
        self.rate
    }
}
