//! What tests and benchmarks of several crates share.
//!
//! | module | what it does |
//! | --- | --- |
//! | [`captures`] | recorded traffic of real peers |
//! | [`programs`] | programs that tests start, and how they end |
//! | [`Rng`] | numbers drawn from a seed |

#![forbid(unsafe_code)]

pub mod captures;
pub mod programs;
mod rng;

pub use rng::Rng;
