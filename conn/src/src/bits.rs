//! One bit for every packet number of a window.

/// Packet numbers the bitmap tells apart.
pub(super) const SPAN: usize = 4096;

/// A ring of bits indexed by packet number. The numbers in use lie within [`SPAN`] of each other.
#[derive(Clone, Debug)]
pub(super) struct Bits([u64; SPAN / 64]);

impl Bits {
    pub(super) const fn new() -> Self {
        Self([0; SPAN / 64])
    }

    const fn place(number: u64) -> (usize, u64) {
        ((number >> 6) as usize % (SPAN / 64), 1 << (number & 63))
    }

    pub(super) const fn get(&self, number: u64) -> bool {
        let (word, bit) = Self::place(number);
        self.0[word] & bit != 0
    }

    pub(super) const fn set(&mut self, number: u64) {
        let (word, bit) = Self::place(number);
        self.0[word] |= bit;
    }

    pub(super) const fn clear(&mut self, number: u64) {
        let (word, bit) = Self::place(number);
        self.0[word] &= !bit;
    }

    /// The bits of `number ..= number + 63`, that of `number` lowest.
    pub(super) const fn gather(&self, number: u64) -> u64 {
        let (word, _) = Self::place(number);
        let low = self.0[word] >> (number & 63);
        // Two shifts, because one by 64 is none.
        let high = (self.0[(word + 1) % (SPAN / 64)] << 1) << (63 - (number & 63));
        low | high
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gather_reads_across_words_and_around_the_ring() {
        for base in [
            0,
            1,
            63,
            64,
            4030,
            4032,
            4090,
            4095,
            u64::MAX - 40,
            (1 << 32) - 5,
        ] {
            let mut bits = Bits::new();
            for offset in [0, 1, 31, 62, 63, 64] {
                bits.set(u64::wrapping_add(base, offset));
            }
            let want = 1 | 1 << 1 | 1 << 31 | 1 << 62 | 1 << 63;
            assert_eq!(bits.gather(base), want, "base {base}");
            bits.clear(base);
            assert!(!bits.get(base));
            assert_eq!(bits.gather(base), want & !1);
        }
    }
}
