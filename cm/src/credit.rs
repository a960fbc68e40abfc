//! How much is said to whom nothing proves to be there.
//!
//! The source of a datagram can be forged. So that a node is no use for flooding others, at most
//! three times what came from an address goes to it until it has answered something that it could
//! not have guessed. All management datagrams have one size, so datagrams are counted. The last one
//! is kept for the word that this end gives up, without which the peer might wait, or take for
//! standing what is over.

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

    /// Whether one may be sent, behind which another one may follow; it is counted.
    pub(crate) const fn spend(&mut self) -> bool {
        self.spend_but(1)
    }

    /// Whether one may be sent that is the last; it is counted.
    pub(crate) const fn spend_last(&mut self) -> bool {
        self.spend_but(0)
    }

    const fn spend_but(&mut self, kept: u8) -> bool {
        match self {
            Self::Left(left) if *left <= kept => false,
            Self::Left(left) => {
                *left -= 1;
                true
            }
            Self::Proved => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_go_out_for_one_that_came_in_until_the_address_is_proved() {
        let mut credit = Credit::FIRST;
        let spend = |credit: &mut Credit| {
            let before = (0..1_000).take_while(|_| credit.spend()).count();
            before + (0..1_000).take_while(|_| credit.spend_last()).count()
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
        let spent = [credit.spend(), credit.spend(), credit.spend()];
        assert_eq!(spent, [true, true, false]);
        assert!(credit.spend_last() && !credit.spend_last());
    }
}
