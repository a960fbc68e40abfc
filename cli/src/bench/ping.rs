//! The smallest round trip of two messages, while nothing else is under way: what `rate` compares
//! the round trips with that connections measure.
//!
//! The client SENDs up to 64 bytes, the server SENDs as many back; both ends poll, so that neither
//! a sleep nor a wake-up counts. A connection measures less of the same way: from the departure of
//! a packet to the arrival of its acknowledgement, without the time for which that waited at the
//! peer or either of them in a socket, and without the programs at both ends.

use super::params::{Mode, Params};
use super::session::Session;
use super::stream;
use anyhow::Result;
use std::time::{Duration, Instant};

/// Bytes of a message, where buffers have room for so many.
const BYTES: u64 = 64;
/// For how long messages go to and fro, and how often at least. Where other processes are busy,
/// most of them wait for a processor: among so many some do not.
const TIME: Duration = Duration::from_millis(300);
const EXCHANGES: u32 = 10_000;
/// Which part of the time that is to be measured they may take, whatever is said above: who asks
/// for a second has an answer after little more.
const PART: u32 = 10;

/// Whether a measurement begins with this: both ends have to poll.
pub(crate) fn is_wanted(params: &Params) -> bool {
    params.mode == Mode::Rate && params.workers == 1
}

/// Posts what the first message needs.
///
/// # Errors
/// The QP does not take it.
pub(crate) fn prepare(session: &Session<'_>) -> Result<()> {
    session.end.receive_all(0, std::iter::once(0))
}

/// The measuring end, before a measurement of `duration`: gives the smallest round trip.
///
/// # Errors
/// A request that failed, a server that is gone, or Ctrl-C.
pub(crate) fn measure(session: &mut Session<'_>, duration: Duration) -> Result<Duration> {
    let (mut least, first) = (Duration::MAX, Instant::now());
    let bytes = BYTES.min(session.params.size);
    for exchanges in 1.. {
        prepare(session)?;
        let began = Instant::now();
        least = least.min(exchange(session, bytes)? - began);
        session.moved();
        let elapsed = first.elapsed();
        if elapsed > duration / PART || elapsed > TIME && exchanges >= EXCHANGES {
            break;
        }
    }
    // A message of no bytes is the last one. Its answer says that the server is ready.
    prepare(session)?;
    exchange(session, 0)?;
    Ok(least)
}

/// A message, and the one that comes back: gives when it came. The acknowledgement of the first
/// may wait for company, and come later than the second.
fn exchange(session: &mut Session<'_>, bytes: u64) -> Result<Instant> {
    session.end.post_ping(bytes)?;
    let (mut sent, mut answered) = (false, None);
    loop {
        session.turn()?;
        let end = &mut session.end;
        if end.drain_receives(|_, _| ())? > 0 {
            answered = Some(Instant::now());
        }
        sent |= end.drain_requests(|_, _| ())? > 0;
        if let Some(came) = answered.filter(|_| sent) {
            return Ok(came);
        }
    }
}

/// The serving end: answers until the last one, then prepares the stream.
///
/// # Errors
/// As [`measure`].
pub(crate) fn serve(session: &mut Session<'_>) -> Result<()> {
    let mut under_way = 0;
    while session.stop.is_none() {
        session.turn()?;
        let end = &mut session.end;
        under_way -= end.drain_requests(|_, _| ())?;
        let Some(bytes) = end.pinged()? else {
            continue;
        };
        let last = bytes == 0;
        if last {
            stream::prepare(session)?;
        } else {
            prepare(session)?;
        }
        // The acknowledgement of the last answer may come later than the next message.
        while under_way >= session.params.depth as usize {
            session.turn()?;
            under_way -= session.end.drain_requests(|_, _| ())?;
        }
        session.end.post_ping(bytes)?;
        under_way += 1;
        if last {
            break;
        }
    }
    while under_way > 0 && session.stop.is_none() {
        session.turn()?;
        under_way -= session.end.drain_requests(|_, _| ())?;
    }
    Ok(())
}
