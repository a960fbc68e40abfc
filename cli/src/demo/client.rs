//! The client: runs all operations, each checked at both ends.

use super::end::{End, Gone, Idle, drain};
use super::pattern::Pattern;
use super::server::{Tally, write_request};
use super::slots::{Slots, Work};
use super::{Report, SLICE, STALL};
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use anyhow::{Result, bail, ensure};
use std::sync::atomic::Ordering;
use std::time::Instant;
use trunkline::{AtomicOp, Completion, Mr, Qp, RecvWr, SendOp, WorkOpcode};

/// What the client does, and what came of it.
pub(super) struct Client<'a> {
    pub(super) end: &'a End,
    /// Memory of the server that is written, read and changed from here.
    pub(super) remote: &'a Mr,
    pub(super) qps: Vec<Qp>,
    pub(super) report: Report,
    pub(super) slots: Slots,
    pub(super) tally: &'a Tally,
    pub(super) progress: &'a Progress,
    pub(super) interrupt: &'a Interrupt,
    /// Whether the server's thread has ended.
    pub(super) alone: &'a dyn Fn() -> bool,
}

impl Client<'_> {
    /// A request and a response on every QP: each end checks what the other sent.
    pub(super) fn rpcs(&mut self, round: u64, size: usize) -> Result<()> {
        self.progress.step(&format!("RPCs of {size} bytes"));
        // The SEND and the response.
        const COMPLETIONS: u8 = 2;
        let count = self.qps.len();
        let (mut begun, mut ended) = (0, 0);
        let mut pace = Pace::new();
        let (mut bytes, mut done) = ([0; SLICE], Vec::new());
        let bytes = &mut bytes[..size];
        let expected = self.tally.responses.load(Ordering::Acquire) + count as u64;
        while ended < count || self.tally.responses.load(Ordering::Acquire) < expected {
            while begun < count
                && let Some(slot) = self.slots.next(COMPLETIONS)
            {
                let work = Work { qp: begun, slot };
                self.receive(work, size)?;
                write_request(begun, round, bytes);
                let at = slot * SLICE + SLICE / 2;
                self.end.mr.write(at, bytes)?;
                self.post(work, SendOp::Send, (SLICE / 2, size))?;
                begun += 1;
            }
            let polled = self.end.node.poll()?;
            drain(&self.end.recv_cq, &mut done)?;
            for done in &done {
                let work = self.work(done)?;
                let found = &mut bytes[..done.byte_len as usize];
                self.end.mr.read(work.slot * SLICE, found)?;
                self.check(found.len() == size, Pattern::new(work.qp, !round), found)?;
                ended += usize::from(self.slots.completed(work.slot));
            }
            let received = !done.is_empty();
            ended += self.count_sends(&mut done)?;
            self.pause(&mut pace, polled, received || !done.is_empty(), ended)?;
        }
        Ok(())
    }

    pub(super) fn writes(&mut self) -> Result<()> {
        self.progress.step("WRITEs of 4096 bytes");
        let size = SLICE / 2;
        let mut bytes = vec![0; size];
        let mut found = vec![0; size];
        self.one_sided(
            |client, work| {
                Pattern::new(work.qp, 77).fill(&mut bytes);
                client.end.mr.write(work.slot * SLICE, &bytes)?;
                let remote = client.remote.remote(work.slot * SLICE + size);
                client.post(work, SendOp::Write(remote), (0, size))
            },
            |client, work| {
                client.report.operations.write += 1;
                client.remote.read(work.slot * SLICE + size, &mut found)?;
                client.check(true, Pattern::new(work.qp, 77), &found)
            },
        )
    }

    pub(super) fn reads(&mut self) -> Result<()> {
        self.progress.step("READs of 4096 bytes");
        let size = SLICE / 2;
        let mut bytes = vec![0; size];
        let mut found = vec![0; size];
        self.one_sided(
            |client, work| {
                let at = work.slot * SLICE;
                Pattern::new(work.qp, 88).fill(&mut bytes);
                client.remote.write(at, &bytes)?;
                let remote = client.remote.remote(at);
                client.post(work, SendOp::Read(remote), (size, size))
            },
            |client, work| {
                client.report.operations.read += 1;
                client.end.mr.read(work.slot * SLICE + size, &mut found)?;
                client.check(true, Pattern::new(work.qp, 88), &found)
            },
        )
    }

    /// Every QP adds to one counter, then swaps a cell of its own.
    pub(super) fn atomics(&mut self) -> Result<()> {
        self.progress.step("atomics");
        let count = self.qps.len();
        self.remote.write(0, &[0; 8])?;
        let mut seen = vec![false; count];
        self.one_sided(
            |client, work| {
                let add = AtomicOp::FetchAdd { add: 1 };
                let op = SendOp::Atomic(client.remote.remote(0), add);
                client.post(work, op, (0, 8))
            },
            |client, work| {
                client.report.operations.atomic += 1;
                let before = read_u64(&client.end.mr, work.slot * SLICE)? as usize;
                ensure!(
                    before < count,
                    "FETCH_ADD gave {before}, beyond the {count} additions"
                );
                ensure!(
                    !std::mem::replace(&mut seen[before], true),
                    "FETCH_ADD gave {before} twice"
                );
                client.report.bytes_verified += 8;
                Ok(())
            },
        )?;
        let sum = read_u64(self.remote, 0)?;
        ensure!(sum == count as u64, "{count} additions made {sum}");
        self.swaps()
    }

    fn swaps(&mut self) -> Result<()> {
        self.one_sided(
            |client, work| {
                let (at, value) = (work.slot * SLICE + 8, work.qp as u64);
                client.remote.write(at, &value.to_ne_bytes())?;
                let swap = AtomicOp::CompareSwap {
                    compare: value,
                    swap: !value,
                };
                let remote = client.remote.remote(at);
                client.post(work, SendOp::Atomic(remote, swap), (0, 8))
            },
            |client, work| {
                client.report.operations.atomic += 1;
                let (at, value) = (work.slot * SLICE, work.qp as u64);
                let before = read_u64(&client.end.mr, at)?;
                let after = read_u64(client.remote, at + 8)?;
                if (before, after) != (value, !value) {
                    client.report.errors += 1;
                    bail!("COMPARE_SWAP of {value} gave {before} and left {after}");
                }
                client.report.bytes_verified += 16;
                Ok(())
            },
        )
    }

    /// One operation on every QP of the client.
    fn one_sided(
        &mut self,
        mut begin: impl FnMut(&mut Self, Work) -> Result<()>,
        mut end: impl FnMut(&mut Self, Work) -> Result<()>,
    ) -> Result<()> {
        let count = self.qps.len();
        let (mut begun, mut ended) = (0, 0);
        let (mut pace, mut done) = (Pace::new(), Vec::new());
        while ended < count {
            while begun < count
                && let Some(slot) = self.slots.next(1)
            {
                begin(self, Work { qp: begun, slot })?;
                begun += 1;
            }
            let polled = self.end.node.poll()?;
            drain(&self.end.send_cq, &mut done)?;
            for done in &done {
                let work = self.work(done)?;
                end(self, work)?;
                ended += usize::from(self.slots.completed(work.slot));
            }
            self.pause(&mut pace, polled, !done.is_empty(), ended)?;
        }
        Ok(())
    }

    fn receive(&self, work: Work, length: usize) -> Result<()> {
        let sges = [self.end.mr.sge(work.slot * SLICE, length)];
        Ok(self.qps[work.qp].post_recv(&[RecvWr::new().wr_id(work.wr_id()).sges(&sges)])?)
    }

    /// Posts a request on bytes of the operation's slot: where they begin, and how many they are.
    fn post(&self, work: Work, op: SendOp, (offset, length): (usize, usize)) -> Result<()> {
        let at = work.slot * SLICE + offset;
        let qp = &self.qps[work.qp];
        self.end.post(qp, work.wr_id(), op, (at, length))
    }

    /// Takes completions of SENDs; gives how many operations ended with them.
    fn count_sends(&mut self, done: &mut Vec<Completion>) -> Result<usize> {
        drain(&self.end.send_cq, done)?;
        let mut ended = 0;
        for done in &*done {
            ensure!(
                done.opcode == WorkOpcode::Send,
                "a completion of {:?}",
                done.opcode
            );
            let work = self.work(done)?;
            self.report.operations.send += 1;
            ended += usize::from(self.slots.completed(work.slot));
        }
        Ok(ended)
    }

    /// The operation that a completion belongs to.
    fn work(&mut self, done: &Completion) -> Result<Work> {
        if let Err(error) = self.end.check_status(done) {
            self.report.errors += 1;
            return Err(error);
        }
        let work = Work::of(done.wr_id);
        ensure!(
            self.qps[work.qp].qpn() == done.qpn,
            "a completion with another QP's wr_id"
        );
        Ok(work)
    }

    fn check(&mut self, whole: bool, expected: Pattern, found: &[u8]) -> Result<()> {
        if !whole || !expected.matches(found) {
            self.report.errors += 1;
            bail!("wrong bytes at the client");
        }
        self.report.bytes_verified += found.len() as u64;
        Ok(())
    }

    /// Ends a round, in which the node was busy or not and operations `moved` on or not.
    fn pause(&self, pace: &mut Pace, busy: bool, moved: bool, ended: usize) -> Result<()> {
        self.interrupt.check()?;
        let count = self.qps.len();
        self.progress.show(ended, count);
        if (self.alone)() {
            return Err(Gone.into());
        }
        if moved {
            pace.moved = Instant::now();
        }
        ensure!(
            moved || pace.moved.elapsed() < STALL,
            "nothing moved for {STALL:?}: {ended} of {count} done"
        );
        pace.idle.round(&self.end.node, busy || moved)
    }
}

/// Of operations of one kind.
struct Pace {
    /// When one moved on last.
    moved: Instant,
    idle: Idle,
}

impl Pace {
    fn new() -> Self {
        Self {
            moved: Instant::now(),
            idle: Idle::default(),
        }
    }
}

fn read_u64(mr: &Mr, offset: usize) -> Result<u64> {
    let mut bytes = [0; 8];
    mr.read(offset, &mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}
