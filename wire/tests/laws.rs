//! The laws of all parsers on arbitrary bytes, made valid where chance would hardly do it.

use proptest::collection::vec;
use proptest::prelude::*;
use std::net::IpAddr;
use trunkline_testkit::captures;
use trunkline_wire::cm::CmMad;
use trunkline_wire::{Answer, Bth, Header, IcrcSeed, IpFields, Opcode, Path, law};

/// A law, the bytes its header takes, and what makes arbitrary bytes valid.
type Case = (fn(&[u8]) -> bool, usize, fn(&mut [u8]));

fn as_they_are(_: &mut [u8]) {}

/// Version, flags and checksum of IPv4.
fn ipv4(bytes: &mut [u8]) {
    bytes[0] = 0x45;
    bytes[2] |= 1;
    bytes[6] &= 0x7f;
    bytes[10..12].fill(0);
    let words = bytes[..20]
        .chunks(2)
        .map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    bytes[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// A type of syndrome that has a meaning.
fn syndrome(byte: &mut u8) {
    *byte &= 0x7f;
    if *byte >> 5 == 2 {
        *byte |= 0x20;
    }
}

const CASES: &[Case] = &[
    (law::eth, 14, as_they_are),
    (law::vlan, 4, as_they_are),
    (law::ipv4, 20, ipv4),
    (law::ipv6, 40, |b| b[0] = b[0] & 0xf | 0x60),
    (law::udp, 8, |b| b[4] |= 1),
    (law::bth, 12, |b| b[1] &= 0xf0),
    (law::deth, 8, as_they_are),
    (law::reth, 16, as_they_are),
    (law::aeth, 4, |b| syndrome(&mut b[0])),
    (law::atomic_eth, 28, as_they_are),
    (law::atomic_ack_eth, 8, as_they_are),
    (law::imm_dt, 4, as_they_are),
    (law::ieth, 4, as_they_are),
    (law::cnp, 16, as_they_are),
    (law::src_ext, 40, |b| b[0] = b[0] & 0xf | 0x10),
    (law::answer, Answer::LEN, |b| syndrome(&mut b[3])),
    (law::control, 20, |b| b[0] = b[0] % 4 + 1),
    (law::close, 4, as_they_are),
    (law::mad_header, 24, |b| b[0] = 1),
    (law::rdma_cm_header, 36, |b| {
        (b[0], b[1]) = (0, if b[1] & 1 == 0 { 0x40 } else { 0x60 })
    }),
    (law::req, 232, as_they_are),
    (law::rep, 232, as_they_are),
    (law::rtu, 232, as_they_are),
    (law::rej, 232, as_they_are),
    (law::mra, 232, as_they_are),
    (law::dreq, 232, as_they_are),
    (law::drep, 232, as_they_are),
    (law::lap, 232, as_they_are),
    (law::apr, 232, as_they_are),
    (law::sidr_req, 232, as_they_are),
    (law::sidr_rep, 232, as_they_are),
];

proptest! {
    // Integration tests have no place for files of failed cases.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_header_comes_back_and_needs_all_its_bytes(bytes in vec(any::<u8>(), 240)) {
        for (number, &(law, length, make_valid)) in CASES.iter().enumerate() {
            law(&bytes);
            let mut valid = bytes.clone();
            make_valid(&mut valid);
            prop_assert!(law(&valid), "law {}", number);
            prop_assert!(law(&valid[..length]), "law {}", number);
            prop_assert!(!law(&valid[..length - 1]), "law {}", number);
        }
    }

    #[test]
    fn acknowledgements_come_back(words in 0_usize..=64, bytes in vec(any::<u8>(), 520)) {
        prop_assert!(law::ack(&bytes[..8 + 8 * words]));
        prop_assert!(!law::ack(&bytes[..7 + 8 * words]));
    }

    #[test]
    fn datagrams_of_every_opcode_come_back(
        opcode in proptest::sample::select(Opcode::KNOWN),
        bytes in vec(any::<u8>(), 80..400),
        payload in 0_usize..200,
        pad in 0_u8..4,
    ) {
        let datagram = valid_datagram(opcode, &bytes, payload, pad);
        prop_assert!(law::datagram(&datagram), "{opcode}");
    }

    #[test]
    fn management_datagrams_come_back(attribute in 0x10_u8..=0x1a, bytes in vec(any::<u8>(), 256)) {
        let mut mad = bytes.clone();
        mad[..4].copy_from_slice(&[1, 7, 2, 3]);
        (mad[16], mad[17]) = (0, attribute);
        prop_assert!(law::cm_mad(&mad));
        let mad = CmMad::parse(&mad).expect("it has just passed");
        prop_assert_eq!(mad.message.attribute(), u16::from(attribute));
        law::cm_mad(&bytes);
    }

    #[test]
    fn arbitrary_bytes_never_make_a_parser_panic(bytes in vec(any::<u8>(), 0..600)) {
        law::frame(&bytes);
        law::ip(&bytes);
        law::datagram(&bytes);
        law::cm_mad(&bytes);
        law::ack(&bytes);
    }

    #[test]
    fn damaged_frames_never_make_a_parser_panic(
        number in 0_usize..55,
        cut: proptest::sample::Index,
        flips in vec(any::<proptest::sample::Index>(), 0..8),
    ) {
        let mut frame = golden_frames()[number].clone();
        for flip in flips {
            let bit = flip.index(frame.len() * 8);
            frame[bit / 8] ^= 1 << (bit % 8);
        }
        law::frame(&frame);
        law::frame(&frame[..cut.index(frame.len() + 1)]);
        // Past the checks of the outer headers.
        law::ip(&frame[14..]);
        law::datagram(&frame[42..]);
    }

    #[test]
    fn a_solved_identification_makes_the_icrc_right(
        bytes in vec(any::<u8>(), 16..200),
        addresses: [std::net::Ipv4Addr; 2],
        src_port: u16,
        identification: u16,
    ) {
        let [src, dst] = addresses.map(IpAddr::from);
        let path = Path { src, dst, src_port, traffic_class: 0,
 ip: IpFields::DEFAULT,
};
        law::solve(&path, &bytes);
        let mut sealed = bytes;
        IcrcSeed::new(&path).seal(identification, &mut sealed);
        prop_assert!(law::solve(&path, &sealed));
    }
}

fn valid_datagram(opcode: Opcode, bytes: &[u8], payload: usize, pad: u8) -> Vec<u8> {
    let src = opcode.is_src();
    let mut out = bytes[..Bth::LEN].to_vec();
    out[0] = opcode.0;
    let mut payload = match opcode {
        Opcode::SRC_ATOMIC_RESP => 8,
        Opcode::SRC_CLOSE => 4,
        _ if opcode.has_payload() => payload,
        _ => 0,
    };
    // IBTA transports fill the payload up to a multiple of four.
    let fill = if src {
        0
    } else {
        payload.next_multiple_of(4) - payload
    };
    let pad = if src || payload == 0 {
        0
    } else {
        pad.max(fill as u8)
    };
    if !src {
        payload = payload.next_multiple_of(4);
    }
    out[1] = out[1] & 0xc0 | pad << 4;
    let mut more = bytes.iter().cycle().copied();
    for header in opcode.headers().expect("it is known").iter() {
        let start = out.len();
        out.extend(more.by_ref().take(header.length()));
        match header {
            Header::Aeth => syndrome(&mut out[start]),
            Header::SrcExt => {
                out[start] = out[start] & 0xf | 0x10;
                if out[start] & 2 != 0 {
                    payload += 4; // the header checksum
                }
            }
            _ => {}
        }
    }
    out.extend(more.take(payload + 4));
    out
}

fn golden_frames() -> &'static [Vec<u8>] {
    static FRAMES: std::sync::OnceLock<Vec<Vec<u8>>> = std::sync::OnceLock::new();
    FRAMES.get_or_init(|| {
        let files = captures::files(&captures::golden()).into_iter();
        let frames = files.flat_map(|(_, frames)| frames.into_iter().map(|frame| frame.bytes));
        frames.collect()
    })
}
