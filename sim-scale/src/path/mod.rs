//! Connections of the real code over one bottleneck in virtual time, with models of TCP beside
//! them: what congestion control does on paths that no desk has.
//!
//! The bottleneck sends IP packets one after another at its rate, behind a queue that drops what
//! does not fit; then each is half a round trip on its way. Acknowledgements come back after the
//! other half without a queue. Ends take no time and answer every packet at once.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`scenario`], `units` | what is typed on the command line |
//! | `world`, `bottleneck` | events, queue |
//! | `shared` | a flow of ours |
//! | `tcp` | a flow of TCP |
//! | `marks` | the law that each seed of the simulator holds congestion marks to |
//! | [`report`], [`plot`] | what comes out |
//! | [`suite`] | many runs, and the laws they are held to |
//! | [`command`] | the command line |

mod bottleneck;
pub mod command;
pub(crate) mod marks;
pub mod plot;
pub mod report;
pub mod scenario;
mod shared;
pub mod suite;
mod tcp;
pub mod units;
mod world;

#[cfg(test)]
mod tests;

pub use world::BIN;

/// Runs a scenario. Equal scenarios give equal outcomes.
pub fn run(scenario: &scenario::Scenario) -> report::Outcome {
    world::World::new(scenario).run()
}
