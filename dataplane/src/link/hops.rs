//! Where frames to a peer go.
//!
//! Who has the interface, the kernel or the ports, has the routes and asks the link for neighbours.
//! A port asks that once, and again from time to time, as routes change and hosts move. What the
//! kernel never sends to itself it does not confirm by itself either: what has become stale is
//! solicited. The headers of frames to a peer are kept with the answer, and last as long.

use super::LinkInterface;
use super::headers::Headers;
use crate::errno::Errno;
use crate::routes::{Neighbour, NeighbourEntry, NextHop, RouteError, Routes};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};
use trunkline_wire::Mac;

/// How long it is relied upon that a neighbour is known.
const KNOWN_FOR: Duration = Duration::from_secs(2);
/// How long nothing else is asked of a neighbour that is not known yet: twice as long each time, up
/// to the latter. Who says that it is somebody else makes many silent ones.
pub(super) const ASKED_FOR: Duration = Duration::from_millis(1);
const MOST_ASKED_FOR: Duration = Duration::from_millis(64);
/// How long it is relied upon that there is no way, or no answer.
const GONE_FOR: Duration = Duration::from_millis(100);
/// What who sends to a neighbour that does not answer is told.
pub(super) const SILENT: Errno = Errno::new(libc::EHOSTUNREACH);
/// Peers that are told at once of another address of ours: each may take three system calls.
const TOLD: usize = 256;
/// Peers that are kept: beyond that all are asked for again.
const MOST: usize = 16_384;

/// Where frames to a peer go.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Way<To> {
    /// To this address of the link, or with these headers.
    To(To),
    /// The neighbour is being asked for.
    Asked,
    /// Nowhere: what the system would say to who sends there.
    Nowhere(Errno),
}

impl<To> Way<To> {
    fn map<Other>(self, to: impl FnOnce(To) -> Other) -> Way<Other> {
        match self {
            Self::To(there) => Way::To(to(there)),
            Self::Asked => Way::Asked,
            Self::Nowhere(error) => Way::Nowhere(error),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Hop {
    peer: IpAddr,
    way: Way<Headers>,
    until: Instant,
    /// How long nothing is asked of it next, if it still is being asked for.
    asked_for: Duration,
    /// Where frames went last, unless nobody answers there any more.
    last: Option<Mac>,
}

/// The ways from one address of ours by one interface.
#[derive(Debug)]
pub(super) struct Hops {
    routes: Box<dyn Routes + Send>,
    interface: u32,
    address: IpAddr,
    mac: Mac,
    known: Vec<Hop>,
    /// Where each peer is among them.
    places: HashMap<IpAddr, usize>,
    /// The place that was asked for last: most frames go where the one before went.
    recent: usize,
}

impl Hops {
    /// As `routes` knows them, from `address` by `interface`.
    pub(super) fn new(
        routes: Box<dyn Routes + Send>,
        address: IpAddr,
        interface: &LinkInterface,
    ) -> Self {
        Self {
            routes,
            interface: interface.index,
            address,
            mac: interface.mac,
            known: Vec::new(),
            places: HashMap::new(),
            recent: 0,
        }
    }

    /// The interface has another address of the link from now on. Peers learn of that as they are
    /// asked for: else they would send to the old one until they doubt it.
    pub(super) fn readdress(&mut self, mac: Mac, now: Instant) {
        self.mac = mac;
        let peers: Vec<_> = self.known.iter().rev().map(|hop| hop.peer).collect();
        self.forget();
        for peer in peers.into_iter().take(TOLD) {
            self.ask(peer, None, now);
        }
    }

    fn forget(&mut self) {
        self.known.clear();
        self.places.clear();
    }

    /// Where frames to `peer`, an address of the family of ours, go at the moment.
    #[inline]
    pub(super) fn way(&mut self, peer: IpAddr, now: Instant) -> &Way<Headers> {
        let recent = self.known.get(self.recent);
        if !recent.is_some_and(|hop| hop.peer == peer && now < hop.until) {
            self.recent = self.find(peer, now);
        }
        &self.known[self.recent].way
    }

    /// The place of an answer that can be relied upon.
    #[inline(never)]
    fn find(&mut self, peer: IpAddr, now: Instant) -> usize {
        match self.places.get(&peer) {
            Some(place) if now < self.known[*place].until => *place,
            place => self.ask(peer, place.copied(), now),
        }
    }

    #[cold]
    fn ask(&mut self, peer: IpAddr, place: Option<usize>, now: Instant) -> usize {
        let found = self
            .look(peer)
            .unwrap_or_else(|error| Way::Nowhere(errno(&error)));
        let before = place.map(|place| &self.known[place]);
        let asked_for = before.map_or(ASKED_FOR, |hop| hop.asked_for);
        let (relied_upon, asked_for) = match found {
            Way::To(_) => (KNOWN_FOR, ASKED_FOR),
            Way::Asked => (asked_for, MOST_ASKED_FOR.min(2 * asked_for)),
            Way::Nowhere(_) => (GONE_FOR, ASKED_FOR),
        };
        let before = before.and_then(|hop| hop.last);
        let (way, last) = match (found, before) {
            (Way::To(mac), _) => (found, Some(mac)),
            // The kernel forgets neighbours with a link that goes down, and asks for them once a
            // second: frames need not wait for that.
            (Way::Asked, Some(mac)) => (Way::To(mac), before),
            (Way::Nowhere(error), _) if error == SILENT => (found, None),
            _ => (found, before),
        };
        let hop = Hop {
            peer,
            way: way.map(|mac| Headers::new([self.mac, mac], [self.address, peer])),
            until: now + relied_upon,
            asked_for,
            last,
        };
        self.keep(hop, place)
    }

    /// Keeps a hop in its place, or in a new one, and says which.
    fn keep(&mut self, hop: Hop, place: Option<usize>) -> usize {
        if let Some(place) = place {
            self.known[place] = hop;
            return place;
        }
        if self.known.len() >= MOST {
            self.forget();
        }
        self.places.insert(hop.peer, self.known.len());
        self.known.push(hop);
        self.known.len() - 1
    }

    fn look(&mut self, peer: IpAddr) -> Result<Way<Mac>, RouteError> {
        let to = SocketAddr::new(peer, 0);
        let hop = self.routes.next_hop(to)?;
        if hop.interface != self.interface {
            return Ok(Way::Nowhere(SILENT));
        }
        if !hop.has_neighbour {
            // A loop: whoever is there takes all that comes.
            return Ok(Way::To(Mac::default()));
        }
        let entry = self.routes.entry(&hop)?;
        self.judge(to, &hop, entry)
    }

    fn judge(
        &mut self,
        to: SocketAddr,
        hop: &NextHop,
        entry: NeighbourEntry,
    ) -> Result<Way<Mac>, RouteError> {
        debug_assert!(hop.has_neighbour, "who has none is not asked for");
        match (entry.state, entry.mac) {
            (Neighbour::Known, Some(mac)) => {
                if entry.is_stale {
                    self.routes.solicit(to)?;
                }
                Ok(Way::To(mac))
            }
            (Neighbour::Silent, _) => {
                self.routes.solicit(to)?;
                Ok(Way::Nowhere(SILENT))
            }
            (Neighbour::Asked, _) => Ok(Way::Asked),
            (Neighbour::Unknown | Neighbour::Known, _) => {
                self.routes.solicit(to)?;
                Ok(Way::Asked)
            }
        }
    }
}

/// What the system would say to who sends where there is no way.
fn errno(error: &RouteError) -> Errno {
    let code = match error {
        RouteError::NoRoute { source, .. } | RouteError::System { source, .. } => {
            source.raw_os_error()
        }
        RouteError::Down { .. } => Some(libc::ENETDOWN),
        RouteError::NotOneHost(_) => Some(libc::EACCES),
        RouteError::Family { .. } | RouteError::Interface { .. } => Some(libc::EINVAL),
    };
    Errno::new(code.unwrap_or(libc::EHOSTUNREACH))
}

#[cfg(test)]
mod tests;
