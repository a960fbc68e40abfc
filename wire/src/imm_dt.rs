//! Immediate data (IBTA Vol 1, 9.3.7), 4 bytes.
//!
//! ```text
//! |               Immediate Data               |  0..4
//! ```

use crate::bytes::header;

/// Immediate data. The number is that of the bytes read as big-endian; verbs hand it to programs
/// in network byte order.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ImmDt(pub u32);

header!(ImmDtView of ImmDt, 4 bytes, "ImmDt", total);

impl ImmDtView<'_> {
    /// The value.
    pub const fn value(self) -> u32 {
        u32::from_be_bytes(*self.0)
    }
}

impl ImmDt {
    /// Reads what the view shows.
    #[inline]
    pub const fn parse(view: ImmDtView<'_>) -> Self {
        Self(view.value())
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
        assert_eq!(ImmDt(0x0102_0304).to_bytes(), [1, 2, 3, 4]);
    }
}
