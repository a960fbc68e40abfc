//! No congestion control.

use super::guard::Ceiling;
use super::{Acked, Control, Start};
use crate::time::Instant;

/// Lets the whole packet window fly, paced at the link rate if that is known, unless much is lost
/// by it.
#[derive(Clone, Debug)]
pub struct Unlimited {
    window: u64,
    rate: Option<u64>,
    ceiling: Ceiling,
}

impl Unlimited {
    /// The controller for a path.
    pub fn new(start: &Start) -> Self {
        Self {
            window: start.max_window.max(start.packet),
            rate: start.link_rate,
            ceiling: Ceiling::new(start.packet),
        }
    }
}

impl Control for Unlimited {
    fn on_ack(&mut self, acked: &Acked) {
        self.ceiling.on_ack(acked);
    }

    fn on_loss(&mut self, _: Instant, bytes: u64) {
        self.ceiling.on_loss(bytes);
    }

    fn on_timeout(&mut self, _: Instant) {}

    fn on_spurious_timeout(&mut self) {}

    fn window(&self) -> u64 {
        self.ceiling.window(self.window)
    }

    fn rate(&self) -> Option<u64> {
        self.ceiling.rate(self.rate)
    }
}
