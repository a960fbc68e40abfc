//! `--measure`: each kind of port between two network namespaces, by `trunkline bench`.

use super::PortsArgs;
use super::link::{FAR, Link};
use super::table::{Figures, Measured, Row};
use crate::chain;
use crate::interrupt::{Interrupt, Interrupted};
use crate::output::{self, print_json};
use crate::progress::Progress;
use anyhow::{Context, Result, anyhow, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;
use std::io::{Read, Write};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;
use trunkline::PortKind;

/// This program.
const SELF: &str = "/proc/self/exe";
/// Pause between looks at a program that runs.
const PAUSE: Duration = Duration::from_millis(5);
/// The same, where it may say something.
const WAIT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 5_000_000,
};

/// Measures and prints.
///
/// # Errors
/// There can be no namespaces, or no kind of port works in them, or Ctrl-C.
pub(super) fn run(args: &PortsArgs, interrupt: &Interrupt) -> Result<()> {
    output::check()?;
    let bench = Bench {
        link: Link::new()?,
        seconds: args.seconds.as_secs_f64().to_string(),
        progress: Progress::new(!args.json),
        interrupt,
    };
    let measured = Measured::new(args.seconds, bench.rows(&args.port)?, bench.tcp()?);
    if args.json {
        print_json(&measured)?;
    } else {
        let mut out = output::out();
        write!(out, "{measured}")?;
        out.flush()?;
    }
    if !measured.any() {
        bail!("no kind of port works between network namespaces here");
    }
    Ok(())
}

/// What carries messages.
#[derive(Clone, Copy, Debug)]
enum Carrier {
    Trunkline,
    Port,
    Tcp,
}

impl Carrier {
    /// What a client is told.
    const fn words(self) -> &'static [&'static str] {
        match self {
            Self::Trunkline => &[],
            Self::Port => &["--yardstick", "port"],
            Self::Tcp => &["--yardstick", "tcp"],
        }
    }
}

/// Where measurements are made, and how long they are.
struct Bench<'a> {
    link: Link,
    seconds: String,
    progress: Progress,
    interrupt: &'a Interrupt,
}

impl Bench<'_> {
    /// Measures these kinds of ports, or if there are none those that need no more words.
    fn rows(&self, kinds: &[PortKind]) -> Result<Vec<Row>> {
        // What `auto` takes is one of the others.
        let usual = PortKind::BUILT_IN.into_iter();
        let usual: Vec<_> = usual.filter(|kind| *kind != PortKind::Auto).collect();
        let kinds = if kinds.is_empty() { &usual } else { kinds };
        let row = |kind: &PortKind| {
            let port = kind.to_string();
            match self.both(&port) {
                Ok((trunkline, bare)) => Ok(Row::of(port, trunkline, bare)),
                Err(error) if error.is::<Interrupted>() => Err(error),
                Err(error) => Ok(Row::failed(port, chain(&error))),
            }
        };
        kinds.iter().map(row).collect()
    }

    fn both(&self, port: &str) -> Result<(Figures, Figures)> {
        let _server = self.serve(port)?;
        let trunkline = self.figures(port, Carrier::Trunkline, port)?;
        let what = format!("{port}, without the transport");
        let bare = self.figures(port, Carrier::Port, &what)?;
        Ok((trunkline, bare))
    }

    fn tcp(&self) -> Result<Figures> {
        // The server of whatever kind of port does.
        let port = PortKind::default().to_string();
        let _server = self.serve(&port)?;
        self.figures(&port, Carrier::Tcp, "tcp")
    }

    /// A server at the far end.
    fn serve(&self, port: &str) -> Result<Running> {
        let mut command = Command::new(SELF);
        command.args(["bench", "lat", "--listen", FAR, "--port", port]);
        let mut server = Running(self.link.far.spawn(piped(command))?);
        server.listen(self.interrupt)?;
        Ok(server)
    }

    fn figures(&self, port: &str, carrier: Carrier, what: &str) -> Result<Figures> {
        let figure = |mode: &str, name: &str| -> Result<f64> {
            self.progress.step(&format!("{what}: {mode}"));
            let found = self.measure(port, carrier, mode)?;
            let figure = found[name].as_f64();
            figure.with_context(|| format!("bench {mode} does not say {name}"))
        };
        Ok(Figures {
            rate_ops_per_s: figure("rate", "ops_per_s")?,
            bw_gbit_per_s: figure("bw", "gbit_per_s")?,
            lat_p50_us: figure("lat", "p50_us")?,
        })
    }

    /// What a client at the near end measures.
    fn measure(&self, port: &str, carrier: Carrier, mode: &str) -> Result<Value> {
        let mut command = Command::new(SELF);
        command.args(["bench", mode, "--connect", FAR, "--port", port]);
        command.args(["--duration", &self.seconds, "--json"]);
        command.args(carrier.words());
        let client = Running(self.link.near.spawn(piped(command))?);
        let output = client.output(self.interrupt)?;
        if !output.status.success() {
            return Err(complaint(&output.stderr));
        }
        Ok(serde_json::from_slice(&output.stdout)?)
    }
}

fn piped(mut command: Command) -> Command {
    command.stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// What a program says that went wrong.
fn complaint(said: &[u8]) -> anyhow::Error {
    let said = String::from_utf8_lossy(said);
    let said = said.trim();
    anyhow!("{}", said.strip_prefix("trunkline: ").unwrap_or(said))
}

/// A program that ends with this, if not before.
struct Running(Child);

impl Running {
    /// Waits until it says that it listens.
    fn listen(&mut self, interrupt: &Interrupt) -> Result<()> {
        let mut said = Vec::new();
        let stderr = self.0.stderr.as_mut().context("nobody listens to it")?;
        loop {
            interrupt.check()?;
            let ready = poll(&mut [PollFd::new(stderr, PollFlags::IN)], Some(&WAIT));
            if !ready.is_ok_and(|count| count > 0) {
                continue;
            }
            let mut chunk = [0; 4096];
            let count = stderr.read(&mut chunk)?;
            said.extend_from_slice(&chunk[..count]);
            if said.starts_with(b"listening") && said.contains(&b'\n') {
                return Ok(());
            }
            if count == 0 {
                return Err(complaint(&said));
            }
        }
    }

    /// Waits for its end. Gives what it said: little, or it would wait for us.
    fn output(mut self, interrupt: &Interrupt) -> Result<Output> {
        let status = loop {
            let ended = self.0.try_wait()?;
            interrupt.check()?;
            match ended {
                Some(status) => break status,
                None => std::thread::sleep(PAUSE),
            }
        };
        let read = |pipe: Option<&mut dyn Read>| -> Result<Vec<u8>> {
            let mut said = Vec::new();
            if let Some(pipe) = pipe {
                pipe.read_to_end(&mut said)?;
            }
            Ok(said)
        };
        Ok(Output {
            status,
            stdout: read(self.0.stdout.as_mut().map(|pipe| pipe as _))?,
            stderr: read(self.0.stderr.as_mut().map(|pipe| pipe as _))?,
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
