//! Clusters of real Trunkline nodes on virtual time, from one seed.
//!
//! A run draws from its seed what the cluster is like, what its programs do and what goes wrong,
//! and holds every completion and every byte of registered memory to a plain model: exactly once,
//! in posting order, nothing reported before it is done, no QP harmed by what was done to another.
//! After a phase with faults everything is healed, and all that was posted has to end. Equal seeds
//! give equal runs, packet for packet.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`run`] | one seed, from options to report |
//! | [`world`] | nodes, programs, events, time |
//! | [`net`] | the network between the nodes |

mod area;
mod channel;
mod chaos;
mod connect;
mod endpoint;
mod groups;
mod judge;
mod plan;
mod poison;
mod post;
mod setup;
mod teardown;
mod words;

pub mod failure;
pub mod net;
pub mod options;
pub mod run;
pub mod trace;
pub mod world;
