//! Examples as processes of their own.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

/// An example of the crate that is tested, which cargo builds beside its tests.
pub fn example(name: &str) -> Command {
    let test = std::env::current_exe().unwrap();
    let profile = test.ancestors().nth(2).unwrap();
    let example: PathBuf = profile.join("examples").join(name);
    let package = env!("CARGO_PKG_NAME");
    let how = format!("cargo build -p {package} --example {name}");
    assert!(example.exists(), "not built: {how}");
    Command::new(example)
}

/// What an example says that is asked for something, and does it.
pub fn said(mut example: Command) -> String {
    let output = example.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A server in a process of its own, which is killed with this.
pub struct Server {
    pub process: Child,
    /// What it says after it listens.
    pub says: BufReader<ChildStdout>,
}

impl Server {
    /// Starts it, and waits until it listens.
    pub fn start(mut example: Command) -> Self {
        let mut process = example.stdout(Stdio::piped()).spawn().unwrap();
        let mut says = BufReader::new(process.stdout.take().unwrap());
        let mut said = String::new();
        says.read_line(&mut said).unwrap();
        assert_eq!(said, "listening\n");
        Self { process, says }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
