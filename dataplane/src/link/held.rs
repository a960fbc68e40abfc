//! Datagrams to neighbours that are being asked for, held until they answer: what a program sends
//! first to a peer must not be lost, as nobody sends again for UC and UD. The kernel does the same
//! for its sockets (`unres_qlen_bytes`, arp(7)).

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};
use trunkline_wire::Path;

/// Most datagrams that are held, to a peer and to all. Those that come later are dropped:
/// connections send them again.
const TO_A_PEER: usize = 64;
const ALL: usize = 512;
/// How long a datagram is held: a neighbour that has not answered three times, a second each, is
/// silent.
const FOR: Duration = Duration::from_secs(4);

/// A datagram that is held.
#[derive(Debug)]
pub(super) struct Datagram {
    pub(super) path: Path,
    pub(super) bytes: Vec<u8>,
    until: Instant,
}

impl Datagram {
    /// Whether it has been held for too long.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        now >= self.until
    }
}

/// Those to a peer, in the order in which they were sent.
pub(super) type ToPeer = VecDeque<Datagram>;

/// Those of a port.
#[derive(Debug, Default)]
pub(super) struct Held {
    to: HashMap<IpAddr, ToPeer>,
    /// The peers, in the order of their turns.
    turns: VecDeque<IpAddr>,
    count: usize,
}

impl Held {
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// To how many peers any are.
    pub(super) fn peers(&self) -> usize {
        self.to.len()
    }

    /// Whether any to this peer is.
    pub(super) fn has(&self, peer: IpAddr) -> bool {
        self.to.contains_key(&peer)
    }

    /// Holds a datagram, if there is room.
    pub(super) fn hold(&mut self, path: Path, bytes: &[u8], now: Instant) -> bool {
        let there = self.to.get(&path.dst).map_or(0, VecDeque::len);
        if self.count >= ALL || there >= TO_A_PEER {
            return false;
        }
        let datagram = Datagram {
            path,
            bytes: bytes.to_vec(),
            until: now + FOR,
        };
        self.put_back(path.dst, [datagram].into());
        true
    }

    /// Takes those to a peer.
    pub(super) fn take(&mut self, peer: IpAddr) -> ToPeer {
        let taken = self.to.remove(&peer).unwrap_or_default();
        self.count -= taken.len();
        self.turns.retain(|other| *other != peer);
        taken
    }

    /// Takes those to the peer whose turn it is.
    pub(super) fn take_turn(&mut self) -> Option<(IpAddr, ToPeer)> {
        let peer = *self.turns.front()?;
        Some((peer, self.take(peer)))
    }

    /// They go on to be held, behind those that are held meanwhile. The peer has its turn after all
    /// others.
    pub(super) fn put_back(&mut self, peer: IpAddr, datagrams: ToPeer) {
        if datagrams.is_empty() {
            return;
        }
        self.count += datagrams.len();
        let there = self.to.entry(peer).or_default();
        if there.is_empty() {
            self.turns.push_back(peer);
        }
        there.extend(datagrams);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline_wire::IpFields;

    fn path(last: u8) -> Path {
        Path {
            src: [10, 9, 0, 1].into(),
            dst: [10, 9, 0, last].into(),
            src_port: 4791,
            traffic_class: 0,
            ip: IpFields::DEFAULT,
        }
    }

    #[test]
    fn few_are_held_to_a_peer_and_to_all_and_not_for_long() {
        let (mut held, now) = (Held::default(), Instant::now());
        let kept = |held: &mut Held, peer| {
            let all = (0..2 * TO_A_PEER).filter(|_| held.hold(path(peer), &[7; 16], now));
            all.count()
        };
        for peer in 2..10 {
            assert_eq!(kept(&mut held, peer), TO_A_PEER);
        }
        assert_eq!((kept(&mut held, 10), held.peers()), (0, 8));
        let (_, first) = held.take_turn().expect("some are held");
        assert!(!first[0].is_over(now + FOR - Duration::from_nanos(1)));
        assert!(first[0].is_over(now + FOR));
        assert_eq!(kept(&mut held, 10), TO_A_PEER, "there is room again");
        for _ in 0..8 {
            assert!(held.take_turn().is_some());
        }
        assert!(held.is_empty() && held.take_turn().is_none());
    }

    #[test]
    fn peers_have_turns_and_those_to_each_stay_in_order() {
        let (mut held, now) = (Held::default(), Instant::now());
        for number in 0..6 {
            assert!(held.hold(path(2 + number % 2), &[number], now));
        }
        let bytes = |all: &ToPeer| all.iter().map(|it| it.bytes[0]).collect::<Vec<_>>();
        for peer in [2, 3, 2, 3] {
            let (next, datagrams) = held.take_turn().expect("some are held");
            assert_eq!((next, held.has(next)), (path(peer).dst, false));
            assert_eq!(bytes(&datagrams), [peer - 2, peer, peer + 2]);
            held.put_back(next, datagrams);
        }
        let three = held.take(path(3).dst);
        assert_eq!((bytes(&three), held.peers()), (vec![1, 3, 5], 1));
        held.put_back(path(3).dst, ToPeer::new());
        assert!(!held.has(path(3).dst));
        held.take_turn();
        assert!(held.is_empty());
    }
}
