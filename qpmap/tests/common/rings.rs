//! Memory of rings that a test can write into past the library, as a program can.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use trunkline_qpmap::ring;

/// Memory of a ring.
#[derive(Clone, Debug)]
pub(crate) struct RingMemory(Arc<[AtomicU64]>);

thread_local! {
    static LAST: RefCell<Weak<[AtomicU64]>> = RefCell::new(Weak::<[AtomicU64; 0]>::new());
}

impl ring::RingMemory for RingMemory {
    fn zeroed(count: usize) -> Self {
        let words: Arc<[_]> = (0..count).map(|_| AtomicU64::new(0)).collect();
        LAST.replace(Arc::downgrade(&words));
        Self(words)
    }

    fn as_slice(&self) -> &[AtomicU64] {
        &self.0
    }
}

/// Writes nonsense all over the ring that was made last. A ring is made when something is posted
/// for the first time.
pub(crate) fn break_last() {
    let ring = LAST.with_borrow(Weak::upgrade).expect("a ring was made");
    let nonsense = |word: &AtomicU64| word.store(u64::MAX, Ordering::Relaxed);
    ring.iter().for_each(nonsense);
}
