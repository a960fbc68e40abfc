//! Pseudo-random numbers that replay from one seed: xoshiro256++ (Blackman and Vigna), seeded by
//! splitmix64 (Steele, Lea and Flood). Not for secrets.

/// A generator. Equal seeds give equal sequences, on every machine and in every version.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Prng([u64; 4]);

impl Prng {
    /// A generator whose whole sequence follows from `seed`.
    pub fn new(seed: u64) -> Self {
        let mut state = seed;
        Self(std::array::from_fn(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        }))
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.0;
        let value = a.wrapping_add(*d).rotate_left(23).wrapping_add(*a);
        let shifted = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= shifted;
        *d = d.rotate_left(45);
        value
    }

    /// A number below `bound`, all about equally likely (the bias is below `bound` / 2^64).
    ///
    /// # Panics
    /// When `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "nothing is below 0");
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// True `ppm` times in a million.
    pub fn chance(&mut self, ppm: u32) -> bool {
        self.below(1_000_000) < u64::from(ppm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_that_of_the_reference_implementation() {
        // xoshiro256++ with the state 1, 2, 3, 4; from the authors' C code.
        let mut prng = Prng([1, 2, 3, 4]);
        let first: [u64; 4] = std::array::from_fn(|_| prng.next_u64());
        assert_eq!(
            first,
            [
                41_943_041,
                58_720_359,
                3_588_806_011_781_223,
                3_591_011_842_654_386
            ]
        );
        // splitmix64 of 1234567; likewise.
        let seeded = Prng::new(1_234_567);
        assert_eq!(
            seeded.0[..2],
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]
        );
    }

    #[test]
    fn bounds_hold_and_chances_come_true_about_as_often_as_they_should() {
        const SCALE: u64 = if cfg!(miri) { 100 } else { 10_000 };
        let mut prng = Prng::new(5);
        let mut seen = [0; 7];
        for _ in 0..7 * SCALE {
            seen[prng.below(7) as usize] += 1;
        }
        let about = |expected: u64| expected / 2..expected * 3 / 2;
        assert!(
            seen.iter().all(|count| about(SCALE).contains(count)),
            "{seen:?}"
        );
        let hits = (0..10 * SCALE).filter(|_| prng.chance(100_000)).count() as u64;
        assert!(about(SCALE).contains(&hits), "{hits}");
        assert!((0..100).all(|_| !prng.chance(0)));
        assert!((0..100).all(|_| prng.chance(1_000_000)));
    }
}
