//! What was measured of ports, for people and as JSON.

use super::link::MTU;
use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// How fast messages are that something carries.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Figures {
    /// Messages of 64 bytes.
    pub(super) rate_ops_per_s: f64,
    /// Messages of 1 MiB.
    pub(super) bw_gbit_per_s: f64,
    /// Half of the round trip of 64 bytes: the median.
    pub(super) lat_p50_us: f64,
}

/// A kind of port.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    port: String,
    /// With the transport, and without.
    #[serde(flatten)]
    both: Option<Both>,
    /// Why it was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

#[derive(Debug, Serialize)]
struct Both {
    trunkline: Figures,
    yardstick: Figures,
}

impl Row {
    pub(super) const fn of(port: String, trunkline: Figures, yardstick: Figures) -> Self {
        Self {
            port,
            both: Some(Both {
                trunkline,
                yardstick,
            }),
            why: None,
        }
    }

    pub(super) const fn failed(port: String, why: String) -> Self {
        Self {
            port,
            both: None,
            why: Some(why),
        }
    }
}

/// All of them.
#[derive(Debug, Serialize)]
pub(super) struct Measured {
    /// Of the link.
    mtu: u32,
    /// Of each measurement.
    seconds: f64,
    ports: Vec<Row>,
    tcp: Figures,
}

impl Measured {
    pub(super) fn new(seconds: Duration, ports: Vec<Row>, tcp: Figures) -> Self {
        Self {
            mtu: MTU,
            seconds: seconds.as_secs_f64(),
            ports,
            tcp,
        }
    }

    /// Whether any kind of port could be measured.
    pub(super) fn any(&self) -> bool {
        self.ports.iter().any(|row| row.both.is_some())
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mtu, seconds, .. } = self;
        writeln!(
            f,
            "a veth pair between two network namespaces, MTU {mtu}, {seconds} s each"
        )?;
        let mut heads = |name: &str, [rate, bw, lat]: [&str; 3]| {
            writeln!(f, "  {name:<10} {rate:<22} {bw:<22} {lat}")
        };
        heads(
            "",
            ["SEND of 64 B", "WRITE of 1 MiB", "half round trip of 64 B"],
        )?;
        heads("", ["millions per second", "Gb/s", "us, median"])?;
        heads("--port", ["Trunkline  bare port"; 3])?;
        for row in &self.ports {
            match (&row.both, &row.why) {
                (Some(both), _) => line(f, &row.port, Some(&both.trunkline), &both.yardstick)?,
                (None, why) => {
                    let why = why.as_deref().unwrap_or_default();
                    writeln!(f, "  {:<10} not measured: {why}", row.port)?;
                }
            }
        }
        line(f, "TCP", None, &self.tcp)?;
        writeln!(
            f,
            "  TCP's messages are written 128 KiB at a time, but for the round trip"
        )
    }
}

/// The figures of a kind of port, side by side.
fn line(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    trunkline: Option<&Figures>,
    other: &Figures,
) -> fmt::Result {
    let columns: [fn(&Figures) -> f64; 3] = [
        |figures| figures.rate_ops_per_s / 1e6,
        |figures| figures.bw_gbit_per_s,
        |figures| figures.lat_p50_us,
    ];
    let mut line = format!("  {name:<10}");
    for figure in columns {
        let ours = trunkline.map_or_else(String::new, |all| format!("{:.2}", figure(all)));
        line += &format!(" {ours:>9}  {:>9.2}  ", figure(other));
    }
    writeln!(f, "{}", line.trim_end())
}
