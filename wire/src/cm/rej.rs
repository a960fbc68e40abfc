//! REJ, refusal (IBTA Vol 1, 12.6.7), big-endian, 232 bytes.
//!
//! ```text
//! |  local communication ID  |  remote communication ID |  0..8
//! |  refused 2, reserved 6   |  length 7, reserved 1    |  8..10
//! |  reason 16               |  additional info 72      |  10..84
//! |                 private data 148                    |  84..232
//! ```

use super::field::fit;
use super::{Answered, CommId, PrivateData};
use crate::bytes::{get, header, put, u16_at, u32_at};

/// Refusal, or end of an attempt.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Rej {
    /// Sender's number for the connection; 0 when it made none.
    pub local: CommId,
    /// Receiver's number for the connection.
    pub remote: CommId,
    /// Which message is refused.
    pub refused: Answered,
    /// Why.
    pub reason: RejReason,
    /// How much of the additional information counts, in bytes, 7 bits.
    pub info_length: u8,
    /// Additional information: for example a redirection, or a value that would do.
    pub info: [u8; 72],
    /// Users' bytes.
    pub private_data: PrivateData<148>,
}

header!(RejView of Rej, 232 bytes, "REJ", total);

impl RejView<'_> {
    /// Sender's number for the connection.
    pub const fn local(self) -> CommId {
        CommId(u32_at(self.0, 0))
    }

    /// Receiver's number for the connection.
    pub const fn remote(self) -> CommId {
        CommId(u32_at(self.0, 4))
    }
}

impl Rej {
    /// The specification's name.
    pub const NAME: &str = "REJ";

    /// A refusal without additional information or private data.
    pub fn new(local: CommId, remote: CommId, refused: Answered, reason: RejReason) -> Self {
        Self {
            local,
            remote,
            refused,
            reason,
            info_length: 0,
            info: [0; 72],
            private_data: PrivateData::default(),
        }
    }

    /// Reads what the view shows.
    pub const fn parse(view: RejView<'_>) -> Self {
        let bytes = view.0;
        Self {
            local: view.local(),
            remote: view.remote(),
            refused: Answered::from_code(bytes[8] >> 6),
            reason: RejReason::from_code(u16_at(bytes, 10)),
            info_length: bytes[9] >> 1,
            info: get(bytes, 12),
            private_data: PrivateData(get(bytes, 84)),
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
            [(self.refused as u8) << 6, fit(self.info_length, 7) << 1],
        );
        put(out, 10, self.reason.code().to_be_bytes());
        put(out, 12, self.info);
        put(out, 84, self.private_data.0);
    }
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $reason:ident = $code:literal,)*) => {
        /// Why communication is refused (IBTA Vol 1, 12.6.7.2).
        #[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
        pub enum RejReason {
            $($(#[$doc])* $reason,)*
            /// A code without meaning here.
            Reserved(u16),
        }

        impl RejReason {
            /// From the code on the wire.
            pub const fn from_code(code: u16) -> Self {
                match code {
                    $($code => Self::$reason,)*
                    code => Self::Reserved(code),
                }
            }

            /// The code on the wire.
            pub const fn code(self) -> u16 {
                match self {
                    $(Self::$reason => $code,)*
                    Self::Reserved(code) => code,
                }
            }
        }
    };
}

reasons! {
    /// No QP is to be had.
    NoQp = 1,
    /// No end-to-end context is to be had.
    NoEec = 2,
    /// Some other resource is not to be had.
    NoResources = 3,
    /// The other side did not answer in time.
    Timeout = 4,
    /// The request is not supported.
    Unsupported = 5,
    /// A communication ID is unknown.
    InvalidCommId = 6,
    /// Communication IDs, QPN or EECN do not belong together.
    InvalidCommInstance = 7,
    /// Nobody listens on the service ID.
    InvalidServiceId = 8,
    /// The transport service is not what the service wants.
    InvalidTransportType = 9,
    /// The sender still knows a connection of this QP.
    StaleConnection = 10,
    /// The reliable datagram channel does not exist.
    RdcNotExist = 11,
    /// Primary remote GID.
    InvalidGid = 12,
    /// Primary remote LID.
    InvalidLid = 13,
    /// Primary service level.
    InvalidSl = 14,
    /// Primary traffic class.
    InvalidTrafficClass = 15,
    /// Primary hop limit.
    InvalidHopLimit = 16,
    /// Primary packet rate.
    InvalidPacketRate = 17,
    /// Alternate remote GID.
    InvalidAltGid = 18,
    /// Alternate remote LID.
    InvalidAltLid = 19,
    /// Alternate service level.
    InvalidAltSl = 20,
    /// Alternate traffic class.
    InvalidAltTrafficClass = 21,
    /// Alternate hop limit.
    InvalidAltHopLimit = 22,
    /// Alternate packet rate.
    InvalidAltPacketRate = 23,
    /// Ask the communication manager that the additional information names.
    PortCmRedirect = 24,
    /// Connect to the port that the additional information names.
    PortRedirect = 25,
    /// Path MTU.
    InvalidMtu = 26,
    /// The responder resources do not suffice.
    InsufficientRespResources = 27,
    /// The user's own reason, in the private data.
    ConsumerDefined = 28,
    /// RNR retry count.
    InvalidRnrRetry = 29,
    /// The sender of the REQ uses its communication ID already.
    DuplicateLocalCommId = 30,
    /// Class version.
    InvalidClassVersion = 31,
    /// Primary flow label.
    InvalidFlowLabel = 32,
    /// Alternate flow label.
    InvalidAltFlowLabel = 33,
    /// An option that vendors negotiate is not supported.
    VendorOptionNotSupported = 35,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_comes_back_and_unknown_ones_are_kept() {
        for code in 0..=u16::MAX {
            let reason = RejReason::from_code(code);
            assert_eq!(reason.code(), code);
            let known = matches!(code, 1..=33 | 35);
            assert_eq!(matches!(reason, RejReason::Reserved(_)), !known, "{code}");
        }
        assert_eq!(RejReason::from_code(8), RejReason::InvalidServiceId);
        assert_eq!(RejReason::from_code(28), RejReason::ConsumerDefined);
    }
}
