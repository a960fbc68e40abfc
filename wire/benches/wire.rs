//! The hot pieces of wire/: the ICRC against a memory copy, headers built and read.

use criterion::{Criterion, Throughput, criterion_main};
use std::hint::black_box;
use std::net::Ipv4Addr;
use trunkline_wire::{
    Bth, IcrcSeed, IpFields, Opcode, Path, Psn, Qpn, Reth, Rkey, SrcExt, icrc, parse_datagram,
};

const BTH: Bth = Bth {
    opcode: Opcode::SRC_WRITE,
    solicited: false,
    mig_req: true,
    pad: 0,
    pkey: 0xffff,
    fecn: false,
    becn: false,
    dest_qp: Qpn::GSI,
    ack_req: true,
    psn: Psn::from_wire(0x12_3456),
};
const EXT: SrcExt = SrcExt {
    last: true,
    header_crc: false,
    abort: false,
    sealed: false,
    attempt: 0,
    generation: 3,
    token: 0xdead_beef,
    src_qp: Qpn::GSI,
    replay_epoch: 0,
    dest_qp: Qpn::GSI,
    psn_high: 77,
    msn: 12,
    offset: 0,
    timestamp: 99,
    echo: 98,
    ack: 1234,
};
const RETH: Reth = Reth {
    va: 0x7fff_0000_1000,
    rkey: Rkey(0x1234_5678),
    length: 64,
};

fn seed() -> IcrcSeed {
    IcrcSeed::new(&Path {
        src: Ipv4Addr::new(10, 0, 0, 1).into(),
        dst: Ipv4Addr::new(10, 0, 0, 2).into(),
        src_port: 49_152,
        traffic_class: 0,
        ip: IpFields::DEFAULT,
    })
}

fn sums(criterion: &mut Criterion) {
    let seed = seed();
    for payload in [64, 4096] {
        let datagram = vec![0x5a; Bth::LEN + payload + icrc::LEN];
        let mut copy = datagram.clone();
        let mut group = criterion.benchmark_group(format!("icrc_{payload}"));
        group.throughput(Throughput::Bytes(datagram.len() as u64));
        group.bench_function("icrc", |bencher| {
            bencher.iter(|| seed.verify(black_box(7), black_box(&datagram)));
        });
        group.bench_function("memcpy", |bencher| {
            bencher.iter(|| black_box(&mut copy).copy_from_slice(black_box(&datagram)));
        });
        group.finish();
    }
    let datagram = vec![0x5a; 4096 + 16];
    criterion.bench_function("icrc_start", |bencher| {
        bencher.iter(|| seed.start(black_box(4112), black_box(7)));
    });
    criterion.bench_function("icrc_solve_4096", |bencher| {
        bencher.iter(|| seed.solve_identification(black_box(&datagram)));
    });
}

fn build(out: &mut [u8; 68]) {
    let (bth, rest) = out.split_first_chunk_mut().expect("68 bytes hold a BTH");
    let (ext, reth) = rest
        .split_first_chunk_mut()
        .expect("56 bytes hold the extension");
    black_box(BTH).emit(bth);
    black_box(EXT).emit(ext);
    black_box(RETH).emit(reth.first_chunk_mut().expect("16 bytes hold a RETH"));
}

fn headers(criterion: &mut Criterion) {
    let mut out = [0; 68];
    criterion.bench_function("build_src_write", |bencher| {
        bencher.iter(|| build(black_box(&mut out)));
    });
    let mut datagram = out.to_vec();
    datagram.extend([0; 64 + icrc::LEN]);
    criterion.bench_function("parse_src_write", |bencher| {
        bencher.iter(|| parse_datagram(black_box(&datagram)).map(|packet| packet.bth.psn));
    });
    let ack = [
        0x11, 0, 0xff, 0xff, 0, 0, 0, 9, 0, 0, 0, 1, 0x1f, 0, 0, 1, 0, 0, 0, 0,
    ];
    criterion.bench_function("parse_rc_ack", |bencher| {
        bencher.iter(|| parse_datagram(black_box(&ack)).map(|packet| packet.aeth));
    });
}

mod group {
    #![allow(missing_docs, reason = "the macro writes a function without any")]
    criterion::criterion_group!(benches, super::sums, super::headers);
}
criterion_main!(group::benches);
