//! The numbers behind CRC-32 by carry-less multiplication (Gopal et al., "Fast CRC Computation for
//! Generic Polynomials Using PCLMULQDQ Instruction", 2009).
//!
//! Data stands for a polynomial over GF(2), first bit first. 128 bits of it may be moved `d` bits
//! later in the message by multiplying each 64-bit half with a power of x modulo the polynomial.

/// x^32 + ... + 1, bit-reflected, with its top bit: what the last reduction divides by.
pub(super) const POLYNOMIAL: u64 = 0x1_db71_0641;

/// The quotient x^96 / polynomial, bit-reflected, without its last term: the constant of Barrett's
/// reduction of 96 bits, of which only the upper half of the product counts.
pub(super) const QUOTIENT: u64 = quotient();

/// Long division, most significant bit first.
const fn quotient() -> u64 {
    let polynomial = (POLYNOMIAL.reverse_bits() >> 31) as u128;
    let (mut rest, mut quotient): (u128, u128) = (1 << 96, 0);
    let mut bit = 65;
    while bit > 0 {
        bit -= 1;
        if rest >> (bit + 32) & 1 == 1 {
            rest ^= polynomial << bit;
            quotient |= 1 << bit;
        }
    }
    ((quotient >> 1) as u64).reverse_bits()
}

/// x^`n` modulo the polynomial, bit-reflected and shifted by the one bit that the carry-less
/// product of reflected numbers is short of.
pub(super) const fn power(n: u32) -> u64 {
    let mut rest: u32 = 1;
    let mut i = 0;
    while i < n {
        let carry = rest >> 31 != 0;
        rest <<= 1;
        if carry {
            rest ^= 0x04c1_1db7;
        }
        i += 1;
    }
    (rest.reverse_bits() as u64) << 1
}

/// The multipliers that move 128 bits by `bits`: for the first and for the second half.
pub(super) const fn by(bits: u32) -> [u64; 2] {
    [power(bits + 32), power(bits - 32)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_multipliers_are_those_of_the_paper() {
        assert_eq!(by(512), [0x1_5444_2bd4, 0x1_c6e4_1596]);
        assert_eq!(by(128), [0x1_7519_97d0, 0x0_ccaa_009e]);
    }

    #[test]
    fn the_quotient_times_the_polynomial_is_about_a_power_of_two() {
        // Bit i stands for x^(64 - i) of the one and x^(32 - i) of the other, so that bit i of the
        // product does for x^(96 - i): x^96, and what the missing last term leaves below x^33.
        let product = (0..64)
            .filter(|bit| QUOTIENT >> bit & 1 == 1)
            .fold(0, |sum, bit| sum ^ u128::from(POLYNOMIAL) << bit);
        assert_eq!(product & ((1 << 64) - 1), 1);
    }
}
