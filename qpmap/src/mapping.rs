//! The table that decouples QPs from connections: which connection carries a QP now.
//!
//! Row `i` belongs to the QP of index `i`. The worker that owns the QP writes it, anybody reads it
//! at any time without a lock: a row is one word, so that a reader sees a binding as it was before
//! or after a move, never a mixture. The worker itself decides by its own state; the table is for
//! the others (the node's control, other workers, statistics).
//!
//! ```text
//! bit 63      62..48    47..32       31..0
//!     bound   zero      generation   connection
//! ```

use crate::chunks::Chunks;
use std::sync::atomic::Ordering::{Acquire, Release};

const BOUND: u64 = 1 << 63;

/// What a QP is bound to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Binding {
    /// Index of the shared connection.
    pub connection: u32,
    /// Generation of the QP: tells it from earlier ones of the same index.
    pub generation: u16,
}

/// Table QP index -> [`Binding`], of up to 2^24 rows of 8 bytes, which grows as rows are set.
#[derive(Debug)]
pub struct Mapping(Chunks);

impl Mapping {
    /// Most rows.
    pub const ROWS: u32 = Chunks::SIZE;

    /// A table in which no QP is bound.
    pub const fn new() -> Self {
        Self(Chunks::new())
    }

    /// Binds a QP. For its owner only.
    ///
    /// # Panics
    /// When `index` is not below [`ROWS`](Self::ROWS).
    pub fn set(&self, index: u32, connection: u32, generation: u16) {
        let row = BOUND | u64::from(generation) << 32 | u64::from(connection);
        // Whoever sees the row sees what its owner did before: the connection is there.
        self.0.get_or_grow(index).store(row, Release);
    }

    /// Unbinds a QP, if it is bound. For its owner only.
    pub fn clear(&self, index: u32) {
        if let Some(row) = self.0.get(index) {
            row.store(0, Release);
        }
    }

    /// What a QP is bound to; `None` when to nothing.
    #[inline]
    pub fn get(&self, index: u32) -> Option<Binding> {
        let row = self.0.get(index)?.load(Acquire);
        (row & BOUND != 0).then_some(Binding {
            connection: row as u32,
            generation: (row >> 32) as u16,
        })
    }

    /// Bytes it takes now, directory and all.
    pub fn state_bytes(&self) -> usize {
        self.0.state_bytes()
    }
}

impl Default for Mapping {
    fn default() -> Self {
        Self::new()
    }
}
