//! How much a turn of a connection is.

/// What a connection of weight 1 may send before the next one's turn: packets, and bytes, so that
/// what waits in the port still fits the second-level cache.
pub(super) const PACKETS: u32 = 64;
pub(super) const BYTES: i32 = 256 << 10;

/// What a connection may still send in its turn.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Share {
    packets: u32,
    bytes: i32,
}

impl Share {
    /// That of a whole turn.
    pub(crate) fn of(weight: u8) -> Self {
        Self {
            packets: u32::from(weight) * PACKETS,
            bytes: i32::from(weight) * BYTES,
        }
    }

    pub(crate) const fn is_spent(&self) -> bool {
        self.packets == 0 || self.bytes <= 0
    }

    /// Bytes left.
    pub(crate) const fn bytes(&self) -> i32 {
        self.bytes
    }

    /// Counts a packet, and gives its bytes as a deficit counts them.
    pub(crate) const fn take(&mut self, bytes: u32) -> i32 {
        self.packets -= 1;
        self.bytes -= bytes as i32;
        bytes as i32
    }

    /// Counts bytes that join a packet that was counted.
    pub(crate) const fn add(&mut self, bytes: u32) {
        self.bytes -= bytes as i32;
    }

    /// As much of it as `packets` packets.
    pub(crate) fn limited(self, packets: u32) -> Self {
        Self {
            packets: self.packets.min(packets),
            ..self
        }
    }

    /// What is left when of a [`limited`](Self::limited) part so much is.
    pub(crate) const fn without(self, given: Self, left: Self) -> Self {
        Self {
            packets: self.packets - (given.packets - left.packets),
            bytes: left.bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_ends_after_its_packets_or_after_its_bytes_whichever_come_first() {
        for (bytes, packets) in [(64, PACKETS), (4096, PACKETS), (4097, PACKETS), (8192, 32)] {
            for weight in [1, 3] {
                let (mut share, mut taken) = (Share::of(weight), 0);
                while !share.is_spent() {
                    share.take(bytes);
                    taken += 1;
                }
                assert_eq!(taken, u32::from(weight) * packets, "{bytes}");
            }
        }
    }
}
