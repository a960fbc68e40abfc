//! gRPC over Trunkline: servers and clients of [`tonic`] on the byte streams of
//! [`trunkline_tokio`], with the code that the ordinary generators make, as it is.
//!
//! A server takes its connections from [`incoming`] instead of a TCP listener, and a client has its
//! [`Channel`] from [`connect`], or from an [`Endpoint`] with a [`Connector`]. All else is as over
//! TCP: deadlines, cancellation, streaming, interceptors and layers of `tower`. docs/grpc.md tells
//! how each is set up, and what errors mean.
//!
//! ```
//! use tonic::transport::Server;
//! use tonic::{Request, Response, Status};
//! use trunkline_grpc_protos::greeter::greeter_client::GreeterClient;
//! use trunkline_grpc_protos::greeter::greeter_server::{Greeter, GreeterServer};
//! use trunkline_grpc_protos::greeter::{HelloReply, HelloRequest};
//! use trunkline_tokio::Node;
//! use trunkline_tokio::stream::Listener;
//!
//! struct Greetings;
//!
//! #[tonic::async_trait]
//! impl Greeter for Greetings {
//!     async fn say_hello(&self, request: Request<HelloRequest>)
//!     -> Result<Response<HelloReply>, Status> {
//!         let message = format!("Hello {}!", request.into_inner().name);
//!         Ok(Response::new(HelloReply { message }))
//!     }
//! #   type SayHellosStream = tokio_stream::Empty<Result<HelloReply, Status>>;
//! #   async fn say_hellos(&self, _: Request<HelloRequest>)
//! #   -> Result<Response<Self::SayHellosStream>, Status> {
//! #       Err(Status::unimplemented("not shown"))
//! #   }
//! }
//!
//! # async fn program() -> Result<(), Box<dyn std::error::Error>> {
//! let address = "127.9.3.2:50051".parse()?;
//! let node = |last| Node::new(trunkline::Node::builder().address([127, 9, 3, last].into()));
//! let (client, server) = (node(1)?, node(2)?);
//! let incoming = trunkline_grpc::incoming(Listener::bind(&server, address)?);
//! let greeter = Server::builder().add_service(GreeterServer::new(Greetings));
//! tokio::spawn(greeter.serve_with_incoming(incoming));
//!
//! let channel = trunkline_grpc::connect(&client, address).await?;
//! let request = HelloRequest { name: "you".to_owned(), greetings: 1 };
//! let answer = GreeterClient::new(channel).say_hello(request).await?;
//! assert_eq!(answer.into_inner().message, "Hello you!");
//! # Ok(())
//! # }
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
//! #     .block_on(program()).unwrap();
//! ```

#![forbid(unsafe_code)]

mod connector;
mod incoming;

/// The program in the guide, which is compiled as a test of the documentation.
#[cfg(doctest)]
#[doc = include_str!("../../docs/grpc.md")]
mod guide {}

pub use connector::{ConnectError, Connector};
pub use incoming::{Accepted, Incoming, incoming};

use std::net::SocketAddr;
use tonic::transport::{Channel, Endpoint, Error};
use trunkline_tokio::Node;

/// Connects to the server at `address`. The channel connects again by itself, when it is used after
/// its connection was lost.
///
/// What else an [`Endpoint`] sets, and a channel that connects when it is first used, is to be had
/// with a [`Connector`].
///
/// # Errors
/// There is no stream to that address: the source of the error is a [`ConnectError`].
pub async fn connect(node: &Node, address: SocketAddr) -> Result<Channel, Error> {
    // As a URI has it: without the scope of an address.
    let named = SocketAddr::new(address.ip(), address.port());
    let endpoint = Endpoint::from_shared(format!("http://{named}"))?;
    let connector = Connector::to(node, address);
    endpoint.connect_with_connector(connector).await
}
