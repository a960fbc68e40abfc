//! What the lock-free modules are built on: primitives of the standard library, or those of loom
//! where it goes through all orders in which threads may meet (`--cfg loom`, `cargo xtask loom`).

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, fence};
#[cfg(loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::{Mutex, MutexGuard};
