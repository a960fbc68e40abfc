//! A program in C that was written for this: it asks for what the distribution's programs do not.

use crate::library::library;
use crate::pair::{Addresses, Services};
use crate::served::Served;
use std::io::{BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long a program may take until it has heard of the end.
const PATIENCE: Duration = Duration::from_secs(10);
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs");
const SOURCES: [&str; 8] = [
    "laws.c",
    "requests.c",
    "refusals.c",
    "events.c",
    "channels.c",
    "ends.c",
    "timeouts.c",
    "threads.c",
];

/// The program, built in a folder of its own.
struct Laws(PathBuf);

impl Laws {
    /// `None`: something is missing for it, as it says.
    fn build(name: &str) -> Option<Self> {
        let has_header = Path::new("/usr/include/infiniband/verbs.h").exists();
        if !has_header || Command::new("cc").arg("--version").output().is_err() {
            eprintln!("SKIPPED: <infiniband/verbs.h> and a C compiler are needed");
            return None;
        }
        let folder = format!("trunkline-{name}-{}", std::process::id());
        let laws = Self(std::env::temp_dir().join(folder));
        std::fs::create_dir_all(&laws.0).unwrap();
        let mut build = Command::new("cc");
        build
            .args(["-Wall", "-Werror", "-pthread", "-o"])
            .arg(laws.program())
            .args(SOURCES)
            .current_dir(FOLDER);
        build.arg("-L").arg(library()).arg("-libverbs");
        let built = build.output().unwrap();
        assert!(
            built.status.success(),
            "{}",
            String::from_utf8_lossy(&built.stderr)
        );
        Some(laws)
    }

    fn program(&self) -> PathBuf {
        self.0.join("laws")
    }

    fn command(&self) -> Command {
        let mut command = Command::new(self.program());
        command.env("LD_LIBRARY_PATH", library());
        command
    }
}

impl Drop for Laws {
    fn drop(&mut self) {
        // What is left of it in a folder for such things harms nobody.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs all laws that have no process for themselves, or the one of that name, with each kind of node.
pub(crate) fn run(one: Option<&str>) {
    let Some(laws) = Laws::build(one.unwrap_or("laws")) else {
        return;
    };
    let services = Services::new();
    let address = Addresses::new().server;
    let socket = &services.sockets[0];
    for variables in [
        [
            ("TRUNKLINE_ADDRESS", address.as_str()),
            ("TRUNKLINE_PROMOTE", "auto"),
        ],
        [("TRUNKLINE_SOCKET", socket), ("TRUNKLINE_PROMOTE", "never")],
        [
            ("TRUNKLINE_SOCKET", socket),
            ("TRUNKLINE_PROMOTE", "always"),
        ],
    ] {
        holds(laws.command().args(one).envs(variables));
    }
}

/// The same with a service of one's own, that has this socket.
pub(crate) fn run_at(socket: &str) {
    if let Some(laws) = Laws::build("served") {
        holds(laws.command().env("TRUNKLINE_SOCKET", socket));
    }
}

/// Runs a program, whose laws are to hold.
fn holds(program: &mut Command) {
    let ran = program.output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{program:?}: {}\n{said}", ran.status);
}

/// A program that a service carries and that says, line by line, what it waits for.
struct Waiting {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Waiting {
    fn start(laws: &Laws, one: &str, socket: &str) -> Self {
        let mut command = laws.command();
        command.arg(one).env("TRUNKLINE_SOCKET", socket);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// It waits for that.
    fn waits_for(&mut self, what: &str) {
        let line = self.lines.next().map(Result::unwrap);
        assert_eq!(line.as_deref(), Some(what));
    }

    /// All its laws held; gives what it said on standard error.
    fn ends(mut self) -> String {
        let until = Instant::now() + PATIENCE;
        while self.child.try_wait().unwrap().is_none() && Instant::now() < until {
            sleep(Duration::from_millis(5));
        }
        // One that has ended is not killed any more.
        let _ = self.child.kill();
        let ended = self.child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "{}\n{said}", ended.status);
        said.into_owned()
    }
}

/// Runs the law of the end of a service, whose threads wait when that comes.
pub(crate) fn run_to_the_end() {
    let Some(laws) = Laws::build("end") else {
        return;
    };
    let services = Services::new();
    let socket = services.sockets[0].clone();
    run_to(&laws, &socket, || drop(services));
    let (killed, socket) = Served::start();
    run_to(&laws, &socket, || drop(killed));
}

fn run_to(laws: &Laws, socket: &str, end: impl FnOnce()) {
    let mut program = Waiting::start(laws, "end", socket);
    program.waits_for("waiting");
    end();
    let said = program.ends();
    let down = "libibverbs (Trunkline): trunk0 is down: the service that carried the node: ";
    assert_eq!(said.matches(down).count(), 1, "{said}");
}

/// Runs the law of a link that goes down and comes up at a service with this socket.
pub(crate) fn run_with_the_link(socket: &str, mut set_link: impl FnMut(&str)) {
    let Some(laws) = Laws::build("link") else {
        return;
    };
    let mut program = Waiting::start(&laws, "link", socket);
    for word in ["down", "up"] {
        program.waits_for(word);
        set_link(word);
    }
    program.ends();
}
