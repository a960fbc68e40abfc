//! Congestion notification (IBTA annex A17.9.3): 16 reserved bytes behind a BTH with opcode 0x81
//! and BECN set.
//!
//! ```text
//! |                  reserved                  |  0..16
//! ```

use crate::bytes::header;

/// Body of a congestion notification packet. Sent as zeros; kept as received.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Cnp(pub [u8; 16]);

header!(CnpView of Cnp, 16 bytes, "CNP", total);

impl Cnp {
    /// Reads what the view shows.
    #[inline]
    pub const fn parse(view: CnpView<'_>) -> Self {
        Self(*view.0)
    }

    /// Writes the body.
    #[inline]
    pub const fn emit(&self, out: &mut [u8; Self::LEN]) {
        *out = self.0;
    }
}
