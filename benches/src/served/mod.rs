//! Programs of services: `trunkline serve` and unmodified programs of perftest, or clients by
//! `Node::attach`, each a process, against nodes inside programs and against what is wanted.

mod calls;
mod client;
mod idle;
mod kills;
mod programs;
mod service;
mod streams;
mod usage;
mod verbs;
mod victims;

pub use client::{ClientArgs, part};
pub use idle::idle;
pub use kills::kills;
pub use streams::{fair, memory};
pub use verbs::{lat64, write64k};
