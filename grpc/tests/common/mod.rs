//! A server that gives back what it is sent, on a node of its own, and channels to it.
#![allow(dead_code, reason = "each test file uses its part of it")]
#![allow(
    unreachable_pub,
    reason = "a module that several test programs include"
)]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[path = "../../../tokio/tests/common/mod.rs"]
pub mod nodes;

use nodes::{PATIENCE, in_time, node};
use std::error::Error as StdError;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_stream::{Stream, StreamExt as _};
use tonic::transport::{Error, Server as Tonic};
use tonic::{Request, Response, Status, Streaming};
use trunkline_grpc_protos::echo::echo_client::EchoClient;
use trunkline_grpc_protos::echo::echo_server::{Echo, EchoServer};
use trunkline_grpc_protos::echo::{Message, Series, Total};
use trunkline_tokio::Node;
use trunkline_tokio::stream::Listener;

/// The largest message that server and clients take, and some room for its head.
pub const LARGEST: usize = (16 << 20) + 64;

pub type Client = EchoClient<tonic::transport::Channel>;
type Answers = Pin<Box<dyn Stream<Item = Result<Message, Status>> + Send>>;

/// What a server counts.
#[derive(Debug, Default)]
pub struct Counts {
    /// Calls whose handler, or whose stream of answers, is there.
    pub under_way: AtomicU64,
    /// Messages that streams of answers gave.
    pub given: AtomicU64,
}

/// A call that is under way, until this is dropped.
struct Call(Arc<Counts>);

impl Call {
    fn begin(counts: &Arc<Counts>) -> Self {
        counts.under_way.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(counts))
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::SeqCst);
    }
}

pub struct EchoService(Arc<Counts>);

/// Answers that are there whenever they are asked for.
struct Ready {
    left: u64,
    each: Message,
    call: Call,
}

impl Stream for Ready {
    type Item = Result<Message, Status>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        self.left -= 1;
        self.call.0.given.fetch_add(1, Ordering::SeqCst);
        Poll::Ready(Some(Ok(self.each.clone())))
    }
}

#[tonic::async_trait]
impl Echo for EchoService {
    async fn once(&self, request: Request<Message>) -> Result<Response<Message>, Status> {
        let _call = Call::begin(&self.0);
        let from = request.remote_addr();
        let message = request.into_inner();
        tokio::time::sleep(Duration::from_millis(message.pause_ms.into())).await;
        let mut answer = Response::new(message);
        if let Some(from) = from {
            let from = from.to_string().parse().unwrap();
            answer.metadata_mut().insert("from", from);
        }
        Ok(answer)
    }

    type ManyStream = Answers;

    async fn many(&self, request: Request<Series>) -> Result<Response<Answers>, Status> {
        let Series { messages, bytes } = request.into_inner();
        Ok(Response::new(Box::pin(Ready {
            left: messages,
            each: message(bytes as usize),
            call: Call::begin(&self.0),
        })))
    }

    async fn gather(
        &self,
        request: Request<Streaming<Message>>,
    ) -> Result<Response<Total>, Status> {
        let _call = Call::begin(&self.0);
        let (mut all, mut total) = (request.into_inner(), Total::default());
        while let Some(message) = all.message().await? {
            total.messages += 1;
            total.bytes += message.payload.len() as u64;
        }
        Ok(Response::new(total))
    }

    type TalkStream = Answers;

    async fn talk(
        &self,
        request: Request<Streaming<Message>>,
    ) -> Result<Response<Answers>, Status> {
        let call = Call::begin(&self.0);
        let answers = request.into_inner().map(move |message| {
            let _under_way = &call;
            message
        });
        Ok(Response::new(Box::pin(answers)))
    }
}

/// A message of so many bytes, which tell where they belong.
pub fn message(bytes: usize) -> Message {
    let payload = (0..bytes).map(|at| (at % 251) as u8).collect();
    Message {
        payload,
        pause_ms: 0,
    }
}

/// One that the server gives back after a while.
pub fn slow(pause: Duration) -> Message {
    Message {
        pause_ms: pause.as_millis().try_into().unwrap(),
        ..Message::default()
    }
}

/// A server on a node and a task of its own.
pub struct Server {
    pub node: Node,
    pub address: SocketAddr,
    pub counts: Arc<Counts>,
    stop: oneshot::Sender<()>,
    serves: JoinHandle<Result<(), Error>>,
}

impl Server {
    pub fn start() -> Self {
        Self::on(node())
    }

    pub fn on(node: Node) -> Self {
        let address = (node.gid().address(), 50051).into();
        let incoming = trunkline_grpc::incoming(Listener::bind(&node, address).unwrap());
        let counts = Arc::<Counts>::default();
        let echo = EchoServer::new(EchoService(Arc::clone(&counts)));
        let echo = echo.max_decoding_message_size(LARGEST);
        let (stop, stopped) = oneshot::channel();
        let stopped = async {
            let _ = stopped.await;
        };
        let server = Tonic::builder().add_service(echo);
        let serves = tokio::spawn(server.serve_with_incoming_shutdown(incoming, stopped));
        Self {
            node,
            address,
            counts,
            stop,
            serves,
        }
    }

    /// Lets calls that are under way end, and takes no more.
    pub fn stop(self) -> JoinHandle<Result<(), Error>> {
        self.stop.send(()).unwrap();
        self.serves
    }

    /// Waits until it ends by itself.
    pub async fn ended(self) -> Result<(), Error> {
        in_time(self.serves).await.unwrap()
    }

    /// Waits until so many calls are under way.
    pub async fn has_under_way(&self, calls: u64) {
        let reached = async {
            while self.counts.under_way.load(Ordering::SeqCst) != calls {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        in_time(reached).await;
    }

    /// A client on a node of its own.
    pub async fn client(&self) -> (Client, Node) {
        let node = node();
        (client(&node, self.address).await, node)
    }
}

pub async fn client(node: &Node, server: SocketAddr) -> Client {
    let channel = in_time(trunkline_grpc::connect(node, server)).await;
    EchoClient::new(channel.unwrap()).max_decoding_message_size(LARGEST)
}

/// Ends a node, and all that it has under way.
pub async fn end(node: &Node) {
    let _ = node.shutdown(Duration::ZERO).await;
    assert!(node.health().down.is_some(), "within {PATIENCE:?}");
}

/// The first cause of an error that is of this type.
pub fn cause<'a, E: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a E> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        next = error.source();
    }
    None
}
