//! Requests and responses over Trunkline, on a tokio runtime.
//!
//! An [`Endpoint`] on a node connects to servers and listens for clients. A [`Client`] is a handle
//! that any number of tasks call through; a [`Server`] hands requests to a [`tower`] service. Both
//! are tower services themselves, so that its middleware (limits, retries, tracing) works at either
//! end.
//!
//! All that wait for the same connection when its task has its turn go in one message. Credits see
//! to it that no message comes before there is a receive for it; what is longer than a message goes
//! by RDMA READ or WRITE. Each request has exactly one response, or an [`RpcError`] that says why
//! there is none. What the two ends say to each other is in docs/rpc-format.md, how to use them in
//! docs/rpc.md.
//!
//! ```
//! use std::convert::Infallible;
//! use trunkline_rpc::{Endpoint, Options, Request};
//! use trunkline_tokio::Node;
//!
//! # async fn program() -> Result<(), Box<dyn std::error::Error>> {
//! let node = |last| Node::new(trunkline::Node::builder().address([127, 9, 3, last].into()));
//! let (client, server) = (node(1)?, node(2)?);
//! let server = Endpoint::new(&server, Options::default())?;
//! let echo = |request: Request| async { Ok::<_, Infallible>(request.into_body()) };
//! let server = server.listen("127.9.3.2:7471".parse()?, tower::service_fn(echo))?;
//!
//! let endpoint = Endpoint::new(&client, Options::default())?;
//! let client = endpoint.connect("127.9.3.2:7471".parse()?).await?;
//! assert_eq!(client.call("hello").await?, "hello");
//! server.shutdown(std::time::Duration::from_secs(1)).await;
//! # Ok(())
//! # }
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
//! #     .block_on(program()).unwrap();
//! ```
//!
//! [`tower`]: https://docs.rs/tower

#![forbid(unsafe_code)]

mod calls;
mod channel;
mod client;
mod counters;
mod endpoint;
mod error;
mod exchange;
mod frame;
mod hello;
mod lane;
mod memory;
mod options;
mod outbox;
mod receives;
mod request;
mod responses;
mod served;
mod server;
mod service;
mod state;
mod transfers;

pub use client::{Call, CallInto, Client};
pub use counters::Counters;
pub use endpoint::Endpoint;
pub use error::{OpenError, Refusal, RpcError};
pub use options::Options;
pub use request::Request;
pub use server::Server;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A lock that outlives a panic of its holder: what is behind those of this crate is whole between
/// any two statements.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
