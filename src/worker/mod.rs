//! The workers of a node: each drives its own part of the engine, from a thread or inline.

pub(crate) mod clock;
pub(crate) mod core;
pub(crate) mod deadline;
pub(crate) mod event_queue;
pub(crate) mod handle;
mod management;
pub(crate) mod messages;
pub(crate) mod new_qps;
mod port_events;
mod priority_lock;
mod programs;
mod round;
pub(crate) mod sleep;
pub(crate) mod spin;
pub(crate) mod thread;
pub(crate) mod wakeup;
