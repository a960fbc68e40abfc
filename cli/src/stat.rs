//! `trunkline stat`: how a running node is, and the programs that it carries if it is a service's.

use super::interrupt::Interrupt;
use super::look::{Head, Interval, LookArgs, View, look, print_wrapped};
use super::watch::{Management, by_state};
use anyhow::Result;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{self, Write};
use trunkline::status::{ClientStatus, PeerStatus, ServiceStatus, Status};

/// Programs and peers that the table shows; JSON has all that the node tells.
const ROWS: usize = 16;

/// Runs the command.
///
/// # Errors
/// There is no such node, it does not answer, or it is gone.
pub(crate) fn run(args: &LookArgs, interrupt: &Interrupt) -> Result<()> {
    look::<Stat>(args, interrupt)
}

/// What is shown of one interval.
#[derive(Debug, Serialize)]
struct Stat {
    #[serde(flatten)]
    head: Head,
    per_second: Rates,
    /// Nothing where the node is not that of a service.
    service: Option<ServiceStatus>,
    peers: Vec<PeerStatus>,
    peer_count: u64,
    /// Since the node started, by reason.
    drops: BTreeMap<String, u64>,
    /// Those of the interval.
    new_drops: BTreeMap<String, u64>,
    /// All that the engine counts, since the node started.
    counters: BTreeMap<String, u64>,
    cm: Management,
}

/// Events per second.
#[derive(Debug, Serialize)]
struct Rates {
    packets_sent: f64,
    packets_received: f64,
    /// Requests of the node's own programs that ended.
    requests_completed: f64,
    /// Messages that peers sent here and that were executed.
    messages_executed: f64,
}

/// A counter of the engine.
fn counter(status: &Status, name: &str) -> u64 {
    status.counters.get(name).copied().unwrap_or(0)
}

impl View for Stat {
    fn of(interval: &Interval<'_>) -> Self {
        let rate = |name: &str| interval.rate(|status| counter(status, name));
        let now = interval.now;
        let new_drop = |reason: &String| {
            let count = |status: &Status| status.drops.get(reason).copied().unwrap_or(0);
            let grown = interval.grown(count);
            (grown > 0).then(|| (reason.clone(), grown))
        };
        Self {
            head: interval.head(),
            per_second: Rates {
                packets_sent: rate("sent"),
                packets_received: rate("received"),
                requests_completed: rate("completed"),
                messages_executed: rate("executed"),
            },
            service: now.service.clone(),
            peers: now.peers.clone(),
            peer_count: now.peer_count,
            new_drops: now.drops.keys().filter_map(new_drop).collect(),
            drops: now.drops.clone(),
            counters: now.counters.clone(),
            cm: Management::of(interval),
        }
    }

    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        self.head.print(out)?;
        let rates = &self.per_second;
        writeln!(
            out,
            "  packets   {:>12.1}/s sent       {:>12.1}/s received",
            rates.packets_sent, rates.packets_received
        )?;
        writeln!(
            out,
            "  requests  {:>12.1}/s completed  {:>12.1}/s executed for peers",
            rates.requests_completed, rates.messages_executed
        )?;
        if let Some(service) = &self.service {
            print_service(service, out)?;
        }
        self.print_peers(out)?;
        self.print_drops(out)?;
        writeln!(out, "connection management")?;
        self.cm.print(out)
    }
}

impl Stat {
    fn print_peers(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(
            out,
            "shared connections to {} peers, {} under way",
            self.peer_count,
            self.cm.in_flight()
        )?;
        if self.peers.is_empty() {
            return Ok(());
        }
        writeln!(out, "  {:<39} {:>8} {:>8}", "peer", "standing", "gone")?;
        for peer in self.peers.iter().take(ROWS) {
            let (address, standing) = (peer.address.to_string(), peer.connections);
            writeln!(out, "  {address:<39} {standing:>8} {:>8}", peer.gone)?;
        }
        print_rest(self.peer_count, out)
    }

    fn print_drops(&self, out: &mut impl Write) -> io::Result<()> {
        let all = format!("dropped or refused: {}", by_state(&self.drops));
        print_wrapped(&all, out)?;
        if self.new_drops.is_empty() {
            return Ok(());
        }
        print_wrapped(&format!("of these now: {}", by_state(&self.new_drops)), out)
    }
}

fn print_service(service: &ServiceStatus, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "service at {}", service.socket)?;
    writeln!(
        out,
        "{} programs with {} QPs; {} parted with for violations",
        service.client_count, service.qps, service.violations
    )?;
    if service.without_descriptor > 0 {
        let programs = service.without_descriptor;
        writeln!(
            out,
            "{programs} turned away without a descriptor: LimitNOFILE=, ulimit -n"
        )?;
    }
    if service.beyond_limits > 0 {
        let requests = service.beyond_limits;
        writeln!(
            out,
            "{requests} requests beyond limits: see the log of the service"
        )?;
    }
    if service.clients.is_empty() {
        return Ok(());
    }
    let names = ["QPs", "CQs", "SRQs", "MRs"].map(str::to_owned);
    let head = ["program", "pid", "uid", "segments", "promoted", "other"];
    row(head.map(str::to_owned), names, out)?;
    for client in service.clients.iter().take(ROWS) {
        print_client(client, out)?;
    }
    print_rest(service.client_count, out)
}

fn print_client(client: &ClientStatus, out: &mut impl Write) -> io::Result<()> {
    let name = client.name.chars().take(9).collect();
    let pid = client
        .pid
        .map_or_else(|| "-".to_owned(), |pid| pid.to_string());
    let bytes = [
        client.segment_bytes,
        client.promoted_bytes,
        client.foreign_bytes,
    ];
    let [segments, promoted, other] = bytes.map(size);
    let uid = client.uid.to_string();
    let who = [name, pid, uid, segments, promoted, other];
    let counts = [client.qps, client.cqs, client.srqs, client.mrs];
    row(who, counts.map(|count| count.to_string()), out)
}

/// One program: who it is and its bytes, and what it has.
fn row(
    [name, pid, uid, segments, promoted, other]: [String; 6],
    [qps, cqs, srqs, mrs]: [String; 4],
    out: &mut impl Write,
) -> io::Result<()> {
    writeln!(
        out,
        "  {name:<9} {pid:>7} {uid:>10} {qps:>5} {cqs:>4} {srqs:>4} {mrs:>5} \
         {segments:>8} {promoted:>8} {other:>6}"
    )
}

/// Says how many rows the table left out.
fn print_rest(count: u64, out: &mut impl Write) -> io::Result<()> {
    match count.saturating_sub(ROWS as u64) {
        0 => Ok(()),
        more => writeln!(out, "  and {more} more"),
    }
}

/// Bytes in at most six characters.
fn size(bytes: u64) -> String {
    let units = ["", "K", "M", "G", "T", "P", "E"];
    let power = bytes.checked_ilog2().unwrap_or(0) as usize / 10;
    let (unit, parts) = (units[power], bytes as f64 / (1_u64 << (10 * power)) as f64);
    match parts {
        _ if power == 0 => bytes.to_string(),
        ..100.0 => format!("{parts:.1}{unit}"),
        _ => format!("{parts:.0}{unit}"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;
    use crate::look::WIDTH;
    use serde_json::{Value, json};

    /// A node whose figures are as wide as they get.
    fn status(uptime_ns: u64, count: u64) -> Status {
        let client = json!({
            "name": "a program with a long name", "pid": 4_194_304, "uid": u32::MAX, "pds": 65_536,
            "cqs": 4096, "srqs": 4096, "qps": 65_536, "mrs": 65_536, "mws": 65_536,
            "segment_bytes": 1_u64 << 30, "promoted_bytes": (1_u64 << 40) - 1,
            "foreign_bytes": (1_u64 << 40) - 1,
        });
        let address = "fe80:1111:2222:3333:4444:5555:6666:7777";
        let peer = json!({ "address": address, "connections": 254, "gone": 99_999_999 });
        let mut cm = serde_json::to_value(trunkline::status::CmStats::default()).unwrap();
        cm["opened"] = Value::from(count);
        let phases = (0..10).map(|at| (format!("a_phase_{at}"), Value::from(count)));
        cm["handshakes"] = phases.collect();
        let counts = json!({ "sent": count, "received": count });
        let drops: serde_json::Map<String, Value> = (0..20)
            .map(|at| {
                (
                    format!("cm_nodes_address_mismatch_{at}"),
                    Value::from(count),
                )
            })
            .collect();
        serde_json::from_value(json!({
            "address": address, "pid": 4_194_304, "uptime_ns": uptime_ns, "cm": cm,
            "counters": counts, "drops": drops, "peers": vec![peer; 20], "peer_count": 300,
            "service": {
                "clients": vec![client; 20], "client_count": 20, "qps": 99, "violations": 3,
                "without_descriptor": u64::MAX, "beyond_limits": u64::MAX,
            },
        }))
        .unwrap()
    }

    fn table(interval: &Interval<'_>) -> String {
        let mut out = Vec::new();
        Stat::of(interval).print(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_table_fits_eighty_columns() {
        let (before, now) = (status(1, 1), status(1_000_000_001, 1_000_000_000));
        let shown = table(&Interval::new(Some(&before), &now));
        for line in shown.lines() {
            assert!(line.chars().count() <= WIDTH, "{line}");
        }
        assert!(shown.contains("  and 4 more") && shown.contains("  and 284 more"));
        assert!(shown.contains("of these now: 999999999 cm_nodes_address_mismatch_0"));
    }

    #[test]
    fn rates_are_of_the_interval_and_drops_of_all_time_too() {
        let (before, now) = (status(1_000_000_000, 10), status(3_000_000_000, 16));
        let stat = Stat::of(&Interval::new(Some(&before), &now));
        assert!((stat.per_second.packets_sent - 3.0).abs() < 1e-9);
        let reason = "cm_nodes_address_mismatch_0";
        assert_eq!((stat.drops[reason], stat.new_drops[reason]), (16, 6));
        let quiet = Stat::of(&Interval::new(Some(&now), &status(4_000_000_000, 16)));
        assert!(quiet.new_drops.is_empty());
    }

    #[test]
    fn a_node_without_a_service_says_nothing_of_programs() {
        let mut alone = status(1, 0);
        alone.service = None;
        assert!(!table(&Interval::new(None, &alone)).contains("programs"));
    }

    #[test]
    fn sizes_are_short() {
        let sizes = [0, 1023, 1024, 1536, (1 << 20) - 1, 1 << 40];
        let shown = sizes.map(size);
        assert_eq!(shown, ["0", "1023", "1.0K", "1.5K", "1024K", "1.0T"]);
    }
}
