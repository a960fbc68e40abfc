//! What the two ends of a stream, and of a connection of RPC, say to each other. Their formats are
//! their crates' own, so the files are taken from there.

mod rpc;
mod stream;

pub use rpc::rpc;
pub use stream::stream;
