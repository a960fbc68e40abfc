//! Trunkline on a tokio runtime: nodes that the runtime's own threads drive, and their
//! completions and events as futures and streams.
//!
//! There is no thread besides those of the runtime, but for one that answers `trunkline stat` and
//! sleeps otherwise ([`Builder`](trunkline::Builder) says how to do without). A task for each
//! worker of a node polls it while there is something to do, goes on looking for some microseconds
//! if waits were as short of late, and sleeps on a descriptor otherwise. Posting wakes that task,
//! and a completion wakes those that wait for it, as any task wakes another: neither makes a
//! system call. Packets do, and the runtime's look at other descriptors, which the task leaves it
//! time for every few rounds.
//!
//! A runtime with its I/O and time enabled will do, of one thread or of several. What counts for
//! latency runs in a task: the future that a runtime was entered with (`block_on`, `main`) is woken
//! by a system call, and waits for tasks.

#![forbid(unsafe_code)]

mod cq;
mod credits;
mod driver;
mod events;
mod mailbox;
mod node;
pub mod rdma_cm;
mod readable;
pub mod stream;
mod waiters;

pub use cq::{Completions, Cq};
pub use credits::{Credits, Overgrant};
pub use events::Events;
pub use node::Node;
