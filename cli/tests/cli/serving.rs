//! A server of `trunkline bench`, and its clients.

use crate::common::address;
use crate::{text, trunkline};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// More than anything here should take on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A server process.
pub(crate) struct Server {
    child: Child,
    stderr: BufReader<ChildStderr>,
    pub(crate) address: IpAddr,
    pub(crate) port: u16,
}

impl Server {
    pub(crate) fn start(words: &[&str]) -> Self {
        let address = address();
        let listen = address.to_string();
        let mut command = trunkline(&["bench", "lat", "--listen", &listen, "--tcp-port", "0"]);
        let mut child = command.args(words).stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        stderr.read_line(&mut line).unwrap();
        let port = line.trim().rsplit(' ').next().unwrap();
        let port = port.parse().unwrap_or_else(|_| panic!("{line}"));
        Self {
            child,
            stderr,
            address,
            port,
        }
    }

    /// A client of it.
    pub(crate) fn client(&self, words: &[&str]) -> Command {
        let (to, port, bind) = (self.address, self.port, address());
        let mut command = trunkline(&["bench"]);
        command.args(words);
        command.args([
            "--connect",
            &to.to_string(),
            "--tcp-port",
            &port.to_string(),
        ]);
        command.args(["--bind", &bind.to_string()]);
        command
    }

    /// What a client measured.
    #[track_caller]
    pub(crate) fn measure(&self, words: &[&str]) -> Value {
        let output = self.client(words).arg("--json").output().unwrap();
        assert!(
            output.status.success(),
            "{words:?}: {}",
            text(&output.stderr)
        );
        serde_json::from_slice(&output.stdout).unwrap()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Nobody hears any more what it says.
    pub(crate) fn leave(&mut self) {
        let nothing = OwnedFd::from(File::open("/dev/null").unwrap());
        self.stderr = BufReader::new(nothing.into());
    }

    /// The next line that it says.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.stderr.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    /// The rest of what it says, and its exit code.
    pub(crate) fn end(mut self) -> (String, Option<i32>) {
        let mut said = String::new();
        self.stderr.read_to_string(&mut said).unwrap();
        let code = wait(&mut self.child);
        (said, code)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn wait(child: &mut Child) -> Option<i32> {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        if began.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("it does not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The end of a process with its output piped.
pub(crate) fn finish(mut child: Child) -> Output {
    wait(&mut child);
    child.wait_with_output().unwrap()
}

pub(crate) fn piped(mut command: Command) -> Child {
    command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}
