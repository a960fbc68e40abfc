//! DREQ and DREP, request for and reply to a disconnection (IBTA Vol 1, 12.6.10 and 12.6.11),
//! big-endian, 232 bytes.
//!
//! ```text
//! |  local communication ID  |  remote communication ID |  0..8
//! |  remote QPN 24 (DREQ)    |  reserved                |  8..12
//! |                 private data 220 or 224             |  .. 232
//! ```

use super::field::word;
use super::{CommId, PrivateData};
use crate::Qpn;
use crate::bytes::{get, header, put, u24_at, u32_at};

/// Request for disconnection.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Dreq {
    /// Sender's number for the connection.
    pub local: CommId,
    /// Receiver's number for the connection.
    pub remote: CommId,
    /// Receiver's QP.
    pub remote_qpn: Qpn,
    /// Users' bytes.
    pub private_data: PrivateData<220>,
}

header!(DreqView of Dreq, 232 bytes, "DREQ", total);

impl Dreq {
    /// The specification's name.
    pub const NAME: &str = "DREQ";

    /// Reads what the view shows.
    pub const fn parse(view: DreqView<'_>) -> Self {
        Self {
            local: CommId(u32_at(view.0, 0)),
            remote: CommId(u32_at(view.0, 4)),
            remote_qpn: Qpn::from_wire(u24_at(view.0, 8)),
            private_data: PrivateData(get(view.0, 12)),
        }
    }

    /// Writes the message.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        put(out, 0, self.local.0.to_be_bytes());
        put(out, 4, self.remote.0.to_be_bytes());
        put(out, 8, word(self.remote_qpn.get(), 0));
        put(out, 12, self.private_data.0);
    }
}

/// Reply to a request for disconnection.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Drep {
    /// Sender's number for the connection.
    pub local: CommId,
    /// Receiver's number for the connection.
    pub remote: CommId,
    /// Users' bytes.
    pub private_data: PrivateData<224>,
}

header!(DrepView of Drep, 232 bytes, "DREP", total);

impl Drep {
    /// The specification's name.
    pub const NAME: &str = "DREP";

    /// Reads what the view shows.
    pub const fn parse(view: DrepView<'_>) -> Self {
        Self {
            local: CommId(u32_at(view.0, 0)),
            remote: CommId(u32_at(view.0, 4)),
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
