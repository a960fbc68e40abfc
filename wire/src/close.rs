//! Payload of [`Opcode::SRC_CLOSE`](crate::Opcode::SRC_CLOSE), big-endian, 4 bytes.
//!
//! ```text
//! |                   reason                    |  0..4
//! ```

use crate::bytes::header;

/// The end of a shared connection, with the reason its peer gives.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Close(pub u32);

header!(CloseView of Close, 4 bytes, "close", total);

impl CloseView<'_> {
    /// Reason.
    pub const fn reason(self) -> u32 {
        u32::from_be_bytes(*self.0)
    }
}

impl Close {
    /// The connection ends.
    pub const CONNECTION: Self = Self(0);
    /// The whole node ends, in order: its QPs have left.
    pub const NODE: Self = Self(1);
    /// The whole node ends, since it failed: whoever waits for it waits in vain.
    pub const FAILED_NODE: Self = Self(2);

    /// Reads what the view shows.
    #[inline]
    pub const fn parse(view: CloseView<'_>) -> Self {
        Self(view.reason())
    }

    /// Writes the payload.
    #[inline]
    pub const fn emit(&self, out: &mut [u8; Self::LEN]) {
        *out = self.0.to_be_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_big_endian() {
        assert_eq!(Close(0x0102_0304).to_bytes(), [1, 2, 3, 4]);
    }
}
