//! A piece: words of a segment that one ring, or one part of it, lies in.
//!
//! A piece starts at a multiple of [`LINE`] bytes and has no cache line in common with any other.
//! It has the words that were asked for, no more, as the length of a ring tells its slots.
#![allow(
    unsafe_code,
    reason = "keeps a slice of a mapping beside what keeps the mapping"
)]

use crate::pieces::State;
use crate::segment::{Mapping, SegmentError};
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Bytes of a cache line: every piece starts at a multiple of them.
pub const LINE: u64 = 64;

/// Words of a cache line.
pub(crate) const LINE_WORDS: usize = LINE as usize / size_of::<AtomicU64>();

/// How the service tells a client which piece it got.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct PieceName {
    /// Number of the segment among those of the client, from 0.
    pub segment: u32,
    /// Bytes from the start of the segment to the piece: a multiple of [`LINE`].
    pub offset: u64,
    /// Words of 8 bytes of the piece, at least 1.
    pub words: u32,
}

/// A segment that is mapped for as long as anybody has a piece of it.
#[derive(Debug)]
pub(crate) struct Home {
    pub(crate) mapping: Mapping,
    pub(crate) number: u32,
    /// Where a piece goes when it is dropped; on the side of a client, nowhere.
    pub(crate) owner: Weak<Mutex<State>>,
}

/// Words of a segment. Whoever else has the segment mapped may change them at any time.
///
/// The segment stays mapped for as long as the piece exists. On the side of the service a piece
/// that is dropped can be given out again.
pub struct Piece {
    words: NonNull<[AtomicU64]>,
    home: Arc<Home>,
}

// SAFETY: the words are those of `home`, which may be sent; a piece reaches them as shared atomics.
unsafe impl Send for Piece {}
// SAFETY: as above; `home` may be shared, too.
unsafe impl Sync for Piece {}

impl Piece {
    /// `words` words from word `start` of the segment on; `None` where they are not all in it.
    pub(crate) fn new(home: &Arc<Home>, start: usize, words: usize) -> Option<Self> {
        let all = home.mapping.words();
        let end = start.checked_add(words)?;
        let words = NonNull::from(all.get(start..end)?);
        let home = Arc::clone(home);
        Some(Self { words, home })
    }

    /// The words; always the same ones.
    #[inline]
    pub const fn as_slice(&self) -> &[AtomicU64] {
        // SAFETY: made from a slice of the mapping, which `home` keeps for as long as `self` lives.
        unsafe { self.words.as_ref() }
    }

    /// Makes words of its segment zero.
    pub(crate) fn zero_segment(&self, words: Range<usize>) {
        for word in &self.home.mapping.words()[words] {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// How the other side finds the piece.
    pub fn name(&self) -> PieceName {
        let base = self.home.mapping.words().as_ptr().addr();
        PieceName {
            segment: self.home.number,
            offset: (self.words.as_ptr().addr() - base) as u64,
            words: self.words.len() as u32,
        }
    }
}

impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Piece").field(&self.name()).finish()
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        if let Some(owner) = self.home.owner.upgrade() {
            let mut state = owner.lock().unwrap_or_else(PoisonError::into_inner);
            state.give_back(self.name());
        }
    }
}

/// Why a client did not find a piece. The service that named it is broken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PieceNameError {
    /// No segment of that number has come.
    #[error("there is no segment {segment}")]
    UnknownSegment {
        /// The number.
        segment: u32,
    },
    /// A segment of that number has come before.
    #[error("segment {segment} came twice")]
    Twice {
        /// Its number.
        segment: u32,
    },
    /// The piece does not start at a cache line, has no words, or ends behind its segment.
    #[error("{name:?} is no piece of a segment of {bytes} bytes")]
    Outside {
        /// The name.
        name: PieceName,
        /// Bytes of the segment.
        bytes: u64,
    },
    /// The segment cannot be mapped.
    #[error(transparent)]
    Segment(#[from] SegmentError),
}

/// The segments of a client, on its own side.
#[derive(Debug, Default)]
pub struct SegmentTable(HashMap<u32, Arc<Home>>);

impl SegmentTable {
    /// No segments yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Maps the segment that came with a message. Segments come in any order, each once. The
    /// descriptor may be closed afterwards.
    ///
    /// # Errors
    /// There is one of that number, or the file is not [sealed](Mapping::of_sealed) or not of that
    /// length; the table is as before.
    pub fn add(
        &mut self,
        segment: u32,
        file: BorrowedFd<'_>,
        bytes: u64,
    ) -> Result<(), PieceNameError> {
        if self.0.contains_key(&segment) {
            return Err(PieceNameError::Twice { segment });
        }
        let home = Home {
            mapping: Mapping::of_sealed(file, bytes)?,
            number: segment,
            owner: Weak::new(),
        };
        self.0.insert(segment, Arc::new(home));
        Ok(())
    }

    /// The piece of that name.
    ///
    /// # Errors
    /// The segment has not come; the piece is not whole lines from its start, is empty, or ends
    /// behind it.
    pub fn resolve(&self, name: PieceName) -> Result<Piece, PieceNameError> {
        let segment = name.segment;
        let home = self.0.get(&segment);
        let home = home.ok_or(PieceNameError::UnknownSegment { segment })?;
        let outside = PieceNameError::Outside {
            name,
            bytes: home.mapping.bytes(),
        };
        if name.words == 0 || !name.offset.is_multiple_of(LINE) {
            return Err(outside);
        }
        let start = usize::try_from(name.offset / size_of::<AtomicU64>() as u64).ok();
        let piece = start.and_then(|start| Piece::new(home, start, name.words as usize));
        piece.ok_or(outside)
    }
}

#[cfg(all(test, not(miri)))]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;
    use crate::segment::Segment;

    const BYTES: u64 = 1 << 16;

    fn table() -> (SegmentTable, Segment) {
        let segment = Segment::create(BYTES).unwrap();
        let mut table = SegmentTable::new();
        table.add(0, segment.fd(), BYTES).unwrap();
        (table, segment)
    }

    const fn name(offset: u64, words: u32) -> PieceName {
        PieceName {
            segment: 0,
            offset,
            words,
        }
    }

    #[test]
    fn a_piece_shows_its_words_of_the_segment_and_knows_its_name() {
        let (table, segment) = table();
        for at in [
            name(0, 1),
            name(64, 24),
            name(BYTES - 64, 8),
            name(0, BYTES as u32 / 8),
        ] {
            let piece = table.resolve(at).unwrap();
            assert_eq!(piece.name(), at);
            assert_eq!(piece.as_slice().len(), at.words as usize);
            let first = at.offset as usize / 8;
            segment.mapping().words()[first].store(at.offset + 1, Ordering::Relaxed);
            assert_eq!(piece.as_slice()[0].load(Ordering::Relaxed), at.offset + 1);
            let last = piece.as_slice().len() - 1;
            piece.as_slice()[last].store(77, Ordering::Relaxed);
            assert_eq!(
                segment.mapping().words()[first + last].load(Ordering::Relaxed),
                77
            );
        }
    }

    #[test]
    fn a_name_that_is_not_inside_its_segment_is_refused() {
        let (table, _segment) = table();
        for at in [
            name(0, 0),
            name(8, 1),
            name(63, 1),
            name(BYTES, 1),
            name(BYTES - 64, 9),
            name(0, BYTES as u32 / 8 + 1),
            name(0, u32::MAX),
            name(u64::MAX - 63, 8),
            name(u64::MAX - 63, u32::MAX),
        ] {
            let refused = table.resolve(at).unwrap_err();
            assert!(matches!(refused, PieceNameError::Outside { .. }), "{at:?}");
        }
        let elsewhere = PieceName {
            segment: 1,
            ..name(0, 1)
        };
        let refused = table.resolve(elsewhere).unwrap_err();
        assert!(matches!(
            refused,
            PieceNameError::UnknownSegment { segment: 1 }
        ));
    }

    #[test]
    fn segments_come_in_any_order_and_once() {
        let (mut table, segment) = table();
        assert!(table.add(u32::MAX, segment.fd(), BYTES).is_ok());
        for number in [0, u32::MAX] {
            let refused = table.add(number, segment.fd(), BYTES).unwrap_err();
            assert!(matches!(refused, PieceNameError::Twice { .. }));
        }
        let refused = table.add(1, segment.fd(), 2 * BYTES).unwrap_err();
        assert!(matches!(refused, PieceNameError::Segment(_)));
        assert!(table.add(1, segment.fd(), BYTES).is_ok());
    }

    #[test]
    fn a_piece_keeps_its_segment_mapped() {
        let (table, segment) = table();
        let piece = table.resolve(name(128, 8)).unwrap();
        drop((table, segment));
        piece.as_slice()[7].store(5, Ordering::Relaxed);
        assert_eq!(piece.as_slice()[7].load(Ordering::Relaxed), 5);
    }
}
