//! A program in C that was written for this: it asks for what the distribution's programs do not.

use crate::library::library;
use crate::pair::{Addresses, Services};
use crate::served::Served;
use std::io::{BufRead, BufReader, Lines, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
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

/// Runs all laws that have no process for themselves, or the one of that name, with each kind of
/// node.
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
    errors: Option<PipeReader>,
}

impl Waiting {
    fn start(laws: &Laws, one: &str, socket: &str, reader: Reader) -> Self {
        let (errors, stderr) = reader.pipe();
        let mut command = laws.command();
        command.arg(one).env("TRUNKLINE_SOCKET", socket);
        command.stdout(Stdio::piped()).stderr(stderr);
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self {
            child,
            lines,
            errors,
        }
    }

    /// It waits for that.
    fn waits_for(&mut self, what: &str) {
        let line = self.lines.next().map(Result::unwrap);
        assert_eq!(line.as_deref(), Some(what));
    }

    /// All its laws held; gives what it said on standard error, where that is read.
    fn ends(mut self) -> String {
        let until = Instant::now() + PATIENCE;
        while self.child.try_wait().unwrap().is_none() && Instant::now() < until {
            sleep(Duration::from_millis(5));
        }
        // One that has ended is not killed any more.
        let _ = self.child.kill();
        let status = self.child.wait().unwrap();
        let mut said = String::new();
        if let Some(mut errors) = self.errors {
            errors.read_to_string(&mut said).unwrap();
        }
        assert!(status.success(), "{status}\n{said}");
        said
    }
}

/// Who reads what a program says on standard error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Reader {
    Reads,
    /// There is no room for more.
    Sleeps,
    /// It is gone.
    Gone,
}

impl Reader {
    /// What it reads from, and what the program writes to.
    fn pipe(self) -> (Option<PipeReader>, PipeWriter) {
        let (reader, mut writer) = std::io::pipe().unwrap();
        match self {
            Self::Reads => (Some(reader), writer),
            Self::Sleeps => {
                // SAFETY: it asks for a number, of a pipe that is open.
                let full = unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_GETPIPE_SZ) };
                writer.write_all(&vec![b'.'; full as usize]).unwrap();
                (Some(reader), writer)
            }
            Self::Gone => (None, writer),
        }
    }
}

/// Runs the law of the end of a service, whose threads wait when that comes: it ends in order, or
/// is killed.
pub(crate) fn run_to_the_end(reader: Reader) {
    let Some(laws) = Laws::build(&format!("end-{reader:?}")) else {
        return;
    };
    let services = Services::new();
    let socket = services.sockets[0].clone();
    run_to(&laws, &socket, reader, || drop(services));
    let (killed, socket) = Served::start();
    run_to(&laws, &socket, reader, || drop(killed));
}

fn run_to(laws: &Laws, socket: &str, reader: Reader, end: impl FnOnce()) {
    let mut program = Waiting::start(laws, "end", socket, reader);
    program.waits_for("waiting");
    end();
    let said = program.ends();
    let down = "libibverbs (Trunkline): trunk0 is down: the service that carried the node: ";
    let lines = usize::from(reader == Reader::Reads);
    assert_eq!(said.matches(down).count(), lines, "{reader:?}: {said}");
}

/// Runs the law of a link that goes down and comes up at a service with this socket.
pub(crate) fn run_with_the_link(socket: &str, mut set_link: impl FnMut(&str)) {
    let Some(laws) = Laws::build("link") else {
        return;
    };
    let mut program = Waiting::start(&laws, "link", socket, Reader::Reads);
    for word in ["down", "up"] {
        program.waits_for(word);
        set_link(word);
    }
    program.ends();
}
