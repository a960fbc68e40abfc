//! One request at a time: how long it takes.
//!
//! SEND and WRITE are answered in kind, and half of the round trip counts, as perftest has it; a
//! WRITE is seen to arrive by its last byte. READ and FETCH_ADD need nobody at the other end: their
//! whole round trip counts.

use super::histogram::Latencies;
use super::params::Op;
use super::report::PathReport;
use super::session::Session;
use crate::progress::Progress;
use anyhow::Result;
use std::time::{Duration, Instant};

/// Buffer that messages leave from, and that READs and atomics find at the other end.
const OUT: u64 = 0;
/// Buffer that messages come into.
const IN: u64 = 1;
/// Receives posted on each QP.
const RECEIVES: usize = 2;
/// Requests posted and not yet completed.
const MAX_UNDER_WAY: u64 = 3;
/// Serial numbers of answers have this bit.
const ANSWER: u64 = 1 << 63;

/// When to stop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Goal {
    /// Time before anything counts.
    pub(crate) warmup: Duration,
    /// Stop after as many round trips,
    pub(crate) iterations: Option<u64>,
    /// or after so long.
    pub(crate) duration: Duration,
}

/// Takes samples until `goal`: each call of `next` gives one.
///
/// # Errors
/// That of a call: `found` has what was measured so far.
pub(crate) fn sample(
    goal: &Goal,
    progress: &Progress,
    found: &mut Latencies,
    mut next: impl FnMut() -> Result<Duration>,
) -> Result<()> {
    let warm = Instant::now() + goal.warmup;
    while Instant::now() < warm {
        next()?;
    }
    let began = Instant::now();
    let mut second = began;
    while goal
        .iterations
        .is_none_or(|iterations| found.count() < iterations)
    {
        found.record(next()?);
        let now = Instant::now();
        found.elapsed = now - began;
        if goal.iterations.is_none() && found.elapsed >= goal.duration {
            break;
        }
        if now - second >= Duration::from_secs(1) {
            second = now;
            progress.step(&found.progress());
        }
    }
    Ok(())
}

/// Posts what has to be there before the first message.
///
/// # Errors
/// The QPs do not take it.
pub(crate) fn prepare(session: &mut Session<'_>) -> Result<()> {
    for qp in 0..session.params.qps as usize {
        match session.params.op {
            Op::Send => session.end.receive_all(qp, [IN; RECEIVES].into_iter())?,
            Op::Read if session.params.verify => session.fill(qp, OUT, 0)?,
            Op::Read | Op::Write | Op::Atomic => {}
        }
    }
    Ok(())
}

/// What the last byte of a WRITE is, so that it differs from that of the one before on its QP and
/// from that of an untouched buffer.
const fn mark(serial: u64, qps: u64) -> u8 {
    (serial / qps % 255) as u8 + 1
}

/// The measuring end.
#[derive(Debug)]
pub(crate) struct Client<'s, 'a> {
    session: &'s mut Session<'a>,
    serial: u64,
    /// Requests posted and not completed.
    under_way: u64,
}

impl<'s, 'a> Client<'s, 'a> {
    /// Begins.
    pub(crate) fn new(session: &'s mut Session<'a>) -> Self {
        Self {
            session,
            serial: 0,
            under_way: 0,
        }
    }

    /// Measures until `goal`.
    ///
    /// # Errors
    /// A request that failed, wrong bytes, a server that is gone, or Ctrl-C: `found` has what was
    /// measured so far.
    pub(crate) fn run(
        &mut self,
        goal: &Goal,
        progress: &Progress,
        found: &mut Latencies,
    ) -> Result<()> {
        let halves = if self.session.params.op.is_answered() {
            2
        } else {
            1
        };
        sample(goal, progress, found, || Ok(self.round_trip()? / halves))
    }

    /// How its connections are doing.
    pub(crate) fn paths(&self) -> Vec<PathReport> {
        self.session.paths()
    }

    /// Waits for the completion of everything posted.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub(crate) fn finish(&mut self) -> Result<()> {
        self.complete_down_to(0)
    }

    fn round_trip(&mut self) -> Result<Duration> {
        let qps = u64::from(self.session.params.qps);
        let (qp, serial) = ((self.serial % qps) as usize, self.serial);
        let (op, verify) = (self.session.params.op, self.session.params.verify);
        let mark = mark(serial, qps);
        match op {
            Op::Send | Op::Write if verify => self.session.fill(qp, OUT, serial)?,
            Op::Read if verify => self.session.clear(qp, IN)?,
            _ => {}
        }
        if op == Op::Write {
            self.session.end.set_last_byte(qp, OUT, mark)?;
        }
        let began = Instant::now();
        match op {
            Op::Send => {
                self.post(qp, OUT, IN)?;
                while self.session.end.drain_receives(|_, _| ())? == 0 {
                    self.session.turn()?;
                }
            }
            Op::Write => {
                self.post(qp, OUT, IN)?;
                while self.session.end.last_byte(qp, IN)? != mark {
                    self.session.turn()?;
                }
            }
            Op::Read | Op::Atomic => {
                self.post(qp, IN, OUT)?;
                self.complete_down_to(0)?;
            }
        }
        let took = began.elapsed();
        self.session.moved();
        self.complete_down_to(MAX_UNDER_WAY)?;
        match op {
            Op::Send => self.session.end.receive_all(qp, std::iter::once(IN))?,
            Op::Write | Op::Read | Op::Atomic => {}
        }
        if verify {
            match op {
                Op::Send => self.session.compare(qp, IN, serial | ANSWER)?,
                Op::Write => self.session.compare_marked(qp, IN, serial | ANSWER, mark)?,
                Op::Read => self.session.compare(qp, IN, 0)?,
                Op::Atomic => self.session.compare_counter(qp, IN, serial / qps)?,
            }
        }
        self.serial += 1;
        Ok(took)
    }

    fn post(&mut self, qp: usize, here: u64, there: u64) -> Result<()> {
        self.under_way += 1;
        post(self.session, qp, (here, there))
    }

    fn complete_down_to(&mut self, most: u64) -> Result<()> {
        complete_down_to(self.session, &mut self.under_way, most)
    }
}

/// Posts a request, which leaves before anything else is done.
fn post(session: &mut Session<'_>, qp: usize, (here, there): (u64, u64)) -> Result<()> {
    session.end.post(qp, here, session.op(qp, there))?;
    session.turn()
}

fn complete_down_to(session: &mut Session<'_>, under_way: &mut u64, most: u64) -> Result<()> {
    loop {
        *under_way -= session.end.drain_requests(|_, _| ())? as u64;
        if *under_way <= most {
            return Ok(());
        }
        session.turn()?;
    }
}

/// The serving end: answers until the client says stop.
///
/// # Errors
/// A request that failed, wrong bytes, a client that is gone, or Ctrl-C.
pub(crate) fn serve(session: &mut Session<'_>) -> Result<()> {
    match session.params.op {
        Op::Send => answer_sends(session),
        Op::Write => answer_writes(session),
        Op::Read | Op::Atomic => {
            while session.stop.is_none() {
                session.turn()?;
            }
            Ok(())
        }
    }
}

fn answer_sends(session: &mut Session<'_>) -> Result<()> {
    let (mut serial, mut under_way) = (0, 0);
    let mut arrived = Vec::new();
    while session.stop.is_none() {
        session.turn()?;
        session.end.drain_receives(|qp, _| arrived.push(qp))?;
        for qp in arrived.drain(..) {
            if session.params.verify {
                session.compare(qp, IN, serial)?;
                session.fill(qp, OUT, serial | ANSWER)?;
            }
            post(session, qp, (OUT, IN))?;
            under_way += 1;
            session.end.receive_all(qp, std::iter::once(IN))?;
            complete_down_to(session, &mut under_way, MAX_UNDER_WAY)?;
            serial += 1;
        }
    }
    Ok(())
}

fn answer_writes(session: &mut Session<'_>) -> Result<()> {
    let qps = u64::from(session.params.qps);
    let (mut serial, mut under_way) = (0, 0);
    while session.stop.is_none() {
        let (qp, mark) = ((serial % qps) as usize, mark(serial, qps));
        if session.end.last_byte(qp, IN)? != mark {
            session.turn()?;
            continue;
        }
        if session.params.verify {
            session.compare_marked(qp, IN, serial, mark)?;
            session.fill(qp, OUT, serial | ANSWER)?;
        }
        session.end.set_last_byte(qp, OUT, mark)?;
        post(session, qp, (OUT, IN))?;
        under_way += 1;
        complete_down_to(session, &mut under_way, MAX_UNDER_WAY)?;
        serial += 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_differ_from_the_last_on_their_qp_and_from_nothing() {
        for serial in 0..2000 {
            assert_ne!(mark(serial, 3), 0);
            assert_ne!(mark(serial, 3), mark(serial + 3, 3));
        }
    }
}
