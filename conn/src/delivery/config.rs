//! What a shared connection is set up with, and what it says about itself.

use trunkline_wire::Qpn;

use crate::control::CongestionControl;
use crate::time::{MICROSECOND, SECOND};

/// Attributes of a connection. Both ends must agree on `window`.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Connection ID of this end: BTH.DestQP of packets that come.
    pub local_id: Qpn,
    /// Connection ID of the peer: BTH.DestQP of packets that go.
    pub remote_id: Qpn,
    /// Token that packets must carry to be let in.
    pub local_token: u32,
    /// Token that the peer asks for.
    pub remote_token: u32,
    /// Number of the first packet sent, below 2^63.
    pub first_tx: u64,
    /// Number of the first packet expected, below 2^63.
    pub first_rx: u64,
    /// Largest datagram (BTH to ICRC) in bytes, `256 ..= 65535`.
    pub packet_size: u32,
    /// Congestion control.
    pub control: CongestionControl,
    /// Packets that may be unacknowledged: a power of two in `64 ..= 65536`. Memory is only taken
    /// for those that are.
    pub window: u32,
    /// UDP source ports to spread packets over; at least 1.
    pub source_ports: u8,
}

/// What all connections of a node keep to; their [`Pool`](super::Pool) holds it.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Rate of the local link in bits per second, where known: nothing is paced faster.
    pub link_rate_bps: Option<u64>,
    /// A pure acknowledgement goes out after this many packets at the latest; at least 1.
    pub ack_every: u16,
    /// A pure acknowledgement goes out after this time at the latest, and earlier where the round
    /// trip is known and short.
    pub max_ack_delay_ns: u64,
    /// A connection is dead when nothing has been acknowledged for this long while packets wait
    /// for it. 0: never.
    pub dead_after_ns: u64,
    /// A connection that has heard nothing for this long asks for a PING. 0: never.
    pub keep_alive_ns: u64,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            link_rate_bps: None,
            ack_every: 32,
            max_ack_delay_ns: 25 * MICROSECOND,
            dead_after_ns: 4 * SECOND,
            keep_alive_ns: 10 * SECOND,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            local_id: Qpn::default(),
            remote_id: Qpn::default(),
            local_token: 0,
            remote_token: 0,
            first_tx: 0,
            first_rx: 0,
            packet_size: 4096,
            control: CongestionControl::default(),
            window: MAX_WINDOW,
            source_ports: 1,
        }
    }
}

/// What the extension header of an outgoing packet says about its transmission.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Stamp {
    /// Packet number; BTH.PSN holds its low 24 bits.
    pub number: u64,
    /// Transmissions of this number before this one.
    pub attempt: u8,
    /// Our clock in units of 16 ns, wrapping, never 0.
    pub timestamp: u32,
    /// The peer's clock as it stands by our knowledge: the timestamp received last plus the time
    /// we have held it. 0 when nothing was received since the last echo.
    pub echo: u32,
    /// Low 32 bits of the next packet number expected of the peer.
    pub ack: u32,
    /// Which of the source ports to send from, below `Config::source_ports`.
    pub port: u8,
    /// Whether to set BTH.AckReq.
    pub ack_req: bool,
}

/// What a received packet said about its transmission.
#[derive(Clone, Copy, Debug, Default)]
pub struct Received {
    /// The sender's clock.
    pub timestamp: u32,
    /// Whether the IP header carried congestion experienced.
    pub ce: bool,
    /// BTH.AckReq.
    pub ack_req: bool,
}

/// What becomes of a packet number.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Arrival {
    /// Not seen before.
    New,
    /// Accepted before.
    Duplicate,
    /// Beyond the window: the peer may not have sent it yet, or it is a forgery.
    Beyond,
}

/// An acknowledgement as it was received, piggybacked or pure.
#[derive(Clone, Copy, Debug)]
pub struct AckInfo<'a> {
    /// Low 32 bits of the next packet number the peer expects.
    pub cumulative: u32,
    /// Entries of a bitmap: bit `i` of the low 48 of an entry whose upper 16 are `x` says that
    /// packet `cumulative + 1 + 48 x + i` has arrived. At most [`MAX_SACK_WORDS`] entries in any
    /// order; empty in piggybacked acknowledgements.
    pub sack: &'a [u64],
    /// Echoed timestamp, 0 for none.
    pub echo: u32,
    /// Count of CE-marked packets the peer has received, where told.
    pub ce: Option<u32>,
    /// Time for which the hosts had the echoed packet, or the acknowledgement, and did not look at
    /// it, in ns.
    pub delay_ns: u32,
    /// The part of it for which the acknowledgement waited here.
    pub waited_ns: u32,
}

/// What an acknowledgement moved.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct AckSummary {
    /// Packets acknowledged for the first time.
    pub packets: u32,
    /// Their bytes.
    pub bytes: u64,
    /// Packets found lost, waiting in `peek_retransmit`.
    pub lost: u32,
    /// Round trip measured, in ns.
    pub rtt_ns: Option<u64>,
}

/// What a peer must not do. The packet is dropped and counted; nothing has moved.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// Acknowledges what was never sent.
    #[error("packet {number} acknowledged, {next} is the next to be sent")]
    Unsent {
        /// Highest number acknowledged.
        number: u64,
        /// Next number to be sent.
        next: u64,
    },
    /// A bitmap longer than the format allows.
    #[error("{words} entries of a bitmap where {MAX_SACK_WORDS} are the most")]
    Oversized {
        /// Entries there were.
        words: usize,
    },
}

/// A pure acknowledgement that is due.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AckOut<'a> {
    /// Low 32 bits of the next packet number expected.
    pub cumulative: u32,
    /// As in [`AckInfo::sack`].
    pub sack: &'a [u64],
    /// CE-marked packets received so far, wrapping.
    pub ce: u32,
    /// Time since the echoed packet came, in ns.
    pub delay_ns: u32,
    /// Our clock in units of 16 ns.
    pub timestamp: u32,
    /// Timestamp received last, 0 for none.
    pub echo: u32,
    /// The UDP source port whose packets come out at the wrong worker, or 0.
    pub astray: u16,
}

/// Something the owner of a connection must act on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Event {
    /// Nothing was acknowledged for the configured time. The connection sends no more; take
    /// [`unacked`](super::Delivery::unacked) elsewhere.
    Dead,
    /// Nothing was heard for the configured time: send a PING, which is a packet like any other.
    KeepAlive,
    /// The path carries small packets and no large ones any more:
    /// [`set_packet_size`](super::Delivery::set_packet_size) to what it carries.
    Narrow,
}

/// A packet that was lost and may be sent again.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Lost<I> {
    /// What it carries.
    pub item: I,
    /// Its bytes when it was sent last.
    pub bytes: u32,
    /// It is larger than packets of this connection may be, or the first to be tried with less: its
    /// number is to go out with nothing in it, and its content under other numbers.
    pub too_large: bool,
}

/// Counts over the time a window was held.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counters {
    /// Packets sent for the first time.
    pub sent: u64,
    /// Transmissions beyond the first.
    pub retransmitted: u64,
    /// Packets sent that were found lost.
    pub lost: u64,
    /// Packets thought lost that had arrived.
    pub spurious: u64,
    /// Packets acknowledged.
    pub acked: u64,
    /// Bytes acknowledged.
    pub acked_bytes: u64,
    /// Probes sent because no acknowledgement came.
    pub probes: u64,
    /// Packets reported as CE-marked by the peer.
    pub marked: u64,
    /// Packets accepted.
    pub accepted: u64,
    /// Packets that came again.
    pub duplicates: u64,
    /// CE-marked packets received.
    pub ce: u64,
    /// Pure acknowledgements made.
    pub acks: u64,
}

impl Counters {
    /// Adds `other` to each count.
    pub fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.retransmitted += other.retransmitted;
        self.lost += other.lost;
        self.spurious += other.spurious;
        self.acked += other.acked;
        self.acked_bytes += other.acked_bytes;
        self.probes += other.probes;
        self.marked += other.marked;
        self.accepted += other.accepted;
        self.duplicates += other.duplicates;
        self.ce += other.ce;
        self.acks += other.acks;
    }
}

/// How a connection is doing.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Stats {
    /// Smoothed round trip in ns, 0 when not known.
    pub rtt_ns: u64,
    /// Its mean deviation in ns.
    pub rtt_variation_ns: u64,
    /// Smallest round trip of late in ns, 0 when not known.
    pub min_rtt_ns: u64,
    /// Congestion window in bytes.
    pub window_bytes: u64,
    /// Pacing rate in bytes per second, if packets are paced.
    pub rate: Option<u64>,
    /// Packets not acknowledged.
    pub in_flight: u32,
    /// Their bytes that are believed to be on their way.
    pub in_flight_bytes: u64,
    /// Reordering that loss detection tolerates, in ns.
    pub reordering_ns: u64,
    /// Counts since the connection was last idle; earlier ones were returned by `try_idle`.
    pub counters: Counters,
}

/// Most entries of the bitmap in an acknowledgement.
pub const MAX_SACK_WORDS: usize = 64;
/// Packets that an entry of the bitmap speaks of; the bits above it say which.
pub(super) const SACK_BITS: u32 = trunkline_wire::AckPayload::BITS;

/// Largest datagram (BTH to ICRC) in bytes that every path carries: the least MTU of IPv6, 1280,
/// without the headers of IPv6 and UDP.
pub const EVERY_PATH: u32 = 1280 - 40 - 8;
/// Most packets that may be unacknowledged.
pub const MAX_WINDOW: u32 = 1 << 16;
/// Most bytes that a congestion window holds: 20 Gb/s at 50 ms.
pub const MAX_WINDOW_BYTES: u64 = 128 << 20;

/// Our clock in units of 16 ns, wrapping, and never 0, which means no timestamp.
pub(super) const fn ticks(now: crate::time::Instant) -> u32 {
    non_zero((now.as_nanos() >> TICK_SHIFT) as u32)
}

/// 0 means no timestamp, so it becomes its neighbour.
pub(super) const fn non_zero(timestamp: u32) -> u32 {
    if timestamp == 0 { 1 } else { timestamp }
}

/// A tick is 2^4 ns.
pub(super) const TICK_SHIFT: u32 = 4;
