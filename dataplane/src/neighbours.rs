//! Neighbours of an interface that a port has to itself: who has an address, and who asks for ours.
//!
//! ARP (RFC 826) over IPv4, Neighbor Discovery (RFC 4861) over IPv6. Where the kernel owns the
//! interface it does this, and [`KernelRoutes`](crate::KernelRoutes) says how far it is; a port
//! that goes past the kernel does it with [`Neighbours`].
//!
//! ```text
//!            +-- answer ----------------------------------+
//!            |                                            v
//! unknown -- solicit --> asked -- three questions --> silent -- solicit --> asked
//!                          ^       without answer
//!                          +-- 30 s later, when used -- known
//! ```
//!
//! It does no I/O: frames that come go in by [`Neighbours::receive`], frames to send come out of
//! [`Neighbours::poll_transmit`]. Only addresses that were asked for are learned, so that what
//! strangers send takes no memory; what is known follows later answers and requests, as both
//! standards have it, because hosts move.

mod message;

use crate::routes::{Neighbour, NeighbourEntry, NextHop, RouteError, Routes};
use message::{Message, Said};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use trunkline_conn::time::{Instant, SECOND};
use trunkline_wire::{Mac, may_be_one_host};

/// Time between two questions, and how many there are (RFC 4861, 10: `RETRANS_TIMER`,
/// `MAX_MULTICAST_SOLICIT`).
const PAUSE: u64 = SECOND;
const QUESTIONS: u8 = 3;
/// How long an answer is relied upon (`REACHABLE_TIME`).
const FRESH_FOR: u64 = 30 * SECOND;
/// Neighbours that are known or asked for at once.
const MOST: usize = 4096;
/// Frames that wait to be sent.
const MOST_FRAMES: usize = 256;

/// An interface that a port has to itself.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Interface {
    /// Its address of the link.
    pub mac: Mac,
    /// Its one address.
    pub address: IpAddr,
    /// Bits of `address` that all neighbours share, in `0 ..= 32` or `0 ..= 128`.
    pub prefix: u8,
    /// The neighbour that packets to all others go to.
    pub gateway: Option<IpAddr>,
    /// Bytes of the largest IP packet.
    pub mtu: u32,
}

impl Interface {
    fn is_on_link(&self, peer: IpAddr) -> bool {
        let shared = |ours: u128, theirs: u128, bits: u32| {
            let width = bits.saturating_sub(u32::from(self.prefix));
            width >= bits || (ours ^ theirs) >> width == 0
        };
        match (self.address, peer) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => {
                shared(ours.to_bits().into(), theirs.to_bits().into(), 32)
            }
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => {
                theirs.is_unicast_link_local() || shared(ours.to_bits(), theirs.to_bits(), 128)
            }
            _ => false,
        }
    }
}

impl Interface {
    /// Whether it is the address of all hosts on the link (RFC 919). Networks of one or two hosts
    /// have none (RFC 3021).
    fn is_broadcast(&self, peer: IpAddr) -> bool {
        let IpAddr::V4(peer) = peer else { return false };
        let hosts = u32::MAX.checked_shr(self.prefix.into()).unwrap_or(0);
        hosts > 1 && self.is_on_link(peer.into()) && peer.to_bits() & hosts == hosts
    }
}

/// What happened to frames of neighbours.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct NeighbourCounters {
    /// Questions sent.
    pub asked: u64,
    /// Answers that were of use.
    pub learned: u64,
    /// Questions about our address that were answered.
    pub answered: u64,
    /// Frames that make no sense, or break a rule of the standards.
    pub malformed: u64,
    /// Answers nobody asked for.
    pub unasked: u64,
    /// Frames of others who think that our address is theirs.
    pub conflicts: u64,
    /// Frames not sent, and neighbours not asked for, because there were too many.
    pub overflow: u64,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Questions that were sent, and when the next one is due.
    Asked(u8, Instant),
    /// Until then.
    Known(Instant),
    Silent,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    state: State,
    /// Known before is known while it is asked for again.
    mac: Option<Mac>,
}

/// The neighbours of one interface.
#[derive(Debug)]
pub struct Neighbours {
    interface: Interface,
    entries: BTreeMap<IpAddr, Entry>,
    frames: VecDeque<Vec<u8>>,
    /// No question is due before: who polls in a loop looks through the entries only then.
    due: Instant,
    now: Instant,
    counters: NeighbourCounters,
}

impl Neighbours {
    /// Nobody is known yet.
    pub const fn new(interface: Interface) -> Self {
        Self {
            interface,
            entries: BTreeMap::new(),
            frames: VecDeque::new(),
            due: Instant::FAR,
            now: Instant::ZERO,
            counters: NeighbourCounters {
                asked: 0,
                learned: 0,
                answered: 0,
                malformed: 0,
                unasked: 0,
                conflicts: 0,
                overflow: 0,
            },
        }
    }

    /// The interface.
    pub const fn interface(&self) -> &Interface {
        &self.interface
    }

    /// What happened so far.
    pub const fn counters(&self) -> &NeighbourCounters {
        &self.counters
    }

    /// The way to a peer: itself where it is on the link, else the gateway.
    ///
    /// # Errors
    /// An address of the other family, or not of one host; no gateway.
    pub fn next_hop(&self, peer: IpAddr) -> Result<NextHop, RouteError> {
        let Interface {
            address: local,
            gateway,
            mtu,
            ..
        } = self.interface;
        if local.is_ipv4() != peer.is_ipv4() {
            return Err(RouteError::Family { local, peer });
        }
        if !may_be_one_host(peer) || self.interface.is_broadcast(peer) {
            return Err(RouteError::NotOneHost(peer));
        }
        let direct = self.interface.is_on_link(peer).then_some(peer);
        let next_hop = direct.or(gateway).ok_or_else(|| RouteError::NoRoute {
            local,
            peer,
            source: io::Error::from_raw_os_error(libc::ENETUNREACH),
        })?;
        Ok(NextHop {
            source: local,
            interface: 0,
            address: next_hop,
            mtu,
            has_neighbour: next_hop != local,
        })
    }

    /// What is known of a neighbour.
    pub fn neighbour(&self, address: IpAddr) -> Neighbour {
        match self.entries.get(&address) {
            None => Neighbour::Unknown,
            Some(Entry { mac: Some(_), .. }) => Neighbour::Known,
            Some(Entry { state, .. }) => match state {
                State::Silent => Neighbour::Silent,
                State::Asked(..) | State::Known(_) => Neighbour::Asked,
            },
        }
    }

    /// Where frames for a neighbour go, if that is known. What has not been confirmed for long is
    /// asked for again meanwhile.
    pub fn mac(&mut self, address: IpAddr) -> Option<Mac> {
        let entry = *self.entries.get(&address)?;
        if matches!(entry.state, State::Known(until) if until <= self.now) {
            self.ask(address, entry.mac);
        }
        entry.mac
    }

    /// Begins to ask for a neighbour, unless it is known or being asked for.
    pub fn solicit(&mut self, address: IpAddr) {
        match self.entries.get(&address) {
            Some(Entry {
                state: State::Asked(..) | State::Known(_),
                ..
            }) => {}
            Some(_) => self.ask(address, None),
            None => {
                if self.entries.len() >= MOST {
                    self.make_room();
                }
                if self.entries.len() < MOST {
                    self.ask(address, None);
                } else {
                    self.counters.overflow += 1;
                }
            }
        }
    }

    /// Forgets who is silent, or has not been heard of for long.
    fn make_room(&mut self) {
        let now = self.now;
        self.entries.retain(|_, entry| match entry.state {
            State::Asked(..) => true,
            State::Known(until) => now < until,
            State::Silent => false,
        });
    }

    fn ask(&mut self, address: IpAddr, mac: Option<Mac>) {
        let at = self.now + PAUSE;
        self.due = self.due.min(at);
        let state = State::Asked(1, at);
        self.entries.insert(address, Entry { state, mac });
        self.question(address);
    }

    fn question(&mut self, address: IpAddr) {
        self.counters.asked += 1;
        let frame = message::question(&self.interface, address);
        self.send(frame);
    }

    fn send(&mut self, frame: Vec<u8>) {
        if self.frames.len() < MOST_FRAMES {
            self.frames.push_back(frame);
        } else {
            self.counters.overflow += 1;
        }
    }

    /// The next frame to send, from the Ethernet header on.
    pub fn poll_transmit(&mut self) -> Option<Vec<u8>> {
        self.frames.pop_front()
    }

    /// When [`handle_timeout`](Self::handle_timeout) has something to do.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let due = self.entries.values().filter_map(|entry| match entry.state {
            State::Asked(_, at) => Some(at),
            State::Known(_) | State::Silent => None,
        });
        due.min()
    }

    /// Time has passed: asks again, or gives up.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.now = now;
        if now < self.due {
            return;
        }
        let mut again = Vec::new();
        for (address, entry) in &mut self.entries {
            let State::Asked(questions, at) = &mut entry.state else {
                continue;
            };
            if now < *at {
                continue;
            }
            if *questions == QUESTIONS {
                (entry.state, entry.mac) = (State::Silent, None);
            } else {
                (*questions, *at) = (*questions + 1, now + PAUSE);
                again.push(*address);
            }
        }
        for address in again {
            self.question(address);
        }
        self.due = self.poll_timeout().unwrap_or(Instant::FAR);
    }

    /// Takes in a frame, from the Ethernet header on. Gives whether it was of this protocol: all
    /// others are for someone else.
    pub fn receive(&mut self, now: Instant, frame: &[u8]) -> bool {
        self.now = now;
        match message::parse(&self.interface, frame) {
            Said::Nothing => return false,
            Said::Nonsense => self.counters.malformed += 1,
            Said::Message(message) => self.heard(&message),
        }
        true
    }

    fn heard(&mut self, message: &Message) {
        let Message {
            from,
            mac,
            asks_for_us,
            overrides,
            ..
        } = *message;
        if from == Some(self.interface.address) && mac != Some(self.interface.mac) {
            self.counters.conflicts += 1;
            return;
        }
        if let (Some(from), Some(mac)) = (from, mac) {
            self.learn(from, mac, asks_for_us, overrides);
        }
        if asks_for_us {
            self.counters.answered += 1;
            let frame = message::answer(&self.interface, message);
            self.send(frame);
        }
    }

    fn learn(&mut self, from: IpAddr, mac: Mac, is_question: bool, overrides: bool) {
        match self.entries.get_mut(&from) {
            Some(entry) => {
                let other = entry.mac.is_some_and(|known| known != mac);
                if other && !overrides && matches!(entry.state, State::Known(_)) {
                    self.counters.unasked += 1;
                    return;
                }
                self.counters.learned += 1;
                *entry = Entry {
                    state: State::Known(self.now + FRESH_FOR),
                    mac: Some(mac),
                };
            }
            None if is_question => {}
            None => self.counters.unasked += 1,
        }
    }
}

/// Neighbours that a port shares with those who ask it for ways ([`Port::routes`](crate::Port)).
impl Routes for Arc<Mutex<Neighbours>> {
    fn next_hop(&mut self, peer: SocketAddr) -> Result<NextHop, RouteError> {
        let neighbours = self.lock().unwrap_or_else(PoisonError::into_inner);
        neighbours.next_hop(peer.ip())
    }

    fn entry(&mut self, hop: &NextHop) -> Result<NeighbourEntry, RouteError> {
        let mut neighbours = self.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(NeighbourEntry {
            state: neighbours.neighbour(hop.address),
            mac: neighbours.mac(hop.address),
            is_stale: false,
        })
    }

    fn solicit(&mut self, peer: SocketAddr) -> Result<(), RouteError> {
        let mut neighbours = self.lock().unwrap_or_else(PoisonError::into_inner);
        let hop = neighbours.next_hop(peer.ip())?;
        neighbours.solicit(hop.address);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
