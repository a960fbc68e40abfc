//! Counterparts of `ibv_rc_pingpong`, `ibv_uc_pingpong` and `ibv_ud_pingpong`, which speak the
//! exchange of those programs over TCP: 52 bytes `LID:QPN:PSN:GID` from the client, the same from
//! the server, and `done`.
//!
//! Those programs send from the buffer into which they receive, so what we sent comes back.

use crate::guest::{Guest, hex};
use crate::local::{Local, node};
use crate::pair::{Ours, Place};
use crate::station::{Op, PATIENCE, Post, Station};
use crate::suite::Case;
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};
use trunkline::{
    Access, Attributes, GRH_LEN, Gid, Psn, QpAddress, QpType, Qpn, Remote, SendFlags, Status,
};

/// Bytes of an address on the TCP connection, a zero byte at the end included.
const ADDRESS: usize = 52;
/// Where servers listen.
const PORT: u16 = 18515;
const QKEY: u32 = 0x1111_1111;
/// Receives posted ahead.
const AHEAD: u64 = 8;
/// Room of each; the first is where sends come from.
const SLOT: usize = 1 << 16;
/// With what a client of those programs fills its buffer.
const CLIENTS: u8 = 0x7b;
/// How long a server may take to listen, and a client to come.
const MEET: Duration = Duration::from_secs(20);
/// How long the guest's program may run.
const LIMIT: Duration = Duration::from_secs(120);

/// What is played.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Game {
    /// Kind of QP: rc, uc or ud.
    #[arg(long, default_value = "rc", value_parser = kind)]
    pub(crate) kind: QpType,
    /// Bytes of a message.
    #[arg(long, default_value_t = 4096)]
    pub(crate) size: usize,
    /// Messages each way.
    #[arg(long, default_value_t = 1000)]
    pub(crate) iters: u64,
    /// Path MTU in bytes.
    #[arg(long, default_value_t = 1024)]
    pub(crate) mtu: u16,
}

fn kind(word: &str) -> Result<QpType, String> {
    match word {
        "rc" => Ok(QpType::Rc),
        "uc" => Ok(QpType::Uc),
        "ud" => Ok(QpType::Ud),
        _ => Err("rc, uc or ud".to_owned()),
    }
}

/// All of this file.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let games = [
        ("rc", QpType::Rc, 4096, 1024),
        ("rc-mtu4096", QpType::Rc, 60_000, 4096),
        ("uc", QpType::Uc, 4096, 1024),
        ("ud", QpType::Ud, 1000, 1024),
    ];
    for (name, kind, size, mtu) in games {
        let game = Game {
            kind,
            size,
            iters: 200,
            mtu,
        };
        let case = |role: &str, run: fn(Place, Game) -> Result<()>| {
            let name = format!("pingpong/{name}/{role}");
            Case::new(name, move |place| run(place, game))
        };
        cases.push(case("guest-serves", guest_serves));
        cases.push(case("guest-asks", guest_asks));
    }
    cases
}

/// The guest's program with its arguments.
fn program(guest: Guest, game: Game) -> Result<String> {
    let index = guest.gid_index()?;
    let Game {
        kind,
        size,
        iters,
        mtu,
    } = game;
    let name = kind.to_string().to_lowercase();
    // UD knows no path MTU.
    let path = if kind == QpType::Ud {
        String::new()
    } else {
        format!("-m {mtu}")
    };
    Ok(format!(
        "ibv_{name}_pingpong -d rxe0 -g {index} -s {size} -n {iters} -e {path}"
    ))
}

fn guest_serves(place: Place, game: Game) -> Result<()> {
    let server = place.guest.start(&program(place.guest, game)?, LIMIT);
    let ours = client(place.ours(), place.guest.control, game);
    let theirs = server.finish();
    ours?;
    theirs.map(drop)
}

fn guest_asks(place: Place, game: Game) -> Result<()> {
    let listener = TcpListener::bind((place.control, PORT))?;
    let line = format!("{} {}", program(place.guest, game)?, place.control);
    let client = place.guest.start(&line, LIMIT);
    let ours = serve(place.ours(), &listener, game);
    let theirs = client.finish();
    ours?;
    theirs.map(drop)
}

/// Plays with the server at `host`.
///
/// # Errors
/// It is not there, or what comes is not what should.
pub(crate) fn client(ours: Ours, host: IpAddr, game: Game) -> Result<()> {
    let mut player = Player::new(ours, game)?;
    let give_up = Instant::now() + MEET;
    let mut stream = loop {
        match TcpStream::connect(SocketAddr::new(host, PORT)) {
            Ok(stream) => break stream,
            Err(error) if Instant::now() > give_up => return Err(error.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    };
    stream.set_read_timeout(Some(MEET))?;
    stream.write_all(&encode(player.local.qp.address()))?;
    player.connect(decode(&mut stream)?)?;
    stream.write_all(b"done\0")?;
    player.play(true)
}

/// Plays with the client that comes to `listener`.
///
/// # Errors
/// None comes, or what comes is not what should.
pub(crate) fn serve(ours: Ours, listener: &TcpListener, game: Game) -> Result<()> {
    let mut player = Player::new(ours, game)?;
    listener.set_nonblocking(true)?;
    let give_up = Instant::now() + MEET;
    let mut stream = loop {
        match listener.accept() {
            Ok((stream, _)) => break stream,
            Err(_) if Instant::now() < give_up => std::thread::sleep(Duration::from_millis(10)),
            Err(error) => return Err(error).context("no client came"),
        }
    };
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(MEET))?;
    player.connect(decode(&mut stream)?)?;
    stream.write_all(&encode(player.local.qp.address()))?;
    let mut done = [0; 5];
    stream.read_exact(&mut done)?;
    ensure!(&done == b"done\0", "the client said {done:?}");
    player.play(false)
}

/// Listens for one client of `game`.
///
/// # Errors
/// As [`serve`].
pub(crate) fn listen(ours: Ours, game: Game) -> Result<()> {
    serve(ours, &TcpListener::bind((ours.0, PORT))?, game)
}

fn encode(address: QpAddress) -> [u8; ADDRESS] {
    let text = format!(
        "0000:{:06x}:{:06x}:{}",
        address.qpn.get(),
        address.psn.get(),
        hex(address.gid)
    );
    let mut bytes = [0; ADDRESS];
    bytes[..text.len()].copy_from_slice(text.as_bytes());
    bytes
}

fn decode(stream: &mut TcpStream) -> Result<QpAddress> {
    let mut bytes = [0; ADDRESS];
    stream.read_exact(&mut bytes).context("no address came")?;
    let text = std::str::from_utf8(&bytes)?.trim_end_matches('\0');
    let fields: Vec<_> = text.split(':').collect();
    let [_lid, qpn, psn, gid] = fields.as_slice() else {
        bail!("{text} is no address");
    };
    Ok(QpAddress {
        qpn: Qpn::from_wire(u32::from_str_radix(qpn, 16)?),
        psn: Psn::from_wire(u32::from_str_radix(psn, 16)?),
        gid: Gid(u128::from_str_radix(gid, 16)?.to_be_bytes()),
    })
}

struct Player {
    local: Local,
    game: Game,
    /// Bytes of a receive before the message.
    grh: usize,
}

impl Player {
    fn new(ours: Ours, game: Game) -> Result<Self> {
        let grh = if game.kind == QpType::Ud { GRH_LEN } else { 0 };
        ensure!(game.size + grh <= SLOT, "at most {} bytes", SLOT - grh);
        let node = node(ours, None)?;
        let local = Local::new(&node, game.kind, SLOT * (1 + AHEAD as usize), 64)?;
        Ok(Self { local, game, grh })
    }

    fn connect(&mut self, peer: QpAddress) -> Result<()> {
        let attributes = Attributes {
            path_mtu: self.game.mtu,
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            qkey: QKEY,
            ..Attributes::default()
        };
        if self.game.kind == QpType::Ud {
            self.local.ready(peer, &attributes)?;
        } else {
            let qp = &self.local.qp;
            qp.connect_with(peer, Access::LOCAL_WRITE, &attributes)?;
        }
        (0..AHEAD).try_for_each(|turn| self.receive(turn))
    }

    const fn slot(turn: u64) -> usize {
        SLOT * (1 + (turn % AHEAD) as usize)
    }

    fn receive(&mut self, turn: u64) -> Result<()> {
        let length = self.game.size + self.grh;
        self.local.recv(turn, Self::slot(turn), length)
    }

    fn send(&mut self, turn: u64) -> Result<()> {
        self.local.fill(0, self.game.size, turn)?;
        self.local.post(&Post {
            wr_id: u64::MAX,
            op: Op::Send,
            offset: 0,
            length: self.game.size,
            remote: Remote::default(),
            flags: SendFlags::default(),
        })
    }

    fn play(&mut self, first: bool) -> Result<()> {
        let (mut sent, mut received) = (0, 0);
        let mut sending = first;
        if first {
            self.send(0)?;
        }
        while received < self.game.iters || sent < self.game.iters {
            let done = self.local.wait(PATIENCE)?;
            let done = done.with_context(|| format!("{sent} sent, {received} received"))?;
            if done.wr_id == u64::MAX {
                done.is(u64::MAX, Status::Success)?;
                sending = false;
                sent += 1;
            } else {
                done.is(received, Status::Success)?;
                self.check(received, first)?;
                self.receive(received + AHEAD)?;
                received += 1;
            }
            let turn = if first { received } else { received.max(1) - 1 };
            if !sending && sent == turn && sent < self.game.iters && received > 0 {
                self.send(sent)?;
                sending = true;
            }
        }
        Ok(())
    }

    /// What came back is what was sent; a client's first message has its own filling.
    fn check(&mut self, turn: u64, first: bool) -> Result<()> {
        let at = Self::slot(turn) + self.grh;
        if !first && turn == 0 {
            let word = u64::from_ne_bytes([CLIENTS; 8]);
            ensure!(self.local.get(at)? == word, "not the filling of a client");
            return Ok(());
        }
        let seed = if first { turn } else { turn - 1 };
        self.local.check(at, self.game.size, seed)
    }
}
