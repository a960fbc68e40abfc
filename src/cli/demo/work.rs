//! The operations of the demo, each checked at both ends.

use super::slots::{Slots, Work};
use super::{End, Report, SLICE, STALL};
use crate::cli::interrupt::Interrupt;
use crate::cli::progress::Progress;
use anyhow::{Result, bail, ensure};
use std::time::Instant;
use trunkline::{AtomicOp, Completion, Cq, Mr, SendOp, Status, WorkOpcode};

/// What the two ends do to each other, and what came of it.
pub(super) struct Demo<'a> {
    pub(super) client: &'a mut End,
    pub(super) server: &'a mut End,
    pub(super) report: &'a mut Report,
    pub(super) slots: Slots,
    pub(super) progress: Progress,
    pub(super) interrupt: &'a Interrupt,
}

impl Demo<'_> {
    /// A request and a response on every QP: each end checks what the other sent.
    pub(super) fn rpcs(&mut self, round: u64, size: usize) -> Result<()> {
        self.progress.say(&format!("RPCs of {size} bytes"));
        // Two SENDs, each with its completion, and the response, are all that a slot waits for: the
        // completion of the request's receive is in between.
        const COMPLETIONS: u8 = 3;
        let count = self.client.qps.len();
        let (mut begun, mut ended) = (0, 0);
        let mut moved = Instant::now();
        while ended < count {
            while begun < count
                && let Some(slot) = self.slots.take(COMPLETIONS)
            {
                let work = Work { qp: begun, slot };
                self.server.receive(work, 0, size)?;
                self.client.receive(work, 0, size)?;
                let data = pattern(begun as u64, round, size);
                self.client.mr.write(slot * SLICE + SLICE / 2, &data)?;
                self.client.post(work, SendOp::Send, SLICE / 2, size)?;
                begun += 1;
            }
            self.turn()?;
            for done in drain(&self.server.recv_cq) {
                let work = self.work(&done, false)?;
                self.check(false, work.slot, 0, &pattern(work.qp as u64, round, size))?;
                let data = pattern(work.qp as u64, !round, size);
                self.server.mr.write(work.slot * SLICE + SLICE / 2, &data)?;
                self.server.post(work, SendOp::Send, SLICE / 2, size)?;
                moved = Instant::now();
            }
            for done in drain(&self.client.recv_cq) {
                let work = self.work(&done, true)?;
                self.check(true, work.slot, 0, &pattern(work.qp as u64, !round, size))?;
                ended += usize::from(self.slots.completed(work.slot));
                moved = Instant::now();
            }
            ended += self.count_sends()?;
            self.watch(moved, ended, count)?;
        }
        Ok(())
    }

    pub(super) fn writes(&mut self) -> Result<()> {
        self.progress.say("WRITEs of 4096 bytes");
        let size = SLICE / 2;
        self.one_sided(
            |demo, work| {
                let (at, data) = (work.slot * SLICE, pattern(work.qp as u64, 77, size));
                demo.client.mr.write(at, &data)?;
                let remote = demo.server.mr.remote(at + size);
                demo.client.post(work, SendOp::Write(remote), 0, size)
            },
            |demo, work| {
                demo.report.operations.write += 1;
                demo.check(false, work.slot, size, &pattern(work.qp as u64, 77, size))
            },
        )
    }

    pub(super) fn reads(&mut self) -> Result<()> {
        self.progress.say("READs of 4096 bytes");
        let size = SLICE / 2;
        self.one_sided(
            |demo, work| {
                let (at, data) = (work.slot * SLICE, pattern(work.qp as u64, 88, size));
                demo.server.mr.write(at, &data)?;
                let remote = demo.server.mr.remote(at);
                demo.client.post(work, SendOp::Read(remote), size, size)
            },
            |demo, work| {
                demo.report.operations.read += 1;
                demo.check(true, work.slot, size, &pattern(work.qp as u64, 88, size))
            },
        )
    }

    /// Every QP adds to one counter, then swaps a cell of its own.
    pub(super) fn atomics(&mut self) -> Result<()> {
        self.progress.say("atomics");
        let count = self.client.qps.len();
        self.server.mr.write(0, &[0; 8])?;
        let mut seen = vec![false; count];
        self.one_sided(
            |demo, work| {
                let add = AtomicOp::FetchAdd { add: 1 };
                let op = SendOp::Atomic(demo.server.mr.remote(0), add);
                demo.client.post(work, op, 0, 8)
            },
            |demo, work| {
                demo.report.operations.atomic += 1;
                let before = read_u64(&demo.client.mr, work.slot * SLICE)? as usize;
                ensure!(
                    before < count,
                    "FETCH_ADD gave {before}, beyond the {count} additions"
                );
                ensure!(
                    !std::mem::replace(&mut seen[before], true),
                    "FETCH_ADD gave {before} twice"
                );
                demo.report.bytes_verified += 8;
                Ok(())
            },
        )?;
        let sum = read_u64(&self.server.mr, 0)?;
        ensure!(sum == count as u64, "{count} additions made {sum}");
        self.one_sided(
            |demo, work| {
                let (at, value) = (work.slot * SLICE + 8, work.qp as u64);
                demo.server.mr.write(at, &value.to_ne_bytes())?;
                let swap = AtomicOp::CompareSwap {
                    compare: value,
                    swap: !value,
                };
                let remote = demo.server.mr.remote(at);
                demo.client.post(work, SendOp::Atomic(remote, swap), 0, 8)
            },
            |demo, work| {
                demo.report.operations.atomic += 1;
                let value = work.qp as u64;
                demo.check(true, work.slot, 0, &value.to_ne_bytes())?;
                demo.check(false, work.slot, 8, &(!value).to_ne_bytes())
            },
        )
    }

    /// One operation on every QP of the client.
    fn one_sided(
        &mut self,
        mut begin: impl FnMut(&mut Self, Work) -> Result<()>,
        mut end: impl FnMut(&mut Self, Work) -> Result<()>,
    ) -> Result<()> {
        let count = self.client.qps.len();
        let (mut begun, mut ended) = (0, 0);
        let mut moved = Instant::now();
        while ended < count {
            while begun < count
                && let Some(slot) = self.slots.take(1)
            {
                begin(self, Work { qp: begun, slot })?;
                begun += 1;
            }
            self.turn()?;
            for done in drain(&self.client.send_cq) {
                let work = self.work(&done, true)?;
                end(self, work)?;
                ended += usize::from(self.slots.completed(work.slot));
                moved = Instant::now();
            }
            self.watch(moved, ended, count)?;
        }
        Ok(())
    }

    fn turn(&mut self) -> Result<()> {
        if !self.client.node.poll()? {
            // The server's thread may want the processor.
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Takes completions of SENDs; gives how many operations ended with them.
    fn count_sends(&mut self) -> Result<usize> {
        let mut ended = 0;
        for client in [true, false] {
            let end = if client { &self.client } else { &self.server };
            for done in drain(&end.send_cq) {
                ensure!(
                    done.opcode == WorkOpcode::Send,
                    "a completion of {:?}",
                    done.opcode
                );
                check_status(&done, client)?;
                self.report.operations.send += 1;
                let work = Work::of(done.wr_id);
                ended += usize::from(self.slots.completed(work.slot));
            }
        }
        Ok(ended)
    }

    /// The operation that a completion belongs to.
    fn work(&mut self, done: &Completion, client: bool) -> Result<Work> {
        if let Err(error) = check_status(done, client) {
            self.report.errors += 1;
            return Err(error);
        }
        let work = Work::of(done.wr_id);
        let end = if client { &self.client } else { &self.server };
        ensure!(
            end.qps[work.qp].qpn() == done.qpn,
            "a completion with another QP's wr_id"
        );
        Ok(work)
    }

    fn check(&mut self, client: bool, slot: usize, offset: usize, expected: &[u8]) -> Result<()> {
        let end = if client { &self.client } else { &self.server };
        let mut found = vec![0; expected.len()];
        end.mr.read(slot * SLICE + offset, &mut found)?;
        if found != expected {
            self.report.errors += 1;
            bail!("wrong bytes at the {}", name(client));
        }
        self.report.bytes_verified += expected.len() as u64;
        Ok(())
    }

    fn watch(&self, moved: Instant, ended: usize, count: usize) -> Result<()> {
        self.interrupt.check()?;
        self.progress.show(ended, count);
        ensure!(
            moved.elapsed() < STALL,
            "nothing moved for {STALL:?}: {ended} of {count} done"
        );
        Ok(())
    }
}

const fn name(client: bool) -> &'static str {
    if client { "client" } else { "server" }
}

fn check_status(done: &Completion, client: bool) -> Result<()> {
    let end = name(client);
    ensure!(
        done.status == Status::Success,
        "QP {} of the {end}: {:?} ended with {:?}",
        done.qpn,
        done.opcode,
        done.status
    );
    Ok(())
}

fn drain(cq: &Cq) -> Vec<Completion> {
    let mut batch = [Completion::BLANK; 64];
    let mut all = Vec::new();
    loop {
        let count = cq.poll(&mut batch);
        all.extend_from_slice(&batch[..count]);
        if count < batch.len() {
            return all;
        }
    }
}

fn read_u64(mr: &Mr, offset: usize) -> Result<u64> {
    let mut bytes = [0; 8];
    mr.read(offset, &mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Bytes that depend on the QP and the round, so that nothing can pass for something else.
fn pattern(qp: u64, round: u64, size: usize) -> Vec<u8> {
    let mut state =
        qp.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ round.wrapping_mul(0xd1b5_4a32_d192_ed03);
    let mut bytes = Vec::with_capacity(size + 8);
    while bytes.len() < size {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        bytes.extend((state ^ (state >> 29)).to_le_bytes());
    }
    bytes.truncate(size);
    bytes
}
