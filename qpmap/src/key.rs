//! Secret permutations: numbers that strangers see (QPNs, rkeys) are small indices in disguise.
//!
//! A number on the wire must not tell how many there are nor let anyone name the next one; looking
//! it up should cost neither a hash table nor a cache miss. So an index is sealed by a bijection
//! that only this node knows, and opened again with a few multiplications.
//!
//! It is a balanced Feistel network of four rounds, the number from which it is a strong
//! pseudo-random permutation if its round functions are random (Luby and Rackoff, 1988). They are
//! the top bits of a product of two sums with secret 64-bit numbers, which is fast and not linear,
//! but no cipher: whoever sees thousands of numbers of a node may work its secret out. Then keys
//! can be guessed as well as indices could, and protection domains, rights and the connection's
//! token remain.

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

/// A secret permutation of the numbers below 2^24: QPNs and numbers of connections.
#[derive(Clone)]
pub struct Secret24(Rounds);

impl Secret24 {
    /// Numbers it permutes.
    pub const SIZE: u32 = 1 << 24;

    /// The permutation that belongs to `seed`: 128 random bits that never leave the node.
    pub const fn new(seed: [u64; 2]) -> Self {
        Self(Rounds::new(seed))
    }

    /// The number to show for `index`.
    ///
    /// # Panics
    /// When `index` is not below [`SIZE`](Self::SIZE).
    #[inline]
    pub const fn seal(&self, index: u32) -> u32 {
        assert!(index < Self::SIZE, "an index of 24 bits");
        self.0.seal::<12>(index)
    }

    /// The index behind a number, of which the low 24 bits count.
    #[inline]
    pub const fn open(&self, number: u32) -> u32 {
        self.0.open::<12>(number & (Self::SIZE - 1))
    }

    /// Whether `index` may be given to a QP or connection: those whose numbers would be 0 or 1
    /// (management) or 2^24 - 1 (multicast) are left out.
    ///
    /// # Panics
    /// When `index` is not below [`SIZE`](Self::SIZE).
    pub const fn usable(&self, index: u32) -> bool {
        !matches!(self.seal(index), 0 | 1 | 0xff_ffff)
    }
}

/// A secret permutation of all 32-bit numbers: keys of memory regions.
#[derive(Clone)]
pub struct Secret32(Rounds);

impl Secret32 {
    /// The permutation that belongs to `seed`: 128 random bits that never leave the node.
    pub const fn new(seed: [u64; 2]) -> Self {
        Self(Rounds::new(seed))
    }

    /// The number to show for `value`.
    #[inline]
    pub const fn seal(&self, value: u32) -> u32 {
        self.0.seal::<16>(value)
    }

    /// The value behind a number.
    #[inline]
    pub const fn open(&self, number: u32) -> u32 {
        self.0.open::<16>(number)
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
