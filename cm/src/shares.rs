//! What each address of a peer makes a node keep, and how much that may be.
//!
//! An address may have half of what is free: whoever takes all it can get leaves room for others.
//! Of IPv6 a host has a whole /64 to take addresses from, so the same holds for each /64; within it
//! an address may have half of what is left to the /64.

use alloc::collections::BTreeMap;
use core::net::IpAddr;

/// What is held in one name.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Held {
    /// Requests that are not confirmed.
    pub(crate) half_open: u32,
    /// Connections that it asked for, in any state, those included.
    pub(crate) connections: u32,
    /// Connections at which it has shown that it reads what is sent to it, whoever asked for them.
    /// Only a manager of ordinary hosts counts them.
    pub(crate) proofs: u32,
}

/// Bits of an IPv6 address that name a network.
const NETWORK_BITS: u32 = 64;

/// An address (128 bits count) or an IPv6 network (64 do).
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Name {
    bits: u128,
    length: u8,
}

impl Name {
    fn of(address: IpAddr) -> Self {
        let bits = match address.to_canonical() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
            IpAddr::V6(v6) => v6.to_bits(),
        };
        Self { bits, length: 128 }
    }

    /// The network of an IPv6 address.
    fn network(address: IpAddr) -> Option<Self> {
        let IpAddr::V6(v6) = address.to_canonical() else {
            return None;
        };
        Some(Self {
            bits: v6.to_bits() >> NETWORK_BITS << NETWORK_BITS,
            length: NETWORK_BITS as u8,
        })
    }
}

/// What all addresses hold. There is an entry while something is held.
#[derive(Debug, Default)]
pub(crate) struct Shares(BTreeMap<Name, Held>);

impl Shares {
    pub(crate) fn of_address(&self, address: IpAddr) -> Held {
        self.get(Name::of(address))
    }

    /// What the network of an IPv6 address holds.
    fn of_network(&self, address: IpAddr) -> Option<Held> {
        Name::network(address).map(|name| self.get(name))
    }

    /// Whether `address` has its share of something of which `left` are free, and holds `held`.
    pub(crate) fn is_spent(&self, address: IpAddr, left: u32, held: impl Fn(&Held) -> u32) -> bool {
        let own = held(&self.of_address(address));
        match self.of_network(address).map(|network| held(&network)) {
            None => own >= left,
            // Each that the network takes leaves one less and is one more: it may take this many.
            Some(network) => own >= left.saturating_sub(network).div_ceil(2),
        }
    }

    /// Changes what an address holds, and its network with it.
    pub(crate) fn update(&mut self, address: IpAddr, change: impl Fn(&mut Held)) {
        for name in [Some(Name::of(address)), Name::network(address)] {
            let Some(name) = name else { continue };
            let held = self.0.entry(name).or_default();
            change(held);
            if *held == Held::default() {
                self.0.remove(&name);
            }
        }
    }

    /// Addresses with something half-open.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn state_bytes(&self) -> usize {
        self.0.len() * size_of::<(Name, Held)>()
    }

    fn get(&self, name: Name) -> Held {
        self.0.get(&name).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::{Ipv4Addr, Ipv6Addr};

    const ALL: u32 = 1024;

    /// Takes connections for `address` until it has its share; how many it got.
    fn take_all(shares: &mut Shares, taken: &mut u32, address: IpAddr) -> u32 {
        let before = *taken;
        while !shares.is_spent(address, ALL - *taken, |held| held.connections) {
            shares.update(address, |held| held.connections += 1);
            *taken += 1;
        }
        *taken - before
    }

    fn v6(network: u16, host: u16) -> IpAddr {
        Ipv6Addr::new(0x2001, 0xdb8, 0, network, 0, 0, 0, host).into()
    }

    #[test]
    fn each_address_gets_half_of_what_the_others_left() {
        let (mut shares, mut taken) = (Shares::default(), 0);
        let hosts = [1, 2, 3].map(|host| Ipv4Addr::new(10, 0, 0, host).into());
        let got = hosts.map(|host| take_all(&mut shares, &mut taken, host));
        assert_eq!(got, [512, 256, 128]);
    }

    #[test]
    fn all_addresses_of_a_network_together_get_half_and_one_leaves_room_for_its_neighbours() {
        let (mut shares, mut taken) = (Shares::default(), 0);
        let first = take_all(&mut shares, &mut taken, v6(1, 1));
        let second = take_all(&mut shares, &mut taken, v6(1, 2));
        assert_eq!((first, second), (256, 128));
        (3..2_000).for_each(|host| {
            take_all(&mut shares, &mut taken, v6(1, host));
        });
        assert_eq!(taken, 512, "a network has half of all");
        assert_eq!(take_all(&mut shares, &mut taken, v6(2, 1)), 128);
    }

    #[test]
    fn what_holds_nothing_is_forgotten() {
        let mut shares = Shares::default();
        for address in [v6(1, 1), Ipv4Addr::LOCALHOST.into()] {
            shares.update(address, |held| held.half_open += 1);
            assert_eq!(shares.of_address(address).half_open, 1);
            shares.update(address, |held| held.half_open -= 1);
        }
        assert_eq!(shares.len(), 0);
    }

    #[test]
    fn an_ipv4_address_mapped_into_ipv6_is_the_same() {
        let mut shares = Shares::default();
        let v4 = Ipv4Addr::new(10, 0, 0, 1);
        shares.update(v4.into(), |held| held.connections += 1);
        let mapped = IpAddr::from(v4.to_ipv6_mapped());
        assert_eq!(shares.of_address(mapped).connections, 1);
    }
}
