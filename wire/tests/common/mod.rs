//! What every frame of a capture has to pass, and the counts of packets by what they are.

mod names;

use std::collections::BTreeMap;
use std::path::Path as FilePath;
use trunkline_testkit::captures;
use trunkline_wire::cm::{CmMad, Message};
use trunkline_wire::{
    Content, Deth, Frame, Ip, NakCode, Opcode, Packet, Qpn, RdmaCmHeader, Roce, Syndrome, icrc,
    law, parse_datagram,
};

/// Packets by name, as INDEX.txt names them.
pub(crate) type Counts = BTreeMap<String, usize>;

/// Checks every frame of every capture that the folder's INDEX.txt names, and returns the counts of
/// all, with the number of frames as `frames`.
pub(crate) fn check_folder(folder: &FilePath) -> Counts {
    let mut total = Counts::new();
    let index = captures::index(folder);
    for (name, frames) in captures::files(folder) {
        let expected = &index[&name];
        let mut counts = Counts::new();
        for (number, frame) in frames.iter().enumerate() {
            for packet in check_frame(
                &frame.bytes,
                number,
                &format!("{name} frame {}", number + 1),
            ) {
                *counts.entry(packet).or_default() += 1;
            }
        }
        compare(&name, frames.len(), &counts, expected);
        counts.insert("frames".to_owned(), frames.len());
        for (packet, count) in counts {
            *total.entry(packet).or_default() += count;
        }
    }
    total
}

/// Files of 400 frames were cut there after they had been counted.
fn compare(name: &str, frames: usize, counts: &Counts, expected: &Counts) {
    if frames < 400 {
        assert_eq!(counts, expected, "{name}");
        return;
    }
    assert_eq!(frames, 400, "{name}");
    assert!(counts.keys().eq(expected.keys()), "{name}");
    for (packet, count) in counts {
        assert!(*count <= expected[packet], "{name}: {count} of {packet}");
    }
}

/// Names of the packets in a frame: its own, or one that an ICMP error quotes.
fn check_frame(bytes: &[u8], number: usize, place: &str) -> Vec<String> {
    let frame = Frame::parse(bytes).unwrap_or_else(|error| panic!("{place}: {error}"));
    let mut out = vec![0; frame.length()];
    assert_eq!(frame.emit(&mut out), bytes.len(), "{place}");
    assert_eq!(out, bytes, "{place}");
    assert!(law::frame(bytes), "{place}");
    if let Some(roce) = frame.roce() {
        return vec![check_roce(&roce, number, place)];
    }
    let Content::Ip { payload, .. } = frame.content else {
        panic!("{place} is neither RoCEv2 nor another protocol over IP");
    };
    // Type, code, checksum and an unused word; then the packet that could not be delivered.
    let quoted = &payload[8..];
    let (ip, payload, padding) = Ip::read(quoted).unwrap_or_else(|e| panic!("{place}: {e}"));
    assert!(padding.is_empty(), "{place}");
    let content = Content::of(ip, payload).unwrap_or_else(|e| panic!("{place}: {e}"));
    let roce = content
        .roce()
        .unwrap_or_else(|| panic!("{place} quotes no RoCEv2"));
    vec![check_roce(&roce, number, place)]
}

fn check_roce(roce: &Roce<'_>, number: usize, place: &str) -> String {
    let Roce {
        path,
        identification,
        datagram,
        ..
    } = *roce;
    assert!(roce.icrc_ok(), "{place}");
    assert!(icrc::verify(&path, identification, datagram), "{place}");
    let solved = icrc::solve_identification(&path, datagram);
    assert_eq!(
        solved,
        path.src.is_ipv4().then_some(identification),
        "{place}"
    );
    if path.src.is_ipv4() {
        assert!(!icrc::verify(&path, !identification, datagram), "{place}");
    }

    let mut sealed = datagram.to_vec();
    sealed[datagram.len() - 4..].fill(0);
    icrc::seal(&path, identification, &mut sealed);
    assert_eq!(sealed, datagram, "{place}");

    // Another bit in every frame; byte 4 of the BTH is not covered.
    let bits = (datagram.len() - 1) * 8;
    let bit = number.wrapping_mul(2_654_435_761) % bits;
    let bit = if bit < 32 { bit } else { bit + 8 };
    sealed[bit / 8] ^= 1 << (bit % 8);
    assert!(
        !icrc::verify(&path, identification, &sealed),
        "{place}: bit {bit}"
    );

    let packet = parse_datagram(datagram).unwrap_or_else(|error| panic!("{place}: {error}"));
    let mut out = vec![0xff; packet.length()];
    packet.emit(&mut out);
    assert_eq!(out, datagram, "{place}");
    name(&packet, place)
}

fn name(packet: &Packet<'_>, place: &str) -> String {
    if packet.bth.dest_qp == Qpn::GSI {
        return check_mad(packet, place);
    }
    if let (Opcode::RC_ACKNOWLEDGE, Some(aeth)) = (packet.opcode(), packet.aeth) {
        return match aeth.syndrome {
            Syndrome::Ack { credits } => format!("ACK({credits})"),
            Syndrome::RnrNak { timer } => format!("ACK({})", 0x20 | timer),
            Syndrome::Nak(NakCode::Reserved(code)) => panic!("{place}: NAK code {code}"),
            Syndrome::Nak(code) => format!("ACK({})", 0x60 | code.code()),
        };
    }
    names::abbreviated(packet.opcode().name())
}

fn check_mad(packet: &Packet<'_>, place: &str) -> String {
    let deth = Deth {
        qkey: Deth::GSI_QKEY,
        src_qp: Qpn::GSI,
    };
    assert_eq!(packet.deth, Some(deth), "{place}");
    let mad = CmMad::parse(packet.payload).unwrap_or_else(|error| panic!("{place}: {error}"));
    assert_eq!(mad.to_bytes(), packet.payload, "{place}");
    assert!(law::cm_mad(packet.payload), "{place}");
    let private_data = match &mad.message {
        Message::Req(req) => Some((req.service_id, &req.private_data.0[..])),
        Message::SidrReq(req) => Some((req.service_id, &req.private_data.0[..])),
        _ => None,
    };
    if let Some((service, bytes)) = private_data {
        assert!(service.ip_port().is_some(), "{place}");
        let header = RdmaCmHeader::read(bytes)
            .unwrap_or_else(|e| panic!("{place}: {e}"))
            .0;
        assert_eq!(header.to_bytes(), bytes[..RdmaCmHeader::LEN], "{place}");
    }
    mad.message.name().to_owned()
}
