//! A ring of slot numbers with one producer and one consumer.
//!
//! It has as many entries as there are slots, and every slot number is in one place only, so it
//! cannot overflow and the producer never has to look at the consumer's position.

use std::sync::atomic::{AtomicU32, Ordering};

/// Two cache lines: adjacent-line prefetch would tie neighbours together.
#[repr(align(128))]
#[derive(Debug)]
struct Apart<T>(T);

#[derive(Debug)]
pub(crate) struct Ring {
    entries: Box<[AtomicU32]>,
    /// Their number, a power of two, less 1.
    mask: u32,
    /// Entries published so far, wrapping.
    tail: Apart<AtomicU32>,
}

impl Ring {
    /// A ring for the numbers of `slots` slots.
    pub(crate) fn new(slots: u32) -> Self {
        let capacity = slots.next_power_of_two();
        Self {
            mask: capacity - 1,
            entries: (0..capacity).map(|_| AtomicU32::new(0)).collect(),
            tail: Apart(AtomicU32::new(0)),
        }
    }

    fn entry(&self, position: u32) -> &AtomicU32 {
        &self.entries[(position & self.mask) as usize]
    }

    /// Producer: writes the entry at `position`, which is not yet published.
    pub(crate) fn set(&self, position: u32, slot: u32) {
        self.entry(position).store(slot, Ordering::Relaxed);
    }

    /// Producer: everything before `position` may be consumed; releases the slots' contents.
    pub(crate) fn publish(&self, position: u32) {
        self.tail.0.store(position, Ordering::Release);
    }

    /// Consumer: everything before this position may be consumed; acquires the slots' contents.
    pub(crate) fn published(&self) -> u32 {
        self.tail.0.load(Ordering::Acquire)
    }

    /// Consumer: the entry at `position`, which is published.
    pub(crate) fn get(&self, position: u32) -> u32 {
        self.entry(position).load(Ordering::Relaxed)
    }
}
