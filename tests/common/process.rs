//! Processes of tests' own, so that a SIGKILL is one.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

/// Begins a line that is for the test.
const MARK: &str = ">> ";

/// A process that runs one of this program's tests, with whom the test that started it talks. It is
/// killed when this is dropped.
pub struct Process {
    pub child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Process {
    /// Runs the test of that name, an ignored one, with these variables in its environment.
    pub fn start(test: &str, variables: &[(&str, &str)]) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--ignored", "--nocapture"])
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self {
            input: child.stdin.take().unwrap(),
            output: BufReader::new(child.stdout.take().unwrap()),
            child,
        }
    }

    /// Tells it something.
    pub fn tell(&mut self, what: &impl Serialize) {
        let line = serde_json::to_string(what).unwrap();
        writeln!(self.input, "{line}").unwrap();
    }

    /// Hears what it says next.
    pub fn hear<T: DeserializeOwned>(&mut self) -> T {
        loop {
            let mut line = String::new();
            let read = self.output.read_line(&mut line).unwrap();
            assert!(read > 0, "the process ended");
            if let Some((_, said)) = line.split_once(MARK) {
                return serde_json::from_str(said).unwrap();
            }
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills it, and gives when.
    pub fn kill(&mut self) -> Instant {
        let at = Instant::now();
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        at
    }

    /// Waits for its end, which has to be a good one.
    pub fn finish(mut self) {
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Tells something to the test that started this process.
pub fn say(what: &impl Serialize) {
    println!("\n{MARK}{}", serde_json::to_string(what).unwrap());
}

/// Hears what that test tells.
pub fn hear<T: DeserializeOwned>() -> T {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap()
}
