//! The driver of Intel's Data Streaming Accelerator (`dma_idxd`) without one: a thread plays the
//! device. What it copies has the bytes of plain copies.
//!
//! A process of its own, since DPDK looks for devices once, where the environment variables of
//! this one say.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
#![cfg(target_arch = "x86_64")]

mod player;
mod queues;
#[path = "../support/mod.rs"]
mod support;
mod trap;

use player::Player;
use support::{FAULTS, Faulty, law_bytes_are_those_of_plain_copies};
use trunkline_dma::{Dmadev, Offload};

#[test]
fn dma_idxd_leaves_the_bytes_of_plain_copies() {
    let device = Dmadev::open(queues::set_up(), queues::NAME).unwrap();
    let player = Player::start(0, 50_000);
    let mut faults = FAULTS;
    faults.error_ppm = 0;
    let mut engine = Offload::new(Faulty::new(device, faults, 1));
    for seed in 0..4 {
        law_bytes_are_those_of_plain_copies(seed, 400, &mut engine);
    }
    let counters = engine.counters();
    assert!(counters.copied > 800, "{counters:?}");
    // The player failed at them, since nothing else does here.
    assert!(counters.failed > 0, "{counters:?}");
    drop((engine, player));
}
