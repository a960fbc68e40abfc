//! An array of atomic words or pointers that grows without moving: readers need no lock, and a
//! table for thousands of QPs does not pay for millions.
//!
//! Words live in chunks, each allocated when one of its words is first written. The first chunk has
//! 64 words; from there on every power of two is split into four chunks, so that what is allocated
//! beyond the highest word written in order is at most a quarter of the rest:
//!
//! ```text
//! chunk   0      1      2      3       4       5       ...  72
//! words   0..64  64..80 80..96 96..112 112..128 128..160 ...  ..2^24
//! ```

use std::sync::OnceLock;

/// Words of the first chunk, as a power of two.
const FIRST: u32 = 6;

/// How many chunks 2^`bits` words take, `bits` being 6 to 24.
pub(crate) const fn chunks(bits: u32) -> usize {
    1 + 4 * (bits - FIRST) as usize
}

/// Words in up to `CHUNKS` chunks (see [`chunks`]), zero until written.
#[derive(Debug)]
pub(crate) struct Chunks<W, const CHUNKS: usize>([OnceLock<Box<[W]>>; CHUNKS]);

impl<W: Default, const CHUNKS: usize> Chunks<W, CHUNKS> {
    /// Most words.
    pub(crate) const SIZE: u32 = 1 << (FIRST + (CHUNKS as u32 - 1) / 4);

    pub(crate) const fn new() -> Self {
        Self([const { OnceLock::new() }; CHUNKS])
    }

    /// The word at `index`; `None` while its chunk was never written, or past the end.
    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&W> {
        let (chunk, _, offset) = place(index);
        self.0.get(chunk)?.get()?.get(offset)
    }

    /// The word at `index`, its chunk allocated if need be.
    ///
    /// # Panics
    /// When `index` is not below [`SIZE`](Self::SIZE).
    #[inline]
    pub(crate) fn get_or_grow(&self, index: u32) -> &W {
        let (chunk, words, offset) = place(index);
        assert!(chunk < CHUNKS, "index {index} of {} words", Self::SIZE);
        &self.0[chunk].get_or_init(|| (0..words).map(|_| W::default()).collect())[offset]
    }

    /// The words whose chunks are there.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &W> {
        self.0.iter().filter_map(OnceLock::get).flatten()
    }

    /// Bytes allocated, this object included.
    pub(crate) fn state_bytes(&self) -> usize {
        let words: usize = self
            .0
            .iter()
            .filter_map(OnceLock::get)
            .map(|chunk| chunk.len())
            .sum();
        size_of::<Self>() + words * size_of::<W>()
    }
}

/// Chunk of a word, words of that chunk, and the word's place in it.
#[inline]
const fn place(index: u32) -> (usize, u32, usize) {
    if index < 1 << FIRST {
        return (0, 1 << FIRST, index as usize);
    }
    let power = index.ilog2();
    let quarter = power - 2;
    // 4 to 7: the top three bits, of which the first is set.
    let top = index >> quarter;
    let chunk = 4 * (power - FIRST) + top - 3;
    (
        chunk as usize,
        1 << quarter,
        (index - (top << quarter)) as usize,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::AtomicU64;
    use std::sync::atomic::Ordering::Relaxed;

    type Words<const CHUNKS: usize> = Chunks<AtomicU64, CHUNKS>;
    type Rows = Words<{ chunks(24) }>;

    #[test]
    fn every_index_has_a_place_of_its_own_and_chunks_follow_each_other() {
        let mut expected = (0, 0);
        for index in 0..Rows::SIZE {
            let (chunk, words, offset) = place(index);
            assert_eq!((chunk, offset), expected, "index {index}");
            expected = if offset + 1 == words as usize {
                (chunk + 1, 0)
            } else {
                (chunk, offset + 1)
            };
        }
        assert_eq!(expected, (chunks(24), 0));
        assert_eq!(place(Rows::SIZE).0, chunks(24));
    }

    #[test]
    fn words_are_zero_until_written_and_only_written_chunks_take_memory() {
        let words = Rows::new();
        let empty = words.state_bytes();
        assert!(words.get(0).is_none() && words.get(u32::MAX).is_none());
        words.get_or_grow(70).store(7, Relaxed);
        assert!(words.get(0).is_none(), "another chunk");
        assert_eq!(words.get(70).map(|word| word.load(Relaxed)), Some(7));
        assert_eq!(words.get(71).map(|word| word.load(Relaxed)), Some(0));
        assert_eq!(words.state_bytes() - empty, 16 * 8);
    }

    #[test]
    fn filling_in_order_wastes_at_most_a_quarter() {
        let words = Rows::new();
        let empty = words.state_bytes();
        for index in 0..200_000 {
            words.get_or_grow(index);
            let allocated = (words.state_bytes() - empty) / 8;
            let written = index as usize + 1;
            assert!(
                allocated <= (written + written / 4).max(64),
                "{allocated} for {written}"
            );
        }
    }

    #[test]
    fn smaller_arrays_end_where_their_chunks_do() {
        assert_eq!(
            (Words::<{ chunks(6) }>::SIZE, Words::<{ chunks(18) }>::SIZE),
            (64, 1 << 18)
        );
        let words = Words::<{ chunks(6) }>::new();
        words.get_or_grow(63).store(1, Relaxed);
        assert!(words.get(64).is_none());
    }

    #[test]
    #[should_panic(expected = "index 16777216")]
    fn growing_past_the_end_panics() {
        Rows::new().get_or_grow(Rows::SIZE);
    }
}
