//! WRITEs of 1 MiB, one after the other.

use super::PeerArgs;
use super::node::{End, Watch};
use super::pair::Pair;
use crate::link::{EAST, WEST};
use crate::process::Parent;
use anyhow::{Result, ensure};
use std::time::{Duration, Instant};
use trunkline::{SendFlags, SendOp, SendWr};

const SIZE: usize = 1 << 20;
/// WRITEs under way.
const DEPTH: usize = 4;
const WARM_UP: Duration = Duration::from_millis(200);

pub(super) fn bytes_per_second(pair: &Pair) -> Result<f64> {
    let found = pair.client()?;
    let intact: bool = pair.server()?;
    ensure!(
        intact,
        "the bytes that arrived are not those that were written"
    );
    Ok(found)
}

/// What the client writes.
fn pattern() -> Vec<u8> {
    (0..SIZE as u32)
        .map(|i| (i.wrapping_mul(0x9e37_79b9) >> 24) as u8)
        .collect()
}

pub(super) fn serve(parent: &Parent, arguments: &PeerArgs) -> Result<()> {
    let end = End::open(parent, WEST, SIZE, 0)?;
    while !parent.has_line() {
        for _ in 0..64 {
            end.node.poll()?;
        }
    }
    arguments.show(&end);
    let mut found = vec![0; SIZE];
    end.mr.read(0, &mut found)?;
    parent.say(&(found == pattern()))
}

pub(super) fn ask(parent: &Parent, arguments: &PeerArgs) -> Result<()> {
    let duration = arguments.duration();
    let end = End::open(parent, EAST, SIZE, 0)?;
    end.mr.write(0, &pattern())?;
    let sges = [end.mr.sge(0, SIZE)];
    let (op, flags) = (SendOp::Write(end.remote), SendFlags::SIGNALED);
    let request = SendWr {
        wr_id: 0,
        op,
        flags,
        sges: &sges,
        inline: None,
        route: 0,
    };
    let (mut under_way, mut bytes) = (0, 0);
    let (mut started, mut warm) = (Instant::now(), false);
    let mut watch = Watch::new();
    loop {
        if !warm && started.elapsed() >= WARM_UP {
            (started, bytes, warm) = (Instant::now(), 0, true);
        }
        if warm && started.elapsed() >= duration {
            break;
        }
        while under_way < DEPTH {
            end.qp.post_send(&[request])?;
            under_way += 1;
        }
        end.node.poll()?;
        let got = end.take_sent()?;
        if got > 0 {
            under_way -= got;
            bytes += got * SIZE;
            watch.moved();
        }
        watch.check()?;
    }
    let seconds = started.elapsed().as_secs_f64();
    while under_way > 0 {
        end.node.poll()?;
        under_way -= end.take_sent()?;
        watch.check()?;
    }
    arguments.show(&end);
    parent.say(&(bytes as f64 / seconds))?;
    end.settle(Duration::from_millis(5))?;
    parent.wait()
}
