//! UDP header (RFC 768), big-endian, 8 bytes.
//!
//! ```text
//! |   source port    | destination port |  0..4
//! |      length      |     checksum     |  4..8
//! ```

use crate::WireError;
use crate::bytes::{header, put, u16_at};

/// UDP header. The checksum is carried, not judged: the ICRC covers more, and RoCEv2 senders leave
/// it 0, IPv6 included.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Udp {
    /// Sender's port.
    pub src_port: u16,
    /// Receiver's port.
    pub dst_port: u16,
    /// Bytes of this header and what follows, at least 8.
    pub length: u16,
    /// Checksum; 0: none.
    pub checksum: u16,
}

header!(UdpView of Udp, 8 bytes, "UDP", checked);

impl UdpView<'_> {
    /// Length, not judged.
    pub const fn length(self) -> u16 {
        u16_at(self.0, 4)
    }
}

impl Udp {
    /// IP protocol number.
    pub const PROTOCOL: u8 = 17;

    /// Judges what the view shows.
    ///
    /// # Errors
    /// A length below 8.
    pub const fn parse(view: UdpView<'_>) -> Result<Self, WireError> {
        if (view.length() as usize) < Self::LEN {
            let value = view.length() as u32;
            return Err(WireError::Invalid {
                header: "UDP",
                field: "length",
                value,
            });
        }
        Ok(Self {
            src_port: u16_at(view.0, 0),
            dst_port: u16_at(view.0, 2),
            length: view.length(),
            checksum: u16_at(view.0, 6),
        })
    }

    /// Writes the header.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        put(out, 0, self.src_port.to_be_bytes());
        put(out, 2, self.dst_port.to_be_bytes());
        put(out, 4, self.length.to_be_bytes());
        put(out, 6, self.checksum.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ROCE_PORT;

    #[test]
    fn a_captured_header_reads_as_what_it_was() {
        // ib_send_lat -s 64, first frame.
        let bytes = [0xc5, 0x58, 0x12, 0xb7, 0x00, 0x58, 0x00, 0x00];
        let (udp, _) = Udp::read(&bytes).expect("a captured header parses");
        let captured = Udp {
            src_port: 0xc558,
            dst_port: ROCE_PORT,
            length: 88,
            checksum: 0,
        };
        assert_eq!(udp, captured);
        assert_eq!(udp.to_bytes(), bytes);
    }

    #[test]
    fn a_length_that_excludes_the_header_is_refused() {
        assert!(Udp::read(&[0, 1, 0, 2, 0, 7, 0, 0]).is_err());
        assert!(Udp::read(&[0, 1, 0, 2, 0, 8, 0, 0]).is_ok());
    }
}
