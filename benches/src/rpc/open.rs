//! Calls that begin by the clock, whether or not those before them were answered: an open loop.

use super::load::{Caller, Found, Latencies, MESSAGE, Round};
use anyhow::{Result, ensure};
use bytes::Bytes;
use rustix::io::{Errno, read};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::unix::AsyncFd;
use tokio::task::JoinSet;

/// Calls begin at such ticks, those that are due by then together: timers of a runtime tick in
/// milliseconds.
const TICK: Duration = Duration::from_micros(100);

/// Calls over `clients` for so long, `rate` of them per second, in tasks of this runtime. A latency
/// counts from when its call was due.
///
/// # Errors
/// A call that fails, or an answer that is not the request's; the system has no timer left.
pub(super) async fn round<C: Caller>(
    clients: Arc<[C]>,
    rate: f64,
    duration: Duration,
) -> Result<Found> {
    let latencies = Latencies::up_to(Duration::from_secs(10))?;
    let ticks = Ticks::new()?;
    let body = Bytes::from_static(&[7; MESSAGE]);
    let (mut calls, mut begun, mut answers) = (JoinSet::new(), 0_u64, 0);
    let round = Round::begin()?;
    while round.begun.elapsed() < duration {
        ticks.next().await?;
        let due = (round.begun.elapsed().as_secs_f64() * rate) as u64;
        for number in begun..due {
            let at = round.begun + Duration::from_secs_f64(number as f64 / rate);
            let client = clients[number as usize % clients.len()].clone();
            calls.spawn(call(client, body.clone(), at, latencies.clone()));
        }
        begun = due;
        while let Some(ended) = calls.try_join_next() {
            ended??;
            answers += 1;
        }
    }
    while let Some(ended) = calls.join_next().await {
        ended??;
        answers += 1;
    }
    round.end(duration, (answers, answers), Some(latencies.found()))
}

async fn call<C: Caller>(client: C, body: Bytes, due: Instant, latencies: Latencies) -> Result<()> {
    let answer = client.call(body.clone()).await?;
    ensure!(answer == body, "an answer is not that of its request");
    latencies.record(due.elapsed());
    Ok(())
}

/// A clock that wakes a task at each tick.
struct Ticks(AsyncFd<OwnedFd>);

impl Ticks {
    fn new() -> Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let tick = TICK.try_into()?;
        let each = Itimerspec {
            it_interval: tick,
            it_value: tick,
        };
        timerfd_settime(&timer, TimerfdTimerFlags::empty(), &each)?;
        #[allow(
            deprecated,
            reason = "what replaces it is unsafe, for descriptors that nobody owns"
        )]
        let registered = AsyncFd::new(timer)?;
        Ok(Self(registered))
    }

    /// Waits for the next one. Those that were missed are one.
    async fn next(&self) -> Result<()> {
        loop {
            let mut ready = self.0.readable().await?;
            match read(&self.0, &mut [0; 8]) {
                Ok(_) => return Ok(()),
                Err(Errno::AGAIN | Errno::INTR) => ready.clear_ready(),
                Err(error) => return Err(error.into()),
            }
        }
    }
}
