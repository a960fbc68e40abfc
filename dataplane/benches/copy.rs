//! Fused copy and CRC-32 against `memcpy` and against copying first and summing then.
//!
//! The numbers to look at are ratios: `fused` to `memcpy` of the same group.

#![allow(
    missing_docs,
    reason = "the macros of criterion write undocumented functions"
)]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::fs::OpenOptions;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;
use trunkline_conn::mem::{Order, RegionMemory};
use trunkline_dataplane::copy::{Bounds, Copier};
use trunkline_dataplane::{Patience, ProcessMemory, Region};
use trunkline_wire::Crc;

/// Copies `data` to `out` block by block with `copy`, which carries the sum along.
fn blocks(
    out: &mut [u8],
    data: &mut [u8],
    block: usize,
    mut copy: impl FnMut(&mut [u8], &mut [u8], u32) -> u32,
) -> u32 {
    let mut sum = 0;
    for (out, data) in out
        .chunks_exact_mut(block)
        .zip(data.chunks_exact_mut(block))
    {
        // Every block is a packet: its sum begins anew.
        sum ^= copy(out, black_box(data), 0);
    }
    sum
}

fn copies(c: &mut Criterion) {
    // (label, working set, block, offset of the target from a line)
    let cases = [
        ("64B", 64, 64, 0),
        ("256B", 256, 256, 0),
        ("1KiB", 1024, 1024, 0),
        ("4KiB-L1", 4096, 4096, 0),
        ("4KiB-L1-unaligned", 4096, 4096, 28),
        ("4090B-L1", 4090, 4090, 28),
        ("4KiB-L2", 256 << 10, 4096, 0),
        ("4KiB-L2-unaligned", 256 << 10, 4096, 28),
        ("4KiB-memory", 32 << 20, 4096, 0),
    ];
    for (label, bytes, block, skew) in cases {
        let mut group = c.benchmark_group(label);
        group.throughput(Throughput::Bytes(bytes as u64));
        group.warm_up_time(Duration::from_millis(100));
        group.measurement_time(Duration::from_millis(400));
        group.sample_size(20);
        let mut data = vec![0x5a_u8; bytes + 4096];
        let start = data.as_ptr().align_offset(4096);
        let data = &mut data[start..][..bytes];
        let mut out = vec![0_u8; bytes + 8192];
        let start = out.as_ptr().align_offset(4096) + 128 + skew;
        let out = &mut out[start..start + bytes];
        group.bench_function("memcpy", |b| {
            b.iter(|| {
                blocks(out, data, block, |out, data, _| {
                    out.copy_from_slice(data);
                    0
                })
            });
        });
        group.bench_function("memcpy-then-crc", |b| {
            b.iter(|| {
                blocks(out, data, block, |out, data, _| {
                    out.copy_from_slice(data);
                    crc32fast::hash(out)
                })
            });
        });
        for copier in Copier::available() {
            group.bench_function(BenchmarkId::new("fused", copier.name()), |b| {
                b.iter(|| {
                    blocks(out, data, block, |out, data, state| {
                        let (from, length) = (data.as_mut_ptr(), data.len());
                        // SAFETY: two slices of `block` bytes of different buffers.
                        unsafe { copier.copy_out_crc(out, from, state, Bounds::of(from, length)) }
                    })
                });
            });
            group.bench_function(BenchmarkId::new("copy", copier.name()), |b| {
                b.iter(|| {
                    blocks(out, data, block, |out, data, state| {
                        let (from, length) = (data.as_mut_ptr(), data.len());
                        // SAFETY: as above.
                        unsafe { copier.copy_out(out, from, Bounds::of(from, length)) };
                        state
                    })
                });
            });
        }
        group.finish();
    }
}

/// The same bytes in memory of this process, as a node inside the program reaches them, and by
/// `/proc/self/mem`, as a service reaches a program's: by itself, and by a thread of the memory's.
fn processes(c: &mut Criterion) {
    const BYTES: usize = 1 << 20;
    let direct = Region::allocate(BYTES).expect("memory");
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).open("/proc/self/mem");
    let file = file.expect("proc");
    let memory = ProcessMemory::new(file.into()).expect("a file of proc");
    let by_proc = memory.region(direct.addr(), BYTES).expect("a range");
    let file = options.open("/proc/self/mem").expect("proc");
    let patience = Arc::new(Patience::new());
    let apart = ProcessMemory::with_patience(file.into(), patience, || {});
    let apart = apart.expect("a file of proc");
    let by_thread = apart.region(direct.addr(), BYTES).expect("a range");
    for length in [64, 1024, 4096, 64 << 10] {
        let mut group = c.benchmark_group(format!("process-{length}B"));
        group.throughput(Throughput::Bytes(length as u64));
        group.warm_up_time(Duration::from_millis(100));
        group.measurement_time(Duration::from_millis(400));
        group.sample_size(20);
        let mut out = vec![0x5a_u8; length];
        group.bench_function("out", |b| b.iter(|| direct.copy_out(0, &mut out, None)));
        group.bench_function("out-by-proc", |b| {
            b.iter(|| RegionMemory::copy_out(&by_proc, 0, &mut out, None));
        });
        group.bench_function("out-by-thread", |b| {
            b.iter(|| RegionMemory::copy_out(&by_thread, 0, &mut out, None));
        });
        group.bench_function("in", |b| b.iter(|| direct.copy_in(0, &out, None)));
        group.bench_function("in-by-proc", |b| {
            b.iter(|| RegionMemory::copy_in(&by_proc, 0, &out, Order::Any, None));
        });
        group.bench_function("in-by-thread", |b| {
            b.iter(|| RegionMemory::copy_in(&by_thread, 0, &out, Order::Any, None));
        });
        let mut sum = Crc::resume(0);
        group.bench_function("out-sum", |b| {
            b.iter(|| direct.copy_out(0, &mut out, Some(&mut sum)));
        });
        group.bench_function("out-sum-by-proc", |b| {
            b.iter(|| RegionMemory::copy_out(&by_proc, 0, &mut out, Some(&mut sum)));
        });
    }
}

criterion_group!(benches, copies, processes);
criterion_main!(benches);
