//! Programs with the library: one, or two that talk to each other.

use crate::library::{is_there, library};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};
use trunkline::Node;
use trunkline::service::{Limits, Service};
use trunkline_testkit::programs::{self, PairEnded, Program};

/// What a pair may take before it counts as one that hangs.
const PATIENCE: Duration = Duration::from_secs(90);

/// Two addresses and a TCP port that nobody else on this machine has.
pub(crate) struct Addresses {
    pub(crate) server: String,
    pub(crate) client: String,
    port: u16,
}

impl Addresses {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (n, process) = (NEXT.fetch_add(1, Ordering::Relaxed), std::process::id());
        let net = format!("127.{}.{}", 64 + process % 128, n % 256);
        Self {
            server: format!("{net}.1"),
            client: format!("{net}.2"),
            port: (12_000 + (process % 50 * 200 + n) % 10_000) as u16,
        }
    }
}

/// Two services, on addresses of their own.
pub(crate) struct Services {
    pub(crate) services: [Service; 2],
    pub(crate) sockets: [String; 2],
}

impl Services {
    pub(crate) fn new() -> Self {
        let Addresses { server, client, .. } = Addresses::new();
        Self::at([server, client])
    }

    /// On these addresses.
    pub(crate) fn at(addresses: [String; 2]) -> Self {
        let sockets = addresses.each_ref().map(|at| format!("@verbs/{at}"));
        let start = |address: &String, socket: &String| {
            let node = Node::builder().address(address.parse().unwrap());
            Service::start(node.build().unwrap(), socket, &Limits::default()).unwrap()
        };
        Self {
            services: [
                start(&addresses[0], &sockets[0]),
                start(&addresses[1], &sockets[1]),
            ],
            sockets,
        }
    }

    /// Where a server and its client are.
    fn ends(&self) -> [(At<'_>, &str); 2] {
        self.sockets
            .each_ref()
            .map(|socket| (At::Socket(socket), "trunk0"))
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

/// What a program prints that ends by itself; `None`: it is not installed.
pub(crate) fn alone(line: &str, at: At<'_>) -> Option<String> {
    let [printed, _] = both(line, at)?;
    Some(printed)
}

/// The same, and what it says on standard error.
pub(crate) fn both(line: &str, at: At<'_>) -> Option<[String; 2]> {
    if !is_there(line.split_whitespace().next()?) {
        return None;
    }
    let output = command(line, at).output().unwrap();
    Some([output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()))
}

/// Server and client of one program.
pub(crate) struct Pair {
    pair: programs::Pair,
    /// Pairs run one after the other: they poll, and machines have few cores. One that is beside
    /// another has no turn of its own.
    _turn: Option<MutexGuard<'static, ()>>,
}

impl Pair {
    /// Starts the server and, when it listens, the client, each with a node of its own; `None`: the
    /// program is not installed.
    pub(crate) fn start(program: &str, options: &str) -> Option<Self> {
        let addresses = Addresses::new();
        let at = [&addresses.server, &addresses.client].map(|address| At::Address(address));
        Self::start_at(
            program,
            options,
            addresses.port,
            at.map(|at| (at, "trunk0")),
        )
    }

    /// The same where both see both nodes, and the client takes the second.
    pub(crate) fn start_beside(program: &str, options: &str) -> Option<Self> {
        let addresses = Addresses::new();
        let both = format!("{},{}", addresses.server, addresses.client);
        let at = ["trunk0", "trunk1"].map(|device| (At::Address(&both), device));
        Self::start_at(program, options, addresses.port, at)
    }

    /// The same for programs that two services carry.
    pub(crate) fn start_served(program: &str, options: &str, services: &Services) -> Option<Self> {
        let port = Addresses::new().port;
        Self::start_at(program, options, port, services.ends())
    }

    /// The same for programs that one service carries.
    pub(crate) fn start_at_one(program: &str, options: &str, socket: &str) -> Option<Self> {
        let port = Addresses::new().port;
        Self::start_at(program, options, port, [(At::Socket(socket), "trunk0"); 2])
    }

    /// Starts another pair at the services while this one runs.
    pub(crate) fn beside(&self, program: &str, options: &str, services: &Services) -> Option<Self> {
        let port = Addresses::new().port;
        Self::start_now(program, options, port, services.ends(), None)
    }

    fn start_at(
        program: &str,
        options: &str,
        port: u16,
        ends: [(At<'_>, &str); 2],
    ) -> Option<Self> {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        Self::start_now(program, options, port, ends, Some(turn))
    }

    fn start_now(
        program: &str,
        options: &str,
        port: u16,
        [server, client]: [(At<'_>, &str); 2],
        turn: Option<MutexGuard<'static, ()>>,
    ) -> Option<Self> {
        // What runs the program may stand before it.
        let needed = program
            .split_whitespace()
            .filter(|word| !word.starts_with('-'));
        if !needed.fold(true, |all, word| all & is_there(word)) {
            return None;
        }
        library();
        let line = |device| format!("{program} -d {device} -p {port} {options}");
        let mut server = Program::start(command(&line(server.1), server.0)).unwrap();
        server.listens(port, Instant::now() + PATIENCE);
        let client = command(&format!("{} 127.0.0.1", line(client.1)), client.0);
        let client = Program::start(client).unwrap();
        Some(Self {
            pair: programs::Pair { server, client },
            _turn: turn,
        })
    }

    /// Waits until both have ended; who does not in time is killed.
    pub(crate) fn wait(self) -> PairEnded {
        self.pair.wait(Instant::now() + PATIENCE)
    }

    /// Kills the server in the middle of its work, and waits for the client.
    pub(crate) fn kill_server(mut self) -> PairEnded {
        sleep(Duration::from_millis(500));
        self.pair.server.kill();
        self.wait()
    }
}
