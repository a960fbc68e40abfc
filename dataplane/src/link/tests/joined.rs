//! Super-packets: frames in which datagrams leave together, where the device takes such.

use super::*;
use crate::prng::Prng;
use trunkline_wire::{InternetSum, icrc};

/// Two ports whose devices take super-packets of so many bytes.
fn joining(addresses: [&str; 2], most: usize) -> [Alone; 2] {
    let mut ends = pair(addresses);
    meet(&mut ends);
    for end in &mut ends {
        end.device.most = Some(most);
    }
    ends
}

/// Puts a datagram of so many bytes into the port: gives it as it was sealed for the identification
/// that it was promised.
fn put(port: &mut Alone, path: &Path, length: usize, tag: u8) -> Option<Vec<u8>> {
    let slot = port.reserve(path, length)?;
    slot.datagram.fill(tag);
    icrc::seal(path, slot.identification, slot.datagram);
    let datagram = slot.datagram.to_vec();
    port.commit();
    Some(datagram)
}

#[test]
fn datagrams_that_leave_together_arrive_as_they_were_sealed_whatever_is_between_them() {
    for (addresses, seed) in FAMILIES
        .into_iter()
        .flat_map(|a| (0..20).map(move |s| (a, s)))
    {
        let mut prng = Prng::new(seed);
        let most = 9014 + prng.below(50_000) as usize;
        let [mut one, mut other] = joining(addresses, most);
        let before = (one.counters(), other.counters());
        let mut expected = Vec::new();
        for step in 0..600_u64 {
            let path = Path {
                src_port: ROCE_PORT + prng.below(8) as u16 / 7,
                ..path(&one, other.address)
            };
            let length = [64, 64, 64, 80, 1040, 4136][prng.below(6) as usize];
            if prng.chance(50_000) {
                // It is never committed.
                let _ = one.reserve(&path, length);
            }
            if prng.chance(20_000) {
                one.flush().unwrap();
            }
            let datagram = put(&mut one, &path, length, step as u8).unwrap();
            expected.push((path, datagram));
        }
        one.flush().unwrap();
        let got = receive(&mut other);
        assert_eq!(got.len(), expected.len(), "{seed}");
        for ((arrival, bytes), (path, datagram)) in got.iter().zip(&expected) {
            assert_eq!((arrival.path, bytes), (*path, datagram), "{seed}");
            let Identification::Seen(seen) = arrival.identification else {
                panic!("it sees what it gets");
            };
            assert!(icrc::verify(path, seen, bytes), "{seed}: {seen}");
        }
        let (sent, received) = (one.counters(), other.counters());
        assert_eq!(sent.sent - before.0.sent, 600);
        let bytes: usize = expected.iter().map(|(_, datagram)| datagram.len()).sum();
        assert_eq!(sent.sent_bytes - before.0.sent_bytes, bytes as u64);
        let supers = sent.super_packets_sent;
        assert!((50..300).contains(&supers), "{seed}: {supers}");
        assert_eq!(received.super_packets_received, supers);
        assert_eq!((received.malformed, received.foreign), (0, 0));
    }
}

/// What becomes a wire's frames is right for the whole, too: hosts on the way look at it.
#[test]
fn a_super_packet_is_a_frame_whose_checksum_is_left_to_finish() {
    for addresses in FAMILIES {
        let [mut one, mut other] = joining(addresses, 65_536);
        let path = path(&one, other.address);
        for _ in 0..5 {
            put(&mut one, &path, 100, 7).unwrap();
        }
        put(&mut one, &path, 60, 8).unwrap();
        one.flush().unwrap();
        let (frame, left) = other.device.take_sent().unwrap();
        assert_eq!(other.device.take_sent(), None);
        let Offload { udp, joined } = left.unwrap();
        let joined = joined.unwrap();
        assert_eq!((joined.segment, joined.count), (100, 6));
        let packet = &frame[udp..];
        assert_eq!(packet.len(), headers::UDP + 560);
        assert_eq!(packet[4..6], (packet.len() as u16).to_be_bytes());
        // The sum of the pseudo header is where the checksum belongs.
        let pseudo = InternetSum::of_pseudo_header(&path, packet.len() as u16);
        assert_eq!(packet[6..8], pseudo.folded().to_be_bytes());
        let roce = datagram::datagram(&frame, MACS[1], other.address).expect("a frame for it");
        assert_eq!((roce.path, roce.datagram.len()), (path, 560));
    }
}

#[test]
fn no_more_datagrams_leave_together_than_kernels_take() {
    let [mut one, mut other] = joining(FAMILIES[0], 80_000);
    let path = path(&one, other.address);
    for _ in 0..65 {
        put(&mut one, &path, 64, 1).unwrap();
    }
    // 15 of these are 62,040 bytes, and 16 more than a frame has.
    for _ in 0..16 {
        put(&mut one, &path, 4136, 2).unwrap();
    }
    one.flush().unwrap();
    assert_eq!(counts(&mut other), [64, 1, 15, 1]);
}

/// How many datagrams are in each frame that came.
fn counts(port: &mut Alone) -> Vec<u8> {
    std::iter::from_fn(|| port.device.take_sent())
        .map(|(_, left)| {
            left.and_then(|left| left.joined)
                .map_or(1, |joined| joined.count)
        })
        .collect()
}

#[test]
fn datagrams_for_another_queue_of_the_receiver_leave_in_another_frame() {
    let [mut one, mut other] = joining(FAMILIES[0], 65_536);
    let path = path(&one, other.address);
    for is_another in [false, false, true, false, false] {
        if is_another {
            one.part();
        }
        put(&mut one, &path, 64, 1).unwrap();
    }
    one.flush().unwrap();
    assert_eq!(counts(&mut other), [2, 3]);
}

#[test]
fn who_asks_for_an_address_while_datagrams_are_put_together_is_answered_besides() {
    let [mut one, mut other] = joining(FAMILIES[0], 65_536);
    let path = path(&one, other.address);
    let sent = [
        put(&mut one, &path, 64, 1).unwrap(),
        put(&mut one, &path, 64, 2).unwrap(),
    ];
    let (IpAddr::V4(here), IpAddr::V4(there)) = (one.address, other.address) else {
        panic!("these are of IPv4");
    };
    let mut question = Vec::new();
    question.extend([[0xff; 6], MACS[1].0].concat());
    question.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    question.extend([&MACS[1].0[..], &there.octets(), &[0; 6], &here.octets()].concat());
    other.device.put(&question);
    assert!(receive(&mut one).is_empty());
    one.flush().unwrap();
    let frames: Vec<_> = std::iter::from_fn(|| other.device.take_sent()).collect();
    let [(frame, left), (answer, _)] = &frames[..] else {
        panic!("{} frames", frames.len());
    };
    assert_eq!(left.unwrap().joined.unwrap().count, 2);
    assert!(frame.ends_with(&sent.concat()));
    assert_eq!(answer[12..14], [8, 6]);
}

#[test]
fn an_interface_that_gets_another_address_amid_a_super_packet_loses_nothing_behind_it() {
    const OTHER_MAC: Mac = Mac([2, 0, 0, 0, 0, 9]);
    for addresses in FAMILIES {
        let [mut one, mut other] = joining(addresses, 65_536);
        let path = path(&one, other.address);
        let mut send = |tag| {
            let datagrams = (0..8).map(|_| put(&mut one, &path, 64, tag).unwrap());
            let datagrams: Vec<_> = datagrams.collect();
            one.flush().unwrap();
            datagrams
        };
        send(1);
        assert_eq!(other.receive(5, &mut |_, _| {}).unwrap(), 5);
        other.arrivals.readdress(OTHER_MAC);
        assert!(receive(&mut other).is_empty(), "it is for nobody here");
        assert!(!other.fetch().unwrap(), "nothing more is there");
        assert!(receive(&mut other).is_empty());
        let expected = send(2);
        let (mut frame, left) = other.device.take_sent().unwrap();
        frame[..6].copy_from_slice(&OTHER_MAC.0);
        one.device.put_sent(frame, left);
        let got = receive(&mut other)
            .into_iter()
            .map(|(_, datagram)| datagram);
        assert!(got.eq(expected));
    }
}
