//! What a child made by fork(2) has of promoted memory: copies, which are made before the fork.

use super::ledger::{Ledger, Part};
use super::swap::{self, Copy};
use crate::maps::Maps;
use std::cell::RefCell;
use std::sync::{MutexGuard, Once};

/// What the thread that forks has meanwhile.
struct Fork {
    /// Nothing is promoted while it forks.
    ledger: MutexGuard<'static, Ledger>,
    copies: Vec<(Part, Copy)>,
}

thread_local! {
    static FORK: RefCell<Option<Fork>> = const { RefCell::new(None) };
}

/// Has forks of this process seen to from now on.
pub(super) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the functions stay where they are.
        let added = unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
        // Without them children have nothing where pages are promoted.
        debug_assert_eq!(added, 0, "there is memory for three more");
    });
}

extern "C" fn before() {
    let ledger = Ledger::lock();
    let mut copies = Vec::new();
    if !ledger.runs().is_empty()
        && let Ok(maps) = Maps::read()
    {
        let runs = ledger.runs().iter();
        for part in runs.flat_map(|(at, run)| run.parts(*at, &maps)) {
            // A child has nothing there of what there is no memory for.
            if let Ok(copy) = Copy::of(part.place, part.len)
                && swap::let_children_have(part.at, part.len).is_ok()
            {
                copies.push((part, copy));
            }
        }
    }
    FORK.set(Some(Fork { ledger, copies }));
}

extern "C" fn in_parent() {
    let Some(fork) = FORK.take() else { return };
    for (part, copy) in fork.copies {
        // Where it is refused a child made by a bare clone(2) would share the pages. Another thread
        // may have unmapped some meanwhile, which is said with all others kept (madvise(2)).
        let kept = swap::keep_from_children(part.at, part.len);
        debug_assert!(
            kept.is_ok() || kept.is_err_and(|error| error.raw_os_error() == Some(libc::ENOMEM)),
            "advice that was given before"
        );
        drop(copy);
    }
}

extern "C" fn in_child() {
    let Some(mut fork) = FORK.take() else { return };
    for (part, copy) in fork.copies {
        if copy.put(part.at, part.protection).is_err() {
            // It must not go on with memory that is its parent's.
            std::process::abort();
        }
    }
    fork.ledger.forget();
}
