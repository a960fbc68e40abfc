//! Programs that are measured: those of perftest on a service, and `trunkline bench`, whose
//! processes have a node each.

use super::service::{Service, Trunkline, next_address};
use super::usage;
use crate::link::need;
use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};
use trunkline_testkit::programs::{Ended, Program};

/// How long a pair of programs may take.
const LIMIT: Duration = Duration::from_secs(120);
/// How often is looked at what they have taken: so much of it may be missing at the end.
const PAUSE: Duration = Duration::from_millis(2);
/// TCP ports of servers, of which this process begins at one of its own.
const PORT: u16 = 30_000;
const PORTS: u32 = 10_000;
static COUNT: AtomicU16 = AtomicU16::new(0);
/// Addresses of embedded nodes are beside those of services.
const EMBEDDED: u32 = 150;

/// How two programs ended, and what they took.
#[derive(Debug)]
pub(super) struct Run {
    /// What the client printed on standard output.
    pub(super) said: String,
    /// Time of a CPU of both, in ns.
    pub(super) cpu_ns: u64,
    /// How often their threads waited.
    pub(super) waits: u64,
    /// How often those did that programs of perftest have themselves: one each.
    pub(super) own_waits: u64,
}

/// What one program has taken when it was last looked at.
#[derive(Debug, Default)]
struct Taken {
    cpu_ns: u64,
    waits: u64,
    own_waits: u64,
}

impl Taken {
    /// Looks again. Threads, and programs, that end take along what they took: the most counts.
    fn look(&mut self, program: &Program) {
        self.cpu_ns = usage::cpu_ns(program.id()).unwrap_or(0).max(self.cpu_ns);
        self.waits = usage::waits(program.id()).unwrap_or(0).max(self.waits);
        let own = usage::waits_of_first_thread(program.id());
        self.own_waits = own.unwrap_or(0).max(self.own_waits);
    }
}

/// Runs a server, and once it listens at `port` a client. Both are killed if they take too long.
fn run(server: Command, client: Command, port: u16) -> Result<Run> {
    let until = Instant::now() + LIMIT;
    let mut server = Program::start(server).context("cannot start the server")?;
    if !server.listens(port, until) {
        server.kill();
        anyhow::bail!("the server does not listen: {}", server.wait(until));
    }
    let mut client = Program::start(client).context("cannot start the client")?;
    let mut taken = [Taken::default(), Taken::default()];
    while client.is_running() && Instant::now() < until {
        taken[0].look(&server);
        taken[1].look(&client);
        sleep(PAUSE);
    }
    let ended: Ended = client.wait(until);
    ensure!(ended.is_good(), "the client: {ended}");
    Ok(Run {
        said: ended.said,
        cpu_ns: taken.iter().map(|taken| taken.cpu_ns).sum(),
        waits: taken.iter().map(|taken| taken.waits).sum(),
        own_waits: taken.iter().map(|taken| taken.own_waits).sum(),
    })
}

fn next_port() -> u16 {
    let first = PORT + (std::process::id() % PORTS) as u16;
    first + COUNT.fetch_add(1, Ordering::Relaxed)
}

/// Runs a program of perftest, its server on the first service and its client on the last.
///
/// # Errors
/// It is not installed, or fails.
pub(super) fn perftest(
    trunkline: &Trunkline,
    services: &[Service],
    line: &str,
) -> Result<(Run, Figures)> {
    perftest_promoting(trunkline, services, "auto", line)
}

/// The same with memory that is shared with the services as `TRUNKLINE_PROMOTE` says.
///
/// # Errors
/// As [`perftest`].
pub(super) fn perftest_promoting(
    trunkline: &Trunkline,
    services: &[Service],
    promote: &str,
    line: &str,
) -> Result<(Run, Figures)> {
    let (name, options) = line.split_once(' ').context("a program and its options")?;
    need(name, "perftest")?;
    let [Some(first), Some(last)] = [services.first(), services.last()] else {
        anyhow::bail!("no service");
    };
    let port = next_port();
    let command = |service: &Service| {
        let mut command = trunkline.command();
        command.env("TRUNKLINE_PROMOTE", promote);
        command.args(["run", "--socket", service.socket(), name, "-d", "trunk0"]);
        command.args(["-x", "0", "-F", "-p", &port.to_string()]);
        command.args(options.split_whitespace());
        command
    };
    let mut client = command(last);
    client.arg("127.0.0.1");
    let run = run(command(first), client, port).with_context(|| line.to_owned())?;
    let figures = Figures::parse(&run.said)
        .with_context(|| format!("{name} says nothing of what it found:\n{}", run.said))?;
    Ok((run, figures))
}

/// The last row of perftest's table.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Figures(Vec<f64>);

impl Figures {
    fn parse(said: &str) -> Option<Self> {
        let rows = said
            .lines()
            .skip_while(|line| !line.trim().starts_with("#bytes"));
        let row = rows.skip(1).find(|line| !line.trim().is_empty())?;
        let numbers = row.split_whitespace().map(str::parse);
        let numbers: Vec<f64> = numbers.collect::<Result<_, _>>().ok()?;
        // Bytes, iterations, and three figures or more.
        (numbers.len() >= 5).then_some(Self(numbers))
    }

    /// Bytes that the messages had.
    pub(super) fn bytes(&self) -> f64 {
        self.0[0] * self.0[1]
    }

    /// Average of a test of bandwidth, in bytes per second: it prints MiB.
    pub(super) fn bytes_per_s(&self) -> f64 {
        self.0[3] * f64::from(1 << 20)
    }

    /// Median of a test of latency, in ns: it prints microseconds, after the least and the most.
    pub(super) fn median_ns(&self) -> f64 {
        self.0[4] * 1e3
    }
}

/// What `trunkline bench --json` prints, as far as it is of use here.
#[derive(Debug, Deserialize)]
pub(super) struct Embedded {
    pub(super) size: u64,
    pub(super) operations: u64,
    pub(super) duration_s: f64,
    #[serde(default)]
    pub(super) p50_us: f64,
}

/// Runs `trunkline bench`: two processes with a node each, at the default port.
///
/// # Errors
/// It fails.
pub(super) fn embedded(trunkline: &Trunkline, options: &str) -> Result<(Run, Embedded)> {
    let (mode, options) = options.split_once(' ').context("a mode and its options")?;
    let port = next_port();
    let at = 2 * u32::from(COUNT.load(Ordering::Relaxed)) % 40;
    let (here, there) = (next_address(EMBEDDED + at), next_address(EMBEDDED + at + 1));
    let bench = || {
        let mut command = trunkline.command();
        command.args(["bench", mode, "--tcp-port", &port.to_string()]);
        command
    };
    let mut server = bench();
    server.args(["--listen", &there.to_string()]);
    let mut client = bench();
    client.args(["--connect", &there.to_string(), "--bind", &here.to_string()]);
    client.args(options.split_whitespace()).arg("--json");
    let run = run(server, client, port).context("trunkline bench")?;
    // What comes on standard error is behind the report.
    let mut values = serde_json::Deserializer::from_str(&run.said).into_iter();
    let report = values.next().context("trunkline bench says nothing")?;
    let report = report.with_context(|| format!("trunkline bench says\n{}", run.said))?;
    Ok((run, report))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BANDWIDTH: &str = " local address: LID 0000\n---\n \
        #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]\n \
        65536      5000             2000.00            1024.00\t\t   0.016384\n---\n";
    const LATENCY: &str = "#bytes #iterations t_min[usec] t_max[usec] t_typical[usec] t_avg\n \
        64      1000          8.66           61.28        9.07     \t       9.39\n---\n";

    #[test]
    fn the_row_under_the_heading_is_read() {
        let figures = Figures::parse(BANDWIDTH).expect("it is a table");
        assert_eq!(figures.bytes(), 65536.0 * 5000.0);
        assert_eq!(figures.bytes_per_s(), 1024.0 * 1048576.0);
        let figures = Figures::parse(LATENCY).expect("it is a table");
        assert_eq!(figures.median_ns(), 9070.0);
    }

    #[test]
    fn what_is_no_table_gives_no_figures() {
        for said in [
            "",
            "#bytes",
            "Couldn't connect",
            "#bytes\nno numbers here at all",
        ] {
            assert_eq!(Figures::parse(said), None, "{said}");
        }
    }
}
