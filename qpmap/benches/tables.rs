//! What looking things up costs per packet: a QP's binding, a key, a range, a doorbell.
//!
//! Sizes are those of a small and of a large node: the tables either fit the first cache or do not.

#![allow(
    missing_docs,
    reason = "the macros of criterion write undocumented functions"
)]

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use std::time::Duration;
use trunkline_conn::mem::{Access, AtomicOp, Memory, Order, RegionMemory, Unreachable};
use trunkline_conn::secret::{Purpose, Secret};
use trunkline_qpmap::doorbell::{Doorbells, Sweep};
use trunkline_qpmap::key::{Secret24, Secret32};
use trunkline_qpmap::mapping::Mapping;
use trunkline_qpmap::regions::RegionTable;
use trunkline_wire::{Crc, Worker};

const SIZES: [u32; 3] = [64, 1 << 14, 1 << 20];

/// A range that nobody reads.
struct Range(u64);

impl RegionMemory for Range {
    fn addr(&self) -> u64 {
        self.0
    }

    fn len(&self) -> usize {
        4096
    }

    fn copy_out(&self, _: usize, _: &mut [u8], _: Option<&mut Crc>) -> Result<(), Unreachable> {
        Ok(())
    }

    fn copy_in(
        &self,
        _: usize,
        _: &[u8],
        _: Order,
        _: Option<&mut Crc>,
    ) -> Result<(), Unreachable> {
        Ok(())
    }

    fn atomic(&self, _: usize, _: AtomicOp) -> Result<u64, Unreachable> {
        Ok(0)
    }
}

/// Below `size`, a power of two, without a pattern that hardware could follow.
struct Walk(u32, u32);

impl Walk {
    fn step(&mut self) -> usize {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 8 & (self.1 - 1)) as usize
    }
}

fn tables(c: &mut Criterion) {
    let mut group = c.benchmark_group("tables");
    group.warm_up_time(Duration::from_millis(100));
    group.measurement_time(Duration::from_millis(400));
    group.sample_size(20);

    let secret = Secret24::new(Secret::from_seed(1).stream(Purpose::Qpns), Worker::ONLY);
    group.bench_function("qpn-open", |b| {
        // Each result decides on the next number, so that this is the latency.
        let mut number = 2;
        b.iter(|| {
            number = secret.open(number | 2) & 0x7f_ffff;
            number
        });
    });
    let secret = Secret32::new(Secret::from_seed(1).stream(Purpose::RegionKeys));
    group.bench_function("key-open", |b| {
        let mut number = 2;
        b.iter(|| {
            number = secret.open(number);
            number
        });
    });

    for size in SIZES {
        let mapping = Mapping::new();
        (0..size).for_each(|index| mapping.set(index, index / 7, 1));
        group.bench_function(BenchmarkId::new("mapping-get", size), |b| {
            let mut walk = Walk(1, size);
            b.iter(|| mapping.get(walk.step() as u32));
        });

        let table = RegionTable::new(&Secret::from_seed(1));
        let (pd, regions) = (table.alloc_pd(), table.view());
        let qpn = trunkline_wire::Qpn::default();
        let by = trunkline_conn::mem::Responder { pd, qpn };
        let keys: Vec<_> = (0..size)
            .filter_map(|i| {
                let range = Range(u64::from(i) << 12);
                table
                    .register(pd, range, Access::ALL)
                    .ok()
                    .map(|region| region.rkey)
            })
            .collect();
        group.bench_function(BenchmarkId::new("region-check", size), |b| {
            let mut walk = Walk(1, size);
            b.iter(|| {
                let i = walk.step();
                let addr = (i as u64) << 12 | 64;
                regions.check_remote(by, keys[i], addr, 1024, Access::REMOTE_WRITE)
            });
        });

        let (bells, mut sweep) = (Doorbells::new(), Sweep::default());
        group.bench_function(BenchmarkId::new("ring-and-drain", size), |b| {
            let mut walk = Walk(1, size);
            b.iter(|| {
                bells.ring(walk.step() as u32);
                while let Some(index) = bells.next(&mut sweep) {
                    black_box(index);
                }
            });
        });
        group.bench_function(BenchmarkId::new("ring-64-and-drain", size), |b| {
            let mut walk = Walk(1, size);
            b.iter(|| {
                (0..64).for_each(|_| bells.ring(walk.step() as u32));
                while let Some(index) = bells.next(&mut sweep) {
                    black_box(index);
                }
            });
        });
    }
    let (bells, mut sweep) = (Doorbells::new(), Sweep::default());
    group.bench_function("drain-nothing", |b| {
        b.iter(|| assert!(bells.next(&mut sweep).is_none()))
    });
    group.finish();
}

criterion_group!(benches, tables);
criterion_main!(benches);
