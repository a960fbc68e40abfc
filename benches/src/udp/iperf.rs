//! The yardstick of throughput: one TCP stream of iperf3.

use crate::link::{Link, Side, WEST, need};
use crate::process::Process;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::process::{Child, Stdio};
use std::time::Duration;

/// An iperf3 server at one end of a link.
#[derive(Debug)]
pub(super) struct Iperf<'a> {
    link: &'a Link,
    seconds: u64,
    _server: Process,
}

impl<'a> Iperf<'a> {
    /// Starts it; streams take `duration`, in whole seconds.
    pub(super) fn start(link: &'a Link, duration: Duration) -> Result<Self> {
        need("iperf3", "iperf3")?;
        let mut command = link.command(Side::West, "iperf3");
        command.args(["--server", "--forceflush"]);
        let mut server = Process::start(command)?;
        while !server
            .hear_line()
            .context("iperf3 does not listen")?
            .contains("listening")
        {}
        Ok(Self {
            link,
            seconds: duration.as_secs_f64().ceil() as u64,
            _server: server,
        })
    }

    /// One stream.
    pub(super) fn bytes_per_second(&self) -> Result<f64> {
        self.begin(None)?.bytes_per_second()
    }

    /// Begins a stream, with an algorithm of the kernel's or its default.
    pub(super) fn begin(&self, algorithm: Option<&str>) -> Result<Stream> {
        let mut command = self.link.command(Side::East, "iperf3");
        command.args(["--client", &WEST.to_string(), "--json"]);
        command.args(["--time", &self.seconds.to_string()]);
        if let Some(algorithm) = algorithm {
            command.args(["--congestion", algorithm]);
        }
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        Ok(Stream(child))
    }
}

/// A stream under way.
#[derive(Debug)]
pub(super) struct Stream(Child);

impl Stream {
    /// Waits for its end.
    pub(super) fn bytes_per_second(self) -> Result<f64> {
        let output = self.0.wait_with_output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "iperf3: {}\n{text}", output.status);
        received(&text).with_context(|| format!("iperf3 says nothing of what it received:\n{text}"))
    }
}

/// Bytes per second that arrived.
fn received(text: &str) -> Option<f64> {
    let report: Value = serde_json::from_str(text).ok()?;
    let bits = report
        .get("end")?
        .get("sum_received")?
        .get("bits_per_second")?
        .as_f64()?;
    (bits > 0.0).then_some(bits / 8.0)
}

#[cfg(test)]
mod tests {
    use super::received;

    #[test]
    fn what_arrived_counts_in_bytes() {
        let text = r#"{"end":{"sum_sent":{"bits_per_second":9},
            "sum_received":{"bits_per_second":8000}}}"#;
        assert_eq!(received(text), Some(1000.0));
        assert_eq!(received(r#"{"error":"no route"}"#), None);
    }
}
