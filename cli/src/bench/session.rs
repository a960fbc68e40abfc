//! What both ends do all the time: drive the node, and look around now and then.

use super::channel::{Channel, Message};
use super::end::{End, Target};
use super::failure::{Ends, Failed, QpFailure};
use super::idle::IdleTimer;
use super::node::turn;
use super::pace::{Look, Pace};
use super::params::{Op, Params, Side, pattern};
use super::report::PathReport;
use crate::interrupt::{Interrupt, Interrupted};
use anyhow::{Result, anyhow, ensure};
use std::collections::BTreeMap;
use std::time::Instant;
use trunkline::{AtomicOp, DeliveryCounters, PortKind, SendOp};

/// Packets that a connection may take that opens, and for each QP on it: where it is opened again
/// and again, as only small packets get through, nothing that was waited for moves.
const OPENING: u64 = 16;
const OPENING_PER_QP: u64 = 4;

/// A measurement under way, at one of its ends.
#[derive(Debug)]
pub(crate) struct Session<'a> {
    /// QPs and buffers.
    pub(crate) end: End,
    /// The other side's.
    pub(crate) target: Target,
    ends: Ends,
    /// What is measured.
    pub(crate) params: Params,
    /// To the other side.
    pub(crate) channel: Channel,
    /// Ctrl-C.
    pub(crate) interrupt: &'a Interrupt,
    /// What the client said to end the measurement.
    pub(crate) stop: Option<Vec<u64>>,
    /// Bytes compared with what they should be.
    pub(crate) verified: u64,
    /// The message expected, to compare with; kept to save allocations.
    expected: Vec<u8>,
    found: Vec<u8>,
    idle_timer: IdleTimer,
    /// What the node said last of why requests fail.
    failure: Option<QpFailure>,
    pace: Pace,
}

impl<'a> Session<'a> {
    /// Begins, on a port of that kind.
    pub(crate) fn new(
        (end, port): (End, PortKind),
        target: Target,
        params: Params,
        channel: Channel,
        interrupt: &'a Interrupt,
    ) -> Self {
        let ends = Ends {
            here: end.node.gid().address(),
            there: target.node(),
            port,
        };
        Self {
            end,
            target,
            ends,
            params,
            channel,
            interrupt,
            stop: None,
            verified: 0,
            expected: vec![
                0;
                if params.verify {
                    params.size as usize
                } else {
                    0
                }
            ],
            found: vec![
                0;
                if params.verify {
                    params.size as usize
                } else {
                    0
                }
            ],
            idle_timer: IdleTimer::new(params.timeout, Instant::now()),
            failure: None,
            pace: Pace::new(),
        }
    }

    /// Something that was waited for has happened.
    pub(crate) fn moved(&mut self) {
        self.idle_timer.moved(Instant::now());
    }

    /// One round of the node.
    ///
    /// # Errors
    /// The port does not work any more, the other side is gone, or Ctrl-C.
    #[inline]
    pub(crate) fn turn(&mut self) -> Result<()> {
        let busy = turn(&self.end.node)?;
        match self.pace.round(busy) {
            Some(look) => self.look_around(look),
            None => Ok(()),
        }
    }

    fn look_around(&mut self, look: Look) -> Result<()> {
        self.interrupt.check()?;
        if look.was_absent {
            self.idle_timer.moved(look.now);
        }
        // A server need not know what comes, but something does; a client knows what it waits for.
        let (arrived, least) = if self.end.side() == Side::Server {
            (self.end.node.counters().received, 1)
        } else {
            let counters = self.end.node.delivery_counters();
            let opening = OPENING + OPENING_PER_QP * u64::from(self.params.qps);
            (counters.acked + counters.accepted, opening)
        };
        self.idle_timer.arrived(arrived, least, look.now);
        ensure!(
            !self.idle_timer.is_over(look.now),
            "nothing moved for {:?}: {}",
            self.idle_timer.limit(),
            self.ends.silence()
        );
        while let Some(event) = self.end.node.poll_event() {
            self.failure = QpFailure::of(&event).or(self.failure);
        }
        match self.channel.poll()? {
            None => Ok(()),
            Some(Message::Stop { counts }) => {
                let few = counts.is_empty() || counts.len() == self.params.qps as usize;
                ensure!(few, "{} counts {} QPs", self.channel.peer(), counts.len());
                self.stop = Some(counts);
                Ok(())
            }
            Some(_) => anyhow::bail!("{} speaks out of turn", self.channel.peer()),
        }
    }

    /// Why it failed, for people. Of a request that failed the other side may know more, which then
    /// says so or is gone: packets and the control channel are not in step.
    pub(crate) fn explain(&mut self, error: anyhow::Error) -> anyhow::Error {
        let Some(failed) = error.downcast_ref::<Failed>() else {
            return error;
        };
        if let Some(end) = self.channel.wait_for_end(self.interrupt) {
            return end;
        }
        let cause = failed.is_flushed().then(|| self.end.failure()).flatten();
        let failed = cause.as_ref().unwrap_or(failed);
        anyhow!(failed.why(&self.ends, self.failure))
    }

    /// The request that is measured, to buffer `lane` of QP `qp` at the other end.
    pub(crate) fn op(&self, qp: usize, lane: u64) -> SendOp {
        match self.params.op {
            Op::Send => SendOp::Send,
            Op::Write => SendOp::Write(self.target.lane(qp, lane)),
            Op::Read => SendOp::Read(self.target.lane(qp, lane)),
            // One counter for each QP.
            Op::Atomic => SendOp::Atomic(self.target.lane(qp, 0), AtomicOp::FetchAdd { add: 1 }),
        }
    }

    /// Puts message `serial` of QP `qp` into a buffer.
    ///
    /// # Errors
    /// There is no such buffer.
    pub(crate) fn fill(&mut self, qp: usize, lane: u64, serial: u64) -> Result<()> {
        pattern(qp, serial, &mut self.expected);
        self.end.write(qp, lane, &self.expected)
    }

    /// Makes sure that what a READ leaves in a buffer was read.
    ///
    /// # Errors
    /// There is no such buffer.
    pub(crate) fn clear(&mut self, qp: usize, lane: u64) -> Result<()> {
        self.found.fill(0);
        self.end.write(qp, lane, &self.found)
    }

    /// Compares a buffer with message `serial` of QP `qp`.
    ///
    /// # Errors
    /// Another message, or one that was damaged.
    pub(crate) fn compare(&mut self, qp: usize, lane: u64, serial: u64) -> Result<()> {
        pattern(qp, serial, &mut self.expected);
        self.compare_with_expected(qp, lane, serial)
    }

    /// Compares a buffer with message `serial` of QP `qp`, whose last byte is `last`.
    ///
    /// # Errors
    /// As [`compare`](Self::compare).
    pub(crate) fn compare_marked(
        &mut self,
        qp: usize,
        lane: u64,
        serial: u64,
        last: u8,
    ) -> Result<()> {
        pattern(qp, serial, &mut self.expected);
        if let Some(byte) = self.expected.last_mut() {
            *byte = last;
        }
        self.compare_with_expected(qp, lane, serial)
    }

    fn compare_with_expected(&mut self, qp: usize, lane: u64, serial: u64) -> Result<()> {
        self.end.read(qp, lane, &mut self.found)?;
        ensure!(
            self.found == self.expected,
            "wrong bytes in message {serial} of QP number {qp}"
        );
        self.verified += self.params.size;
        Ok(())
    }

    /// Compares the counter in a buffer: `count` atomics came before.
    ///
    /// # Errors
    /// It stands elsewhere.
    pub(crate) fn compare_counter(&mut self, qp: usize, lane: u64, count: u64) -> Result<()> {
        let mut bytes = [0; 8];
        self.end.read(qp, lane, &mut bytes)?;
        let found = u64::from_ne_bytes(bytes);
        ensure!(
            found == count,
            "atomic {count} of QP number {qp} found {found}"
        );
        self.verified += 8;
        Ok(())
    }

    /// How the connections to the other end are doing.
    pub(crate) fn paths(&self) -> Vec<PathReport> {
        let connections = self.end.node.connections(self.target.node());
        connections
            .iter()
            .filter_map(|connection| connection.stats().ok())
            .map(|s| (&s).into())
            .collect()
    }

    /// What this end's node counted.
    pub(crate) fn counters(&self) -> BTreeMap<String, u64> {
        let delivery = delivery(&self.end.node.delivery_counters());
        let engine = self
            .end
            .node
            .counters()
            .named()
            .filter(|(_, count)| *count > 0);
        delivery
            .into_iter()
            .chain(engine)
            .map(|(name, count)| (name.to_owned(), count))
            .collect()
    }
}

/// What shared connections counted and nodes do not.
fn delivery(counters: &DeliveryCounters) -> [(&'static str, u64); 5] {
    [
        ("retransmitted", counters.retransmitted),
        ("lost", counters.lost),
        ("spurious", counters.spurious),
        ("probes", counters.probes),
        ("marked", counters.marked),
    ]
}

/// Runs a measurement that Ctrl-C may end early: then what there is counts all the same.
///
/// # Errors
/// Any other.
pub(crate) fn until_interrupted(run: Result<()>) -> Result<Option<Interrupted>> {
    match run {
        Ok(()) => Ok(None),
        Err(error) => error.downcast::<Interrupted>().map(Some),
    }
}
