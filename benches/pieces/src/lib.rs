//! What drives engines alone, without nodes: for benchmarks, and for the program `hot-pieces`,
//! whose instructions `cargo xtask instructions` counts. It depends on little, so that it is soon
//! built.

pub mod pair;
pub mod turns;
