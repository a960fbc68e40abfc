//! The guest: its command port, and the peer that runs there (`guest/verbs_peer.c`).

use crate::station::{Done, MARGIN, Op, Post, Station};
use anyhow::{Context, Result, bail, ensure};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use trunkline::{Gid, Psn, QpAddress, QpType, Qpn, Remote, Rkey};

/// Where the guest takes shell commands, a line each.
const COMMANDS: u16 = 2323;
/// Where its peer listens.
const PEER: u16 = 7000;
/// How long a connection to the guest may take.
const CONNECT: Duration = Duration::from_secs(5);
/// How long the peer may think beyond what it was asked to wait.
const PATIENCE: Duration = Duration::from_secs(60);
/// What the command port ends with: the exit status.
const STATUS: &str = "rxe-vm-rc ";

/// The guest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guest {
    /// Where it takes commands.
    pub(crate) control: IpAddr,
    /// Where its QPs are.
    pub(crate) address: IpAddr,
}

/// A command that runs in the guest.
#[derive(Debug)]
pub(crate) struct Running {
    command: String,
    thread: JoinHandle<Result<(String, i32)>>,
}

impl Running {
    /// Waits for its end; gives what it printed.
    ///
    /// # Errors
    /// It took too long, or ended with a status other than 0: with its output.
    pub(crate) fn finish(self) -> Result<String> {
        let (text, status) = self.status()?;
        ensure!(status.1 == 0, "{}: status {}: {text}", status.0, status.1);
        Ok(text)
    }

    /// Waits for its end, whatever that is; gives what it printed, the command, and its status.
    ///
    /// # Errors
    /// It took too long.
    pub(crate) fn status(self) -> Result<(String, (String, i32))> {
        let command = self.command;
        let Ok(result) = self.thread.join() else {
            bail!("{command}: its thread panicked");
        };
        let (text, status) = result.with_context(|| command.clone())?;
        Ok((text, (command, status)))
    }
}

impl Guest {
    /// Starts a shell command, which ends within `limit`.
    pub(crate) fn start(self, command: &str, limit: Duration) -> Running {
        let line = command.to_owned();
        Running {
            command: line.clone(),
            thread: std::thread::spawn(move || self.command(&line, limit)),
        }
    }

    /// Runs a shell command to its end; gives what it printed.
    ///
    /// # Errors
    /// It failed or took too long.
    pub(crate) fn run(self, command: &str, limit: Duration) -> Result<String> {
        self.start(command, limit).finish()
    }

    fn command(self, command: &str, limit: Duration) -> Result<(String, i32)> {
        let address = SocketAddr::new(self.control, COMMANDS);
        let mut stream = TcpStream::connect_timeout(&address, CONNECT)?;
        stream.set_read_timeout(Some(limit))?;
        // The guest ends it by itself, so that nothing is left over there when we give up.
        let seconds = limit.as_secs().max(1);
        let quoted = command.replace('\'', r"'\''");
        writeln!(stream, "timeout {seconds} sh -c '{quoted}'")?;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).context("no end to it")?;
        let text = String::from_utf8_lossy(&bytes);
        let Some((printed, status)) = text.rsplit_once(STATUS) else {
            bail!("the guest broke off: {text}");
        };
        Ok((printed.trim_end().to_owned(), status.trim().parse()?))
    }

    /// Index of the GID that stands for the guest's address.
    ///
    /// # Errors
    /// It has none.
    pub(crate) fn gid_index(self) -> Result<u32> {
        let gid = hex(self.address.into());
        let words: Vec<_> = (0..8).map(|at| &gid[4 * at..4 * at + 4]).collect();
        let line = format!(
            "cd /sys/class/infiniband/rxe0/ports/1/gids && grep -l {} *",
            words.join(":")
        );
        let found = self.run(&line, CONNECT)?;
        let index = found.split_whitespace().next().context("no such GID")?;
        Ok(index.parse()?)
    }

    /// Starts the peer program, once per boot.
    ///
    /// # Errors
    /// It is not in the guest.
    pub(crate) fn start_peer(self) -> Result<()> {
        let line = format!("verbs_peer {PEER} >/tmp/peer.log 2>&1 & sleep 0.1; kill -0 $!");
        // A second one finds the port taken and goes away: the first one serves.
        let _ = self.command(&line, CONNECT)?;
        let give_up = Instant::now() + CONNECT;
        let address = SocketAddr::new(self.control, PEER);
        while TcpStream::connect_timeout(&address, CONNECT).is_err() {
            ensure!(Instant::now() < give_up, "verbs_peer does not listen");
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Opens a session with the peer program: a QP of its own there.
    ///
    /// # Errors
    /// It refuses.
    pub(crate) fn open(self, options: &Options) -> Result<Peer> {
        let stream = TcpStream::connect_timeout(&SocketAddr::new(self.control, PEER), CONNECT)?;
        stream.set_nodelay(true)?;
        let mut peer = Peer {
            words: BufReader::new(stream.try_clone()?),
            stream,
            size: options.size,
            qpn: 0,
            gid: String::new(),
            addr: 0,
            rkey: 0,
        };
        let family = if self.address.is_ipv4() { 4 } else { 6 };
        let kind = options.kind.to_string().to_lowercase();
        let line = format!(
            "open {kind} {} {} {} {family} {}",
            options.size, options.depth, options.access, options.qkey
        );
        let answer = peer.call(&line)?;
        let [qpn, gid, addr, rkey] = answer.as_slice() else {
            bail!("open: {answer:?}");
        };
        peer.qpn = qpn.parse()?;
        peer.gid.clone_from(gid);
        peer.addr = addr.parse()?;
        peer.rkey = rkey.parse()?;
        Ok(peer)
    }
}

/// What a session is opened with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) kind: QpType,
    pub(crate) size: usize,
    pub(crate) depth: u32,
    /// `enum ibv_access_flags` of region and QP.
    pub(crate) access: u32,
    pub(crate) qkey: u32,
}

/// A session with the peer program.
#[derive(Debug)]
pub(crate) struct Peer {
    stream: TcpStream,
    words: BufReader<TcpStream>,
    size: usize,
    qpn: u32,
    gid: String,
    addr: u64,
    rkey: u32,
}

/// A GID as the peer writes it.
pub(crate) fn hex(gid: Gid) -> String {
    gid.0.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn parse_gid(text: &str) -> Result<Gid> {
    ensure!(text.len() == 32, "a GID of {} digits", text.len());
    Ok(Gid(u128::from_str_radix(text, 16)?.to_be_bytes()))
}

impl Peer {
    /// One command; gives the words of its answer.
    fn call(&mut self, line: &str) -> Result<Vec<String>> {
        self.call_within(line, PATIENCE)
    }

    fn call_within(&mut self, line: &str, limit: Duration) -> Result<Vec<String>> {
        self.stream.set_read_timeout(Some(limit))?;
        writeln!(self.stream, "{line}")?;
        let mut answer = String::new();
        self.words
            .read_line(&mut answer)
            .with_context(|| format!("guest: {line}"))?;
        let mut words = answer.split_whitespace().map(str::to_owned);
        match words.next().as_deref() {
            Some("ok") => Ok(words.collect()),
            Some("none") => Ok(vec!["none".to_owned()]),
            _ => bail!("guest: {line}: {}", answer.trim()),
        }
    }

    /// How its QP is reached, if it starts with `psn`.
    pub(crate) fn qp_address(&self, psn: Psn) -> Result<QpAddress> {
        Ok(QpAddress {
            gid: parse_gid(&self.gid)?,
            qpn: Qpn::from_wire(self.qpn),
            psn,
        })
    }

    /// Takes its RC or UC QP to RTS.
    pub(crate) fn connect(&mut self, to: QpAddress, sq_psn: Psn, terms: &str) -> Result<()> {
        let (gid, psn) = (hex(to.gid), sq_psn.get());
        let (qpn, rq_psn) = (to.qpn.get(), to.psn.get());
        self.call(&format!("connect {qpn} {gid} {rq_psn} {psn} {terms}"))
            .map(drop)
    }

    /// Takes its UD QP to RTS, and lets it send to `to`.
    pub(crate) fn ready(&mut self, to: QpAddress, sq_psn: Psn, qkey: u32) -> Result<()> {
        self.call(&format!("ready {}", sq_psn.get()))?;
        let (gid, qpn) = (hex(to.gid), to.qpn.get());
        self.call(&format!("address {qpn} {gid} {qkey}")).map(drop)
    }

    /// Binds a memory window over a part of its buffer; gives its key.
    pub(crate) fn bind(&mut self, wr_id: u64, offset: usize, length: usize) -> Result<Rkey> {
        // IBV_ACCESS_REMOTE_WRITE and _READ
        let answer = self.call(&format!("bind {wr_id} {offset} {length} 6"))?;
        Ok(Rkey(answer.first().context("no key")?.parse()?))
    }

    /// State of its QP, `enum ibv_qp_state`.
    pub(crate) fn state(&mut self) -> Result<u32> {
        Ok(self.call("state")?.first().context("no state")?.parse()?)
    }
}

impl Station for Peer {
    fn name(&self) -> &'static str {
        "the guest"
    }

    fn fill(&mut self, offset: usize, length: usize, seed: u64) -> Result<()> {
        self.call(&format!("fill {offset} {length} {seed}"))
            .map(drop)
    }

    fn check(&mut self, offset: usize, length: usize, seed: u64) -> Result<()> {
        self.call(&format!("check {offset} {length} {seed}"))
            .map(drop)
    }

    fn put(&mut self, offset: usize, value: u64) -> Result<()> {
        self.call(&format!("put {offset} {value}")).map(drop)
    }

    fn get(&mut self, offset: usize) -> Result<u64> {
        let answer = self.call(&format!("get {offset}"))?;
        Ok(answer.first().context("no value")?.parse()?)
    }

    fn remote(&self, offset: usize) -> Remote {
        Remote {
            addr: self.addr + offset as u64,
            rkey: Rkey(self.rkey),
        }
    }

    fn size(&self) -> usize {
        self.size - MARGIN
    }

    fn recv(&mut self, wr_id: u64, offset: usize, length: usize) -> Result<()> {
        self.call(&format!("recv {wr_id} {offset} {length}"))
            .map(drop)
    }

    fn post(&mut self, post: &Post) -> Result<()> {
        let (name, extra, compare, swap) = match post.op {
            Op::Send => ("send", 0, 0, 0),
            Op::SendImm(imm) => ("send_imm", imm, 0, 0),
            Op::SendInvalidate(key) => ("send_inv", key.0, 0, 0),
            Op::Write => ("write", 0, 0, 0),
            Op::WriteImm(imm) => ("write_imm", imm, 0, 0),
            Op::Read => ("read", 0, 0, 0),
            Op::CompareSwap { compare, swap } => ("cmp_swap", 0, compare, swap),
            Op::FetchAdd { add } => ("fetch_add", 0, add, 0),
        };
        let line = format!(
            "post {} {name} {} {} {} {} {extra} {compare} {swap} {}",
            post.wr_id,
            post.offset,
            post.length,
            post.remote.addr,
            post.remote.rkey.0,
            post.flags.0
        );
        self.call(&line).map(drop)
    }

    fn wait(&mut self, limit: Duration) -> Result<Option<Done>> {
        let line = format!("wait {}", limit.as_millis());
        let words = self.call_within(&line, limit + PATIENCE)?;
        let [wr_id, status, opcode, length, flags, extra, src_qp] = words.as_slice() else {
            ensure!(words == ["none"], "{words:?}");
            return Ok(None);
        };
        // IBV_WC_WITH_IMM and IBV_WC_WITH_INV
        let with_extra = flags.parse::<u32>()? & 0b1010 != 0;
        let extra = extra.parse()?;
        Ok(Some(Done {
            wr_id: wr_id.parse()?,
            status: status.parse()?,
            opcode: opcode.parse()?,
            length: length.parse()?,
            extra: with_extra.then_some(extra),
            src_qp: src_qp.parse()?,
        }))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Its QP goes before the next session opens one. Who is gone cannot answer.
        let _ = self.call("close");
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}
