//! Handles: how a client names its objects, and the table of the service that finds them.
//!
//! A handle is an index into a table of the client's own and a serial. A place that is used again
//! gets the next serial, so that a handle of what was there before finds nothing. What a client
//! makes up finds nothing, or another object of the same client.

use crate::budget::{Budget, Share, Spent};
use std::num::NonZeroU32;
use std::sync::Arc;

/// Names an entry of a [`Table`].
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Handle {
    /// Place in the table, from 0.
    pub index: u32,
    /// Which use of the place is meant.
    pub serial: NonZeroU32,
}

/// A table holds as many entries as it may.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum TableFull {
    /// By itself.
    #[error("the limit of {limit} entries is reached")]
    Own {
        /// Most entries of the table.
        limit: u32,
    },
    /// Beside the tables that it shares a budget with.
    #[error("the limit of {limit} entries of several tables is reached")]
    Shared {
        /// Most entries of all of them.
        limit: u64,
    },
}

impl From<Spent> for TableFull {
    fn from(Spent { limit }: Spent) -> Self {
        Self::Shared { limit }
    }
}

#[derive(Debug)]
struct Place<T> {
    /// Of the entry that is here, or else of the next one.
    serial: NonZeroU32,
    content: Content<T>,
}

#[derive(Debug)]
enum Content<T> {
    Entry(T),
    /// Nothing is here; the place that was left before this one.
    Free(Option<u32>),
}

/// Objects of one client, found by handles.
#[derive(Debug)]
pub struct Table<T> {
    places: Vec<Place<T>>,
    /// The place that was left last.
    free: Option<u32>,
    count: u32,
    limit: u32,
    /// As much as there are entries, if others have some of the same.
    share: Option<Share>,
}

impl<T> Table<T> {
    /// An empty table of at most `limit` entries. It takes memory for those that it has had at
    /// once.
    pub const fn new(limit: u32) -> Self {
        Self {
            places: Vec::new(),
            free: None,
            count: 0,
            limit,
            share: None,
        }
    }

    /// The same, of whose entries each takes one of a budget. What is not taken out of the table is
    /// taken of the budget until the [`Drain`] is dropped.
    pub fn sharing(limit: u32, budget: &Arc<Budget>) -> Self {
        Self {
            share: Some(Share::of(budget)),
            ..Self::new(limit)
        }
    }

    /// How many entries there are.
    pub const fn len(&self) -> u32 {
        self.count
    }

    /// Whether there is no entry.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Puts an entry in and names it. After 2^32 - 1 entries at the same place its serials repeat.
    ///
    /// # Errors
    /// The table holds as many entries as it may, or nothing is left of its budget; the entry is
    /// dropped.
    pub fn insert(&mut self, entry: T) -> Result<Handle, TableFull> {
        if self.count == self.limit {
            return Err(TableFull::Own { limit: self.limit });
        }
        if let Some(share) = &mut self.share {
            share.grow(1)?;
        }
        self.count += 1;
        let Some(index) = self.free else {
            let handle = Handle {
                index: self.places.len() as u32,
                serial: NonZeroU32::MIN,
            };
            self.places.push(Place {
                serial: handle.serial,
                content: Content::Entry(entry),
            });
            return Ok(handle);
        };
        let place = &mut self.places[index as usize];
        let Content::Free(next) = place.content else {
            unreachable!("the places in the list of free ones have no entry")
        };
        self.free = next;
        place.content = Content::Entry(entry);
        let serial = place.serial;
        Ok(Handle { index, serial })
    }

    /// The entry of that name, unless it is gone or never was.
    pub fn get(&self, handle: Handle) -> Option<&T> {
        let place = self.places.get(handle.index as usize)?;
        match &place.content {
            Content::Entry(entry) if place.serial == handle.serial => Some(entry),
            _ => None,
        }
    }

    /// As [`get`](Self::get), to change it.
    pub fn get_mut(&mut self, handle: Handle) -> Option<&mut T> {
        let place = self.places.get_mut(handle.index as usize)?;
        match &mut place.content {
            Content::Entry(entry) if place.serial == handle.serial => Some(entry),
            _ => None,
        }
    }

    /// Takes the entry of that name out; its handle finds nothing from now on.
    pub fn remove(&mut self, handle: Handle) -> Option<T> {
        self.get(handle)?;
        let place = &mut self.places[handle.index as usize];
        let left = std::mem::replace(&mut place.content, Content::Free(self.free));
        place.serial = place.serial.checked_add(1).unwrap_or(NonZeroU32::MIN);
        self.free = Some(handle.index);
        self.count -= 1;
        if let Some(share) = &mut self.share {
            share.shrink(1);
        }
        match left {
            Content::Entry(entry) => Some(entry),
            Content::Free(_) => None,
        }
    }

    /// Ends the table: its entries come out in steps.
    pub fn into_drain(self) -> Drain<T> {
        Drain {
            places: self.places,
            _share: self.share,
        }
    }
}

/// What is left of a table whose client is gone.
#[derive(Debug)]
pub struct Drain<T> {
    places: Vec<Place<T>>,
    _share: Option<Share>,
}

impl<T> Drain<T> {
    /// Takes entries out, those at the last places first. A step looks at no more than `most`
    /// places, so it takes a bounded time and may give fewer entries than that, or none. Entries
    /// that the caller leaves in the iterator are dropped with it.
    pub fn drain_some(&mut self, most: usize) -> impl Iterator<Item = T> {
        let from = self.places.len().saturating_sub(most);
        let step = self.places.drain(from..).rev();
        step.filter_map(|place| match place.content {
            Content::Entry(entry) => Some(entry),
            Content::Free(_) => None,
        })
    }

    /// Whether all entries are out.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn forged(index: u32, serial: u32) -> Handle {
        let serial = NonZeroU32::new(serial).unwrap();
        Handle { index, serial }
    }

    #[test]
    fn a_handle_finds_nothing_once_its_entry_is_gone() {
        let mut table = Table::new(2);
        let first = table.insert("first").unwrap();
        assert_eq!(table.remove(first), Some("first"));
        let second = table.insert("second").unwrap();
        assert_eq!(second.index, first.index, "the place is used again");
        assert_eq!(table.get(first), None);
        assert_eq!(table.get_mut(first), None);
        assert_eq!(table.remove(first), None);
        assert_eq!(table.get(second), Some(&"second"));
    }

    #[test]
    fn a_handle_that_was_made_up_finds_nothing() {
        let mut table = Table::new(4);
        let real = table.insert(()).unwrap();
        let free = table.insert(()).unwrap();
        table.remove(free).unwrap();
        // The serial that the next entry at a free place will have is no handle yet.
        for (index, serial) in [(real.index, 2), (free.index, 2), (2, 1), (u32::MAX, 1)] {
            let handle = forged(index, serial);
            assert_eq!(table.get(handle), None, "{handle:?}");
            assert_eq!(table.remove(handle), None, "{handle:?}");
        }
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn one_entry_more_than_the_limit_is_refused() {
        let mut table = Table::new(3);
        let handles = [0, 1, 2].map(|entry| table.insert(entry).unwrap());
        assert_eq!(table.insert(3), Err(TableFull::Own { limit: 3 }));
        table.remove(handles[1]).unwrap();
        table.insert(4).unwrap();
        assert_eq!(table.insert(5), Err(TableFull::Own { limit: 3 }));
        assert_eq!(Table::new(0).insert(0), Err(TableFull::Own { limit: 0 }));
    }

    #[test]
    fn entries_of_tables_that_share_a_budget_count_until_their_drain_is_gone() {
        let budget = Arc::new(Budget::new(4));
        let [mut first, mut second] = [3, 3].map(|limit| Table::sharing(limit, &budget));
        let handles = [0, 1, 2].map(|entry| first.insert(entry).unwrap());
        assert_eq!(first.insert(3), Err(TableFull::Own { limit: 3 }));
        second.insert(4).unwrap();
        assert_eq!(second.insert(5), Err(TableFull::Shared { limit: 4 }));
        assert_eq!(second.len(), 1);
        first.remove(handles[1]).unwrap();
        assert_eq!(first.remove(handles[1]), None);
        second.insert(6).unwrap();
        assert!(second.insert(7).is_err());
        let mut drain = first.into_drain();
        assert_eq!(drain.drain_some(10).count(), 2);
        assert!(second.insert(8).is_err());
        drop(drain);
        second.insert(9).unwrap();
    }

    #[test]
    fn places_are_used_again_in_whatever_order_they_were_left() {
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
            let mut table = Table::new(10);
            let handles = [0, 1, 2].map(|entry| table.insert(entry).unwrap());
            for at in order {
                table.remove(handles[at]).unwrap();
            }
            let mut places = [0, 1, 2].map(|entry| table.insert(entry).unwrap().index);
            places.sort_unstable();
            assert_eq!(places, [0, 1, 2], "{order:?}");
        }
    }

    #[test]
    fn serials_go_round_and_skip_zero() {
        let mut table = Table::new(1);
        let first = table.insert(()).unwrap();
        table.places[0].serial = NonZeroU32::MAX;
        table.remove(forged(0, u32::MAX)).unwrap();
        assert_eq!(table.insert(()).unwrap(), first);
    }

    #[test]
    fn a_drain_gives_each_entry_once_in_bounded_steps() {
        let mut table = Table::new(100);
        let handles: Vec<_> = (0..100).map(|entry| table.insert(entry).unwrap()).collect();
        for handle in handles.iter().step_by(3) {
            table.remove(*handle).unwrap();
        }
        let mut drain = table.into_drain();
        let (mut steps, mut found) = (0, Vec::new());
        while !drain.is_empty() {
            let before = found.len();
            found.extend(drain.drain_some(7));
            assert!(found.len() - before <= 7);
            steps += 1;
        }
        assert_eq!(steps, 100_usize.div_ceil(7));
        found.reverse();
        let expected: Vec<_> = (0..100).filter(|entry| entry % 3 != 0).collect();
        assert_eq!(found, expected);
        assert_eq!(drain.drain_some(7).count(), 0);
    }

    proptest! {
        #[test]
        fn a_table_does_what_a_map_does(steps in vec((any::<bool>(), any::<u8>()), 0..200)) {
            let mut table = Table::new(16);
            let mut oracle = HashMap::new();
            let mut all = Vec::new();
            for (serial, (insert, which)) in steps.into_iter().enumerate() {
                if insert {
                    let made = table.insert(serial);
                    prop_assert_eq!(made.is_ok(), oracle.len() < 16);
                    if let Ok(handle) = made {
                        prop_assert_eq!(oracle.insert(handle, serial), None);
                        all.push(handle);
                    }
                } else if !all.is_empty() {
                    let handle = all[usize::from(which) % all.len()];
                    prop_assert_eq!(table.remove(handle), oracle.remove(&handle));
                }
                for handle in &all {
                    prop_assert_eq!(table.get(*handle), oracle.get(handle));
                }
                prop_assert_eq!(table.len() as usize, oracle.len());
            }
        }
    }
}
