//! Stores that come while pages are promoted, and while they become private again.

use super::{Files, PAGE, memory, promoted};
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use trunkline_conn::mem::RegionMemory;

/// How long a thread may take for all pages once.
const PATIENCE: Duration = Duration::from_secs(30);

/// Memory that threads store to all over, each into words or bytes of its own in each page. It
/// stays mapped, as a thread whose store does not end has it for ever.
struct Field {
    base: usize,
    pages: usize,
    stop: AtomicBool,
    /// How often each thread has stored to all pages.
    passes: [AtomicU64; 4],
}

impl Field {
    fn word(&self, page: usize, thread: usize) -> &AtomicU64 {
        let at = self.base + page * PAGE + thread * 8;
        let word = std::ptr::with_exposed_provenance_mut::<u64>(at);
        // SAFETY: a word of the memory, which is reached as atomics.
        unsafe { AtomicU64::from_ptr(word) }
    }

    /// Counts with plain loads and stores, so that a store that is lost shows in the next pass.
    fn count(&self, thread: usize) {
        while !self.stop.load(Ordering::Relaxed) {
            let pass = self.passes[thread].load(Ordering::Relaxed);
            for page in 0..self.pages {
                let word = self.word(page, thread);
                let found = word.load(Ordering::Relaxed);
                assert_eq!(found, pass, "page {page} lost a store of thread {thread}");
                word.store(pass + 1, Ordering::Relaxed);
            }
            self.passes[thread].store(pass + 1, Ordering::Relaxed);
        }
    }

    /// Has the kernel write random bytes.
    fn read(&self, thread: usize) {
        let mut random = std::fs::File::open("/dev/urandom").unwrap();
        let mut expected = vec![[0; 64]; self.pages];
        while !self.stop.load(Ordering::Relaxed) {
            for (page, expected) in expected.iter_mut().enumerate() {
                let at = self.base + page * PAGE + PAGE / 2;
                let at = std::ptr::with_exposed_provenance_mut(at);
                // SAFETY: bytes of the memory that only this thread uses.
                let into = unsafe { std::slice::from_raw_parts_mut(at, 64) };
                assert!(into == *expected, "page {page} lost what read(2) wrote");
                random.read_exact(into).unwrap();
                expected.copy_from_slice(into);
            }
            self.passes[thread].fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[test]
fn no_store_of_other_threads_or_of_system_calls_is_lost() {
    const ROUNDS: u64 = 20;
    let (mapping, all) = memory(1200 * PAGE);
    std::mem::forget(mapping);
    let files = Files::default();
    let Some(first) = promoted(&all, &files) else {
        return;
    };
    drop(first);
    let field = Arc::new(Field {
        base: all.addr() as usize,
        pages: 1200,
        stop: AtomicBool::new(false),
        passes: [const { AtomicU64::new(0) }; 4],
    });
    let mut threads: Vec<_> = (0..4)
        .map(|thread| {
            let field = Arc::clone(&field);
            std::thread::spawn(move || match thread {
                3 => field.read(thread),
                _ => field.count(thread),
            })
        })
        .collect();
    let passes = || {
        field
            .passes
            .each_ref()
            .map(|passes| passes.load(Ordering::Relaxed))
    };
    for round in 0..2 * ROUNDS {
        // They go on while it is shared, and while it is not.
        let held = (round % 2 == 0).then(|| promoted(&all, &files));
        let (before, end) = (passes(), Instant::now() + PATIENCE);
        while passes()
            .iter()
            .zip(before)
            .any(|(now, before)| *now == before)
        {
            if let Some(ended) = threads.iter().position(|thread| thread.is_finished()) {
                threads.swap_remove(ended).join().unwrap();
            }
            assert!(Instant::now() < end, "a thread waits for ever");
            std::thread::yield_now();
        }
        drop(held);
    }
    field.stop.store(true, Ordering::Relaxed);
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    let passes = passes();
    for page in 0..field.pages {
        for (thread, passes) in passes.iter().enumerate().take(3) {
            let found = field.word(page, thread).load(Ordering::Relaxed);
            assert_eq!(found, *passes, "page {page}");
        }
    }
    assert_eq!(files.lent(), 0);
}
