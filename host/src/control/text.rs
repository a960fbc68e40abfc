//! Texts of bounded length in messages.

use super::field::{BadValue, Field, bad_value};
use std::fmt;

/// Up to `N` bytes of UTF-8 (at most 255) without control characters, so that it can be shown as it
/// is. In a message: its length in a byte, then `N` bytes, zero behind its end.
#[derive(Clone, Copy, Eq, Hash, PartialEq)]
pub struct Text<const N: usize> {
    length: u8,
    bytes: [u8; N],
}

impl<const N: usize> Text<N> {
    /// `None` where the text is too long or has control characters.
    pub fn new(text: &str) -> Option<Self> {
        let fits = text.len() <= N && !text.contains(char::is_control);
        fits.then(|| Self::clipped(text))
    }

    /// As much of the text as there is room for, with spaces for control characters.
    pub fn clipped(text: &str) -> Self {
        const { assert!(N <= u8::MAX as usize, "the length is a byte") };
        let (mut length, mut bytes) = (0, [0; N]);
        for character in text.chars() {
            let shown = if character.is_control() {
                ' '
            } else {
                character
            };
            let Some(room) = bytes.get_mut(length..length + shown.len_utf8()) else {
                break;
            };
            shown.encode_utf8(room);
            length += shown.len_utf8();
        }
        let length = length as u8;
        Self { length, bytes }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        let text = str::from_utf8(&self.bytes[..usize::from(self.length)]);
        text.expect("made from a text, or judged when it was read")
    }
}

impl<const N: usize> fmt::Debug for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

impl<const N: usize> fmt::Display for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl<const N: usize> Field for Text<N> {
    const LEN: usize = 1 + N;

    fn read(bytes: &[u8]) -> Result<Self, BadValue> {
        let judge = || {
            let (length, bytes) = bytes.split_first()?;
            let (text, padding) = bytes.split_at_checked(usize::from(*length))?;
            let text = Self::new(str::from_utf8(text).ok()?)?;
            padding.iter().all(|byte| *byte == 0).then_some(text)
        };
        judge().ok_or_else(|| bad_value(bytes))
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.push(self.length);
        out.extend_from_slice(&self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_whole_or_clipped_between_characters() {
        let whole = Text::<8>::new("nœud 1").map(|text| text.as_str().to_owned());
        assert_eq!(whole.as_deref(), Some("nœud 1"));
        assert_eq!(Text::<8>::new("nine byte"), None);
        assert_eq!(Text::<8>::new("a\nb"), None);
        assert_eq!(Text::<8>::clipped("abcdefgœ").as_str(), "abcdefg");
        assert_eq!(Text::<8>::clipped("a\nb\u{7f}c").as_str(), "a b c");
        assert_eq!(Text::<0>::clipped("abc").as_str(), "");
    }

    #[test]
    fn bytes_that_are_no_text_are_refused() {
        let read = |bytes: &[u8; 5]| Text::<4>::read(bytes).ok();
        assert_eq!(read(b"\x02ab\0\0"), Text::new("ab"));
        assert_eq!(read(b"\x02abc\0"), None, "something behind its end");
        assert_eq!(read(b"\x05abcd"), None, "longer than its room");
        assert_eq!(read(b"\x02a\xff\0\0"), None, "no UTF-8");
        assert_eq!(read(b"\x02a\x1b\0\0"), None, "a control character");
    }
}
