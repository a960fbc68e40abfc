//! Running CRC-32 (IEEE 802.3, reflected): the sum behind the ICRC, and its algebra.
//!
//! Bytes are polynomials over GF(2), and the CRC is a remainder modulo a fixed one; so it is
//! linear: sums of parts combine, and a difference in the sum tells a difference in the bytes.
//! Remainders are held reflected: bit 31 is the coefficient of x^0, bit 0 that of x^31.

/// The polynomial without its highest term, reflected.
const POLYNOMIAL: u32 = 0xedb8_8320;
/// The remainder 1.
const ONE: u32 = 0x8000_0000;

/// A CRC-32 that bytes are fed into piece by piece.
///
/// The state is the *finished* value so far (as `crc32fast::Hasher::finalize` gives it), so that
/// copy engines elsewhere can carry it through a fused copy-and-sum.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Crc(u32);

impl Crc {
    /// Nothing summed yet.
    pub const fn new() -> Self {
        Self(0)
    }

    /// Resumes from [`value`](Self::value).
    pub const fn resume(value: u32) -> Self {
        Self(value)
    }

    /// The CRC-32 of all bytes fed so far.
    pub const fn value(self) -> u32 {
        self.0
    }

    /// Feeds `bytes`.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        let mut hasher = crc32fast::Hasher::new_with_initial(self.0);
        hasher.update(bytes);
        self.0 = hasher.finalize();
    }

    /// The CRC-32 of the bytes fed here followed by the `length` bytes that `tail` is the sum of.
    /// Takes some hundred nanoseconds, whatever `length` is.
    #[must_use]
    pub const fn followed_by(self, tail: Self, length: u64) -> Self {
        Self(multiply(self.0, power(&X_POWERS, length)) ^ tail.0)
    }

    /// What a difference of `self` and `other` was `bytes` bytes before the end, had both been fed
    /// the same since: the difference of the states there.
    pub(crate) const fn difference_before(self, other: Self, bytes: u64) -> u32 {
        multiply(self.0 ^ other.0, power(&X_INVERSE_POWERS, bytes))
    }
}

/// `a * x`.
const fn times_x(a: u32) -> u32 {
    if a & 1 == 0 {
        a >> 1
    } else {
        a >> 1 ^ POLYNOMIAL
    }
}

/// The remainder that times x is `a`.
const fn divided_by_x(a: u32) -> u32 {
    if a & ONE == 0 {
        a << 1
    } else {
        (a ^ POLYNOMIAL) << 1 | 1
    }
}

const fn multiply(a: u32, b: u32) -> u32 {
    let mut sum = 0;
    let mut shifted = b;
    let mut i = 0;
    while i < 32 {
        // All ones when a has the coefficient of x^i: no branch on data.
        let mask = 0_u32.wrapping_sub(a >> (31 - i) & 1);
        sum ^= shifted & mask;
        shifted = times_x(shifted);
        i += 1;
    }
    sum
}

/// `base^(8 * bytes)` from the table of `base^(8 * 2^k)`.
const fn power(table: &[u32; 64], bytes: u64) -> u32 {
    let mut product = ONE;
    let mut left = bytes;
    while left != 0 {
        product = multiply(product, table[left.trailing_zeros() as usize]);
        left &= left - 1;
    }
    product
}

const fn squares(of_a_byte: u32) -> [u32; 64] {
    let mut table = [of_a_byte; 64];
    let mut k = 1;
    while k < 64 {
        table[k] = multiply(table[k - 1], table[k - 1]);
        k += 1;
    }
    table
}

/// What 8 zero bits do to a state.
const fn byte_on(state: u32) -> u32 {
    let mut state = state;
    let mut i = 0;
    while i < 8 {
        state = times_x(state);
        i += 1;
    }
    state
}

const fn byte_back(state: u32) -> u32 {
    let mut state = state;
    let mut i = 0;
    while i < 8 {
        state = divided_by_x(state);
        i += 1;
    }
    state
}

static X_POWERS: [u32; 64] = squares(byte_on(ONE));
static X_INVERSE_POWERS: [u32; 64] = squares(byte_back(ONE));

/// For every value of one byte, what it adds to a sum that ends `after` bytes behind it.
pub(crate) const fn contributions(after: usize) -> [u32; 256] {
    per_byte(true, after + 1)
}

/// For every value, the state that after `before` bytes has turned into that value.
pub(crate) const fn preimages(before: usize) -> [u32; 256] {
    per_byte(false, before)
}

const fn per_byte(forward: bool, bytes: usize) -> [u32; 256] {
    let mut table = [0; 256];
    let mut value = 1;
    while value < 256 {
        if value & (value - 1) == 0 {
            let mut state = value as u32;
            let mut i = 0;
            while i < bytes {
                state = if forward {
                    byte_on(state)
                } else {
                    byte_back(state)
                };
                i += 1;
            }
            table[value] = state;
        } else {
            // Linear: the sum over the bits.
            table[value] = table[value & (value - 1)] ^ table[value & value.wrapping_neg()];
        }
        value += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn sum(bytes: &[u8]) -> Crc {
        let mut crc = Crc::new();
        crc.update(bytes);
        crc
    }

    #[test]
    fn the_check_value_of_crc_32_comes_out() {
        assert_eq!(sum(b"123456789").value(), 0xcbf4_3926);
    }

    #[test]
    fn powers_and_inverse_powers_cancel() {
        for bytes in [0, 1, 2, 3, 35, 4096, 65_535, u64::MAX] {
            let both = multiply(power(&X_POWERS, bytes), power(&X_INVERSE_POWERS, bytes));
            assert_eq!(both, ONE, "{bytes}");
        }
    }

    proptest! {
        #[test]
        fn sums_of_two_parts_combine(bytes: Vec<u8>, at: proptest::sample::Index) {
            let (head, tail) = bytes.split_at(at.index(bytes.len() + 1));
            let mut in_pieces = sum(head);
            prop_assert_eq!(in_pieces.followed_by(sum(tail), tail.len() as u64), sum(&bytes));
            in_pieces.update(tail);
            prop_assert_eq!(in_pieces, sum(&bytes));
        }

        #[test]
        fn a_difference_of_states_can_be_taken_back(a: u32, b: u32, tail: Vec<u8>) {
            let [mut x, mut y] = [Crc::resume(a), Crc::resume(b)];
            x.update(&tail);
            y.update(&tail);
            prop_assert_eq!(x.difference_before(y, tail.len() as u64), a ^ b);
        }
    }
}
