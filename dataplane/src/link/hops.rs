//! Where frames to a peer go, as the kernel knows it.
//!
//! The kernel owns the interface: it has the routes, and asks the link for neighbours. A port that
//! goes past it asks it once, and again from time to time, as routes change and hosts move. What
//! the kernel never sends to itself it does not confirm by itself either: what has become stale is
//! solicited.

use crate::errno::Errno;
use crate::routes::{Entry, KernelRoutes, Neighbour, NextHop, RouteError, Routes};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};
use trunkline_wire::Mac;

/// How long it is relied upon that a neighbour is known.
const KNOWN_FOR: Duration = Duration::from_secs(2);
/// How long nothing else is asked of a neighbour that is not known yet.
const ASKED_FOR: Duration = Duration::from_millis(1);
/// How long it is relied upon that there is no way, or no answer.
const GONE_FOR: Duration = Duration::from_millis(100);
/// Peers that are kept: beyond that all are asked for again.
const MOST: usize = 16_384;

/// Where frames to a peer go.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Way {
    /// To this address of the link.
    To(Mac),
    /// The neighbour is being asked for.
    Asked,
    /// Nowhere: what the system would say to who sends there.
    Nowhere(Errno),
}

#[derive(Clone, Copy, Debug)]
struct Hop {
    way: Way,
    until: Instant,
}

/// The ways from one address of ours by one interface.
#[derive(Debug)]
pub(super) struct Hops {
    routes: KernelRoutes,
    interface: u32,
    known: HashMap<IpAddr, Hop>,
}

impl Hops {
    /// # Errors
    /// The kernel cannot be asked.
    pub(super) fn open(local: IpAddr, interface: u32) -> Result<Self, RouteError> {
        Ok(Self {
            routes: KernelRoutes::open(local)?,
            interface,
            known: HashMap::new(),
        })
    }

    /// Where frames to `peer` go at the moment.
    #[inline]
    pub(super) fn way(&mut self, peer: IpAddr, now: Instant) -> Way {
        match self.known.get(&peer) {
            Some(hop) if now < hop.until => hop.way,
            _ => self.ask(peer, now),
        }
    }

    #[cold]
    fn ask(&mut self, peer: IpAddr, now: Instant) -> Way {
        let way = self
            .look(peer)
            .unwrap_or_else(|error| Way::Nowhere(errno(&error)));
        let relied_upon = match way {
            Way::To(_) => KNOWN_FOR,
            Way::Asked => ASKED_FOR,
            Way::Nowhere(_) => GONE_FOR,
        };
        if self.known.len() >= MOST {
            self.known.clear();
        }
        let until = now + relied_upon;
        self.known.insert(peer, Hop { way, until });
        way
    }

    fn look(&mut self, peer: IpAddr) -> Result<Way, RouteError> {
        let to = SocketAddr::new(peer, 0);
        let hop = self.routes.next_hop(to)?;
        if hop.interface != self.interface {
            return Ok(Way::Nowhere(Errno::new(libc::EHOSTUNREACH)));
        }
        if !hop.has_neighbour {
            // A loop: whoever is there takes all that comes.
            return Ok(Way::To(Mac::default()));
        }
        let entry = self.routes.entry(&hop)?;
        self.judge(to, &hop, entry)
    }

    fn judge(&mut self, to: SocketAddr, hop: &NextHop, entry: Entry) -> Result<Way, RouteError> {
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
                Ok(Way::Nowhere(Errno::new(libc::EHOSTUNREACH)))
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
