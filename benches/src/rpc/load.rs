//! Calls, each made as soon as the last one of its caller is answered.

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of a request and of an answer.
pub(crate) const MESSAGE: usize = 64;
/// Latencies are kept with so many digits.
const DIGITS: u8 = 3;

/// One of the connections that calls go over, from a task's point of view.
pub(crate) trait Caller: Clone + Send + Sync + 'static {
    /// Calls, and gives the answer.
    fn call(&self, body: Bytes) -> impl Future<Output = Result<Bytes>> + Send;
}

/// What a client found in a round.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) struct Found {
    /// Answers per second.
    pub(crate) rate: f64,
    /// Median and 99th percentile of latencies in ns, where there are callers.
    pub(crate) latency_ns: Option<[f64; 2]>,
    /// Answers, those after the end of the round included.
    pub(crate) answers: u64,
    /// Time of a CPU that this process took, in ns.
    pub(crate) cpu_ns: u64,
}

/// Time of a CPU that this process has taken, in ns.
///
/// # Errors
/// Never on Linux.
pub(crate) fn cpu_ns() -> Result<u64> {
    let taken: Duration = clock_gettime(ClockId::ProcessCPUTime)
        .try_into()
        .context("the CPU's time")?;
    Ok(u64::try_from(taken.as_nanos())?)
}

/// A round under way.
#[derive(Debug)]
pub(crate) struct Round {
    pub(crate) begun: Instant,
    cpu_ns: u64,
}

impl Round {
    /// # Errors
    /// As [`cpu_ns`].
    pub(crate) fn begin() -> Result<Self> {
        Ok(Self {
            cpu_ns: cpu_ns()?,
            begun: Instant::now(),
        })
    }

    /// So many answers came, and so many of them within `duration`. Where none did, all count, in
    /// the time that they took.
    ///
    /// # Errors
    /// As [`cpu_ns`].
    pub(crate) fn end(
        self,
        duration: Duration,
        (answers, in_time): (u64, u64),
        latency_ns: Option<[f64; 2]>,
    ) -> Result<Found> {
        let rate = match in_time {
            0 => answers as f64 / self.begun.elapsed().as_secs_f64(),
            _ => in_time as f64 / duration.as_secs_f64(),
        };
        Ok(Found {
            rate,
            latency_ns,
            answers,
            cpu_ns: cpu_ns()? - self.cpu_ns,
        })
    }
}

/// Latencies of calls, from all tasks that make some.
#[derive(Clone, Debug)]
pub(super) struct Latencies(Arc<Mutex<Histogram<u32>>>);

impl Latencies {
    /// None yet. What takes longer than `most` counts as that.
    ///
    /// # Errors
    /// `most` is less than 2 ns.
    pub(super) fn up_to(most: Duration) -> Result<Self> {
        let most = u64::try_from(most.as_nanos())?;
        let none = Histogram::new_with_max(most, DIGITS)?;
        Ok(Self(Arc::new(Mutex::new(none))))
    }

    pub(super) fn record(&self, latency: Duration) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.saturating_record(latency.as_nanos() as u64);
    }

    /// Median and 99th percentile in ns.
    pub(super) fn found(&self) -> [f64; 2] {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        [0.5, 0.99].map(|part| all.value_at_quantile(part) as f64)
    }
}

/// Calls over `clients` for so long, `under_way` at a time, in tasks of this runtime. Clients are
/// shared out among callers, and each caller goes round those that it has.
///
/// # Errors
/// A call that fails, or an answer that is not the request's.
pub(crate) async fn round<C: Caller>(
    clients: Arc<[C]>,
    under_way: usize,
    duration: Duration,
) -> Result<Found> {
    // More than a second is a second: what takes longer is told by the rate.
    let latencies = Latencies::up_to(Duration::from_secs(1))?;
    let round = Round::begin()?;
    let until = round.begun + duration;
    let callers: Vec<_> = (0..under_way)
        .map(|at| {
            let mine = clients.iter().skip(at % clients.len()).step_by(under_way);
            let mine: Vec<_> = mine.cloned().collect();
            tokio::spawn(call_again(at, mine, until, latencies.clone()))
        })
        .collect();
    let (mut answers, mut in_time) = (0, 0);
    for caller in callers {
        let found = caller.await??;
        answers += found.0;
        in_time += found.1;
    }
    round.end(duration, (answers, in_time), Some(latencies.found()))
}

/// One caller. Gives how many calls were answered, and how many of them in time.
async fn call_again<C: Caller>(
    number: usize,
    clients: Vec<C>,
    until: Instant,
    latencies: Latencies,
) -> Result<(u64, u64)> {
    let mut body = [7; MESSAGE];
    body[..8].copy_from_slice(&(number as u64).to_le_bytes());
    let body = Bytes::copy_from_slice(&body);
    let (mut asked, mut answers) = (Instant::now(), 0);
    for client in clients.iter().cycle() {
        let answer = client.call(body.clone()).await?;
        ensure!(answer == body, "an answer is not that of its request");
        let now = Instant::now();
        latencies.record(now - asked);
        answers += 1;
        if now >= until {
            return Ok((answers, answers - 1));
        }
        asked = now;
    }
    bail!("there are no clients")
}
