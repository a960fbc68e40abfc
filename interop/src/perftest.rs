//! Counterparts of perftest's `ib_send_bw`, `ib_send_lat`, `ib_write_bw`, `ib_read_bw` and
//! `ib_atomic_bw`, one QP and one message size each.
//!
//! What those programs (4.5) say to each other over TCP, where they do not use RDMA-CM: the
//! version, 16 bytes; page size and cache line, big-endian words; the code of the path MTU, two
//! characters. Then handshakes, each a line of 108 bytes with all there is to know of the QP: to
//! be known, to be ready, to be printed, before and after the messages. The client speaks first,
//! always.
//!
//! ```text
//!   SEND:   known, ready, printed, receives posted, MESSAGES, end, "done"
//!   others: known, ready, printed, MESSAGES, over, reports, end, "done"
//! ```

use crate::guest::Guest;
use crate::local::{Local, node};
use crate::pair::Place;
use crate::station::{Done, Op, PATIENCE, Post, Station};
use crate::suite::Case;
use anyhow::{Context, Result, ensure};
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};
use trunkline::{
    Access, Attributes, Gid, Psn, QpAddress, QpType, Qpn, Remote, Rkey, SendFlags, Status,
};

const PORT: u16 = 18515;
const VERSION: &[u8] = b"6.04";
const PAGE: u32 = 4096;
const CACHE_LINE: u32 = 64;
/// Bytes of a handshake, a zero byte at the end included.
const LINE: usize = 108;
/// What a report of bandwidth consists of: size, iterations, peak, average and rate of messages, 8
/// bytes each.
const REPORT: usize = 5;
/// READs and atomics under way.
const OUT_READS: u32 = 16;
/// Requests under way, receives posted ahead.
const WINDOW: u64 = 32;
/// How long a server may take to listen, and a client to come.
const MEET: Duration = Duration::from_secs(20);
/// How long the guest's program may run.
const LIMIT: Duration = Duration::from_secs(120);
/// Cookie of receives; requests have their number.
const RECEIVE: u64 = 1 << 32;

/// A program of perftest.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Program {
    SendBw,
    SendLat,
    WriteBw,
    ReadBw,
    AtomicBw,
}

#[derive(Clone, Copy, Debug)]
struct Test {
    program: Program,
    size: usize,
    iters: u64,
    mtu: u16,
}

/// All of this file.
pub(crate) fn cases(full: bool) -> Vec<Case> {
    let mut tests = vec![
        (Program::SendBw, 4096, 200, 1024),
        (Program::SendLat, 64, 200, 1024),
        (Program::WriteBw, 65_536, 100, 4096),
        (Program::ReadBw, 65_536, 100, 4096),
        (Program::AtomicBw, 8, 200, 1024),
    ];
    if full {
        tests.extend([
            (Program::SendBw, 1 << 20, 100, 4096),
            (Program::SendLat, 60_000, 100, 4096),
            (Program::WriteBw, 1, 1000, 1024),
            (Program::WriteBw, 8 << 20, 5, 1024),
            (Program::ReadBw, 1, 1000, 1024),
            (Program::ReadBw, 8 << 20, 5, 1024),
        ]);
    }
    let mut cases = Vec::new();
    for (program, size, iters, mtu) in tests {
        let test = Test {
            program,
            size,
            iters,
            mtu,
        };
        let mut add = |role: &str, run: fn(Place, Test) -> Result<()>| {
            let name = format!("perftest/{}-{size}/{role}", program.name());
            cases.push(Case::new(name, move |place| run(place, test)));
        };
        add("guest-serves", guest_serves);
        add("guest-asks", guest_asks);
    }
    cases
}

impl Program {
    const fn name(self) -> &'static str {
        match self {
            Self::SendBw => "ib_send_bw",
            Self::SendLat => "ib_send_lat",
            Self::WriteBw => "ib_write_bw",
            Self::ReadBw => "ib_read_bw",
            Self::AtomicBw => "ib_atomic_bw",
        }
    }

    const fn takes_receives(self) -> bool {
        matches!(self, Self::SendBw | Self::SendLat)
    }
}

impl Test {
    fn line(self, guest: Guest) -> Result<String> {
        let Self {
            program,
            size,
            iters,
            mtu,
        } = self;
        let index = guest.gid_index()?;
        // Atomics have one size only.
        let size = match program {
            Program::AtomicBw => String::new(),
            _ => format!("-s {size}"),
        };
        let name = program.name();
        Ok(format!(
            "{name} -d rxe0 -x {index} -m {mtu} {size} -n {iters} -F"
        ))
    }
}

fn guest_serves(place: Place, test: Test) -> Result<()> {
    let server = place.guest.start(&test.line(place.guest)?, LIMIT);
    let give_up = Instant::now() + MEET;
    let stream = loop {
        match TcpStream::connect(SocketAddr::new(place.guest.control, PORT)) {
            Ok(stream) => break stream,
            Err(error) if Instant::now() > give_up => return Err(error.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    };
    let ours = Talk::begin(stream, true, test).and_then(|talk| play(place, talk, test));
    let theirs = server.finish();
    ours?;
    theirs.map(drop)
}

fn guest_asks(place: Place, test: Test) -> Result<()> {
    let listener = TcpListener::bind((place.control, PORT))?;
    let line = format!("{} {}", test.line(place.guest)?, place.control);
    let client = place.guest.start(&line, LIMIT);
    listener.set_nonblocking(true)?;
    let give_up = Instant::now() + MEET;
    let stream = loop {
        match listener.accept() {
            Ok((stream, _)) => break stream,
            Err(_) if Instant::now() < give_up => std::thread::sleep(Duration::from_millis(10)),
            Err(error) => return Err(error).context("no client came"),
        }
    };
    stream.set_nonblocking(false)?;
    let ours = Talk::begin(stream, false, test).and_then(|talk| play(place, talk, test));
    let theirs = client.finish();
    ours?;
    theirs.map(drop)
}

/// What the programs say over TCP.
struct Talk {
    stream: TcpStream,
    /// We are the client.
    asks: bool,
}

/// An end, as a handshake describes it.
#[derive(Clone, Copy, Debug)]
struct End {
    address: QpAddress,
    memory: Remote,
}

impl Talk {
    fn begin(stream: TcpStream, asks: bool, test: Test) -> Result<Self> {
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_nodelay(true)?;
        let mut talk = Self { stream, asks };
        let mut version = [0; 16];
        version[..VERSION.len()].copy_from_slice(VERSION);
        talk.exchange(&version)?;
        talk.exchange(&PAGE.to_be_bytes())?;
        talk.exchange(&CACHE_LINE.to_be_bytes())?;
        let code = (test.mtu.ilog2() - 7) as u8;
        let theirs = talk.exchange(&[b'0' + code, 0])?;
        ensure!(theirs[0] == b'0' + code, "another path MTU: {theirs:?}");
        Ok(talk)
    }

    /// Says something and hears as much, the client first.
    fn exchange<const N: usize>(&mut self, ours: &[u8; N]) -> Result<[u8; N]> {
        let mut theirs = [0; N];
        if self.asks {
            self.stream.write_all(ours)?;
        }
        self.stream.read_exact(&mut theirs)?;
        if !self.asks {
            self.stream.write_all(ours)?;
        }
        Ok(theirs)
    }

    fn handshake(&mut self, ours: &End) -> Result<End> {
        let theirs = self.exchange(&encode(ours))?;
        decode(&theirs).with_context(|| String::from_utf8_lossy(&theirs).into_owned())
    }

    /// Both ends are through with their messages.
    fn end(&mut self, ours: &End, test: Test) -> Result<()> {
        if !test.program.takes_receives() {
            self.handshake(ours)?;
            for _ in 0..REPORT {
                self.exchange(&[0; 8])?;
            }
        }
        self.handshake(ours)?;
        self.stream.write_all(b"done\0")?;
        Ok(())
    }
}

fn encode(end: &End) -> [u8; LINE] {
    let End { address, memory } = end;
    let mut text = format!(
        "0000:{OUT_READS:04x}:{:06x}:{:06x}:{:08x}:{:016x}:",
        address.qpn.get(),
        address.psn.get(),
        memory.rkey.0,
        memory.addr
    );
    for byte in address.gid.0 {
        let _ = write!(text, "{byte:02x}:");
    }
    text.push_str("00000000:");
    let mut bytes = [0; LINE];
    bytes[..text.len()].copy_from_slice(text.as_bytes());
    bytes
}

fn decode(bytes: &[u8; LINE]) -> Result<End> {
    let text = std::str::from_utf8(bytes)?.trim_end_matches('\0');
    let fields: Vec<_> = text.split(':').collect();
    let field = |at: usize| -> Result<u64> {
        let digits = fields.get(at).context("too few fields")?;
        Ok(u64::from_str_radix(digits, 16)?)
    };
    let mut gid = Gid::default();
    for (at, byte) in gid.0.iter_mut().enumerate() {
        *byte = field(6 + at)? as u8;
    }
    Ok(End {
        address: QpAddress {
            gid,
            qpn: Qpn::from_wire(field(2)? as u32),
            psn: Psn::from_wire(field(3)? as u32),
        },
        memory: Remote {
            addr: field(5)?,
            rkey: Rkey(field(4)? as u32),
        },
    })
}

fn play(place: Place, mut talk: Talk, test: Test) -> Result<()> {
    let node = node(place.ours(), None)?;
    // Peers go through a page of it at least.
    let size = 2 * test.size.max(PAGE as usize);
    let local = Local::new(&node, QpType::Rc, size, WINDOW as u32)?;
    let ours = End {
        address: local.qp.address(),
        memory: local.remote(0),
    };
    let theirs = talk.handshake(&ours)?;
    let attributes = Attributes {
        path_mtu: test.mtu,
        ..Attributes::default()
    };
    local
        .qp
        .connect_with(theirs.address, Access::ALL, &attributes)?;
    talk.handshake(&ours)?;
    talk.handshake(&ours)?;
    let mut player = Player {
        local,
        test,
        peer: theirs.memory,
        posted: 0,
        received: 0,
    };
    if test.program.takes_receives() {
        (0..WINDOW).try_for_each(|_| player.receive())?;
        talk.handshake(&ours)?;
    }
    match (test.program, talk.asks) {
        (Program::SendLat, first) => player.ping_pong(first)?,
        (Program::SendBw, false) => player.take_all()?,
        (_, true) => player.post_all()?,
        (_, false) => {}
    }
    talk.end(&ours, test)?;
    if test.program == Program::AtomicBw && !talk.asks {
        player.check_sum()?;
    }
    Ok(())
}

struct Player {
    local: Local,
    test: Test,
    /// The peer's buffer.
    peer: Remote,
    posted: u64,
    received: u64,
}

impl Player {
    fn receive(&mut self) -> Result<()> {
        self.local.recv(RECEIVE, self.test.size, self.test.size)
    }

    fn post(&mut self) -> Result<()> {
        let op = match self.test.program {
            Program::SendBw | Program::SendLat => Op::Send,
            Program::WriteBw => Op::Write,
            Program::ReadBw => Op::Read,
            Program::AtomicBw => Op::FetchAdd { add: 1 },
        };
        self.posted += 1;
        self.local.post(&Post {
            wr_id: self.posted,
            op,
            offset: 0,
            length: self.test.size,
            remote: self.peer,
            flags: SendFlags::default(),
        })
    }

    fn next(&mut self) -> Result<Done> {
        let done = self.local.wait(PATIENCE)?;
        let (posted, received) = (self.posted, self.received);
        let done = done.with_context(|| format!("{posted} posted, {received} received"))?;
        done.is(done.wr_id, Status::Success)?;
        if done.wr_id == RECEIVE {
            ensure!(done.length as usize == self.test.size, "{done:?}");
            self.received += 1;
        }
        Ok(done)
    }

    /// All requests, as many under way as may be; atomics one by one, for what they find.
    fn post_all(&mut self) -> Result<()> {
        let (mut done, mut found) = (0, None);
        let window = match self.test.program {
            Program::AtomicBw => 1,
            _ => WINDOW,
        };
        while done < self.test.iters {
            while self.posted < self.test.iters && self.posted - done < window {
                self.post()?;
            }
            done += 1;
            self.next()?.is(done, Status::Success)?;
            if self.test.program == Program::AtomicBw {
                let value = self.local.get(0)?;
                let expected = found.map_or(value, |before: u64| before.wrapping_add(1));
                ensure!(value == expected, "atomic {done} found {value:#x}");
                found = Some(value);
            }
        }
        Ok(())
    }

    fn take_all(&mut self) -> Result<()> {
        while self.received < self.test.iters {
            self.next()?;
            self.receive()?;
        }
        Ok(())
    }

    fn ping_pong(&mut self, first: bool) -> Result<()> {
        let iters = self.test.iters;
        if first {
            self.post()?;
        }
        let mut sent = 0;
        while sent < iters || self.received < iters {
            if self.next()?.wr_id != RECEIVE {
                sent += 1;
                continue;
            }
            self.receive()?;
            if self.posted < iters {
                self.post()?;
            }
        }
        Ok(())
    }

    /// The guest's atomics have added one each, all over a page.
    fn check_sum(&mut self) -> Result<()> {
        let words = (0..2 * PAGE as usize).step_by(8);
        let values = words
            .map(|at| self.local.get(at))
            .collect::<Result<Vec<_>>>()?;
        let sum = values
            .iter()
            .fold(0u64, |sum, value| sum.wrapping_add(*value));
        ensure!(
            sum == self.test.iters,
            "{sum} added, {} asked for",
            self.test.iters
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    #[test]
    fn a_handshake_is_read_as_it_was_written() {
        let end = End {
            address: QpAddress {
                gid: Gid::from(std::net::IpAddr::from([10, 99, 0, 1])),
                qpn: Qpn::from_wire(0x12_3456),
                psn: Psn::from_wire(0xff_fffe),
            },
            memory: Remote {
                addr: 0x7f00_1234_5678,
                rkey: Rkey(0xdead_beef),
            },
        };
        let line = encode(&end);
        assert_eq!((line[106], line[107]), (b':', 0));
        let back = decode(&line).unwrap();
        assert_eq!(back.address, end.address);
        assert_eq!(back.memory.addr, end.memory.addr);
        assert_eq!(back.memory.rkey, end.memory.rkey);
        assert!(decode(&[b':'; LINE]).is_err());
    }
}
