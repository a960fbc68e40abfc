//! What a Trunkline node says when it refuses: the first 24 of the 148 bytes of a REJ's private
//! data, big-endian; the rest is zero and ignored.
//!
//! ```text
//! |               magic "TRNK"              |  0..4
//! | version |    code    |     reserved     |  4..8
//! |                   GUID                  |  8..16
//! |                start epoch              |  16..24
//! ```

use crate::bytes::{get, put, u64_at};
use crate::hello::{MAGIC, VERSION};
use crate::identity::Identity;
use trunkline_wire::cm::{PrivateData, RejReason};

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $reason:ident, $text:literal;)*) => {
        /// Why a Trunkline node refuses.
        #[derive(Clone, Copy, Debug, Eq, Hash, PartialEq, thiserror::Error)]
        #[non_exhaustive]
        pub enum RefusalCode {
            $($(#[$doc])* #[error($text)] $name,)*
            /// A code of a later version.
            #[error("unknown code {0}")]
            Unknown(u8),
        }

        impl RefusalCode {
            /// All codes that have a meaning.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// From the byte on the wire.
            pub const fn from_byte(byte: u8) -> Self {
                match byte {
                    $($code => Self::$name,)*
                    byte => Self::Unknown(byte),
                }
            }

            /// The byte on the wire.
            pub const fn to_byte(self) -> u8 {
                match self {
                    $(Self::$name => $code,)*
                    Self::Unknown(byte) => byte,
                }
            }

            /// The reason that stands in the REJ beside it.
            pub const fn reason(self) -> RejReason {
                match self {
                    $(Self::$name => RejReason::$reason,)*
                    Self::Unknown(_) => RejReason::ConsumerDefined,
                }
            }
        }
    };
}

codes! {
    /// The node's rules do not allow it.
    Policy = 1, ConsumerDefined, "not allowed by the peer's rules";
    /// Too much is under way; ask again later.
    Busy = 2, NoResources, "the peer is busy";
    /// The asking node is the asked one: their GUIDs and epochs are the same.
    DuplicateGuid = 3, ConsumerDefined, "a node asks itself";
    /// The version of the hello is not spoken here.
    Version = 4, Unsupported, "the peer does not speak this version";
    /// The hello makes no sense.
    Malformed = 5, Unsupported, "the peer could not read the hello";
    /// The asking side has changed its mind.
    Cancelled = 6, ConsumerDefined, "cancelled by the peer";
    /// The asking side did not confirm in time.
    Unconfirmed = 7, Timeout, "not confirmed in time";
    /// The address, or its IPv6 network, has its share of the node's connections.
    Share = 8, NoResources, "this address has its share of the peer's connections";
}

/// A refusal and who refuses.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Refusal {
    /// Why.
    pub code: RefusalCode,
    /// Who.
    pub identity: Identity,
}

impl Refusal {
    /// Reads private data; `None` when no Trunkline node wrote it. The version does not count: this
    /// much is the same in all.
    pub fn parse(data: &PrivateData<148>) -> Option<Self> {
        let bytes = data.bytes();
        (get(bytes, 0) == MAGIC).then(|| Self {
            code: RefusalCode::from_byte(bytes[5]),
            identity: Identity {
                guid: u64_at(bytes, 8),
                epoch: u64_at(bytes, 16),
            },
        })
    }

    /// Writes private data.
    pub fn emit(&self) -> PrivateData<148> {
        let mut out = [0; 148];
        put(&mut out, 0, MAGIC);
        put(&mut out, 4, [VERSION, self.code.to_byte()]);
        put(&mut out, 8, self.identity.guid.to_be_bytes());
        put(&mut out, 16, self.identity.epoch.to_be_bytes());
        PrivateData(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_survives_the_wire() {
        for byte in 0..=u8::MAX {
            let refusal = Refusal {
                code: RefusalCode::from_byte(byte),
                identity: Identity {
                    guid: 0x0102_0304_0506_0708,
                    epoch: 9,
                },
            };
            assert_eq!(refusal.code.to_byte(), byte);
            assert_eq!(Refusal::parse(&refusal.emit()), Some(refusal));
        }
        assert_eq!(RefusalCode::ALL.len(), 8);
    }

    #[test]
    fn private_data_of_others_is_no_refusal() {
        assert_eq!(Refusal::parse(&PrivateData::default()), None);
    }

    #[test]
    fn fields_stand_where_the_map_says() {
        let refusal = Refusal {
            code: RefusalCode::Busy,
            identity: Identity {
                guid: 0x0102_0304_0506_0708,
                epoch: 0x1112_1314_1516_1718,
            },
        };
        let data = refusal.emit();
        assert_eq!(
            data.bytes()[..24],
            [
                b'T', b'R', b'N', b'K', 1, 2, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14,
                0x15, 0x16, 0x17, 0x18
            ]
        );
        assert!(data.bytes()[24..].iter().all(|&byte| byte == 0));
    }
}
