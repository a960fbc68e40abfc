//! `--yardstick`: the same measurement without the transport, to hold figures of Trunkline against.

mod client;
mod datagrams;
mod port;
mod server;
mod tcp;
mod watch;

pub(super) use client::run;
pub(super) use server::serve;
pub(super) use watch::Watch;

use super::params::{Mode, Params};
use anyhow::Result;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

/// What carries messages without the transport.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Yardstick {
    /// Datagrams as long as Trunkline's, by the port that --port names: with their ICRC, and with a
    /// window so that queues do not overflow; nothing is sent again.
    Port,
    /// One TCP connection of the kernel's. In bw and rate many messages are written at a time.
    Tcp,
}

impl Yardstick {
    /// The word on the command line.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Port => "port",
            Self::Tcp => "tcp",
        }
    }

    /// What is measured, for people.
    pub(super) fn title(self, params: &Params) -> String {
        let Params { mode, size, .. } = params;
        format!("{} of {size} bytes, yardstick {self}", mode.name())
    }
}

impl fmt::Display for Yardstick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How one end is reached.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct YardstickEnd {
    /// Where its port is, or where its socket listens.
    address: SocketAddr,
    /// Most bytes of a message in one datagram of its port; with TCP they do not count.
    payload: u64,
}

impl YardstickEnd {
    /// Where its port is, or where its socket listens.
    pub(super) const fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Carries messages from the client to the server.
trait Carrier {
    /// Client: one message there and one back. Gives how long both took.
    ///
    /// # Errors
    /// The server is gone or silent, or Ctrl-C.
    fn round_trip(&mut self, watch: &mut Watch<'_>) -> Result<Duration>;

    /// Client: sends what there is room for. Gives how many messages have arrived in all.
    ///
    /// # Errors
    /// As [`round_trip`](Self::round_trip).
    fn send(&mut self, watch: &mut Watch<'_>) -> Result<u64>;

    /// Client: waits until nothing is under way.
    ///
    /// # Errors
    /// As [`round_trip`](Self::round_trip).
    fn finish(&mut self, watch: &mut Watch<'_>) -> Result<()>;

    /// Server: takes what has come, and answers each message where `mode` measures round trips.
    ///
    /// # Errors
    /// The client is gone or silent, or Ctrl-C.
    fn serve(&mut self, mode: Mode, watch: &mut Watch<'_>) -> Result<()>;

    /// What was counted at this end.
    fn counters(&self) -> BTreeMap<String, u64>;
}
