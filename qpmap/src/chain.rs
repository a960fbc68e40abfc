//! Lists of which any element leaves at once, wherever it stands.
//!
//! They are circles, linked in both directions through one slab, so that a list is one number and
//! costs memory for what is in it only. Whoever puts a value in keeps the number of its link.

use crate::slab::{NONE, Slab};

/// The links of any number of lists.
#[derive(Debug)]
pub(crate) struct Chains<T> {
    links: Slab<Link<T>>,
}

#[derive(Debug)]
struct Link<T> {
    value: T,
    prev: u32,
    next: u32,
}

/// One list: the number of its first link, or [`NONE`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Chain(u32);

impl Chain {
    pub(crate) const EMPTY: Self = Self(NONE);

    pub(crate) const fn is_empty(self) -> bool {
        self.0 == NONE
    }

    /// The link of the first value, or [`NONE`].
    pub(crate) const fn first_link(self) -> u32 {
        self.0
    }
}

impl<T> Chains<T> {
    pub(crate) const fn new() -> Self {
        Self { links: Slab::new() }
    }

    /// Bytes that it has allocated.
    pub(crate) const fn state_bytes(&self) -> usize {
        self.links.state_bytes()
    }

    /// Gives back room that was needed once.
    pub(crate) fn trim(&mut self) {
        self.links.trim();
    }

    /// Values in all lists.
    pub(crate) const fn len(&self) -> usize {
        self.links.len()
    }

    /// Puts a value at the end of a list; gives its link.
    #[inline]
    pub(crate) fn push(&mut self, chain: &mut Chain, value: T) -> u32 {
        let link = self.links.next_index();
        let (prev, next) = match self.links.get_mut(chain.0) {
            Some(first) => (std::mem::replace(&mut first.prev, link), chain.0),
            None => {
                chain.0 = link;
                (link, link)
            }
        };
        if prev != link {
            self.links[prev].next = link;
        }
        self.links.insert(Link { value, prev, next });
        link
    }

    /// The same at its beginning.
    #[inline]
    pub(crate) fn push_first(&mut self, chain: &mut Chain, value: T) -> u32 {
        let link = self.push(chain, value);
        chain.0 = link;
        link
    }

    /// Puts the first value at the end of its list.
    #[inline]
    pub(crate) fn rotate(&self, chain: &mut Chain) {
        if let Some(first) = self.links.get(chain.0) {
            chain.0 = first.next;
        }
    }

    /// Puts the first value of one list at the end of another. It keeps its link.
    pub(crate) fn shift(&mut self, from: &mut Chain, to: &mut Chain) {
        let Some(&Link { prev, next, .. }) = self.links.get(from.0) else {
            return;
        };
        let link = from.0;
        from.0 = if next == link { NONE } else { next };
        self.links[prev].next = next;
        self.links[next].prev = prev;
        let moved = &mut self.links[link];
        (moved.prev, moved.next) = (link, link);
        self.append(to, &mut Chain(link));
    }

    /// Takes a value out of the list it is in.
    ///
    /// # Panics
    /// When there is no such link.
    #[inline]
    pub(crate) fn remove(&mut self, chain: &mut Chain, link: u32) -> T {
        self.remove_from([chain], link)
    }

    /// The same where it is in one of several lists.
    ///
    /// # Panics
    /// When there is no such link.
    #[inline]
    pub(crate) fn remove_from<const N: usize>(&mut self, chains: [&mut Chain; N], link: u32) -> T {
        let Link { value, prev, next } = self.links.remove(link);
        let first = if next == link {
            NONE
        } else {
            self.links[prev].next = next;
            self.links[next].prev = prev;
            next
        };
        for chain in chains {
            if chain.0 == link {
                chain.0 = first;
            }
        }
        value
    }

    /// Puts all values of one list at the end of another.
    pub(crate) fn append(&mut self, chain: &mut Chain, from: &mut Chain) {
        let (first, other) = (chain.0, std::mem::replace(&mut from.0, NONE));
        if first == NONE || other == NONE {
            chain.0 = if first == NONE { other } else { first };
            return;
        }
        let last = std::mem::replace(&mut self.links[first].prev, NONE);
        let other_last = std::mem::replace(&mut self.links[other].prev, last);
        self.links[last].next = other;
        self.links[other_last].next = first;
        self.links[first].prev = other_last;
    }

    /// Takes the first value out.
    #[inline]
    pub(crate) fn pop(&mut self, chain: &mut Chain) -> Option<T> {
        (!chain.is_empty()).then(|| self.remove(chain, chain.0))
    }

    /// The value of a link.
    ///
    /// # Panics
    /// When there is no such link.
    #[inline]
    pub(crate) fn at(&mut self, link: u32) -> &mut T {
        &mut self.links[link].value
    }

    /// The first value, and whether it is the only one.
    #[inline]
    pub(crate) fn front(&self, chain: Chain) -> Option<(&T, bool)> {
        let link = self.links.get(chain.0)?;
        Some((&link.value, link.next == chain.0))
    }

    /// The same, to change it.
    #[inline]
    pub(crate) fn front_mut(&mut self, chain: Chain) -> Option<(&mut T, bool)> {
        let link = self.links.get_mut(chain.0)?;
        Some((&mut link.value, link.next == chain.0))
    }
}

impl<T: Copy> Chains<T> {
    /// The first value.
    #[inline]
    pub(crate) fn first(&self, chain: Chain) -> Option<T> {
        self.links.get(chain.0).map(|link| link.value)
    }

    /// All values, first to last.
    pub(crate) fn iter(&self, chain: Chain) -> impl Iterator<Item = T> {
        let mut next = chain.0;
        std::iter::from_fn(move || {
            let link = self.links.get(next)?;
            next = if link.next == chain.0 {
                NONE
            } else {
                link.next
            };
            Some(link.value)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[derive(Clone, Debug)]
    enum Step {
        Push(usize),
        PushFirst(usize),
        Rotate(usize),
        Pop(usize),
        Remove(usize, usize),
        Append(usize, usize),
        Shift(usize, usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0..3usize).prop_map(Step::Push),
            1 => (0..3usize).prop_map(Step::PushFirst),
            1 => (0..3usize).prop_map(Step::Rotate),
            1 => (0..3usize).prop_map(Step::Pop),
            2 => (0..3usize, any::<usize>()).prop_map(|(list, at)| Step::Remove(list, at)),
            1 => (0..3usize, 1..3usize).prop_map(|(list, on)| Step::Append(list, (list + on) % 3)),
            1 => (0..3usize, 1..3usize).prop_map(|(list, on)| Step::Shift(list, (list + on) % 3)),
        ]
    }

    proptest! {
        #[test]
        fn chains_are_queues_of_which_any_element_leaves(
            steps in prop::collection::vec(step(), 0..200),
        ) {
            let mut chains = Chains::new();
            let mut lists = [Chain::EMPTY; 3];
            let mut model: [VecDeque<(u32, usize)>; 3] = Default::default();
            for (value, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Push(at) => {
                        let link = chains.push(&mut lists[at], value);
                        model[at].push_back((link, value));
                    }
                    Step::PushFirst(at) => {
                        let link = chains.push_first(&mut lists[at], value);
                        model[at].push_front((link, value));
                    }
                    Step::Rotate(at) => {
                        chains.rotate(&mut lists[at]);
                        if !model[at].is_empty() {
                            model[at].rotate_left(1);
                        }
                    }
                    Step::Pop(at) => {
                        let expected = model[at].pop_front().map(|(_, value)| value);
                        prop_assert_eq!(chains.pop(&mut lists[at]), expected);
                    }
                    Step::Remove(at, which) => if !model[at].is_empty() {
                        let which = which % model[at].len();
                        let (link, value) = model[at].remove(which).expect("below the length");
                        prop_assert_eq!(chains.remove_from(lists.each_mut(), link), value);
                    }
                    Step::Append(at, from) => {
                        let mut taken = std::mem::replace(&mut lists[from], Chain::EMPTY);
                        chains.append(&mut lists[at], &mut taken);
                        let values = std::mem::take(&mut model[from]);
                        model[at].extend(values);
                    }
                    Step::Shift(from, to) => {
                        let mut left = std::mem::replace(&mut lists[from], Chain::EMPTY);
                        chains.shift(&mut left, &mut lists[to]);
                        lists[from] = left;
                        let first = model[from].pop_front();
                        model[to].extend(first);
                    }
                }
                for (list, model) in lists.iter().zip(&model) {
                    let mut first = model.front().map(|(_, value)| *value);
                    let is_only = model.len() == 1;
                    prop_assert_eq!(chains.front(*list), first.as_ref().zip(Some(is_only)));
                    prop_assert_eq!(chains.front_mut(*list), first.as_mut().zip(Some(is_only)));
                    for (link, value) in model {
                        prop_assert_eq!(chains.at(*link), value);
                    }
                    let values: Vec<usize> = model.iter().map(|(_, value)| *value).collect();
                    prop_assert_eq!(chains.first(*list), values.first().copied());
                    prop_assert_eq!(chains.iter(*list).collect::<Vec<_>>(), values);
                }
                let all = model.iter().map(VecDeque::len).sum::<usize>();
                prop_assert_eq!(chains.len(), all);
            }
        }
    }
}
