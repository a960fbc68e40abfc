//! APR, alternate path response (IBTA Vol 1, 12.8.2), big-endian, 232 bytes.
//!
//! ```text
//! |  local communication ID  |  remote communication ID |  0..8
//! |  length 8  |  status 8   |  reserved                |  8..12
//! |                 additional info 72                  |  12..84
//! |                 private data 148                    |  84..232
//! ```

use super::{CommId, PrivateData};
use crate::bytes::{get, header, put, u32_at};

/// Alternate path response.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Apr {
    /// Sender's number for the connection.
    pub local: CommId,
    /// Receiver's number for the connection.
    pub remote: CommId,
    /// How much of the additional information counts, in bytes.
    pub info_length: u8,
    /// What became of the proposal.
    pub status: ApStatus,
    /// Additional information.
    pub info: [u8; 72],
    /// Users' bytes.
    pub private_data: PrivateData<148>,
}

/// What became of a proposal for an alternate path (IBTA Vol 1, 12.8.2.1).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum ApStatus {
    /// Loaded.
    Loaded,
    /// A communication ID is unknown.
    InvalidCommId,
    /// Alternate paths are not supported.
    Unsupported,
    /// Refused.
    Refused,
    /// Use the one that the additional information names.
    Redirect,
    /// It is the current primary path.
    IsCurrent,
    /// QPN or EECN and communication IDs do not belong together.
    InvalidQpn,
    /// LID.
    InvalidLid,
    /// GID.
    InvalidGid,
    /// Flow label.
    InvalidFlowLabel,
    /// Traffic class.
    InvalidTrafficClass,
    /// Hop limit.
    InvalidHopLimit,
    /// Packet rate.
    InvalidPacketRate,
    /// Service level.
    InvalidSl,
    /// A code without meaning here.
    Reserved(u8),
}

const STATUSES: [ApStatus; 14] = [
    ApStatus::Loaded,
    ApStatus::InvalidCommId,
    ApStatus::Unsupported,
    ApStatus::Refused,
    ApStatus::Redirect,
    ApStatus::IsCurrent,
    ApStatus::InvalidQpn,
    ApStatus::InvalidLid,
    ApStatus::InvalidGid,
    ApStatus::InvalidFlowLabel,
    ApStatus::InvalidTrafficClass,
    ApStatus::InvalidHopLimit,
    ApStatus::InvalidPacketRate,
    ApStatus::InvalidSl,
];

impl ApStatus {
    /// From the code on the wire.
    pub const fn from_code(code: u8) -> Self {
        if (code as usize) < STATUSES.len() {
            STATUSES[code as usize]
        } else {
            Self::Reserved(code)
        }
    }

    /// The code on the wire.
    pub fn code(self) -> u8 {
        match self {
            Self::Reserved(code) => code,
            known => {
                let place = STATUSES.iter().position(|&status| status == known);
                place.expect("every status but the reserved ones is in the table") as u8
            }
        }
    }
}

header!(AprView of Apr, 232 bytes, "APR", total);

impl Apr {
    /// The specification's name.
    pub const NAME: &str = "APR";

    /// Reads what the view shows.
    pub const fn parse(view: AprView<'_>) -> Self {
        let bytes = view.0;
        Self {
            local: CommId(u32_at(bytes, 0)),
            remote: CommId(u32_at(bytes, 4)),
            info_length: bytes[8],
            status: ApStatus::from_code(bytes[9]),
            info: get(bytes, 12),
            private_data: PrivateData(get(bytes, 84)),
        }
    }

    /// Writes the message.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        put(out, 0, self.local.0.to_be_bytes());
        put(out, 4, self.remote.0.to_be_bytes());
        put(out, 8, [self.info_length, self.status.code(), 0, 0]);
        put(out, 12, self.info);
        put(out, 84, self.private_data.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_comes_back() {
        for code in 0..=255 {
            let status = ApStatus::from_code(code);
            assert_eq!(status.code(), code);
            assert_eq!(matches!(status, ApStatus::Reserved(_)), code > 13);
        }
        assert_eq!(ApStatus::from_code(13), ApStatus::InvalidSl);
    }
}
