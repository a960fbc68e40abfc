//! What the driver of Intel's Data Streaming Accelerator (`dma_idxd`) costs the CPU for a copy: all
//! but the instruction that submits a batch, which is a signal here. A thread plays the device.
//! There is such a driver for x86 alone.

#![allow(
    clippy::unwrap_used,
    reason = "a failed unwrap is a failed measurement"
)]

#[cfg(target_arch = "x86_64")]
mod cost;

fn main() {
    #[cfg(target_arch = "x86_64")]
    cost::print();
}
