//! Fields of messages: what stands one behind the other, without padding, little-endian.

use super::Text;
use crate::Handle;
use crate::piece::PieceName;
use std::num::NonZeroU32;
use trunkline_conn::mem::Access;
use trunkline_qpmap::error::Parts;
use trunkline_qpmap::{QpState, QpType, VerbsError};
use trunkline_wire::{Gid, Lkey, Psn, Qpn, Rkey};

/// A value that a field does not allow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BadValue {
    /// Which field of a field that has several.
    pub(super) inner: Option<&'static str>,
    /// The first eight bytes of what stood there, as a number.
    pub(super) value: u64,
}

/// A type that has a fixed place in messages.
pub(crate) trait Field: Sized {
    /// Bytes in a message.
    const LEN: usize;

    /// Judges [`LEN`](Self::LEN) bytes.
    ///
    /// # Errors
    /// The type has no such value.
    fn read(bytes: &[u8]) -> Result<Self, BadValue>;

    /// Appends [`LEN`](Self::LEN) bytes.
    fn write(&self, out: &mut Vec<u8>);
}

/// What is told of bytes that are refused.
pub(super) fn bad_value(bytes: &[u8]) -> BadValue {
    let mut value = [0; 8];
    let shown = bytes.len().min(8);
    value[..shown].copy_from_slice(&bytes[..shown]);
    BadValue {
        inner: None,
        value: u64::from_le_bytes(value),
    }
}

/// Reads the field at the front of `bytes`, which are those behind it afterwards.
pub(super) fn next<T: Field>(bytes: &mut &[u8]) -> Result<T, BadValue> {
    let field = bytes.split_off(..T::LEN);
    T::read(field.ok_or_else(|| bad_value(&[]))?)
}

macro_rules! numbers {
    ($($number:ty),*) => {
        $(impl Field for $number {
            const LEN: usize = size_of::<Self>();

            fn read(bytes: &[u8]) -> Result<Self, BadValue> {
                let bytes = bytes.try_into().map_err(|_| bad_value(bytes))?;
                Ok(Self::from_le_bytes(bytes))
            }

            fn write(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
        })*
    };
}

numbers!(u8, u16, u32, u64);

/// A type that stands in a message as a number: not each number need be one.
macro_rules! by_number {
    ($($type:ty as $number:ty: $from:expr, $to:expr;)*) => {
        $(impl Field for $type {
            const LEN: usize = <$number>::LEN;

            fn read(bytes: &[u8]) -> Result<Self, BadValue> {
                let from: fn($number) -> Option<Self> = $from;
                from(<$number>::read(bytes)?).ok_or_else(|| bad_value(bytes))
            }

            fn write(&self, out: &mut Vec<u8>) {
                let to: fn(&Self) -> $number = $to;
                to(self).write(out);
            }
        })*
    };
}

by_number! {
    bool as u8: |byte| (byte < 2).then_some(byte == 1), |flag| u8::from(*flag);
    Access as u32: |bits| Some(Self::from_bits(bits)), |access| access.bits();
    Lkey as u32: |key| Some(Self(key)), |key| key.0;
    Rkey as u32: |key| Some(Self(key)), |key| key.0;
    Qpn as u32: Self::new, |qpn| qpn.get();
    Psn as u32: |psn| (psn <= MAX_PSN).then_some(Self::from_wire(psn)), |psn| psn.get();
    QpState as u8: Self::from_value, |state| *state as u8;
    QpType as u8: Self::from_value, |kind| *kind as u8;
}

const MAX_PSN: u32 = 0x00ff_ffff;

impl Field for Gid {
    const LEN: usize = 16;

    fn read(bytes: &[u8]) -> Result<Self, BadValue> {
        let bytes = bytes.try_into().map_err(|_| bad_value(bytes))?;
        Ok(Self(bytes))
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }
}

impl Field for Handle {
    const LEN: usize = 8;

    fn read(bytes: &[u8]) -> Result<Self, BadValue> {
        let mut rest = bytes;
        let index = next(&mut rest)?;
        let serial = NonZeroU32::new(next(&mut rest)?).ok_or_else(|| bad_value(bytes))?;
        Ok(Self { index, serial })
    }

    fn write(&self, out: &mut Vec<u8>) {
        self.index.write(out);
        self.serial.get().write(out);
    }
}

impl Field for PieceName {
    const LEN: usize = 16;

    fn read(bytes: &[u8]) -> Result<Self, BadValue> {
        let mut rest = bytes;
        Ok(Self {
            segment: next(&mut rest)?,
            offset: next(&mut rest)?,
            words: next(&mut rest)?,
        })
    }

    fn write(&self, out: &mut Vec<u8>) {
        self.segment.write(out);
        self.offset.write(out);
        self.words.write(out);
    }
}

impl Field for Parts<Text<64>> {
    const LEN: usize = u16::LEN + size_of::<[u64; Self::NUMBERS]>() + Option::<Text<64>>::LEN;

    fn read(bytes: &[u8]) -> Result<Self, BadValue> {
        let mut rest = bytes;
        let kind = next(&mut rest)?;
        let mut numbers = [0; Self::NUMBERS];
        for number in &mut numbers {
            *number = next(&mut rest)?;
        }
        let text = next(&mut rest)?;
        let parts = Self {
            kind,
            numbers,
            text,
        };
        // Any text will do.
        let error = VerbsError::from_parts(parts.map_text(|_| ""));
        error.map(|_| parts).ok_or_else(|| bad_value(bytes))
    }

    fn write(&self, out: &mut Vec<u8>) {
        self.kind.write(out);
        for number in self.numbers {
            number.write(out);
        }
        self.text.write(out);
    }
}

/// A byte that is 1 and the value, or zeros.
impl<T: Field> Field for Option<T> {
    const LEN: usize = 1 + T::LEN;

    fn read(bytes: &[u8]) -> Result<Self, BadValue> {
        let mut rest = bytes;
        if next(&mut rest)? {
            return T::read(rest).map(Some);
        }
        let zero = rest.iter().all(|byte| *byte == 0);
        zero.then_some(None).ok_or_else(|| bad_value(bytes))
    }

    fn write(&self, out: &mut Vec<u8>) {
        self.is_some().write(out);
        match self {
            Some(value) => value.write(out),
            None => out.resize(out.len() + T::LEN, 0),
        }
    }
}

/// An enumeration with a number for each value, and a message field of it.
macro_rules! numbered {
    (
        $(#[$outer:meta])*
        pub enum $name:ident: $number:ty {
            $($(#[$inner:meta])* $value:ident = $is:literal,)*
        }
    ) => {
        $(#[$outer])*
        #[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
        pub enum $name {
            $($(#[$inner])* $value = $is,)*
        }

        impl $crate::control::field::Field for $name {
            const LEN: usize = size_of::<$number>();

            fn read(bytes: &[u8]) -> Result<Self, $crate::control::field::BadValue> {
                match <$number>::read(bytes)? {
                    $($is => Ok(Self::$value),)*
                    _ => Err($crate::control::field::bad_value(bytes)),
                }
            }

            fn write(&self, out: &mut Vec<u8>) {
                (*self as $number).write(out);
            }
        }

        #[cfg(test)]
        impl $crate::control::tests::Any for $name {
            fn any(draw: &mut $crate::control::tests::Draw<'_>) -> Self {
                draw.one_of(&[$(Self::$value),*])
            }
        }
    };
}

pub(super) use numbered;
