//! The scheduler: what a packet costs when many flows of a connection have something to send.
//! Covers the flow's turn, taking in its request and building the packet; not posting, not
//! delivery.

#![allow(
    missing_docs,
    reason = "the macros of criterion write undocumented functions"
)]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::time::{Duration, Instant};
use trunkline_benches::engine::Sender;
use trunkline_pieces::turns::Turns;

fn scheduler(c: &mut Criterion) {
    let mut group = c.benchmark_group("scheduler");
    group.warm_up_time(Duration::from_millis(200));
    group.measurement_time(Duration::from_millis(800));
    group.sample_size(20);
    for (flows, each) in [(1, 16), (16, 16), (256, 4), (2048, 1)] {
        let mut turns = Turns::new(flows, each);
        let round = turns.round();
        group.throughput(Throughput::Elements(round));
        let name = BenchmarkId::new(format!("{each} packets each of flows"), flows);
        group.bench_function(name, |b| {
            b.iter_custom(|rounds| {
                let mut total = Duration::ZERO;
                for _ in 0..rounds {
                    turns.post();
                    let started = Instant::now();
                    turns.packets(round);
                    total += started.elapsed();
                    turns.deliver();
                }
                total
            });
        });
    }
    group.finish();
}

fn whole_messages(c: &mut Criterion) {
    let mut group = c.benchmark_group("SEND of 64 B, post to completions");
    group.warm_up_time(Duration::from_millis(200));
    group.measurement_time(Duration::from_millis(800));
    group.sample_size(20);
    group.throughput(Throughput::Elements(1));
    for qps in [1, 16, 1000] {
        let mut sender = Sender::new(qps, qps);
        sender.go_round();
        group.bench_function(BenchmarkId::from_parameter(qps), |b| {
            b.iter_custom(|messages| {
                let started = Instant::now();
                sender.send(messages);
                started.elapsed()
            });
        });
    }
    group.finish();
}

criterion_group!(benches, scheduler, whole_messages);
criterion_main!(benches);
