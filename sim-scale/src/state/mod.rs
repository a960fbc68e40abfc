//! State of a node in a cluster: what each transport keeps for `P` processes per node that talk to
//! the processes of `N - 1` other nodes.

pub mod cluster;
pub mod command;
pub mod formula;
