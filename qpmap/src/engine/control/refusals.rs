//! How often peers are refused BINDs: whoever searches for numbers of QPs learns one with each
//! refusal.

use crate::hash::{Keyed, WideMap, bits};
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use trunkline_conn::time::{Instant, SECOND};
use trunkline_wire::Gid;

/// Refusals that an address gets at once, and in a second.
const REFUSALS: u64 = 4096;
const REFUSALS_PER_SECOND: u64 = 1000;
/// How much more an IPv6 network has for all its addresses: one host may have any of them.
const OF_NETWORK: u64 = 2;
/// Bits of an IPv6 address that name a network.
const NETWORK_BITS: u32 = 64;
/// Names that are looked through for those which need not be remembered any more.
const CROWD: usize = 1024;

/// Who is refused something: an address, or an IPv6 network.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Name {
    Address(Gid),
    Network(u128),
}

impl Name {
    /// All that an address belongs to.
    fn of(address: Gid) -> impl Iterator<Item = Self> + Clone {
        let network = match address.address().to_canonical() {
            IpAddr::V4(_) => None,
            IpAddr::V6(v6) => Some(Self::Network(v6.to_bits() >> NETWORK_BITS)),
        };
        std::iter::once(Self::Address(address)).chain(network)
    }

    /// What a refusal costs it, in ns of the time that pays for it.
    const fn price(self) -> u64 {
        match self {
            Self::Address(_) => Allowance::PRICE,
            Self::Network(_) => Allowance::PRICE / OF_NETWORK,
        }
    }
}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u128(match *self {
            Self::Address(address) => bits(address),
            Self::Network(network) => network,
        });
    }
}

/// Refusals that may still be given, in ns of the time that they take to grow again.
#[derive(Clone, Copy, Debug)]
struct Allowance {
    left: u64,
    since: Instant,
}

impl Allowance {
    const PRICE: u64 = SECOND / REFUSALS_PER_SECOND;
    const FULL: u64 = REFUSALS * Self::PRICE;

    const fn full(since: Instant) -> Self {
        let left = Self::FULL;
        Self { left, since }
    }

    fn refill(&mut self, now: Instant) {
        if now > self.since {
            self.left = (self.left + now.since(self.since)).min(Self::FULL);
            self.since = now;
        }
    }

    fn has(&mut self, now: Instant, price: u64) -> bool {
        self.refill(now);
        self.left >= price
    }

    const fn spend(&mut self, price: u64) {
        self.left = self.left.saturating_sub(price);
    }
}

/// What everybody has left.
#[derive(Debug)]
pub(crate) struct Refusals {
    /// Of those that have less than all.
    left: WideMap<Name, Allowance>,
    /// Names beyond which some are forgotten.
    crowd: usize,
    /// What all who have not proved their address share.
    unproved: Allowance,
}

impl Refusals {
    /// Nobody was refused anything yet. `hash` is of addresses, which peers choose.
    pub(crate) fn new(hash: Keyed) -> Self {
        Self {
            left: WideMap::with_hasher(hash),
            crowd: CROWD,
            unproved: Allowance::full(Instant::ZERO),
        }
    }

    /// Whether `address` may still learn of QPs that it has nothing to do with.
    pub(crate) fn may_ask(&mut self, now: Instant, address: Gid) -> bool {
        Name::of(address).all(|name| {
            let left = self.left.get_mut(&name);
            left.is_none_or(|left| left.has(now, name.price()))
        })
    }

    /// It learned of one.
    pub(crate) fn spend(&mut self, now: Instant, address: Gid) {
        if self.left.len() >= self.crowd {
            self.left.retain(|_, left| {
                left.refill(now);
                left.left < Allowance::FULL
            });
            self.crowd = CROWD.max(2 * self.left.len());
        }
        for name in Name::of(address) {
            let left = self.left.entry(name).or_insert(Allowance::full(now));
            left.refill(now);
            left.spend(name.price());
        }
    }

    /// Whether somebody who has not proved its address may learn of QPs that it has nothing to do
    /// with.
    pub(crate) fn may_guess(&mut self, now: Instant) -> bool {
        self.unproved.has(now, Allowance::PRICE)
    }

    /// Such a one named a QP that there is not.
    pub(crate) fn guessed_wrong(&mut self, now: Instant) {
        self.unproved.refill(now);
        self.unproved.spend(Allowance::PRICE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::BuildHasher;
    use std::net::{Ipv4Addr, Ipv6Addr};

    const NOW: Instant = Instant::from_nanos(SECOND);

    fn v4(n: u32) -> Gid {
        IpAddr::from(Ipv4Addr::from_bits(0x0a00_0000 + n)).into()
    }

    fn v6(network: u128, host: u128) -> Gid {
        IpAddr::from(Ipv6Addr::from_bits(
            0x2001_0db8 << 96 | network << 64 | host,
        ))
        .into()
    }

    /// Refusals that these addresses get at `now`, one after the other.
    fn refused(refusals: &mut Refusals, now: Instant, of: &[Gid]) -> u64 {
        let mut count = 0;
        for &address in of {
            while refusals.may_ask(now, address) {
                refusals.spend(now, address);
                count += 1;
            }
        }
        count
    }

    #[test]
    fn refusals_of_an_address_are_limited_in_rate_and_those_of_others_are_not() {
        let mut refusals = Refusals::new(Keyed::new([1, 2]));
        let mut refused = |now, of| refused(&mut refusals, now, &[of]);
        assert_eq!(refused(NOW, v4(1)), REFUSALS);
        assert_eq!(refused(NOW + SECOND, v4(1)), REFUSALS_PER_SECOND);
        assert_eq!(refused(NOW + SECOND, v4(2)), REFUSALS);
        assert_eq!(refused(NOW + 100 * SECOND, v4(1)), REFUSALS);
    }

    #[test]
    fn all_addresses_of_a_network_get_as_many_refusals_as_two_of_them() {
        let mut refusals = Refusals::new(Keyed::new([1, 2]));
        let all: Vec<_> = (0..100).map(|host| v6(1, host)).collect();
        assert_eq!(refused(&mut refusals, NOW, &all[..1]), REFUSALS);
        assert_eq!(refused(&mut refusals, NOW, &all), REFUSALS);
        let then = NOW + SECOND;
        assert_eq!(refused(&mut refusals, then, &all), 2 * REFUSALS_PER_SECOND);
        assert_eq!(refused(&mut refusals, then, &[v6(2, 0)]), REFUSALS);
    }

    #[test]
    fn names_that_have_their_credit_back_are_forgotten() {
        let mut refusals = Refusals::new(Keyed::new([1, 2]));
        for n in 0..3000 {
            let now = NOW + u64::from(n) * 10 * SECOND;
            refusals.spend(now, v4(n));
        }
        assert!(refusals.left.len() <= CROWD);
    }

    #[test]
    fn names_are_looked_through_ever_less_often_the_more_there_are() {
        let mut refusals = Refusals::new(Keyed::new([1, 2]));
        (0..5000).for_each(|n| refusals.spend(NOW, v4(n)));
        assert!(refusals.crowd > refusals.left.len());
    }

    #[test]
    fn networks_fall_into_different_places() {
        let hash = Keyed::new([1, 2]);
        let of = |network| hash.hash_one(Name::Network(network));
        assert_ne!(of(1), of(2));
    }

    #[test]
    fn what_a_wrong_guess_costs_is_taken_from_what_there_is_by_then() {
        let mut refusals = Refusals::new(Keyed::new([1, 2]));
        let later = NOW + 4 * SECOND;
        for now in [NOW, later] {
            (0..REFUSALS).for_each(|_| refusals.guessed_wrong(now));
        }
        assert!(!refusals.may_guess(later));
    }

    #[test]
    fn who_proved_no_address_shares_one_allowance() {
        let mut refusals = Refusals::new(Keyed::new([1, 2]));
        let mut guesses = 0;
        while refusals.may_guess(NOW) {
            refusals.guessed_wrong(NOW);
            guesses += 1;
        }
        assert_eq!(guesses, REFUSALS);
        assert!(refusals.may_ask(NOW, v4(1)), "that is nobody's who has one");
    }
}
