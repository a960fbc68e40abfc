//! What tests and benchmarks of several crates share.
//!
//! | module | what it does |
//! | --- | --- |
//! | [`captures`] | recorded traffic of real peers |
//! | [`Rng`] | numbers drawn from a seed |

#![forbid(unsafe_code)]

pub mod captures;
mod rng;

pub use rng::Rng;
