//! Secret permutations: numbers that strangers see (QPNs, rkeys) are small indices in disguise.
//!
//! A number on the wire must not tell how many there are nor let anyone name the next one; looking
//! it up should cost neither a hash table nor a cache miss. So an index is sealed by a bijection
//! that only this node knows, and opened again by a few loads from tables that stay in the cache,
//! or, where it has 32 bits, by the rounds of a small cipher: subtractions, rotations and XORs.
//!
//! What a peer has seen of them must not let it compute others, and it may see very many. 24 bits
//! are a small domain, for which no ordinary block cipher exists. So it is a Feistel network whose
//! round functions are what theory asks for: tables of independent random numbers, filled from the
//! node's secret. Four such rounds are a strong pseudo-random permutation for few numbers (Luby and
//! Rackoff, 1988); for six, with a permutation that never changes, no attack is known that predicts
//! a number: what is published needs the whole code book to tell them from chance at all (Patarin,
//! 2001, "Generic Attacks on Feistel Schemes"). There are six. Their tables take 48 KiB, and a
//! number is opened by six loads from them. Keys have 32 bits: for them there is a cipher.

use crate::slab::NONE;
use std::cell::Cell;
use trunkline_conn::secret::{Permutation32, Stream};
use trunkline_wire::Worker;

const ROUNDS: usize = 6;
/// Most bits of a half.
const HALF: u32 = BITS / 2;
/// What there is for each value of a half.
type Table = [u16; 1 << HALF];

/// The random functions of the rounds. Those of the even rounds have as many bits as the high half.
#[derive(Clone)]
struct Rounds(Box<[Table; ROUNDS]>);

impl Rounds {
    fn new(mut random: Stream, (high, low): (u32, u32)) -> Self {
        let mut tables: Box<[Table; ROUNDS]> = vec![[0; 1 << HALF]; ROUNDS]
            .try_into()
            .unwrap_or_else(|_| unreachable!("that many were made"));
        let mut bytes = [0; 2 << HALF];
        for (i, table) in tables.iter_mut().enumerate() {
            let (from, to) = if i % 2 == 0 { (low, high) } else { (high, low) };
            let bytes = &mut bytes[..2 << from];
            random.fill(bytes);
            for (value, two) in table.iter_mut().zip(bytes.as_chunks().0) {
                *value = u16::from_le_bytes(*two) & ((1 << to) - 1);
            }
        }
        Self(tables)
    }

    #[inline]
    fn mix(&self, i: usize, half: u32) -> u32 {
        self.0[i][(half & ((1 << HALF) - 1)) as usize].into()
    }

    /// Of a value of `high + low` bits. The halves need not be equal: each round changes one of
    /// them by the other.
    #[inline]
    fn seal(&self, value: u32, low: u32) -> u32 {
        let (mut left, mut right) = (value >> low, value & ((1 << low) - 1));
        for i in (0..ROUNDS).step_by(2) {
            left ^= self.mix(i, right);
            right ^= self.mix(i + 1, left);
        }
        left << low | right
    }

    #[inline]
    fn open(&self, value: u32, low: u32) -> u32 {
        let (mut left, mut right) = (value >> low, value & ((1 << low) - 1));
        for i in (0..ROUNDS).step_by(2).rev() {
            right ^= self.mix(i + 1, left);
            left ^= self.mix(i, right);
        }
        left << low | right
    }
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
        self.note(number, value);
        value
    }

    #[inline]
    fn note(&self, number: u32, value: u32) {
        self.0.set((number, value));
    }

    #[inline]
    const fn get(&self) -> (u32, u32) {
        self.0.get()
    }
}

/// A secret bijection from indices to QPNs and numbers of connections of one worker: all 24-bit
/// numbers that end in the bits of the worker, but 0 and 1 (management), 2^24 - 1 (multicast), and,
/// of several workers, a few neighbours of these.
#[derive(Clone)]
pub struct Secret24 {
    rounds: Rounds,
    /// Bits of what is permuted: a number without the worker's bits. And of its low half.
    bits: u32,
    low: u32,
    worker: Worker,
    /// The number opened or expected last, and its index.
    last: Last,
}

impl Secret24 {
    /// A bijection of `worker`, which `random` decides on.
    pub fn new(random: Stream, worker: Worker) -> Self {
        let bits = BITS - worker.of().bits();
        let low = bits / 2;
        Self {
            rounds: Rounds::new(random, (bits - low, low)),
            bits,
            low,
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
        (1 << self.bits) - 1
    }

    const fn is_reserved(&self, value: u32) -> bool {
        value < FIRST || value >= self.reserved_from()
    }

    /// The number to show for `index`.
    ///
    /// # Panics
    /// When `index` is not below [`size`](Self::size).
    #[inline]
    pub fn seal(&self, index: u32) -> u32 {
        assert!(index < self.size(), "an index has a number of 24 bits");
        let mut value = self.rounds.seal(index + FIRST, self.low);
        // On from a reserved number until one is not: still a bijection (Black and Rogaway, 2002,
        // "cycle-walking"), since the numbers walked over are no results of others.
        while self.is_reserved(value) {
            value = self.rounds.seal(value, self.low);
        }
        value << self.worker.of().bits() | self.worker.index() as u32
    }

    /// The same number, sealed before. Who makes an object names it next.
    #[inline]
    pub(crate) fn expect(&self, number: u32, index: u32) {
        self.last.note(number, index);
    }

    /// The number opened or expected last, and its index.
    #[inline]
    pub(crate) const fn last(&self) -> (u32, u32) {
        self.last.get()
    }

    /// The index behind a number; [`NONE`] behind those that no index of this worker has.
    #[inline]
    pub fn open(&self, number: u32) -> u32 {
        self.last.or(number, || {
            let value = number >> self.worker.of().bits();
            if self.is_reserved(value) || !self.worker.owns(number) {
                return NONE;
            }
            let mut index = value;
            loop {
                index = self.rounds.open(index, self.low);
                if !self.is_reserved(index) {
                    return index - FIRST;
                }
            }
        })
    }
}

/// Bits of a number.
const BITS: u32 = 24;
/// First number that is not reserved.
const FIRST: u32 = 2;

/// A secret permutation of all 32-bit numbers, for keys of memory regions.
#[derive(Clone)]
pub struct Secret32 {
    permutation: Permutation32,
    /// The number opened last, and its value.
    last: Last,
}

impl Secret32 {
    /// A permutation, which `random` decides on.
    pub fn new(random: Stream) -> Self {
        let permutation = Permutation32::new(random);
        let last = Last::new(0, permutation.open(0));
        Self { permutation, last }
    }

    /// The number to show for `value`.
    #[inline]
    pub const fn seal(&self, value: u32) -> u32 {
        self.permutation.seal(value)
    }

    /// The value behind a number.
    #[inline]
    pub fn open(&self, number: u32) -> u32 {
        self.last.or(number, || self.permutation.open(number))
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
    use trunkline_conn::secret::{Purpose, Secret};
    use trunkline_wire::Workers;

    fn stream(seed: u64) -> Stream {
        Secret::from_seed(seed).stream(Purpose::Qpns)
    }

    /// Indices that the worker of a node without others takes: those below this.
    const SIZE: u32 = (1 << BITS) - 1 - FIRST;

    #[test]
    fn every_index_opens_again_and_no_number_is_reserved() {
        let secret = Secret24::new(stream(42), Worker::ONLY);
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
            let secret = Secret24::new(stream(seed), Worker::ONLY);
            for number in [0, 1, 0xff_ffff, 0x100_0000, u32::MAX] {
                assert_eq!(secret.open(number), NONE);
            }
        }
    }

    #[test]
    fn every_number_but_the_reserved_has_an_index() {
        let secret = Secret24::new(stream(42), Worker::ONLY);
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
            let secret = Secret24::new(stream(seed), Worker::ONLY);
            for reserved in [0, 1, 0xff_ffff] {
                let direct = secret.rounds.open(reserved, secret.low);
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
        Secret24::new(stream(42), Worker::ONLY).seal(SIZE);
    }

    #[test]
    fn numbers_of_several_workers_show_whose_they_are_and_open_at_no_other() {
        for count in [2, 3, 4, 7, 64] {
            let workers = Workers::new(count).expect("no more than there may be");
            let secrets: Vec<_> = workers
                .iter()
                .map(|worker| Secret24::new(stream(worker.index().into()), worker))
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
    fn making_a_number_sways_what_no_other_opens_to() {
        for count in [1, 2, 64] {
            let workers = Workers::new(count).expect("no more than there may be");
            for worker in workers.iter().step_by(21) {
                let secret = Secret24::new(stream(42), worker);
                let untouched = secret.clone();
                for index in (0..secret.size()).step_by(10_007) {
                    let number = secret.seal(index);
                    let unsealed = number >> workers.bits();
                    let bare = unsealed << workers.bits();
                    let others = [
                        index,
                        unsealed,
                        bare,
                        number + 1,
                        number ^ 1,
                        number ^ 1 << 23,
                    ];
                    for other in others {
                        secret.expect(number, index);
                        assert_eq!(secret.open(other), untouched.open(other), "{other:#x}");
                    }
                }
            }
        }
    }

    #[test]
    fn keys_open_again() {
        let secret = Secret32::new(stream(42));
        assert_eq!(secret.seal(secret.open(0)), 0);
        for step in 0..2_000_000_u32 {
            let value = step.wrapping_mul(2_654_435_761);
            assert_eq!(secret.open(secret.seal(value)), value);
        }
    }

    #[test]
    fn every_bit_of_the_index_sways_every_bit_of_the_number() {
        const SAMPLES: u32 = 4096;
        let secret = Secret32::new(stream(42));
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
        let secret = Secret24::new(stream(42), Worker::ONLY);
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
            let secret = Secret24::new(stream(seed), Worker::ONLY);
            (0..1000)
                .map(|index| secret.seal(index))
                .collect::<Vec<_>>()
        };
        let base = numbers(1);
        for other in [0, 2, 3, u64::MAX] {
            let same = base
                .iter()
                .zip(numbers(other))
                .filter(|(a, b)| **a == *b)
                .count();
            assert!(
                same <= 2,
                "{same} of 1000 numbers are the same with seed {other}"
            );
        }
    }

    #[test]
    fn secrets_do_not_show_in_debug_output() {
        assert_eq!(
            format!("{:?}", Secret24::new(stream(42), Worker::ONLY)),
            "Secret24 { .. }"
        );
        assert_eq!(
            format!("{:?}", Secret32::new(stream(42))),
            "Secret32 { .. }"
        );
    }
}
