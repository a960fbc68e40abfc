//! Which bytes of a message have come, in 8 bytes and whatever their order.
//!
//! Packets of a message come in any order, so a count of their bytes tells when all may be there.
//! A peer that lies can say some bytes twice and others never, and the count is right. So two sums
//! are compared besides: of a keyed hash of where each piece ends, and of where it begins. They
//! differ by the hash of the whole length less that of 0 where each byte came exactly once, and
//! otherwise with a chance of 2^-32, as long as the peer does not know the key:
//!
//! Claim. Where the ends of all pieces and 0 are, as multisets, their beginnings and the length,
//! the pieces are one chain from 0 to the length. Proof: take each piece as an edge from where it
//! begins to where it ends. Each point has as many edges in as out, but for 0 and the length. So
//! the edges are a path from 0 to the length, and cycles; as each edge leads forward, there are no
//! cycles.
//!
//! What is kept is how far the sums are from those of the same bytes in order: nothing is hashed,
//! and it is 0, as long as packets come in order.

use crate::hash::Keyed;

/// The pieces of one message that have come.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Coverage {
    /// Bytes of all pieces.
    bytes: u32,
    /// Hashes of where pieces ended, less those of where they began, less what that is for as many
    /// bytes in order.
    astray: u32,
}

impl Coverage {
    /// Nothing has come.
    pub(crate) const NOTHING: Self = Self {
        bytes: 0,
        astray: 0,
    };

    /// Returns how many bytes have come, those that came twice counted twice.
    #[inline]
    pub(crate) const fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Takes in a piece of `length` bytes from `offset` on. Their sum is at most `u32::MAX`.
    #[inline]
    pub(crate) fn add(&mut self, key: &Keyed, offset: u32, length: u32) {
        if offset != self.bytes {
            let more = astray(key, offset, self.bytes, length);
            self.astray = self.astray.wrapping_add(more);
        }
        self.bytes = self.bytes.saturating_add(length);
    }

    /// Whether each of the first `length` bytes has come exactly once, and no other.
    #[inline]
    pub(crate) const fn is_whole(&self, length: u32) -> bool {
        self.bytes == length && self.astray == 0
    }
}

/// What a piece at `offset` adds beyond what it adds at `expected`.
#[inline(never)]
fn astray(key: &Keyed, offset: u32, expected: u32, length: u32) -> u32 {
    let hash = |place: u32| key.hash([place.into(), 0]) as u32;
    let spans = |from: u32| hash(from.saturating_add(length)).wrapping_sub(hash(from));
    spans(offset).wrapping_sub(spans(expected))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Keyed = Keyed::new([3, 4]);

    fn of(pieces: impl IntoIterator<Item = (u32, u32)>) -> Coverage {
        let mut coverage = Coverage::NOTHING;
        for (offset, length) in pieces {
            coverage.add(&KEY, offset, length);
        }
        coverage
    }

    /// All ways to say `left` bytes of a message of `length` in pieces, with what each byte's count
    /// is.
    fn check_all(length: u32, said: &mut Vec<(u32, u32)>, left: u32) -> usize {
        let mut counts = vec![0; length as usize];
        for (offset, length) in said.iter() {
            let range = *offset as usize..(offset + length) as usize;
            counts[range].iter_mut().for_each(|count| *count += 1);
        }
        let whole = counts.iter().all(|count| *count == 1);
        let coverage = of(said.iter().copied());
        assert_eq!(coverage.is_whole(length), whole, "{said:?} of {length}");
        assert_eq!(coverage.bytes(), counts.iter().sum::<u32>());
        let mut checked = 1;
        for piece in 1..=left.min(length) {
            for offset in 0..=length - piece {
                said.push((offset, piece));
                checked += check_all(length, said, left - piece);
                said.pop();
            }
        }
        checked
    }

    #[test]
    fn a_message_is_whole_where_each_of_its_bytes_came_once() {
        let checked: usize = (0..=6).map(|n| check_all(n, &mut Vec::new(), n)).sum();
        assert!(checked > 20_000, "{checked}");
    }

    #[test]
    fn pieces_without_bytes_change_nothing() {
        let coverage = of([(4, 4), (9, 0), (0, 4), (3, 0)]);
        assert!(coverage.is_whole(8));
        assert!(!of([(9, 0)]).is_whole(8) && of([(9, 0)]).is_whole(0));
    }

    #[test]
    fn more_bytes_than_can_be_counted_are_no_fewer() {
        assert_eq!(of([(0, u32::MAX), (0, 3)]).bytes(), u32::MAX);
    }

    #[test]
    fn the_same_bytes_twice_are_not_all() {
        let length = 1 << 20;
        let half = length / 2;
        assert!(of([(half, half), (0, half)]).is_whole(length));
        for pieces in [[(0, half); 2], [(half, half); 2], [(1, half), (0, half)]] {
            assert!(!of(pieces).is_whole(length), "{pieces:?}");
        }
    }
}
