//! A vector with holes: values keep their index for as long as they live, and a freed index is the
//! next one given out, while its cache lines are still warm.

use std::ops::{Index, IndexMut};

/// An index that no value has: the end of a list that is linked through a [`Slab`].
pub const NONE: u32 = u32::MAX;

/// Slots that are not worth giving back.
const FEW: usize = 64;
/// Slots that are looked at in one call: it takes some 100 us.
const MOST_TRIMMED: usize = 1 << 16;

/// Values by index, from 0. Holes are linked into a list, last freed first.
#[derive(Clone, Debug)]
pub struct Slab<T> {
    slots: Vec<Slot<T>>,
    /// First hole, or [`NONE`].
    vacant: u32,
    len: u32,
}

#[derive(Clone, Debug)]
enum Slot<T> {
    Vacant(Hole<T>),
    Occupied(T),
}

/// A place without a value. It has the alignment of values, so that what a slot holds begins where
/// values do: a value that is moved out of a slot as four bytes and the rest, and read as a whole
/// right then, waits for its stores to leave the processor (6 ns).
#[derive(Clone, Debug)]
struct Hole<T> {
    next: u32,
    _aligned: [T; 0],
}

impl<T> Slot<T> {
    /// A hole, linked to the next one.
    const fn hole(next: u32) -> Self {
        Self::Vacant(Hole { next, _aligned: [] })
    }
}

impl<T> Slab<T> {
    /// An empty slab. Allocates nothing.
    pub const fn new() -> Self {
        Self {
            slots: Vec::new(),
            vacant: NONE,
            len: 0,
        }
    }

    /// Values in it.
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes it has allocated.
    pub const fn state_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Slot<T>>()
    }

    /// Bytes of it that no values are in.
    pub const fn room_bytes(&self) -> usize {
        (self.slots.capacity() - self.len as usize) * size_of::<Slot<T>>()
    }

    /// Indices that it has given out, whether there are values or not.
    pub const fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    /// The index that [`insert`](Self::insert) gives out next.
    pub const fn next_index(&self) -> u32 {
        if self.vacant == NONE {
            self.slots.len() as u32
        } else {
            self.vacant
        }
    }

    /// Gives out an index without a value. It has none, and is not given out again, until it is
    /// [filled](Self::fill) or [released](Self::release).
    ///
    /// # Panics
    /// When there are 2^32 - 1 slots in use already.
    pub fn reserve(&mut self) -> u32 {
        if self.vacant == NONE {
            self.grow();
        }
        let index = self.vacant;
        let Slot::Vacant(Hole { next, .. }) = self.slots[index as usize] else {
            unreachable!("holes are linked to holes")
        };
        self.vacant = next;
        self.slots[index as usize] = Slot::hole(NONE);
        index
    }

    /// Takes a value in, at an index that was [reserved](Self::reserve).
    ///
    /// # Panics
    /// When there is a value at `index`.
    #[track_caller]
    pub fn fill(&mut self, index: u32, value: T) {
        let slot = &mut self.slots[index as usize];
        assert!(matches!(slot, Slot::Vacant(_)), "{index} is taken");
        *slot = Slot::Occupied(value);
        self.len += 1;
    }

    /// Takes a value in, at the hole that was made last, or at the end.
    ///
    /// # Panics
    /// When there are 2^32 - 1 values already.
    #[inline]
    pub fn insert(&mut self, value: T) -> u32 {
        if self.vacant == NONE {
            self.grow();
        }
        let index = self.vacant;
        let slot = &mut self.slots[index as usize];
        let Slot::Vacant(Hole { next, .. }) = *slot else {
            unreachable!("holes are linked to holes")
        };
        self.vacant = next;
        self.len += 1;
        *slot = Slot::Occupied(value);
        index
    }

    /// Makes a hole at the end, where there is none.
    #[cold]
    fn grow(&mut self) {
        assert!(
            self.slots.len() < NONE as usize,
            "a slab has no more than 2^32 - 1 slots"
        );
        self.vacant = self.slots.len() as u32;
        make_room(&mut self.slots, 1);
        self.slots.push(Slot::hole(NONE));
    }

    /// Takes a value out.
    ///
    /// # Panics
    /// When there is none at `index`.
    #[track_caller]
    #[inline]
    pub fn remove(&mut self, index: u32) -> T {
        let value = self.leave(index, self.vacant);
        self.vacant = index;
        value
    }

    /// Drops a value in its place.
    ///
    /// # Panics
    /// When there is none at `index`.
    #[inline]
    #[track_caller]
    pub fn discard(&mut self, index: u32) {
        if self.get(index).is_none() {
            vacant(index);
        }
        self.len -= 1;
        self.release(index);
    }

    /// Takes a value out. Its index is not given out again before it is
    /// [released](Self::release).
    ///
    /// # Panics
    /// When there is none at `index`.
    #[track_caller]
    pub fn take(&mut self, index: u32) -> T {
        self.leave(index, NONE)
    }

    /// Takes a value out, and leaves a hole with this one behind it.
    #[inline]
    #[track_caller]
    fn leave(&mut self, index: u32, next: u32) -> T {
        let slot = &mut self.slots[index as usize];
        if matches!(slot, Slot::Vacant(_)) {
            vacant(index);
        }
        self.len -= 1;
        match std::mem::replace(slot, Slot::hole(next)) {
            Slot::Occupied(value) => value,
            Slot::Vacant(_) => vacant(index),
        }
    }

    /// The index of a value that was [taken out](Self::take) is the next to be given out.
    pub fn release(&mut self, index: u32) {
        self.slots[index as usize] = Slot::hole(self.vacant);
        self.vacant = index;
    }

    /// Gives back what is behind the last value, where three quarters of the slots are empty. Those
    /// with the lowest indices are given out first from then on. It looks at every slot once, so
    /// that of more than `MOST_TRIMMED` it gives back all or nothing.
    ///
    /// # Panics
    /// When a value was [taken out](Self::take) and its index is not released.
    pub fn trim(&mut self) {
        let slots = self.slots.len();
        if slots <= FEW || self.len() > slots / 4 {
            return;
        }
        if self.is_empty() {
            *self = Self::new();
            return;
        }
        if slots > MOST_TRIMMED {
            return;
        }
        let mut holes = 0;
        let mut hole = self.vacant;
        while let Some(Slot::Vacant(Hole { next, .. })) = self.slots.get(hole as usize) {
            (hole, holes) = (*next, holes + 1);
        }
        assert_eq!(holes + self.len(), slots, "no index waits for its release");
        let is_value = |slot: &Slot<T>| matches!(slot, Slot::Occupied(_));
        let end = self.slots.iter().rposition(is_value).map_or(0, |at| at + 1);
        self.slots.truncate(end);
        self.fit();
        self.vacant = NONE;
        for (index, slot) in self.slots.iter_mut().enumerate().rev() {
            if !is_value(slot) {
                *slot = Slot::hole(self.vacant);
                self.vacant = index as u32;
            }
        }
    }

    /// Gives back room behind the last slot, but for a few values more.
    pub fn fit(&mut self) {
        fit(&mut self.slots);
    }

    /// The value at `index`; `None` when there is none.
    #[inline]
    pub fn get(&self, index: u32) -> Option<&T> {
        match self.slots.get(index as usize) {
            Some(Slot::Occupied(value)) => Some(value),
            _ => None,
        }
    }

    /// As [`get`](Self::get), to change it.
    #[inline]
    pub fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        match self.slots.get_mut(index as usize) {
            Some(Slot::Occupied(value)) => Some(value),
            _ => None,
        }
    }

    /// All values with their indices, in ascending order. Takes time for the holes too.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..)
            .zip(&self.slots)
            .filter_map(|(index, slot)| match slot {
                Slot::Occupied(value) => Some((index, value)),
                Slot::Vacant(_) => None,
            })
    }
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;

    /// # Panics
    /// When there is no value at `index`.
    #[inline]
    #[track_caller]
    fn index(&self, index: u32) -> &T {
        match self.get(index) {
            Some(value) => value,
            None => vacant(index),
        }
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    #[inline]
    #[track_caller]
    fn index_mut(&mut self, index: u32) -> &mut T {
        match self.get_mut(index) {
            Some(value) => value,
            None => vacant(index),
        }
    }
}

#[cold]
#[inline(never)]
#[track_caller]
fn vacant(index: u32) -> ! {
    panic!("no value at index {index}")
}

/// Makes room for `more` values at the end of a table that may become large: an eighth at a time,
/// so that little of it is empty. (The allocator moves large blocks without copying them.)
pub(crate) fn make_room<T>(values: &mut Vec<T>, more: usize) {
    let length = values.len();
    if values.capacity() - length < more {
        values.reserve_exact(more.max(4).max(length.min(8)).max(length / 8));
    }
}

/// Gives back room at the end of a table, but for a 64th.
pub(crate) fn fit<T>(values: &mut Vec<T>) {
    values.shrink_to(values.len() + values.len() / 64);
}

/// Lengthens a table so that it has a value at `index`.
#[inline]
pub(crate) fn reach<T>(values: &mut Vec<T>, index: u32, blank: impl FnMut() -> T) {
    let length = index as usize + 1;
    if values.len() < length {
        make_room(values, length - values.len());
        values.resize_with(length, blank);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u16),
        Remove(usize),
        Discard(usize),
        Change(usize, u16),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => any::<u16>().prop_map(Step::Insert),
            1 => any::<usize>().prop_map(Step::Remove),
            1 => any::<usize>().prop_map(Step::Discard),
            1 => (any::<usize>(), any::<u16>()).prop_map(|(at, value)| Step::Change(at, value)),
        ]
    }

    proptest! {
        #[test]
        fn a_slab_is_a_map_that_picks_its_keys(steps in prop::collection::vec(step(), 0..200)) {
            let mut slab = Slab::new();
            let mut model = BTreeMap::new();
            let mut freed = Vec::new();
            for step in steps {
                let pick = |at: usize| model.keys().nth(at % model.len().max(1)).copied();
                match step {
                    Step::Insert(value) => {
                        let expected = freed.pop().unwrap_or(model.len() as u32);
                        prop_assert_eq!(slab.next_index(), expected);
                        prop_assert_eq!(slab.insert(value), expected);
                        prop_assert_eq!(model.insert(expected, value), None);
                    }
                    Step::Remove(at) => if let Some(index) = pick(at) {
                        prop_assert_eq!(Some(slab.remove(index)), model.remove(&index));
                        prop_assert_eq!(slab.get(index), None);
                        freed.push(index);
                    }
                    Step::Discard(at) => if let Some(index) = pick(at) {
                        slab.discard(index);
                        model.remove(&index);
                        prop_assert_eq!(slab.get(index), None);
                        freed.push(index);
                    }
                    Step::Change(at, value) => if let Some(index) = pick(at) {
                        slab[index] = value;
                        model.insert(index, value);
                    }
                }
                prop_assert_eq!(slab.len(), model.len());
            }
            let all: Vec<_> = slab.iter().map(|(index, value)| (index, *value)).collect();
            prop_assert_eq!(all, model.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn an_index_that_is_reserved_has_no_value_and_nobody_else_gets_it() {
        let mut slab = Slab::new();
        let first = slab.insert('a');
        let reserved = slab.reserve();
        slab.remove(first);
        assert_eq!((slab.len(), slab.get(reserved)), (0, None));
        assert_eq!([slab.insert('b'), slab.insert('c')], [first, reserved + 1]);
        slab.fill(reserved, 'd');
        assert_eq!((slab.len(), slab[reserved]), (3, 'd'));
        assert_eq!(slab.remove(reserved), 'd');
        assert_eq!(slab.next_index(), reserved);
    }

    #[test]
    #[should_panic(expected = "is taken")]
    fn an_index_is_filled_once() {
        let mut slab = Slab::new();
        let reserved = slab.reserve();
        slab.fill(reserved, 'a');
        slab.fill(reserved, 'b');
    }

    #[test]
    fn what_is_behind_the_last_value_is_given_back_where_most_is_empty() {
        let mut slab = Slab::new();
        for value in 0..1000 {
            assert_eq!(slab.insert(value), value);
        }
        for index in (0..1000).filter(|index| ![3, 100].contains(index)) {
            slab.remove(index);
        }
        slab.trim();
        assert_eq!((slab.len(), slab.slots()), (2, 101));
        assert!(slab.state_bytes() <= 120 * size_of::<Slot<u32>>());
        assert_eq!((slab[3], slab[100], slab.get(500)), (3, 100, None));
        let next: Vec<_> = (0..4).map(|value| slab.insert(value)).collect();
        assert_eq!(next, [0, 1, 2, 4], "the lowest first");
        slab.trim();
        assert_eq!(
            slab.slots(),
            101,
            "it does not change what was given back just now"
        );
        for index in [0, 1, 2, 3, 4, 100] {
            slab.remove(index);
        }
        slab.trim();
        assert_eq!((slab.state_bytes(), slab.insert(7)), (0, 0));
    }

    #[test]
    fn an_index_that_is_not_released_is_not_given_out() {
        let mut slab = Slab::new();
        for value in ['a', 'b', 'c'] {
            slab.insert(value);
        }
        assert_eq!((slab.take(1), slab.len(), slab.get(1)), ('b', 2, None));
        assert_eq!((slab.remove(0), slab.insert('d')), ('a', 0));
        assert_eq!((slab.insert('e'), slab.insert('f')), (3, 4));
        slab.release(1);
        assert_eq!((slab.insert('g'), slab.len()), (1, 5));
    }

    #[test]
    fn none_is_never_there() {
        let mut slab = Slab::new();
        slab.insert('a');
        assert_eq!(slab.get(NONE), None);
        assert_eq!(slab.get_mut(NONE), None);
        assert!(slab.get(1).is_none() && slab.get(0) == Some(&'a'));
    }

    #[test]
    #[should_panic(expected = "no value at index 0")]
    fn removing_twice_panics() {
        let mut slab = Slab::new();
        slab.insert(1);
        slab.remove(0);
        slab.remove(0);
    }

    #[test]
    #[should_panic(expected = "no value at index 0")]
    fn discarding_what_was_removed_panics() {
        let mut slab = Slab::new();
        slab.insert(1);
        slab.remove(0);
        slab.discard(0);
    }

    #[test]
    #[should_panic(expected = "no value at index 7")]
    fn indexing_where_nothing_is_panics() {
        let slab: Slab<u8> = Slab::new();
        let _ = slab[7];
    }

    #[test]
    fn a_value_with_a_niche_beside_room_for_an_index_takes_no_room_for_the_hole() {
        #[derive(Debug)]
        struct Record {
            _data: u64,
            _flag: bool,
        }
        assert_eq!(size_of::<Slot<Record>>(), size_of::<Record>());
        let mut slab: Slab<Record> = Slab::new();
        assert_eq!(slab.state_bytes(), 0);
        for _ in 0..100 {
            slab.insert(Record {
                _data: 0,
                _flag: true,
            });
        }
        let each = size_of::<Record>();
        // A vector grows to at most twice what it holds.
        assert!((100 * each..=200 * each).contains(&slab.state_bytes()));
    }
}
