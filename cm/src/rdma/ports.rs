//! Which ID has which port.

use super::event::{Error, PortSpace};
use super::workers::{Listener, keeper};
use super::{Id, Random};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::ops::RangeInclusive;
use trunkline_wire::Worker;

/// Ports that are picked when none is asked for; those of Linux.
const EPHEMERAL: RangeInclusive<u16> = 32_768..=60_999;

/// One ID's claim on a port.
#[derive(Clone, Copy, Debug)]
struct Claim {
    id: Id,
    address: IpAddr,
    /// Shares with others that do too, while none listens.
    reuse: bool,
    v6_only: bool,
    listens: bool,
}

impl Claim {
    /// Whether packets to one address could be meant for both.
    fn overlaps(&self, other: &Self) -> bool {
        let covers = |wide: &Self, narrow: &Self| {
            wide.address.is_unspecified()
                && (wide.address.is_ipv4() == narrow.address.is_ipv4()
                    || wide.address.is_ipv6() && !wide.v6_only)
        };
        self.address == other.address || covers(self, other) || covers(other, self)
    }

    fn conflicts(&self, other: &Self) -> bool {
        let shared = self.reuse && other.reuse && !self.listens && !other.listens;
        self.overlaps(other) && !shared
    }

    /// How well it fits a connection to `address`; `None` when not at all.
    fn fit(&self, address: IpAddr) -> Option<u8> {
        if self.address == address {
            Some(0)
        } else if !self.address.is_unspecified() {
            None
        } else if self.address.is_ipv4() == address.is_ipv4() {
            Some(1)
        } else {
            (self.address.is_ipv6() && !self.v6_only).then_some(2)
        }
    }
}

/// The ports of all spaces: all claims on those that this worker keeps, which are those whose low
/// bits are its own, and listeners on any.
#[derive(Debug)]
pub(super) struct Ports {
    worker: Worker,
    claims: BTreeMap<(PortSpace, u16), Vec<Claim>>,
}

impl Ports {
    pub(super) const fn new(worker: Worker) -> Self {
        Self {
            worker,
            claims: BTreeMap::new(),
        }
    }

    /// Bytes of all claims.
    pub(super) fn state_bytes(&self) -> usize {
        let claims = self
            .claims
            .values()
            .map(|claims| size_of_val(claims.as_slice()));
        self.claims.len() * size_of::<((PortSpace, u16), Vec<Claim>)>() + claims.sum::<usize>()
    }

    /// Gives `id` the address, whose port this worker keeps; port 0 is replaced by a free one.
    pub(super) fn bind(
        &mut self,
        id: Id,
        space: PortSpace,
        address: SocketAddr,
        (reuse, v6_only): (bool, bool),
        random: &mut impl Random,
    ) -> Result<SocketAddr, Error> {
        let claim = Claim {
            id,
            address: address.ip(),
            reuse,
            v6_only,
            listens: false,
        };
        let port = match address.port() {
            0 => self.pick(space, random).ok_or(Error::NoPort)?,
            port => port,
        };
        let mut address = address;
        address.set_port(port);
        let claims = self.claims.entry((space, port)).or_default();
        if claims.iter().any(|other| claim.conflicts(other)) {
            return Err(Error::AddressInUse(address));
        }
        claims.push(claim);
        Ok(address)
    }

    fn pick(&self, space: PortSpace, random: &mut impl Random) -> Option<u16> {
        let (low, high) = (*EPHEMERAL.start(), *EPHEMERAL.end());
        let start = (random.next() % u64::from(high - low + 1)) as u16;
        let mut ports = (low + start..=high).chain(low..low + start);
        let free = |port| !self.claims.contains_key(&(space, port));
        let kept = |port| keeper(port, self.worker.of()) == self.worker.index();
        ports.find(|&port| kept(port) && free(port))
    }

    /// Makes a bound ID the one that listens.
    pub(super) fn claim_listening(
        &mut self,
        id: Id,
        space: PortSpace,
        address: SocketAddr,
    ) -> Result<(), Error> {
        let claims = self.of(space, address.port());
        let at = claims.iter().position(|claim| claim.id == id);
        let at = at.expect("a bound ID has its claim");
        let mut claim = claims[at];
        claim.listens = true;
        let mut others = claims.iter().filter(|other| other.id != id);
        if others.any(|other| claim.conflicts(other)) {
            return Err(Error::AddressInUse(address));
        }
        claims[at] = claim;
        Ok(())
    }

    /// Notes one that listens, on a port that this worker keeps or another.
    pub(super) fn listen(&mut self, listener: &Listener) {
        let port = listener.local.port();
        let claims = self.claims.entry((listener.space, port)).or_default();
        if !claims.iter().any(|claim| claim.id == listener.id) {
            claims.push(Claim {
                id: listener.id,
                address: listener.local.ip(),
                reuse: listener.reuse,
                v6_only: listener.v6_only,
                listens: true,
            });
        }
    }

    /// Gives up what `id` has here. True when it was the last that listened on the port.
    pub(super) fn release(&mut self, id: Id, space: PortSpace, port: u16) -> bool {
        let Some(claims) = self.claims.get_mut(&(space, port)) else {
            return false;
        };
        let Some(at) = claims.iter().position(|claim| claim.id == id) else {
            return false;
        };
        let claim = claims.swap_remove(at);
        let last = claim.listens && !claims.iter().any(|claim| claim.listens);
        if claims.is_empty() {
            self.claims.remove(&(space, port));
        }
        last
    }

    /// Who listens for connections to an address: the most exact one.
    pub(super) fn listener(&self, space: PortSpace, address: SocketAddr) -> Option<Id> {
        let claims = self.claims.get(&(space, address.port()))?;
        let listening = claims.iter().filter(|claim| claim.listens);
        let fitting = listening.filter_map(|claim| Some((claim.fit(address.ip())?, claim.id)));
        fitting.min_by_key(|&(fit, _)| fit).map(|(_, id)| id)
    }

    fn of(&mut self, space: PortSpace, port: u16) -> &mut Vec<Claim> {
        let claims = self.claims.get_mut(&(space, port));
        claims.expect("a bound port has claims")
    }
}
