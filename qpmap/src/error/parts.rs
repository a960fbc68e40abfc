//! Refusals taken apart, so that another process can be told them.

use super::VerbsError;
use crate::allowed::Allowed;
use crate::state::QpState;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

/// Numbers of the refusal that has most: two addresses, each with its family and two halves.
const NUMBERS: usize = 6;

/// A [`VerbsError`] taken apart. Its text is a `T`, as what another process tells is not `'static`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Parts<T> {
    /// Which refusal it is.
    pub kind: u16,
    /// Its numbers in the order of its fields, then zeros.
    pub numbers: [u64; NUMBERS],
    /// Its name or reason, if it has one.
    pub text: Option<T>,
}

impl<T> Parts<T> {
    /// How many numbers there are.
    pub const NUMBERS: usize = NUMBERS;

    /// The same with another text.
    pub fn map_text<U>(self, to: impl FnOnce(T) -> U) -> Parts<U> {
        Parts {
            kind: self.kind,
            numbers: self.numbers,
            text: self.text.map(to),
        }
    }
}

/// Gives each refusal a number, and says which fields it has, in the order of their parts.
macro_rules! kinds {
    ($($kind:literal = $name:ident { $($field:ident),* },)*) => {
        impl VerbsError {
            /// Takes it apart.
            pub fn parts(self) -> Parts<&'static str> {
                match self {
                    $(Self::$name { $($field),* } => {
                        #[allow(unused_mut, reason = "some refusals have no fields")]
                        let mut parts = Cursor::begin($kind);
                        $($field.put(&mut parts);)*
                        parts.parts
                    })*
                }
            }

            /// The refusal that has these parts; `None`: there is none.
            pub fn from_parts(parts: Parts<&'static str>) -> Option<Self> {
                let mut rest = Cursor { parts, at: 0 };
                let error = match parts.kind {
                    $($kind => Self::$name { $($field: Field::take(&mut rest)?),* },)*
                    _ => return None,
                };
                // It may have fewer parts than there are.
                (error.parts() == parts).then_some(error)
            }

            /// One of each kind.
            #[cfg(test)]
            fn any_of_each_kind(draw: &mut tests::Draw<'_>) -> Vec<Self> {
                vec![$(Self::$name { $($field: tests::Any::any(draw)),* }),*]
            }
        }
    };
}

kinds! {
    1 = BadTransition { qpn, from, to },
    2 = WrongState { qpn, state },
    3 = UnknownQp { qpn },
    4 = NotShared { qpn },
    5 = OtherPeer { qpn },
    6 = OtherWorker { remote },
    7 = UnknownConnection { index },
    8 = UnknownCq { cq },
    9 = CqInError { cq },
    10 = TooManyCompletions { count, capacity },
    11 = UnknownSrq { srq },
    12 = SrqInError { srq },
    13 = UnknownPd { pd },
    14 = UnknownRoute { qpn, route },
    15 = UnknownKey { key },
    16 = BadAccess { bits, why },
    17 = EmptyRegion {},
    18 = BadRange { addr, length },
    19 = BadAttribute { what, value, allowed },
    20 = BadFlags { bits, why },
    21 = FixedAttribute { what, state },
    22 = InvalidArgument { what },
    23 = HasSrq { qpn },
    24 = OtherFamily { peer, own },
    25 = TooShort { what, value, least },
    26 = Unsupported { what },
    27 = NotOneHost { address },
    28 = QueueFull { capacity },
    29 = TooManySge { count, max },
    30 = BadSge { index, length, least },
    31 = InlineTooLong { length, max },
    32 = MessageTooLong { length, max },
    33 = Busy { what, users },
    34 = Limit { what, limit },
}

/// Parts, and the place of the next number among them.
struct Cursor {
    parts: Parts<&'static str>,
    at: usize,
}

impl Cursor {
    const fn begin(kind: u16) -> Self {
        let (numbers, text) = ([0; NUMBERS], None);
        let parts = Parts {
            kind,
            numbers,
            text,
        };
        Self { parts, at: 0 }
    }
}

/// What refusals have: each is one or more parts.
trait Field: Sized {
    fn put(self, parts: &mut Cursor);

    /// `None`: the parts are of no such value.
    fn take(parts: &mut Cursor) -> Option<Self>;
}

impl Field for u64 {
    fn put(self, parts: &mut Cursor) {
        parts.parts.numbers[parts.at] = self;
        parts.at += 1;
    }

    fn take(parts: &mut Cursor) -> Option<Self> {
        let number = parts.parts.numbers.get(parts.at)?;
        parts.at += 1;
        Some(*number)
    }
}

impl Field for u32 {
    fn put(self, parts: &mut Cursor) {
        u64::from(self).put(parts);
    }

    fn take(parts: &mut Cursor) -> Option<Self> {
        u64::take(parts)?.try_into().ok()
    }
}

impl Field for &'static str {
    fn put(self, parts: &mut Cursor) {
        parts.parts.text = Some(self);
    }

    fn take(parts: &mut Cursor) -> Option<Self> {
        parts.parts.text
    }
}

impl Field for QpState {
    fn put(self, parts: &mut Cursor) {
        (self as u32).put(parts);
    }

    fn take(parts: &mut Cursor) -> Option<Self> {
        Self::from_value(u32::take(parts)?.try_into().ok()?)
    }
}

impl Field for Duration {
    fn put(self, parts: &mut Cursor) {
        self.as_secs().put(parts);
        self.subsec_nanos().put(parts);
    }

    fn take(parts: &mut Cursor) -> Option<Self> {
        let (seconds, nanos) = (u64::take(parts)?, u32::take(parts)?);
        (nanos < 1_000_000_000).then(|| Self::new(seconds, nanos))
    }
}

impl Field for Allowed {
    fn put(self, parts: &mut Cursor) {
        match self {
            Self::Range(least, most) => {
                1_u32.put(parts);
                least.put(parts);
                most.put(parts);
            }
            Self::PowerOfTwo(least, most) => {
                2_u32.put(parts);
                least.put(parts);
                most.put(parts);
            }
            Self::AtLeast(least) => {
                3_u32.put(parts);
                least.put(parts);
            }
        }
    }

    fn take(parts: &mut Cursor) -> Option<Self> {
        Some(match u32::take(parts)? {
            1 => Self::Range(u32::take(parts)?, u32::take(parts)?),
            2 => Self::PowerOfTwo(u32::take(parts)?, u32::take(parts)?),
            3 => Self::AtLeast(u64::take(parts)?),
            _ => return None,
        })
    }
}

impl Field for IpAddr {
    fn put(self, parts: &mut Cursor) {
        match self {
            Self::V4(address) => {
                4_u32.put(parts);
                address.to_bits().put(parts);
            }
            Self::V6(address) => {
                let bits = address.to_bits();
                6_u32.put(parts);
                ((bits >> 64) as u64).put(parts);
                (bits as u64).put(parts);
            }
        }
    }

    fn take(parts: &mut Cursor) -> Option<Self> {
        Some(match u32::take(parts)? {
            4 => Ipv4Addr::from_bits(u32::take(parts)?).into(),
            6 => {
                let [high, low] = [u64::take(parts)?, u64::take(parts)?];
                Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low)).into()
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests;
