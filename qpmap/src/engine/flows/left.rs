//! Flows whose peers' QPs are gone, and what is known of that.

use crate::hash::IndexMap;

/// What is known of one of them.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Desertion {
    /// The peer's QP has left, and no other life of it was heard of.
    pub(super) left: bool,
    /// The program has heard that it is gone, in this life or in an earlier one.
    pub(super) told: bool,
    /// The first request that was not executed when one waited though the peer's QP had left.
    pub(super) waits: Option<u32>,
}

/// By flow. A flow keeps its own for as long as it is there.
#[derive(Debug, Default)]
pub(super) struct Desertions(IndexMap<Desertion>);

impl Desertions {
    pub(super) fn get(&self, flow: u32) -> Desertion {
        if self.0.is_empty() {
            return Desertion::default();
        }
        self.0.get(&flow).copied().unwrap_or_default()
    }

    pub(super) fn of(&mut self, flow: u32) -> &mut Desertion {
        self.0.entry(flow).or_default()
    }

    /// Another life of the peer's QP was heard of. Gives whether the last one had left.
    pub(super) fn return_to(&mut self, flow: u32) -> bool {
        let found = self.0.get_mut(&flow);
        found.is_some_and(|found| std::mem::replace(&mut found.left, false))
    }

    /// Nothing waits any more.
    pub(super) fn rest(&mut self, flow: u32) {
        if let Some(found) = self.0.get_mut(&flow) {
            found.waits = None;
        }
    }

    /// A flow is over.
    pub(super) fn forget(&mut self, flow: u32) {
        self.0.remove(&flow);
    }

    /// Bytes that it has allocated.
    pub(super) fn state_bytes(&self) -> usize {
        self.0.allocation_size()
    }

    /// Gives back room that was needed once.
    pub(super) fn trim(&mut self) {
        self.0.shrink_to(2 * self.0.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_is_left_until_it_hears_of_another_life_and_remembers_what_was_told() {
        let mut desertions = Desertions::default();
        assert!(!desertions.return_to(3), "nobody had left");
        *desertions.of(3) = Desertion {
            left: true,
            told: true,
            waits: Some(7),
        };
        assert!(desertions.get(3).left && !desertions.get(4).left);
        assert!(desertions.return_to(3) && !desertions.return_to(3));
        let kept = Desertion {
            left: false,
            told: true,
            waits: Some(7),
        };
        assert_eq!(desertions.get(3), kept);
        desertions.forget(3);
        assert_eq!(desertions.get(3), Desertion::default());
    }

    #[test]
    fn memory_goes_with_the_flows() {
        let mut desertions = Desertions::default();
        (0..10_000).for_each(|flow| desertions.of(flow).left = true);
        let most = desertions.state_bytes();
        (0..10_000).for_each(|flow| desertions.forget(flow));
        desertions.trim();
        assert!(desertions.state_bytes() < most / 100);
    }
}
