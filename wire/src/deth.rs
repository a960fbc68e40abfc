//! Datagram Extended Transport Header (IBTA Vol 1, 9.3.4), big-endian, 8 bytes.
//!
//! ```text
//! |                  Q_Key                   |  0..4
//! | reserved |          Source QP            |  4..8
//! ```

use crate::Qpn;
use crate::bytes::{header, put, put_u24, u24_at, u32_at};

/// Datagram Extended Transport Header.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Deth {
    /// Key that the receiving QP compares with its own.
    pub qkey: u32,
    /// Sender's QP, to answer to.
    pub src_qp: Qpn,
}

header!(DethView of Deth, 8 bytes, "DETH", total);

impl DethView<'_> {
    /// Q_Key.
    pub const fn qkey(self) -> u32 {
        u32_at(self.0, 0)
    }

    /// Source QP.
    pub const fn src_qp(self) -> Qpn {
        Qpn::from_wire(u24_at(self.0, 5))
    }
}

impl Deth {
    /// Q_Key of the general services QP (IBTA Vol 1, 10.2.5): management datagrams.
    pub const GSI_QKEY: u32 = 0x8001_0000;

    /// Reads what the view shows.
    #[inline]
    pub const fn parse(view: DethView<'_>) -> Self {
        Self {
            qkey: view.qkey(),
            src_qp: view.src_qp(),
        }
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        put(out, 0, self.qkey.to_be_bytes());
        out[4] = 0;
        put_u24(out, 5, self.src_qp.get());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_captured_management_datagram_comes_from_qp_1() {
        let bytes = [0x80, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01];
        let (deth, _) = Deth::read(&bytes).expect("a captured header parses");
        assert_eq!(
            deth,
            Deth {
                qkey: Deth::GSI_QKEY,
                src_qp: Qpn::GSI
            }
        );
        assert_eq!(deth.to_bytes(), bytes);
    }
}
