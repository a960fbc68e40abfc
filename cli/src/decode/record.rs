//! What there is to say of a packet, for people and as JSON.

use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};
use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use trunkline_wire::Qpn;

/// One value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// A count or position.
    Number(u64),
    /// Bits, in this many hexadecimal digits.
    Hex(u64, usize),
    /// A QP: hexadecimal for people, a number in JSON.
    Qp(Qpn),
    /// Words.
    Words(Cow<'static, str>),
    /// Something that holds or not; shown to people only when it does.
    Flag(bool),
    /// Several of a kind.
    List(Vec<Fields>),
}

/// Values by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Fields(pub(crate) Vec<(&'static str, Value)>);

/// Whether a packet is what it should be.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Verdict {
    /// Readable, and its ICRC is right.
    Ok,
    /// Readable, but the ICRC is wrong: whatever it says may be noise.
    BadIcrc,
    /// It cannot be read, for this reason.
    Malformed(String),
}

/// A packet.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Record {
    /// Frame in the capture, from 1 on.
    pub(crate) number: u64,
    /// When it was captured, in nanoseconds since 1970.
    pub(crate) time_ns: u64,
    /// When it was captured, in nanoseconds since the first frame.
    pub(crate) since_ns: u64,
    /// From and to, where the IP header is readable.
    pub(crate) addresses: Option<(IpAddr, IpAddr)>,
    /// Name of the opcode, where the headers are readable.
    pub(crate) opcode: Option<&'static str>,
    /// Name of the CM message that it carries.
    pub(crate) cm: Option<&'static str>,
    /// What the BTH says.
    pub(crate) base: Fields,
    /// The other headers, and what is known of the payload.
    pub(crate) sections: Vec<(&'static str, Fields)>,
    /// What it is worth.
    pub(crate) verdict: Verdict,
}

impl Fields {
    /// Adds a value.
    pub(crate) fn add(&mut self, name: &'static str, value: Value) {
        self.0.push((name, value));
    }
}

/// `fields! { "name": Value, ... }`
macro_rules! fields {
    ($($name:literal: $value:expr),* $(,)?) => {
        $crate::decode::record::Fields(vec![$(($name, $value)),*])
    };
}
pub(crate) use fields;

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl From<u32> for Value {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

impl From<u16> for Value {
    fn from(number: u16) -> Self {
        Self::Number(number.into())
    }
}

impl From<u8> for Value {
    fn from(number: u8) -> Self {
        Self::Number(number.into())
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl From<Qpn> for Value {
    fn from(qpn: Qpn) -> Self {
        Self::Qp(qpn)
    }
}

impl From<&'static str> for Value {
    fn from(words: &'static str) -> Self {
        Self::Words(words.into())
    }
}

impl From<String> for Value {
    fn from(words: String) -> Self {
        Self::Words(words.into())
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Hex(bits, digits) => write!(f, "{bits:#0width$x}", width = digits + 2),
            Self::Qp(qpn) => write!(f, "{qpn}"),
            Self::Words(words) if words.contains(' ') => write!(f, "'{words}'"),
            Self::Words(words) => f.write_str(words),
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::List(list) => list.iter().try_for_each(|fields| write!(f, "[{fields}]")),
        }
    }
}

impl fmt::Display for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut gap = "";
        for (name, value) in &self.0 {
            match value {
                Value::Flag(false) => continue,
                Value::Flag(true) => write!(f, "{gap}{name}")?,
                value => write!(f, "{gap}{name}={value}")?,
            }
            gap = " ";
        }
        Ok(())
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.since_ns / 1_000_000_000;
        let fraction = self.since_ns % 1_000_000_000;
        write!(f, "{:>6} {seconds:>4}.{fraction:09}", self.number)?;
        if let Some((src, dst)) = self.addresses {
            write!(f, " {src} > {dst}")?;
        }
        if let Some(opcode) = self.opcode {
            write!(f, " {opcode}")?;
        }
        if !self.base.0.is_empty() {
            write!(f, " {}", self.base)?;
        }
        for (name, fields) in &self.sections {
            write!(f, " | {name} {fields}")?;
        }
        match &self.verdict {
            Verdict::Ok => f.write_str(" | icrc ok"),
            Verdict::BadIcrc => f.write_str(" | icrc BAD"),
            Verdict::Malformed(why) => write!(f, " | MALFORMED: {why}"),
        }
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Number(number) => serializer.serialize_u64(*number),
            // Not a number: most readers of JSON lose the low bits of 64.
            Self::Hex(..) => serializer.collect_str(self),
            Self::Qp(qpn) => serializer.serialize_u32(qpn.get()),
            Self::Words(words) => serializer.serialize_str(words),
            Self::Flag(flag) => serializer.serialize_bool(*flag),
            Self::List(list) => {
                let mut items = serializer.serialize_seq(Some(list.len()))?;
                for fields in list {
                    items.serialize_element(fields)?;
                }
                items.end()
            }
        }
    }
}

impl Serialize for Fields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

impl Serialize for Record {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("number", &self.number)?;
        map.serialize_entry("time_ns", &self.time_ns)?;
        if let Some((src, dst)) = self.addresses {
            map.serialize_entry("src", &src)?;
            map.serialize_entry("dst", &dst)?;
        }
        if let Some(opcode) = self.opcode {
            map.serialize_entry("opcode", opcode)?;
        }
        for (name, value) in &self.base.0 {
            map.serialize_entry(name, value)?;
        }
        for (name, fields) in &self.sections {
            map.serialize_entry(name, fields)?;
        }
        match &self.verdict {
            Verdict::Ok => map.serialize_entry("icrc", "ok")?,
            Verdict::BadIcrc => map.serialize_entry("icrc", "bad")?,
            Verdict::Malformed(why) => map.serialize_entry("malformed", why)?,
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(verdict: Verdict) -> Record {
        let entry = fields! { "msn": 7_u32.into() };
        Record {
            number: 3,
            time_ns: 5_000_000_001,
            since_ns: 1_000_000_001,
            addresses: Some(([1, 2, 3, 4].into(), [5, 6, 7, 8].into())),
            opcode: Some("RC_ACKNOWLEDGE"),
            cm: None,
            base: fields! { "qp": Qpn::from_wire(17).into(), "ack_req": false.into() },
            sections: vec![(
                "aeth",
                fields! { "syndrome": "RNR NAK".into(), "list": Value::List(vec![entry]) },
            )],
            verdict,
        }
    }

    #[test]
    fn a_record_is_one_line_for_people() {
        assert_eq!(
            record(Verdict::Ok).to_string(),
            "     3    1.000000001 1.2.3.4 > 5.6.7.8 RC_ACKNOWLEDGE qp=0x000011 | aeth \
             syndrome='RNR NAK' list=[msn=7] | icrc ok"
        );
        assert!(record(Verdict::BadIcrc).to_string().ends_with("| icrc BAD"));
        let malformed = record(Verdict::Malformed("too short".to_owned()));
        assert!(malformed.to_string().ends_with("| MALFORMED: too short"));
    }

    #[test]
    fn a_record_is_one_object_for_programs() {
        let json = serde_json::to_string(&record(Verdict::Ok)).expect("it has string keys");
        assert_eq!(
            json,
            "{\"number\":3,\"time_ns\":5000000001,\"src\":\"1.2.3.4\",\"dst\":\"5.6.7.8\",\
             \"opcode\":\"RC_ACKNOWLEDGE\",\"qp\":17,\"ack_req\":false,\"aeth\":{\"syndrome\":\
             \"RNR NAK\",\"list\":[{\"msn\":7}]},\"icrc\":\"ok\"}"
        );
    }

    #[test]
    fn hexadecimal_values_keep_their_width() {
        assert_eq!(Value::Hex(0x1f, 8).to_string(), "0x0000001f");
        assert_eq!(Value::Hex(u64::MAX, 16).to_string(), "0xffffffffffffffff");
    }
}
