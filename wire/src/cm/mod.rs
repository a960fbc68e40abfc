//! Communication management (IBTA Vol 1, chapter 12): class 7, version 2, method Send. Each
//! message fills the 232 bytes behind the common header of a management datagram.
//!
//! ```text
//! | MAD header 24 | message 232 |
//! ```

mod apr;
mod dreq;
mod field;
mod lap;
mod mra;
mod path_record;
mod private_data;
mod rej;
mod rep;
mod req;
mod rtu;
mod sidr;

use crate::WireError;
use crate::mad::{MAD_LEN, MadHeader};

pub use apr::{ApStatus, Apr, AprView};
pub use dreq::{Drep, DrepView, Dreq, DreqView};
pub use lap::{Lap, LapView};
pub use mra::{Mra, MraView};
pub use path_record::PathRecord;
pub use private_data::PrivateData;
pub use rej::{Rej, RejReason, RejView};
pub use rep::{Rep, RepView};
pub use req::{Req, ReqView, TransportService};
pub use rtu::{Rtu, RtuView};
pub use sidr::{SidrRep, SidrRepView, SidrReq, SidrReqView, SidrStatus};

const CLASS_VERSION: u8 = 2;

/// Number by which one side of a connection being set up knows it; 0 when it knows none.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct CommId(pub u32);

/// Which message a REJ or MRA answers (two bits).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Answered {
    /// A REQ.
    Req,
    /// A REP.
    Rep,
    /// Another: for a REJ none in particular, for an MRA a LAP.
    Other,
    /// The code without meaning.
    Reserved,
}

impl Answered {
    const fn from_code(code: u8) -> Self {
        match code & 3 {
            0 => Self::Req,
            1 => Self::Rep,
            2 => Self::Other,
            _ => Self::Reserved,
        }
    }
}

/// A communication management datagram.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CmMad {
    /// Chosen by the side that began the exchange; stays the same through it.
    pub transaction_id: u64,
    /// What it says.
    pub message: Message,
}

/// A communication management message.
///
/// All are of the same size on the wire, and nearly so here: there is nothing to gain by boxing.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Message {
    /// Asks for a connection.
    Req(Req),
    /// Says that an answer will take its time.
    Mra(Mra),
    /// Refuses.
    Rej(Rej),
    /// Agrees to a connection.
    Rep(Rep),
    /// Confirms: ready to use.
    Rtu(Rtu),
    /// Asks to disconnect.
    Dreq(Dreq),
    /// Confirms the disconnection.
    Drep(Drep),
    /// Asks which QP serves a datagram service.
    SidrReq(SidrReq),
    /// Tells it.
    SidrRep(SidrRep),
    /// Proposes an alternate path.
    Lap(Lap),
    /// Answers the proposal.
    Apr(Apr),
}

macro_rules! attributes {
    ($($message:ident = $id:literal;)*) => {
        impl Message {
            /// Attribute ID.
            pub const fn attribute(&self) -> u16 {
                match self {
                    $(Self::$message(_) => $id,)*
                }
            }

            /// Name in the specification's words, such as `REQ`.
            pub const fn name(&self) -> &'static str {
                match self {
                    $(Self::$message(_) => $message::NAME,)*
                }
            }

            fn parse(attribute: u16, bytes: &[u8]) -> Result<Self, WireError> {
                match attribute {
                    $($id => Ok(Self::$message($message::read(bytes)?.0)),)*
                    _ => {
                        let value = attribute.into();
                        Err(WireError::Invalid { header: "CM", field: "attribute ID", value })
                    }
                }
            }

            fn to_bytes(&self) -> [u8; MAD_LEN - MadHeader::LEN] {
                match self {
                    $(Self::$message(message) => message.to_bytes(),)*
                }
            }
        }

        $(impl From<$message> for Message {
            fn from(message: $message) -> Self {
                Self::$message(message)
            }
        })*
    };
}

attributes! {
    Req = 0x10;
    Mra = 0x11;
    Rej = 0x12;
    Rep = 0x13;
    Rtu = 0x14;
    Dreq = 0x15;
    Drep = 0x16;
    SidrReq = 0x17;
    SidrRep = 0x18;
    Lap = 0x19;
    Apr = 0x1a;
}

impl CmMad {
    /// Reads a management datagram.
    ///
    /// # Errors
    /// Another length, class, version or method; an unknown attribute; a field of the message that
    /// may not be so. Status, class-specific field and modifier are ignored.
    pub fn parse(mad: &[u8]) -> Result<Self, WireError> {
        let Ok(mad) = <&[u8; MAD_LEN]>::try_from(mad) else {
            return Err(WireError::Truncated {
                header: "MAD",
                need: MAD_LEN,
                got: mad.len(),
            });
        };
        let (header, rest) = MadHeader::read(mad)?;
        let refused = |field, value: u8| {
            Err(WireError::Invalid {
                header: "CM",
                field,
                value: value.into(),
            })
        };
        if header.class != MadHeader::CLASS_CM {
            return refused("class", header.class);
        }
        if header.class_version != CLASS_VERSION {
            return refused("class version", header.class_version);
        }
        if header.method != MadHeader::METHOD_SEND {
            return refused("method", header.method);
        }
        let message = Message::parse(header.attribute, rest)?;
        Ok(Self {
            transaction_id: header.transaction_id,
            message,
        })
    }

    /// Writes the datagram.
    pub fn emit(&self, out: &mut [u8; MAD_LEN]) {
        let header = MadHeader {
            class: MadHeader::CLASS_CM,
            class_version: CLASS_VERSION,
            method: MadHeader::METHOD_SEND,
            transaction_id: self.transaction_id,
            attribute: self.message.attribute(),
            ..MadHeader::default()
        };
        let (head, body) = out.split_at_mut(MadHeader::LEN);
        head.copy_from_slice(&header.to_bytes());
        body.copy_from_slice(&self.message.to_bytes());
    }

    /// The datagram as bytes.
    pub fn to_bytes(&self) -> [u8; MAD_LEN] {
        let mut out = [0; MAD_LEN];
        self.emit(&mut out);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Gid, Qpn};

    #[test]
    fn other_classes_versions_methods_and_attributes_are_refused() {
        let rtu = Rtu {
            local: CommId(1),
            remote: CommId(2),
            private_data: Default::default(),
        };
        let mad = CmMad {
            transaction_id: 3,
            message: rtu.into(),
        };
        let good = mad.to_bytes();
        assert_eq!(CmMad::parse(&good), Ok(mad));
        for at in [0, 1, 2, 3, 16, 17] {
            let mut bytes = good;
            bytes[at] ^= 0x80;
            assert!(CmMad::parse(&bytes).is_err(), "byte {at}");
        }
        assert!(CmMad::parse(&good[..255]).is_err());
        assert!(CmMad::parse(&[&good[..], &[0]].concat()).is_err());
    }

    fn path() -> PathRecord {
        PathRecord {
            local_lid: 0x0102,
            remote_lid: 0x0304,
            local_gid: Gid([5; 16]),
            remote_gid: Gid([6; 16]),
            flow_label: 0x7_8901,
            packet_rate: 0x3f,
            traffic_class: 0x0a,
            hop_limit: 0x0b,
            service_level: 0xc,
            subnet_local: true,
            local_ack_timeout: 0x1e,
        }
    }

    // No capture holds these messages, so their maps are spelled out.

    #[test]
    fn fields_of_a_lap_stand_where_the_map_says() {
        let lap = Lap {
            local: CommId(1),
            remote: CommId(2),
            remote_qpn: Qpn::from_wire(0x0003_0405),
            remote_response_timeout: 0x15,
            alternate: path(),
            private_data: PrivateData([9; 168]),
        };
        let bytes = lap.to_bytes();
        assert_eq!(bytes[..12], [0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0]);
        assert_eq!(bytes[12..20], [3, 4, 5, 0xa8, 0, 0, 0, 0]);
        assert_eq!(bytes[20..24], [1, 2, 3, 4]);
        assert_eq!(
            (&bytes[24..40], &bytes[40..56]),
            (&[5; 16][..], &[6; 16][..])
        );
        assert_eq!(
            bytes[56..64],
            [0x78, 0x90, 0x10, 0x0a, 0x0b, 0x3f, 0xc8, 0xf0]
        );
        assert_eq!(bytes[64..], [9; 168]);
    }

    #[test]
    fn fields_of_an_mra_and_an_apr_stand_where_the_maps_say() {
        let mra = Mra {
            local: CommId(1),
            remote: CommId(2),
            received: Answered::Rep,
            service_timeout: 0x1f,
            private_data: PrivateData([9; 222]),
        };
        let bytes = mra.to_bytes();
        assert_eq!(bytes[..10], [0, 0, 0, 1, 0, 0, 0, 2, 0x40, 0xf8]);
        assert_eq!(bytes[10..], [9; 222]);
        let apr = Apr {
            local: CommId(1),
            remote: CommId(2),
            info_length: 3,
            status: ApStatus::InvalidGid,
            info: [4; 72],
            private_data: PrivateData([9; 148]),
        };
        let bytes = apr.to_bytes();
        assert_eq!(bytes[..12], [0, 0, 0, 1, 0, 0, 0, 2, 3, 8, 0, 0]);
        assert_eq!(
            (&bytes[12..84], &bytes[84..]),
            (&[4; 72][..], &[9; 148][..])
        );
    }

    #[test]
    fn fields_of_a_req_that_no_capture_sets_stand_where_the_map_says() {
        let req = Req {
            qkey: 0x0102_0304,
            eecn: 0x0005_0607,
            remote_eecn: 0x0008_090a,
            service: TransportService::Rd,
            flow_control: true,
            rdc_exists: true,
            srq: true,
            extended_type: 5,
            alternate: path(),
            ..Req::default()
        };
        let bytes = req.to_bytes();
        assert_eq!(
            bytes[28..44],
            [1, 2, 3, 4, 0, 0, 0, 0, 5, 6, 7, 0, 8, 9, 0x0a, 0x05]
        );
        assert_eq!(bytes[50..52], [0x08, 0x0d]);
        assert_eq!(bytes[52..96], PathRecord::default().to_bytes());
        assert_eq!(bytes[96..100], [1, 2, 3, 4]);
        let end = [0x78, 0x90, 0x10, 0x3f, 0x0a, 0x0b, 0xc8, 0xf0];
        assert_eq!(bytes[132..140], end);
    }

    #[test]
    fn fields_of_a_rep_that_no_capture_sets_stand_where_the_map_says() {
        let rep = Rep {
            qkey: 0x0102_0304,
            eecn: 0x0005_0607,
            failover: 2,
            flow_control: true,
            srq: true,
            ..Rep::default()
        };
        let bytes = rep.to_bytes();
        assert_eq!(
            (&bytes[8..12], &bytes[16..20]),
            (&[1, 2, 3, 4][..], &[5, 6, 7, 0][..])
        );
        assert_eq!(bytes[26..28], [0x05, 0x10]);
    }
}
