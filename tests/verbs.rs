//! Every operation and every way it can fail, between two nodes on loopback.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[path = "verbs/addresses.rs"]
mod addresses;
#[path = "verbs/attributes.rs"]
mod attributes;
mod common;
#[path = "verbs/completions.rs"]
mod completions;
#[path = "verbs/datagrams.rs"]
mod datagrams;
#[path = "verbs/faults.rs"]
mod faults;
#[path = "verbs/invalidate.rs"]
mod invalidate;
#[path = "verbs/leaving.rs"]
mod leaving;
#[path = "verbs/memory.rs"]
mod memory;
#[path = "verbs/objects.rs"]
mod objects;
#[path = "verbs/queries.rs"]
mod queries;
#[path = "verbs/queues.rs"]
mod queues;
#[path = "verbs/resize.rs"]
mod resize;
#[path = "verbs/srqs.rs"]
mod srqs;
#[path = "verbs/threads.rs"]
mod threads;
#[path = "verbs/waits.rs"]
mod waits;
#[path = "verbs/windows.rs"]
mod windows;

use common::{Pair, pattern};
use trunkline::{
    Access, AtomicOp, Completion, Error, Extra, PostError, SendOp, Status, VerbsError, WorkOpcode,
};

/// Where received or read bytes go; what is sent lies at 0.
const TARGET: usize = 2 << 20;

fn ended(done: &Completion) -> (u64, Status, WorkOpcode) {
    (done.wr_id, done.status, done.opcode)
}

fn verbs_error(error: Error) -> VerbsError {
    match error {
        Error::Verbs(error) | Error::Post(PostError { error, .. }) => error,
        other => panic!("not an error of verbs: {other}"),
    }
}

#[test]
fn a_send_arrives_whole_whatever_its_length() {
    let pair = Pair::new();
    let (qa, qb) = pair.qps();
    for (at, length) in [0, 1, 63, 64, 257, 4096, 4097, 100_000, 1 << 20]
        .into_iter()
        .enumerate()
    {
        let data = pattern(at as u64, length);
        pair.a.mr.write(0, &data).unwrap();
        pair.b.receive(&qb, 100 + at as u64, TARGET, 1 << 20);
        pair.a.post(&qa, at as u64, SendOp::Send, 0, length);
        let received = pair.next(&pair.b.recv_cq);
        let expected = (100 + at as u64, Status::Success, WorkOpcode::Receive);
        assert_eq!(ended(&received), expected, "{length} bytes");
        assert_eq!(received.byte_len as usize, length);
        assert_eq!((received.qpn, received.extra), (qb.qpn(), Extra::None));
        assert!(
            pair.b.bytes(TARGET, length) == data,
            "{length} bytes arrived changed"
        );
        let sent = pair.next(&pair.a.send_cq);
        assert_eq!(ended(&sent), (at as u64, Status::Success, WorkOpcode::Send));
    }
}

#[test]
fn immediate_data_comes_with_its_message() {
    let pair = Pair::new();
    let (qa, qb) = pair.qps();
    pair.b.receive(&qb, 1, TARGET, 64);
    pair.a.post(&qa, 2, SendOp::SendImm(0xdead_beef), 0, 10);
    let received = pair.next(&pair.b.recv_cq);
    assert_eq!(ended(&received), (1, Status::Success, WorkOpcode::Receive));
    assert_eq!(
        (received.extra, received.byte_len),
        (Extra::Immediate(0xdead_beef), 10)
    );
    assert_eq!(pair.next(&pair.a.send_cq).wr_id, 2);

    let data = pattern(1, 50_000);
    pair.a.mr.write(0, &data).unwrap();
    pair.b.receive(&qb, 3, TARGET, 0);
    pair.a.post(
        &qa,
        4,
        SendOp::WriteImm(pair.b.mr.remote(TARGET), 7),
        0,
        data.len(),
    );
    let received = pair.next(&pair.b.recv_cq);
    assert_eq!(
        ended(&received),
        (3, Status::Success, WorkOpcode::ReceiveWriteImm)
    );
    assert_eq!(
        (received.extra, received.byte_len),
        (Extra::Immediate(7), 50_000)
    );
    assert!(
        pair.b.bytes(TARGET, data.len()) == data,
        "written before it was told"
    );
    assert_eq!(
        ended(&pair.next(&pair.a.send_cq)),
        (4, Status::Success, WorkOpcode::Write)
    );
}

#[test]
fn an_invalidated_key_is_reported_and_dead() {
    let pair = Pair::new();
    let (qa, qb) = pair.qps();
    let access = Access::ALL | Access::REMOTE_INVALIDATE;
    let window = pair.b.pd.register(4096, access).unwrap();
    pair.b.receive(&qb, 1, TARGET, 64);
    pair.a
        .post(&qa, 2, SendOp::SendInvalidate(window.rkey()), 0, 5);
    let received = pair.next(&pair.b.recv_cq);
    assert_eq!(received.status, Status::Success);
    assert_eq!(received.extra, Extra::Invalidated(window.rkey()));
    assert_eq!(pair.next(&pair.a.send_cq).status, Status::Success);
    pair.a.post(&qa, 3, SendOp::Write(window.remote(0)), 0, 8);
    assert_eq!(
        ended(&pair.next(&pair.a.send_cq)),
        (3, Status::RemoteAccess, WorkOpcode::Write)
    );
}

#[test]
fn writes_and_reads_move_bytes_without_the_peers_program() {
    let pair = Pair::new();
    let (qa, _qb) = pair.qps();
    for (at, length) in [0, 1, 8, 4096, 12_345, 1 << 20].into_iter().enumerate() {
        let wr_id = at as u64;
        let data = pattern(wr_id, length);
        pair.a.mr.write(0, &data).unwrap();
        pair.a.post(
            &qa,
            wr_id,
            SendOp::Write(pair.b.mr.remote(TARGET + 3)),
            0,
            length,
        );
        assert_eq!(
            ended(&pair.next(&pair.a.send_cq)),
            (wr_id, Status::Success, WorkOpcode::Write),
            "WRITE of {length} bytes"
        );
        assert!(
            pair.b.bytes(TARGET + 3, length) == data,
            "WRITE of {length} bytes"
        );
        pair.a.post(
            &qa,
            wr_id,
            SendOp::Read(pair.b.mr.remote(TARGET + 3)),
            TARGET,
            length,
        );
        let read = pair.next(&pair.a.send_cq);
        let expected = (wr_id, Status::Success, WorkOpcode::Read);
        assert_eq!(ended(&read), expected, "READ of {length} bytes");
        assert_eq!(read.byte_len as usize, length);
        assert!(
            pair.a.bytes(TARGET, length) == data,
            "READ of {length} bytes"
        );
    }
    assert!(
        pair.b.recv_cq.poll_one().unwrap().is_none(),
        "nothing asked for a receive"
    );
}

#[test]
fn atomics_return_what_was_there() {
    let pair = Pair::new();
    let (qa, _qb) = pair.qps();
    let cell = pair.b.mr.remote(64);
    pair.b.mr.write(64, &40u64.to_ne_bytes()).unwrap();
    let cases = [
        (AtomicOp::FetchAdd { add: 2 }, WorkOpcode::FetchAdd, 40, 42),
        (
            AtomicOp::CompareSwap {
                compare: 42,
                swap: 7,
            },
            WorkOpcode::CompareSwap,
            42,
            7,
        ),
        (
            AtomicOp::CompareSwap {
                compare: 42,
                swap: 8,
            },
            WorkOpcode::CompareSwap,
            7,
            7,
        ),
        (
            AtomicOp::FetchAdd { add: u64::MAX },
            WorkOpcode::FetchAdd,
            7,
            6,
        ),
    ];
    for (at, (op, opcode, before, after)) in cases.into_iter().enumerate() {
        pair.a.post(&qa, at as u64, SendOp::Atomic(cell, op), 0, 8);
        let done = pair.next(&pair.a.send_cq);
        assert_eq!(ended(&done), (at as u64, Status::Success, opcode));
        assert_eq!((pair.a.word(0), pair.b.word(64)), (before, after), "{op:?}");
    }
}

#[test]
fn requests_complete_in_the_order_they_were_posted() {
    let pair = Pair::new();
    let (qa, qb) = pair.qps();
    for at in 0..16 {
        pair.b.receive(&qb, at, TARGET + 64 * at as usize, 64);
    }
    // Long and short, with and without answers, all at once.
    for at in 0..48 {
        let remote = pair.b.mr.remote(TARGET + (1 << 20));
        let (op, length) = match at % 3 {
            0 => (SendOp::Send, 16),
            1 => (SendOp::Read(remote), 200_000),
            _ => (SendOp::Write(remote), 70_000),
        };
        pair.a.post(&qa, at, op, 0, length);
    }
    for at in 0..48 {
        let done = pair.next(&pair.a.send_cq);
        assert_eq!((done.wr_id, done.status), (at, Status::Success));
    }
    for at in 0..16 {
        assert_eq!(pair.next(&pair.b.recv_cq).wr_id, at);
    }
}
