//! Fields of fewer than eight bits, which share bytes with others.

/// `value`, checked to fit `bits` bits.
///
/// # Panics
/// It does not: whoever built the message is at fault.
#[inline]
pub(super) const fn fit(value: u8, bits: u32) -> u8 {
    assert!(
        value >> bits == 0,
        "a field of a message takes more bits than it has"
    );
    value
}

/// A number of 24 bits and a byte, as they share a word.
pub(super) const fn word(number: u32, byte: u8) -> [u8; 4] {
    let [_, a, b, c] = number.to_be_bytes();
    [a, b, c, byte]
}

/// The low bit.
pub(super) const fn bit(byte: u8, shift: u32) -> bool {
    byte >> shift & 1 != 0
}
