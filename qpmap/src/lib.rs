//! Queue pairs above connections: what programs post and poll, memory keys, the table that says
//! which connection carries which QP, and the engine that moves messages between them.
//!
//! | module | what it does |
//! | --- | --- |
//! | [`doorbell`] | which QPs have new work |
//! | [`error`] | what programs may be told |
//! | [`key`] | QPNs and keys that tell nothing |
//! | [`mapping`] | QP -> connection, readable without locks |
//! | [`regions`] | memory regions and protection domains |
//! | [`slab`] | values with indices |
//! | [`state`] | states and types of QPs |
//! | [`timer`] | timers |

#![forbid(unsafe_code)]

mod chunks;
pub mod doorbell;
pub mod error;
pub mod key;
pub mod mapping;
pub mod regions;
pub mod slab;
pub mod state;
pub mod timer;

pub use error::{RingError, VerbsError};
