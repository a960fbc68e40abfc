//! Bytes alone: as many messages under way on a TCP connection, with no numbers, no callers and
//! nobody to wake. What TCP could do at best.

use super::wire::Wire;
use crate::rpc::load::{Found, MESSAGE, Round};
use anyhow::Result;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;

/// Connections.
#[derive(Debug)]
pub(crate) struct Raw(Vec<Arc<Mutex<Stream>>>);

/// One of them.
#[derive(Debug)]
struct Stream {
    wire: Wire,
    /// Messages under way in a round.
    window: usize,
}

impl Raw {
    /// Opens as many connections as will be used, `connections` at most, for so many messages
    /// under way on all together.
    ///
    /// # Errors
    /// One does not come about.
    pub(crate) async fn connect(
        to: SocketAddr,
        connections: usize,
        under_way: usize,
    ) -> Result<Self> {
        let used = connections.min(under_way);
        let mut streams = Vec::with_capacity(used);
        for at in 0..used {
            let wire = Wire::new(TcpStream::connect(to).await?)?;
            let window = under_way / used + usize::from(at < under_way % used);
            streams.push(Arc::new(Mutex::new(Stream { wire, window })));
        }
        Ok(Self(streams))
    }

    /// One round, in tasks of this runtime.
    ///
    /// # Errors
    /// A connection is gone.
    pub(crate) async fn round(&self, duration: Duration) -> Result<Found> {
        let round = Round::begin()?;
        let until = round.begun + duration;
        let tasks: Vec<_> = self
            .0
            .iter()
            .map(|stream| {
                let stream = Arc::clone(stream);
                let mut tally = Tally::default();
                tokio::spawn(poll_fn(move |cx| {
                    let mut stream = stream.lock().unwrap_or_else(PoisonError::into_inner);
                    stream.turn(&mut tally, until, cx)
                }))
            })
            .collect();
        let (mut all, mut in_time) = (0, 0);
        for task in tasks {
            let tally = task.await??;
            all += tally.all;
            in_time += tally.in_time;
        }
        round.end(duration, (all, in_time), None)
    }
}

/// Messages of one connection in one round.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    sent: u64,
    /// Bytes that came back.
    bytes: u64,
    all: u64,
    in_time: u64,
}

impl Stream {
    fn turn(
        &mut self,
        tally: &mut Tally,
        until: Instant,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<Tally>> {
        let wire = &mut self.wire;
        if tally.sent == 0 {
            wire.out.resize(self.window * MESSAGE, 7);
            tally.sent = self.window as u64;
        }
        loop {
            ready!(wire.poll_flush(cx))?;
            if tally.all == tally.sent {
                return Poll::Ready(Ok(*tally));
            }
            ready!(wire.poll_read(cx, |bytes| {
                tally.bytes += bytes.len() as u64;
                Ok(0)
            }))?;
            let came = tally.bytes / MESSAGE as u64 - tally.all;
            tally.all += came;
            if Instant::now() < until {
                tally.in_time = tally.all;
                tally.sent += came;
                wire.out.resize(came as usize * MESSAGE, 7);
            }
        }
    }
}
