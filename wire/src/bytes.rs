//! What every header needs: big-endian fields at fixed places, and its view.

use crate::WireError;

/// The `N` bytes at `at`. Only for constant places inside arrays of fixed length.
#[inline(always)]
pub(crate) const fn get<const N: usize, const LEN: usize>(bytes: &[u8; LEN], at: usize) -> [u8; N] {
    let mut out = [0; N];
    let mut i = 0;
    while i < N {
        out[i] = bytes[at + i];
        i += 1;
    }
    out
}

#[inline(always)]
pub(crate) const fn u16_at<const LEN: usize>(bytes: &[u8; LEN], at: usize) -> u16 {
    u16::from_be_bytes(get(bytes, at))
}

#[inline(always)]
pub(crate) const fn u24_at<const LEN: usize>(bytes: &[u8; LEN], at: usize) -> u32 {
    u32::from_be_bytes([0, bytes[at], bytes[at + 1], bytes[at + 2]])
}

#[inline(always)]
pub(crate) const fn u32_at<const LEN: usize>(bytes: &[u8; LEN], at: usize) -> u32 {
    u32::from_be_bytes(get(bytes, at))
}

#[inline(always)]
pub(crate) const fn u64_at<const LEN: usize>(bytes: &[u8; LEN], at: usize) -> u64 {
    u64::from_be_bytes(get(bytes, at))
}

/// Writes `value` at `at`. Only for constant places inside arrays of fixed length.
#[inline(always)]
pub(crate) fn put<const N: usize>(out: &mut [u8], at: usize, value: [u8; N]) {
    out[at..at + N].copy_from_slice(&value);
}

/// Writes the low 24 bits of `value`.
#[inline(always)]
pub(crate) fn put_u24(out: &mut [u8], at: usize, value: u32) {
    let [_, a, b, c] = value.to_be_bytes();
    put(out, at, [a, b, c]);
}

/// Writes `bytes` at the front of `rest`, which is the room behind them afterwards. Only for room
/// whose length was reckoned from the same parts.
pub(crate) fn append(rest: &mut &mut [u8], bytes: &[u8]) {
    let place = rest
        .split_off_mut(..bytes.len())
        .expect("the room was reckoned beforehand");
    place.copy_from_slice(bytes);
}

/// A payload as entries of `N` bytes each.
///
/// # Errors
/// It is not a whole number of them.
pub(crate) fn entries<'a, const N: usize>(
    header: &'static str,
    payload: &'a [u8],
) -> Result<&'a [[u8; N]], WireError> {
    match payload.as_chunks() {
        (entries, []) => Ok(entries),
        _ => Err(WireError::Invalid {
            header,
            field: "length",
            value: payload.len() as u32,
        }),
    }
}

/// The view of a header, and what its representation gets from having a fixed length.
///
/// `total` when every value of the bytes is valid, so that `parse` returns the representation
/// itself; `checked` when it returns a `Result`.
macro_rules! header {
    ($view:ident of $repr:ident, $len:literal bytes, $name:literal, $parse:ident) => {
        #[doc = concat!("Borrowed bytes of ", $name, ": accessors cannot fail, nothing is judged.")]
        #[derive(Clone, Copy, Debug)]
        pub struct $view<'a>(&'a [u8; $len]);

        impl<'a> $view<'a> {
            /// Looks at exactly these bytes.
            pub const fn new(bytes: &'a [u8; $len]) -> Self {
                Self(bytes)
            }

            /// Splits the header off the front of `buf`; the rest follows it.
            ///
            /// # Errors
            /// [`WireError::Truncated`](crate::WireError::Truncated): `buf` is shorter.
            #[inline]
            pub const fn split(buf: &'a [u8]) -> Result<(Self, &'a [u8]), crate::WireError> {
                match buf.split_first_chunk() {
                    Some((head, rest)) => Ok((Self(head), rest)),
                    None => Err(crate::WireError::Truncated {
                        header: $name,
                        need: $len,
                        got: buf.len(),
                    }),
                }
            }

            /// The bytes looked at.
            pub const fn bytes(self) -> &'a [u8; $len] {
                self.0
            }
        }

        impl $repr {
            /// Bytes on the wire.
            pub const LEN: usize = $len;

            /// Reads the header off the front of `buf`; the rest follows it.
            ///
            /// # Errors
            /// `buf` is shorter, or holds what the header does not allow.
            #[inline]
            pub fn read(buf: &[u8]) -> Result<(Self, &[u8]), crate::WireError> {
                let (view, rest) = $view::split(buf)?;
                Ok((crate::bytes::parsed!($parse, Self::parse(view)), rest))
            }

            /// The header as bytes.
            #[inline]
            pub fn to_bytes(&self) -> [u8; $len] {
                let mut out = [0; $len];
                self.emit(&mut out);
                out
            }
        }
    };
}

macro_rules! parsed {
    (total, $parsed:expr) => {
        $parsed
    };
    (checked, $parsed:expr) => {
        $parsed?
    };
}

pub(crate) use {header, parsed};
