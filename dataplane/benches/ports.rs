//! What a port costs per datagram, both ends on one thread. The memory pair's goal is 15 ns.

#![allow(
    missing_docs,
    reason = "the macros of criterion write undocumented functions"
)]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;
use trunkline_dataplane::{MemoryConfig, MemoryPort, Port, UdpConfig, UdpPort};
use trunkline_wire::{IpFields, Path};

const BURST: usize = 64;

/// One burst of 128-byte datagrams (a 64-byte message and its headers) from `a` to `b`.
fn burst(a: &mut impl Port, b: &mut impl Port, path: &Path) {
    for _ in 0..BURST {
        let slot = a.reserve(black_box(path), 128).expect("room for a burst");
        slot.datagram[..64].fill(1);
        a.commit();
    }
    a.flush().expect("the port works");
    let mut left = BURST;
    while left > 0 {
        let got = b.receive(left, &mut |arrival, datagram| {
            black_box((arrival.path.src_port, datagram[0]));
        });
        left -= got.expect("the port works");
    }
}

fn ports(c: &mut Criterion) {
    let mut group = c.benchmark_group("burst of 64");
    group.throughput(Throughput::Elements(BURST as u64));
    group.warm_up_time(Duration::from_millis(200));
    group.measurement_time(Duration::from_millis(800));
    let address = |last| IpAddr::V4(Ipv4Addr::new(127, 0, 0, last));
    let mut path = Path {
        src: address(41),
        dst: address(42),
        src_port: 4791,
        traffic_class: 0,
        ip: IpFields::DEFAULT,
    };
    let (mut a, mut b) = MemoryPort::pair(MemoryConfig::default());
    group.bench_function("memory", |bencher| {
        bencher.iter(|| burst(&mut a, &mut b, &path))
    });

    let a = UdpPort::open(&UdpConfig {
        port: 0,
        ..UdpConfig::new(address(41))
    });
    let mut a = a.expect("loopback is there");
    path.src_port = a.local().port();
    let b = UdpPort::open(&UdpConfig {
        port: path.src_port,
        ..UdpConfig::new(address(42))
    });
    let mut b = b.expect("the port is free");
    group.bench_function("udp over loopback", |bencher| {
        bencher.iter(|| burst(&mut a, &mut b, &path));
    });
    group.finish();
}

criterion_group!(benches, ports);
criterion_main!(benches);
