//! Every operation in both directions, with messages of every length, all bytes checked.

use crate::pair::{Pair, Place, Terms, Way};
use crate::station::{MARGIN, Op, PATIENCE, Post, Station};
use crate::suite::Case;
use anyhow::{Context, Result, ensure};
use std::fmt;
use std::time::Duration;
use trunkline::{GRH_LEN, QpType, SendFlags, Status, WorkOpcode};

const MIB: usize = 1 << 20;
/// Longest message.
pub(crate) const LONGEST: usize = 8 * MIB;
const IMM: u32 = 0x0102_0304;
/// On UC a message that loses a packet is gone, and whoever receives is slow for a moment where
/// other programs run: a case begins anew so often, with QPs of its own.
const UC_TRIES: u32 = 3;
/// Cookie of receives; that of requests is 1.
const RECEIVE: u64 = 100;

/// Lengths of messages: around the limits of packets and of words.
fn lengths(mtu: usize, full: bool) -> Vec<usize> {
    let mut lengths = vec![0, 1, 63, mtu, mtu + 1, 100_001, LONGEST];
    if full {
        lengths.extend([2, 3, 4, 5, 255, 256, mtu - 1, 2 * mtu, 64 * mtu + 3]);
        lengths.extend([MIB - 1, MIB, 3 * MIB + 7]);
    }
    lengths
}

/// All of this file.
pub(crate) fn cases(full: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    for mtu in [1024, 4096] {
        for way in Way::BOTH {
            let at = format!("mtu{mtu}/{}", way.word());
            for (name, op) in OPERATIONS {
                let run = move |place: Place| transfers(place, QpType::Rc, mtu, way, op, full);
                cases.push(Case::new(format!("rc/{name}/{at}"), run));
            }
            for (name, op) in &OPERATIONS[..4] {
                let run = move |place: Place| transfers(place, QpType::Uc, mtu, way, *op, full);
                cases.push(Case::new(format!("uc/{name}/{at}"), run));
            }
            for (name, op) in &OPERATIONS[..2] {
                let run = move |place: Place| datagrams(place, mtu, way, *op);
                cases.push(Case::new(format!("ud/{name}/{at}"), run));
            }
        }
    }
    for way in Way::BOTH {
        let named = |name: &str| format!("rc/{name}/{}", way.word());
        cases.push(Case::new(named("atomics"), move |place| {
            atomics(place, way)
        }));
        cases.push(Case::new(named("invalidate"), move |place| {
            invalidate(place, way)
        }));
        cases.push(Case::new(named("many"), move |place| many(place, way)));
    }
    cases
}

pub(crate) const OPERATIONS: [(&str, Op); 5] = [
    ("send", Op::Send),
    ("send-imm", Op::SendImm(IMM)),
    ("write", Op::Write),
    ("write-imm", Op::WriteImm(IMM)),
    ("read", Op::Read),
];

/// Where things lie in buffers: sent from the front, placed behind it.
pub(crate) const fn target(length: usize) -> usize {
    (length + MARGIN).next_multiple_of(4096)
}

fn transfers(place: Place, kind: QpType, mtu: u16, way: Way, op: Op, full: bool) -> Result<()> {
    let size = target(LONGEST) + LONGEST;
    let tries = if kind == QpType::Uc { UC_TRIES } else { 1 };
    unless_lost(tries, || {
        let mut pair = Pair::open(place, &Terms::new(kind, mtu, size))?;
        in_turn(&mut pair, way, op, lengths(mtu.into(), full))
    })
}

/// Tries again where a message was lost, as often as `tries` says in all. No other fault is
/// excused.
fn unless_lost(mut tries: u32, mut attempt: impl FnMut() -> Result<()>) -> Result<()> {
    loop {
        tries -= 1;
        match attempt() {
            Err(error) if tries > 0 && error.is::<Lost>() => println!("    again: {error:#}"),
            result => return result,
        }
    }
}

/// A message that does not come, or not all of its bytes: on UC that may be.
#[derive(Debug)]
struct Lost;

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the message was lost")
    }
}

/// One message of each length, and nothing more.
pub(crate) fn in_turn(
    pair: &mut Pair,
    way: Way,
    op: Op,
    lengths: impl IntoIterator<Item = usize>,
) -> Result<()> {
    let (from, to) = pair.sides(way);
    for (seed, length) in (1..).zip(lengths) {
        let result = transfer(from, to, op, length, 1000 * seed);
        result.map_err(|e| e.context(format!("{length} bytes")))?;
    }
    from.silent()?;
    to.silent()
}

/// One message, and all that has to be true of it.
pub(crate) fn transfer(
    from: &mut dyn Station,
    to: &mut dyn Station,
    op: Op,
    length: usize,
    seed: u64,
) -> Result<()> {
    let (guard, at) = (seed + 1, target(length));
    let (source, sink): (&mut dyn Station, &mut dyn Station) = if op == Op::Read {
        (&mut *to, &mut *from)
    } else {
        (&mut *from, &mut *to)
    };
    source.fill(0, length, seed)?;
    // What comes has to change every byte of its place and none behind it.
    sink.fill(at, length, seed + 2)?;
    sink.fill(at + length, MARGIN, guard)?;
    if op.takes_receive() {
        to.recv(RECEIVE, at, length)?;
    }
    from.post(&Post {
        wr_id: 1,
        op,
        offset: if op == Op::Read { at } else { 0 },
        length,
        remote: to.remote(if op == Op::Read { 0 } else { at }),
        flags: SendFlags::default(),
    })?;
    let done = from.next()?;
    done.is(1, Status::Success)?;
    ensure!(done.opcode == op.opcode() as u8, "{done:?}");
    if op.takes_receive() {
        let received = to.wait(PATIENCE)?.context(Lost)?;
        received.is(RECEIVE, Status::Success)?;
        let (opcode, extra) = match op {
            Op::WriteImm(imm) => (WorkOpcode::ReceiveWriteImm, Some(imm)),
            Op::SendImm(imm) => (WorkOpcode::Receive, Some(imm)),
            _ => (WorkOpcode::Receive, None),
        };
        ensure!(received.opcode == opcode as u8, "{received:?}");
        ensure!(received.extra == extra, "{received:?}");
        ensure!(received.length as usize == length, "{received:?}");
    }
    let sink: &mut dyn Station = if op == Op::Read { &mut *from } else { &mut *to };
    let arrived = wait_for_bytes(sink, at, length, seed);
    match op {
        // Nothing tells that it was whole.
        Op::Write => arrived.context(Lost)?,
        _ => arrived?,
    }
    sink.check(at + length, MARGIN, guard)
}

/// An unreliable WRITE says nothing at the other end: its bytes are there soon.
fn wait_for_bytes(sink: &mut dyn Station, at: usize, length: usize, seed: u64) -> Result<()> {
    for _ in 0..100 {
        if sink.check(at, length, seed).is_ok() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    sink.check(at, length, seed)
}

fn datagrams(place: Place, mtu: u16, way: Way, op: Op) -> Result<()> {
    let most = usize::from(mtu);
    let mut pair = Pair::open(place, &Terms::new(QpType::Ud, mtu, 1 << 16))?;
    let qpns = [
        pair.ours.qp.qpn().get(),
        pair.guests.qp_address(trunkline::Psn::default())?.qpn.get(),
    ];
    let sender = if way == Way::Us { qpns[0] } else { qpns[1] };
    for (seed, length) in (1..).zip([0, 1, 63, 256, most - 1, most]) {
        let (from, to) = pair.sides(way);
        let (seed, at) = (1000 * seed, target(length));
        from.fill(0, length, seed)?;
        to.fill(at + GRH_LEN + length, MARGIN, seed + 1)?;
        to.recv(RECEIVE, at, GRH_LEN + length)?;
        from.post(&Post {
            wr_id: 1,
            op,
            offset: 0,
            length,
            remote: to.remote(0),
            flags: SendFlags::default(),
        })?;
        from.next()?.is(1, Status::Success)?;
        let received = to.next()?;
        received.is(RECEIVE, Status::Success)?;
        let expected = match op {
            Op::SendImm(imm) => Some(imm),
            _ => None,
        };
        ensure!(received.extra == expected, "{received:?}");
        ensure!(received.length as usize == GRH_LEN + length, "{received:?}");
        ensure!(received.src_qp == sender, "{received:?}");
        to.check(at + GRH_LEN, length, seed)?;
        to.check(at + GRH_LEN + length, MARGIN, seed + 1)?;
    }
    Ok(())
}

fn atomics(place: Place, way: Way) -> Result<()> {
    const SUM: u64 = 0xffff_ffff_ffff_fff0;
    let mut pair = Pair::open(place, &Terms::new(QpType::Rc, 1024, 1 << 16))?;
    let (from, to) = pair.sides(way);
    // The value there before, the operation, the value after.
    let steps = [
        (5, Op::FetchAdd { add: 7 }, 12),
        (SUM, Op::FetchAdd { add: 0x20 }, 0x10),
        (
            9,
            Op::CompareSwap {
                compare: 9,
                swap: SUM,
            },
            SUM,
        ),
        (
            9,
            Op::CompareSwap {
                compare: 8,
                swap: 1,
            },
            9,
        ),
    ];
    for (wr_id, (before, op, after)) in (1..).zip(steps) {
        to.put(64, before)?;
        from.put(128, 0)?;
        from.post(&Post {
            wr_id,
            op,
            offset: 128,
            length: 8,
            remote: to.remote(64),
            flags: SendFlags::default(),
        })?;
        let done = from.next()?;
        done.is(wr_id, Status::Success)?;
        ensure!(done.opcode == op.opcode() as u8, "{done:?}");
        ensure!(done.length == 8, "{done:?}");
        ensure!(from.get(128)? == before, "{op:?} returned something else");
        ensure!(to.get(64)? == after, "{op:?} left something else");
    }
    Ok(())
}

/// A key that a SEND invalidates is told with the message, and is of no use afterwards.
fn invalidate(place: Place, way: Way) -> Result<()> {
    let mut pair = Pair::open(place, &Terms::new(QpType::Rc, 1024, 1 << 16))?;
    let mr = pair.ours.register(4096)?;
    let (key, addr) = match way {
        // Soft-RoCE lets peers invalidate windows only.
        Way::Us => {
            let key = pair.guests.bind(50, 8192, 4096)?;
            pair.guests.next()?.is(50, Status::Success)?;
            (key, pair.guests.remote(8192).addr)
        }
        Way::Guest => (mr.rkey(), mr.addr()),
    };
    let (from, to) = pair.sides(way);
    let write = Post {
        wr_id: 1,
        op: Op::Write,
        offset: 0,
        length: 100,
        remote: trunkline::Remote { addr, rkey: key },
        flags: SendFlags::default(),
    };
    from.post(&write)?;
    from.next()?.is(1, Status::Success)?;
    to.recv(RECEIVE, 0, 100)?;
    from.post(&Post {
        wr_id: 2,
        op: Op::SendInvalidate(key),
        ..write
    })?;
    from.next()?.is(2, Status::Success)?;
    let received = to.next()?;
    received.is(RECEIVE, Status::Success)?;
    // Soft-RoCE of Linux 6.1 does not tell programs which key it was.
    let told = (way == Way::Guest).then_some(key.0);
    ensure!(received.extra == told, "{received:?}, key {key:?}");
    from.post(&Post { wr_id: 3, ..write })?;
    from.next()?.is(3, Status::RemoteAccess)
}

/// Many requests of all kinds in flight at once, completed in order.
fn many(place: Place, way: Way) -> Result<()> {
    let mut pair = Pair::open(place, &Terms::new(QpType::Rc, 1024, 1 << 20))?;
    for round in 0..4 {
        let (from, to) = pair.sides(way);
        batch(from, to, round)?;
    }
    Ok(())
}

/// Requests of a batch.
const BATCH: usize = 32;
/// Bytes that each has for itself at both ends.
const SHARE: usize = 8192;

/// A batch of requests in flight together.
pub(crate) fn batch(from: &mut dyn Station, to: &mut dyn Station, replay_epoch: u64) -> Result<()> {
    let kinds = [Op::Send, Op::Write, Op::Read, Op::WriteImm(IMM)];
    let seed = |at: usize| (1 + replay_epoch) * 1_000_000 + at as u64 * 10_000;
    let length = |at: usize| (at * 977 + replay_epoch as usize * 131) % SHARE;
    // Sent from the lower half of a buffer, placed in the upper one.
    let (low, high) = (|at: usize| at * SHARE, |at: usize| (BATCH + at) * SHARE);
    let ops: Vec<Op> = (0..BATCH).map(|at| kinds[at % kinds.len()]).collect();
    for (at, op) in ops.iter().enumerate() {
        if *op == Op::Read {
            to.fill(low(at), length(at), seed(at))?;
        } else {
            from.fill(low(at), length(at), seed(at))?;
        }
        if op.takes_receive() {
            to.recv(RECEIVE + at as u64, high(at), SHARE)?;
        }
    }
    for (at, op) in ops.iter().enumerate() {
        let read = *op == Op::Read;
        let (near, far) = if read {
            (high(at), low(at))
        } else {
            (low(at), high(at))
        };
        from.post(&Post {
            wr_id: at as u64,
            op: *op,
            offset: near,
            length: length(at),
            remote: to.remote(far),
            flags: SendFlags::default(),
        })?;
    }
    for at in 0..BATCH {
        from.next()?.is(at as u64, Status::Success)?;
    }
    for (at, op) in ops.iter().enumerate() {
        if op.takes_receive() {
            to.next()?.is(RECEIVE + at as u64, Status::Success)?;
        }
        let sink: &mut dyn Station = if *op == Op::Read {
            &mut *from
        } else {
            &mut *to
        };
        sink.check(high(at), length(at), seed(at))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    /// As `transfer` and `in_turn` say it.
    fn lost() -> Result<()> {
        let nothing = None::<()>.context(Lost);
        nothing.map_err(|e| e.context("7 bytes"))
    }

    #[test]
    fn a_lost_message_is_excused_as_often_as_said_and_other_faults_never() {
        let tried = |tries, results: &[fn() -> Result<()>]| {
            let mut at = 0;
            let result = unless_lost(tries, || {
                at += 1;
                results[at - 1]()
            });
            (at, result)
        };
        let (times, result) = tried(3, &[lost, lost, || Ok(())]);
        result.unwrap();
        assert_eq!(times, 3);
        let (times, result) = tried(3, &[lost, lost, lost]);
        assert!(result.unwrap_err().is::<Lost>());
        assert_eq!(times, 3);
        assert_eq!(tried(1, &[lost]).0, 1);
        let wrong: fn() -> Result<()> = || Err(anyhow::anyhow!("another byte"));
        let (times, result) = tried(3, &[lost, wrong]);
        assert_eq!(result.unwrap_err().to_string(), "another byte");
        assert_eq!(times, 2);
    }
}
