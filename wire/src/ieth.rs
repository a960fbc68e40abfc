//! Invalidate Extended Transport Header (IBTA Vol 1, 9.3.8), big-endian, 4 bytes.
//!
//! ```text
//! |                   R_Key                    |  0..4
//! ```

use crate::Rkey;
use crate::bytes::header;

/// Invalidate Extended Transport Header: the receiver's key that becomes invalid.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Ieth(pub Rkey);

header!(IethView of Ieth, 4 bytes, "IETH", total);

impl IethView<'_> {
    /// Key to invalidate.
    pub const fn rkey(self) -> Rkey {
        Rkey(u32::from_be_bytes(*self.0))
    }
}

impl Ieth {
    /// Reads what the view shows.
    #[inline]
    pub const fn parse(view: IethView<'_>) -> Self {
        Self(view.rkey())
    }

    /// Writes the header.
    #[inline]
    pub const fn emit(&self, out: &mut [u8; Self::LEN]) {
        *out = self.0.0.to_be_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_big_endian() {
        assert_eq!(Ieth(Rkey(0x0102_0304)).to_bytes(), [1, 2, 3, 4]);
    }
}
