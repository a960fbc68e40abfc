//! Ports of DPDK against each other, in one process and between two.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod ends;
mod kernel;
mod memif;
mod refusals;
mod ring;
mod workers;
