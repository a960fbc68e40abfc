//! Targets for whole packets: datagrams, Ethernet frames, management datagrams.

use trunkline_wire::cm::CmMad;
use trunkline_wire::{
    Bth, Frame, MAD_LEN, MadHeader, Opcode, ServiceId, icrc, law, parse_datagram,
};

/// Target `datagram`: what follows a UDP header.
///
/// # Panics
/// When what was parsed is not what is written again, or lengths disagree.
pub fn datagram(data: &[u8]) {
    let Ok(packet) = parse_datagram(data) else {
        return;
    };
    assert_eq!(packet.length(), data.len());
    assert_eq!(packet.pad.len(), usize::from(packet.bth.pad));
    assert!(packet.bth.opcode.is_known());
    assert!(packet.bth.opcode.has_payload() || packet.payload.is_empty());
    let mut out = vec![0; data.len()];
    assert_eq!(packet.emit(&mut out), data.len());
    assert_eq!(
        parse_datagram(&out),
        Ok(packet),
        "a packet does not survive being written"
    );
    // Only reserved bits of headers may differ.
    let headers = packet.headers_length();
    assert_eq!(out[headers..], data[headers..]);
    // What the parser took, the same packet with another opcode may not break either.
    let known = Opcode::KNOWN;
    out[0] = known[usize::from(data[Bth::LEN - 1]) % known.len()].0;
    if let Ok(other) = parse_datagram(&out) {
        assert_eq!(other.length(), out.len());
    }
}

/// Target `frame`: what a port or a capture file holds.
///
/// # Panics
/// When a frame does not survive being written, or is judged differently afterwards.
pub fn frame(data: &[u8]) {
    law::ip(data);
    let Ok(frame) = Frame::parse(data) else {
        return;
    };
    assert_eq!(frame.length(), data.len());
    let mut out = vec![0; data.len()];
    assert_eq!(frame.emit(&mut out), data.len());
    assert_eq!(
        Frame::parse(&out),
        Ok(frame),
        "a frame does not survive being written"
    );
    let Some(roce) = frame.roce() else { return };
    if let Ok(packet) = parse_datagram(roce.datagram) {
        let verdict = roce.header_crc_ok(&packet);
        assert_eq!(verdict.is_some(), packet.header_crc.is_some());
    }
    if roce.icrc_ok() {
        assert!(roce.datagram.len() >= Bth::LEN + icrc::LEN);
    }
    datagram(roce.datagram);
}

/// The law of every message of connection management.
const MESSAGES: &[fn(&[u8]) -> bool] = &[
    law::req,
    law::rep,
    law::rtu,
    law::rej,
    law::mra,
    law::dreq,
    law::drep,
    law::lap,
    law::apr,
    law::sidr_req,
    law::sidr_rep,
];

/// Target `management`: what QP1 receives.
///
/// # Panics
/// When a message does not survive being written.
pub fn management(data: &[u8]) {
    // A fuzzer should not have to learn a length that every port delivers.
    let mut mad = [0; MAD_LEN];
    let length = data.len().min(MAD_LEN);
    mad[..length].copy_from_slice(&data[..length]);
    for law in MESSAGES {
        law(&mad[MadHeader::LEN..]);
    }
    law::cm_mad(data);
    if let Ok(message) = CmMad::parse(&mad) {
        assert!(!message.message.name().is_empty());
        let bytes = message.to_bytes();
        assert_eq!(
            CmMad::parse(&bytes).as_ref(),
            Ok(&message),
            "it does not survive"
        );
        let (header, _) = MadHeader::read(&bytes).expect("it was just parsed");
        assert_eq!(header.attribute, message.message.attribute());
    }
    if let Some(id) = data
        .first_chunk()
        .map(|id| ServiceId(u64::from_be_bytes(*id)))
        && let Some((protocol, port)) = id.ip_port()
    {
        assert_eq!(ServiceId::ip(protocol, port), id);
    }
}
