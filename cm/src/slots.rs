//! A slab of records that communication IDs name, with a timer for each: what the tables of both
//! managers are made of.

use crate::comm_id::{CommIds, INDEX_BITS, Side};
use crate::places::{Occupied, Places};
use crate::random::Random;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use trunkline_conn::time::Instant;
use trunkline_conn::wheel::{Step, Wheel};
use trunkline_wire::Worker;
use trunkline_wire::cm::CommId;

/// What is kept in a slab.
pub(crate) trait Record {
    /// Where it stands.
    type State: State;
    /// One of which nothing is known yet, in the state [`State::FREE`].
    fn new(id: CommId) -> Self;
    /// The communication ID of its place's user; of a free place, that of the last one.
    fn id(&self) -> CommId;
    fn state(&self) -> &Self::State;
}

/// Where a record stands.
pub(crate) trait State {
    /// Nowhere: its place is free, or has just been taken.
    const FREE: Self;
    fn is_free(&self) -> bool;
    /// When something happens to it by itself.
    fn deadline(&self) -> Option<Instant>;
    /// Bytes that it holds beside its record.
    fn boxed_bytes(&self) -> usize;
    /// When it is forgotten, once all is over. All wait for that equally long.
    fn until(&self) -> Option<Instant>;
}

/// What time brings.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Due {
    /// The deadline of this record has passed.
    Deadline(u32),
    /// This record has been remembered long enough.
    Forget(u32),
}

/// The slab.
#[derive(Debug)]
pub(crate) struct Slots<S> {
    ids: CommIds,
    slots: Places<S>,
    /// The last IDs of places that are no longer kept; of the next new one at the end.
    dropped: Vec<CommId>,
    /// The deadlines of records, by index.
    timers: Wheel,
    /// Records that wait to be forgotten, the oldest first.
    over: VecDeque<u32>,
}

impl<S: Record> Occupied for S {
    fn is_free(&self) -> bool {
        self.state().is_free()
    }
}

impl<S: Record> Slots<S> {
    pub(crate) fn new(whose: (Side, Worker), random: &mut impl Random) -> Self {
        Self {
            ids: CommIds::new(whose, random),
            slots: Places::new(),
            dropped: Vec::new(),
            timers: Wheel::new(),
            over: VecDeque::new(),
        }
    }

    pub(crate) fn get(&self, index: u32) -> &S {
        &self.slots[index]
    }

    /// For changes that leave the deadline as it is.
    pub(crate) fn get_mut(&mut self, index: u32) -> &mut S {
        &mut self.slots[index]
    }

    /// The communication ID of a record.
    pub(crate) fn id(&self, index: u32) -> CommId {
        self.get(index).id()
    }

    /// The record that a communication ID names.
    pub(crate) fn find(&self, id: CommId) -> Option<u32> {
        let index = self.ids.place(id);
        let slot = self.slots.get(index)?;
        (slot.id() == id && !slot.state().is_free()).then_some(index)
    }

    /// Takes a place; the state of its record is to be set next.
    pub(crate) fn insert(&mut self, random: &mut impl Random) -> u32 {
        let blank = || S::new(self.dropped.pop().unwrap_or(CommId(0)));
        let taken = self.slots.take(1 << INDEX_BITS, blank);
        let index = taken.expect("the limit on connections bounds the slots");
        let id = self.ids.draw(index, self.get(index).id(), random);
        *self.get_mut(index) = S::new(id);
        index
    }

    /// Changes a record, its deadline included.
    pub(crate) fn update<T>(&mut self, index: u32, change: impl FnOnce(&mut S) -> T) -> T {
        let result = change(self.get_mut(index));
        let deadline = self.get(index).state().deadline();
        self.timers.arm(deadline.unwrap_or(Instant::FAR), index);
        result
    }

    /// Gives a place back.
    pub(crate) fn remove(&mut self, index: u32) -> S {
        let free = S::new(self.get(index).id());
        let old = core::mem::replace(self.get_mut(index), free);
        self.timers.cancel(index);
        self.slots
            .give_back(index, |slot| self.dropped.push(slot.id()));
        if self.slots.is_empty() {
            self.timers = Wheel::new();
        }
        old
    }

    /// The record is over and waits to be forgotten. Where more than `limit` wait, the oldest comes
    /// back: it is to be forgotten now.
    pub(crate) fn linger(&mut self, index: u32, limit: u32) -> Option<u32> {
        self.over.push_back(index);
        (self.over.len() > limit as usize)
            .then(|| self.over.pop_front())
            .flatten()
    }

    /// Bytes of the records, of what their states hold and of their timers.
    pub(crate) fn state_bytes(&self) -> usize {
        let boxed = self.slots.iter().map(|slot| slot.state().boxed_bytes());
        self.slots.state_bytes()
            + boxed.sum::<usize>()
            + self.timers.state_bytes()
            + self.over.capacity() * size_of::<u32>()
            + self.dropped.capacity() * size_of::<CommId>()
    }

    /// When something is due next, or earlier where many deadlines are about as near.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let over = self.over.front().map(|&index| self.until(index));
        Instant::earliest([self.timers.next(), over])
    }

    /// What is due at `now`. A passed deadline comes once: it has to be moved.
    pub(crate) fn due(&mut self, now: Instant) -> Option<Due> {
        loop {
            match self.timers.step(now) {
                Step::Fired(index) => return Some(Due::Deadline(index)),
                Step::Sorted => {}
                Step::Idle => break,
            }
        }
        let index = *self.over.front()?;
        if self.until(index) > now {
            return None;
        }
        self.over.pop_front();
        Some(Due::Forget(index))
    }

    fn until(&self, index: u32) -> Instant {
        let until = self.get(index).state().until();
        until.expect("what waits to be forgotten has a time for it")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;

    /// Its communication ID, and whether it is in use.
    struct Place(CommId, bool);

    impl Record for Place {
        type State = bool;

        fn new(id: CommId) -> Self {
            Self(id, bool::FREE)
        }

        fn id(&self) -> CommId {
            self.0
        }

        fn state(&self) -> &bool {
            &self.1
        }
    }

    impl State for bool {
        const FREE: Self = false;

        fn is_free(&self) -> bool {
            !self
        }

        fn deadline(&self) -> Option<Instant> {
            None
        }

        fn boxed_bytes(&self) -> usize {
            0
        }

        fn until(&self) -> Option<Instant> {
            None
        }
    }

    #[test]
    fn an_id_names_its_record_alone_and_nobody_once_that_is_gone() {
        // Whatever is drawn is the same again, so that nothing but the last user tells IDs apart.
        let mut random = || 0x1234_5678_9abc_def1;
        let mut slots = Slots::<Place>::new((Side::Ibta, Worker::ONLY), &mut random);
        let mut take = |slots: &mut Slots<Place>| {
            let index = slots.insert(&mut random);
            assert_eq!(slots.find(slots.id(index)), None, "nothing is known of it");
            slots.update(index, |place| place.1 = true);
            (index, slots.id(index))
        };
        let (first, second) = (take(&mut slots), take(&mut slots));
        for (index, id) in [first, second] {
            assert_eq!(slots.find(id), Some(index));
        }
        let mut gone = first;
        for _ in 0..100 {
            slots.remove(gone.0);
            assert_eq!(slots.find(gone.1), None, "its place is free");
            let next = take(&mut slots);
            assert_eq!(next.0, gone.0, "the place that was free");
            assert_eq!(slots.find(next.1), Some(next.0));
            assert_eq!(slots.find(gone.1), None, "its place is another's");
            gone = next;
        }
        assert_eq!(slots.find(second.1), Some(second.0));
        assert_eq!(slots.find(CommId(0)), None);
    }

    #[test]
    fn a_place_that_was_given_up_meanwhile_goes_on_behind_its_last_id() {
        let mut state = 1_u64;
        let mut random = || {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            state >> 24
        };
        let mut slots = Slots::<Place>::new((Side::Nodes, Worker::ONLY), &mut random);
        let mut seen = BTreeSet::new();
        // A place has some 2,048 IDs: of 20 that are drawn by chance two are equal here and there.
        for _ in 0..20 {
            let taken: Vec<_> = (0..500).map(|_| slots.insert(&mut random)).collect();
            for &index in &taken {
                slots.update(index, |place| place.1 = true);
                assert!(seen.insert(slots.id(index).0), "the ID came back");
            }
            for index in taken {
                slots.remove(index);
            }
            assert!(slots.slots.iter().count() < 100, "their places are gone");
        }
    }
}
