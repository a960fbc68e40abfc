//! What has to hold for any bytes whatever: a parser refuses them, or what it made of them comes
//! back after being written and read again.
//!
//! One function per parser, for property tests and fuzz targets. Each returns whether the bytes
//! were valid, and panics when the law is broken.

use crate::cm::{Apr, CmMad, Drep, Dreq, Lap, Mra, Rej, Rep, Req, Rtu, SidrRep, SidrReq};
use crate::{
    AckPayload, Aeth, Answer, AtomicAckEth, AtomicEth, Bth, Close, Cnp, Content, Control, Deth,
    Eth, Frame, Ieth, ImmDt, Ip, Ipv4, Ipv6, MAD_LEN, MadHeader, RdmaCmHeader, Reth, SrcExt, Udp,
    Vlan, icrc, parse_datagram,
};

/// Room for the longest frame that a length of 16 bits allows.
const ROOM: usize = 1 << 17;

macro_rules! laws {
    ($($name:ident of $repr:ty;)*) => {
        $(#[doc = concat!("The law of [`", stringify!($repr), "`].")]
        pub fn $name(bytes: &[u8]) -> bool {
            let Ok((header, rest)) = <$repr>::read(bytes) else {
                return false;
            };
            assert_eq!(rest.len() + <$repr>::LEN, bytes.len());
            let again = header.to_bytes();
            assert_eq!(<$repr>::read(&again), Ok((header, &[][..])));
            true
        })*
    };
}

laws! {
    eth of Eth;
    vlan of Vlan;
    ipv4 of Ipv4;
    ipv6 of Ipv6;
    udp of Udp;
    bth of Bth;
    deth of Deth;
    reth of Reth;
    aeth of Aeth;
    atomic_eth of AtomicEth;
    atomic_ack_eth of AtomicAckEth;
    imm_dt of ImmDt;
    ieth of Ieth;
    cnp of Cnp;
    src_ext of SrcExt;
    answer of Answer;
    control of Control;
    close of Close;
    mad_header of MadHeader;
    rdma_cm_header of RdmaCmHeader;
    req of Req;
    rep of Rep;
    rtu of Rtu;
    rej of Rej;
    mra of Mra;
    dreq of Dreq;
    drep of Drep;
    lap of Lap;
    apr of Apr;
    sidr_req of SidrReq;
    sidr_rep of SidrRep;
}

/// The law of [`AckPayload`].
pub fn ack(bytes: &[u8]) -> bool {
    let Ok(ack) = AckPayload::parse(bytes) else {
        return false;
    };
    let mut words = [0; AckPayload::MAX_WORDS];
    let count = ack.words().len();
    for (place, word) in words.iter_mut().zip(ack.words()) {
        *place = word;
    }
    let mut out = [0; AckPayload::length(AckPayload::MAX_WORDS)];
    let length = AckPayload::emit(ack.ce_count, ack.delay_ns, &words[..count], &mut out);
    assert_eq!(&out[..length], bytes);
    true
}

/// The law of [`CmMad`].
pub fn cm_mad(bytes: &[u8]) -> bool {
    let Ok(mad) = CmMad::parse(bytes) else {
        return false;
    };
    let again: [u8; MAD_LEN] = mad.to_bytes();
    assert_eq!(CmMad::parse(&again), Ok(mad));
    true
}

/// The law of [`parse_datagram`].
pub fn datagram(bytes: &[u8]) -> bool {
    let Ok(packet) = parse_datagram(bytes) else {
        return false;
    };
    assert_eq!(packet.length(), bytes.len());
    if bytes.len() <= ROOM {
        let mut out = [0; ROOM];
        let length = packet.emit(&mut out);
        assert_eq!(parse_datagram(&out[..length]), Ok(packet));
    }
    true
}

/// The law of [`Frame::parse`], and that of the datagram in the frame; checks of both checksums
/// have to come to some end.
pub fn frame(bytes: &[u8]) -> bool {
    let Ok(frame) = Frame::parse(bytes) else {
        return false;
    };
    assert_eq!(frame.length(), bytes.len());
    if bytes.len() <= ROOM {
        let mut out = [0; ROOM];
        let length = frame.emit(&mut out);
        assert_eq!(Frame::parse(&out[..length]), Ok(frame));
    }
    if let Some(roce) = frame.roce() {
        let _: bool = roce.icrc_ok();
        if let Ok(packet) = parse_datagram(roce.datagram) {
            let _: Option<bool> = roce.header_crc_ok(&packet);
        }
        datagram(roce.datagram);
    }
    true
}

/// The law of [`Ip::read`] and [`Content::of`]: lengths add up.
pub fn ip(bytes: &[u8]) -> bool {
    let Ok((ip, payload, padding)) = Ip::read(bytes) else {
        return false;
    };
    assert!(payload.len() + padding.len() < bytes.len());
    if let Ok(Content::Udp { datagram, .. }) = Content::of(ip, payload) {
        assert_eq!(datagram.len() + 8, payload.len());
    }
    true
}

/// Whatever identification is found for a datagram makes its ICRC right.
pub fn solve(path: &crate::Path, bytes: &[u8]) -> bool {
    match icrc::solve_identification(path, bytes) {
        Some(identification) => {
            assert!(icrc::verify(path, identification, bytes));
            true
        }
        None => false,
    }
}
