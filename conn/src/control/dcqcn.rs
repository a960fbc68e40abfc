//! DCQCN for shared connections: rate steps driven by ECN marks.
//!
//! The marks that an acknowledgement reports stand for the CNP of the reaction point
//! (`crate::dcqcn`). Loss does not move the rate, as in RNICs, unless it is heavy and falls with
//! the rate; timeouts do. Besides the rate, twice what it sends in a round trip bounds the bytes in
//! flight, so that a silent peer is not flooded.

use super::guard::Ceiling;
use super::{Acked, Control, Start, first_window};
use crate::dcqcn::ReactionPoint;
use crate::time::{Instant, MICROSECOND, SECOND};

/// Reacts to at most one mark in this time (the CNP interval N).
const MARK_INTERVAL_NS: u64 = 50 * MICROSECOND;
/// Packets that may be in flight at any rate.
const MIN_WINDOW: u64 = 64;

/// Rate and window of a shared connection.
#[derive(Clone, Debug)]
pub struct Dcqcn {
    point: ReactionPoint,
    window: u64,
    packet: u64,
    max_window: u64,
    /// The rate before the timeouts of this round, in bytes per second.
    before_timeout: u64,
    marked_at: Instant,
    started: bool,
    ceiling: Ceiling,
}

impl Dcqcn {
    /// The controller for a path; it begins at the link rate.
    pub fn new(start: &Start) -> Self {
        Self {
            point: ReactionPoint::new(start.link_rate),
            window: first_window(start).max(start.max_window.min(MIN_WINDOW * start.packet)),
            packet: start.packet,
            max_window: start.max_window.max(start.packet),
            before_timeout: 0,
            marked_at: Instant::ZERO,
            started: false,
            ceiling: Ceiling::new(start.packet),
        }
    }
}

impl Control for Dcqcn {
    fn on_ack(&mut self, acked: &Acked) {
        let now = acked.now;
        self.ceiling.on_ack(acked);
        if !self.started {
            self.started = true;
            self.point.begin(now);
        }
        let in_two_trips = self.point.rate().saturating_mul(2);
        self.window = (in_two_trips.saturating_mul(acked.srtt_ns) / SECOND)
            .max(MIN_WINDOW * self.packet)
            .min(self.max_window);
        if acked.round {
            self.before_timeout = 0;
        }
        if acked.marked > 0
            && (self.marked_at == Instant::ZERO || now.since(self.marked_at) >= MARK_INTERVAL_NS)
        {
            self.marked_at = now;
            self.point.on_congestion(now);
        } else {
            self.point.advance(now);
            self.point.on_bytes(acked.bytes);
        }
    }

    fn on_loss(&mut self, _: Instant, bytes: u64) {
        self.ceiling.on_loss(bytes);
    }

    fn on_timeout(&mut self, now: Instant) {
        self.before_timeout = self.before_timeout.max(self.point.rate());
        self.point.on_timeout(now);
    }

    fn on_spurious_timeout(&mut self) {
        self.point.restore(self.before_timeout);
        self.before_timeout = 0;
    }

    fn window(&self) -> u64 {
        self.ceiling.window(self.window)
    }

    fn rate(&self) -> Option<u64> {
        self.ceiling.rate(Some(self.point.rate()))
    }
}
