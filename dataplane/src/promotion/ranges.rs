//! Ranges of addresses that may overlap.

use std::collections::BTreeMap;
use std::ops::Range;

/// Ranges with how often each is there. Those of similar lengths are together, so that what
/// overlaps a range is found near it.
#[derive(Debug)]
pub(super) struct Ranges(BTreeMap<u32, BTreeMap<(usize, usize), usize>>);

/// Ranges of this class are shorter than 2 to the power of it.
fn class(range: &Range<usize>) -> u32 {
    usize::BITS - range.len().leading_zeros()
}

impl Ranges {
    pub(super) const EMPTY: Self = Self(BTreeMap::new());

    pub(super) fn insert(&mut self, range: &Range<usize>) {
        let class = self.0.entry(class(range)).or_default();
        *class.entry((range.start, range.end)).or_default() += 1;
    }

    /// Takes out a range that was put in as often.
    pub(super) fn remove(&mut self, range: &Range<usize>) {
        let of = class(range);
        let Some(class) = self.0.get_mut(&of) else {
            return;
        };
        let key = (range.start, range.end);
        if let Some(count) = class.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                class.remove(&key);
            }
        }
        if class.is_empty() {
            self.0.remove(&of);
        }
    }

    /// Whether one of them has an address of `range`.
    pub(super) fn overlap(&self, range: &Range<usize>) -> bool {
        self.0.iter().any(|(of, class)| {
            let longest = 1_usize.checked_shl(*of).unwrap_or(usize::MAX);
            let first = range.start.saturating_sub(longest);
            let mut near = class.range((first, 0)..(range.end, 0));
            near.any(|((_, end), _)| *end > range.start)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_overlaps_is_found_whatever_its_length_and_as_often_as_it_is_there() {
        let mut ranges = Ranges::EMPTY;
        let all = [10..20, 15..16, 10..20, 0..1 << 30, 1 << 40..usize::MAX];
        for range in &all {
            assert!(!ranges.overlap(range) || range.start < 20, "{range:?}");
            ranges.insert(range);
        }
        assert!(ranges.overlap(&(1 << 29..1 << 31)) && ranges.overlap(&(1 << 41..1 << 42)));
        assert!(!ranges.overlap(&(1 << 30..1 << 40)), "between them");
        ranges.remove(&(0..1 << 30));
        assert!(ranges.overlap(&(19..25)) && !ranges.overlap(&(20..25)));
        assert!(ranges.overlap(&(5..11)) && !ranges.overlap(&(5..10)));
        ranges.remove(&(10..20));
        assert!(ranges.overlap(&(19..25)), "it is there once more");
        ranges.remove(&(10..20));
        assert!(!ranges.overlap(&(16..25)) && ranges.overlap(&(0..16)));
        ranges.remove(&(15..16));
        ranges.remove(&(1 << 40..usize::MAX));
        assert!(!ranges.overlap(&(0..usize::MAX)) && ranges.0.is_empty());
    }
}
