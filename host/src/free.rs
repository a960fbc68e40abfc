//! The free ranges of segments.

use std::collections::{BTreeMap, BTreeSet};

/// Cache lines of a segment that lie side by side, or pages of one that is lent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Range {
    /// Number of the segment.
    pub(crate) segment: u32,
    /// The first line.
    pub(crate) start: u32,
    /// How many there are.
    pub(crate) lines: u32,
}

impl Range {
    /// The first line behind it.
    pub(crate) const fn end(self) -> u32 {
        self.start + self.lines
    }
}

/// Ranges, none of which touches another one of the same segment.
#[derive(Debug, Default)]
pub(crate) struct FreeRanges {
    /// Lines by segment and start.
    by_place: BTreeMap<(u32, u32), u32>,
    /// Lines, segment and start of the same.
    by_length: BTreeSet<(u32, u32, u32)>,
}

impl FreeRanges {
    /// Takes `lines` lines off the start of the shortest range that has as many. `None` where there
    /// is none.
    pub(crate) fn take(&mut self, lines: u32) -> Option<Range> {
        let (found, segment, start) = *self.by_length.range((lines, 0, 0)..).next()?;
        let taken = Range {
            segment,
            start,
            lines,
        };
        self.remove(segment, start, found);
        if found > lines {
            self.insert(segment, start + lines, found - lines);
        }
        Some(taken)
    }

    /// Takes up a range that was taken, or that of a new segment.
    ///
    /// # Panics
    /// A part of it is free already.
    pub(crate) fn give(&mut self, range: Range) {
        let Range {
            segment,
            mut start,
            mut lines,
        } = range;
        let before = self.by_place.range(..(segment, start)).next_back();
        let before = before.map(|(place, lines)| (*place, *lines));
        if let Some(((of, at), length)) = before
            && of == segment
        {
            assert!(at + length <= start, "a range is given back once");
            if at + length == start {
                self.remove(of, at, length);
                (start, lines) = (at, length + lines);
            }
        }
        let behind = self.by_place.range((segment, start)..).next();
        let behind = behind.map(|(place, lines)| (*place, *lines));
        if let Some(((of, at), length)) = behind
            && of == segment
        {
            assert!(start + lines <= at, "a range is given back once");
            if start + lines == at {
                self.remove(of, at, length);
                lines += length;
            }
        }
        self.insert(segment, start, lines);
    }

    /// Takes out a segment of so many lines. False where some of them are not free.
    pub(crate) fn take_all(&mut self, segment: u32, lines: u32) -> bool {
        let is_free = self.by_place.get(&(segment, 0)) == Some(&lines);
        if is_free {
            self.remove(segment, 0, lines);
        }
        is_free
    }

    fn insert(&mut self, segment: u32, start: u32, lines: u32) {
        self.by_place.insert((segment, start), lines);
        self.by_length.insert((lines, segment, start));
    }

    fn remove(&mut self, segment: u32, start: u32, lines: u32) {
        self.by_place.remove(&(segment, start));
        self.by_length.remove(&(lines, segment, start));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn range(segment: u32, start: u32, lines: u32) -> Range {
        Range {
            segment,
            start,
            lines,
        }
    }

    #[test]
    fn the_shortest_range_that_is_long_enough_is_taken() {
        let mut free = FreeRanges::default();
        for given in [
            range(0, 0, 10),
            range(0, 20, 4),
            range(1, 0, 4),
            range(1, 9, 6),
        ] {
            free.give(given);
        }
        assert_eq!(free.take(4), Some(range(0, 20, 4)));
        assert_eq!(free.take(3), Some(range(1, 0, 3)));
        assert_eq!(free.take(6), Some(range(1, 9, 6)));
        assert_eq!(free.take(11), None);
        assert_eq!(free.take(10), Some(range(0, 0, 10)));
        assert_eq!(free.take(1), Some(range(1, 3, 1)));
        assert_eq!(free.take(1), None);
    }

    #[test]
    fn ranges_that_touch_become_one_and_those_of_other_segments_do_not() {
        let mut free = FreeRanges::default();
        free.give(range(0, 0, 4));
        free.give(range(1, 0, 4));
        free.give(range(0, 8, 4));
        assert_eq!(free.take(5), None);
        free.give(range(0, 4, 4));
        assert_eq!(free.take(12), Some(range(0, 0, 12)));
        assert_eq!(free.take(4), Some(range(1, 0, 4)));
    }

    #[test]
    fn a_segment_is_taken_out_when_all_of_it_is_free() {
        let mut free = FreeRanges::default();
        free.give(range(0, 0, 4));
        free.give(range(1, 2, 6));
        assert!(!free.take_all(0, 8) && !free.take_all(1, 8));
        free.give(range(0, 4, 4));
        assert!(free.take_all(0, 8));
        assert_eq!(free.take(1), Some(range(1, 2, 1)), "nothing else went");
    }

    #[test]
    #[should_panic(expected = "given back once")]
    fn a_range_that_is_free_is_not_given_again() {
        let mut free = FreeRanges::default();
        free.give(range(0, 0, 8));
        free.give(range(0, 4, 2));
    }
}
