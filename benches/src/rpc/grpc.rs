//! Calls and streams of gRPC, over Trunkline and over TCP: the generated code is the same, and so
//! are the windows of HTTP/2, which are tonic's own.

use super::load::{Caller, Found, Round};
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};
use tokio_stream::{Iter, Once};
use tonic::transport::server::{Router, TcpIncoming};
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status, Streaming};
use trunkline_grpc_protos::echo::echo_client::EchoClient;
use trunkline_grpc_protos::echo::echo_server::{Echo, EchoServer};
use trunkline_grpc_protos::echo::{Message, Series, Total};
use trunkline_tokio::Node;
use trunkline_tokio::stream::Listener;

/// Where the server listens.
const PORT: u16 = 50051;
/// Bytes of a message of a stream.
const LARGE: u32 = 64 << 10;

pub(super) type Client = EchoClient<Channel>;
type Answer = Result<Message, Status>;
type Answers = Box<dyn Iterator<Item = Answer> + Send>;

fn message(payload: Bytes) -> Message {
    let pause_ms = 0;
    Message { payload, pause_ms }
}

#[derive(Clone, Copy, Debug)]
struct Service;

#[tonic::async_trait]
impl Echo for Service {
    async fn once(&self, request: Request<Message>) -> Result<Response<Message>, Status> {
        Ok(Response::new(request.into_inner()))
    }

    type ManyStream = Iter<Answers>;

    async fn many(&self, request: Request<Series>) -> Result<Response<Self::ManyStream>, Status> {
        let Series { messages, bytes } = request.into_inner();
        let each = message(vec![7; bytes as usize].into());
        let all: Answers = Box::new((0..messages).map(move |_| Ok(each.clone())));
        Ok(Response::new(tokio_stream::iter(all)))
    }

    async fn gather(&self, _: Request<Streaming<Message>>) -> Result<Response<Total>, Status> {
        Err(Status::unimplemented("not measured"))
    }

    type TalkStream = Once<Answer>;

    async fn talk(
        &self,
        _: Request<Streaming<Message>>,
    ) -> Result<Response<Self::TalkStream>, Status> {
        Err(Status::unimplemented("not measured"))
    }
}

fn router() -> Router {
    Server::builder().add_service(EchoServer::new(Service))
}

/// Answers over Trunkline, in tasks of this runtime. Gives where.
///
/// # Errors
/// The address cannot be bound.
pub(super) fn serve(address: IpAddr) -> Result<SocketAddr> {
    let node = Node::new(trunkline::Node::builder().address(address))?;
    let at = SocketAddr::new(address, PORT);
    let incoming = trunkline_grpc::incoming(Listener::bind(&node, at)?);
    tokio::spawn(router().serve_with_incoming(incoming));
    Ok(at)
}

/// The same over TCP.
///
/// # Errors
/// As [`serve`].
pub(super) fn serve_tcp(address: IpAddr) -> Result<SocketAddr> {
    let at = SocketAddr::new(address, PORT);
    let incoming = TcpIncoming::bind(at)?.with_nodelay(Some(true));
    tokio::spawn(router().serve_with_incoming(incoming));
    Ok(at)
}

/// A channel over Trunkline.
///
/// # Errors
/// There is no way to the server.
pub(super) async fn connect(address: IpAddr, to: SocketAddr) -> Result<Client> {
    let node = Node::new(trunkline::Node::builder().address(address))?;
    Ok(EchoClient::new(trunkline_grpc::connect(&node, to).await?))
}

/// A channel over TCP.
///
/// # Errors
/// As [`connect`].
pub(super) async fn connect_tcp(to: SocketAddr) -> Result<Client> {
    let endpoint = Endpoint::from_shared(format!("http://{to}"))?;
    let channel = endpoint.tcp_nodelay(true).connect().await?;
    Ok(EchoClient::new(channel))
}

impl Caller for Client {
    async fn call(&self, body: Bytes) -> Result<Bytes> {
        let answer = self.clone().once(message(body)).await?;
        Ok(answer.into_inner().payload)
    }
}

/// Takes messages of one stream for so long.
///
/// # Errors
/// The stream ends, or a message is not what was asked for.
pub(super) async fn stream(mut client: Client, duration: Duration) -> Result<Found> {
    let round = Round::begin()?;
    let until = round.begun + duration;
    let (messages, bytes) = (u64::MAX, LARGE);
    let answers = client.many(Series { messages, bytes }).await?;
    let (mut answers, mut count) = (answers.into_inner(), 0);
    loop {
        let answer = answers.message().await?.context("the stream has ended")?;
        let length = answer.payload.len();
        ensure!(length == LARGE as usize, "{length} bytes in a message");
        count += 1;
        if Instant::now() >= until {
            return round.end(duration, (count, count - 1), None);
        }
    }
}
