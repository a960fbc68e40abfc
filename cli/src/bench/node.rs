//! A node for a measurement, and how long its QPs wait for the other one.

use super::params::Params;
use crate::{capture, taken};
use anyhow::Result;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;
use trunkline::{Attributes, Drive, Node, PortKind};

/// The unit of a QP's timeout, which doubles with each step.
const UNIT: Duration = Duration::from_nanos(4096);
/// Largest timeout of a QP.
const MOST: u8 = 31;

/// Starts a node, as a measurement needs it, at the address that an option names, on a port of
/// that kind; `capture` gets its management datagrams.
///
/// # Errors
/// The address cannot be bound, or the file not made.
pub(crate) fn start(
    (address, option): (IpAddr, &'static str),
    port: &PortKind,
    params: Option<&Params>,
    capture: Option<&Path>,
) -> Result<Node> {
    // Programs that measure turn one worker themselves: nothing else wakes up for them.
    let several = params.is_some_and(|params| params.workers > 1);
    let drive = if several {
        Drive::Threaded
    } else {
        Drive::Inline
    };
    let mut builder = Node::builder().port(port.clone());
    if let Some(params) = params {
        builder = builder
            .pool(params.connections)
            .control(params.control.into())
            .workers(params.workers)
            .peer_timeout(params.timeout);
    }
    let builder = capture::add(builder, capture)?.drive(drive);
    taken::build(builder, address, option)
}

/// One round of a node that no thread drives.
///
/// # Errors
/// The port does not work any more.
pub(crate) fn turn(node: &Node) -> Result<bool> {
    Ok(node.is_inline() && node.poll()?)
}

/// Attributes of QPs that wait for their peer for more than `timeout`, twice as long at least: it
/// is the measurement that gives up. When a connection dies of silence before that they wait for
/// the next one.
pub(crate) fn attributes(timeout: Duration) -> Attributes {
    let default = Attributes::default();
    let tries = u32::from(default.retry_count) + 1;
    let waits = |exponent: &u8| UNIT * tries * (1 << exponent) >= 2 * timeout;
    Attributes {
        timeout: (1..MOST).find(waits).unwrap_or(MOST),
        ..default
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qps_wait_for_longer_than_measurements_and_not_for_ever() {
        for (seconds, exponent) in [(0.000_001, 1), (1.0, 16), (10.0, 20), (30.0, 21), (6e5, 31)] {
            let timeout = Duration::from_secs_f64(seconds);
            assert_eq!(attributes(timeout).timeout, exponent, "{seconds}");
        }
    }
}
