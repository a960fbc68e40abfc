//! Neighbours of clients that are killed: calls, one after another.

use super::client::{Addresses, End, Memory, Shape, check};
use crate::process::{Parent, SILENCE};
use crate::rounds::percentile;
use anyhow::{Context, Result, ensure};
use std::time::Instant;
use trunkline::{Completion, RecvWr, SendWr};

/// What neighbours have.
const CALLS: Shape = Shape {
    qps: 1,
    depth: 4,
    size: 64,
    memory: Memory::Segment,
};

/// One end of calls: what it sends, and what it receives into.
struct Caller {
    end: End,
}

impl Caller {
    fn open(parent: &Parent, socket: &str) -> Result<Self> {
        let caller = Self {
            end: End::open(socket, CALLS)?,
        };
        let others: Addresses = parent.exchange(&caller.end.addresses())?;
        caller.end.connect(&others)?;
        caller.receive()?;
        parent.say(&())?;
        Ok(caller)
    }

    fn receive(&self) -> Result<()> {
        let sges = [self.end.mr.sge(CALLS.size, CALLS.size)];
        Ok(self.end.qps[0].post_recv(&[RecvWr::new().sges(&sges)])?)
    }

    fn send(&self, number: u64) -> Result<()> {
        self.end.mr.write(0, &number.to_le_bytes())?;
        let sges = [self.end.mr.sge(0, CALLS.size)];
        let request = SendWr::send().wr_id(1).sges(&sges).signaled();
        Ok(self.end.qps[0].post_send(&[request])?)
    }

    /// The number that comes next; none: none has come for too long.
    fn heard(&self) -> Result<Option<u64>> {
        let mut found = [Completion::BLANK];
        loop {
            let [done] = self.end.completions(&mut found, SILENCE)? else {
                return Ok(None);
            };
            check(done)?;
            if done.wr_id == 0 {
                let mut bytes = [0; 8];
                self.end.mr.read(CALLS.size, &mut bytes)?;
                self.receive()?;
                return Ok(Some(u64::from_le_bytes(bytes)));
            }
        }
    }
}

/// Calls one after another. Whenever it is asked, it says the 99th percentile of how long those in
/// between took, in ns.
///
/// # Errors
/// A call that failed, or another answer.
pub(super) fn ping(parent: &Parent, socket: &str) -> Result<()> {
    let caller = Caller::open(parent, socket)?;
    parent.hear_line()?;
    let mut taken = Vec::new();
    for number in 0.. {
        let begun = Instant::now();
        caller.send(number)?;
        let answer = caller.heard()?;
        taken.push(begun.elapsed().as_nanos() as f64);
        ensure!(answer == Some(number), "{answer:?} answers call {number}");
        if parent.has_line() {
            parent.say(&percentile(&mut taken, 99))?;
            taken.clear();
        }
    }
    Ok(())
}

/// Answers calls until all is over.
///
/// # Errors
/// An answer that failed, or no calls any more.
pub(super) fn pong(parent: &Parent, socket: &str) -> Result<()> {
    let caller = Caller::open(parent, socket)?;
    loop {
        let number = caller.heard()?.context("nobody calls")?;
        caller.send(number)?;
    }
}
