//! Queue pairs above connections: what programs post and poll, memory keys, the table that says
//! which connection carries which QP, and the engine that moves messages between them.
//!
//! | module | what it does |
//! | --- | --- |
//! | [`cq`] | completion queues |
//! | [`doorbell`] | which QPs have new work |
//! | [`engine`] | one worker's QPs and connections |
//! | [`error`] | what programs may be told |
//! | [`key`] | QPNs and keys that tell nothing |
//! | [`mapping`] | QP -> connection, readable without locks |
//! | [`queue`] | send and receive queues |
//! | [`rcu`] | a table that is read without locks, and frees what nobody reads |
//! | [`regions`] | memory regions and protection domains |
//! | [`ring`] | rings of slots that two sides share |
//! | [`slab`] | values with indices |
//! | [`state`] | states and types of QPs |
//! | [`wqe`] | how work requests lie in rings |

// One module has a reason: `rcu`.
#![deny(unsafe_code)]

mod allowed;
mod chain;
mod chunks;
pub mod cq;
pub mod doorbell;
pub mod engine;
pub mod error;
mod hash;
pub mod key;
pub mod mapping;
mod order;
pub mod queue;
pub mod rcu;
pub mod regions;
pub mod ring;
pub mod slab;
pub mod state;
mod sync;
pub mod wqe;

pub use allowed::Allowed;
pub use engine::{
    Attributes, Burst, Cause, Changes, Config, ConnId, ConnectionParams, ConnectionStats, Count,
    Counters, CqId, Engine, Event, FIRST_MSN, Indexed, LAST_WQE, LiveCounters, LiveObjects,
    PeerIdentity, Place, Platform, QpInit, QpModify, QpQueues, SharedReceives, SrqAttributes,
    SrqId, StateBytes, Tenant, Trace, check_address,
};
pub use error::{PostError, RingError, VerbsError};
pub use state::{QpState, QpType};
