//! Numbers drawn from a seed.

use std::ops::Range;

/// A generator for tests (xorshift64*, Vigna 2014): equal seeds give equal numbers everywhere. Not
/// for secrets.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The generator of any seed.
    pub const fn new(seed: u64) -> Self {
        let mut rng = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        rng.next();
        rng
    }

    /// The next 64 bits.
    pub const fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `bound`.
    ///
    /// # Panics
    /// When `bound` is 0.
    pub const fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound
    }

    /// A number of `range`.
    ///
    /// # Panics
    /// When there is none.
    pub const fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.below(range.end - range.start)
    }

    /// True `parts` times in a million.
    pub const fn chance(&mut self, parts_per_million: u64) -> bool {
        self.below(1_000_000) < parts_per_million
    }

    /// True `percent` times in a hundred.
    pub const fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_numbers_and_others_do_not() {
        let draw = |seed| {
            let mut rng = Rng::new(seed);
            [(); 4].map(|()| rng.next())
        };
        assert_eq!(draw(7), draw(7));
        for seed in 1..100 {
            assert_ne!(draw(seed), draw(seed - 1), "seed {seed}");
        }
    }

    #[test]
    fn chances_come_true_about_as_often_as_they_should() {
        let mut rng = Rng::new(0);
        let hits = (0..100_000).filter(|_| rng.percent(10)).count();
        assert!((9_000..11_000).contains(&hits), "{hits}");
        let hits = (0..100_000).filter(|_| rng.chance(500_000)).count();
        assert!((49_000..51_000).contains(&hits), "{hits}");
        assert!((0..1_000).all(|_| rng.below(3) < 3));
        assert!((0..1_000).all(|_| (5..8).contains(&rng.within(5..8))));
    }
}
