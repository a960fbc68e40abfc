//! Posting, fetching, completing and polling: the parts of a message that do not depend on a wire.

#![allow(missing_docs, reason = "criterion makes public functions without any")]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use trunkline_conn::mem::Sge;
use trunkline_conn::work::{
    Completion, Extra, Remote, SendFlags, SendOp, Status, VendorError, WorkOpcode,
};
use trunkline_qpmap::cq::Writer;
use trunkline_qpmap::queue::{RecvQueue, SendCursor, SendQueue, Size};
use trunkline_qpmap::wqe::{OWN_BINDING, RecvWr, SendWr};
use trunkline_wire::{Lkey, Qpn, Rkey};

const BATCH: usize = 16;
const SGES: [Sge; 1] = [Sge {
    addr: 0x1000,
    length: 64,
    lkey: Lkey(7),
}];

const fn send(op: SendOp) -> SendWr<'static> {
    let flags = SendFlags::SIGNALED;
    SendWr {
        wr_id: 1,
        op,
        flags,
        sges: &SGES,
        inline: None,
        route: OWN_BINDING,
    }
}

fn send_queue(c: &mut Criterion) {
    let mut group = c.benchmark_group("send queue");
    let inline = SendWr {
        sges: &[],
        inline: Some(&[7; 32]),
        ..send(SendOp::Send)
    };
    let write = send(SendOp::Write(Remote {
        addr: 0x2000,
        rkey: Rkey(9),
    }));
    for (name, request) in [
        ("64 B", send(SendOp::Send)),
        ("write", write),
        ("inline 32 B", inline),
    ] {
        for batch in [1, BATCH] {
            let size = Size::send(64, 2, 32, false).expect("sizes within limits");
            let queue = SendQueue::<Arc<[AtomicU64]>>::new(size);
            let mut cursor = SendCursor::default();
            let requests = vec![request; batch];
            group.throughput(Throughput::Elements(batch as u64));
            group.bench_function(format!("post, fetch, release {name} by {batch}"), |b| {
                b.iter(|| {
                    queue.post(black_box(&requests)).expect("it was empty");
                    while let Some((request, _, slots)) =
                        queue.fetch(&mut cursor).expect("well-formed requests")
                    {
                        black_box(&request);
                        queue.release(slots);
                    }
                });
            });
        }
    }
    group.finish();
}

fn receive_queue(c: &mut Criterion) {
    let mut group = c.benchmark_group("receive queue");
    let size = Size::receive(64, 2).expect("sizes within limits");
    let queue = RecvQueue::<Arc<[AtomicU64]>>::new(size);
    let requests = [RecvWr {
        wr_id: 1,
        sges: &SGES,
    }; BATCH];
    group.throughput(Throughput::Elements(BATCH as u64));
    group.bench_function(format!("post, fetch by {BATCH}"), |b| {
        b.iter(|| {
            queue.post(black_box(&requests)).expect("it was empty");
            while let Some(receive) = queue.fetch().expect("well-formed requests") {
                black_box(&receive);
            }
        });
    });
    group.finish();
}

fn completion_queue(c: &mut Criterion) {
    let mut group = c.benchmark_group("completion queue");
    let completion = Completion {
        wr_id: 1,
        status: Status::Success,
        opcode: WorkOpcode::Send,
        qpn: Qpn::GSI,
        byte_len: 64,
        extra: Extra::None,
        src_qp: Qpn::default(),
        route: 0,
        solicited: false,
        vendor_err: VendorError::None,
        ticks: 0,
    };
    let mut writer = Writer::<Arc<[AtomicU64]>>::new(256).expect("a depth within limits");
    let queue = Arc::clone(writer.queue());
    let mut polled = [completion; BATCH];
    assert_eq!(queue.poll(&mut polled), Ok(0), "nothing was pushed");
    group.bench_function("poll, empty", |b| {
        b.iter(|| queue.poll(black_box(&mut polled)))
    });
    group.throughput(Throughput::Elements(BATCH as u64));
    group.bench_function(format!("push, publish, poll by {BATCH}"), |b| {
        b.iter(|| {
            for _ in 0..BATCH {
                writer.push(black_box(&completion)).expect("it was empty");
            }
            writer.publish();
            black_box(writer.take_notification());
            assert_eq!(queue.poll(black_box(&mut polled)), Ok(BATCH));
        });
    });
    group.finish();
}

criterion_group!(benches, send_queue, receive_queue, completion_queue);
criterion_main!(benches);
