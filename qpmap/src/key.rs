//! Secret permutations: numbers that strangers see (QPNs, rkeys) are small indices in disguise.
//!
//! A number on the wire must not tell how many there are nor let anyone name the next one; looking
//! it up should cost neither a hash table nor a cache miss. So an index is sealed by a bijection
//! that only this node knows, and opened again with a few multiplications.
//!
//! It is a balanced Feistel network of four rounds: from that number on it is a strong
//! pseudo-random permutation if its round functions are random (Luby and Rackoff, 1988). Ours are
//! the top bits of a product of two secret 64-bit numbers, each changed by the half block. That is
//! fast and not linear, but no cipher: whoever collects many numbers of a node may work its secret
//! out. They can then guess keys as they could guess indices; what remains in their way are the
//! protection domains, the rights and the connection's token.

use crate::slab::NONE;
use std::cell::Cell;

const ROUNDS: usize = 4;

/// Secrets of the rounds.
#[derive(Clone)]
struct Rounds([[u64; 2]; ROUNDS]);

impl Rounds {
    /// Draws them from `seed` with SplitMix64.
    const fn new(seed: [u64; 2]) -> Self {
        let mut rounds = [[0; 2]; ROUNDS];
        let mut state = seed[0];
        let mut i = 0;
        while i < ROUNDS {
            let (a, after) = split_mix(state);
            let (b, after) = split_mix(after ^ seed[1]);
            rounds[i] = [a, b];
            state = after;
            i += 1;
        }
        Self(rounds)
    }

    /// `HALF` bits that depend on all of `half`, and on the secret of round `i`.
    #[inline]
    const fn mix<const HALF: u32>(&self, i: usize, half: u32) -> u32 {
        let [a, b] = self.0[i];
        let product = a.wrapping_add(half as u64).wrapping_mul(b ^ half as u64);
        (product >> (64 - HALF)) as u32
    }

    #[inline]
    const fn seal<const HALF: u32>(&self, value: u32) -> u32 {
        let (mut left, mut right) = (value >> HALF, value & ((1 << HALF) - 1));
        left ^= self.mix::<HALF>(0, right);
        right ^= self.mix::<HALF>(1, left);
        left ^= self.mix::<HALF>(2, right);
        right ^= self.mix::<HALF>(3, left);
        left << HALF | right
    }

    #[inline]
    const fn open<const HALF: u32>(&self, value: u32) -> u32 {
        let (mut left, mut right) = (value >> HALF, value & ((1 << HALF) - 1));
        right ^= self.mix::<HALF>(3, left);
        left ^= self.mix::<HALF>(2, right);
        right ^= self.mix::<HALF>(1, left);
        left ^= self.mix::<HALF>(0, right);
        left << HALF | right
    }
}

const fn split_mix(state: u64) -> (u64, u64) {
    let state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31), state)
}

/// A number and what is behind it: packets come in runs that name the same things.
#[derive(Clone)]
struct Last(Cell<(u32, u32)>);

impl Last {
    const fn new(number: u32, value: u32) -> Self {
        Self(Cell::new((number, value)))
    }

    #[inline]
    fn or(&self, number: u32, open: impl FnOnce() -> u32) -> u32 {
        let (last, value) = self.0.get();
        if number == last {
            return value;
        }
        let value = open();
        self.0.set((number, value));
        value
    }
}

/// A secret bijection from indices to QPNs and numbers of connections: all 24-bit numbers but 0 and
/// 1 (management) and 2^24 - 1 (multicast).
#[derive(Clone)]
pub struct Secret24 {
    rounds: Rounds,
    /// The number opened last, and its index.
    last: Last,
}

impl Secret24 {
    /// Indices it takes: those below this.
    pub const SIZE: u32 = RESERVED_FROM - FIRST;

    /// The bijection that belongs to `seed`: 128 random bits that never leave the node.
    pub const fn new(seed: [u64; 2]) -> Self {
        Self {
            rounds: Rounds::new(seed),
            last: Last::new(0, NONE),
        }
    }

    /// The number to show for `index`.
    ///
    /// # Panics
    /// When `index` is not below [`SIZE`](Self::SIZE).
    #[inline]
    pub const fn seal(&self, index: u32) -> u32 {
        assert!(index < Self::SIZE, "an index has a number of 24 bits");
        let mut number = self.rounds.seal::<12>(index + FIRST);
        // On from a reserved number until one is not: still a bijection (Black and Rogaway, 2002,
        // "cycle-walking"), since the numbers walked over are no results of others.
        while is_reserved(number) {
            number = self.rounds.seal::<12>(number);
        }
        number
    }

    /// The index behind a number; [`NONE`] behind those that no index has.
    #[inline]
    pub fn open(&self, number: u32) -> u32 {
        self.last.or(number, || {
            if is_reserved(number) {
                return NONE;
            }
            let mut index = self.rounds.open::<12>(number);
            while is_reserved(index) {
                index = self.rounds.open::<12>(index);
            }
            index - FIRST
        })
    }
}

/// First number that is not reserved.
const FIRST: u32 = 2;
/// First one after those.
const RESERVED_FROM: u32 = 0xff_ffff;

const fn is_reserved(number: u32) -> bool {
    number < FIRST || number >= RESERVED_FROM
}

/// A secret permutation of all 32-bit numbers, for keys of memory regions.
#[derive(Clone)]
pub struct Secret32 {
    rounds: Rounds,
    /// The number opened last, and its value.
    last: Last,
}

impl Secret32 {
    /// The permutation that belongs to `seed`: 128 random bits that never leave the node.
    pub const fn new(seed: [u64; 2]) -> Self {
        let rounds = Rounds::new(seed);
        let last = Last::new(0, rounds.open::<16>(0));
        Self { rounds, last }
    }

    /// The number to show for `value`.
    #[inline]
    pub const fn seal(&self, value: u32) -> u32 {
        self.rounds.seal::<16>(value)
    }

    /// The value behind a number.
    #[inline]
    pub fn open(&self, number: u32) -> u32 {
        self.last.or(number, || self.rounds.open::<16>(number))
    }
}

macro_rules! debug_without_secret {
    ($($name:ident)*) => {$(
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    )*};
}

debug_without_secret! { Secret24 Secret32 }

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: [u64; 2] = [0x0123_4567_89ab_cdef, 42];

    #[test]
    fn every_index_opens_again_and_no_number_is_reserved() {
        let secret = Secret24::new(SEED);
        for index in 0..Secret24::SIZE {
            let number = secret.seal(index);
            assert!(
                (2..0xff_ffff).contains(&number),
                "index {index} became {number:#x}"
            );
            assert_eq!(secret.open(number), index);
        }
    }

    #[test]
    fn numbers_that_no_index_has_open_to_none() {
        for seed in 0..100 {
            let secret = Secret24::new([seed, 1]);
            for number in [0, 1, 0xff_ffff, 0x100_0000, u32::MAX] {
                assert_eq!(secret.open(number), NONE);
            }
        }
    }

    #[test]
    fn every_number_but_the_reserved_has_an_index() {
        let secret = Secret24::new(SEED);
        for number in 2..0xff_ffff {
            let index = secret.open(number);
            assert!(index < Secret24::SIZE, "{number:#x}");
        }
    }

    #[test]
    fn walking_over_reserved_numbers_happens_and_stays_a_bijection() {
        // The seeds are searched until some index really lands on a reserved number first.
        let mut walked = 0;
        for seed in 0..20 {
            let secret = Secret24::new([seed, 7]);
            for reserved in [0, 1, 0xff_ffff] {
                let direct = secret.rounds.open::<12>(reserved);
                if is_reserved(direct) {
                    continue;
                }
                walked += 1;
                let index = direct - FIRST;
                assert_eq!(secret.open(secret.seal(index)), index);
            }
        }
        assert!(walked > 0);
    }

    #[test]
    #[should_panic(expected = "an index has a number")]
    fn an_index_past_the_last_has_no_number() {
        Secret24::new(SEED).seal(Secret24::SIZE);
    }

    #[test]
    fn keys_open_again() {
        let secret = Secret32::new(SEED);
        for step in 0..2_000_000_u32 {
            let value = step.wrapping_mul(2_654_435_761);
            assert_eq!(secret.open(secret.seal(value)), value);
        }
    }

    #[test]
    fn every_bit_of_the_index_sways_every_bit_of_the_number() {
        const SAMPLES: u32 = 4096;
        let secret = Secret32::new(SEED);
        for flipped in 0..32 {
            let mut changes = [0_u32; 32];
            for sample in 0..SAMPLES {
                let value = sample.wrapping_mul(0x9e37_79b9);
                let difference = secret.seal(value) ^ secret.seal(value ^ 1 << flipped);
                for (bit, count) in changes.iter_mut().enumerate() {
                    *count += difference >> bit & 1;
                }
            }
            for (bit, count) in changes.into_iter().enumerate() {
                let half = SAMPLES * 43 / 100..SAMPLES * 57 / 100;
                assert!(
                    half.contains(&count),
                    "bit {flipped} sways bit {bit}: {count}"
                );
            }
        }
    }

    #[test]
    fn neighbouring_indices_do_not_get_neighbouring_numbers() {
        let secret = Secret24::new(SEED);
        let mut distances: Vec<u32> = (0..10_000)
            .map(|index| secret.seal(index + 1).wrapping_sub(secret.seal(index)) & 0xff_ffff)
            .collect();
        distances.sort_unstable();
        let most = distances.chunk_by(|a, b| a == b).map(<[u32]>::len).max();
        // 10,000 of 2^24 distances: pairs are expected, a pattern would show in many.
        assert!(most <= Some(3), "one distance occurs {most:?} times");
    }

    #[test]
    fn other_seeds_give_other_numbers() {
        let numbers = |seed| {
            let secret = Secret24::new(seed);
            (0..1000)
                .map(|index| secret.seal(index))
                .collect::<Vec<_>>()
        };
        let base = numbers([1, 2]);
        for other in [[1, 3], [2, 2], [2, 1], [0, 0]] {
            let same = base
                .iter()
                .zip(numbers(other))
                .filter(|(a, b)| **a == *b)
                .count();
            assert!(
                same <= 2,
                "{same} of 1000 numbers are the same with seed {other:?}"
            );
        }
    }

    #[test]
    fn secrets_do_not_show_in_debug_output() {
        assert_eq!(format!("{:?}", Secret24::new(SEED)), "Secret24 { .. }");
        assert_eq!(format!("{:?}", Secret32::new(SEED)), "Secret32 { .. }");
    }
}
