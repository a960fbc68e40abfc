//! Headers: what is built and parsed for every packet.

use std::hint::black_box;
use std::net::Ipv4Addr;
use trunkline_wire::{
    AckPayload, Bth, IcrcSeed, IpFields, Opcode, Path, Psn, Qpn, Reth, Rkey, SrcExt,
};

/// Bytes of BTH, extension and RETH.
const SRC_WRITE: usize = Bth::LEN + SrcExt::LEN + Reth::LEN;
const RC_WRITE: usize = Bth::LEN + Reth::LEN;

fn bth(opcode: Opcode, number: u32) -> Bth {
    Bth {
        opcode,
        mig_req: true,
        pkey: 0xffff,
        dest_qp: Qpn::from_wire(0x0001_2345),
        ack_req: number.is_multiple_of(16),
        psn: Psn::from_wire(number),
        ..Bth::default()
    }
}

fn reth(number: u32) -> Reth {
    Reth {
        va: u64::from(number) << 12,
        rkey: Rkey(0x1234_5678),
        length: 1 << 20,
    }
}

fn ext(number: u32) -> SrcExt {
    SrcExt {
        generation: 7,
        token: 0x89ab_cdef,
        src_qp: Qpn::from_wire(0x0006_5432),
        dest_qp: Qpn::from_wire(0x0002_3456),
        psn_high: 3,
        msn: number >> 4,
        offset: number << 12,
        timestamp: number,
        echo: number,
        ack: number,
        ..SrcExt::default()
    }
}

pub(crate) fn bth_build(repetitions: u32) {
    let mut out = [0; Bth::LEN];
    for number in 0..repetitions {
        black_box(bth(black_box(Opcode::RC_SEND_ONLY), number)).emit(&mut out);
        black_box(&out);
    }
}

pub(crate) fn bth_parse(repetitions: u32) {
    let bytes = bth(Opcode::RC_SEND_ONLY, 5).to_bytes();
    for _ in 0..repetitions {
        let _ = black_box(Bth::read(black_box(&bytes)));
    }
}

pub(crate) fn rc_write_build(repetitions: u32) {
    let mut out = [0; RC_WRITE];
    for number in 0..repetitions {
        let (first, rest) = split(&mut out);
        black_box(bth(Opcode::RC_WRITE_FIRST, number)).emit(first);
        black_box(reth(number)).emit(split(rest).0);
        black_box(&out);
    }
}

pub(crate) fn rc_write_parse(repetitions: u32) {
    let mut bytes = [0; RC_WRITE];
    let (first, rest) = split(&mut bytes);
    bth(Opcode::RC_WRITE_FIRST, 5).emit(first);
    reth(5).emit(split(rest).0);
    for _ in 0..repetitions {
        if let Ok((bth, rest)) = Bth::read(black_box(&bytes)) {
            let _ = black_box((bth, Reth::read(rest)));
        }
    }
}

pub(crate) fn src_write_build(repetitions: u32) {
    let mut out = [0; SRC_WRITE];
    for number in 0..repetitions {
        let (first, rest) = split(&mut out);
        black_box(bth(Opcode::SRC_WRITE, number)).emit(first);
        let (second, rest) = split(rest);
        black_box(ext(number)).emit(second);
        black_box(reth(number)).emit(split(rest).0);
        black_box(&out);
    }
}

pub(crate) fn src_write_parse(repetitions: u32) {
    let mut bytes = [0; SRC_WRITE];
    let (first, rest) = split(&mut bytes);
    bth(Opcode::SRC_WRITE, 5).emit(first);
    let (second, rest) = split(rest);
    ext(5).emit(second);
    reth(5).emit(split(rest).0);
    for _ in 0..repetitions {
        let Ok((bth, rest)) = Bth::read(black_box(&bytes)) else {
            continue;
        };
        let Ok((ext, rest)) = SrcExt::read(rest) else {
            continue;
        };
        let _ = black_box((bth, ext, Reth::read(rest)));
    }
}

pub(crate) fn ack_parse(repetitions: u32) {
    let mut bytes = [0; 8 + 8 * 4];
    AckPayload::emit(1, 2_000, &[u64::MAX, 1, 2, 3], &mut bytes);
    for _ in 0..repetitions {
        if let Ok(ack) = AckPayload::parse(black_box(&bytes)) {
            black_box(ack.words().fold(0, |sum, word| sum ^ word));
        }
    }
}

pub(crate) fn icrc_start(repetitions: u32) {
    let seed = IcrcSeed::new(&Path {
        src: Ipv4Addr::new(10, 0, 0, 1).into(),
        dst: Ipv4Addr::new(10, 0, 0, 2).into(),
        src_port: 0xc000,
        traffic_class: 0,
        ip: IpFields::DEFAULT,
    });
    for number in 0..repetitions {
        black_box(black_box(seed).start(black_box(4096), number as u16));
    }
}

/// The first `N` bytes, and the rest; the buffers here are long enough.
fn split<const N: usize>(out: &mut [u8]) -> (&mut [u8; N], &mut [u8]) {
    out.split_first_chunk_mut()
        .expect("the buffer holds all headers")
}
