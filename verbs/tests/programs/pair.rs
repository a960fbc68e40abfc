//! Programs with the library: one, or two that talk to each other.

use std::fmt;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};
use trunkline::Node;
use trunkline::service::{Limits, Service};

/// What a pair may take before it counts as one that hangs.
const PATIENCE: Duration = Duration::from_secs(90);

/// The folder of the library, which is built once.
pub(crate) fn library() -> &'static PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut build = Command::new(cargo);
        build.args([
            "run",
            "--quiet",
            "--package",
            "xtask",
            "--",
            "verbs",
            "--profile",
            "dev",
        ]);
        let built = build.output().unwrap();
        assert!(
            built.status.success(),
            "{}",
            String::from_utf8_lossy(&built.stderr)
        );
        PathBuf::from(String::from_utf8(built.stdout).unwrap().trim_end())
    })
}

/// Two addresses and a TCP port that nobody else on this machine has.
pub(crate) struct Addresses {
    pub(crate) server: String,
    pub(crate) client: String,
    port: u32,
}

impl Addresses {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (n, process) = (NEXT.fetch_add(1, Ordering::Relaxed), std::process::id());
        let net = format!("127.{}.{}", 64 + process % 128, n % 256);
        Self {
            server: format!("{net}.1"),
            client: format!("{net}.2"),
            port: 12_000 + (process % 50 * 200 + n) % 10_000,
        }
    }
}

/// Two services, on addresses of their own.
pub(crate) struct Services {
    pub(crate) services: [Service; 2],
    sockets: [String; 2],
}

impl Services {
    pub(crate) fn new() -> Self {
        let addresses = Addresses::new();
        let sockets = [&addresses.server, &addresses.client].map(|at| format!("@verbs/{at}"));
        let start = |address: &String, socket: &String| {
            let node = Node::builder().address(address.parse().unwrap());
            Service::start(node.build().unwrap(), socket, &Limits::default()).unwrap()
        };
        Self {
            services: [
                start(&addresses.server, &sockets[0]),
                start(&addresses.client, &sockets[1]),
            ],
            sockets,
        }
    }
}

/// Where a program has its node.
#[derive(Clone, Copy)]
pub(crate) enum At<'a> {
    Nowhere,
    /// Inside the program, at this address.
    Address(&'a str),
    /// At a service with this socket.
    Socket(&'a str),
}

fn command(line: &str, at: At<'_>) -> Command {
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().unwrap());
    command.args(words).stdin(Stdio::null());
    command.env("LD_LIBRARY_PATH", library());
    command.env_remove("TRUNKLINE_ADDRESS");
    command.env_remove("TRUNKLINE_SOCKET");
    match at {
        At::Nowhere => {}
        At::Address(address) => {
            command.env("TRUNKLINE_ADDRESS", address);
        }
        At::Socket(socket) => {
            command.env("TRUNKLINE_SOCKET", socket);
        }
    }
    command
}

/// Whether there is the program; says so if not.
fn is_there(program: &str) -> bool {
    let found = Command::new("which").arg(program).output();
    let found = found.is_ok_and(|found| found.status.success());
    if !found {
        eprintln!("SKIPPED: {program} is not installed");
    }
    found
}

/// What a program prints that ends by itself; `None`: it is not installed.
pub(crate) fn alone(line: &str, at: At<'_>) -> Option<String> {
    if !is_there(line.split_whitespace().next()?) {
        return None;
    }
    let output = command(line, at).output().unwrap();
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Server and client of one program.
pub(crate) struct Pair {
    server: Child,
    client: Child,
    /// Pairs run one after the other: they poll, and machines have few cores.
    _turn: MutexGuard<'static, ()>,
}

/// How they ended, and what they said.
pub(crate) struct Ended {
    good: bool,
    pub(crate) server: String,
    pub(crate) client: String,
}

impl Ended {
    pub(crate) const fn is_good(&self) -> bool {
        self.good
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "server:\n{}\nclient:\n{}", self.server, self.client)
    }
}

impl Pair {
    /// Starts the server and, when it listens, the client, each with a node of its own; `None`: the
    /// program is not installed.
    pub(crate) fn start(program: &str, options: &str) -> Option<Self> {
        let addresses = Addresses::new();
        let at = [&addresses.server, &addresses.client].map(|address| At::Address(address));
        Self::start_at(program, options, addresses.port, at)
    }

    /// The same for programs that two services carry.
    pub(crate) fn start_served(program: &str, options: &str, services: &Services) -> Option<Self> {
        let port = Addresses::new().port;
        let at = [0, 1].map(|end| At::Socket(&services.sockets[end]));
        Self::start_at(program, options, port, at)
    }

    fn start_at(program: &str, options: &str, port: u32, at: [At<'_>; 2]) -> Option<Self> {
        static TURN: Mutex<()> = Mutex::new(());
        if !is_there(program) {
            return None;
        }
        library();
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let line = format!("{program} -d trunk0 -p {port} {options}");
        let start = |line: &str, at: At<'_>| {
            let mut command = command(line, at);
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            command.spawn().unwrap()
        };
        let mut server = start(&line, at[0]);
        wait_for_listener(&mut server, port);
        let client = start(&format!("{line} 127.0.0.1"), at[1]);
        Some(Self {
            server,
            client,
            _turn: turn,
        })
    }

    /// Waits until both have ended; who does not in time is killed.
    pub(crate) fn wait(mut self) -> Ended {
        let end = Instant::now() + PATIENCE;
        let client = ended(&mut self.client, end);
        // A server whose client is gone may wait for ever.
        let end = if client {
            end
        } else {
            Instant::now() + Duration::from_secs(5)
        };
        let server = ended(&mut self.server, end);
        Ended {
            good: server && client,
            server: said(&mut self.server),
            client: said(&mut self.client),
        }
    }

    /// Kills the server in the middle of its work, and waits for the client.
    pub(crate) fn kill_server(mut self) -> Ended {
        sleep(Duration::from_millis(500));
        self.server.kill().unwrap();
        self.wait()
    }
}

/// Waits until a process listens at a TCP port, or has ended.
fn wait_for_listener(server: &mut Child, port: u32) {
    let end = Instant::now() + PATIENCE;
    let place = format!(":{port:04X} ");
    let listens = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let is_ours = words
            .next()
            .is_some_and(|local| format!("{local} ").ends_with(&place));
        // State 0A is LISTEN.
        is_ours && words.nth(1) == Some("0A")
    };
    while server.try_wait().unwrap().is_none() && Instant::now() < end {
        let lists = ["/proc/net/tcp", "/proc/net/tcp6"];
        let lists = lists.map(|list| std::fs::read_to_string(list).unwrap_or_default());
        if lists.iter().any(|list| list.lines().any(listens)) {
            return;
        }
        sleep(Duration::from_millis(10));
    }
}

/// Waits for a process; whether it ended well.
fn ended(process: &mut Child, end: Instant) -> bool {
    while Instant::now() < end {
        if let Some(status) = process.try_wait().unwrap() {
            return status.success();
        }
        sleep(Duration::from_millis(5));
    }
    process.kill().unwrap();
    process.wait().unwrap();
    false
}

/// What a process said that has ended.
fn said(process: &mut Child) -> String {
    let mut text = String::new();
    let mut bytes = Vec::new();
    process
        .stdout
        .take()
        .unwrap()
        .read_to_end(&mut bytes)
        .unwrap();
    text += &String::from_utf8_lossy(&bytes);
    bytes.clear();
    process
        .stderr
        .take()
        .unwrap()
        .read_to_end(&mut bytes)
        .unwrap();
    text + &String::from_utf8_lossy(&bytes)
}
