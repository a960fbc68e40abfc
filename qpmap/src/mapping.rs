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

use crate::chunks::{Chunks, chunks};
use crate::sync::AtomicU64;
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
pub struct Mapping(Rows);

type Rows = Chunks<AtomicU64, { chunks(24) }>;

impl Mapping {
    /// Most rows.
    pub const ROWS: u32 = Rows::SIZE;

    /// A table in which no QP is bound.
    pub const fn new() -> Self {
        Self(Rows::new())
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn rows_are_what_was_set_last(
            steps in prop::collection::vec(
                (0_u32..300, prop::option::of((any::<u32>(), any::<u16>()))),
                0..200,
            ),
            scale in 0_u32..16,
        ) {
            let mapping = Mapping::new();
            let mut model = BTreeMap::new();
            for (index, binding) in steps {
                let index = index << scale;
                match binding {
                    Some((connection, generation)) => {
                        mapping.set(index, connection, generation);
                        model.insert(index, Binding { connection, generation });
                    }
                    None => {
                        mapping.clear(index);
                        model.remove(&index);
                    }
                }
            }
            for index in (0..300).map(|index| index << scale) {
                prop_assert_eq!(mapping.get(index), model.get(&index).copied());
            }
        }
    }

    #[test]
    fn the_first_and_the_last_row_hold_anything_beyond_is_nothing() {
        let mapping = Mapping::new();
        for index in [0, Mapping::ROWS - 1] {
            mapping.set(index, 0, 0);
            assert_eq!(
                mapping.get(index),
                Some(Binding {
                    connection: 0,
                    generation: 0
                })
            );
            mapping.clear(index);
            assert_eq!(mapping.get(index), None);
        }
        assert_eq!(
            (mapping.get(Mapping::ROWS), mapping.get(u32::MAX)),
            (None, None)
        );
    }

    #[test]
    fn a_row_takes_eight_bytes_and_an_empty_table_hardly_any() {
        let mapping = Mapping::new();
        assert!(mapping.state_bytes() <= 2048, "{}", mapping.state_bytes());
        for index in 0..100_000 {
            mapping.set(index, index, 1);
        }
        assert!(
            mapping.state_bytes() <= 100_000 * 8 * 5 / 4 + 2048,
            "{}",
            mapping.state_bytes()
        );
    }

    #[test]
    fn readers_never_see_half_a_move() {
        const MOVES: u32 = 100_000;
        let mapping = Mapping::new();
        mapping.set(5, 0, 0);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut last = 0;
                    while last < MOVES {
                        let Some(binding) = mapping.get(5) else {
                            continue;
                        };
                        // The writer ties the two: any mixture shows.
                        assert_eq!(binding.connection as u16, binding.generation);
                        assert!(binding.connection >= last, "bindings do not go back");
                        last = binding.connection;
                    }
                });
            }
            for connection in 1..=MOVES {
                if connection % 16 == 1 {
                    mapping.clear(5);
                }
                mapping.set(5, connection, connection as u16);
                mapping.set(connection % 5000 + 6, 0, 0);
            }
        });
    }
}
