//! End-to-end flow control (IBTA Vol 1, 9.7.7.2): for how many messages that take a receive the
//! peer has one.
//!
//! Messages are counted as the peer counts them: each request that it answers by an MSN of its own,
//! so each piece of a READ. An acknowledgement says how many of them are done and how many receives
//! are left: their sum is the limit. What takes no receive raises it as it leaves. One message may
//! pass the limit, to ask.

use trunkline_wire::Syndrome;

/// MSNs are numbers of 24 bits on a circle.
const MASK: u32 = 0x00ff_ffff;

/// Whether circular `a` is behind `b`.
const fn is_after(a: u32, b: u32) -> bool {
    let ahead = a.wrapping_sub(b) & MASK;
    ahead != 0 && ahead < 1 << 23
}

/// What a requester knows of its peer's receives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Credits {
    /// Messages begun.
    begun: u32,
    /// The last one for which the peer has a receive.
    limit: u32,
    /// The peer grants no credits, or they do not count.
    unlimited: bool,
}

impl Credits {
    pub(super) const fn new(flow_control: bool) -> Self {
        Self {
            begun: 0,
            limit: 0,
            unlimited: !flow_control,
        }
    }

    /// Whether one more message that takes a receive may begin.
    pub(super) const fn may_begin(&self) -> bool {
        self.unlimited || !is_after(self.begun, self.limit)
    }

    /// A message began.
    pub(super) const fn begin(&mut self, takes_receive: bool) {
        self.begun = (self.begun + 1) & MASK;
        if !takes_receive {
            self.limit = (self.limit + 1) & MASK;
        }
    }

    /// The peer has done `msn` messages, and has receives left as `code` says.
    pub(super) const fn grant(&mut self, code: u8, msn: u32) {
        let Some(receives) = Syndrome::receives(code) else {
            self.unlimited = true;
            return;
        };
        // It cannot have done what was not begun.
        if is_after(msn, self.begun) {
            return;
        }
        let limit = (msn + receives) & MASK;
        if is_after(limit, self.limit) {
            self.limit = limit;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_credit_one_message_leaves() {
        let mut credits = Credits::new(true);
        assert!(credits.may_begin());
        credits.begin(true);
        assert!(!credits.may_begin());
        credits.grant(0, 1);
        assert!(credits.may_begin(), "one to ask");
        credits.begin(true);
        assert!(!credits.may_begin());
        // 6 receives behind the two that are done.
        credits.grant(5, 2);
        for _ in 0..7 {
            assert!(credits.may_begin());
            credits.begin(true);
        }
        assert!(!credits.may_begin());
    }

    #[test]
    fn what_takes_no_receive_needs_no_credit() {
        let mut credits = Credits::new(true);
        credits.begin(true);
        credits.grant(2, 1);
        for _ in 0..1000 {
            credits.begin(false);
        }
        for _ in 0..3 {
            assert!(credits.may_begin());
            credits.begin(true);
        }
        assert!(!credits.may_begin());
    }

    #[test]
    fn a_limit_holds_across_the_end_of_the_circle_and_does_not_fall() {
        let mut credits = Credits::new(true);
        for _ in 0..MASK {
            credits.begin(false);
        }
        credits.grant(2, MASK);
        credits.grant(1, MASK);
        credits.grant(30, MASK - 40_000);
        for _ in 0..3 {
            assert!(credits.may_begin());
            credits.begin(true);
        }
        assert!(!credits.may_begin());
        credits.grant(30, 100);
        assert!(!credits.may_begin(), "nobody has done what was not begun");
    }

    #[test]
    fn code_31_ends_all_limits() {
        let mut credits = Credits::new(true);
        credits.begin(true);
        credits.grant(31, 1);
        for _ in 0..100 {
            assert!(credits.may_begin());
            credits.begin(true);
        }
        assert!(Credits::new(false).may_begin());
    }
}
