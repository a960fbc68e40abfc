//! Atomic Extended Transport Header (IBTA Vol 1, 9.3.6), big-endian, 28 bytes.
//!
//! ```text
//! |              Virtual Address               |  0..8
//! |        R_Key        |                         8..12
//! |             Swap (or Add) Data             |  12..20
//! |                Compare Data                |  20..28
//! ```

use crate::Rkey;
use crate::bytes::{header, put, u32_at, u64_at};

/// Atomic Extended Transport Header.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct AtomicEth {
    /// Address of the 8 bytes in the remote region; has to be a multiple of 8.
    pub va: u64,
    /// Key of the remote region.
    pub rkey: Rkey,
    /// Value to store (compare and swap) or to add (fetch and add).
    pub swap_or_add: u64,
    /// Value to compare with; without meaning for fetch and add.
    pub compare: u64,
}

header!(AtomicEthView of AtomicEth, 28 bytes, "AtomicETH", total);

impl AtomicEthView<'_> {
    /// Virtual address.
    pub const fn va(self) -> u64 {
        u64_at(self.0, 0)
    }

    /// R_Key.
    pub const fn rkey(self) -> Rkey {
        Rkey(u32_at(self.0, 8))
    }

    /// Swap or add data.
    pub const fn swap_or_add(self) -> u64 {
        u64_at(self.0, 12)
    }

    /// Compare data.
    pub const fn compare(self) -> u64 {
        u64_at(self.0, 20)
    }
}

impl AtomicEth {
    /// Reads what the view shows.
    #[inline]
    pub const fn parse(view: AtomicEthView<'_>) -> Self {
        Self {
            va: view.va(),
            rkey: view.rkey(),
            swap_or_add: view.swap_or_add(),
            compare: view.compare(),
        }
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        put(out, 0, self.va.to_be_bytes());
        put(out, 8, self.rkey.0.to_be_bytes());
        put(out, 12, self.swap_or_add.to_be_bytes());
        put(out, 20, self.compare.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_stand_where_the_map_says() {
        let header = AtomicEth {
            va: 0x0102_0304_0506_0708,
            rkey: Rkey(0x090a_0b0c),
            swap_or_add: 0x0d0e_0f10_1112_1314,
            compare: 0x1516_1718_191a_1b1c,
        };
        assert_eq!(header.to_bytes(), core::array::from_fn(|i| i as u8 + 1));
    }
}
