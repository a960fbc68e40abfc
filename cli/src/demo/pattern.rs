//! Bytes that nothing can pass for by accident.

/// What a QP sends, writes or reads in a round of the demo.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pattern(u64);

impl Pattern {
    /// Bytes that depend on the QP and the round.
    pub(super) const fn new(qp: usize, round: u64) -> Self {
        let qp = (qp as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self(qp ^ round.wrapping_mul(0xd1b5_4a32_d192_ed03))
    }

    const fn word(self, at: usize) -> u64 {
        let step = (at as u64).wrapping_mul(0x5851_f42d_4c95_7f2d);
        let word = self.0.wrapping_add(step);
        word ^ (word >> 29)
    }

    /// Fills `out` with them.
    pub(super) fn fill(self, out: &mut [u8]) {
        let (words, rest) = out.as_chunks_mut();
        let count = words.len();
        for (at, bytes) in words.iter_mut().enumerate() {
            *bytes = self.word(at).to_ne_bytes();
        }
        rest.copy_from_slice(&self.word(count).to_ne_bytes()[..rest.len()]);
    }

    /// Whether that is what `found` is.
    pub(super) fn matches(self, found: &[u8]) -> bool {
        let (words, rest) = found.as_chunks();
        let mut differ = 0;
        for (at, bytes) in words.iter().enumerate() {
            differ |= u64::from_ne_bytes(*bytes) ^ self.word(at);
        }
        differ == 0 && rest == &self.word(words.len()).to_ne_bytes()[..rest.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_counts_and_so_do_qp_and_round() {
        for length in [0, 1, 8, 31, 1000, 4096] {
            let pattern = Pattern::new(7, 2);
            let mut bytes = vec![0; length];
            pattern.fill(&mut bytes);
            assert!(pattern.matches(&bytes), "{length}");
            for at in 0..length {
                bytes[at] ^= 1 << (at % 8);
                assert!(!pattern.matches(&bytes), "byte {at} of {length}");
                bytes[at] ^= 1 << (at % 8);
            }
            for other in [Pattern::new(8, 2), Pattern::new(7, 3), Pattern::new(7, !2)] {
                assert_eq!(other.matches(&bytes), length == 0, "{other:?}");
            }
        }
    }
}
