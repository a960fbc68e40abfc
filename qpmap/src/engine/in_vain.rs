//! Connections that carry a flow's handshake and none of its requests.
//!
//! A path may carry small packets and drop all others without a word, or a peer may agree to
//! everything and execute nothing. Then each connection gets lost after a while, the next one
//! stands at once, and something is heard on each: no silence is ever long enough to end the flow.

/// Connections, one after the other, that got lost under the same first request. It is only for the
/// time of its QP to be over then, which one outage may take.
const MOST: u8 = 3;

/// How many connections got lost since a request of the flow was completed, or refused by a
/// receiver that is not ready: the peer had it then.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[cfg_attr(test, derive(Hash))]
pub(super) struct InVain(u8);

impl InVain {
    pub(super) const NONE: Self = Self(0);

    /// One got lost on which the peer had agreed to what the flow sends, while it waited for the
    /// end of a request.
    pub(super) const fn lost(&mut self) {
        self.0 = self.0.saturating_add(1);
    }

    /// The peer had a request.
    #[inline]
    pub(super) const fn end(&mut self) {
        *self = Self::NONE;
    }

    /// Whether another connection will be of no use, either.
    pub(super) const fn is_certain(self) -> bool {
        self.0 >= MOST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_connections_in_a_row_are_certain_until_a_request_arrives() {
        let mut in_vain = InVain::NONE;
        for lost in 1..1000 {
            in_vain.lost();
            assert_eq!(in_vain.is_certain(), lost >= 3, "{lost}");
        }
        in_vain.end();
        assert_eq!(in_vain, InVain::NONE);
    }
}
