//! RTU, ready to use (IBTA Vol 1, 12.6.9), big-endian, 232 bytes.
//!
//! ```text
//! |  local communication ID  |  remote communication ID |  0..8
//! |                 private data 224                    |  8..232
//! ```

use super::{CommId, PrivateData};
use crate::bytes::{get, header, put, u32_at};

/// Ready to use: the connection stands.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Rtu {
    /// Sender's number for the connection.
    pub local: CommId,
    /// Receiver's number for the connection.
    pub remote: CommId,
    /// Users' bytes.
    pub private_data: PrivateData<224>,
}

header!(RtuView of Rtu, 232 bytes, "RTU", total);

impl RtuView<'_> {
    /// Sender's number for the connection.
    pub const fn local(self) -> CommId {
        CommId(u32_at(self.0, 0))
    }

    /// Receiver's number for the connection.
    pub const fn remote(self) -> CommId {
        CommId(u32_at(self.0, 4))
    }
}

impl Rtu {
    /// The specification's name.
    pub const NAME: &str = "RTU";

    /// Reads what the view shows.
    pub const fn parse(view: RtuView<'_>) -> Self {
        Self {
            local: view.local(),
            remote: view.remote(),
            private_data: PrivateData(get(view.0, 8)),
        }
    }

    /// Writes the message.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        put(out, 0, self.local.0.to_be_bytes());
        put(out, 4, self.remote.0.to_be_bytes());
        put(out, 8, self.private_data.0);
    }
}
