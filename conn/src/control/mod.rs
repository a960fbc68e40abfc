//! Congestion control of shared connections: how many bytes may be in flight, and how fast.
//!
//! A controller hears of acknowledgements, losses and timeouts and answers with a window in bytes
//! and, if it has an opinion, a pacing rate. It sees no packets. Calls come once per
//! acknowledgement packet, never once per data packet.

mod bursts;
mod crowd;
mod dcqcn;
mod delay;
mod guard;
mod none;
mod spared;
#[cfg(test)]
mod tests;

pub use dcqcn::Dcqcn;
pub use delay::Delay;
pub use none::Unlimited;

use crate::time::Instant;

/// Which controller a connection uses.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum CongestionControl {
    /// Only the packet window and, if given, the link rate limit the sender.
    None,
    /// Rate steps driven by ECN marks, as RNICs do.
    Dcqcn,
    /// Window steered by queueing delay, by loss where others fill the queue; indifferent to random
    /// loss. What nodes use unless told otherwise.
    #[default]
    Delay,
}

/// What an acknowledgement told the sender.
#[derive(Clone, Copy, Debug)]
pub struct Acked {
    /// When it came.
    pub now: Instant,
    /// Bytes it acknowledged for the first time.
    pub bytes: u64,
    /// Packets it acknowledged for the first time.
    pub packets: u32,
    /// Packets newly reported as CE-marked, at most `packets`.
    pub marked: u32,
    /// Round trip measured with it, in ns, without the receiver's holding time.
    pub rtt_ns: Option<u64>,
    /// Queueing delay of the way back in ns, as far as known; an estimate that may be off by the
    /// drift of the clocks.
    pub reverse_ns: u64,
    /// Smallest round trip of late, in ns; 0 while none is known.
    pub min_rtt_ns: u64,
    /// Smoothed round trip in ns; 0 while none is known.
    pub srtt_ns: u64,
    /// Bytes in flight before it came.
    pub in_flight: u64,
    /// Whether it ends a round: a packet sent after the last round's end was acknowledged.
    pub round: bool,
}

/// A congestion controller.
pub trait Control {
    /// Packets were acknowledged.
    fn on_ack(&mut self, acked: &Acked);

    /// `bytes` in flight were found lost.
    fn on_loss(&mut self, now: Instant, bytes: u64);

    /// Nothing came back although probes were sent.
    fn on_timeout(&mut self, now: Instant);

    /// Nothing was sent for so many times as long as an answer may take: what was known of the path
    /// is old.
    fn on_idle(&mut self, _periods: u64) {}

    /// The last timeout was a mistake: what it waited for had arrived.
    fn on_spurious_timeout(&mut self);

    /// Something that was found lost had arrived.
    fn on_spurious_loss(&mut self) {}

    /// Bytes that may be in flight.
    fn window(&self) -> u64;

    /// Pacing rate in bytes per second, or `None` for no pacing.
    fn rate(&self) -> Option<u64>;

    /// Bytes that may leave at once without overflowing a queue, as far as that is known.
    fn burst(&self) -> u64 {
        u64::MAX
    }

    /// Round trip of the path without a queue in ns, as far as it is known; else 0.
    fn min_rtt_ns(&self) -> u64 {
        0
    }
}

/// What a controller starts from.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// Largest packet in bytes.
    pub packet: u64,
    /// Largest window that makes sense, in bytes.
    pub max_window: u64,
    /// Rate of the link in bytes per second, if known: nothing is paced faster.
    pub link_rate: Option<u64>,
    /// Window to begin with, in bytes; 0 when the path is unknown.
    pub window: u64,
    /// Smoothed round trip in ns; 0 when the path is unknown.
    pub srtt_ns: u64,
    /// Round trip without a queue in ns; 0 when the path is unknown.
    pub min_rtt_ns: u64,
}

impl Start {
    /// A path nobody has measured.
    pub(crate) const fn of(packet: u64, max_window: u64) -> Self {
        Self {
            packet,
            max_window,
            link_rate: None,
            window: 0,
            srtt_ns: 0,
            min_rtt_ns: 0,
        }
    }
}

/// One of the controllers, stored in place.
#[expect(
    clippy::large_enum_variant,
    reason = "it is part of a window, which a pool recycles, and the largest is the default"
)]
#[derive(Clone, Debug)]
pub(crate) enum Controller {
    Unlimited(Unlimited),
    Dcqcn(Dcqcn),
    Delay(Delay),
}

impl Controller {
    pub(crate) fn new(kind: CongestionControl, start: &Start) -> Self {
        match kind {
            CongestionControl::None => Self::Unlimited(Unlimited::new(start)),
            CongestionControl::Dcqcn => Self::Dcqcn(Dcqcn::new(start)),
            CongestionControl::Delay => Self::Delay(Delay::new(start)),
        }
    }

    fn inner(&mut self) -> &mut dyn Control {
        match self {
            Self::Unlimited(control) => control,
            Self::Dcqcn(control) => control,
            Self::Delay(control) => control,
        }
    }
}

impl Control for Controller {
    fn on_ack(&mut self, acked: &Acked) {
        match self {
            Self::Unlimited(control) => control.on_ack(acked),
            Self::Dcqcn(control) => control.on_ack(acked),
            Self::Delay(control) => control.on_ack(acked),
        }
    }

    fn on_loss(&mut self, now: Instant, bytes: u64) {
        self.inner().on_loss(now, bytes);
    }

    fn on_timeout(&mut self, now: Instant) {
        self.inner().on_timeout(now);
    }

    fn on_idle(&mut self, periods: u64) {
        self.inner().on_idle(periods);
    }

    fn on_spurious_timeout(&mut self) {
        self.inner().on_spurious_timeout();
    }

    fn on_spurious_loss(&mut self) {
        self.inner().on_spurious_loss();
    }

    fn window(&self) -> u64 {
        match self {
            Self::Unlimited(control) => control.window(),
            Self::Dcqcn(control) => control.window(),
            Self::Delay(control) => control.window(),
        }
    }

    fn rate(&self) -> Option<u64> {
        match self {
            Self::Unlimited(control) => control.rate(),
            Self::Dcqcn(control) => control.rate(),
            Self::Delay(control) => control.rate(),
        }
    }

    fn burst(&self) -> u64 {
        match self {
            Self::Unlimited(control) => control.burst(),
            Self::Dcqcn(control) => control.burst(),
            Self::Delay(control) => control.burst(),
        }
    }

    fn min_rtt_ns(&self) -> u64 {
        match self {
            Self::Unlimited(control) => control.min_rtt_ns(),
            Self::Dcqcn(control) => control.min_rtt_ns(),
            Self::Delay(control) => control.min_rtt_ns(),
        }
    }
}

/// A whole, of which shares of packets or bytes are fractions.
const SHARE_ONE: u64 = 1 << 10;

/// Smallest window in packets: one on its way and one to take its place.
const MIN_WINDOW_PACKETS: u64 = 2;

/// Window in packets of a path nobody has measured yet.
const FIRST_WINDOW_PACKETS: u64 = 32;

/// The window to begin with.
fn first_window(start: &Start) -> u64 {
    let window = if start.window == 0 {
        FIRST_WINDOW_PACKETS * start.packet
    } else {
        start.window
    };
    window.clamp(
        MIN_WINDOW_PACKETS * start.packet,
        start.max_window.max(MIN_WINDOW_PACKETS * start.packet),
    )
}
