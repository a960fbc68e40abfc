//! Finds the way to peers: by the routes and neighbours of the port.
//!
//! ```text
//!   begin --> way? --no--------------------------------------> error
//!               | yes
//!             neighbour? --known-----------------------------> resolved
//!               | unknown, or silent before we asked: solicit
//!             look again, after pauses that double
//!               | known --> resolved     silent, or time is up --> error
//! ```

use crate::error::NoConnection;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use trunkline_cm::rdma::Id;
use trunkline_conn::time::{Instant, MILLISECOND, SECOND};
use trunkline_dataplane::{Neighbour, NextHop, RouteError, Routes};
use trunkline_wire::may_be_one_host;

/// Pause before a neighbour is looked at again: the first one, and the longest.
const PAUSES: (u64, u64) = (MILLISECOND, 100 * MILLISECOND);
/// How long a way is taken for granted.
const FRESH_FOR: u64 = SECOND;
/// Ways that are remembered at once.
const MAX_WAYS: usize = 1024;

/// Why there is no way to an address.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResolveError {
    /// No route, or none from the node's address.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// The neighbour that packets would go to does not answer.
    #[error("neighbour {0} does not answer")]
    Silent(IpAddr),
    /// The neighbour that packets would go to did not answer in time.
    #[error("neighbour {0} did not answer in time")]
    Timeout(IpAddr),
    /// The path does not even carry the least path MTU.
    #[error("a path of {0} bytes is too narrow")]
    Narrow(u32),
}

/// An address that waits for its neighbour.
#[derive(Debug)]
struct Waiting {
    peer: SocketAddr,
    hop: NextHop,
    solicited: bool,
    pause_ns: u64,
    look_at: Instant,
    until: Instant,
}

/// What became of an address; the way is told where there is one to tell.
pub(crate) type Outcome = Result<Option<NextHop>, ResolveError>;

/// The addresses that are being resolved.
#[derive(Debug)]
pub(crate) struct Resolver<R> {
    local: IpAddr,
    /// `None`: nobody knows, and every address counts as resolved.
    routes: Option<R>,
    waiting: BTreeMap<Id, Waiting>,
    /// The same by the time to look at them.
    due: BTreeSet<(Instant, Id)>,
    /// Ways that were found not long ago, by address and scope.
    hops: BTreeMap<(IpAddr, u32), (NextHop, Instant)>,
    /// Addresses that are taken for one host's, each until then.
    hosts: BTreeMap<IpAddr, Instant>,
    /// When those of both are forgotten that are not fresh any more.
    tidy_at: Option<Instant>,
}

impl<R: Routes> Resolver<R> {
    /// For peers of a node at `local`.
    pub(crate) const fn new(local: IpAddr, routes: Option<R>) -> Self {
        Self {
            local,
            routes,
            waiting: BTreeMap::new(),
            due: BTreeSet::new(),
            hops: BTreeMap::new(),
            hosts: BTreeMap::new(),
            tidy_at: None,
        }
    }

    /// Resolves an address within `timeout_ns`; `None`: it is not known yet.
    pub(crate) fn begin(
        &mut self,
        now: Instant,
        id: Id,
        peer: SocketAddr,
        timeout_ns: u64,
    ) -> Option<Outcome> {
        let hop = match self.next_hop(now, peer) {
            Ok(Some(hop)) => hop,
            outcome => return Some(outcome),
        };
        let waiting = Waiting {
            peer,
            hop,
            solicited: false,
            pause_ns: PAUSES.0,
            look_at: now,
            until: now + timeout_ns,
        };
        self.look(now, id, waiting)
    }

    /// Whether nothing is known that keeps an address from being one host's. Where nobody knows the
    /// way there this remains to be seen.
    pub(crate) fn is_one_host(&mut self, now: Instant, address: IpAddr) -> bool {
        let fresh = |until: &Instant| now < *until;
        if self.hosts.get(&address).is_some_and(fresh) {
            return true;
        }
        if !may_be_one_host(address) {
            return false;
        }
        let hop = self.next_hop(now, SocketAddr::new(address, 0));
        if matches!(hop, Err(ResolveError::Route(RouteError::NotOneHost(_)))) {
            return false;
        }
        if self.hosts.len() >= MAX_WAYS {
            self.hosts.retain(|_, until| fresh(until));
        }
        // A program that connects many QPs to one peer asks once.
        if self.hosts.len() < MAX_WAYS {
            self.hosts.insert(address, now + FRESH_FOR);
            self.tidy_at.get_or_insert(now + FRESH_FOR);
        }
        true
    }

    /// What routes and neighbours say of a peer that does not answer.
    pub(crate) fn why_silent(&mut self, now: Instant, peer: IpAddr) -> NoConnection {
        let hop = self.next_hop(now, SocketAddr::new(peer, 0));
        if let (Ok(Some(hop)), Some(routes)) = (&hop, &mut self.routes)
            && let Some(interface) = routes.down(hop)
        {
            return NoConnection::LinkDown(interface);
        }
        match hop {
            Err(ResolveError::Route(RouteError::Down { interface, .. })) => {
                NoConnection::LinkDown(interface)
            }
            Err(_) => NoConnection::NoRoute,
            Ok(Some(hop)) if hop.has_neighbour => {
                let routes = self.routes.as_mut().map(|routes| routes.neighbour(&hop));
                match routes {
                    // As long as the neighbour is not known, no question has reached anybody.
                    Some(Ok(Neighbour::Silent | Neighbour::Unknown | Neighbour::Asked)) => {
                        NoConnection::NoHost
                    }
                    _ => NoConnection::Silent,
                }
            }
            Ok(_) => NoConnection::Silent,
        }
    }

    /// The way to a peer, remembered or asked for; its neighbour is known where it is remembered.
    pub(crate) fn next_hop(&mut self, now: Instant, peer: SocketAddr) -> Outcome {
        let (local, to) = (self.local, peer.ip());
        if local.is_ipv4() != to.is_ipv4() {
            return Err(RouteError::Family { local, peer: to }.into());
        }
        let Some(routes) = &mut self.routes else {
            return Ok(None);
        };
        match self.hops.get(&key(peer)) {
            Some((hop, until)) if now < *until => Ok(Some(NextHop {
                has_neighbour: false,
                ..*hop
            })),
            _ => Ok(Some(routes.next_hop(peer)?)),
        }
    }

    /// No longer of interest.
    pub(crate) fn forget(&mut self, id: Id) {
        self.take(id);
    }

    fn take(&mut self, id: Id) -> Option<Waiting> {
        let waiting = self.waiting.remove(&id)?;
        self.due.remove(&(waiting.look_at, id));
        Some(waiting)
    }

    /// Forgets what was found a while ago.
    fn tidy(&mut self, now: Instant) {
        if self.tidy_at.is_none_or(|at| at > now) {
            return;
        }
        self.hosts.retain(|_, until| now < *until);
        self.hops.retain(|_, (_, until)| now < *until);
        let left = !self.hosts.is_empty() || !self.hops.is_empty();
        self.tidy_at = left.then_some(now + FRESH_FOR);
    }

    /// Bytes of what is known, without what maps need beside their entries.
    pub(crate) fn state_bytes(&self) -> usize {
        self.waiting.len() * size_of::<(Id, Waiting)>()
            + self.due.len() * size_of::<(Instant, Id)>()
            + self.hops.len() * size_of::<((IpAddr, u32), (NextHop, Instant))>()
            + self.hosts.len() * size_of::<(IpAddr, Instant)>()
    }

    /// Looks at the neighbours whose time it is, until it is decided what became of one.
    pub(crate) fn poll(&mut self, now: Instant) -> Option<(Id, Outcome)> {
        self.tidy(now);
        while let Some(&(at, id)) = self.due.first()
            && at <= now
        {
            let waiting = self.take(id).expect("who is due waits");
            if let Some(outcome) = self.look(now, id, waiting) {
                return Some((id, outcome));
            }
        }
        None
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let due = self.due.first().map(|&(at, _)| at);
        Instant::earliest([due, self.tidy_at])
    }

    /// Looks at a neighbour; it waits on where nothing is decided.
    fn look(&mut self, now: Instant, id: Id, mut waiting: Waiting) -> Option<Outcome> {
        let routes = self.routes.as_mut().expect("somebody found the hop");
        match routes.neighbour(&waiting.hop) {
            Err(error) => return Some(Err(error.into())),
            Ok(Neighbour::Known) => {
                self.remember(now, &waiting);
                return Some(Ok(Some(waiting.hop)));
            }
            Ok(Neighbour::Silent) if waiting.solicited => {
                return Some(Err(unless_down(routes, &waiting, ResolveError::Silent)));
            }
            Ok(Neighbour::Unknown | Neighbour::Silent) => {
                if let Err(error) = routes.solicit(waiting.peer) {
                    return Some(Err(error.into()));
                }
                waiting.solicited = true;
            }
            Ok(Neighbour::Asked) => {}
        }
        if waiting.until <= now {
            return Some(Err(unless_down(routes, &waiting, ResolveError::Timeout)));
        }
        waiting.look_at = (now + waiting.pause_ns).min(waiting.until);
        waiting.pause_ns = (waiting.pause_ns * 2).min(PAUSES.1);
        self.due.insert((waiting.look_at, id));
        self.waiting.insert(id, waiting);
        None
    }

    fn remember(&mut self, now: Instant, found: &Waiting) {
        let key = key(found.peer);
        let fresh = |(_, until): &(NextHop, Instant)| now < *until;
        // What is remembered does not get fresher by being used.
        if self.hops.get(&key).is_some_and(fresh) {
            return;
        }
        if self.hops.len() >= MAX_WAYS {
            self.hops.retain(|_, hop| fresh(hop));
        }
        // With as many peers within a second it does without.
        if self.hops.len() < MAX_WAYS {
            self.hops.insert(key, (found.hop, now + FRESH_FOR));
            self.tidy_at.get_or_insert(now + FRESH_FOR);
        }
    }
}

/// Why nothing came of a neighbour: nobody answers on a link that does not work.
fn unless_down(
    routes: &mut impl Routes,
    waiting: &Waiting,
    why: fn(IpAddr) -> ResolveError,
) -> ResolveError {
    match routes.down(&waiting.hop) {
        Some(interface) => RouteError::Down {
            interface,
            peer: waiting.peer.ip(),
        }
        .into(),
        None => why(waiting.hop.address),
    }
}

const fn key(peer: SocketAddr) -> (IpAddr, u32) {
    match peer {
        SocketAddr::V4(_) => (peer.ip(), 0),
        SocketAddr::V6(v6) => (peer.ip(), v6.scope_id()),
    }
}

#[cfg(test)]
mod tests;
