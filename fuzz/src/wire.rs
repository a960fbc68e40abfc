//! Targets of the wire crate: every parser, held to `parse(emit(x)) == x`.

use crate::input::Input;
use std::net::IpAddr;
use trunkline_wire::{
    AckPayload, Answer, Bth, Control, Header, IcrcSeed, IpFields, Path, Record, Records, icrc, law,
    rnr_timer_ns,
};

/// The law of every header of fixed length.
const LAWS: &[fn(&[u8]) -> bool] = &[
    law::eth,
    law::vlan,
    law::ipv4,
    law::ipv6,
    law::udp,
    law::bth,
    law::deth,
    law::reth,
    law::aeth,
    law::atomic_eth,
    law::atomic_ack_eth,
    law::imm_dt,
    law::ieth,
    law::cnp,
    law::src_ext,
    law::answer,
    law::control,
    law::close,
    law::mad_header,
    law::rdma_cm_header,
];

/// Target `headers`: all headers over the same bytes, and the walk over those behind a BTH.
///
/// # Panics
/// When a law is broken.
pub fn headers(data: &[u8]) {
    for law in LAWS {
        law(data);
    }
    let Ok((bth, rest)) = Bth::read(data) else {
        return;
    };
    assert!(rnr_timer_ns(bth.pad) > 0);
    assert!(!bth.opcode.name().is_empty());
    let Some(headers) = bth.opcode.headers() else {
        return;
    };
    let mut seen = 0;
    let mut before: Option<Header> = None;
    for (header, bytes) in headers.walk(rest) {
        assert_eq!(bytes.len(), header.length());
        assert!(headers.contains(header));
        assert!(
            before.is_none_or(|before| (before as u16) < header as u16),
            "out of order"
        );
        before = Some(header);
        seen += bytes.len();
    }
    assert!(seen <= headers.length() && seen <= rest.len());
    assert!(
        rest.len() < headers.length() || seen == headers.length(),
        "the walk ended early"
    );
}

/// Target `payloads`: acknowledgement bitmaps, answers and control entries.
///
/// # Panics
/// When the law is broken.
pub fn payloads(data: &[u8]) {
    law::ack(data);
    if let Ok(ack) = AckPayload::parse(data) {
        assert!(ack.words().len() <= AckPayload::MAX_WORDS);
    }
    if let Ok(entries) = Answer::entries(data) {
        assert_eq!(entries.len(), data.len() / Answer::LEN);
        for (entry, bytes) in entries.zip(data.chunks(Answer::LEN)) {
            let alone = Answer::read(bytes).map(|(entry, _)| entry);
            assert_eq!(entry, alone, "an entry depends on its neighbours");
        }
    }
    let records = Records::of(data);
    let ends = records.map_while(|record| record.ok()).map(|record| {
        Record::parse(record.header).expect("it is known");
        Record::LEN + record.further.len() + record.payload.len()
    });
    assert!(ends.sum::<usize>() <= data.len());
    assert_eq!(
        records.check().ok(),
        records
            .collect::<Result<Vec<_>, _>>()
            .ok()
            .map(|all| all.len())
    );
    if let Ok(entries) = Control::entries(data) {
        assert_eq!(entries.len(), data.len() / Control::LEN);
        for (entry, bytes) in entries.zip(data.chunks(Control::LEN)) {
            let alone = Control::read(bytes).map(|(entry, _)| entry);
            assert_eq!(entry, alone, "an entry depends on its neighbours");
        }
    }
}

/// Longest datagram over IPv4: 65,535 without the IP and UDP headers.
const MAX_DATAGRAM: usize = 65_507;

/// A path whose addresses come from the input.
fn path(input: &mut Input<'_>) -> Path {
    let (src, dst) = if input.flag() {
        (
            IpAddr::from(input.array::<16>()),
            IpAddr::from(input.array::<16>()),
        )
    } else {
        (
            IpAddr::from(input.array::<4>()),
            IpAddr::from(input.array::<4>()),
        )
    };
    Path {
        src,
        dst,
        src_port: input.u16(),
        traffic_class: input.byte(),
        ip: IpFields::DEFAULT,
    }
}

/// Target `checksum`: sealing, verifying and solving for the identification over any bytes.
///
/// # Panics
/// When a sealed datagram does not verify, a damaged one does, or another identification is found.
pub fn checksum(data: &[u8]) {
    let mut input = Input::new(data);
    let path = path(&mut input);
    let (identification, damage) = (input.u16(), input.u32());
    let datagram = input.bytes(MAX_DATAGRAM);
    let seed = IcrcSeed::new(&path);
    // As it came: any verdict, but the two ways to ask must agree.
    let verdict = seed.verify(identification, datagram);
    assert_eq!(verdict, icrc::verify(&path, identification, datagram));
    let solved = seed.solve_identification(datagram);
    assert!(solved.is_none_or(|solved| seed.verify(solved, datagram)));
    if verdict && path.src.is_ipv4() {
        assert_eq!(solved, Some(identification));
    }
    if datagram.len() < Bth::LEN + icrc::LEN {
        assert!(!verdict && solved.is_none());
        return;
    }
    let mut sealed = datagram.to_vec();
    seed.seal(identification, &mut sealed);
    assert!(seed.verify(identification, &sealed));
    let body = sealed.len() - icrc::LEN;
    assert_eq!(
        sealed[..body],
        datagram[..body],
        "more than the trailer was written"
    );
    if path.src.is_ipv4() {
        assert_eq!(seed.solve_identification(&sealed), Some(identification));
        assert!(!seed.verify(identification ^ 1, &sealed));
    }
    let at = damage as usize % (sealed.len() * 8);
    sealed[at / 8] ^= 1 << (at % 8);
    // A switch may change byte 4 of the BTH, so it is not covered.
    assert_eq!(seed.verify(identification, &sealed), at / 8 == 4);
}
