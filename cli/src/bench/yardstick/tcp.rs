//! Messages on a TCP connection.

use super::Carrier;
use super::watch::Watch;
use crate::bench::params::{Mode, Params};
use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Bytes written or read by one call, at least: several messages where they are short.
const BATCH: usize = 128 << 10;
/// Bytes after which the server says how many have arrived.
const TELL: u64 = 256 << 10;
/// Bytes of what it says: a count.
const WORD: usize = 8;
/// How long a socket is waited for between looks around.
const WAIT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 10_000_000,
};
/// Pause between looks for a connection.
const PAUSE: Duration = Duration::from_micros(500);

/// Messages on a connection. Each end has a buffer for as many whole ones as it writes at a time.
pub(super) struct TcpCarrier {
    stream: TcpStream,
    size: usize,
    buffer: Vec<u8>,
    /// Bytes of the buffer, or of the message that is read, that are dealt with.
    at: usize,
    /// Bytes that have arrived at the server.
    arrived: u64,
    /// Of those, how many the client knows of.
    told: u64,
    /// What the server said and does not end here.
    words: Vec<u8>,
}

/// A listener for the client's connection.
///
/// # Errors
/// The address cannot be had.
pub(super) fn listen(address: IpAddr) -> Result<TcpListener> {
    let listener = TcpListener::bind((address, 0));
    let listener = listener.with_context(|| format!("cannot listen on {address}"))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Waits for the client, which has the address `client`.
///
/// # Errors
/// It does not come.
pub(super) fn accept(
    listener: &TcpListener,
    client: IpAddr,
    watch: &mut Watch<'_>,
) -> Result<TcpStream> {
    loop {
        match listener.accept() {
            Ok((stream, from)) if from.ip() == client => return Ok(stream),
            // Somebody else, or nobody.
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(PAUSE),
            Err(error) => return Err(error).context("cannot take the connection"),
        }
        watch.round(false, 0)?;
    }
}

/// A connection to the server.
///
/// # Errors
/// It cannot be had.
pub(super) fn connect(server: SocketAddr, timeout: Duration) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&server, timeout);
    stream.with_context(|| format!("cannot connect to {server}"))
}

/// What a call on a socket that does not block did: bytes, where there were any or room for them.
fn moved(call: io::Result<usize>) -> Result<Option<usize>> {
    match call {
        Ok(0) => bail!("the other end closed the connection"),
        Ok(count) => Ok(Some(count)),
        Err(error) if [ErrorKind::WouldBlock, ErrorKind::Interrupted].contains(&error.kind()) => {
            Ok(None)
        }
        Err(error) => Err(error).context("connection"),
    }
}

impl TcpCarrier {
    /// Sends and takes messages of `params`.
    ///
    /// # Errors
    /// The socket refuses.
    pub(super) fn new(stream: TcpStream, params: &Params) -> Result<Self> {
        stream.set_nodelay(true).context("connection")?;
        stream.set_nonblocking(true).context("connection")?;
        let size = params.size as usize;
        let at_once = match params.mode {
            Mode::Lat => 1,
            Mode::Bw | Mode::Rate => (BATCH / size).max(1),
        };
        Ok(Self {
            stream,
            size,
            buffer: vec![0x5a; size * at_once],
            at: 0,
            arrived: 0,
            told: 0,
            words: Vec::new(),
        })
    }

    /// Writes the message in the buffer, polling.
    fn write_message(&mut self, watch: &mut Watch<'_>) -> Result<()> {
        let mut at = 0;
        while at < self.size {
            let count = moved(self.stream.write(&self.buffer[at..self.size]))?;
            at += count.unwrap_or(0);
            watch.round(count.is_some(), self.arrived)?;
        }
        Ok(())
    }

    /// Reads on; whether a message is whole.
    fn read_message(&mut self, watch: &mut Watch<'_>) -> Result<bool> {
        let count = moved(self.stream.read(&mut self.buffer[self.at..self.size]))?;
        self.at += count.unwrap_or(0);
        self.arrived += count.unwrap_or(0) as u64;
        watch.round(count.is_some(), self.arrived)?;
        let whole = self.at == self.size;
        if whole {
            self.at = 0;
        }
        Ok(whole)
    }

    /// Sleeps until the socket is ready for one of these.
    fn wait(&self, events: PollFlags) -> Result<()> {
        match poll(&mut [PollFd::new(&self.stream, events)], Some(&WAIT)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error).context("connection"),
        }
    }

    /// Reads what the server says of bytes that have arrived.
    fn hear(&mut self) -> Result<()> {
        let mut chunk = [0; 512 * WORD];
        while let Some(count) = moved(self.stream.read(&mut chunk))? {
            self.words.extend_from_slice(&chunk[..count]);
        }
        let whole = self.words.len() / WORD * WORD;
        if let Some(word) = self.words[..whole].last_chunk::<WORD>() {
            self.arrived = self.arrived.max(u64::from_be_bytes(*word));
        }
        self.words.drain(..whole);
        Ok(())
    }

    /// Tells the client what has arrived.
    fn tell(&mut self, watch: &mut Watch<'_>) -> Result<()> {
        let word = self.arrived.to_be_bytes();
        let mut rest = &word[..];
        while !rest.is_empty() {
            let count = moved(self.stream.write(rest))?;
            rest = &rest[count.unwrap_or(0)..];
            watch.round(count.is_some(), self.arrived)?;
        }
        self.told = self.arrived;
        Ok(())
    }
}

impl Carrier for TcpCarrier {
    fn round_trip(&mut self, watch: &mut Watch<'_>) -> Result<Duration> {
        let began = Instant::now();
        self.write_message(watch)?;
        while !self.read_message(watch)? {}
        Ok(began.elapsed())
    }

    fn send(&mut self, watch: &mut Watch<'_>) -> Result<u64> {
        let count = moved(self.stream.write(&self.buffer[self.at..]))?;
        match count {
            Some(count) => self.at = (self.at + count) % self.buffer.len(),
            None => self.wait(PollFlags::OUT | PollFlags::IN)?,
        }
        self.hear()?;
        watch.round(count.is_some(), self.arrived)?;
        Ok(self.arrived / self.size as u64)
    }

    fn finish(&mut self, _: &mut Watch<'_>) -> Result<()> {
        Ok(())
    }

    fn serve(&mut self, mode: Mode, watch: &mut Watch<'_>) -> Result<()> {
        if mode == Mode::Lat {
            return match self.read_message(watch)? {
                true => self.write_message(watch),
                false => Ok(()),
            };
        }
        let room = self.buffer.len().min(BATCH);
        let count = moved(self.stream.read(&mut self.buffer[..room]))?;
        self.arrived += count.unwrap_or(0) as u64;
        let untold = self.arrived - self.told;
        match count {
            None if untold == 0 => self.wait(PollFlags::IN)?,
            None => self.tell(watch)?,
            Some(_) if untold >= TELL => self.tell(watch)?,
            Some(_) => {}
        }
        watch.round(count.is_some(), self.arrived)
    }

    fn counters(&self) -> BTreeMap<String, u64> {
        BTreeMap::new()
    }
}
