//! Segments that a client is lent: it gives out their pages by itself, to regions of its own memory
//! that it promotes (docs/adr/0033).
//!
//! To the service such a segment is one range of bytes. What the client says of pages in it is
//! checked against its length and nothing else: a client that gives out a page twice, or another
//! one than it says, changes its own memory.

mod arena;

pub use arena::{Arena, KEPT, LentPages};

use crate::pieces::State;
use crate::segment::{Mapping, Segment};
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A segment that a client was lent, on the side of the service.
#[derive(Debug)]
pub struct Lent {
    mapping: Mapping,
    file: Arc<OwnedFd>,
    _bytes: Bytes,
}

/// Bytes of the client's quota, until it is dropped.
#[derive(Debug)]
struct Bytes {
    count: u64,
    of: Weak<Mutex<State>>,
}

impl Lent {
    /// The bytes were counted.
    pub(crate) fn new(segment: Segment, of: Weak<Mutex<State>>) -> Self {
        let (file, mapping) = segment.into_parts();
        let bytes = mapping.bytes();
        Self {
            mapping,
            file: Arc::new(file),
            _bytes: Bytes { count: bytes, of },
        }
    }

    /// Its descriptor, to be sent to the client.
    pub const fn file(&self) -> &Arc<OwnedFd> {
        &self.file
    }

    /// All of its words. The client may change them at any time.
    pub const fn words(&self) -> &[AtomicU64] {
        self.mapping.words()
    }

    /// Unmaps it. To close its descriptor may take long, as all its pages go with it.
    pub fn into_file(self) -> Arc<OwnedFd> {
        self.file
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        if let Some(of) = self.of.upgrade() {
            let mut state = of.lock().unwrap_or_else(PoisonError::into_inner);
            state.take_back(self.count);
        }
    }
}
