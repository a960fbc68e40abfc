//! The numbers behind CRC-32 by carry-less multiplication (Gopal et al., "Fast CRC Computation for
//! Generic Polynomials Using PCLMULQDQ Instruction", 2009).
//!
//! Data stands for a polynomial over GF(2), first bit first. 128 bits of it may be moved `d` bits
//! later in the message by multiplying each 64-bit half with a power of x modulo the polynomial.

/// x^32 + ... + 1, bit-reflected, with its top bit: what the last reduction divides by.
pub(super) const POLYNOMIAL: u64 = 0x1_db71_0641;

/// The quotient x^64 / polynomial, bit-reflected: the constant of Barrett's reduction.
pub(super) const QUOTIENT: u64 = 0x1_f701_1641;

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

/// The multiplier of the step from 96 to 64 bits.
pub(super) const LAST: u64 = power(64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_multipliers_are_those_of_the_paper() {
        assert_eq!(by(512), [0x1_5444_2bd4, 0x1_c6e4_1596]);
        assert_eq!(by(128), [0x1_7519_97d0, 0x0_ccaa_009e]);
        assert_eq!(LAST, 0x1_63cd_6124);
    }

    #[test]
    fn the_quotient_times_the_polynomial_is_about_a_power_of_two() {
        // Long division of x^64 by the polynomial, most significant bit first.
        let polynomial = u128::from(reflect(POLYNOMIAL));
        let (mut rest, mut quotient) = (1u128 << 64, 0u64);
        for bit in (0..=32).rev() {
            if rest >> (bit + 32) & 1 == 1 {
                rest ^= polynomial << bit;
                quotient |= 1 << bit;
            }
        }
        assert_eq!(reflect(quotient), QUOTIENT);
    }

    /// Reflects 33 bits.
    fn reflect(value: u64) -> u64 {
        value.reverse_bits() >> 31
    }
}
