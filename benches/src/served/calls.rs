//! Neighbours of clients that are killed: calls, one after another.

use super::client::{Addresses, End, Memory, Shape, check};
use super::victims::now_ns;
use crate::process::{Parent, SILENCE};
use crate::rounds::percentile;
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::ops::Range;
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

/// How long calls took that were under way at certain times.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct Beside {
    /// The 99th percentile, in ns.
    pub(super) ns: f64,
    /// The longest, in ns.
    pub(super) longest_ns: f64,
}

impl Beside {
    /// Of `calls`, which began and ended at these times, those that were under way within one of
    /// `spans`. Both are in order, and spans do not overlap. `None`: no call was.
    fn of(calls: &[Range<u64>], spans: &[Range<u64>]) -> Option<Self> {
        let is_beside = |call: &&Range<u64>| {
            let at = spans.partition_point(|span| span.end <= call.start);
            spans.get(at).is_some_and(|span| span.start < call.end)
        };
        let taken = |call: &Range<u64>| (call.end - call.start) as f64;
        let mut taken: Vec<_> = calls.iter().filter(is_beside).map(taken).collect();
        (!taken.is_empty()).then(|| Self {
            ns: percentile(&mut taken, 99),
            longest_ns: percentile(&mut taken, 100),
        })
    }
}

/// Calls one after another. Whenever it is told spans of time, it says how long the calls beside
/// them took, of those since it was asked last.
///
/// # Errors
/// A call that failed, or another answer; no call in these spans.
pub(super) fn ping(parent: &Parent, socket: &str) -> Result<()> {
    let caller = Caller::open(parent, socket)?;
    parent.hear_line()?;
    let mut calls = Vec::new();
    for number in 0.. {
        let begun = now_ns()?;
        caller.send(number)?;
        let answer = caller.heard()?;
        calls.push(begun..now_ns()?);
        ensure!(answer == Some(number), "{answer:?} answers call {number}");
        if let Some(line) = parent.take_line() {
            let spans: Vec<Range<u64>> = serde_json::from_str(&line)?;
            let beside = Beside::of(&calls, &spans);
            parent.say(&beside.context("no calls in these spans")?)?;
            calls.clear();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_count_that_are_under_way_within_a_span() {
        let calls = [0..10, 10..30, 30..35, 50..55, 60..95, 99..100];
        let beside = |spans: &[Range<u64>]| Beside::of(&calls, spans).map(|found| found.longest_ns);
        assert_eq!(beside(&[]), None);
        assert_eq!(beside(&[35..50, 96..99, 200..300]), None);
        assert_eq!(beside(&[31..32, 97..98]), Some(5.0));
        assert_eq!(beside(&[9..10, 54..60]), Some(10.0));
        assert_eq!(beside(&[29..31, 90..200]), Some(35.0));
    }
}
