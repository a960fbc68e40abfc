//! Copies of memory by engines of DPDK (dmadev), as Intel's Data Streaming Accelerator is one: a
//! prototype, which no node uses. `docs/adr/0039-copy-engines.md` says why, with the figures of
//! `copy-engines`, the binary of this crate that measures it.
//!
//! A [`CopyEngine`] takes [`Job`]s and reports them in the order in which it took them, once their
//! bytes are in place. [`Cpu`] copies at once. [`Offload`] hands jobs to a [`Device`] ([`Dmadev`]:
//! any dmadev) and copies by the CPU whatever the device refuses or fails at, so that the bytes are
//! the same whichever engine has them.
//!
//! At run time it takes the drivers of DPDK (`librte-dma-skeleton`, `librte-dma-idxd` of Debian).
//!
//! The crate has no port and no part of a node; the environment of DPDK is that of all who are in a
//! process ([`set_up`]).

mod cpu;
mod dmadev;
mod engine;
mod offload;

pub use cpu::Cpu;
pub use dmadev::{Dmadev, DmadevError, set_up};
pub use engine::{CopyEngine, Full, Job, Ticket};
pub use offload::{Device, Offload, OffloadCounters, Outcome};
