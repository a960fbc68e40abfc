//! Tables whose records keep their places, and that give memory back.

use alloc::vec::Vec;

/// Places that a table keeps, whether they are free or not.
const KEPT: usize = 16;

/// What knows whether its place is free.
pub(crate) trait Occupied {
    fn is_free(&self) -> bool;
}

/// Records by place. Free places at the end go where most are free.
#[derive(Debug)]
pub(crate) struct Places<T> {
    records: Vec<T>,
    /// Free places, and some that are taken again, or not there any more: they count for nothing.
    free: Vec<u32>,
    len: u32,
}

impl<T: Occupied> Places<T> {
    pub(crate) const fn new() -> Self {
        Self {
            records: Vec::new(),
            free: Vec::new(),
            len: 0,
        }
    }

    /// Whether all places are free.
    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn get(&self, place: u32) -> Option<&T> {
        self.records.get(place as usize)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.records.iter()
    }

    /// Returns a place that is free, and has the record `blank` makes if it is new. It is to be
    /// taken at once. `None`: it would be `limit` or higher.
    pub(crate) fn take(&mut self, limit: u32, blank: impl FnOnce() -> T) -> Option<u32> {
        self.len += 1;
        while let Some(place) = self.free.pop() {
            if self.get(place).is_some_and(T::is_free) {
                return Some(place);
            }
        }
        let place = self.records.len() as u32;
        if place >= limit {
            self.len -= 1;
            return None;
        }
        if self.records.len() == self.records.capacity() {
            // Not twice as much as there is: there are many.
            self.records.reserve_exact((self.records.len() / 8).max(4));
        }
        self.records.push(blank());
        Some(place)
    }

    /// A place has become free. Hands over each free record whose place goes, from the end on: the
    /// last that was handed over had the place that the next new record will have.
    pub(crate) fn give_back(&mut self, place: u32, mut dropped: impl FnMut(T)) {
        self.len -= 1;
        self.free.push(place);
        let most = KEPT.max(4 * self.len as usize);
        if self.records.len() <= most {
            return;
        }
        while self.records.len() > KEPT && self.records.last().is_some_and(T::is_free) {
            self.records.pop().into_iter().for_each(&mut dropped);
        }
        if self.records.len() <= self.records.capacity() / 2 {
            self.records.shrink_to_fit();
        }
        if self.len == 0 {
            self.free.clear();
            self.free.extend((0..self.records.len() as u32).rev());
            self.free.shrink_to_fit();
        }
    }

    pub(crate) fn state_bytes(&self) -> usize {
        self.records.capacity() * size_of::<T>() + self.free.capacity() * size_of::<u32>()
    }
}

impl<T> core::ops::Index<u32> for Places<T> {
    type Output = T;

    fn index(&self, place: u32) -> &T {
        &self.records[place as usize]
    }
}

impl<T> core::ops::IndexMut<u32> for Places<T> {
    fn index_mut(&mut self, place: u32) -> &mut T {
        &mut self.records[place as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Occupied for bool {
        fn is_free(&self) -> bool {
            !self
        }
    }

    #[test]
    fn no_place_is_given_out_twice_and_memory_comes_back() {
        const MANY: u32 = 5000;
        let mut random = 1u64;
        let mut below = |most: usize| {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (random >> 33) as usize % most
        };
        let mut places = Places::new();
        for _ in 0..3 {
            let mut taken = Vec::new();
            for _ in 0..MANY {
                let place = places.take(MANY, bool::default).expect("there is room");
                assert!(!core::mem::replace(&mut places[place], true));
                taken.push(place);
                if below(3) == 0 {
                    let place = taken.swap_remove(below(taken.len()));
                    places[place] = false;
                    places.give_back(place, drop);
                }
            }
            while !taken.is_empty() {
                let place = taken.swap_remove(below(taken.len()));
                places[place] = false;
                places.give_back(place, drop);
            }
            assert!(
                places.state_bytes() <= KEPT * 16,
                "{}",
                places.state_bytes()
            );
        }
        let full = (0..=MANY).map(|_| {
            let place = places.take(MANY, bool::default)?;
            places[place] = true;
            Some(place)
        });
        assert_eq!(full.flatten().count(), MANY as usize);
    }
}
