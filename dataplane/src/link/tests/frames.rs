//! What becomes of frames that arrive, of any content: the check of fixed places agrees with taking
//! them apart.

use super::*;
use crate::link::alone::Heard;
use crate::link::datagram::datagram;
use proptest::collection::vec;
use proptest::prelude::*;
use trunkline_wire::{EtherType, Roce, Vlan};

/// What a frame carries for an address: found by taking it apart.
fn taken_apart(frame: &[u8], mac: Mac, address: IpAddr) -> Option<Roce<'_>> {
    let frame = Frame::parse(frame).ok()?;
    let is_ours = frame.vlan.is_none() && frame.eth.dst == mac;
    frame.roce().filter(|roce| {
        let src = roce.path.src;
        let is_a_host = src.is_ipv6() || src != IpAddr::from([255; 4]);
        let is_nobody = src.is_unspecified() || src.is_multicast() || src.is_loopback();
        is_ours
            && roce.path.dst == address
            && !roce.datagram.is_empty()
            && is_a_host
            && !is_nobody
            && src != address
    })
}

#[test]
fn on_a_loop_what_comes_from_a_loopback_address_is_for_any_address() {
    let (loopback, none) = (IpAddr::from([127, 0, 0, 1]), Mac::default());
    let mut ends = pair(FAMILIES[0]);
    let [one, other] = &mut ends;
    let path = Path {
        src: loopback,
        ..path(one, other.address)
    };
    let frame = Frame::for_datagram(none, none, &path, 1, &[7; 64]);
    let mut bytes = vec![0; frame.length()];
    frame.emit(&mut bytes);
    let found = datagram(&bytes, none, other.address).unwrap();
    assert_eq!((found.path.src, found.datagram.len()), (loopback, 64));
}

/// What a kernel drops as martian is not taken either.
#[test]
fn what_says_that_it_comes_from_no_host_or_from_us_is_malformed() {
    for (family, sources) in [
        (
            0,
            vec![
                "127.0.0.1",
                "224.0.0.1",
                "255.255.255.255",
                "0.0.0.0",
                "own",
            ],
        ),
        (1, vec!["::1", "ff02::1", "::", "own"]),
    ] {
        for source in sources {
            let mut ends = pair(FAMILIES[family]);
            let [one, other] = &mut ends;
            let src = match source {
                "own" => other.address,
                address => address.parse().unwrap(),
            };
            let path = Path {
                src,
                ..path(one, other.address)
            };
            let frame = Frame::for_datagram(MACS[1], MACS[0], &path, 1, &[7; 64]);
            let mut bytes = vec![0; frame.length()];
            frame.emit(&mut bytes);
            one.device.put(&bytes);
            assert_eq!(receive(other), [], "{source}");
            assert_eq!(moved(other), (0, 1, 0), "{source}");
        }
    }
}

/// What is done to a frame.
#[derive(Clone, Debug)]
enum Change {
    /// One byte of the headers, wherever it is.
    Byte {
        at: usize,
        to: u8,
    },
    /// One bit of them.
    Bit {
        at: usize,
        bit: u8,
    },
    /// A field that decides, by a value that is near.
    Near {
        field: usize,
        by: u8,
    },
    /// One flag of IPv4, or one bit of the place of a fragment.
    Flag(u8),
    /// Both lengths, by as much.
    Lengths(i16),
    Cut(usize),
    Padding(usize),
    Tag,
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let change = prop_oneof![
        (0_usize..70, any::<u8>()).prop_map(|(at, to)| Change::Byte { at, to }),
        (0_usize..70, 0_u8..8).prop_map(|(at, bit)| Change::Bit { at, bit }),
        (0_usize..16, any::<u8>()).prop_map(|(field, by)| Change::Near { field, by }),
        (-70_i16..70).prop_map(Change::Lengths),
        (0_usize..120).prop_map(Change::Cut),
        (1_usize..40).prop_map(Change::Padding),
        (0_u8..16).prop_map(Change::Flag),
        Just(Change::Tag),
    ];
    vec(change, 0..4)
}

/// Adds to the 16 bits at a place, if there are.
fn add(frame: &mut [u8], at: usize, by: i16) {
    if let Some([high, low]) = frame.get_mut(at..at + 2) {
        let word = u16::from_be_bytes([*high, *low]).wrapping_add_signed(by);
        [*high, *low] = word.to_be_bytes();
    }
}

fn changed(frame: &mut Vec<u8>, is_v4: bool, change: &Change) {
    let (length, udp) = if is_v4 { (16, 34) } else { (18, 54) };
    match *change {
        Change::Byte { at, to } => {
            if let Some(byte) = frame.get_mut(at) {
                *byte = to;
            }
        }
        Change::Bit { at, bit } => {
            if let Some(byte) = frame.get_mut(at) {
                *byte ^= 1 << bit;
            }
        }
        Change::Near { field, by } => {
            let fields = [
                0,
                5,
                12,
                13,
                14,
                15,
                20,
                21,
                23,
                33,
                53,
                udp + 2,
                udp + 3,
                udp + 4,
            ];
            let at = fields.get(field).copied().unwrap_or(udp + 5);
            if let Some(byte) = frame.get_mut(at) {
                *byte = byte.wrapping_add(by % 4).wrapping_sub(1);
            }
        }
        Change::Lengths(by) => {
            add(frame, length, by);
            add(frame, udp + 4, by);
        }
        Change::Cut(by) => frame.truncate(frame.len().saturating_sub(by)),
        Change::Padding(by) => frame.resize(frame.len() + by, 0),
        Change::Tag => {
            if frame.len() >= 12 {
                let tag = [EtherType::VLAN.0.to_be_bytes(), [0, 3]].concat();
                assert_eq!(tag.len(), Vlan::LEN);
                frame.splice(12..12, tag);
            }
        }
        Change::Flag(bit) if is_v4 => {
            let [high, low] = (1_u16 << bit).to_be_bytes();
            for (at, flag) in [(20, high), (21, low)] {
                if let Some(byte) = frame.get_mut(at) {
                    *byte ^= flag;
                }
            }
        }
        Change::Flag(_) => {}
    }
}

/// Makes the checksum of an IPv4 header right.
fn sum(frame: &mut [u8]) {
    if let Some(ip) = frame.get_mut(14..34) {
        ip[10..12].fill(0);
        let sum = !InternetSum::default().with(ip).folded();
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
    }
}

/// Counters that a frame moves, and whether it is given.
fn expected(port: &Alone, frame: &[u8]) -> (u64, u64, u64) {
    if taken_apart(frame, MACS[1], port.address).is_some() {
        return (1, 0, 0);
    }
    let Owner::Ports(alone) = &port.owner else {
        unreachable!("the interface has no kernel")
    };
    match alone.hear(frame, port.now) {
        Heard::Malformed => (0, 1, 0),
        Heard::Foreign => (0, 0, 1),
        Heard::Neighbour | Heard::Error(_) => (0, 0, 0),
    }
}

fn moved(port: &Alone) -> (u64, u64, u64) {
    let PortCounters {
        received,
        malformed,
        foreign,
        ..
    } = port.counters();
    (received, malformed, foreign)
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(2000)
    })]

    #[test]
    fn the_check_of_fixed_places_agrees_with_taking_frames_apart(
        family in 0_usize..2,
        length in 0_usize..80,
        (src_port, traffic_class, identification) in any::<(u16, u8, u16)>(),
        changes in changes(),
        is_summed in prop::bool::weighted(0.8),
    ) {
        let mut ends = pair(FAMILIES[family]);
        let [one, other] = &mut ends;
        let path = Path { src_port, traffic_class, ..path(one, other.address) };
        let content = vec![7; length];
        let plain = Frame::for_datagram(MACS[1], MACS[0], &path, identification, &content);
        let mut frame = vec![0; plain.length()];
        plain.emit(&mut frame);
        for change in &changes {
            changed(&mut frame, path.src.is_ipv4(), change);
        }
        if is_summed && path.src.is_ipv4() {
            sum(&mut frame);
        }

        let careful = taken_apart(&frame, MACS[1], other.address);
        prop_assert_eq!(datagram(&frame, MACS[1], other.address), careful);
        prop_assert!(!changes.is_empty() || careful.is_some() == (length > 0));
        let expected = expected(other, &frame);
        one.device.put(&frame);
        let given = receive(other);
        prop_assert_eq!(moved(other), expected);
        let given = given.iter().map(|(arrival, bytes)| (arrival.path, &bytes[..]));
        let careful = careful.iter().map(|roce| (roce.path, roce.datagram));
        prop_assert!(given.eq(careful));
    }

    #[test]
    fn arbitrary_bytes_are_a_datagram_where_taking_them_apart_says_so(
        bytes in vec(any::<u8>(), 0..120),
    ) {
        for address in FAMILIES.as_flattened() {
            let address = address.parse().unwrap();
            let careful = taken_apart(&bytes, MACS[1], address);
            prop_assert_eq!(datagram(&bytes, MACS[1], address), careful);
        }
    }
}
