//! BINDs that were sent a moment ago.
//!
//! Nearly all of them are answered within a few round trips. So a BIND gets a timer of its own only
//! when it has waited for a while: until then it takes 16 bytes of a queue, and nothing has to be
//! taken back when the answer comes.

use std::collections::VecDeque;
use trunkline_conn::time::{Instant, MILLISECOND};

/// After so long a BIND that nobody has answered gets a timer, in ns.
pub(crate) const RECENT_NS: u64 = 5 * MILLISECOND;
/// Entries that there may always be room for.
const ROOM: usize = 1024;

/// The flows whose first BIND was sent less than [`RECENT_NS`] ago, oldest first. A flow may have
/// been answered, or be over, in the meantime.
#[derive(Debug, Default)]
pub(crate) struct RecentBinds(VecDeque<Recent>);

#[derive(Debug)]
struct Recent {
    sent: Instant,
    flow: u32,
}

impl RecentBinds {
    /// The first BIND of a flow goes out. Returns when [`next`](Self::next) is to be called, where
    /// no such call is expected yet.
    pub(crate) fn push(&mut self, sent: Instant, flow: u32) -> Option<Instant> {
        let first = self.0.is_empty();
        self.0.push_back(Recent { sent, flow });
        first.then_some(sent + RECENT_NS)
    }

    /// Takes out the next flow whose BIND is not recent any more: the flow, and when its BIND was
    /// sent.
    pub(crate) fn next(&mut self, now: Instant) -> Option<(u32, Instant)> {
        let recent = self
            .0
            .pop_front_if(|recent| recent.sent + RECENT_NS <= now)?;
        if self.0.is_empty() {
            self.0.shrink_to(ROOM);
        }
        Some((recent.flow, recent.sent))
    }

    /// When the next one is to be taken out.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.0.front().map(|recent| recent.sent + RECENT_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bind_is_recent_for_a_while_and_comes_out_in_the_order_of_sending() {
        let at = |us: u64| Instant::from_nanos(us * 1000);
        let mut recent = RecentBinds::default();
        assert_eq!((recent.due(), recent.next(Instant::FAR)), (None, None));
        assert_eq!(recent.push(at(10), 7), Some(at(5010)));
        assert_eq!(recent.push(at(20), 3), None);
        assert_eq!(
            (recent.due(), recent.next(at(5009))),
            (Some(at(5010)), None)
        );
        assert_eq!(recent.next(at(5010)), Some((7, at(10))));
        assert_eq!(
            (recent.next(at(5019)), recent.due()),
            (None, Some(at(5020)))
        );
        assert_eq!(recent.next(at(9000)), Some((3, at(20))));
        assert_eq!((recent.next(at(9000)), recent.due()), (None, None));
        assert_eq!(recent.push(at(9000), 1), Some(at(14_000)));
    }

    #[test]
    fn memory_goes_with_the_entries() {
        let mut recent = RecentBinds::default();
        for flow in 0..100_000 {
            recent.push(Instant::from_nanos(0), flow);
        }
        while recent.next(Instant::FAR).is_some() {}
        assert!(recent.0.capacity() <= ROOM);
    }
}
