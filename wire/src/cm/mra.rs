//! MRA, message receipt acknowledgement (IBTA Vol 1, 12.6.6), big-endian, 232 bytes.
//!
//! ```text
//! |  local communication ID  |  remote communication ID |  0..8
//! |  received 2, reserved 6  |  timeout 5, reserved 3   |  8..10
//! |                 private data 222                    |  10..232
//! ```

use super::field::fit;
use super::{Answered, CommId, PrivateData};
use crate::bytes::{get, header, put, u32_at};

/// Message receipt acknowledgement: the answer will take its time.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Mra {
    /// Sender's number for the connection.
    pub local: CommId,
    /// Receiver's number for the connection.
    pub remote: CommId,
    /// Which message was received.
    pub received: Answered,
    /// Exponent of the longest time until the answer, 5 bits: 4.096 us times 2 to it.
    pub service_timeout: u8,
    /// Users' bytes.
    pub private_data: PrivateData<222>,
}

header!(MraView of Mra, 232 bytes, "MRA", total);

impl Mra {
    /// The specification's name.
    pub const NAME: &str = "MRA";

    /// Reads what the view shows.
    pub const fn parse(view: MraView<'_>) -> Self {
        let bytes = view.0;
        Self {
            local: CommId(u32_at(bytes, 0)),
            remote: CommId(u32_at(bytes, 4)),
            received: Answered::from_code(bytes[8] >> 6),
            service_timeout: bytes[9] >> 3,
            private_data: PrivateData(get(bytes, 10)),
        }
    }

    /// Writes the message.
    ///
    /// # Panics
    /// A field takes more bits than it has.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        put(out, 0, self.local.0.to_be_bytes());
        put(out, 4, self.remote.0.to_be_bytes());
        put(
            out,
            8,
            [
                (self.received as u8) << 6,
                fit(self.service_timeout, 5) << 3,
            ],
        );
        put(out, 10, self.private_data.0);
    }
}
