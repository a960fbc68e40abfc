//! Secrets: 32 bytes, and all the random numbers of a node that follow from them.
//!
//! Peers see numbers that others rely on: QPNs, numbers of connections, tokens, first packet
//! numbers, keys, communication IDs. What a peer has seen must tell it nothing about the rest. So
//! all of them come from ChaCha20 (RFC 8439), each [`Purpose`] from a keystream of its own: the key
//! is the secret, the nonce is the purpose. A node takes its secret from the operating system; a
//! simulation [expands it from a seed](Secret::from_seed) and gets equal numbers each time.

use chacha20::ChaCha20Rng;
use chacha20::rand_core::{Rng, SeedableRng};

/// What random numbers are for. Those of different purposes have nothing in common.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Purpose {
    /// The secret of one worker of a node.
    Worker(u8),
    /// GUID and epoch of a node.
    Identity,
    /// The secret of an engine.
    Engine,
    /// Communication and transaction IDs, and the jitter of retries, of the manager of nodes.
    Nodes,
    /// The same of the manager of ordinary hosts.
    Hosts,
    /// Pauses before a busy peer is asked again.
    Pauses,
    /// First PSNs: of management datagrams, and of QPs for ordinary hosts.
    Psns,
    /// The permutation behind QPNs.
    Qpns,
    /// The permutation behind numbers of connections.
    Connections,
    /// Tokens of connections.
    Tokens,
    /// Numbers of the first packets of connections.
    FirstPackets,
    /// The secret of keys of regions: all workers of a node share it.
    Regions,
    /// The permutation behind keys of regions.
    RegionKeys,
    /// Where the salts of regions begin.
    RegionSalts,
    /// The secret of the GUIDs that ordinary hosts are told: all workers of a node share it.
    HostGuids,
    /// The key of the hash table of routes, of which peers choose parts.
    Routes,
    /// The key of the hashes that tell whether all of a message has come.
    Coverage,
}

impl Purpose {
    /// The nonce. A number is never used for another purpose.
    const fn nonce(self) -> u64 {
        match self {
            Self::Worker(index) => 1 << 8 | index as u64,
            Self::Identity => 1,
            Self::Engine => 2,
            Self::Nodes => 3,
            Self::Hosts => 4,
            Self::Pauses => 5,
            Self::Psns => 6,
            Self::Qpns => 7,
            Self::Connections => 8,
            Self::Tokens => 9,
            Self::FirstPackets => 10,
            Self::Regions => 11,
            Self::RegionKeys => 12,
            Self::RegionSalts => 13,
            Self::HostGuids => 14,
            Self::Routes => 15,
            Self::Coverage => 16,
        }
    }
}

/// 32 bytes that never leave the node.
#[derive(Clone, Copy, Eq, PartialEq)]
pub struct Secret([u8; 32]);

impl Secret {
    /// That of these bytes, which nobody else can know.
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// For simulations and tests: the 8 bytes of `seed`, lowest first, and 24 zeros. Whoever
    /// knows the seed knows all that follows.
    pub const fn from_seed(seed: u64) -> Self {
        let (mut bytes, low) = ([0; 32], seed.to_le_bytes());
        let mut at = 0;
        while at < low.len() {
            bytes[at] = low[at];
            at += 1;
        }
        Self(bytes)
    }

    /// Another secret, which tells nothing about this one.
    #[must_use]
    pub fn derive(&self, purpose: Purpose) -> Self {
        let mut bytes = [0; 32];
        self.stream(purpose).fill(&mut bytes);
        Self(bytes)
    }

    /// The number that belongs to `name`: those of other names tell nothing about it. For this a
    /// secret is taken that serves nothing else.
    pub fn number_of(&self, name: u128) -> u64 {
        // ChaCha20 gives each nonce and counter a block of its own.
        let Stream(mut generator) = self.at((name >> 64) as u64);
        generator.set_block_pos(name as u64);
        Stream(generator).next_u64()
    }

    /// The random numbers for `purpose`, from the first.
    pub fn stream(&self, purpose: Purpose) -> Stream {
        self.at(purpose.nonce())
    }

    fn at(&self, nonce: u64) -> Stream {
        let mut generator = ChaCha20Rng::from_seed(self.0);
        generator.set_stream(nonce);
        Stream(generator)
    }
}

impl core::fmt::Debug for Secret {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("Secret").finish_non_exhaustive()
    }
}

/// Random numbers for one purpose. Who sees some of them cannot compute the others.
pub struct Stream(ChaCha20Rng);

impl Stream {
    /// 64 bits.
    #[must_use]
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Fills `bytes`.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        self.0.fill_bytes(bytes);
    }
}

impl core::fmt::Debug for Stream {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("Stream").finish_non_exhaustive()
    }
}

/// Rounds of SPECK32.
const ROUNDS: usize = 22;

/// A secret permutation of all 32-bit numbers: SPECK32 (Beaulieu et al., 2013, "The SIMON and SPECK
/// Families of Lightweight Block Ciphers"), with the keys of its 22 rounds drawn independently
/// rather than computed from a key of 64 bits, which could be searched for. The best attacks on it
/// that are published reach 15 rounds.
#[derive(Clone)]
pub struct Permutation32([u16; ROUNDS]);

impl Permutation32 {
    /// The permutation that the first 44 bytes of `stream` decide on.
    pub fn new(mut stream: Stream) -> Self {
        Self::draw(|| stream.next_u64())
    }

    /// The same, from any source of secret bits.
    pub fn draw(mut random: impl FnMut() -> u64) -> Self {
        let mut keys = [0; ROUNDS];
        for four in keys.chunks_mut(4) {
            let mut bits = random();
            for key in four {
                *key = bits as u16;
                bits >>= 16;
            }
        }
        Self(keys)
    }

    /// The number to show for `value`.
    #[inline]
    pub const fn seal(&self, value: u32) -> u32 {
        let (mut x, mut y) = ((value >> 16) as u16, value as u16);
        let mut i = 0;
        while i < ROUNDS {
            x = x.rotate_right(7).wrapping_add(y) ^ self.0[i];
            y = y.rotate_left(2) ^ x;
            i += 1;
        }
        (x as u32) << 16 | y as u32
    }

    /// The value behind a number.
    #[inline]
    pub const fn open(&self, number: u32) -> u32 {
        let (mut x, mut y) = ((number >> 16) as u16, number as u16);
        let mut i = ROUNDS;
        while i > 0 {
            i -= 1;
            y = (y ^ x).rotate_right(2);
            x = (x ^ self.0[i]).wrapping_sub(y).rotate_left(7);
        }
        (x as u32) << 16 | y as u32
    }
}

impl core::fmt::Debug for Permutation32 {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("Permutation32").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{format, vec::Vec};

    const ALL: [Purpose; 17] = [
        Purpose::Worker(0),
        Purpose::Worker(1),
        Purpose::Worker(63),
        Purpose::Identity,
        Purpose::Engine,
        Purpose::Nodes,
        Purpose::Hosts,
        Purpose::Pauses,
        Purpose::Psns,
        Purpose::Qpns,
        Purpose::Connections,
        Purpose::Tokens,
        Purpose::FirstPackets,
        Purpose::Regions,
        Purpose::RegionKeys,
        Purpose::RegionSalts,
        Purpose::HostGuids,
    ];

    #[test]
    fn the_stream_is_chacha20() {
        // draft-strombergson-chacha-test-vectors-01, 3.1, TC1: 256-bit key and nonce of zeros,
        // 20 rounds.
        let mut generator = ChaCha20Rng::from_seed([0; 32]);
        let mut bytes = [0; 16];
        generator.fill_bytes(&mut bytes);
        assert_eq!(
            bytes,
            [
                0x76, 0xb8, 0xe0, 0xad, 0xa0, 0xf1, 0x3d, 0x90, 0x40, 0x5d, 0x6a, 0xe5, 0x53, 0x86,
                0xbd, 0x28
            ]
        );
    }

    #[test]
    fn no_two_purposes_and_no_two_secrets_have_numbers_in_common() {
        let base = Secret::from_seed(1);
        let secrets = [&base, &Secret::from_seed(2), &base.derive(Purpose::Engine)];
        let mut seen = Vec::new();
        for secret in secrets {
            for purpose in ALL {
                let mut stream = secret.stream(purpose);
                seen.extend((0..256).map(|_| stream.next_u64()));
            }
        }
        let drawn = seen.len();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), drawn);
    }

    #[test]
    fn each_name_has_a_number_of_its_own() {
        let secret = Secret::from_seed(1).derive(Purpose::HostGuids);
        let names = (0..64).flat_map(|bit| [1_u128 << bit, 1 << (bit + 64), bit << 96 | 3]);
        let names: alloc::collections::BTreeSet<u128> = names.collect();
        let numbers: alloc::collections::BTreeSet<u64> =
            names.iter().map(|name| secret.number_of(*name)).collect();
        assert_eq!(numbers.len(), names.len());
        assert_eq!(secret.number_of(5), secret.number_of(5));
        assert_ne!(secret.number_of(5), Secret::from_seed(2).number_of(5));
    }

    #[test]
    fn numbers_of_names_that_follow_each_other_have_no_half_in_common() {
        let secret = Secret::from_seed(1).derive(Purpose::HostGuids);
        let last = u128::from(u64::MAX);
        let names = (0..64).chain(last - 3..=last + 4).chain([u128::MAX]);
        let halves = names.flat_map(|name| {
            let number = secret.number_of(name);
            [number as u32, (number >> 32) as u32]
        });
        let halves: Vec<u32> = halves.collect();
        let different: alloc::collections::BTreeSet<&u32> = halves.iter().collect();
        assert_eq!(different.len(), halves.len());
    }

    #[test]
    fn a_seed_gives_the_same_numbers_each_time() {
        for purpose in ALL {
            let draw = || {
                let mut stream = Secret::from_seed(9).derive(purpose).stream(purpose);
                [stream.next_u64(), stream.next_u64()]
            };
            assert_eq!(draw(), draw());
        }
        let bytes = core::array::from_fn(|at| if at == 0 { 9 } else { 0 });
        let (mut a, mut b) = (
            Secret::new(bytes).stream(Purpose::Tokens),
            Secret::from_seed(9).stream(Purpose::Tokens),
        );
        assert_eq!(a.next_u64(), b.next_u64());
    }

    #[test]
    fn the_permutation_is_speck32() {
        // The vector of the paper, appendix C: key 1918 1110 0908 0100. The schedule is here only:
        // we draw the keys of rounds.
        let (mut k, mut l) = (0x0100_u16, [0x0908_u16, 0x1110, 0x1918]);
        let mut keys = [0; ROUNDS];
        for (i, key) in keys.iter_mut().enumerate() {
            *key = k;
            let next = k.wrapping_add(l[i % 3].rotate_right(7)) ^ i as u16;
            l[i % 3] = next;
            k = k.rotate_left(2) ^ next;
        }
        let speck = Permutation32(keys);
        assert_eq!(speck.seal(0x6574_694c), 0xa868_42f2);
        assert_eq!(speck.open(0xa868_42f2), 0x6574_694c);
    }

    #[test]
    fn what_was_sealed_opens() {
        let secret = Permutation32::new(Secret::from_seed(3).stream(Purpose::RegionKeys));
        for step in 0..200_000_u32 {
            let value = step.wrapping_mul(2_654_435_761);
            assert_eq!(secret.open(secret.seal(value)), value);
        }
    }

    #[test]
    fn secrets_do_not_show_in_debug_output() {
        let secret = Secret::from_seed(0x0102_0304);
        assert_eq!(format!("{secret:?}"), "Secret(..)");
        let stream = secret.stream(Purpose::Tokens);
        assert_eq!(format!("{stream:?}"), "Stream(..)");
        let permutation = Permutation32::new(stream);
        assert_eq!(format!("{permutation:?}"), "Permutation32(..)");
    }
}
