//! A slab of records that communication IDs name, with a timer for each: what the tables of both
//! managers are made of.

use crate::comm_id::{CommIds, INDEX_BITS, Side};
use crate::random::Random;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use trunkline_conn::time::Instant;
use trunkline_wire::cm::CommId;

/// End of a chain.
pub(crate) const NONE: u32 = u32::MAX;

/// What is kept in a slab: a record, or a link of the list of free ones.
pub(crate) trait Slot {
    /// What tells the users of one place apart.
    fn tag(&self) -> u16;
    /// When something happens to it by itself.
    fn deadline(&self) -> Option<Instant>;
    /// The next free place, if this one is free.
    fn next_free(&self) -> Option<u32>;
    /// A free place, last used under `tag`.
    fn free(tag: u16, next: u32) -> Self;
}

/// The slab.
#[derive(Debug)]
pub(crate) struct Slots<S> {
    ids: CommIds,
    slots: Vec<S>,
    free: u32,
    timers: BTreeSet<(Instant, u32)>,
}

impl<S: Slot> Slots<S> {
    pub(crate) fn new(side: Side, random: &mut impl Random) -> Self {
        Self {
            ids: CommIds::new(side, random),
            slots: Vec::new(),
            free: NONE,
            timers: BTreeSet::new(),
        }
    }

    pub(crate) fn get(&self, index: u32) -> &S {
        &self.slots[index as usize]
    }

    /// For changes that leave the deadline as it is.
    pub(crate) fn get_mut(&mut self, index: u32) -> &mut S {
        &mut self.slots[index as usize]
    }

    /// The communication ID of a record.
    pub(crate) fn id(&self, index: u32) -> CommId {
        self.ids.seal(index, self.get(index).tag())
    }

    /// The record that a communication ID names.
    pub(crate) fn find(&self, id: CommId) -> Option<u32> {
        let (index, tag) = self.ids.open(id);
        let slot = self.slots.get(index as usize)?;
        (slot.tag() == tag && slot.next_free().is_none()).then_some(index)
    }

    /// Takes a place for the record that `make` builds of its tag.
    pub(crate) fn insert(&mut self, random: &mut impl Random, make: impl FnOnce(u16) -> S) -> u32 {
        if self.free == NONE {
            let index = self.slots.len() as u32;
            assert!(
                index < 1 << INDEX_BITS,
                "the limit on connections bounds the slots"
            );
            self.slots.push(S::free(0, NONE));
            self.free = index;
        }
        let index = self.free;
        let slot = self.get(index);
        let next = slot.next_free();
        let tag = self.ids.draw_tag(index, slot.tag(), random);
        self.free = next.expect("a slot in the free list is free");
        let slot = make(tag);
        self.arm(index, None, slot.deadline());
        *self.get_mut(index) = slot;
        index
    }

    /// Changes a record, its deadline included.
    pub(crate) fn update<T>(&mut self, index: u32, change: impl FnOnce(&mut S) -> T) -> T {
        let slot = self.get_mut(index);
        let old = slot.deadline();
        let result = change(slot);
        let new = slot.deadline();
        self.arm(index, old, new);
        result
    }

    /// Gives a place back.
    pub(crate) fn remove(&mut self, index: u32) -> S {
        let free = S::free(self.get(index).tag(), self.free);
        let old = core::mem::replace(self.get_mut(index), free);
        self.arm(index, old.deadline(), None);
        self.free = index;
        old
    }

    /// The earliest deadline and its record.
    pub(crate) fn first_timer(&self) -> Option<(Instant, u32)> {
        self.timers.first().copied()
    }

    fn arm(&mut self, index: u32, old: Option<Instant>, new: Option<Instant>) {
        if old == new {
            return;
        }
        if let Some(deadline) = old {
            self.timers.remove(&(deadline, index));
        }
        if let Some(deadline) = new {
            self.timers.insert((deadline, index));
        }
    }
}
