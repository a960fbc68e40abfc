//! Atomic ACK Extended Transport Header (IBTA Vol 1, 9.5.3), big-endian, 8 bytes.
//!
//! ```text
//! |            Original Remote Data            |  0..8
//! ```

use crate::bytes::header;

/// Atomic ACK Extended Transport Header: the value that the 8 bytes had before the atomic.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct AtomicAckEth(pub u64);

header!(AtomicAckEthView of AtomicAckEth, 8 bytes, "AtomicAckETH", total);

impl AtomicAckEthView<'_> {
    /// Value before the atomic.
    pub const fn original(self) -> u64 {
        u64::from_be_bytes(*self.0)
    }
}

impl AtomicAckEth {
    /// Reads what the view shows.
    #[inline]
    pub const fn parse(view: AtomicAckEthView<'_>) -> Self {
        Self(view.original())
    }

    /// Writes the header.
    #[inline]
    pub const fn emit(&self, out: &mut [u8; Self::LEN]) {
        *out = self.0.to_be_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_is_big_endian() {
        assert_eq!(
            AtomicAckEth(0x0102_0304_0506_0708).to_bytes(),
            [1, 2, 3, 4, 5, 6, 7, 8]
        );
    }
}
