//! The control channel: JSON lines over TCP, by which both ends agree on what to do and tell each
//! other the end. What comes from the other side is believed only after a check.

use super::params::{Params, Side};
use super::yardstick::{Yardstick, YardstickEnd};
use crate::interrupt::Interrupt;
use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::time::{Duration, Instant};

/// Version of what follows.
pub(crate) const VERSION: u32 = 3;
/// Longest line: the addresses of as many QPs as there may be.
const MAX_LINE: usize = 8 << 20;
/// Most characters of the other side's words that are passed on.
const MAX_WORDS: usize = 1000;
/// How long a side that has ended may take to say so, where its packets are ahead of its words.
const END_WAIT: Duration = Duration::from_secs(1);
/// Pause between looks at a socket that has nothing.
const PAUSE: Duration = Duration::from_micros(500);

/// What one side says to the other.
#[derive(Debug, Deserialize, Serialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub(crate) enum Message {
    /// The client asks for a measurement.
    Hello {
        /// The protocol that it speaks.
        version: u32,
        /// What it wants.
        params: Params,
        /// Its QPs.
        end: EndAddress,
    },
    /// The server agrees; its QPs are connected.
    Ready {
        /// Its QPs.
        end: EndAddress,
    },
    /// The client asks for a measurement without the transport.
    Yardstick {
        /// The protocol that it speaks.
        version: u32,
        /// What is to carry messages.
        yardstick: Yardstick,
        /// What it wants.
        params: Params,
        /// How it is reached.
        end: YardstickEnd,
    },
    /// The server agrees to that, and is reached so.
    YardstickReady {
        /// How.
        end: YardstickEnd,
    },
    /// It does not go (on).
    Failed {
        /// Why, in words.
        why: String,
    },
    /// The client is done.
    Stop {
        /// Requests that it completed on each QP, where the server is to verify.
        counts: Vec<u64>,
    },
    /// The server is done too.
    Done {
        /// Bytes that it compared.
        verified: u64,
        /// What it counted.
        counters: BTreeMap<String, u64>,
    },
}

/// How one end is reached.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EndAddress {
    /// Its node.
    pub(crate) node: IpAddr,
    /// QPN and first PSN of each QP.
    pub(crate) qps: Vec<(u32, u32)>,
    /// Address of its buffers.
    pub(crate) addr: u64,
    /// Key to them.
    pub(crate) rkey: u32,
}

/// The one thing that is the same in all versions.
#[derive(Deserialize)]
struct Versioned {
    version: Option<u32>,
}

/// The other side says nothing.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{peer} says nothing for {limit:?}")]
pub(crate) struct Silent {
    peer: String,
    limit: Duration,
}

/// One end of the control channel.
#[derive(Debug)]
pub(crate) struct Channel {
    stream: TcpStream,
    /// What the other side is called.
    peer: String,
    inbox: Vec<u8>,
    /// Bytes of the inbox in which no line ends.
    seen: usize,
    timeout: Duration,
}

impl Channel {
    /// Takes over a socket that is connected to `other`. Nothing waits longer than `timeout` for
    /// that.
    ///
    /// # Errors
    /// The socket refuses.
    pub(crate) fn new(stream: TcpStream, other: Side, timeout: Duration) -> Result<Self> {
        let address = stream.peer_addr().context("control connection")?;
        let peer = match other {
            Side::Client => "the client".to_owned(),
            Side::Server => format!("the server at {address}"),
        };
        stream.set_nonblocking(true).context("control connection")?;
        stream.set_nodelay(true).context("control connection")?;
        Ok(Self {
            stream,
            peer,
            inbox: Vec::new(),
            seen: 0,
            timeout,
        })
    }

    /// What the other side is called.
    pub(crate) fn peer(&self) -> &str {
        &self.peer
    }

    /// Address of this side.
    ///
    /// # Errors
    /// The socket has none any more.
    pub(crate) fn local(&self) -> Result<IpAddr> {
        Ok(self.stream.local_addr().context("control connection")?.ip())
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The other side is gone, or takes nothing for too long.
    pub(crate) fn send(&mut self, message: &Message) -> Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        let deadline = Instant::now() + self.timeout;
        let mut rest = &line[..];
        while !rest.is_empty() {
            match self.stream.write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    ensure!(Instant::now() < deadline, "{} takes no message", self.peer);
                    std::thread::sleep(PAUSE);
                }
                Err(error) => bail!("{} went away: {error}", self.peer),
            }
        }
        Ok(())
    }

    /// Returns the next message of the other side, if one has come.
    ///
    /// # Errors
    /// It is gone, or what it says makes no sense.
    pub(crate) fn poll(&mut self) -> Result<Option<Message>> {
        let mut chunk = [0; 16_384];
        loop {
            if let Some(at) = self.inbox[self.seen..]
                .iter()
                .position(|&byte| byte == b'\n')
            {
                let rest = self.inbox.split_off(self.seen + at + 1);
                let line = std::mem::replace(&mut self.inbox, rest);
                self.seen = 0;
                return self.parse(&line).map(Some);
            }
            self.seen = self.inbox.len();
            ensure!(self.seen < MAX_LINE, "{} says too much at once", self.peer);
            match self.stream.read(&mut chunk) {
                Ok(0) => bail!("{} went away", self.peer),
                Ok(count) => self.inbox.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => bail!("{} went away: {error}", self.peer),
            }
        }
    }

    /// Waits for the other side to say something; calls `meanwhile` all the time.
    ///
    /// # Errors
    /// As [`poll`](Self::poll), or it says nothing for too long, or Ctrl-C.
    pub(crate) fn wait(
        &mut self,
        interrupt: &Interrupt,
        mut meanwhile: impl FnMut() -> Result<()>,
    ) -> Result<Message> {
        let deadline = Instant::now() + self.timeout;
        loop {
            if let Some(message) = self.poll()? {
                return Ok(message);
            }
            interrupt.check()?;
            ensure!(
                Instant::now() < deadline,
                Silent {
                    peer: self.peer.clone(),
                    limit: self.timeout,
                }
            );
            meanwhile()?;
        }
    }

    /// Waits for the other side to end. Returns what it says of that, or that it is gone; `None`
    /// when it seems to go on.
    pub(crate) fn wait_for_end(&mut self, interrupt: &Interrupt) -> Option<anyhow::Error> {
        let deadline = Instant::now() + END_WAIT;
        while Instant::now() < deadline {
            if let Err(error) = self.poll() {
                return Some(error);
            }
            if let Err(interrupted) = interrupt.check() {
                return Some(interrupted.into());
            }
            std::thread::sleep(PAUSE);
        }
        None
    }

    /// Waits without anything else to do.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub(crate) fn wait_idle(&mut self, interrupt: &Interrupt) -> Result<Message> {
        self.wait(interrupt, || {
            std::thread::sleep(PAUSE);
            Ok(())
        })
    }

    fn parse(&self, line: &[u8]) -> Result<Message> {
        let versioned: Option<Versioned> = serde_json::from_slice(line).ok();
        match versioned {
            Some(Versioned {
                version: Some(version),
            }) if version != VERSION => {
                bail!(
                    "{} speaks version {version} of this protocol, not {VERSION}",
                    self.peer
                )
            }
            _ => {}
        }
        match serde_json::from_slice(line) {
            Ok(Message::Failed { why }) => {
                let said: String = why.chars().take(MAX_WORDS).collect();
                let rest = if said.len() < why.len() { "..." } else { "" };
                bail!("{} says: {said}{rest}", self.peer)
            }
            Ok(message) => Ok(message),
            Err(_) => bail!("{} is no 'trunkline bench' of this version", self.peer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    const TIMEOUT: Duration = Duration::from_millis(200);

    fn pair() -> (Channel, TcpStream) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("loopback has ports");
        let address = listener.local_addr().expect("it is bound");
        let stream = TcpStream::connect(address).expect("someone listens");
        let (other, _) = listener.accept().expect("someone connects");
        (
            Channel::new(stream, Side::Server, TIMEOUT).expect("it is connected"),
            other,
        )
    }

    fn received(bytes: &[u8]) -> Result<Message> {
        let (mut channel, mut other) = pair();
        other.write_all(bytes).expect("there is room");
        channel.wait_idle(&Interrupt::default())
    }

    #[test]
    fn messages_arrive_in_order_whatever_their_pieces() {
        let (mut channel, other) = pair();
        let mut sender = Channel::new(other, Side::Client, TIMEOUT).expect("it is connected");
        let interrupt = Interrupt::default();
        assert!(channel.poll().expect("nobody left").is_none());
        for counts in [vec![1], vec![7; 100_000], vec![]] {
            let expected = counts.clone();
            let sending = std::thread::spawn(move || {
                sender
                    .send(&Message::Stop { counts })
                    .expect("someone listens");
                sender
            });
            match channel.wait_idle(&interrupt).expect("a message comes") {
                Message::Stop { counts } => assert_eq!(counts, expected),
                other => panic!("{other:?}"),
            }
            sender = sending.join().expect("it does not panic");
        }
    }

    #[test]
    fn what_makes_no_sense_is_an_error_that_names_the_other_side() {
        // A greeting of this version without its settings.
        let bare = format!("{{\"say\":\"hello\",\"version\":{VERSION}}}\n");
        for bytes in [
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            b"\n",
            b"\xff\xfe\n",
            b"{}\n",
            bare.as_bytes(),
            b"{\"say\":\"stop\",\"counts\":[-1]}\n",
        ] {
            let error = received(bytes).expect_err("it is nonsense").to_string();
            assert!(
                error.ends_with("is no 'trunkline bench' of this version"),
                "{error}"
            );
            assert!(error.starts_with("the server at 127.0.0.1:"), "{error}");
        }
        let nested = [b"[".repeat(100_000), b"\n".to_vec()].concat();
        assert!(received(&nested).is_err());
    }

    #[test]
    fn other_versions_and_refusals_are_told_as_such() {
        let next = VERSION + 1;
        let newer = format!("{{\"say\":\"hello\",\"version\":{next},\"colour\":\"blue\"}}\n");
        let error = received(newer.as_bytes())
            .expect_err("it is newer")
            .to_string();
        let says = format!("speaks version {next} of this protocol, not {VERSION}");
        assert!(error.ends_with(&says), "{error}");
        let error = received(b"{\"say\":\"failed\",\"why\":\"no\"}\n").expect_err("it failed");
        assert!(error.to_string().ends_with("says: no"), "{error}");
        let long = format!(
            "{{\"say\":\"failed\",\"why\":\"{}\"}}\n",
            "no".repeat(MAX_WORDS)
        );
        let error = received(long.as_bytes())
            .expect_err("it failed")
            .to_string();
        let told = format!("says: {}...", "no".repeat(MAX_WORDS / 2));
        assert!(error.ends_with(&told), "{error}");
    }

    #[test]
    fn silence_endless_lines_and_departures_end() {
        let error = received(b"{\"say\"")
            .expect_err("it goes no further")
            .to_string();
        assert!(error.ends_with("says nothing for 200ms"), "{error}");

        let (mut channel, other) = pair();
        drop(other);
        let error = channel
            .wait_idle(&Interrupt::default())
            .expect_err("it left")
            .to_string();
        assert!(error.contains("went away"), "{error}");

        let (mut channel, mut other) = pair();
        let flood = std::thread::spawn(move || while other.write_all(&[b'x'; 65_536]).is_ok() {});
        let error = channel
            .wait_idle(&Interrupt::default())
            .expect_err("no line ends")
            .to_string();
        assert!(error.ends_with("says too much at once"), "{error}");
        drop(channel);
        flood.join().expect("it does not panic");
    }
}
