//! Targets of the wire crate: every parser, held to `parse(emit(x)) == x`.

use crate::input::Input;
use std::net::IpAddr;
use trunkline_wire::{
    AckPayload, Aeth, Answer, AtomicAckEth, AtomicEth, Bth, Close, Cnp, Control, Deth, Header,
    IcrcSeed, Ieth, ImmDt, Path, Reth, SrcExt, icrc, rnr_timer_ns,
};

/// Reads `$data` as a header; what it reads must survive being written and read again, and the rest
/// must be what stands behind it.
macro_rules! law {
    ($data:expr, $($header:ty),+) => {
        $(if let Ok((header, rest)) = <$header>::read($data) {
            assert_eq!(rest, &$data[<$header>::LEN..]);
            let bytes = header.to_bytes();
            let (again, _) = <$header>::read(&bytes).expect("what was written can be read");
            assert_eq!(again, header);
            assert_eq!(again.to_bytes(), bytes);
        })+
    };
}

/// Target `headers`: all headers over the same bytes, and the walk over those behind a BTH.
///
/// # Panics
/// When the law is broken.
pub fn headers(data: &[u8]) {
    law!(
        data,
        Bth,
        Deth,
        Reth,
        Aeth,
        AtomicEth,
        AtomicAckEth,
        ImmDt,
        Ieth,
        Cnp
    );
    law!(data, SrcExt, Answer, Control, Close);
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
    if let Ok(ack) = AckPayload::parse(data) {
        let words: Vec<_> = ack.words().collect();
        assert!(words.len() <= AckPayload::MAX_WORDS);
        let mut out = vec![0; AckPayload::length(words.len())];
        let length = AckPayload::emit(ack.ce_count, ack.delay_ns, &words, &mut out);
        assert_eq!(&out[..length], data);
    }
    if let Ok(entries) = Answer::entries(data) {
        assert_eq!(entries.len(), data.len() / Answer::LEN);
        for (entry, bytes) in entries.zip(data.chunks(Answer::LEN)) {
            let alone = Answer::read(bytes).map(|(entry, _)| entry);
            assert_eq!(entry, alone, "an entry depends on its neighbours");
        }
    }
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
