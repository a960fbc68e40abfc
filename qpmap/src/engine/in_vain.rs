//! Connections that carry a flow's handshake and none of its requests.
//!
//! A path may carry small packets and drop all others without a word, or a peer may agree to
//! everything and execute nothing. Then each connection gets lost after a while, the next one
//! stands at once, and something is heard on each: no silence is ever long enough to end the flow.

/// Weight of a connection that got lost and had carried nothing of a flow's first request, or all
/// of it without an answer.
const NOTHING: u8 = 8;
/// Weight of one that had carried a part. A long message begins anew on each, so that these must
/// end, too.
const PART: u8 = 1;
/// Three of the first kind are enough. It is only for the time of its QP to be over then, which one
/// outage may take.
const MOST: u8 = 3 * NOTHING;
/// Nothing that the present connection carries counts any more.
const HOPELESS: u8 = 2 * MOST;
/// The first packet of the request had not arrived when the connection got lost.
const NOT_FIRST: u8 = 1 << 7;
/// Some packet of it had not.
const NOT_ALL: u8 = 1 << 6;
/// What is left is the weight.
const WEIGHT: u8 = NOT_ALL - 1;

/// Connections that got lost since a request of the flow was completed, or refused by a receiver
/// that is not ready: the peer had it then.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[cfg_attr(test, derive(Hash))]
pub(super) struct InVain(u8);

impl InVain {
    pub(super) const NONE: Self = Self(0);

    /// A packet of the flow's first request, sent from `offset` on, goes down with its connection.
    pub(super) const fn missed(&mut self, offset: u32) {
        self.0 |= NOT_ALL | if offset == 0 { NOT_FIRST } else { 0 };
    }

    /// Whether the connection that goes down has carried a part of the request; `rest`: not all of
    /// it was sent.
    pub(super) const fn had_a_part(self, rest: bool) -> bool {
        self.0 & NOT_FIRST == 0 && (rest || self.0 & NOT_ALL != 0)
    }

    /// A connection got lost on which the peer had agreed to what the flow sends, while it waited
    /// for the end of a request; `part`: of which it had carried a part.
    pub(super) fn lost(&mut self, part: bool) {
        let by = if part { PART } else { NOTHING };
        self.0 = ((self.0 & WEIGHT) + by).min(WEIGHT);
    }

    /// The same where the flow waited for nothing, or the peer's receiver was not ready.
    pub(super) const fn rested(&mut self) {
        self.0 &= WEIGHT;
    }

    /// The peer had a request.
    #[inline]
    pub(super) const fn end(&mut self) {
        *self = Self::NONE;
    }

    /// Whether another connection will be of no use, either, unless it carries a part of the
    /// request.
    pub(super) const fn is_certain(self) -> bool {
        self.0 & WEIGHT >= MOST
    }

    /// Whether a part says nothing any more: so many connections were lost.
    pub(super) const fn is_hopeless(self) -> bool {
        self.0 & WEIGHT >= HOPELESS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_connections_in_a_row_are_certain_until_a_request_arrives() {
        let mut in_vain = InVain::NONE;
        for lost in 1..1000 {
            in_vain.lost(false);
            assert_eq!(in_vain.is_certain(), lost >= 3, "{lost}");
        }
        in_vain.end();
        assert_eq!(in_vain, InVain::NONE);
    }

    #[test]
    fn two_dozen_are_certain_of_which_each_has_carried_a_part() {
        let mut in_vain = InVain::NONE;
        for lost in 1..1000 {
            in_vain.lost(true);
            assert_eq!(in_vain.is_certain(), lost >= 24, "{lost}");
            assert_eq!(in_vain.is_hopeless(), lost >= 48, "{lost}");
        }
    }

    #[test]
    fn a_part_has_arrived_where_the_first_packet_has_and_another_has_not() {
        let after = |missed: &[u32]| {
            let mut in_vain = InVain::NONE;
            in_vain.lost(false);
            missed.iter().for_each(|offset| in_vain.missed(*offset));
            in_vain
        };
        for (missed, rest, part) in [
            (&[][..], false, false),
            (&[], true, true),
            (&[0], true, false),
            (&[0, 1024], false, false),
            (&[1024], false, true),
            (&[1024, 2048], true, true),
        ] {
            let mut in_vain = after(missed);
            assert_eq!(in_vain.had_a_part(rest), part, "{missed:?} {rest}");
            in_vain.rested();
            assert_eq!(in_vain, after(&[]), "what was missed is over");
        }
    }
}
