//! SIDR_REQ and SIDR_REP, service ID resolution (IBTA Vol 1, 12.11.1 and 12.11.2), big-endian, 232
//! bytes each.
//!
//! ```text
//! SIDR_REQ
//! |  request ID              |  P_Key 16, reserved      |  0..8
//! |                 service ID                          |  8..16
//! |                 private data 216                    |  16..232
//!
//! SIDR_REP
//! |  request ID              |  status 8, length 8, vendor 16  |  0..8
//! |  QPN 24, vendor 8        |  service ID              |  8..20
//! |  Q_Key                   |  additional info 72      |  20..96
//! |                 private data 136                    |  96..232
//! ```

use super::field::word;
use super::{CommId, PrivateData};
use crate::Qpn;
use crate::bytes::{get, header, put, u16_at, u24_at, u32_at, u64_at};
use crate::rdma_cm::ServiceId;

/// Asks which QP serves a datagram service.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SidrReq {
    /// Sender's number for the question.
    pub request: CommId,
    /// Partition key.
    pub pkey: u16,
    /// The service.
    pub service_id: ServiceId,
    /// Users' bytes; RDMA-CM puts its header first.
    pub private_data: PrivateData<216>,
}

header!(SidrReqView of SidrReq, 232 bytes, "SIDR_REQ", total);

impl SidrReq {
    /// The specification's name.
    pub const NAME: &str = "SIDR_REQ";

    /// Reads what the view shows.
    pub const fn parse(view: SidrReqView<'_>) -> Self {
        let bytes = view.0;
        Self {
            request: CommId(u32_at(bytes, 0)),
            pkey: u16_at(bytes, 4),
            service_id: ServiceId(u64_at(bytes, 8)),
            private_data: PrivateData(get(bytes, 16)),
        }
    }

    /// Writes the message.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        put(out, 0, self.request.0.to_be_bytes());
        put(out, 4, self.pkey.to_be_bytes());
        put(out, 6, [0, 0]);
        put(out, 8, self.service_id.0.to_be_bytes());
        put(out, 16, self.private_data.0);
    }
}

/// Answer to a question for a datagram service.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SidrStatus {
    /// The QP is valid.
    Success,
    /// The service ID is not supported.
    Unsupported,
    /// The service refuses.
    Refused,
    /// No QP is to be had.
    NoQp,
    /// Ask the one that the additional information names.
    Redirect,
    /// The class version is not supported.
    UnsupportedVersion,
    /// A code without meaning here.
    Reserved(u8),
}

impl SidrStatus {
    /// From the code on the wire.
    pub const fn from_code(code: u8) -> Self {
        match code {
            0 => Self::Success,
            1 => Self::Unsupported,
            2 => Self::Refused,
            3 => Self::NoQp,
            4 => Self::Redirect,
            5 => Self::UnsupportedVersion,
            code => Self::Reserved(code),
        }
    }

    /// The code on the wire.
    pub const fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Unsupported => 1,
            Self::Refused => 2,
            Self::NoQp => 3,
            Self::Redirect => 4,
            Self::UnsupportedVersion => 5,
            Self::Reserved(code) => code,
        }
    }
}

/// Tells which QP serves a datagram service.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SidrRep {
    /// The asker's number for the question.
    pub request: CommId,
    /// Whether there is one.
    pub status: SidrStatus,
    /// How much of the additional information counts, in bytes.
    pub info_length: u8,
    /// Vendor of the sender, 24 bits; 0: says nothing.
    pub vendor: u32,
    /// The QP.
    pub qpn: Qpn,
    /// The service.
    pub service_id: ServiceId,
    /// Q_Key of the QP.
    pub qkey: u32,
    /// Additional information.
    pub info: [u8; 72],
    /// Users' bytes.
    pub private_data: PrivateData<136>,
}

header!(SidrRepView of SidrRep, 232 bytes, "SIDR_REP", total);

impl SidrRep {
    /// The specification's name.
    pub const NAME: &str = "SIDR_REP";

    /// Reads what the view shows.
    pub const fn parse(view: SidrRepView<'_>) -> Self {
        let bytes = view.0;
        Self {
            request: CommId(u32_at(bytes, 0)),
            status: SidrStatus::from_code(bytes[4]),
            info_length: bytes[5],
            vendor: (u16_at(bytes, 6) as u32) << 8 | bytes[11] as u32,
            qpn: Qpn::from_wire(u24_at(bytes, 8)),
            service_id: ServiceId(u64_at(bytes, 12)),
            qkey: u32_at(bytes, 20),
            info: get(bytes, 24),
            private_data: PrivateData(get(bytes, 96)),
        }
    }

    /// Writes the message.
    ///
    /// # Panics
    /// `vendor` takes more than 24 bits.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        assert!(self.vendor >> 24 == 0, "a vendor ID has 24 bits");
        let [_, vendor_a, vendor_b, vendor_c] = self.vendor.to_be_bytes();
        put(out, 0, self.request.0.to_be_bytes());
        put(
            out,
            4,
            [self.status.code(), self.info_length, vendor_a, vendor_b],
        );
        put(out, 8, word(self.qpn.get(), vendor_c));
        put(out, 12, self.service_id.0.to_be_bytes());
        put(out, 20, self.qkey.to_be_bytes());
        put(out, 24, self.info);
        put(out, 96, self.private_data.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_comes_back() {
        for code in 0..=255 {
            assert_eq!(SidrStatus::from_code(code).code(), code);
        }
    }
}
