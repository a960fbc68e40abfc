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
use trunkline_wire::Worker;

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
    const fn mix(&self, i: usize, half: u32, bits: u32) -> u32 {
        let [a, b] = self.0[i];
        let product = a.wrapping_add(half as u64).wrapping_mul(b ^ half as u64);
        (product >> (64 - bits)) as u32
    }

    /// Of a value of `high + low` bits. The halves need not be equal: each round changes one of
    /// them by the other.
    #[inline]
    const fn seal(&self, value: u32, (high, low): (u32, u32)) -> u32 {
        let (mut left, mut right) = (value >> low, value & ((1 << low) - 1));
        left ^= self.mix(0, right, high);
        right ^= self.mix(1, left, low);
        left ^= self.mix(2, right, high);
        right ^= self.mix(3, left, low);
        left << low | right
    }

    #[inline]
    const fn open(&self, value: u32, (high, low): (u32, u32)) -> u32 {
        let (mut left, mut right) = (value >> low, value & ((1 << low) - 1));
        right ^= self.mix(3, left, low);
        left ^= self.mix(2, right, high);
        right ^= self.mix(1, left, low);
        left ^= self.mix(0, right, high);
        left << low | right
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

/// A secret bijection from indices to QPNs and numbers of connections of one worker: all 24-bit
/// numbers that end in the bits of the worker, but 0 and 1 (management), 2^24 - 1 (multicast), and,
/// of several workers, a few neighbours of these.
#[derive(Clone)]
pub struct Secret24 {
    rounds: Rounds,
    /// Bits of the two halves of what is permuted: a number without the worker's bits.
    halves: (u32, u32),
    worker: Worker,
    /// The number opened last, and its index.
    last: Last,
}

impl Secret24 {
    /// The bijection of `worker` that belongs to `seed`: 128 random bits that never leave the node.
    pub const fn new(seed: [u64; 2], worker: Worker) -> Self {
        let bits = BITS - worker.of().bits();
        Self {
            rounds: Rounds::new(seed),
            halves: (bits - bits / 2, bits / 2),
            worker,
            last: Last::new(0, NONE),
        }
    }

    /// Indices it takes: those below this.
    pub const fn size(&self) -> u32 {
        self.reserved_from() - FIRST
    }

    /// First of what is permuted that is reserved again, behind those below [`FIRST`].
    const fn reserved_from(&self) -> u32 {
        (1 << (self.halves.0 + self.halves.1)) - 1
    }

    const fn is_reserved(&self, value: u32) -> bool {
        value < FIRST || value >= self.reserved_from()
    }

    /// The number to show for `index`.
    ///
    /// # Panics
    /// When `index` is not below [`size`](Self::size).
    #[inline]
    pub const fn seal(&self, index: u32) -> u32 {
        assert!(index < self.size(), "an index has a number of 24 bits");
        let mut value = self.rounds.seal(index + FIRST, self.halves);
        // On from a reserved number until one is not: still a bijection (Black and Rogaway, 2002,
        // "cycle-walking"), since the numbers walked over are no results of others.
        while self.is_reserved(value) {
            value = self.rounds.seal(value, self.halves);
        }
        value << self.worker.of().bits() | self.worker.index() as u32
    }

    /// The index behind a number; [`NONE`] behind those that no index of this worker has.
    #[inline]
    pub fn open(&self, number: u32) -> u32 {
        self.last.or(number, || {
            let value = number >> self.worker.of().bits();
            if self.is_reserved(value) || !self.worker.owns(number) {
                return NONE;
            }
            let mut index = self.rounds.open(value, self.halves);
            while self.is_reserved(index) {
                index = self.rounds.open(index, self.halves);
            }
            index - FIRST
        })
    }
}

/// Bits of a number.
const BITS: u32 = 24;
/// First number that is not reserved.
const FIRST: u32 = 2;

const HALVES_32: (u32, u32) = (16, 16);

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
        let last = Last::new(0, rounds.open(0, HALVES_32));
        Self { rounds, last }
    }

    /// The number to show for `value`.
    #[inline]
    pub const fn seal(&self, value: u32) -> u32 {
        self.rounds.seal(value, HALVES_32)
    }

    /// The value behind a number.
    #[inline]
    pub fn open(&self, number: u32) -> u32 {
        self.last.or(number, || self.rounds.open(number, HALVES_32))
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
    use trunkline_wire::Workers;

    const SEED: [u64; 2] = [0x0123_4567_89ab_cdef, 42];
    /// Indices that the worker of a node without others takes: those below this.
    const SIZE: u32 = (1 << BITS) - 1 - FIRST;

    #[test]
    fn every_index_opens_again_and_no_number_is_reserved() {
        let secret = Secret24::new(SEED, Worker::ONLY);
        for index in 0..SIZE {
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
            let secret = Secret24::new([seed, 1], Worker::ONLY);
            for number in [0, 1, 0xff_ffff, 0x100_0000, u32::MAX] {
                assert_eq!(secret.open(number), NONE);
            }
        }
    }

    #[test]
    fn every_number_but_the_reserved_has_an_index() {
        let secret = Secret24::new(SEED, Worker::ONLY);
        for number in 2..0xff_ffff {
            let index = secret.open(number);
            assert!(index < SIZE, "{number:#x}");
        }
    }

    #[test]
    fn walking_over_reserved_numbers_happens_and_stays_a_bijection() {
        // The seeds are searched until some index really lands on a reserved number first.
        let mut walked = 0;
        for seed in 0..20 {
            let secret = Secret24::new([seed, 7], Worker::ONLY);
            for reserved in [0, 1, 0xff_ffff] {
                let direct = secret.rounds.open(reserved, secret.halves);
                if secret.is_reserved(direct) {
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
        Secret24::new(SEED, Worker::ONLY).seal(SIZE);
    }

    #[test]
    fn numbers_of_several_workers_show_whose_they_are_and_open_at_no_other() {
        for count in [2, 3, 4, 7, 64] {
            let workers = Workers::new(count).expect("no more than there may be");
            let secrets: Vec<_> = workers
                .iter()
                .map(|worker| Secret24::new([SEED[0], worker.index().into()], worker))
                .collect();
            let size = secrets[0].size();
            for index in (0..size).step_by(101).chain([size - 1]) {
                for (own, secret) in secrets.iter().enumerate() {
                    let number = secret.seal(index);
                    assert!((2..0xff_ffff).contains(&number), "{number:#x}");
                    assert_eq!(usize::from(workers.owner(number)), own);
                    for (other, secret) in secrets.iter().enumerate() {
                        let opened = if own == other { index } else { NONE };
                        assert_eq!(secret.open(number), opened);
                    }
                }
            }
        }
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
        let secret = Secret24::new(SEED, Worker::ONLY);
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
            let secret = Secret24::new(seed, Worker::ONLY);
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
        assert_eq!(
            format!("{:?}", Secret24::new(SEED, Worker::ONLY)),
            "Secret24 { .. }"
        );
        assert_eq!(format!("{:?}", Secret32::new(SEED)), "Secret32 { .. }");
    }
}
