//! How the benchmark and its processes talk: a line of JSON at a time over standard streams.

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{BufRead, BufReader, Write, stdin, stdout};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// A peer says nothing for longer only when something is wrong.
pub(crate) const SILENCE: Duration = Duration::from_secs(20);

/// A process at one end, seen from the benchmark.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Process {
    pub(crate) fn start(mut command: Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {:?}", command.get_program()))?;
        let said = BufReader::new(child.stdout.take().expect("a pipe"));
        Ok(Self { child, said })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Kills it, in whatever it is doing.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.child.kill().context("a process ended early")
    }

    /// Waits until it has ended, in whatever way.
    pub(crate) fn wait_for_end(&mut self) -> Result<()> {
        self.child.wait()?;
        Ok(())
    }

    /// Waits until it has ended by itself.
    pub(crate) fn wait(&mut self) -> Result<()> {
        let status = self.child.wait()?;
        ensure!(status.success(), "a process of the benchmark: {status}");
        Ok(())
    }

    /// The next line.
    pub(crate) fn hear_line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.said.read_line(&mut line)? == 0 {
            bail!(
                "a process of the benchmark ended early ({})",
                self.child.wait()?
            );
        }
        Ok(line)
    }

    /// What it says next.
    pub(crate) fn hear<T: DeserializeOwned>(&mut self) -> Result<T> {
        Ok(serde_json::from_str(&self.hear_line()?)?)
    }

    pub(crate) fn say_line(&mut self, line: &str) -> Result<()> {
        let to = self.child.stdin.as_mut().expect("a pipe");
        to.write_all(line.as_bytes())
            .and_then(|()| to.flush())
            .context("a process ended early")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // One that has ended already is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The benchmark, seen from a process. Ends the process when the benchmark is gone.
#[derive(Debug)]
pub(crate) struct Parent {
    lines: Receiver<String>,
}

impl Parent {
    pub(crate) fn new() -> Self {
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in stdin().lines() {
                if line.is_err() || line.is_ok_and(|line| sender.send(line).is_err()) {
                    break;
                }
            }
            std::process::exit(0);
        });
        Self { lines }
    }

    /// Says what the other end has to know, and hears the same of it.
    pub(crate) fn exchange<T: Serialize + DeserializeOwned>(&self, mine: &T) -> Result<T> {
        self.say(mine)?;
        let line = self
            .lines
            .recv_timeout(SILENCE)
            .context("the other end does not come")?;
        Ok(serde_json::from_str(&line)?)
    }

    pub(crate) fn say(&self, what: &impl Serialize) -> Result<()> {
        println!("{}", serde_json::to_string(what)?);
        Ok(stdout().flush()?)
    }

    /// Waits for the next line, however long that takes.
    pub(crate) fn hear_line(&self) -> Result<String> {
        self.lines.recv().context("the benchmark is gone")
    }

    /// Whether a line has come, which is taken.
    pub(crate) fn has_line(&self) -> bool {
        self.take_line().is_some()
    }

    /// Takes a line that has come.
    pub(crate) fn take_line(&self) -> Option<String> {
        self.lines.try_recv().ok()
    }

    /// Waits until all is over.
    pub(crate) fn wait(&self) -> Result<()> {
        self.lines
            .recv_timeout(SILENCE)
            .context("nobody says that all is over")?;
        Ok(())
    }
}
