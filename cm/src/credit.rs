//! How much is said to whom nothing proves to be there.
//!
//! The source of a datagram can be forged. So that a node is no use for flooding others, at most
//! three times what came from an address goes to it until it has answered something that it could
//! not have guessed. All management datagrams have one size, so datagrams are counted.

/// Datagrams that may go out for each that came in.
const EACH: u8 = 3;

/// What may still be sent for one handshake.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Credit {
    /// The address has proved itself.
    Proved,
    /// So many datagrams.
    Left(u8),
}

impl Credit {
    /// A first datagram came.
    pub(crate) const FIRST: Self = Self::Left(EACH);

    /// Another datagram came.
    pub(crate) const fn earn(&mut self) {
        if let Self::Left(left) = self {
            *left = left.saturating_add(EACH);
        }
    }

    /// Whether one may be sent; it is counted.
    pub(crate) const fn spend(&mut self) -> bool {
        match self {
            Self::Proved => true,
            Self::Left(0) => false,
            Self::Left(left) => {
                *left -= 1;
                true
            }
        }
    }

    /// The same, but for the last one, which is kept for the word that this end gives up: without
    /// it the peer might take for standing what is over, where nothing else tells it.
    pub(crate) const fn spend_but_last(&mut self) -> bool {
        !matches!(self, Self::Left(1)) && self.spend()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_go_out_for_one_that_came_in_until_the_address_is_proved() {
        let mut credit = Credit::FIRST;
        let spend = |credit: &mut Credit| {
            let before = (0..1_000).take_while(|_| credit.spend_but_last()).count();
            before + (0..1_000).take_while(|_| credit.spend()).count()
        };
        assert_eq!(spend(&mut credit), 3);
        credit.earn();
        credit.earn();
        assert_eq!(spend(&mut credit), 6);
        assert_eq!(spend(&mut Credit::Proved), 2_000);
        for _ in 0..1_000 {
            credit.earn();
        }
        assert_eq!(spend(&mut credit), 255);
    }

    #[test]
    fn the_last_one_is_kept_for_the_last_word() {
        let mut credit = Credit::FIRST;
        let spent = [(); 3].map(|()| credit.spend_but_last());
        assert_eq!(spent, [true, true, false]);
        assert!(credit.spend() && !credit.spend() && !credit.spend_but_last());
    }
}
