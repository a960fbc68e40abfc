//! A table of values that threads read without locks while others put values in and take them out:
//! read-copy-update (RCU).
//!
//! Each thread that reads has a [`Reader`]. Looking a value up is one load: no guard, no counter. A
//! value that was taken out ([`Removed`]) is freed once every reader that might still use it has
//! been at rest (quiescent): that is once somebody held `&mut Reader`, as what a look-up gave
//! borrows the reader. So the borrow checker says when a reader rests, and readers pay nothing.
//!
//! This is the only module of this crate that may hold unsafe code. Miri runs its tests, loom the
//! model in `tests/loom.rs`.

#![allow(
    unsafe_code,
    reason = "values are shared by pointer, and freed when no reader has one"
)]

use crate::chunks::{Chunks, chunks};
use crate::sync::{AtomicPtr, Mutex, MutexGuard};
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

/// Most values of a table, as a power of two.
const BITS: u32 = 20;

/// Values by index, below 2^20.
pub struct Table<T> {
    /// Each from [`Box::into_raw`], or null.
    slots: Chunks<AtomicPtr<T>, { chunks(BITS) }>,
    readers: Mutex<Readers<T>>,
    /// It owns its values.
    owns: PhantomData<*mut T>,
}

struct Readers<T> {
    /// What tells the readers apart that there are; in ascending order.
    alive: Vec<u64>,
    next: u64,
    /// Values that were taken out, and given up before all readers had rested. They are freed with
    /// the table, whose last reader is gone then.
    abandoned: Vec<NonNull<T>>,
}

// SAFETY: a table owns its values, as a `Vec<Box<T>>` would, and may be dropped by another thread
// than that which put them in.
unsafe impl<T: Send> Send for Table<T> {}
// SAFETY: readers of several threads have references to one value (`T: Sync`), and any thread may
// take a value out and drop it (`T: Send`). What else it has are atomics and a lock.
unsafe impl<T: Send + Sync> Sync for Table<T> {}

impl<T> Table<T> {
    /// A table of nothing.
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            slots: Chunks::new(),
            readers: Mutex::new(Readers {
                alive: Vec::new(),
                next: 0,
                abandoned: Vec::new(),
            }),
            owns: PhantomData,
        })
    }

    fn readers(&self) -> MutexGuard<'_, Readers<T>> {
        self.readers
            .lock()
            .expect("nothing panics that has this lock")
    }

    /// Returns a new reader.
    pub fn reader(self: &Arc<Self>) -> Reader<T> {
        let mut readers = self.readers();
        let id = readers.next;
        readers.next += 1;
        readers.alive.push(id);
        drop(readers);
        Reader {
            table: Arc::clone(self),
            id,
        }
    }

    /// Puts a value in.
    ///
    /// # Panics
    /// When there is one at `index`, or `index` is 2^20 or more.
    pub fn insert(&self, index: u32, value: Box<T>) {
        let slot = self.slots.get_or_grow(index);
        let value = Box::into_raw(value);
        // Whoever loads the pointer sees the value behind it.
        let put = slot.compare_exchange(ptr::null_mut(), value, AcqRel, Acquire);
        if put.is_err() {
            // SAFETY: the pointer came from `Box::into_raw` just now, and nobody else has it.
            drop(unsafe { Box::from_raw(value) });
            panic!("there is a value at {index}");
        }
    }

    /// Takes a value out: nobody finds it from now on. `None` where there is none.
    pub fn remove(self: &Arc<Self>, index: u32) -> Option<Removed<T>> {
        self.swap(index, ptr::null_mut())
    }

    /// Puts a value in the place of another one, which it gives: readers find either of them.
    ///
    /// # Panics
    /// When there is none at `index`.
    pub fn replace(self: &Arc<Self>, index: u32, value: Box<T>) -> Removed<T> {
        let old = self.swap(index, Box::into_raw(value));
        old.expect("there is a value to be replaced")
    }

    fn swap(self: &Arc<Self>, index: u32, new: *mut T) -> Option<Removed<T>> {
        let slot = self.slots.get(index)?;
        let readers = self.readers();
        let value = NonNull::new(slot.swap(new, AcqRel))?;
        // A later reader is made under the lock, so it does not find the old value.
        let in_use = readers.alive.clone();
        drop(readers);
        Some(Removed {
            table: Arc::clone(self),
            value: Some(value),
            in_use,
        })
    }
}

impl<T> Drop for Table<T> {
    fn drop(&mut self) {
        let abandoned = std::mem::take(&mut self.readers().abandoned);
        let abandoned = abandoned.into_iter().map(NonNull::as_ptr);
        let held = self.slots.iter().map(|slot| slot.load(Acquire));
        for value in held.filter(|value| !value.is_null()).chain(abandoned) {
            // SAFETY: the pointer came from `Box::into_raw` in `insert` or `replace`. A slot's is
            // in no other place, as `swap` takes it out; an abandoned one was taken out. Readers
            // and removed values keep the table alive, so there are none.
            drop(unsafe { Box::from_raw(value) });
        }
    }
}

impl<T> std::fmt::Debug for Table<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table").finish_non_exhaustive()
    }
}

/// Reads a table. Each thread has its own; it rests whenever it is borrowed mutably.
#[derive(Debug)]
pub struct Reader<T> {
    table: Arc<Table<T>>,
    id: u64,
}

impl<T> Reader<T> {
    /// The value at `index`, if there is one.
    #[inline(always)]
    pub fn get(&self, index: u32) -> Option<&T> {
        let value = self.table.slots.get(index)?.load(Acquire);
        // SAFETY: the pointer is null, or came from `Box::into_raw` in `insert` or `replace`, whose
        // store is visible to this load. The value is freed by `Removed` alone, after this reader
        // was borrowed mutably or dropped, neither of which can be while the reference borrows it,
        // or by the table's drop, which this reader holds off. Nobody has a mutable reference to it
        // before that.
        unsafe { value.as_ref() }
    }
}

impl<T> Drop for Reader<T> {
    fn drop(&mut self) {
        self.table.readers().alive.retain(|id| *id != self.id);
    }
}

/// A value that was taken out, and may still be in use. Without [`reclaim`](Self::reclaim) it is
/// freed with the table.
#[derive(Debug)]
pub struct Removed<T> {
    table: Arc<Table<T>>,
    /// `None` once it was reclaimed.
    value: Option<NonNull<T>>,
    /// The readers that have not rested since.
    in_use: Vec<u64>,
}

// SAFETY: it owns the value, as a `Box` does; readers of other threads may have references to the
// value meanwhile, which it then shares with them.
unsafe impl<T: Send + Sync> Send for Removed<T> {}
// SAFETY: it lets no more be done by reference than resting a reader that is borrowed mutably.
unsafe impl<T: Send + Sync> Sync for Removed<T> {}

impl<T> Removed<T> {
    /// `reader` rests: it is borrowed mutably, so nothing that it looked up is in use.
    pub fn quiesced(&mut self, reader: &mut Reader<T>) {
        if Arc::ptr_eq(&self.table, &reader.table) {
            self.in_use.retain(|id| *id != reader.id);
        }
    }

    /// Returns the value, if all readers have rested since it was taken out, or are gone.
    pub fn reclaim(mut self) -> Option<Box<T>> {
        let readers = self.table.readers();
        let used = self.in_use.iter().any(|id| readers.alive.contains(id));
        drop(readers);
        if used {
            return None;
        }
        let value = self.value.take()?;
        // SAFETY: the pointer came from `Box::into_raw` in `insert` or `replace`, and neither a
        // slot nor the table's list of abandoned values has it. Each reader that was alive when the
        // value was taken out was borrowed mutably since, or dropped, which came after all that it
        // did with the value: so says the borrow checker in one thread, and between threads the
        // reader's way from one to the other, or the lock of the readers. Later ones never found
        // the value.
        Some(unsafe { Box::from_raw(value.as_ptr()) })
    }
}

impl<T> Drop for Removed<T> {
    fn drop(&mut self) {
        if let Some(value) = self.value {
            self.table.readers().abandoned.push(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::AtomicBool;
    use std::sync::atomic::Ordering::SeqCst;

    /// Tells that it was dropped.
    struct Told<'a>(u32, &'a AtomicBool);

    impl Drop for Told<'_> {
        fn drop(&mut self) {
            assert!(!self.1.swap(true, SeqCst), "it is dropped once");
        }
    }

    #[test]
    fn a_value_is_found_from_when_it_is_put_in_until_it_is_taken_out() {
        let gone = AtomicBool::new(false);
        let table = Table::new();
        let mut reader = table.reader();
        assert!(reader.get(70).is_none());
        table.insert(70, Box::new(Told(7, &gone)));
        assert_eq!(reader.get(70).map(|told| told.0), Some(7));
        assert!(reader.get(0).is_none() && reader.get(71).is_none());
        assert!(reader.get(1 << BITS).is_none());
        let mut removed = table.remove(70).expect("there is one");
        assert!(reader.get(70).is_none() && table.remove(70).is_none());
        removed.quiesced(&mut reader);
        assert_eq!(removed.reclaim().map(|told| told.0), Some(7));
        assert!(gone.load(SeqCst));
    }

    #[test]
    fn a_value_lives_until_each_reader_that_was_there_has_rested() {
        let gone = AtomicBool::new(false);
        let table = Table::new();
        let (mut one, mut two) = (table.reader(), table.reader());
        table.insert(0, Box::new(Told(1, &gone)));
        let held = two.get(0).expect("there is one");
        let mut removed = table.remove(0).expect("there is one");
        // Who comes later does not find it, and is not waited for.
        let late = table.reader();
        assert!(late.get(0).is_none());
        removed.quiesced(&mut one);
        assert!(held.0 == 1 && !gone.load(SeqCst));
        removed.quiesced(&mut two);
        drop(removed.reclaim().expect("both have rested"));
        assert!(gone.load(SeqCst));
    }

    #[test]
    fn a_value_that_replaces_another_is_found_at_once_and_the_old_one_lives_while_it_is_used() {
        let gone = [const { AtomicBool::new(false) }; 2];
        let table = Table::new();
        let mut reader = table.reader();
        table.insert(3, Box::new(Told(0, &gone[0])));
        let held = reader.get(3).expect("there is one");
        let mut removed = table.replace(3, Box::new(Told(1, &gone[1])));
        assert_eq!(reader.get(3).map(|told| told.0), Some(1));
        assert!(held.0 == 0 && !gone[0].load(SeqCst));
        removed.quiesced(&mut reader);
        drop(removed.reclaim().expect("it has rested"));
        assert!(gone[0].load(SeqCst) && !gone[1].load(SeqCst));
    }

    #[test]
    #[should_panic(expected = "there is a value to be replaced")]
    fn nothing_is_not_replaced() {
        let table = Table::new();
        table.insert(5, Box::new(1));
        table.replace(6, Box::new(2));
    }

    #[test]
    fn a_reader_that_is_gone_is_not_waited_for_and_one_of_another_table_does_not_count() {
        let (table, other) = (Table::new(), Table::new());
        let (reader, mut foreign) = (table.reader(), other.reader());
        table.insert(0, Box::new(1));
        table.insert(1, Box::new(2));
        let [mut used, gone] = [0, 1].map(|index| table.remove(index).expect("there is one"));
        // The readers of both tables are their first.
        used.quiesced(&mut foreign);
        assert!(used.reclaim().is_none());
        drop(reader);
        assert_eq!(gone.reclaim().as_deref(), Some(&2));
    }

    #[test]
    fn what_is_given_up_too_early_goes_with_the_table() {
        let gone = [const { AtomicBool::new(false) }; 2];
        let table = Table::new();
        let reader = table.reader();
        let removed = [0, 1].map(|index: u32| {
            table.insert(index, Box::new(Told(index, &gone[index as usize])));
            assert!(reader.get(index).is_some());
            table.remove(index).expect("there is one")
        });
        let [dropped, early] = removed;
        drop(dropped);
        assert!(early.reclaim().is_none());
        assert!(gone.iter().all(|gone| !gone.load(SeqCst)));
        drop((reader, table));
        assert!(gone.iter().all(|gone| gone.load(SeqCst)));
    }

    #[test]
    #[should_panic(expected = "there is a value at 5")]
    fn a_place_that_is_taken_takes_no_other_value() {
        let table = Table::new();
        table.insert(5, Box::new(1));
        table.insert(5, Box::new(2));
    }

    #[test]
    fn readers_of_other_threads_never_see_a_value_that_is_gone() {
        const TURNS: u32 = if cfg!(miri) { 50 } else { 20_000 };
        let table = Table::new();
        let stop = AtomicBool::new(false);
        let readers = [(); 2].map(|()| std::sync::Mutex::new(table.reader()));
        std::thread::scope(|scope| {
            for reader in &readers {
                scope.spawn(|| {
                    while !stop.load(SeqCst) {
                        let reader = reader.lock().expect("nobody panics");
                        if let Some(value) = reader.get(1) {
                            let [one, two]: [u32; 2] = *value;
                            assert_eq!(one, !two);
                        }
                    }
                });
            }
            for turn in 0..TURNS {
                table.insert(1, Box::new([turn, !turn]));
                let mut removed = table.remove(1).expect("there is one");
                for reader in &readers {
                    removed.quiesced(&mut reader.lock().expect("nobody panics"));
                }
                let mut value = removed.reclaim().expect("both have rested");
                *value = [0, 0];
            }
            stop.store(true, SeqCst);
        });
    }
}
