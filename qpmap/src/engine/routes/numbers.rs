//! What the program of an app-managed QP calls its routes: numbers from 1 on, of which the one that
//! was free last is given out next. The table is also the list of all routes of the QP, those
//! included that the program has not heard of.

use crate::slab::make_room;

/// What a number stands for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Entry {
    /// This route.
    Route(u32),
    /// One that has ended, and that the program has not closed.
    Ended,
    /// One that has ended and that the program has closed, while requests that name it were in the
    /// ring.
    Closing,
}

/// An [`Entry`], or a hole, in four bytes: the two highest bits say which.
#[derive(Clone, Copy, Debug)]
struct Place(u32);

impl Place {
    const ENDED: u32 = 1 << 30;
    const CLOSING: u32 = 2 << 30;
    const HOLE: u32 = 3 << 30;
    const VALUE: u32 = Self::ENDED - 1;

    const fn of(entry: Entry) -> Self {
        match entry {
            Entry::Route(route) => {
                assert!(route < Self::ENDED, "memory ends before 2^30 routes");
                Self(route)
            }
            Entry::Ended => Self(Self::ENDED),
            Entry::Closing => Self(Self::CLOSING),
        }
    }

    /// `None`: it is a hole.
    const fn entry(self) -> Option<Entry> {
        match self.0 & !Self::VALUE {
            0 => Some(Entry::Route(self.0)),
            Self::ENDED => Some(Entry::Ended),
            Self::CLOSING => Some(Entry::Closing),
            _ => None,
        }
    }
}

/// The numbers of one QP. Number `n` is at place `n - 1`; holes are linked, last freed first.
#[derive(Debug)]
pub(super) struct Numbers {
    places: Vec<Place>,
    vacant: u32,
}

impl Numbers {
    /// Behind the last hole.
    const NO_HOLE: u32 = Place::VALUE;

    pub(super) const EMPTY: Self = Self {
        places: Vec::new(),
        vacant: Self::NO_HOLE,
    };

    /// Bytes that it has allocated.
    pub(super) const fn state_bytes(&self) -> usize {
        self.places.capacity() * size_of::<Place>()
    }

    /// Gives a route a number.
    pub(super) fn insert(&mut self, route: u32) -> u32 {
        let place = Place::of(Entry::Route(route));
        if self.vacant == Self::NO_HOLE {
            make_room(&mut self.places, 1);
            self.places.push(place);
            return self.places.len() as u32;
        }
        let at = self.vacant as usize;
        self.vacant = self.places[at].0 & Place::VALUE;
        self.places[at] = place;
        at as u32 + 1
    }

    /// What a number stands for; `None`: nothing.
    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<Entry> {
        let place = self.places.get(number.wrapping_sub(1) as usize)?;
        place.entry()
    }

    /// A number that stands for something stands for something else.
    pub(super) fn set(&mut self, number: u32, entry: Entry) {
        assert!(self.get(number).is_some(), "number {number} is not given");
        self.places[number as usize - 1] = Place::of(entry);
    }

    /// A number is free.
    pub(super) fn remove(&mut self, number: u32) {
        assert!(self.get(number).is_some(), "number {number} is not given");
        let at = number - 1;
        let before = std::mem::replace(&mut self.vacant, at);
        self.places[at as usize] = Place(Place::HOLE | before);
    }

    /// The routes that have numbers, in the order of these.
    pub(super) fn routes(&self) -> impl Iterator<Item = u32> {
        let entries = self.places.iter().map(|place| place.entry());
        entries.filter_map(|entry| match entry {
            Some(Entry::Route(route)) => Some(route),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_stands_for_one_thing_at_a_time_and_the_last_freed_is_the_next() {
        let mut numbers = Numbers::EMPTY;
        assert_eq!([7, 8, 9].map(|route| numbers.insert(route)), [1, 2, 3]);
        numbers.set(2, Entry::Ended);
        assert_eq!(numbers.get(2), Some(Entry::Ended));
        numbers.set(2, Entry::Closing);
        assert_eq!(numbers.get(2), Some(Entry::Closing));
        assert_eq!(numbers.routes().collect::<Vec<_>>(), [7, 9]);
        numbers.remove(2);
        numbers.remove(1);
        assert_eq!([0, 1, 2, 4, u32::MAX].map(|at| numbers.get(at)), [None; 5]);
        assert_eq!([5, 6, 4].map(|route| numbers.insert(route)), [1, 2, 4]);
        assert_eq!(numbers.routes().collect::<Vec<_>>(), [5, 6, 9, 4]);
    }

    #[test]
    #[should_panic(expected = "number 1 is not given")]
    fn a_number_is_freed_once() {
        let mut numbers = Numbers::EMPTY;
        numbers.insert(0);
        numbers.remove(1);
        numbers.remove(1);
    }
}
