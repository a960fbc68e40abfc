//! Numbers in two bytes, for what is remembered and measured anew soon.

/// Bits of the leading digits.
const DIGITS: u32 = 11;
/// The most places that they are shifted by.
const MOST: u32 = 31;

/// A number rounded down by less than a thousandth, up to 2^42.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Rough(u16);

impl Rough {
    /// Rounds a number; 2^42 and more is the largest there is.
    pub(super) fn of(value: u64) -> Self {
        let bits = u64::BITS - value.leading_zeros();
        let places = bits.saturating_sub(DIGITS);
        if places > MOST {
            return Self(u16::MAX);
        }
        Self((places << DIGITS) as u16 | (value >> places) as u16)
    }

    /// Returns the number.
    pub(super) const fn get(self) -> u64 {
        let digits = self.0 & ((1 << DIGITS) - 1);
        (digits as u64) << (self.0 >> DIGITS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_loses_less_than_a_thousandth_and_stays_what_it_is_once_rounded() {
        let all = (0..42).flat_map(|bits| [1 << bits, (1 << bits) + 1, (3 << bits) / 2 + 7]);
        for value in all.chain(0..5000) {
            let rough = Rough::of(value);
            let lost = value - rough.get();
            assert!(lost * 1000 < value.max(1), "{value} became {}", rough.get());
            assert_eq!(Rough::of(rough.get()), rough);
        }
        assert_eq!(Rough::of(u64::MAX).get(), 2047 << MOST);
    }
}
