//! Credits: messages that come only where a receive waits for them.

use std::fmt;

/// Receives at both ends of a connected QP, for protocols whose messages come only where a receive
/// waits, so that none is answered "receiver not ready".
///
/// Each end says at first how many receives it has, and with every message how many it has posted
/// since the beginning, modulo 2^16. It sends while the peer's receives, as far as it was told,
/// outnumber its messages; [`RESERVE`](Self::RESERVE) of them are left to messages that grant some,
/// so that neither end waits for the other for ever: docs/stream-format.md.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Credits {
    /// Receives of this end.
    own: u16,
    /// Those that were posted, and those that the peer was told of.
    posted: u16,
    told: u16,
    /// Receives of the peer.
    peer: u16,
    /// Those that it has told of, and those taken by messages to it.
    granted: u16,
    sent: u16,
}

/// The peer has granted more receives than it has, or fewer than before.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Overgrant;

impl Overgrant {
    /// The same in words.
    pub const WHY: &str = "it grants more receives than it has, or fewer than before";
}

impl fmt::Display for Overgrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::WHY)
    }
}

impl std::error::Error for Overgrant {}

impl Credits {
    /// Receives of the peer that all messages leave to those which do nothing but grant some.
    pub const RESERVE: u16 = 1;

    /// Returns those of a connection where this end has posted `own` receives and the peer `peer`.
    pub const fn new(own: u16, peer: u16) -> Self {
        Self {
            own,
            posted: own,
            told: own,
            peer,
            granted: peer,
            sent: 0,
        }
    }

    /// Returns the messages that the peer has receives for.
    pub const fn room(&self) -> u16 {
        self.granted.wrapping_sub(self.sent)
    }

    /// Takes up that the peer has posted `posted` receives since the beginning.
    ///
    /// # Errors
    /// That cannot be: it has at most as many as it said, of which those that messages lie in are
    /// taken; and what it has granted it does not take back.
    pub const fn take(&mut self, posted: u16) -> Result<(), Overgrant> {
        let more = posted.wrapping_sub(self.granted);
        if more > self.peer - self.room() {
            return Err(Overgrant);
        }
        self.granted = posted;
        Ok(())
    }

    /// Returns the count that the next message tells: of the receives posted here.
    pub const fn posted(&self) -> u16 {
        self.posted
    }

    /// A message was sent, and has told that count. The peer must have [room](Self::room).
    pub const fn send(&mut self) {
        self.told = self.posted;
        self.sent = self.sent.wrapping_add(1);
    }

    /// Returns how many more messages the peer may send: it was told of receives for them, and
    /// `taken` are not posted again yet. `None`: it has sent more than it was told of.
    pub const fn left_to_peer(&self, taken: u16) -> Option<u16> {
        match self.own.checked_sub(self.posted.wrapping_sub(self.told)) {
            Some(told) => told.checked_sub(taken),
            None => None,
        }
    }

    /// A receive was posted again.
    pub const fn repost(&mut self) {
        self.posted = self.posted.wrapping_add(1);
    }

    /// Whether the peer has sent more messages than it was told of receives: where others receive
    /// from the same SRQ, it took theirs.
    pub const fn is_overrun(&self) -> bool {
        self.left_to_peer(0).is_none()
    }

    /// Whether the peer has not heard of receives that are worth a message: that takes one itself.
    pub const fn owes(&self) -> bool {
        self.posted.wrapping_sub(self.told) >= self.own / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_what_was_granted_less_what_was_sent() {
        let mut credits = Credits::new(8, 4);
        // The counts wrap around.
        for round in 0..40_000_u16 {
            assert_eq!(credits.room(), 4);
            (0..4).for_each(|_| credits.send());
            assert_eq!(credits.room(), 0);
            assert_eq!(credits.take((round + 2).wrapping_mul(4)), Ok(()));
        }
    }

    #[test]
    fn nobody_grants_what_he_has_not_or_takes_it_back() {
        let mut credits = Credits::new(8, 4);
        assert_eq!(credits.take(5), Err(Overgrant), "nothing was sent");
        assert_eq!(credits.take(3), Err(Overgrant));
        credits.send();
        assert_eq!(credits.take(6), Err(Overgrant));
        assert_eq!(credits.take(5), Ok(()));
        assert_eq!(credits.room(), 4);
    }

    #[test]
    fn what_is_left_to_a_peer_is_what_it_was_told_of_less_what_it_sent() {
        let mut credits = Credits::new(8, 4);
        // The counts wrap around.
        for _ in 0..20_000 {
            assert_eq!(credits.left_to_peer(0), Some(8));
            assert_eq!(credits.left_to_peer(8), Some(0));
            assert_eq!(credits.left_to_peer(9), None);
            // It was not told yet of those that were posted again.
            (0..5).for_each(|_| credits.repost());
            assert_eq!(credits.left_to_peer(3), Some(0));
            assert_eq!(credits.left_to_peer(4), None);
            credits.send();
            assert_eq!(credits.left_to_peer(3), Some(5));
        }
        (0..9).for_each(|_| credits.repost());
        assert_eq!(credits.left_to_peer(0), None);
    }

    #[test]
    fn a_peer_may_use_all_receives_that_it_was_told_of_and_no_more() {
        let mut credits = Credits::new(8, 4);
        for _ in 0..3 {
            (0..8).for_each(|_| credits.repost());
            assert!(!credits.is_overrun());
            credits.send();
        }
        (0..8).for_each(|_| credits.repost());
        assert!(!credits.is_overrun());
        credits.repost();
        assert!(credits.is_overrun());
    }

    #[test]
    fn half_of_the_receives_are_worth_a_message() {
        let mut credits = Credits::new(8, 4);
        (0..3).for_each(|_| credits.repost());
        assert!(!credits.owes());
        credits.repost();
        assert!(credits.owes());
        assert_eq!(credits.posted(), 12);
        credits.send();
        assert!(!credits.owes());
    }
}
