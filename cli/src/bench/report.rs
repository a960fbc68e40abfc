//! What was measured, for people and as JSON.

use super::histogram::{Latencies, NS_PER_US, Percentiles};
use super::params::Params;
use super::throughput::{Rates, Throughput};
use super::yardstick::Yardstick;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use trunkline::ConnectionStats;

/// What came out.
#[derive(Debug)]
pub(crate) enum Found {
    /// Of `lat`.
    Latencies(Latencies),
    /// Of `bw` and `rate`.
    Throughput(Throughput),
}

/// Everything about a measurement.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    mode: &'static str,
    /// What carried the messages, if not Trunkline's transport.
    #[serde(skip_serializing_if = "Option::is_none")]
    yardstick: Option<&'static str>,
    op: &'static str,
    size: u64,
    #[serde(flatten)]
    requests: Option<Requests>,
    duration_s: f64,
    operations: u64,
    #[serde(flatten)]
    percentiles: Option<Percentiles>,
    #[serde(flatten)]
    rates: Option<Rates>,
    /// Smallest round trip of two SENDs of 64 bytes, there and back, one at a time and both ends
    /// polling; `min_rtt_us` of `paths` is what the connections measured themselves.
    #[serde(skip_serializing_if = "Option::is_none")]
    ping_min_us: Option<f64>,
    /// The larger of that and the least of `paths`, divided by the smaller.
    #[serde(skip_serializing_if = "Option::is_none")]
    ping_factor: Option<f64>,
    /// Whether it ran to its end.
    complete: bool,
    /// Bytes compared at both ends.
    verified_bytes: u64,
    /// How the client's connections were doing at the end.
    paths: Vec<PathReport>,
    /// What the client's node counted.
    counters: BTreeMap<String, u64>,
    /// What the server's node counted.
    server_counters: BTreeMap<String, u64>,
}

/// How requests were spread: of Trunkline's transport alone.
#[derive(Debug, Serialize)]
struct Requests {
    qps: u32,
    connections: usize,
    depth: u32,
}

/// How a connection was doing when the last message was under way.
#[derive(Debug, Serialize)]
pub(crate) struct PathReport {
    rtt_us: f64,
    min_rtt_us: f64,
    window_bytes: u64,
    /// Where packets are paced.
    rate_gbit_per_s: Option<f64>,
}

impl From<&ConnectionStats> for PathReport {
    fn from(stats: &ConnectionStats) -> Self {
        let delivery = &stats.delivery;
        Self {
            rtt_us: delivery.rtt_ns as f64 / NS_PER_US,
            min_rtt_us: delivery.min_rtt_ns as f64 / NS_PER_US,
            window_bytes: delivery.window_bytes,
            rate_gbit_per_s: delivery.rate.map(|bytes| bytes as f64 * 8.0 / 1e9),
        }
    }
}

/// What is known of a measurement beside its result.
#[derive(Debug, Default)]
pub(crate) struct Surroundings {
    /// What carried the messages, if not Trunkline's transport.
    pub(crate) yardstick: Option<Yardstick>,
    /// Shared connections that were open.
    pub(crate) connections: usize,
    /// How they were doing.
    pub(crate) paths: Vec<PathReport>,
    /// Whether it ran to its end.
    pub(crate) complete: bool,
    /// Bytes compared at both ends.
    pub(crate) verified: u64,
    /// What the client's node counted.
    pub(crate) counters: BTreeMap<String, u64>,
    /// What the server's node counted.
    pub(crate) server_counters: BTreeMap<String, u64>,
}

impl Report {
    /// Puts it together.
    pub(crate) fn new(params: &Params, found: &Found, around: Surroundings) -> Self {
        let (operations, elapsed) = match found {
            Found::Latencies(latencies) => (latencies.count(), latencies.elapsed),
            Found::Throughput(throughput) => (throughput.operations, throughput.elapsed),
        };
        let rates = || Rates::of(params, operations, elapsed);
        let ping = match found {
            Found::Latencies(_) => None,
            Found::Throughput(throughput) => throughput.ping,
        };
        let ping = ping.map(|ping| ping.as_nanos() as f64 / NS_PER_US);
        Self {
            mode: params.mode.name(),
            yardstick: around.yardstick.map(Yardstick::name),
            op: params.op.name(),
            size: params.size,
            requests: around.yardstick.is_none().then_some(Requests {
                qps: params.qps,
                connections: around.connections,
                depth: params.depth,
            }),
            duration_s: elapsed.as_secs_f64(),
            operations,
            percentiles: match found {
                Found::Latencies(latencies) => Some(latencies.percentiles()),
                Found::Throughput(_) => None,
            },
            rates: matches!(found, Found::Throughput(_)).then(rates),
            ping_min_us: ping,
            ping_factor: ping.and_then(|ping| factor(ping, least_of(&around.paths)?)),
            complete: around.complete,
            verified_bytes: around.verified,
            paths: around.paths,
            counters: around.counters,
            server_counters: around.server_counters,
        }
    }
}

/// The smallest round trip that connections measured.
fn least_of(paths: &[PathReport]) -> Option<f64> {
    let measured = paths.iter().map(|path| path.min_rtt_us);
    let measured = measured.filter(|rtt| *rtt > 0.0);
    measured.min_by(f64::total_cmp)
}

/// How many times as much the larger of two round trips is.
fn factor(one: f64, other: f64) -> Option<f64> {
    let (less, more) = (one.min(other), one.max(other));
    (less > 0.0).then(|| more / less)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let early = if self.complete { "" } else { ", stopped early" };
        let what = self.yardstick.map_or_else(
            || format!("{} {}", self.mode, self.op),
            |yardstick| format!("{}, yardstick {yardstick},", self.mode),
        );
        writeln!(f, "{what} of {} bytes{early}", self.size)?;
        let mut row =
            |name: &str, value: f64, digits: usize| writeln!(f, "  {name:<28} {value:>16.digits$}");
        if let Some(requests) = &self.requests {
            row("QPs", requests.qps.into(), 0)?;
            row("shared connections", requests.connections as f64, 0)?;
            row("requests under way per QP", requests.depth.into(), 0)?;
        }
        row("seconds", self.duration_s, 2)?;
        row("operations", self.operations as f64, 0)?;
        if let Some(latency) = &self.percentiles {
            for (name, value) in [
                ("latency, us: least", latency.min_us),
                ("  50 %", latency.p50_us),
                ("  90 %", latency.p90_us),
                ("  99 %", latency.p99_us),
                ("  99.9 %", latency.p999_us),
                ("  most", latency.max_us),
                ("  mean", latency.mean_us),
            ] {
                row(name, value, 2)?;
            }
        }
        if let Some(rates) = &self.rates {
            row("bytes per second", rates.bytes_per_s, 0)?;
            row("Gb/s", rates.gbit_per_s, 3)?;
            row("operations per second", rates.ops_per_s, 0)?;
        }
        if let Some(ping) = self.ping_min_us {
            row("round trip, us: least of SEND and SEND back", ping, 2)?;
            if let Some(least) = least_of(&self.paths) {
                row("  least of the paths", least, 2)?;
            }
            if let Some(factor) = self.ping_factor {
                row("  factor between them", factor, 2)?;
            }
        }
        if self.verified_bytes > 0 {
            row("bytes verified", self.verified_bytes as f64, 0)?;
        }
        for (name, counter) in [
            ("packets sent again", "retransmitted"),
            ("datagrams lost", "lost_datagrams"),
            ("messages without an answer", "unanswered"),
        ] {
            if let Some(count) = self.counters.get(counter) {
                row(name, *count as f64, 0)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::params::{Controller, Mode, Op};
    use std::time::Duration;

    const PARAMS: Params = Params {
        mode: Mode::Bw,
        op: Op::Write,
        size: 1000,
        qps: 2,
        connections: 1,
        depth: 16,
        control: Controller::Delay,
        verify: false,
        workers: 1,
        timeout: Duration::from_secs(10),
    };

    #[test]
    fn rates_follow_from_operations_and_time() {
        let throughput = Throughput {
            operations: 500,
            elapsed: Duration::from_millis(500),
            ping: None,
        };
        let report = Report::new(
            &PARAMS,
            &Found::Throughput(throughput),
            Surroundings::default(),
        );
        let json = serde_json::to_value(&report).expect("it has string keys");
        assert_eq!(json["ops_per_s"], 1000.0);
        assert_eq!(json["bytes_per_s"], 1_000_000.0);
        assert_eq!(json["gbit_per_s"], 0.008);
        assert!(json.get("p50_us").is_none());
        let nothing = Report::new(
            &PARAMS,
            &Found::Throughput(Throughput::default()),
            Surroundings::default(),
        );
        assert_eq!(
            serde_json::to_value(&nothing).expect("as above")["ops_per_s"],
            0.0
        );
    }

    #[test]
    fn a_yardstick_is_named_and_has_no_qps() {
        let around = Surroundings {
            yardstick: Some(Yardstick::Port),
            counters: [("lost_datagrams".to_owned(), 7)].into(),
            ..Surroundings::default()
        };
        let found = Found::Throughput(Throughput::default());
        let report = Report::new(&PARAMS, &found, around);
        let text = report.to_string();
        assert!(
            text.starts_with("bw, yardstick port, of 1000 bytes"),
            "{text}"
        );
        assert!(text.ends_with(" 7\n") && !text.contains("QPs"), "{text}");
        let json = serde_json::to_value(&report).expect("it has string keys");
        assert_eq!(json["yardstick"], "port");
        assert!(json.get("qps").is_none() && json["ops_per_s"].is_f64());
    }

    #[test]
    fn the_smallest_round_trip_of_the_paths_is_compared_with_the_ping() {
        let throughput = Throughput {
            operations: 1,
            elapsed: Duration::from_secs(1),
            ping: Some(Duration::from_micros(6)),
        };
        let path = |min_rtt_us| PathReport {
            rtt_us: 50.0,
            min_rtt_us,
            window_bytes: 0,
            rate_gbit_per_s: None,
        };
        // One that has measured nothing does not count.
        let around = Surroundings {
            paths: vec![path(9.0), path(0.0), path(4.0)],
            ..Surroundings::default()
        };
        let report = Report::new(&PARAMS, &Found::Throughput(throughput), around);
        assert!(report.to_string().contains("factor between them"));
        let json = serde_json::to_value(&report).expect("it has string keys");
        assert_eq!(
            (&json["ping_min_us"], &json["ping_factor"]),
            (&6.0.into(), &1.5.into())
        );
        assert_eq!(factor(2.0, 6.0), Some(3.0));
        assert_eq!(factor(0.0, 6.0), None);
    }

    #[test]
    fn percentiles_are_in_microseconds_and_in_order() {
        let mut latencies = Latencies::default();
        for us in 1..=1000 {
            latencies.record(Duration::from_micros(us));
        }
        latencies.record(Duration::from_secs(3600));
        let percentiles = latencies.percentiles();
        assert_eq!(latencies.count(), 1001);
        assert!(
            (499.0..=502.0).contains(&percentiles.p50_us),
            "{percentiles:?}"
        );
        assert!(
            (989.0..=993.0).contains(&percentiles.p99_us),
            "{percentiles:?}"
        );
        assert!((0.9..=1.0).contains(&percentiles.min_us), "{percentiles:?}");
        assert!(percentiles.max_us >= 60e6, "{percentiles:?}");
        let report = Report::new(
            &Params {
                mode: Mode::Lat,
                ..PARAMS
            },
            &Found::Latencies(latencies),
            Surroundings::default(),
        );
        let json = serde_json::to_value(&report).expect("it has string keys");
        assert!(json.get("ops_per_s").is_none() && json["p999_us"].is_f64());
    }
}
