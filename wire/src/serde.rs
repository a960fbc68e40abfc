//! How numbers and addresses go over other wires than RoCEv2's: a GID as its IP address, all others
//! as numbers.

use core::net::IpAddr;
use serde::de::{Deserialize, Deserializer, Error, Unexpected};
use serde::ser::{Serialize, Serializer};

/// A number of at most 24 bits.
pub(crate) fn of_24_bits<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let raw = u32::deserialize(deserializer)?;
    if raw >> 24 == 0 {
        Ok(raw)
    } else {
        let found = Unexpected::Unsigned(raw.into());
        Err(D::Error::invalid_value(found, &"a number of 24 bits"))
    }
}

/// The 16 bytes of a GID as an IP address.
pub(crate) mod address {
    use super::{Deserialize, Deserializer, IpAddr, Serialize, Serializer};
    use crate::Gid;

    pub(crate) fn serialize<S: Serializer>(gid: &[u8; 16], to: S) -> Result<S::Ok, S::Error> {
        Gid(*gid).address().serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<[u8; 16], D::Error> {
        Ok(Gid::from(IpAddr::deserialize(from)?).0)
    }
}
