#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use crate::udp::InterfaceName;
use std::sync::{Arc, Mutex};

const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 9, 0, 1));
const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 9, 0, 2));
const OWN_MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
const MAC: Mac = Mac([2, 0, 0, 0, 0, 2]);

/// Knows what it was told last.
#[derive(Clone, Debug)]
struct Told(Arc<Mutex<(Neighbour, Option<Mac>)>>);

impl Routes for Told {
    fn next_hop(&mut self, peer: SocketAddr) -> Result<NextHop, RouteError> {
        Ok(NextHop {
            source: HERE,
            interface: 7,
            address: peer.ip(),
            mtu: 1500,
            has_neighbour: true,
        })
    }

    fn entry(&mut self, _: &NextHop) -> Result<NeighbourEntry, RouteError> {
        let (state, mac) = *self.0.lock().unwrap();
        let is_stale = false;
        Ok(NeighbourEntry {
            state,
            mac,
            is_stale,
        })
    }

    fn solicit(&mut self, _: SocketAddr) -> Result<(), RouteError> {
        Ok(())
    }
}

fn near() -> LinkInterface {
    LinkInterface {
        index: 7,
        name: InterfaceName::new(b"near"),
        mac: OWN_MAC,
        mtu: 1500,
        queues: 1,
    }
}

fn hops(told: &Told) -> Hops {
    Hops::new(Box::new(told.clone()), HERE, &near())
}

/// A way with the headers that frames have on it.
fn headed(way: Way<Mac>) -> Way<Headers> {
    way.map(|mac| Headers::new([OWN_MAC, mac], [HERE, PEER]))
}

#[test]
fn a_neighbour_that_is_asked_for_again_is_where_it_was_until_it_is_silent_or_elsewhere() {
    let told = Told(Arc::new(Mutex::new((Neighbour::Unknown, None))));
    let mut hops = hops(&told);
    let mut now = Instant::now();
    let other = Mac([2, 0, 0, 0, 0, 3]);
    for (state, mac, way) in [
        (Neighbour::Unknown, None, Way::Asked),
        (Neighbour::Known, Some(MAC), Way::To(MAC)),
        // Its link was down.
        (Neighbour::Unknown, None, Way::To(MAC)),
        (Neighbour::Asked, None, Way::To(MAC)),
        (Neighbour::Known, Some(other), Way::To(other)),
        (Neighbour::Asked, None, Way::To(other)),
        (Neighbour::Silent, None, Way::Nowhere(SILENT)),
        (Neighbour::Asked, None, Way::Asked),
    ] {
        *told.0.lock().unwrap() = (state, mac);
        now += KNOWN_FOR;
        assert_eq!(*hops.way(PEER, now), headed(way), "{state:?}");
    }
}

#[test]
fn a_neighbour_that_is_asked_for_is_looked_for_again_soon() {
    let told = Told(Arc::new(Mutex::new((Neighbour::Known, Some(MAC)))));
    let mut hops = hops(&told);
    let start = Instant::now();
    assert_eq!(*hops.way(PEER, start), headed(Way::To(MAC)));
    *told.0.lock().unwrap() = (Neighbour::Asked, None);
    assert_eq!(*hops.way(PEER, start + KNOWN_FOR), headed(Way::To(MAC)));
    let other = Mac([2, 0, 0, 0, 0, 3]);
    *told.0.lock().unwrap() = (Neighbour::Known, Some(other));
    let soon = start + KNOWN_FOR + ASKED_FOR;
    assert_eq!(*hops.way(PEER, soon), headed(Way::To(other)));
}

#[test]
fn a_neighbour_that_does_not_answer_is_looked_for_more_and_more_seldom() {
    let told = Told(Arc::new(Mutex::new((Neighbour::Asked, None))));
    let mut hops = hops(&told);
    let start = Instant::now();
    let looks = |hops: &mut Hops, from: u64, to: u64| {
        let mut found = 0;
        for at in from..to {
            let now = start + Duration::from_millis(at);
            let until = hops.known.first().map(|hop| hop.until);
            assert_eq!(*hops.way(PEER, now), Way::Asked);
            found += usize::from(until != hops.known.first().map(|hop| hop.until));
        }
        found
    };
    assert!(looks(&mut hops, 0, 10) >= 4);
    assert!(looks(&mut hops, 10, 4000) <= 4000 / 64 + 4);
    // Once it has answered it is as any other.
    *told.0.lock().unwrap() = (Neighbour::Known, Some(MAC));
    let later = start + Duration::from_secs(5);
    assert_eq!(*hops.way(PEER, later), headed(Way::To(MAC)));
    *told.0.lock().unwrap() = (Neighbour::Silent, None);
    assert_eq!(*hops.way(PEER, later + KNOWN_FOR), Way::Nowhere(SILENT));
    *told.0.lock().unwrap() = (Neighbour::Asked, None);
    let again = later + KNOWN_FOR + GONE_FOR;
    assert_eq!(*hops.way(PEER, again), Way::Asked);
    *told.0.lock().unwrap() = (Neighbour::Known, Some(MAC));
    assert_eq!(*hops.way(PEER, again + ASKED_FOR), headed(Way::To(MAC)));
}

#[test]
fn peers_in_turns_have_headers_of_their_own_each_until_its_time_is_over() {
    let told = Told(Arc::new(Mutex::new((Neighbour::Known, Some(MAC)))));
    let mut hops = hops(&told);
    let start = Instant::now();
    let peers = (2..=200).map(|last| IpAddr::from([10, 9, 0, last]));
    let other = Mac([2, 0, 0, 0, 0, 3]);
    for (after, mac) in [
        (Duration::ZERO, MAC),
        (KNOWN_FOR / 2, MAC),
        (KNOWN_FOR, other),
    ] {
        for peer in peers.clone() {
            let headers = Headers::new([OWN_MAC, mac], [HERE, peer]);
            assert_eq!(*hops.way(peer, start + after), Way::To(headers));
        }
        *told.0.lock().unwrap() = (Neighbour::Known, Some(other));
    }
}

/// The kernel, which is asked to look for a neighbour: it says of all the same.
#[derive(Debug)]
struct Looking {
    entry: NeighbourEntry,
    interface: u32,
    solicited: Arc<Mutex<u32>>,
}

impl Routes for Looking {
    fn next_hop(&mut self, peer: SocketAddr) -> Result<NextHop, RouteError> {
        Ok(NextHop {
            source: HERE,
            interface: self.interface,
            address: peer.ip(),
            mtu: 1500,
            has_neighbour: true,
        })
    }

    fn entry(&mut self, _: &NextHop) -> Result<NeighbourEntry, RouteError> {
        Ok(self.entry)
    }

    fn solicit(&mut self, _: SocketAddr) -> Result<(), RouteError> {
        *self.solicited.lock().unwrap() += 1;
        Ok(())
    }
}

#[test]
fn who_is_stale_or_silent_is_looked_for_and_who_is_elsewhere_is_sent_nothing() {
    let entry = |state, mac, is_stale| NeighbourEntry {
        state,
        mac,
        is_stale,
    };
    let fresh = entry(Neighbour::Known, Some(MAC), false);
    let stale = entry(Neighbour::Known, Some(MAC), true);
    let silent = entry(Neighbour::Silent, None, false);
    let gone = Way::Nowhere(SILENT);
    for (entry, interface, way, solicited) in [
        (fresh, 7, Way::To(MAC), 0),
        (stale, 7, Way::To(MAC), 1),
        (silent, 7, gone, 1),
        (fresh, 8, gone, 0),
    ] {
        let count = Arc::new(Mutex::new(0));
        let kernel = Looking {
            entry,
            interface,
            solicited: Arc::clone(&count),
        };
        let mut hops = Hops::new(Box::new(kernel), HERE, &near());
        assert_eq!(*hops.way(PEER, Instant::now()), headed(way));
        assert_eq!(*count.lock().unwrap(), solicited, "{entry:?} {interface}");
    }
}

#[test]
fn peers_without_number_take_bounded_room_and_are_found_anew() {
    let told = Told(Arc::new(Mutex::new((Neighbour::Known, Some(MAC)))));
    let mut hops = hops(&told);
    let now = Instant::now();
    for at in (0..MOST + 10).chain([MOST - 1]) {
        let peer = IpAddr::from([10, 9, (at >> 8) as u8, at as u8]);
        let headers = Headers::new([OWN_MAC, MAC], [HERE, peer]);
        assert_eq!(*hops.way(peer, now), Way::To(headers));
        assert!(hops.known.len() <= MOST);
    }
}
