//! The yardstick: `ucx_perftest`, which sends tagged messages over TCP.

use super::end::SIZE;
use crate::link::{INTERFACE, Side, need};
use crate::place::Place;
use crate::process::Process;
use anyhow::{Context, Result, ensure};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Messages that it sends in a second on any machine that we know, about.
const PER_SECOND: f64 = 1.5e6;
/// TCP ports, of which it gets one by this process, beside those of others.
const PORT: u32 = 20_000;
const PORTS: u32 = 10_000;
/// Until a server is ready.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(20);

/// How it is run: on any CPU, where it was faster than with a CPU for each process.
pub(super) struct Ucx<'a> {
    place: &'a Place,
    messages: u64,
}

impl<'a> Ucx<'a> {
    /// Rounds will take about `duration`.
    ///
    /// # Errors
    /// It is not installed.
    pub(super) fn new(place: &'a Place, duration: Duration) -> Result<Self> {
        need("ucx_perftest", "ucx-utils")?;
        let messages = (duration.as_secs_f64() * PER_SECOND).ceil() as u64;
        Ok(Self { place, messages })
    }

    fn command(&self, side: Side) -> Command {
        let mut command = self.place.command(side, "ucx_perftest");
        let port = PORT + std::process::id() % PORTS;
        command.args(["-p", &port.to_string()]);
        command.env("UCX_TLS", "tcp");
        if let Place::Veth(_) = self.place {
            // Not the namespace's loopback interface.
            command.env("UCX_NET_DEVICES", INTERFACE);
        }
        command
    }

    /// Messages per second in one round.
    pub(super) fn rate(&self) -> Result<f64> {
        // It serves one client, and does not say when it is ready to.
        let server = self.command(Side::West);
        let _server = Process::start(server)?;
        let started = Instant::now();
        loop {
            let mut client = self.command(Side::East);
            client.args(["-t", "tag_bw", "-s", &SIZE.to_string()]);
            client.args(["-n", &self.messages.to_string(), "-f"]);
            client.arg(self.place.address(Side::West).to_string());
            let output = client.stdin(Stdio::null()).output();
            let output = output.context("cannot start ucx_perftest")?;
            let text = String::from_utf8_lossy(&output.stdout);
            if output.status.success() {
                return overall(&text)
                    .with_context(|| format!("ucx_perftest says nothing of its rate:\n{text}"));
            }
            ensure!(
                started.elapsed() < PATIENCE,
                "ucx_perftest: {}\n{text}{}",
                output.status,
                String::from_utf8_lossy(&output.stderr)
            );
            sleep(PAUSE);
        }
    }
}

/// The last column of the last line: messages per second, from the first to the last.
fn overall(text: &str) -> Option<f64> {
    let line = text.lines().rfind(|line| !line.trim().is_empty())?;
    line.split_whitespace().last()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_in_the_last_column_of_the_last_line() {
        let table = "| Test | # iterations | average | overall |\n+----+\n\
                     Final: 500000 0.345 1.201 1.201 50.84 50.84 832931 832930\n\n";
        assert_eq!(overall(table), Some(832_930.0));
        assert_eq!(overall("+----+\n"), None);
    }
}
