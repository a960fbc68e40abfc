//! How a client comes to its streams.

use hyper_util::rt::TokioIo;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::net::lookup_host;
use tonic::transport::Uri;
use tower_service::Service;
use trunkline_tokio::Node;
use trunkline_tokio::stream::{OpenError, Stream};

/// Opens streams for an [`Endpoint`](tonic::transport::Endpoint): one for each connection that its
/// channel asks for, from a node of this program.
///
/// ```no_run
/// # async fn program(node: trunkline_tokio::Node) -> Result<(), tonic::transport::Error> {
/// use std::time::Duration;
/// use tonic::transport::Endpoint;
/// use trunkline_grpc::Connector;
///
/// let endpoint = Endpoint::from_static("http://storage.example:50051")
///     .connect_timeout(Duration::from_secs(2))
///     .http2_keep_alive_interval(Duration::from_secs(10));
/// let channel = endpoint.connect_with_connector(Connector::new(&node)).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Connector {
    node: Node,
    /// Where it connects to, whatever it is asked for.
    address: Option<SocketAddr>,
}

impl Connector {
    /// Connects from `node` to the host and port of each URI. A host that is a name is looked up as
    /// the operating system does; of its addresses, those of the node's family are tried in turn.
    pub fn new(node: &Node) -> Self {
        let node = node.clone();
        Self {
            node,
            address: None,
        }
    }

    /// Connects from `node` to this address, whatever the URI says. So the URI may be the name by
    /// which a service is known, and which TLS looks for in a certificate.
    pub fn to(node: &Node, address: SocketAddr) -> Self {
        Self {
            node: node.clone(),
            address: Some(address),
        }
    }

    async fn connect(self, uri: Uri) -> Result<TokioIo<Stream>, ConnectError> {
        let Self { node, address } = self;
        let addresses = match address {
            Some(address) => vec![address],
            None => addresses(&node, &uri).await?,
        };
        let mut failed = ConnectError::NoAddress;
        for address in addresses {
            match Stream::connect(&node, address).await {
                Ok(stream) => return Ok(TokioIo::new(stream)),
                Err(error) => failed = error.into(),
            }
        }
        Err(failed)
    }
}

/// The addresses of a URI that a node can reach by its family.
async fn addresses(node: &Node, uri: &Uri) -> Result<Vec<SocketAddr>, ConnectError> {
    let (host, port) = uri.host().zip(uri.port_u16()).ok_or(ConnectError::NoPort)?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let own = node.gid().address();
    let found = lookup_host((host, port)).await?;
    Ok(found
        .filter(|found| found.is_ipv4() == own.is_ipv4())
        .collect())
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<TokioIo<Stream>, ConnectError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        Box::pin(self.clone().connect(uri))
    }
}

/// Why there is no connection to a server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The URI names no host, or no port.
    #[error("the URI has no host or no port")]
    NoPort,
    /// The host cannot be looked up.
    #[error("the host is not known: {0}")]
    Host(#[from] io::Error),
    /// The host has no address of the node's family: IPv4 or IPv6.
    #[error("the host has no address of the node's family")]
    NoAddress,
    /// There is no stream to it, or to the last of its addresses.
    #[error(transparent)]
    Open(#[from] OpenError),
}
