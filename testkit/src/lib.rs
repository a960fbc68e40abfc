//! What tests and benchmarks of several crates share.
//!
//! | module | what it does |
//! | --- | --- |
//! | [`captures`] | recorded traffic of real peers |
//! | [`netns`] | network namespaces that a link joins |
//! | [`programs`] | programs that tests start, and how they end |
//! | [`Rng`] | numbers drawn from a seed |
//! | [`SilentFile`] | a file whose pages do not come |

#![deny(unsafe_code)]

pub mod captures;
pub mod netns;
pub mod programs;
mod rng;
mod silent_file;

pub use rng::Rng;
pub use silent_file::SilentFile;
