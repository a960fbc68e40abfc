//! What a client has of the segments that it was lent.

use crate::Handle;
use crate::free::{FreeRanges, Range};
use crate::segment::{self, Mapping};
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most bytes of a segment that is kept when no page of it is given out.
pub const KEPT: u64 = 4 << 20;

/// Gives out pages of segments that the client was lent. Clones are the same.
#[derive(Clone)]
pub struct Arena(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    give_back: Box<dyn Fn(Handle) + Send + Sync>,
}

#[derive(Default)]
struct State {
    segments: HashMap<u32, Segment>,
    /// In pages.
    free: FreeRanges,
    /// Number of the next segment.
    next: u32,
}

struct Segment {
    lent: Handle,
    mapping: Arc<Mapping>,
}

impl Segment {
    fn pages(&self) -> u32 {
        (self.mapping.bytes() / segment::page()) as u32
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let segments = self.0.state().segments.len();
        f.debug_tuple("Arena").field(&segments).finish()
    }
}

impl Arena {
    /// Without segments yet. `give_back` tells the service of segments that are not needed any
    /// more.
    pub fn new(give_back: impl Fn(Handle) + Send + Sync + 'static) -> Self {
        Self(Arc::new(Shared {
            state: Mutex::default(),
            give_back: Box::new(give_back),
        }))
    }

    /// How many segments there are.
    pub fn segments(&self) -> usize {
        self.0.state().segments.len()
    }

    /// Takes up a segment that the client was lent.
    pub fn add(&self, lent: Handle, mapping: Mapping) {
        let mut state = self.0.state();
        let number = state.next;
        state.next = number.wrapping_add(1);
        let segment = Segment {
            lent,
            mapping: Arc::new(mapping),
        };
        state.free.give(Range {
            segment: number,
            start: 0,
            lines: segment.pages(),
        });
        state.segments.insert(number, segment);
    }

    /// `bytes` bytes, whole pages side by side; `None` where no segment has as many.
    pub fn take(&self, bytes: usize) -> Option<LentPages> {
        let pages = bytes as u64 / segment::page();
        let pages = u32::try_from(pages).ok().filter(|pages| *pages > 0)?;
        let mut state = self.0.state();
        let range = state.free.take(pages)?;
        let mapping = Arc::clone(&state.segments.get(&range.segment)?.mapping);
        drop(state);
        Some(LentPages {
            of: Arc::clone(&self.0),
            mapping,
            range,
        })
    }

    /// What the service calls the segment that is mapped at `addr`, and how many bytes of it are
    /// before that; `None`: none of these segments is.
    pub fn name(&self, addr: usize) -> Option<(Handle, u64)> {
        let state = self.0.state();
        state.segments.values().find_map(|segment| {
            let base = segment.mapping.words().as_ptr().addr();
            let offset = addr.checked_sub(base)? as u64;
            (offset < segment.mapping.bytes()).then_some((segment.lent, offset))
        })
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Takes a segment out of which nothing is given out. One of usual length is kept.
    fn idle(&mut self, number: u32) -> Option<Segment> {
        let segment = self.segments.get(&number)?;
        let is_alone = self.segments.len() == 1;
        if is_alone && segment.mapping.bytes() <= KEPT {
            return None;
        }
        let pages = segment.pages();
        let is_idle = self.free.take_all(number, pages);
        is_idle.then(|| self.segments.remove(&number))?
    }
}

/// Pages of a segment that the client was lent, which are free again when this is dropped.
pub struct LentPages {
    of: Arc<Shared>,
    mapping: Arc<Mapping>,
    range: Range,
}

impl fmt::Debug for LentPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LentPages").field(&self.range).finish()
    }
}

impl LentPages {
    /// Their words. The service may change them at any time.
    pub fn words(&self) -> &[AtomicU64] {
        let bytes = self.bytes();
        let size = size_of::<AtomicU64>();
        &self.mapping.words()[bytes.start / size..bytes.end / size]
    }

    fn bytes(&self) -> std::ops::Range<usize> {
        let page = segment::page() as usize;
        self.range.start as usize * page..self.range.end() as usize * page
    }
}

impl Drop for LentPages {
    fn drop(&mut self) {
        // Where it is refused the pages take memory until they are used again.
        let _ = self.mapping.discard(self.bytes());
        let mut state = self.of.state();
        state.free.give(self.range);
        let idle = state.idle(self.range.segment);
        drop(state);
        if let Some(segment) = idle {
            (self.of.give_back)(segment.lent);
        }
    }
}

#[cfg(all(test, not(miri)))]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;
    use crate::Pieces;
    use std::num::NonZeroU32;
    use std::os::fd::AsFd;
    use std::sync::atomic::Ordering;

    const PAGE: usize = 4096;

    fn handle(index: u32) -> Handle {
        Handle {
            index,
            serial: NonZeroU32::MIN,
        }
    }

    /// An arena, and what it gave back.
    fn arena() -> (Arena, Arc<Mutex<Vec<u32>>>) {
        let returned = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&returned);
        let arena = Arena::new(move |lent| told.lock().unwrap().push(lent.index));
        (arena, returned)
    }

    fn add(arena: &Arena, pieces: &Pieces, index: u32, bytes: u64) -> crate::Lent {
        let lent = pieces.lend(bytes).unwrap();
        let mapping = Mapping::of_sealed(lent.file().as_fd(), bytes).unwrap();
        arena.add(handle(index), mapping);
        lent
    }

    #[test]
    fn both_sides_have_the_pages_that_are_named_and_none_is_given_out_twice() {
        let (arena, _) = arena();
        let pieces = Pieces::new(1 << 20);
        let segments = [0, 1].map(|index| add(&arena, &pieces, index, 16 * PAGE as u64));
        assert_eq!(pieces.taken(), 32 * PAGE as u64);
        let all: Vec<_> = std::iter::from_fn(|| arena.take(3 * PAGE)).collect();
        assert_eq!(all.len(), 10);
        for (number, pages) in all.iter().enumerate() {
            pages
                .words()
                .iter()
                .for_each(|word| assert_eq!(word.load(Ordering::Relaxed), 0));
            pages
                .words()
                .iter()
                .for_each(|word| word.store(number as u64 + 1, Ordering::Relaxed));
        }
        for (number, pages) in all.iter().enumerate() {
            let words = pages.words();
            assert_eq!(words.len(), 3 * PAGE / 8);
            let (lent, offset) = arena.name(words.as_ptr().addr()).unwrap();
            let there =
                &segments[lent.index as usize].words()[offset as usize / 8..][..words.len()];
            let is_same = |word: &AtomicU64| word.load(Ordering::Relaxed) == number as u64 + 1;
            assert!(there.iter().all(is_same) && words.iter().all(is_same));
        }
        assert_eq!(arena.name(8), None);
    }

    #[test]
    fn pages_that_come_back_are_zero_and_segments_that_are_idle_are_given_back() {
        let (arena, returned) = arena();
        let pieces = Pieces::new(1 << 30);
        let first = add(&arena, &pieces, 0, KEPT);
        let pages = arena.take(PAGE).unwrap();
        pages.words()[0].store(1, Ordering::Relaxed);
        drop(pages);
        assert_eq!(first.words()[0].load(Ordering::Relaxed), 0);
        assert_eq!(arena.segments(), 1, "one is kept");
        let kept = arena.take(PAGE).unwrap();
        let second = add(&arena, &pieces, 1, 2 * KEPT);
        let large = arena.take(2 * KEPT as usize).unwrap();
        assert!(arena.take(KEPT as usize).is_none());
        drop(kept);
        assert_eq!(*returned.lock().unwrap(), [0]);
        drop(large);
        assert_eq!(*returned.lock().unwrap(), [0, 1]);
        assert_eq!(arena.segments(), 0);
        drop(first.into_file());
        assert_eq!(pieces.taken(), 2 * KEPT);
        drop(second);
        assert_eq!(pieces.taken(), 0);
    }

    #[test]
    fn what_is_lent_counts_against_the_quota() {
        let pieces = Pieces::new(100 * PAGE as u64);
        let lent = pieces.lend(90 * PAGE as u64).unwrap();
        assert!(pieces.lend(11 * PAGE as u64).is_err() && pieces.lend(u64::MAX).is_err());
        assert!(
            pieces.lend(1).is_err() && pieces.lend(0).is_err(),
            "no whole pages"
        );
        assert!(pieces.allocate(11 * PAGE as u32 / 8).is_err());
        drop(lent);
        assert!(pieces.allocate(11 * PAGE as u32 / 8).is_ok());
    }
}
