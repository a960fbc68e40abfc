//! A program in C that was written for this: it asks for what the distribution's programs do not.

use crate::library::library;
use crate::pair::{Addresses, Services};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long a program may take until it has heard of the end.
const PATIENCE: Duration = Duration::from_secs(10);
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs");
const SOURCES: [&str; 6] = [
    "laws.c",
    "requests.c",
    "refusals.c",
    "events.c",
    "channels.c",
    "ends.c",
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

/// Runs all laws, with each kind of node.
pub(crate) fn run() {
    let Some(laws) = Laws::build("laws") else {
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
        let ran = laws.command().envs(variables).output().unwrap();
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(
            ran.status.success(),
            "{variables:?}: {}\n{said}",
            ran.status
        );
    }
}

/// Runs the law of the end of a service, whose threads wait when that comes.
pub(crate) fn run_to_the_end() {
    let Some(laws) = Laws::build("end") else {
        return;
    };
    let services = Services::new();
    let mut command = laws.command();
    command
        .arg("end")
        .env("TRUNKLINE_SOCKET", &services.sockets[0]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    let said = child.stdout.take().unwrap();
    BufReader::new(said).read_line(&mut line).unwrap();
    assert_eq!(line, "waiting\n");
    drop(services);
    let until = Instant::now() + PATIENCE;
    while child.try_wait().unwrap().is_none() && Instant::now() < until {
        sleep(Duration::from_millis(5));
    }
    // One that has ended is not killed any more.
    let _ = child.kill();
    let ended = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{}\n{said}", ended.status);
    let down = "libibverbs (Trunkline): trunk0 is down: the service that carried the node: ";
    assert_eq!(said.matches(down).count(), 1, "{said}");
}
