//! Base Transport Header (IBTA Vol 1, 9.2), big-endian, 12 bytes.
//!
//! ```text
//! | OpCode     | S M Pad TVer |        P_Key         |  0..4
//! | F B resv6  |               DestQP                |  4..8
//! | A resv7    |                PSN                  |  8..12
//! ```
//!
//! S solicited event, M MigReq, Pad two bits, TVer four bits (0), F FECN, B BECN, A AckReq.
//! Reserved bits are sent as 0 and ignored on receipt.

use crate::bytes::{header, put, u16_at, u24_at};
use crate::{Opcode, Psn, Qpn, WireError};

const SOLICITED: u8 = 0x80;
const MIG_REQ: u8 = 0x40;
const FECN: u8 = 0x80;
const BECN: u8 = 0x40;
const ACK_REQ: u8 = 0x80;

/// Base Transport Header.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Bth {
    /// What the packet is and which headers follow.
    pub opcode: Opcode,
    /// The receiver's completion should raise an event.
    pub solicited: bool,
    /// Migration state; without meaning in RoCEv2, ignored on receipt.
    pub mig_req: bool,
    /// Pad bytes between payload and ICRC, in `0 ..= 3`.
    pub pad: u8,
    /// Partition key; 0xffff is the default partition with full membership.
    pub pkey: u16,
    /// Forward congestion notification; RoCEv2 uses the ECN bits of the IP header instead.
    pub fecn: bool,
    /// Backward congestion notification: set in CNPs.
    pub becn: bool,
    /// QP (or shared connection) that the packet is for.
    pub dest_qp: Qpn,
    /// The sender wants an acknowledgement.
    pub ack_req: bool,
    /// Packet sequence number.
    pub psn: Psn,
}

header!(BthView of Bth, 12 bytes, "BTH", checked);

impl BthView<'_> {
    /// Opcode, known or not.
    pub const fn opcode(self) -> Opcode {
        Opcode(self.0[0])
    }

    /// Solicited event.
    pub const fn solicited(self) -> bool {
        self.0[1] & SOLICITED != 0
    }

    /// Migration request.
    pub const fn mig_req(self) -> bool {
        self.0[1] & MIG_REQ != 0
    }

    /// Pad bytes, in `0 ..= 3`.
    pub const fn pad(self) -> u8 {
        self.0[1] >> 4 & 3
    }

    /// Transport header version, in `0 ..= 15`; only 0 is known.
    pub const fn tver(self) -> u8 {
        self.0[1] & 0xf
    }

    /// Partition key.
    pub const fn pkey(self) -> u16 {
        u16_at(self.0, 2)
    }

    /// Forward congestion notification.
    pub const fn fecn(self) -> bool {
        self.0[4] & FECN != 0
    }

    /// Backward congestion notification.
    pub const fn becn(self) -> bool {
        self.0[4] & BECN != 0
    }

    /// Destination QP.
    pub const fn dest_qp(self) -> Qpn {
        Qpn::from_wire(u24_at(self.0, 5))
    }

    /// Acknowledgement requested.
    pub const fn ack_req(self) -> bool {
        self.0[8] & ACK_REQ != 0
    }

    /// Packet sequence number.
    pub const fn psn(self) -> Psn {
        Psn::from_wire(u24_at(self.0, 9))
    }
}

impl Bth {
    /// Judges what the view shows. Any opcode passes here: see [`Opcode::headers`].
    ///
    /// # Errors
    /// A transport header version other than 0.
    #[inline]
    pub const fn parse(view: BthView<'_>) -> Result<Self, WireError> {
        if view.tver() != 0 {
            let value = view.tver() as u32;
            return Err(WireError::Invalid {
                header: "BTH",
                field: "TVer",
                value,
            });
        }
        Ok(Self {
            opcode: view.opcode(),
            solicited: view.solicited(),
            mig_req: view.mig_req(),
            pad: view.pad(),
            pkey: view.pkey(),
            fecn: view.fecn(),
            becn: view.becn(),
            dest_qp: view.dest_qp(),
            ack_req: view.ack_req(),
            psn: view.psn(),
        })
    }

    /// Writes the header.
    ///
    /// # Panics
    /// `pad` is over 3.
    #[inline]
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        assert!(
            self.pad <= 3,
            "pad count {} takes more than two bits",
            self.pad
        );
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        let [_, q0, q1, q2] = self.dest_qp.get().to_be_bytes();
        let second = flag(self.mig_req, MIG_REQ) | self.pad << 4;
        let congestion = flag(self.fecn, FECN) | flag(self.becn, BECN);
        put(out, 0, [self.opcode.0, second]);
        put(out, 2, self.pkey.to_be_bytes());
        put(out, 4, [congestion, q0, q1, q2]);
        Self::emit_part(out, self.solicited, self.ack_req, self.psn);
    }

    /// Completes a header that has all but the fields in which packets of one message differ, and
    /// is not solicited.
    #[inline]
    pub fn emit_part(out: &mut [u8; Self::LEN], solicited: bool, ack_req: bool, psn: Psn) {
        out[1] |= if solicited { SOLICITED } else { 0 };
        let ack_req = if ack_req { ACK_REQ } else { 0 };
        put(out, 8, (u32::from(ack_req) << 24 | psn.get()).to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_captured_send_only_reads_as_what_it_was() {
        // ib_send_lat -s 64, first request.
        let bytes = [
            0x04, 0x00, 0xff, 0xff, 0x00, 0x00, 0x00, 0x24, 0x80, 0xd1, 0xbf, 0xae,
        ];
        let (bth, rest) = Bth::read(&bytes).expect("a captured header parses");
        assert_eq!(bth.opcode, Opcode::RC_SEND_ONLY);
        assert!(bth.ack_req && !bth.solicited && !bth.mig_req && !bth.fecn && !bth.becn);
        assert_eq!((bth.pad, bth.pkey, bth.dest_qp.get()), (0, 0xffff, 0x24));
        assert_eq!(bth.psn.get(), 0x00d1_bfae);
        assert!(rest.is_empty());
        assert_eq!(bth.to_bytes(), bytes);
    }

    #[test]
    fn every_flag_has_its_own_bit() {
        let bth = Bth {
            solicited: true,
            pad: 3,
            ..Bth::default()
        };
        assert_eq!(bth.to_bytes()[1], 0xb0);
        let bth = Bth {
            mig_req: true,
            becn: true,
            ..Bth::default()
        };
        assert_eq!((bth.to_bytes()[1], bth.to_bytes()[4]), (0x40, 0x40));
        let bth = Bth {
            fecn: true,
            ack_req: true,
            ..Bth::default()
        };
        assert_eq!((bth.to_bytes()[4], bth.to_bytes()[8]), (0x80, 0x80));
    }

    #[test]
    fn another_header_version_is_refused() {
        let mut bytes = Bth::default().to_bytes();
        bytes[1] = 0x01;
        let refused = WireError::Invalid {
            header: "BTH",
            field: "TVer",
            value: 1,
        };
        assert_eq!(Bth::read(&bytes), Err(refused));
        assert_eq!(
            Bth::read(&bytes[..11]),
            Err(WireError::Truncated {
                header: "BTH",
                need: 12,
                got: 11
            })
        );
    }

    #[test]
    fn reserved_bits_are_ignored() {
        let mut bytes = Bth::default().to_bytes();
        bytes[4] |= 0x3f;
        bytes[8] |= 0x7f;
        assert_eq!(Bth::read(&bytes).expect("it parses").0, Bth::default());
    }
}
