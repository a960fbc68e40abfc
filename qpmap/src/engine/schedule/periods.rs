//! When a period of tenants ends, in which each may send its allowance.

use super::{Served, Share};
use crate::engine::Ready;
use crate::engine::tenants::Pause;

/// What turns tell of it.
#[derive(Debug, Default)]
pub(super) struct Periods {
    /// Turns in a row after which tenants had nothing more to send that they could and may.
    fruitless: usize,
    /// After one of these, what they had was more than they may.
    spent: bool,
}

impl Periods {
    /// Takes note of whether a tenant could and may send more after a turn: one that only ended as
    /// it was long enough.
    pub(super) fn judge(&mut self, who: Ready, served: Served, share: Share) {
        let goes_on = served == Served::Again && share.is_spent() && matches!(who, Ready::Conn(_));
        match served {
            Served::Full | Served::Paused(Pause::Held) => {}
            _ if goes_on => self.fruitless = 0,
            _ => self.fruitless = self.fruitless.saturating_add(1),
        }
        self.spent |= served == Served::Paused(Pause::Spent);
    }

    /// Whether tenants wait for others to send what they may, and no connection has more of that
    /// that could go now. `ready` have something to send.
    #[inline]
    pub(super) fn end(&mut self, ready: usize) -> bool {
        let ends = self.spent && self.fruitless >= ready;
        if ends {
            *self = Self::default();
        }
        ends
    }
}

#[cfg(test)]
mod tests {
    use super::super::share::BYTES;
    use super::*;

    const HELD: Served = Served::Paused(Pause::Held);
    const SPENT: Served = Served::Paused(Pause::Spent);

    /// Whether the period of two connections ends with a turn of one of them.
    fn ends(periods: &mut Periods, served: Served, share: Share) -> bool {
        periods.judge(Ready::Conn(0), served, share);
        periods.end(2)
    }

    /// A share that is used up.
    fn spent() -> Share {
        let mut share = Share::of(1);
        share.add(BYTES as u32);
        share
    }

    #[test]
    fn a_period_ends_when_all_had_a_turn_and_who_is_held_back_counts_for_nothing() {
        let (mut periods, whole) = (Periods::default(), Share::of(1));
        for _ in 0..3 {
            let turns = [HELD, SPENT, HELD, SPENT].map(|served| ends(&mut periods, served, whole));
            assert_eq!(turns, [false, false, false, true]);
        }
        // Its window let no more go.
        let turns = [Served::Again, SPENT].map(|served| ends(&mut periods, served, whole));
        assert_eq!(turns, [false, true]);
        // It was long enough: there may be more.
        assert!(!ends(&mut periods, Served::Again, spent()));
        assert!(!ends(&mut periods, SPENT, whole));
        assert!(ends(&mut periods, SPENT, whole));
    }

    #[test]
    fn no_period_ends_while_nobody_has_spent_what_it_may() {
        let mut periods = Periods::default();
        for _ in 0..10 {
            assert!(!ends(&mut periods, Served::Done, Share::of(1)));
        }
        assert!(ends(&mut periods, SPENT, Share::of(1)));
    }

    #[test]
    fn an_ibta_one_holds_up_no_period() {
        let mut periods = Periods::default();
        assert!(!ends(&mut periods, SPENT, spent()));
        periods.judge(Ready::Ibta(0), Served::Again, spent());
        assert!(periods.end(2));
    }
}
