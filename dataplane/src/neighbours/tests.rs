#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod kernel;

use super::*;
use crate::prng::Prng;
use trunkline_conn::time::MILLISECOND;

const EAST: Mac = Mac([2, 0, 0, 0, 0, 1]);
const WEST: Mac = Mac([2, 0, 0, 0, 0, 2]);
const NOW: Instant = Instant::from_nanos(SECOND);

fn address(words: &str) -> IpAddr {
    words.parse().unwrap()
}

fn interface(mac: Mac, own: &str) -> Interface {
    let address = address(own);
    Interface {
        mac,
        address,
        prefix: if address.is_ipv4() { 24 } else { 64 },
        gateway: None,
        mtu: 1500,
    }
}

/// Two neighbours, and their addresses, in both families.
fn pairs() -> [[(Neighbours, IpAddr); 2]; 2] {
    [["10.9.0.1", "10.9.0.2"], ["fd09::1", "fd09::2"]].map(|own| {
        let [east, west] = own;
        [(EAST, east), (WEST, west)]
            .map(|(mac, own)| (Neighbours::new(interface(mac, own)), address(own)))
    })
}

/// Carries what `from` has to send to `to`.
fn carry(now: Instant, from: &mut Neighbours, to: &mut Neighbours) -> usize {
    let mut frames = 0;
    while let Some(frame) = from.poll_transmit() {
        assert!(to.receive(now, &frame), "it is of the protocol");
        frames += 1;
    }
    frames
}

/// A frame with which the owner of `mac` says that it has `address`, asked or not.
fn claim(mac: Mac, own: &str, to: IpAddr) -> Vec<u8> {
    let question = Message {
        from: Some(to),
        mac: Some(EAST),
        sender: EAST,
        asks_for_us: true,
        overrides: true,
    };
    message::answer(&interface(mac, own), &question)
}

#[test]
fn who_asks_is_answered_and_learns_while_who_answers_keeps_nothing() {
    for [(mut east, _), (mut west, peer)] in pairs() {
        assert_eq!(east.neighbour(peer), Neighbour::Unknown);
        east.solicit(peer);
        assert_eq!(east.neighbour(peer), Neighbour::Asked);
        assert_eq!(carry(NOW, &mut east, &mut west), 1);
        assert_eq!(carry(NOW, &mut west, &mut east), 1);
        assert_eq!(east.neighbour(peer), Neighbour::Known);
        assert_eq!(east.mac(peer), Some(WEST));
        assert_eq!((west.counters().answered, east.counters().learned), (1, 1));
        assert!(west.entries.is_empty(), "questions take no memory");
        assert_eq!(east.poll_timeout(), None);
        // Known is known: nothing is asked again.
        east.solicit(peer);
        assert_eq!(east.poll_transmit(), None);
    }
}

#[test]
fn a_question_over_ipv4_is_the_frame_of_the_standard() {
    let mut east = Neighbours::new(interface(EAST, "10.9.0.1"));
    east.solicit(address("10.9.0.2"));
    let expected = [
        &[0xff; 6][..],
        &EAST.0,
        &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1],
        &EAST.0,
        &[10, 9, 0, 1],
        &[0; 6],
        &[10, 9, 0, 2],
    ];
    assert_eq!(east.poll_transmit().unwrap(), expected.concat());
}

#[test]
fn after_three_questions_a_neighbour_is_silent_and_may_be_asked_anew() {
    for [(mut east, _), (_, peer)] in pairs() {
        east.handle_timeout(NOW);
        east.solicit(peer);
        let mut now = NOW;
        for question in 1..=3 {
            assert!(east.poll_transmit().is_some(), "question {question}");
            assert_eq!(east.neighbour(peer), Neighbour::Asked);
            assert_eq!(east.poll_timeout(), Some(now + SECOND));
            east.handle_timeout(now + 999 * MILLISECOND);
            assert_eq!(east.poll_transmit(), None, "not before its time");
            now = now + SECOND;
            east.handle_timeout(now);
        }
        assert_eq!(east.neighbour(peer), Neighbour::Silent);
        assert_eq!((east.poll_timeout(), east.counters().asked), (None, 3));
        east.solicit(peer);
        assert_eq!(east.neighbour(peer), Neighbour::Asked);
    }
}

#[test]
fn what_was_known_long_ago_is_used_while_it_is_asked_for_again() {
    for [(mut east, _), (mut west, peer)] in pairs() {
        east.solicit(peer);
        carry(NOW, &mut east, &mut west);
        carry(NOW, &mut west, &mut east);
        let later = NOW + 31 * SECOND;
        east.handle_timeout(later);
        assert_eq!(east.poll_transmit(), None, "nobody used it");
        assert_eq!(east.mac(peer), Some(WEST));
        assert!(east.poll_transmit().is_some(), "it was used");
        assert_eq!(east.neighbour(peer), Neighbour::Known);
        for second in 1..=3 {
            east.handle_timeout(later + second * SECOND);
        }
        assert_eq!(east.neighbour(peer), Neighbour::Silent);
        assert_eq!(east.mac(peer), None);
    }
}

#[test]
fn a_neighbour_that_moved_is_followed() {
    let moved = Mac([2, 0, 0, 0, 0, 9]);
    for [(mut east, own), (mut west, peer)] in pairs() {
        east.solicit(peer);
        carry(NOW, &mut east, &mut west);
        carry(NOW, &mut west, &mut east);
        east.receive(NOW, &claim(moved, &peer.to_string(), own));
        assert_eq!(east.mac(peer), Some(moved));
    }
}

#[test]
fn what_strangers_say_takes_no_memory() {
    let own = address("10.9.0.1");
    let mut east = Neighbours::new(interface(EAST, "10.9.0.1"));
    for n in 0..10_000_u16 {
        let [a, b] = n.to_be_bytes();
        let frame = claim(WEST, &format!("10.9.{a}.{b}"), own);
        east.receive(NOW, &frame);
    }
    assert!(east.entries.is_empty());
    // One of them said that our address is its own.
    assert_eq!(
        (east.counters().unasked, east.counters().conflicts),
        (9_999, 1)
    );
}

#[test]
fn neither_neighbours_nor_frames_are_without_number() {
    let mut east = Neighbours::new(interface(EAST, "10.9.0.1"));
    let host = |n: usize| IpAddr::from([10, 9, (n >> 8) as u8, n as u8]);
    for n in 0..MOST + 10 {
        east.solicit(host(n));
    }
    assert_eq!((east.entries.len(), east.frames.len()), (MOST, MOST_FRAMES));
    let dropped = MOST + 10 - MOST_FRAMES;
    assert_eq!(east.counters().overflow, dropped as u64);
    // Who is silent makes room.
    for second in 0..=3 {
        east.handle_timeout(NOW + second * SECOND);
        while east.poll_transmit().is_some() {}
    }
    east.solicit(host(MOST + 10));
    assert_eq!(east.neighbour(host(MOST + 10)), Neighbour::Asked);
    assert_eq!(east.entries.len(), 1);
}

#[test]
fn frames_that_were_cut_or_changed_teach_nothing_wrong() {
    let mut random = Prng::new(7);
    for [(_, own), (_, peer)] in pairs() {
        let words = (own.to_string(), peer.to_string());
        let good = claim(WEST, &words.1, own);
        for length in 0..good.len() {
            let mut east = Neighbours::new(interface(EAST, &words.0));
            east.solicit(peer);
            east.receive(NOW, &good[..length]);
            assert_eq!(east.mac(peer), None, "{length} bytes");
        }
        for _ in 0..20_000 {
            let mut east = Neighbours::new(interface(EAST, &words.0));
            east.solicit(peer);
            let mut frame = good.clone();
            let at = random.next_u64() as usize % frame.len();
            frame[at] ^= 1 << (random.next_u64() % 8);
            east.receive(NOW, &frame);
            // Over IPv6 a checksum covers it. Over IPv4 nothing does, but an address of many, or of
            // none, is never taken.
            let learned = east.mac(peer);
            assert!(own.is_ipv4() || learned.is_none_or(|mac| mac == WEST));
            assert!(learned.is_none_or(|mac| mac.0[0] & 1 == 0 && mac != Mac([0; 6])));
        }
    }
}

#[test]
fn a_message_that_a_router_passed_on_is_refused() {
    let own = address("fd09::1");
    let mut frame = claim(WEST, "fd09::2", own);
    // The hop limit, which the checksum does not cover.
    frame[14 + 7] = 254;
    let mut east = Neighbours::new(interface(EAST, "fd09::1"));
    east.solicit(address("fd09::2"));
    assert!(east.receive(NOW, &frame));
    assert_eq!(east.counters().malformed, 1);
    assert_eq!(east.neighbour(address("fd09::2")), Neighbour::Asked);
}

/// Changes an address of an IPv6 header, or bytes behind it, and makes the checksum right.
fn changed(mut frame: Vec<u8>, at: usize, to: &[u8]) -> Vec<u8> {
    frame[at..at + to.len()].copy_from_slice(to);
    let (header, payload) = frame.split_at_mut(54);
    let addresses = [22, 38].map(|at| {
        let bytes: [u8; 16] = header[at..at + 16].try_into().unwrap();
        std::net::Ipv6Addr::from(bytes)
    });
    smoltcp::wire::Icmpv6Packet::new_unchecked(payload).fill_checksum(&addresses[0], &addresses[1]);
    frame
}

/// Where the fields of a message of Neighbor Discovery are.
const TO_MAC: usize = 0;
const FROM: usize = 22;
const TO: usize = 38;
const TARGET: usize = 62;

#[test]
fn what_is_not_for_us_and_what_the_standard_forbids_moves_no_neighbour() {
    let attacker = Mac([2, 0x66, 0, 0, 0, 9]);
    let v6 = |words: &str| match address(words) {
        IpAddr::V6(address) => address.octets(),
        IpAddr::V4(_) => unreachable!(),
    };
    for [(mut east, own), (mut west, peer)] in pairs() {
        east.solicit(peer);
        carry(NOW, &mut east, &mut west);
        carry(NOW, &mut west, &mut east);
        let forged = claim(attacker, &peer.to_string(), own);
        let asking = |target| message::question(&interface(attacker, &peer.to_string()), target);
        let mut elsewhere = forged.clone();
        elsewhere[TO_MAC..6].copy_from_slice(&[2, 0x99, 0, 0, 0, 9]);
        let mut frames = vec![elsewhere];
        if own.is_ipv6() {
            let asks = asking(own);
            let mut nobody = changed(asks.clone(), FROM, &[0; 16]);
            frames.push(nobody.clone());
            nobody.truncate(TARGET + 16);
            nobody[18..20].copy_from_slice(&24_u16.to_be_bytes());
            frames.extend([
                changed(forged.clone(), TO, &v6("fd09::99")),
                changed(forged.clone(), TO, &v6("ff02::1")),
                changed(forged, TARGET, &v6("ff02::1")),
                asking(address("fd09::55")),
                changed(asking(address("fd09::55")), TO, &v6("ff02::1")),
                changed(asks.clone(), TARGET, &v6("ff02::1:ff00:1")),
                changed(asks.clone(), FROM, &v6("ff02::1")),
                // From nobody, and not to the group.
                changed(nobody, TO, &v6("fd09::1")),
            ]);
        }
        let answered = east.counters().answered;
        for (number, frame) in frames.iter().enumerate() {
            east.receive(NOW, frame);
            assert_eq!(east.mac(peer), Some(WEST), "{number}");
            assert_eq!(east.poll_transmit(), None, "{number}");
        }
        assert_eq!(east.counters().answered, answered);
        // The same without what is wrong with it.
        east.receive(NOW, &claim(attacker, &peer.to_string(), own));
        assert_eq!(east.mac(peer), Some(attacker));
    }
}

#[test]
fn ways_lead_to_the_peer_or_to_the_gateway() {
    let mut own = interface(EAST, "10.9.0.1");
    let direct = Neighbours::new(own).next_hop(address("10.9.0.77")).unwrap();
    assert_eq!(direct.address, address("10.9.0.77"));
    assert_eq!((direct.mtu, direct.has_neighbour), (1500, true));
    let itself = Neighbours::new(own).next_hop(own.address).unwrap();
    assert!(!itself.has_neighbour);
    let far = address("192.0.2.1");
    let refused = Neighbours::new(own).next_hop(far).unwrap_err();
    assert!(matches!(refused, RouteError::NoRoute { .. }), "{refused}");
    own.gateway = Some(address("10.9.0.254"));
    let neighbours = Neighbours::new(own);
    assert_eq!(
        neighbours.next_hop(far).unwrap().address,
        address("10.9.0.254")
    );
    for nobody in ["224.0.0.1", "255.255.255.255", "0.0.0.0", "10.9.0.255"] {
        let refused = neighbours.next_hop(address(nobody)).unwrap_err();
        assert!(matches!(refused, RouteError::NotOneHost(_)), "{refused}");
    }
    // Of another network nobody here can tell, and one of two hosts has none.
    assert!(neighbours.next_hop(address("10.10.0.255")).is_ok());
    own.prefix = 31;
    assert!(Neighbours::new(own).next_hop(address("10.9.0.1")).is_ok());
    let family = neighbours.next_hop(address("fd09::2")).unwrap_err();
    assert!(matches!(family, RouteError::Family { .. }), "{family}");
    let six = Neighbours::new(interface(EAST, "fd09::1"));
    let local = address("fe80::7");
    assert_eq!(six.next_hop(local).unwrap().address, local);
    assert!(six.next_hop(address("fd10::1")).is_err());
}

fn octets(words: &str) -> [u8; 16] {
    words.parse::<std::net::Ipv6Addr>().unwrap().octets()
}

/// A question of `from` for fd09::1 that does not tell its address of the link: to the group, or to
/// who is there.
fn bare_question(from: [u8; 16], to: Option<[u8; 16]>) -> Vec<u8> {
    let mut asks = message::question(&interface(WEST, "fd09::2"), address("fd09::1"));
    asks.truncate(TARGET + 16);
    asks[18..20].copy_from_slice(&24_u16.to_be_bytes());
    let asks = changed(asks, FROM, &from);
    to.map_or(asks.clone(), |to| changed(asks, TO, &to))
}

#[test]
fn who_asks_without_its_address_of_the_link_is_answered_where_it_asked() {
    let [own, asker] = ["fd09::1", "fd09::a1b2:c3d4"].map(octets);
    let mut asks = bare_question(asker, Some(own));
    asks[..6].copy_from_slice(&EAST.0);
    let mut east = Neighbours::new(interface(EAST, "fd09::1"));
    assert!(east.receive(NOW, &asks));
    let answer = east.poll_transmit().unwrap();
    assert_eq!(answer[..6], WEST.0);
    assert_eq!(answer[TO..TO + 16], asker);
    // A frame that comes from no host asks nothing.
    asks[6..12].copy_from_slice(&[0xff; 6]);
    east.receive(NOW, &asks);
    assert_eq!(east.poll_transmit(), None);
}

#[test]
fn who_looks_whether_our_address_is_taken_is_told_with_all_others() {
    let asks = bare_question([0; 16], None);
    let mut east = Neighbours::new(interface(EAST, "fd09::1"));
    assert!(east.receive(NOW, &asks));
    let answer = east.poll_transmit().unwrap();
    assert_eq!(answer[..6], [0x33, 0x33, 0, 0, 0, 1]);
    assert_eq!(answer[TO..TO + 16], octets("ff02::1"));
}

#[test]
fn an_answer_goes_to_who_asked() {
    for [(mut east, _), (mut west, peer)] in pairs() {
        east.solicit(peer);
        carry(NOW, &mut east, &mut west);
        assert_eq!(west.poll_transmit().unwrap()[..6], EAST.0);
    }
}

#[test]
fn who_was_known_long_ago_makes_room_for_others() {
    let mut east = Neighbours::new(interface(EAST, "10.9.0.1"));
    east.interface.prefix = 8;
    let own = east.interface.address;
    for at in 0..MOST {
        let peer = format!("10.{}.{}.{}", 10 + (at >> 16), at >> 8 & 255, at & 255);
        east.solicit(address(&peer));
        while east.poll_transmit().is_some() {}
        east.receive(NOW, &claim(WEST, &peer, own));
        assert_eq!(east.neighbour(address(&peer)), Neighbour::Known);
    }
    let new = address("10.9.0.77");
    east.solicit(new);
    assert_eq!(east.neighbour(new), Neighbour::Unknown, "all are fresh");
    east.handle_timeout(NOW + 31 * SECOND);
    east.solicit(new);
    assert_eq!(east.neighbour(new), Neighbour::Asked);
}

#[test]
fn who_is_asked_later_delays_nobody_who_was_asked_before() {
    let mut east = Neighbours::new(interface(EAST, "10.9.0.1"));
    let [first, later] = ["10.9.0.2", "10.9.0.3"].map(address);
    east.handle_timeout(NOW);
    east.solicit(first);
    east.handle_timeout(NOW + SECOND / 2);
    east.solicit(later);
    while east.poll_transmit().is_some() {}
    east.handle_timeout(NOW + SECOND);
    assert!(east.poll_transmit().is_some());
}
