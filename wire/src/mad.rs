//! Common header of management datagrams (IBTA Vol 1, 13.4.3), big-endian, 24 of 256 bytes.
//!
//! ```text
//! | base version | class | class version | R, method |  0..4
//! |        status         |    class specific         |  4..8
//! |                 transaction ID                    |  8..16
//! |      attribute ID     |        reserved           |  16..20
//! |               attribute modifier                  |  20..24
//! ```

use crate::WireError;
use crate::bytes::{header, put, u16_at, u32_at, u64_at};

/// Bytes of a management datagram.
pub const MAD_LEN: usize = 256;

const BASE_VERSION: u8 = 1;

/// Common header of management datagrams, base version 1.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct MadHeader {
    /// Management class.
    pub class: u8,
    /// Version of the class.
    pub class_version: u8,
    /// Method, with the response bit.
    pub method: u8,
    /// Status.
    pub status: u16,
    /// Whatever the class puts there.
    pub class_specific: u16,
    /// Chosen by the requester, repeated in answers.
    pub transaction_id: u64,
    /// What the datagram is about.
    pub attribute: u16,
    /// Which of its kind.
    pub modifier: u32,
}

header!(MadView of MadHeader, 24 bytes, "MAD", checked);

impl MadView<'_> {
    /// Base version; 1.
    pub const fn base_version(self) -> u8 {
        self.0[0]
    }
}

impl MadHeader {
    /// Class of communication management.
    pub const CLASS_CM: u8 = 7;
    /// Method Send.
    pub const METHOD_SEND: u8 = 3;

    /// Judges what the view shows.
    ///
    /// # Errors
    /// Another base version.
    pub const fn parse(view: MadView<'_>) -> Result<Self, WireError> {
        if view.base_version() != BASE_VERSION {
            let value = view.base_version() as u32;
            return Err(WireError::Invalid {
                header: "MAD",
                field: "base version",
                value,
            });
        }
        let bytes = view.0;
        Ok(Self {
            class: bytes[1],
            class_version: bytes[2],
            method: bytes[3],
            status: u16_at(bytes, 4),
            class_specific: u16_at(bytes, 6),
            transaction_id: u64_at(bytes, 8),
            attribute: u16_at(bytes, 16),
            modifier: u32_at(bytes, 20),
        })
    }

    /// Writes the header.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        put(
            out,
            0,
            [BASE_VERSION, self.class, self.class_version, self.method],
        );
        put(out, 4, self.status.to_be_bytes());
        put(out, 6, self.class_specific.to_be_bytes());
        put(out, 8, self.transaction_id.to_be_bytes());
        put(out, 16, self.attribute.to_be_bytes());
        put(out, 18, [0, 0]);
        put(out, 20, self.modifier.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_stand_where_the_map_says() {
        let header = MadHeader {
            class: 2,
            class_version: 3,
            method: 4,
            status: 0x0506,
            class_specific: 0x0708,
            transaction_id: 0x090a_0b0c_0d0e_0f10,
            attribute: 0x1112,
            modifier: 0x1516_1718,
        };
        let mut map: [u8; 24] = core::array::from_fn(|i| i as u8 + 1);
        map[18..20].fill(0);
        assert_eq!(header.to_bytes(), map);
    }

    #[test]
    fn another_base_version_is_refused() {
        let refused = WireError::Invalid {
            header: "MAD",
            field: "base version",
            value: 2,
        };
        assert_eq!(MadHeader::read(&[2; 24]), Err(refused));
    }
}
