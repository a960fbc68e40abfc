//! Messages as datagrams on a bare port. The other end says what has arrived each time that a part
//! of the window has, so that no more is under way than queues hold. What is lost is counted, and
//! not sent again.

use super::Carrier;
use super::datagrams::{Datagrams, Header, Kind};
use super::watch::Watch;
use crate::bench::params::{Mode, Params};
use anyhow::{Result, ensure};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Most datagrams under way, and most bytes of their payload: less than the ring of an AF_PACKET
/// socket and the buffer of a UDP socket hold.
const WINDOW: u64 = 192;
const WINDOW_BYTES: u64 = 512 << 10;
/// Parts of the window; the other end says when each has arrived.
const PARTS: u64 = 4;
/// Datagrams that leave at once.
const BURST: u64 = 64;
/// How long the client waits for word before it asks.
const ASK: Duration = Duration::from_millis(2);
/// How long it waits for the answer to a message before it sends another one.
const PATIENCE: Duration = Duration::from_millis(100);

/// Messages on a port.
pub(super) struct PortCarrier {
    datagrams: Datagrams,
    message: Vec<u8>,
    /// Most payload of a datagram.
    payload: u64,
    /// Datagrams of a message.
    parts: u64,
    window: u64,
    sent: Sent,
    taken: Taken,
}

/// What the client knows.
struct Sent {
    /// Datagrams that were sent.
    count: u64,
    /// Of those, how many the server has seen or missed.
    seen: u64,
    /// And how many it has.
    arrived: u64,
    /// How often it said so.
    credits: u64,
    /// When it did last, or was asked.
    asked: Instant,
    /// Messages whose answer did not come.
    unanswered: u64,
}

/// What the server knows.
#[derive(Default)]
struct Taken {
    /// Datagrams that the client had sent when the last one left that arrived.
    seen: u64,
    /// Those of them that arrived.
    arrived: u64,
    /// How many had when the client heard of it.
    told: u64,
    /// The client asks.
    asked: bool,
    /// The message of which parts arrived last, and how many.
    message: u64,
    parts: u64,
}

impl Taken {
    fn data(&mut self, number: u64) {
        self.arrived += 1;
        self.seen = self.seen.max(number.saturating_add(1));
    }

    /// A datagram of a message that has `parts`. Gives the message when it is whole.
    fn part(&mut self, number: u64, parts: u64) -> Option<u64> {
        let message = number / parts;
        if message != self.message {
            (self.message, self.parts) = (message, 0);
        }
        self.parts += 1;
        (self.parts == parts).then_some(message)
    }
}

impl PortCarrier {
    /// Sends and takes messages of `params` in datagrams with a payload of at most `payload` bytes,
    /// more than none.
    ///
    /// # Errors
    /// A message for which somebody waits does not fit the window.
    pub(super) fn new(datagrams: Datagrams, params: &Params, payload: u64) -> Result<Self> {
        let each = params.size.min(payload);
        let window = (WINDOW_BYTES / each).min(WINDOW);
        let parts = params.size.div_ceil(payload);
        ensure!(
            params.mode != Mode::Lat || parts <= window,
            "--size of lat with --yardstick port is at most {} on this path",
            window * payload
        );
        Ok(Self {
            datagrams,
            message: vec![0x5a; params.size as usize],
            payload,
            parts,
            window,
            sent: Sent {
                count: 0,
                seen: 0,
                arrived: 0,
                credits: 0,
                asked: Instant::now(),
                unanswered: 0,
            },
            taken: Taken::default(),
        })
    }

    /// Waits until the server has said what it has of all that was sent.
    ///
    /// # Errors
    /// The server is gone or silent, or Ctrl-C.
    pub(super) fn settle(&mut self, watch: &mut Watch<'_>) -> Result<()> {
        let before = self.sent.credits;
        self.ask()?;
        while self.sent.credits == before || self.sent.seen < self.sent.count {
            if self.sent.asked.elapsed() > ASK {
                self.ask()?;
            }
            let busy = self.take_credits()?;
            watch.round(busy, self.datagrams.taken())?;
        }
        Ok(())
    }

    /// Asks the server what has arrived.
    fn ask(&mut self) -> Result<()> {
        let probe = Header {
            kind: Kind::Probe,
            number: self.sent.count,
            received: 0,
        };
        self.sent.asked = Instant::now();
        // Where there is no room now there is when it asks again.
        self.datagrams.put(probe, &[]);
        self.datagrams.flush()
    }

    fn take_credits(&mut self) -> Result<bool> {
        let before = self.sent.credits;
        let sent = &mut self.sent;
        let busy = self.datagrams.take(|header| {
            if header.kind == Kind::Credit {
                sent.seen = sent.seen.max(header.number.min(sent.count));
                sent.arrived = sent.arrived.max(header.received.min(sent.count));
                sent.credits += 1;
            }
        })?;
        if sent.credits != before {
            sent.asked = Instant::now();
        }
        Ok(busy)
    }

    /// Puts datagram `number`; whether there was room.
    #[inline]
    fn put(&mut self, number: u64) -> bool {
        let from = number % self.parts * self.payload;
        let to = (from + self.payload).min(self.message.len() as u64);
        let data = Header {
            kind: Kind::Data,
            number,
            received: 0,
        };
        let payload = &self.message[from as usize..to as usize];
        self.datagrams.put(data, payload)
    }

    /// Sends all datagrams of a message.
    fn send_message(&mut self, message: u64, watch: &mut Watch<'_>) -> Result<()> {
        let first = message * self.parts;
        for number in first..first + self.parts {
            while !self.put(number) {
                self.datagrams.flush()?;
                watch.round(false, self.datagrams.taken())?;
            }
        }
        self.datagrams.flush()
    }

    fn tell(&mut self) -> Result<()> {
        let credit = Header {
            kind: Kind::Credit,
            number: self.taken.seen,
            received: self.taken.arrived,
        };
        if self.datagrams.put(credit, &[]) {
            self.taken.told = self.taken.arrived;
            self.taken.asked = false;
        }
        self.datagrams.flush()
    }
}

impl Carrier for PortCarrier {
    fn round_trip(&mut self, watch: &mut Watch<'_>) -> Result<Duration> {
        loop {
            let message = self.sent.count / self.parts;
            self.sent.count += self.parts;
            let began = Instant::now();
            self.send_message(message, watch)?;
            let mut came = 0;
            while began.elapsed() < PATIENCE {
                let parts = self.parts;
                let busy = self.datagrams.take(|header| {
                    if header.kind == Kind::Data && header.number / parts == message {
                        came += 1;
                    }
                })?;
                if came == parts {
                    return Ok(began.elapsed());
                }
                watch.round(busy, self.datagrams.taken())?;
            }
            self.sent.unanswered += 1;
        }
    }

    fn send(&mut self, watch: &mut Watch<'_>) -> Result<u64> {
        let room = self.window - (self.sent.count - self.sent.seen).min(self.window);
        let last = self.sent.count + room.min(BURST);
        let before = self.sent.count;
        while self.sent.count < last && self.put(self.sent.count) {
            self.sent.count += 1;
        }
        let sent = self.sent.count > before;
        if !sent && self.sent.asked.elapsed() > ASK {
            self.ask()?;
        }
        self.datagrams.flush()?;
        let busy = self.take_credits()? || sent;
        watch.round(busy, self.datagrams.taken())?;
        Ok(self.sent.arrived / self.parts)
    }

    fn finish(&mut self, watch: &mut Watch<'_>) -> Result<()> {
        self.settle(watch)
    }

    fn serve(&mut self, mode: Mode, watch: &mut Watch<'_>) -> Result<()> {
        let (taken, parts) = (&mut self.taken, self.parts);
        let mut answer = None;
        let busy = self.datagrams.take(|header| match header.kind {
            Kind::Data => {
                taken.data(header.number);
                if mode == Mode::Lat {
                    answer = taken.part(header.number, parts).or(answer);
                }
            }
            Kind::Probe => {
                taken.seen = taken.seen.max(header.number);
                taken.asked = true;
            }
            Kind::Credit => {}
        })?;
        if let Some(message) = answer {
            self.send_message(message, watch)?;
        }
        let due = self.taken.arrived - self.taken.told >= self.window / PARTS;
        if self.taken.asked || due && mode != Mode::Lat {
            self.tell()?;
        }
        watch.round(busy, self.datagrams.taken())
    }

    fn counters(&self) -> BTreeMap<String, u64> {
        let (sent, taken) = (&self.sent, &self.taken);
        // One end sends, and the other knows as well what of that did not arrive.
        let missed = sent.seen.saturating_sub(sent.arrived);
        let missing = taken.seen.saturating_sub(taken.arrived);
        let all = [
            ("datagrams_sent", sent.count),
            ("datagrams_received", self.datagrams.taken()),
            ("lost_datagrams", missed + missing),
            ("damaged_datagrams", self.datagrams.damaged()),
            ("unanswered", sent.unanswered),
        ];
        all.map(|(name, count)| (name.to_owned(), count)).into()
    }
}

#[cfg(test)]
mod tests;
