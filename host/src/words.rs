//! Words of a ring, of whichever memory.
#![allow(
    unsafe_code,
    reason = "keeps a slice beside what keeps it, so that no access asks which it is"
)]

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use trunkline_qpmap::ring::RingMemory;

/// Words on the heap of this process, or those of a [`Piece`](crate::Piece). Clones are the same
/// words, and keep them.
#[derive(Clone)]
pub struct Words {
    words: NonNull<[AtomicU64]>,
    /// What the words are there for as long as.
    _owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the words are reached as shared atomics, and their owner may be sent and shared.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// The words that `of` finds in their owner.
    pub fn of<T: Any + Send + Sync>(owner: Arc<T>, of: fn(&T) -> &[AtomicU64]) -> Self {
        let words = NonNull::from_ref(of(&owner));
        Self {
            words,
            _owner: owner,
        }
    }
}

impl RingMemory for Words {
    fn zeroed(count: usize) -> Self {
        let words: Box<[_]> = (0..count).map(|_| AtomicU64::new(0)).collect();
        Self::of(Arc::new(words), |words| words)
    }

    #[inline]
    fn as_slice(&self) -> &[AtomicU64] {
        // SAFETY: `of` was lent the words by what the owner shares. Nobody gets the owner for
        // himself while `self` has a count of it, so they are lent for as long.
        unsafe { self.words.as_ref() }
    }
}

impl fmt::Debug for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Words").field(&self.words.len()).finish()
    }
}
