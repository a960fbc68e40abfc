//! One bit for every packet number that arrived out of order.

use alloc::vec::Vec;

/// A ring of bits indexed by packet number, as long as what is held needs.
#[derive(Clone, Debug, Default)]
pub(super) struct Bits(Vec<u64>);

/// Words that a ring keeps while it is not in use.
const KEPT: usize = 64;

impl Bits {
    const fn place(&self, number: u64) -> (usize, u64) {
        (
            (number >> 6) as usize & (self.0.len() - 1),
            1 << (number & 63),
        )
    }

    /// Makes room for numbers from `first` to `last`, where nothing is held outside of them.
    pub(super) fn reserve(&mut self, first: u64, last: u64) {
        let words = ((last >> 6) - (first >> 6) + 2) as usize;
        if words <= self.0.len() {
            return;
        }
        let mut grown = Self(alloc::vec![0; words.next_power_of_two()]);
        for word in (first >> 6..).take(self.0.len()) {
            let (from, to) = (self.place(word << 6).0, grown.place(word << 6).0);
            grown.0[to] = self.0[from];
        }
        *self = grown;
    }

    /// Frees what a long flight has taken. It is empty.
    pub(super) fn shrink(&mut self) {
        if self.0.len() > KEPT {
            self.0 = Vec::new();
        }
    }

    pub(super) fn get(&self, number: u64) -> bool {
        if self.0.is_empty() {
            return false;
        }
        let (word, bit) = self.place(number);
        self.0[word] & bit != 0
    }

    pub(super) fn set(&mut self, number: u64) {
        let (word, bit) = self.place(number);
        self.0[word] |= bit;
    }

    pub(super) fn clear(&mut self, number: u64) {
        let (word, bit) = self.place(number);
        self.0[word] &= !bit;
    }

    /// The bits of `number ..= number + 63`, that of `number` lowest.
    pub(super) fn gather(&self, number: u64) -> u64 {
        let (word, _) = self.place(number);
        let low = self.0[word] >> (number & 63);
        // Two shifts, because one by 64 is none.
        let high = (self.0[(word + 1) & (self.0.len() - 1)] << 1) << (63 - (number & 63));
        low | high
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gather_reads_across_words_and_around_the_ring_and_growth_keeps_all() {
        for base in [
            0,
            1,
            63,
            64,
            4030,
            4032,
            4090,
            4095,
            (1 << 63) - 40,
            (1 << 32) - 5,
        ] {
            let mut bits = Bits::default();
            for offset in [0, 1, 31, 62, 63, 64] {
                bits.reserve(base, base + offset);
                bits.set(u64::wrapping_add(base, offset));
            }
            let want = 1 | 1 << 1 | 1 << 31 | 1 << 62 | 1 << 63;
            assert_eq!(bits.gather(base), want, "base {base}");
            bits.reserve(base, base + 60_000);
            assert_eq!(bits.gather(base), want, "base {base}");
            assert!(bits.get(base + 64) && !bits.get(base + 65));
            bits.clear(base);
            assert!(!bits.get(base));
            assert_eq!(bits.gather(base), want & !1);
        }
    }
}
