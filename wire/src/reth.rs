//! RDMA Extended Transport Header (IBTA Vol 1, 9.3.3), big-endian, 16 bytes.
//!
//! ```text
//! |              Virtual Address               |  0..8
//! |        R_Key        |      DMA Length      |  8..16
//! ```

use crate::Rkey;
use crate::bytes::{header, put, u32_at, u64_at};

/// RDMA Extended Transport Header.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Reth {
    /// Where in the remote region the message starts, as an address.
    pub va: u64,
    /// Key of the remote region.
    pub rkey: Rkey,
    /// Bytes of the whole message, at most 2^31. A larger value is the peer's fault, for the
    /// engine to answer.
    pub length: u32,
}

header!(RethView of Reth, 16 bytes, "RETH", total);

impl RethView<'_> {
    /// Virtual address.
    pub const fn va(self) -> u64 {
        u64_at(self.0, 0)
    }

    /// R_Key.
    pub const fn rkey(self) -> Rkey {
        Rkey(u32_at(self.0, 8))
    }

    /// DMA length, in bytes.
    pub const fn length(self) -> u32 {
        u32_at(self.0, 12)
    }
}

impl Reth {
    /// Reads what the view shows.
    #[inline]
    pub const fn parse(view: RethView<'_>) -> Self {
        Self {
            va: view.va(),
            rkey: view.rkey(),
            length: view.length(),
        }
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        put(out, 0, self.va.to_be_bytes());
        put(out, 8, self.rkey.0.to_be_bytes());
        put(out, 12, self.length.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_stand_where_the_map_says() {
        let reth = Reth {
            va: 0x0102_0304_0506_0708,
            rkey: Rkey(0x090a_0b0c),
            length: 0x0d0e_0f10,
        };
        assert_eq!(reth.to_bytes(), core::array::from_fn(|i| i as u8 + 1));
    }
}
