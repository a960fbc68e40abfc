//! The server: answers requests on any of its QPs.

use super::end::{End, Exchange, Idle, drain};
use super::pattern::Pattern;
use super::{RPCS, SLICE};
use crate::interrupt::Interrupt;
use anyhow::{Context, Result, bail, ensure};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use trunkline::{Completion, Qp, RecvWr, SendOp, WorkOpcode};

/// What the two threads tell each other.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Responses whose SEND has completed.
    pub(super) responses: AtomicU64,
    /// Bytes of requests, each as it should be.
    pub(super) bytes_verified: AtomicU64,
    /// There are no more requests.
    pub(super) over: AtomicBool,
}

/// The server's end, and what its thread alone has.
pub(super) struct Server<'a> {
    end: &'a End,
    tally: &'a Tally,
    qps: Vec<Qp>,
    done: Vec<Completion>,
}

impl<'a> Server<'a> {
    /// Opens the QPs, with receives for what they share.
    pub(super) fn open(
        end: &'a End,
        tally: &'a Tally,
        count: usize,
        exchange: &Exchange,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let mut server = Self {
            end,
            tally,
            qps: Vec::new(),
            done: Vec::new(),
        };
        for buffer in 0..end.mr.len() / SLICE {
            server.receive(buffer)?;
        }
        server.qps = end.open_qps(count, exchange, interrupt, None)?;
        Ok(server)
    }

    /// Answers until there are no more requests, and closes the QPs then.
    pub(super) fn run(mut self, interrupt: &Interrupt) -> Result<()> {
        let mut idle = Idle::default();
        while !self.tally.over.load(Ordering::Acquire) {
            interrupt.check()?;
            let mut busy = self.end.node.poll()?;
            busy |= self.answer()?;
            busy |= self.take_back()?;
            idle.round(&self.end.node, busy)?;
        }
        self.end.close_qps(self.qps, interrupt)
    }

    /// Lets a request come into the first half of a buffer.
    fn receive(&self, buffer: usize) -> Result<()> {
        let srq = self.end.srq.as_ref().context("a server shares receives")?;
        let sges = [self.end.mr.sge(buffer * SLICE, SLICE / 2)];
        Ok(srq.post_recv(&[RecvWr::new().wr_id(buffer as u64).sges(&sges)])?)
    }

    /// Answers the requests that have come, each from the second half of its buffer.
    fn answer(&mut self) -> Result<bool> {
        let mut done = std::mem::take(&mut self.done);
        drain(&self.end.recv_cq, &mut done)?;
        let mut bytes = [0; SLICE / 2];
        for done in &done {
            self.end.check_status(done)?;
            let (length, at) = (done.byte_len as usize, done.wr_id as usize * SLICE);
            let request = bytes.get_mut(..length);
            let request = request.context("a request is longer than its buffer")?;
            self.end.mr.read(at, request)?;
            let Some((qp, round)) = parse(request) else {
                bail!("wrong bytes at the server");
            };
            let own = self.qps.get(qp).filter(|own| own.qpn() == done.qpn);
            let own = own.context("a request came to another QP than it was for")?;
            let verified = &self.tally.bytes_verified;
            verified.fetch_add(done.byte_len.into(), Ordering::Relaxed);
            Pattern::new(qp, !round).fill(request);
            let at = at + SLICE / 2;
            self.end.mr.write(at, request)?;
            self.end.post(own, done.wr_id, SendOp::Send, (at, length))?;
        }
        self.done = done;
        Ok(!self.done.is_empty())
    }

    /// The buffers of responses that have arrived are free for further requests.
    fn take_back(&mut self) -> Result<bool> {
        let mut done = std::mem::take(&mut self.done);
        drain(&self.end.send_cq, &mut done)?;
        for done in &done {
            ensure!(
                done.opcode == WorkOpcode::Send,
                "a completion of {:?}",
                done.opcode
            );
            self.end.check_status(done)?;
            self.receive(done.wr_id as usize)?;
        }
        let responses = &self.tally.responses;
        responses.fetch_add(done.len() as u64, Ordering::Release);
        self.done = done;
        Ok(!self.done.is_empty())
    }
}

/// Writes a request of a QP: which it is, and bytes that depend on it.
pub(super) fn write_request(qp: usize, round: u64, out: &mut [u8]) {
    if let Some((number, rest)) = out.split_first_chunk_mut() {
        *number = (qp as u64).to_ne_bytes();
        Pattern::new(qp, round).fill(rest);
    }
}

/// The QP and the round of a request, if all its bytes are as they should be.
fn parse(request: &[u8]) -> Option<(usize, u64)> {
    let (number, rest) = request.split_first_chunk()?;
    let qp = u64::from_ne_bytes(*number) as usize;
    let (round, _) = RPCS.iter().find(|(_, size)| *size == request.len())?;
    let right = Pattern::new(qp, *round).matches(rest);
    right.then_some((qp, *round))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_says_whose_it_is_and_a_damaged_one_is_none() {
        for (round, size) in RPCS {
            let mut request = vec![0; size];
            write_request(999_999, round, &mut request);
            assert_eq!(parse(&request), Some((999_999, round)));
            for at in [0, 7, 8, size - 1] {
                request[at] ^= 1;
                assert_eq!(parse(&request), None, "byte {at} of {size}");
                request[at] ^= 1;
            }
            assert_eq!(parse(&request[1..]), None);
        }
    }
}
