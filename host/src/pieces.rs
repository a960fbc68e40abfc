//! The service's allocator of pieces: one for each client, over segments of that client alone.
//!
//! # Sizes
//!
//! A ring of a queue takes 16 words and 8 for each of 2^k slots; a CQ takes 24 words, and apart
//! from them 4 for each of 2^k entries. No series of powers of two fits both: what is 192 * 2^k
//! bytes long leaves up to a third of a ring's piece unused. So a piece takes as many cache lines
//! of 64 bytes as its words need, and there is no waste, but for CQs of a single entry.
//!
//! # Where a piece comes from
//!
//! The smallest free range that is long enough, the first of several that are equally long; what
//! is given back joins the free ranges beside it. Where none is long enough there is a new segment:
//! the first of 64 KiB, each next one twice as long up to 4 MiB, longer where the piece is, shorter
//! where the quota leaves less.
//!
//! # Bounds
//!
//! A client has its segments mapped and may fill them all, so the quota bounds the sum of their
//! lengths and not of the pieces, and so does a budget that it shares with others. Pages that were
//! touched stay with the client until it is gone: to give them back takes the lock of the file
//! (fallocate(2), madvise(2)), and whoever has the file may hold that for as long as he likes, by a
//! write(2) of bytes that do not come.

use crate::budget::{Budget, Share, Spent};
use crate::free::{FreeRanges, Range};
use crate::lent::Lent;
use crate::piece::{Home, LINE, LINE_WORDS, Piece, PieceName};
use crate::segment::{self, Segment, SegmentError};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most words of a piece: those of 2^22 completions.
pub const MAX_WORDS: u32 = 1 << 24;

/// Bytes of the first segment of a client, and of those that come late.
const FIRST_SEGMENT: u64 = 64 << 10;
const LATE_SEGMENT: u64 = 4 << 20;

/// Why a client did not get a piece. Nothing has changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PieceError {
    /// The segments of the client would be longer together than its quota allows.
    #[error("{wanted} bytes more: {taken} of the client's quota of {quota} bytes are taken")]
    Quota {
        /// Bytes of the piece.
        wanted: u64,
        /// Bytes of the client's segments.
        taken: u64,
        /// Most bytes of its segments.
        quota: u64,
    },
    /// So would be those of all clients that share a budget.
    #[error("{wanted} bytes more: {limit} bytes are all that several programs have together")]
    Shared {
        /// Bytes of the piece.
        wanted: u64,
        /// Most bytes of all segments.
        limit: u64,
    },
    /// No piece has so many words.
    #[error("a piece cannot have {words} words")]
    BadLength {
        /// Words that were asked for.
        words: u32,
    },
    /// The segment for it could not be made.
    #[error(transparent)]
    Segment(#[from] SegmentError),
}

/// Gives pieces to one client.
///
/// When it is dropped the segments stay mapped for as long as there are pieces of them. Who drops
/// the last of both frees all their pages at once, which takes long where they are many.
#[derive(Debug)]
pub struct Pieces(Arc<Mutex<State>>);

/// What pieces that are dropped change.
#[derive(Debug)]
pub(crate) struct State {
    owned: Vec<Owned>,
    free: FreeRanges,
    /// Bytes of all segments.
    taken: Share,
    quota: u64,
}

#[derive(Debug)]
struct Owned {
    home: Arc<Home>,
    /// Until the client was sent it.
    file: Option<Arc<OwnedFd>>,
    /// Lines from the start that may hold something: all behind them are zero.
    touched: u32,
}

/// A segment that the client is to be told of.
#[derive(Debug)]
pub struct NewSegment {
    /// Its number, by which pieces name it.
    pub number: u32,
    /// Its length in bytes.
    pub bytes: u64,
    /// Its descriptor, to be sent to the client.
    pub file: Arc<OwnedFd>,
}

impl Pieces {
    /// For a client whose segments may have `quota` bytes together. No segment is made yet.
    pub fn new(quota: u64) -> Self {
        Self::sharing(quota, &Arc::new(Budget::new(quota)))
    }

    /// The same for a client whose segments take of a budget of bytes that others take of, too.
    pub fn sharing(quota: u64, budget: &Arc<Budget>) -> Self {
        Self(Arc::new(Mutex::new(State {
            owned: Vec::new(),
            free: FreeRanges::default(),
            taken: Share::of(budget),
            quota,
        })))
    }

    /// A piece of `words` words, 1 to [`MAX_WORDS`], that are zero unless the client writes where
    /// it has no piece.
    ///
    /// # Errors
    /// The quota is used up, the length is out of range, or the system has no memory file for it.
    pub fn allocate(&self, words: u32) -> Result<Piece, PieceError> {
        if words == 0 || words > MAX_WORDS {
            return Err(PieceError::BadLength { words });
        }
        let lines = words.div_ceil(LINE_WORDS as u32);
        let mut state = self.state();
        let range = match state.free.take(lines) {
            Some(range) => range,
            None => {
                self.add_segment(&mut state, lines)?;
                let range = state.free.take(lines);
                range.expect("a new segment has room for what it was made for")
            }
        };
        let (piece, dirty) = state.piece(range, words as usize);
        // Workers that drop pieces do not wait for this.
        drop(state);
        piece.zero_segment(dirty);
        Ok(piece)
    }

    /// The segment of that number, if the client was not sent it: until [`sent`](Self::sent) says
    /// that it was, so that nothing is lost where the socket has no room.
    pub fn unsent(&self, number: u32) -> Option<NewSegment> {
        let state = self.state();
        let owned = state.owned.get(number as usize)?;
        Some(NewSegment {
            number,
            bytes: owned.home.mapping.bytes(),
            file: Arc::clone(owned.file.as_ref()?),
        })
    }

    /// Notes that the client was sent the segment of that number. The service keeps the mapping of
    /// it alone.
    pub fn sent(&self, number: u32) {
        if let Some(owned) = self.state().owned.get_mut(number as usize) {
            owned.file = None;
        }
    }

    /// Bytes of all segments of the client: what counts against its quota.
    pub fn taken(&self) -> u64 {
        self.state().taken.amount()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a segment of `bytes` bytes, whole pages, that the client gives out by itself.
    ///
    /// # Errors
    /// The quota is used up, the length is no length of a segment, or the system has no memory file
    /// for it.
    pub fn lend(&self, bytes: u64) -> Result<Lent, PieceError> {
        let mut state = self.state();
        state.check_quota(bytes)?;
        let segment = state.segment_of(bytes, bytes)?;
        Ok(Lent::new(segment, Arc::downgrade(&self.0)))
    }

    /// Makes a segment with room for `lines` lines.
    fn add_segment(&self, state: &mut State, lines: u32) -> Result<(), PieceError> {
        let (file, mapping) = state.next_segment(u64::from(lines) * LINE)?.into_parts();
        let bytes = mapping.bytes();
        let number = state.owned.len() as u32;
        let home = Home {
            mapping,
            number,
            owner: Arc::downgrade(&self.0),
        };
        state.owned.push(Owned {
            home: Arc::new(home),
            file: Some(Arc::new(file)),
            touched: 0,
        });
        state.free.give(Range {
            segment: number,
            start: 0,
            lines: (bytes / LINE) as u32,
        });
        Ok(())
    }
}

impl State {
    /// The next segment, which is made for a piece of `wanted` bytes: of the usual length where the
    /// quota and the budget leave that.
    fn next_segment(&mut self, wanted: u64) -> Result<Segment, PieceError> {
        let page = segment::page();
        let least = wanted.next_multiple_of(page);
        let left = self.check_quota(least)? / page * page;
        let doublings = self.owned.len().min(16);
        let usual = (FIRST_SEGMENT << doublings).min(LATE_SEGMENT);
        let usual = usual.next_multiple_of(page).max(least).min(left);
        match self.segment_of(usual, wanted) {
            Err(PieceError::Shared { .. }) => self.segment_of(least, wanted),
            made => made,
        }
    }

    /// Bytes that the quota leaves, `wanted` at least.
    fn check_quota(&self, wanted: u64) -> Result<u64, PieceError> {
        let (taken, quota) = (self.taken.amount(), self.quota);
        let left = quota - taken;
        let refused = PieceError::Quota {
            wanted,
            taken,
            quota,
        };
        (wanted <= left).then_some(left).ok_or(refused)
    }

    /// A segment of so many bytes, which count from now on, for a piece of `wanted` bytes.
    fn segment_of(&mut self, bytes: u64, wanted: u64) -> Result<Segment, PieceError> {
        let shared = |Spent { limit }| PieceError::Shared { wanted, limit };
        self.taken.grow(bytes).map_err(shared)?;
        let made = Segment::create(bytes);
        Ok(made.inspect_err(|_| self.taken.shrink(bytes))?)
    }

    /// Makes a piece out of a range that was free. Gives the words of its segment that are to be
    /// made zero before it is given out.
    fn piece(&mut self, range: Range, words: usize) -> (Piece, std::ops::Range<usize>) {
        let owned = &mut self.owned[range.segment as usize];
        let start = range.start as usize * LINE_WORDS;
        let dirty = owned.touched.clamp(range.start, range.end()) as usize * LINE_WORDS;
        owned.touched = owned.touched.max(range.end());
        let piece = Piece::new(&owned.home, start, words);
        (
            piece.expect("ranges are inside their segments"),
            start..dirty,
        )
    }

    /// Takes back bytes that were lent.
    pub(crate) fn take_back(&mut self, bytes: u64) {
        self.taken.shrink(bytes);
    }

    /// Takes back what a piece had.
    pub(crate) fn give_back(&mut self, name: PieceName) {
        let range = Range {
            segment: name.segment,
            start: (name.offset / LINE) as u32,
            lines: name.words.div_ceil(LINE_WORDS as u32),
        };
        self.free.give(range);
    }
}

#[cfg(all(test, not(miri)))]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests;
