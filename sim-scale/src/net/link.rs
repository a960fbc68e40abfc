//! What a link between two nodes is like.

/// What one direction between two nodes is like.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Link {
    /// Bits per second.
    pub rate_bps: u64,
    /// One way, without queueing, in ns.
    pub delay_ns: u64,
    /// Up to so much more, in ns; keeps the order of packets.
    pub jitter_ns: u64,
    /// Bytes that may wait for the link; what comes on top is dropped.
    pub queue_bytes: u64,
    /// Bytes waiting from which on packets are marked (ECN).
    pub mark_bytes: u64,
    /// Packets lost, per million.
    pub loss_ppm: u32,
    /// Packets that arrive twice, per million.
    pub duplicate_ppm: u32,
    /// Packets held back, per million, ...
    pub reorder_ppm: u32,
    /// ... by up to so much, in ns.
    pub reorder_ns: u64,
    /// Packets with a bit flipped, per million.
    pub corrupt_ppm: u32,
    /// What management packets see on top of that.
    pub management: ManagementFaults,
}

/// What befalls packets to QP 1 on top of what befalls all.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ManagementFaults {
    /// Lost, per million.
    pub loss_ppm: u32,
    /// Arriving twice, per million.
    pub duplicate_ppm: u32,
    /// Held back, per million, ...
    pub delay_ppm: u32,
    /// ... by up to so much, in ns; the second of two that arrive, too.
    pub delay_ns: u64,
    /// With a bit flipped, per million.
    pub corrupt_ppm: u32,
}

impl ManagementFaults {
    /// None.
    pub const NONE: Self = Self {
        loss_ppm: 0,
        duplicate_ppm: 0,
        delay_ppm: 0,
        delay_ns: 0,
        corrupt_ppm: 0,
    };
}

impl Link {
    /// A link without faults: 100 Gb/s, 5 us one way, 4 MiB of queue.
    pub const CLEAN: Self = Self {
        rate_bps: 100_000_000_000,
        delay_ns: 5_000,
        jitter_ns: 0,
        queue_bytes: 4 << 20,
        mark_bytes: 1 << 20,
        loss_ppm: 0,
        duplicate_ppm: 0,
        reorder_ppm: 0,
        reorder_ns: 0,
        corrupt_ppm: 0,
        management: ManagementFaults::NONE,
    };

    /// The same link without its faults.
    #[must_use]
    pub const fn healed(self) -> Self {
        Self {
            loss_ppm: 0,
            duplicate_ppm: 0,
            reorder_ppm: 0,
            corrupt_ppm: 0,
            management: ManagementFaults::NONE,
            ..self
        }
    }
}
