//! The operations of the demo, each checked at both ends.

use super::{ACTIVE, End, Report, SLICE, STALL};
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
    pub(super) progress: Progress,
    pub(super) interrupt: &'a Interrupt,
}

impl Demo<'_> {
    /// A request and a response on every QP: each end checks what the other sent.
    pub(super) fn rpcs(&mut self, round: u64, size: usize) -> Result<()> {
        self.progress.say(&format!("RPCs of {size} bytes"));
        let count = self.client.qps.len();
        let (mut begun, mut ended) = (0, 0);
        let mut moved = Instant::now();
        let before = self.report.operations.send;
        while ended < count {
            // A response does not say that the SENDs before it have been completed, and their
            // queues must have room.
            let unanswered = |sends: u64, begun| 2 * begun - (sends - before) as usize;
            while begun < count
                && begun - ended < ACTIVE
                && unanswered(self.report.operations.send, begun) < 2 * ACTIVE
            {
                self.server.receive(begun, 0, size)?;
                self.client.receive(begun, 0, size)?;
                let data = pattern(begun as u64, round, size);
                self.client.mr.write(begun * SLICE + SLICE / 2, &data)?;
                self.client.post(begun, SendOp::Send, SLICE / 2, size)?;
                begun += 1;
            }
            self.turn()?;
            for done in drain(&self.server.recv_cq) {
                let at = self.index(&done, false)?;
                self.check(false, at, 0, &pattern(at as u64, round, size))?;
                let data = pattern(at as u64, !round, size);
                self.server.mr.write(at * SLICE + SLICE / 2, &data)?;
                self.server.post(at, SendOp::Send, SLICE / 2, size)?;
            }
            for done in drain(&self.client.recv_cq) {
                let at = self.index(&done, true)?;
                self.check(true, at, 0, &pattern(at as u64, !round, size))?;
                ended += 1;
                moved = Instant::now();
            }
            self.count_sends()?;
            self.watch(moved, ended, count)?;
        }
        while !self.report.operations.send.is_multiple_of(2 * count as u64) {
            self.turn()?;
            self.count_sends()?;
            self.watch(moved, ended, count)?;
        }
        Ok(())
    }

    pub(super) fn writes(&mut self) -> Result<()> {
        self.progress.say("WRITEs of 4096 bytes");
        let size = SLICE / 2;
        self.one_sided(
            |demo, at| {
                demo.client
                    .mr
                    .write(at * SLICE, &pattern(at as u64, 77, size))?;
                let remote = demo.server.mr.remote(at * SLICE + size);
                demo.client.post(at, SendOp::Write(remote), 0, size)
            },
            |demo, at| {
                demo.report.operations.write += 1;
                demo.check(false, at, size, &pattern(at as u64, 77, size))
            },
        )
    }

    pub(super) fn reads(&mut self) -> Result<()> {
        self.progress.say("READs of 4096 bytes");
        let size = SLICE / 2;
        self.one_sided(
            |demo, at| {
                demo.server
                    .mr
                    .write(at * SLICE, &pattern(at as u64, 88, size))?;
                let remote = demo.server.mr.remote(at * SLICE);
                demo.client.post(at, SendOp::Read(remote), size, size)
            },
            |demo, at| {
                demo.report.operations.read += 1;
                demo.check(true, at, size, &pattern(at as u64, 88, size))
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
            |demo, at| {
                let add = AtomicOp::FetchAdd { add: 1 };
                demo.client
                    .post(at, SendOp::Atomic(demo.server.mr.remote(0), add), 0, 8)
            },
            |demo, at| {
                demo.report.operations.atomic += 1;
                let before = read_u64(&demo.client.mr, at * SLICE)? as usize;
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
            |demo, at| {
                demo.server
                    .mr
                    .write(at * SLICE + 8, &(at as u64).to_ne_bytes())?;
                let swap = AtomicOp::CompareSwap {
                    compare: at as u64,
                    swap: !(at as u64),
                };
                let remote = demo.server.mr.remote(at * SLICE + 8);
                demo.client.post(at, SendOp::Atomic(remote, swap), 0, 8)
            },
            |demo, at| {
                demo.report.operations.atomic += 1;
                demo.check(true, at, 0, &(at as u64).to_ne_bytes())?;
                demo.check(false, at, 8, &(!(at as u64)).to_ne_bytes())
            },
        )
    }

    /// One operation on every QP of the client.
    fn one_sided(
        &mut self,
        mut begin: impl FnMut(&mut Self, usize) -> Result<()>,
        mut end: impl FnMut(&mut Self, usize) -> Result<()>,
    ) -> Result<()> {
        let count = self.client.qps.len();
        let (mut begun, mut ended) = (0, 0);
        let mut moved = Instant::now();
        while ended < count {
            while begun < count && begun - ended < ACTIVE {
                begin(self, begun)?;
                begun += 1;
            }
            self.turn()?;
            for done in drain(&self.client.send_cq) {
                let at = self.index(&done, true)?;
                end(self, at)?;
                ended += 1;
                moved = Instant::now();
            }
            self.watch(moved, ended, count)?;
        }
        Ok(())
    }

    fn turn(&mut self) -> Result<()> {
        self.client.node.poll()?;
        self.server.node.poll()?;
        Ok(())
    }

    fn count_sends(&mut self) -> Result<()> {
        for (cq, client) in [(&self.client.send_cq, true), (&self.server.send_cq, false)] {
            for done in drain(cq) {
                ensure!(
                    done.opcode == WorkOpcode::Send,
                    "a completion of {:?}",
                    done.opcode
                );
                check_status(&done, client)?;
                self.report.operations.send += 1;
            }
        }
        Ok(())
    }

    /// The QP that a completion belongs to.
    fn index(&mut self, done: &Completion, client: bool) -> Result<usize> {
        if let Err(error) = check_status(done, client) {
            self.report.errors += 1;
            return Err(error);
        }
        let at = done.wr_id as usize;
        let end = if client { &self.client } else { &self.server };
        ensure!(
            end.qps[at].qpn() == done.qpn,
            "a completion with another QP's wr_id"
        );
        Ok(at)
    }

    fn check(&mut self, client: bool, at: usize, offset: usize, expected: &[u8]) -> Result<()> {
        let end = if client { &self.client } else { &self.server };
        let mut found = vec![0; expected.len()];
        end.mr.read(at * SLICE + offset, &mut found)?;
        if found != expected {
            self.report.errors += 1;
            bail!(
                "wrong bytes in the {} of QP {}",
                name(client),
                end.qps[at].qpn()
            );
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
