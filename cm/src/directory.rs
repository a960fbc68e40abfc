//! What a node knows of a peer: whether it shares connections.

use crate::event::Event;
use alloc::collections::BTreeMap;
use core::net::IpAddr;
use trunkline_conn::time::Instant;

/// How to talk to the peer at one address.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum PeerMode {
    /// Not asked yet, or the answer has expired: ask.
    #[default]
    Unknown,
    /// Asked, no answer yet: wait.
    Connecting,
    /// A Trunkline node: share connections.
    Trunkline,
    /// Refused, or silent without having been known: plain `rc`, one connection per QP, until that
    /// time.
    Ibta {
        /// When to ask again.
        until: Instant,
    },
}

impl PeerMode {
    /// What still holds at `now`: negative answers expire.
    #[must_use]
    pub fn at(self, now: Instant) -> Self {
        match self {
            Self::Ibta { until } if until <= now => Self::Unknown,
            mode => mode,
        }
    }

    /// The peer is being asked. A peer known to be a Trunkline node stays one.
    #[must_use]
    pub const fn connecting(self) -> Self {
        match self {
            Self::Trunkline => Self::Trunkline,
            _ => Self::Connecting,
        }
    }

    /// What `event`, which concerns this peer, teaches; negative answers last `ibta_ns`
    /// nanoseconds. A question from the peer replaces whatever was known.
    #[must_use]
    pub fn after(self, now: Instant, event: &Event, ibta_ns: u64) -> Self {
        match (event, self) {
            (Event::Incoming { .. } | Event::Established(_) | Event::PeerRestarted { .. }, _) => {
                Self::Trunkline
            }
            // A refusal that says so itself comes from a Trunkline node that is busy or has a rule.
            (Event::Refused { reason, .. }, _) if reason.by_trunkline() => Self::Trunkline,
            // A node that falls silent is down or cut off. An ordinary host in its place refuses.
            (Event::Silent { .. }, Self::Trunkline) => Self::Trunkline,
            // Whoever begins there next may be anything.
            (Event::Nobody { .. }, _) => Self::Unknown,
            (Event::NotTrunkline { .. } | Event::Silent { .. } | Event::Refused { .. }, _) => {
                Self::Ibta {
                    until: now + ibta_ns,
                }
            }
            // The attempt was given up on this side: nothing was learned.
            (Event::Closed { .. }, Self::Connecting) => Self::Unknown,
            (Event::Closed { .. }, mode) => mode,
        }
    }
}

/// Most addresses of which something is remembered. Anybody can say that it is a node in the name
/// of any address.
const MOST: usize = if cfg!(test) { 64 } else { 65_536 };

/// The peers of a node, by address, 65,536 of them: what is known of one more replaces what is
/// known of another, which is asked again when that matters. Ordered, so that walks replay.
#[derive(Clone, Debug, Default)]
pub struct Directory(BTreeMap<IpAddr, PeerMode>);

impl Directory {
    /// How to talk to `peer` at `now`.
    pub fn mode(&self, now: Instant, peer: IpAddr) -> PeerMode {
        let known = self.0.get(&peer.to_canonical()).copied();
        known.unwrap_or_default().at(now)
    }

    /// Notes what another one has found out of `peer`.
    pub fn know(&mut self, peer: IpAddr, mode: PeerMode) {
        self.set(peer, mode);
    }

    /// `peer` is being asked.
    pub fn connecting(&mut self, now: Instant, peer: IpAddr) {
        self.set(peer, self.mode(now, peer).connecting());
    }

    /// Learns from an event of the manager; negative answers last `ibta_ns` nanoseconds.
    pub fn learn(&mut self, now: Instant, event: &Event, ibta_ns: u64) {
        let peer = event.route().remote;
        self.set(peer, self.mode(now, peer).after(now, event, ibta_ns));
    }

    /// Forgets negative answers that have expired.
    pub fn tidy(&mut self, now: Instant) {
        self.0.retain(|_, mode| mode.at(now) != PeerMode::Unknown);
    }

    /// Bytes of what is known, without what the map needs beside its entries.
    pub fn state_bytes(&self) -> usize {
        self.0.len() * size_of::<(IpAddr, PeerMode)>()
    }

    /// Addresses of which something is known.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether nothing is known of anybody.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn set(&mut self, peer: IpAddr, mode: PeerMode) {
        let peer = peer.to_canonical();
        if mode == PeerMode::Unknown {
            self.0.remove(&peer);
            return;
        }
        if self.0.len() >= MOST && !self.0.contains_key(&peer) {
            let next = self.0.range(peer..).next().or(self.0.first_key_value());
            if let Some((&other, _)) = next {
                self.0.remove(&other);
            }
        }
        self.0.insert(peer, mode);
    }
}
