//! Greetings by gRPC over Trunkline.
//!
//! `greeter listen 127.0.0.2:50051`, which an interrupt ends when all calls are answered; then
//! `greeter ask 127.0.0.2:50051 [NAME [OWN_ADDRESS]]`.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use tokio_stream::{Iter, iter};
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use trunkline_grpc_protos::greeter::greeter_client::GreeterClient;
use trunkline_grpc_protos::greeter::greeter_server::{Greeter, GreeterServer};
use trunkline_grpc_protos::greeter::{HelloReply, HelloRequest};
use trunkline_tokio::Node;
use trunkline_tokio::stream::Listener;

/// How long a node that ends waits for what is under way.
const PATIENCE: Duration = Duration::from_secs(5);

type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;

struct Greetings;

/// What is said to whoever asks from an address.
fn greeting(name: &str, from: Option<SocketAddr>) -> HelloReply {
    let from = from.map_or_else(|| "nowhere".to_owned(), |from| from.ip().to_string());
    HelloReply {
        message: format!("Hello {name} at {from}!"),
    }
}

#[tonic::async_trait]
impl Greeter for Greetings {
    async fn say_hello(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<HelloReply>, Status> {
        let from = request.remote_addr();
        match &*request.into_inner().name {
            "" => Err(Status::invalid_argument("nobody has no name")),
            name => Ok(Response::new(greeting(name, from))),
        }
    }

    type SayHellosStream = Iter<std::vec::IntoIter<Result<HelloReply, Status>>>;

    async fn say_hellos(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<Self::SayHellosStream>, Status> {
        let from = request.remote_addr();
        let HelloRequest { name, greetings } = request.into_inner();
        let each = (0..greetings.min(1000)).map(|_| Ok(greeting(&name, from)));
        Ok(Response::new(iter(each.collect::<Vec<_>>())))
    }
}

async fn listen(address: SocketAddr) -> Outcome {
    let node = Node::new(trunkline::Node::builder().address(address.ip()))?;
    let incoming = trunkline_grpc::incoming(Listener::bind(&node, address)?);
    let interrupted = async {
        let _ = tokio::signal::ctrl_c().await;
    };
    let greeter = Server::builder().add_service(GreeterServer::new(Greetings));
    println!("listening");
    greeter
        .serve_with_incoming_shutdown(incoming, interrupted)
        .await?;
    println!("all calls are answered");
    Ok(node.shutdown(PATIENCE).await?)
}

async fn ask(address: SocketAddr, name: String, own: IpAddr) -> Outcome {
    let node = Node::new(trunkline::Node::builder().address(own))?;
    let mut greeter = GreeterClient::new(trunkline_grpc::connect(&node, address).await?);
    let question = HelloRequest { name, greetings: 3 };

    let mut request = Request::new(question.clone());
    request.set_timeout(Duration::from_secs(1));
    let answer = greeter.say_hello(request).await?.into_inner();
    println!("{}", answer.message);

    let mut answers = greeter.say_hellos(question).await?.into_inner();
    while let Some(answer) = answers.message().await? {
        println!("{}", answer.message);
    }
    drop(greeter);
    Ok(node.shutdown(PATIENCE).await?)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [what, address, rest @ ..] = &arguments[..] else {
        return Err("listen ADDRESS:PORT | ask ADDRESS:PORT [NAME [OWN_ADDRESS]]".into());
    };
    let address = address.parse()?;
    match what.as_str() {
        "listen" => tokio::spawn(listen(address)).await?,
        "ask" => {
            let name = rest.first().map_or("you", |name| name).to_owned();
            let own = rest.get(1).map_or("127.0.0.1", |own| own).parse()?;
            tokio::spawn(ask(address, name, own)).await?
        }
        _ => Err("what? listen or ask".into()),
    }
}
