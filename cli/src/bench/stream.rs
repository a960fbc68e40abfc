//! Many requests at a time: how much goes through.

use super::latency::Goal;
use super::params::{Op, Params, Side};
use super::ping;
use super::report::PathReport;
use super::session::Session;
use super::throughput::Throughput;
use crate::progress::Progress;
use anyhow::{Result, ensure};
use std::time::{Duration, Instant};

/// Time between two lines of progress.
const LAP: Duration = Duration::from_secs(1);
/// QPs filled between two rounds of the node, at the start.
const QPS_AT_ONCE: usize = 64;

/// Counts what is completed until `goal`: each call of `round` gives how many requests are
/// completed in all, and before the first call that is `total`.
///
/// # Errors
/// That of a call: `found` has what was measured so far.
pub(crate) fn count(
    goal: &Goal,
    (params, progress): (&Params, &Progress),
    found: &mut Throughput,
    mut total: u64,
    mut round: impl FnMut() -> Result<u64>,
) -> Result<()> {
    let warm = Instant::now() + goal.warmup;
    while Instant::now() < warm {
        total = round()?;
    }
    let (began, base) = (Instant::now(), total);
    let (mut second, mut then) = (began, base);
    loop {
        total = round()?;
        let now = Instant::now();
        (found.elapsed, found.operations) = (now - began, total - base);
        if found.elapsed >= goal.duration {
            return Ok(());
        }
        let lap = now - second;
        if lap >= LAP {
            progress.step(&found.progress(params, total - then, lap));
            (second, then) = (now, total);
        }
    }
}

/// Posts what has to be there before the first message.
///
/// # Errors
/// The QPs do not take it.
pub(crate) fn prepare(session: &mut Session<'_>) -> Result<()> {
    let lanes = session.params.lanes(Side::Server);
    let receives = u64::from(session.params.receives());
    for qp in 0..session.params.qps as usize {
        match session.params.op {
            Op::Send => session
                .end
                .receive_all(qp, (0..receives).map(|at| at % lanes))?,
            Op::Read if session.params.verify => {
                for lane in 0..lanes {
                    session.fill(qp, lane, lane)?;
                }
            }
            Op::Read | Op::Write | Op::Atomic => {}
        }
    }
    Ok(())
}

/// QPs with something to post, and how much.
#[derive(Debug, Default)]
struct Due {
    count: Vec<u32>,
    touched: Vec<usize>,
}

impl Due {
    fn new(qps: usize) -> Self {
        Self {
            count: vec![0; qps],
            touched: Vec::new(),
        }
    }

    fn add(&mut self, qp: usize, count: u32) {
        if self.count[qp] == 0 {
            self.touched.push(qp);
        }
        self.count[qp] += count;
    }

    fn next(&mut self) -> Option<(usize, u64)> {
        let qp = self.touched.pop()?;
        Some((qp, std::mem::take(&mut self.count[qp]).into()))
    }
}

/// The measuring end.
#[derive(Debug)]
pub(crate) struct Client<'s, 'a> {
    session: &'s mut Session<'a>,
    /// Requests posted on each QP.
    posted: Vec<u64>,
    /// Requests completed on each QP.
    completed: Vec<u64>,
    under_way: u64,
    total: u64,
    /// When the first request was posted, where all count since then.
    since: Option<Instant>,
    due: Due,
    done: Vec<(usize, u64)>,
}

impl<'s, 'a> Client<'s, 'a> {
    /// Begins.
    pub(crate) fn new(session: &'s mut Session<'a>) -> Self {
        let qps = session.params.qps as usize;
        Self {
            session,
            posted: vec![0; qps],
            completed: vec![0; qps],
            under_way: 0,
            total: 0,
            since: None,
            due: Due::new(qps),
            done: Vec::new(),
        }
    }

    /// Measures until `goal`. If nothing was completed in that time all requests that were posted
    /// count, from the first on: [`finish`](Self::finish) measures them.
    ///
    /// # Errors
    /// A request that failed, wrong bytes, a server that is gone, or Ctrl-C: `found` has what was
    /// measured so far.
    pub(crate) fn run(
        &mut self,
        goal: &Goal,
        progress: &Progress,
        found: &mut Throughput,
    ) -> Result<()> {
        if ping::is_wanted(&self.session.params) {
            found.ping = Some(ping::measure(self.session, goal.duration)?);
        }
        let first = Instant::now();
        for qp in 0..self.posted.len() {
            self.due.add(qp, self.session.params.depth);
            if qp % QPS_AT_ONCE == 0 {
                self.post()?;
                self.round()?;
            }
        }
        let (params, total) = (self.session.params, self.total);
        count(goal, (&params, progress), found, total, || {
            self.post()?;
            self.round()?;
            Ok(self.total)
        })?;
        self.since = (found.operations == 0).then_some(first);
        Ok(())
    }

    /// Requests completed on each QP.
    pub(crate) fn counts(&self) -> Vec<u64> {
        self.completed.clone()
    }

    /// How its connections are doing.
    pub(crate) fn paths(&self) -> Vec<PathReport> {
        self.session.paths()
    }

    /// Waits for the completion of everything posted.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub(crate) fn finish(&mut self, progress: &Progress, found: &mut Throughput) -> Result<()> {
        let mut second = Instant::now();
        while self.under_way > 0 {
            self.round()?;
            let now = Instant::now();
            if let Some(first) = self.since {
                (found.elapsed, found.operations) = (now - first, self.total);
            }
            if now - second >= LAP {
                progress.step(&format!("  requests still under way: {}", self.under_way));
                second = now;
            }
        }
        Ok(())
    }

    /// Posts what is due.
    fn post(&mut self) -> Result<()> {
        let params = self.session.params;
        let lanes = params.lanes(Side::Client);
        while let Some((qp, count)) = self.due.next() {
            let first = self.posted[qp];
            if params.verify {
                for serial in first..first + count {
                    match params.op {
                        Op::Send | Op::Write => self.session.fill(qp, serial % lanes, serial)?,
                        Op::Read => self.session.clear(qp, serial % lanes)?,
                        Op::Atomic => {}
                    }
                }
            }
            let session = &*self.session;
            let requests = (first..first + count).map(|serial| {
                let lane = serial % lanes;
                (lane, session.op(qp, lane))
            });
            session.end.post_all(qp, requests)?;
            self.posted[qp] += count;
            self.under_way += count;
        }
        Ok(())
    }

    /// One round of the node, and all completions that there are.
    fn round(&mut self) -> Result<()> {
        self.session.turn()?;
        loop {
            let done = &mut self.done;
            let end = &mut self.session.end;
            let count = end.drain_requests(|qp, lane| done.push((qp, lane)))?;
            if count == 0 {
                return Ok(());
            }
            self.session.moved();
            self.total += count as u64;
            self.under_way -= count as u64;
            let verify = self.session.params.verify;
            for (qp, lane) in self.done.drain(..) {
                let serial = self.completed[qp];
                self.completed[qp] += 1;
                self.due.add(qp, 1);
                match self.session.params.op {
                    Op::Read if verify => self.session.compare(qp, lane, lane)?,
                    Op::Atomic if verify => self.session.compare_counter(qp, lane, serial)?,
                    _ => {}
                }
            }
        }
    }
}

/// The serving end: takes what comes until the client says stop.
///
/// # Errors
/// A receive that failed, wrong bytes, a client that is gone, or Ctrl-C.
pub(crate) fn serve(session: &mut Session<'_>) -> Result<()> {
    let qps = session.params.qps as usize;
    let mut received = vec![0_u64; qps];
    let mut due = Due::new(qps);
    let mut done = Vec::new();
    let lanes = session.params.lanes(Side::Server);
    loop {
        // Before the round: what the client had completed when it said stop has come then.
        let stopped = session.stop.is_some();
        session.turn()?;
        loop {
            let end = &mut session.end;
            let count = end.drain_receives(|qp, lane| done.push((qp, lane)))?;
            if count == 0 {
                break;
            }
            for (qp, lane) in done.drain(..) {
                if session.params.verify {
                    session.compare(qp, lane, received[qp])?;
                }
                received[qp] += 1;
                due.add(qp, 1);
            }
        }
        while let Some((qp, count)) = due.next() {
            // Receives complete in the order in which they were posted: lanes take turns.
            let first = received[qp] - count;
            session
                .end
                .receive_all(qp, (first..first + count).map(|at| at % lanes))?;
        }
        if stopped {
            return check_all(session, &received);
        }
    }
}

/// Compares what the client's requests left here with what they should have.
fn check_all(session: &mut Session<'_>, received: &[u64]) -> Result<()> {
    let counts = session.stop.take().unwrap_or_default();
    let lanes = session.params.lanes(Side::Server);
    for (qp, &count) in counts.iter().enumerate() {
        match session.params.op {
            Op::Send => ensure!(
                received[qp] == count,
                "QP number {qp} received {} of {count} messages",
                received[qp]
            ),
            Op::Write => {
                for serial in count.saturating_sub(lanes)..count {
                    session.compare(qp, serial % lanes, serial)?;
                }
            }
            Op::Atomic => session.compare_counter(qp, 0, count)?,
            Op::Read => {}
        }
    }
    Ok(())
}
