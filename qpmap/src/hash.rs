//! Hash tables whose order depends on nothing but what was put in.

use hashbrown::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher};
use trunkline_conn::secret::Stream;
use trunkline_wire::Gid;

/// Values by an index of our own, which nobody outside chooses.
pub(crate) type IndexMap<T> = HashMap<u32, T, BuildHasherDefault<Spread>>;

/// The same by an index with another one before it.
pub(crate) type PairMap<T> = HashMap<u64, T, BuildHasherDefault<Spread>>;

/// Values by 128 bits, which strangers choose parts of. Keys hash as one `u128`.
pub(crate) type WideMap<K, T> = HashMap<K, T, Keyed>;

/// An address as a key of such a table.
pub(crate) const fn bits(address: Gid) -> u128 {
    u128::from_be_bytes(address.0)
}

/// Spreads indices, which come in rows, over a table (Fibonacci hashing).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only for indices")
    }

    fn write_u32(&mut self, index: u32) {
        self.write_u64(index.into());
    }

    fn write_u64(&mut self, indices: u64) {
        let product = indices.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // Tables take the low bits for the place and the high ones for a tag.
        self.0 = product ^ product.rotate_right(32);
    }
}

/// SipHash-1-3 (Aumasson and Bernstein, 2012) of keys that strangers choose parts of: who does not
/// know the secret cannot make many of them meet in one place of a table.
#[derive(Clone, Copy)]
pub(crate) struct Keyed([u64; 2]);

impl Keyed {
    pub(crate) const fn new(secret: [u64; 2]) -> Self {
        Self(secret)
    }

    /// One that nobody can foresee who does not know `secret`.
    pub(crate) fn of(mut secret: Stream) -> Self {
        Self::new([secret.next_u64(), secret.next_u64()])
    }

    /// The hash of 16 bytes.
    #[inline]
    pub(crate) const fn hash(&self, words: [u64; 2]) -> u64 {
        let [k0, k1] = self.0;
        let mut v = [
            k0 ^ 0x736f_6d65_7073_6575,
            k1 ^ 0x646f_7261_6e64_6f6d,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ];
        // The last word of SipHash is the length, in the highest byte.
        v = Self::word(v, words[0]);
        v = Self::word(v, words[1]);
        v = Self::word(v, 16 << 56);
        v[2] ^= 0xff;
        v = Self::round(Self::round(Self::round(v)));
        v[0] ^ v[1] ^ v[2] ^ v[3]
    }

    const fn word(mut v: [u64; 4], word: u64) -> [u64; 4] {
        v[3] ^= word;
        v = Self::round(v);
        v[0] ^= word;
        v
    }

    const fn round([mut a, mut b, mut c, mut d]: [u64; 4]) -> [u64; 4] {
        a = a.wrapping_add(b);
        b = b.rotate_left(13) ^ a;
        a = a.rotate_left(32);
        c = c.wrapping_add(d);
        d = d.rotate_left(16) ^ c;
        a = a.wrapping_add(d);
        d = d.rotate_left(21) ^ a;
        c = c.wrapping_add(b);
        b = b.rotate_left(17) ^ c;
        c = c.rotate_left(32);
        [a, b, c, d]
    }
}

impl BuildHasher for Keyed {
    type Hasher = KeyedHasher;

    fn build_hasher(&self) -> KeyedHasher {
        KeyedHasher {
            keyed: *self,
            hash: 0,
        }
    }
}

/// The keyed hash of one `u128`.
#[derive(Debug)]
pub(crate) struct KeyedHasher {
    keyed: Keyed,
    hash: u64,
}

impl Hasher for KeyedHasher {
    fn finish(&self) -> u64 {
        self.hash
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only for 128 bits")
    }

    fn write_u128(&mut self, bits: u128) {
        self.hash = self.keyed.hash([(bits >> 64) as u64, bits as u64]);
    }
}

impl std::fmt::Debug for Keyed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Keyed").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline_conn::secret::{Purpose, Secret};

    #[test]
    fn the_keyed_hash_is_siphash_1_3() {
        // The standard library's hasher is SipHash-1-3, made with a key of zeros.
        let mut standard = std::hash::DefaultHasher::new();
        let words = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        for word in words {
            standard.write(&u64::to_le_bytes(word));
        }
        assert_eq!(Keyed::new([0, 0]).hash(words), standard.finish());
        assert_ne!(Keyed::new([0, 1]).hash(words), standard.finish());
    }

    #[test]
    fn who_does_not_know_the_secret_makes_no_two_hashes_meet() {
        let of = |seed, key: u128| {
            let secret = Secret::from_seed(seed);
            Keyed::of(secret.stream(Purpose::Pauses)).hash_one(key)
        };
        assert_ne!(of(1, 0), of(2, 0), "another secret");
        assert_ne!(of(1, 0), of(1, 1), "other low bits");
        assert_ne!(of(1, 0), of(1, 1 << 64), "other high bits");
    }

    #[test]
    fn indices_in_a_row_fall_into_different_places() {
        let spread = BuildHasherDefault::<Spread>::default();
        let mut places: Vec<u64> = (0..1024u32).map(|i| spread.hash_one(i) % 4096).collect();
        places.sort_unstable();
        places.dedup();
        assert!(
            places.len() > 700,
            "{} places for 1,024 indices",
            places.len()
        );
    }
}
