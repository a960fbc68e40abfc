//! Datagrams with no engine around them: what the port and the kernel can do.

use super::pair::Pair;
use crate::link::{EAST, WEST};
use crate::process::Parent;
use anyhow::Result;
use std::time::{Duration, Instant};
use trunkline_conn::egress::Egress;
use trunkline_dataplane::{Port, UdpConfig, UdpPort};
use trunkline_wire::{IpFields, Path};

const SIZE: usize = 8192;
/// Datagrams per flush.
const BURST: usize = 32;

pub(super) fn bytes_per_second(pair: &Pair) -> Result<f64> {
    let seconds: f64 = pair.client()?;
    let bytes: u64 = pair.server()?;
    Ok(bytes as f64 / seconds)
}

pub(super) fn receive(parent: &Parent) -> Result<()> {
    let mut port = UdpPort::open(&UdpConfig::new(WEST))?;
    parent.exchange(&0u64)?;
    let (mut bytes, mut sum) = (0, 0u64);
    while !parent.has_line() {
        for _ in 0..64 {
            port.receive(256, &mut |_, datagram| {
                bytes += datagram.len() as u64;
                // Touches every line, as summing an ICRC would.
                sum += datagram
                    .iter()
                    .step_by(64)
                    .map(|byte| u64::from(*byte))
                    .sum::<u64>();
            })?;
        }
    }
    std::hint::black_box(sum);
    parent.say(&bytes)
}

pub(super) fn send(parent: &Parent, duration: Duration) -> Result<()> {
    let mut port = UdpPort::open(&UdpConfig::new(EAST))?;
    parent.exchange(&0u64)?;
    let path = Path {
        src: EAST,
        dst: WEST,
        src_port: port.local().port(),
        traffic_class: 0,
        ip: IpFields::DEFAULT,
    };
    let started = Instant::now();
    while started.elapsed() < duration {
        for _ in 0..BURST {
            let Some(slot) = port.reserve(&path, SIZE) else {
                break;
            };
            slot.datagram.fill(1);
            port.commit();
        }
        port.flush()?;
    }
    parent.say(&started.elapsed().as_secs_f64())?;
    parent.wait()
}
