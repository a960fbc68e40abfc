//! Rates of gRPC over Trunkline and over TCP, each between two processes with a runtime of one
//! thread, in turns.
//!
//! `rates` compares: calls of 64 bytes, 100 of them under way, and streams of messages of 64 KiB.
//! `rates listen HOW ADDRESS` and `rates ask HOW ADDRESS WHAT` are one end each; HOW is `trunkline`
//! or `tcp`, WHAT is `calls` or `stream`.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tokio_stream::{Iter, Once};
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status, Streaming};
use trunkline_grpc_protos::echo::echo_client::EchoClient;
use trunkline_grpc_protos::echo::echo_server::{Echo, EchoServer};
use trunkline_grpc_protos::echo::{Message, Series, Total};
use trunkline_tokio::Node;
use trunkline_tokio::stream::Listener;

const ROUNDS: usize = 5;
/// How long each of them measures.
const SPAN: Duration = Duration::from_secs(2);
const UNDER_WAY: usize = 100;
const SMALL: usize = 64;
const LARGE: u32 = 64 << 10;
const HOW: [(&str, &str); 2] = [
    ("trunkline", "127.77.0.2:50051"),
    ("tcp", "127.77.0.2:50052"),
];

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;
type Answer = Result<Message, Status>;
type Answers = Box<dyn Iterator<Item = Answer> + Send>;

struct Rates;

fn message(bytes: usize) -> Message {
    let payload = vec![7; bytes].into();
    let pause_ms = 0;
    Message { payload, pause_ms }
}

#[tonic::async_trait]
impl Echo for Rates {
    async fn once(&self, request: Request<Message>) -> Result<Response<Message>, Status> {
        Ok(Response::new(request.into_inner()))
    }

    type ManyStream = Iter<Answers>;

    async fn many(&self, request: Request<Series>) -> Result<Response<Self::ManyStream>, Status> {
        let Series { messages, bytes } = request.into_inner();
        let each = message(bytes as usize);
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

async fn listen(how: String, address: SocketAddr) -> Outcome<()> {
    let server = Server::builder().add_service(EchoServer::new(Rates));
    println!("listening");
    if how == "tcp" {
        return Ok(server.serve(address).await?);
    }
    let node = Node::new(trunkline::Node::builder().address(address.ip()))?;
    let incoming = trunkline_grpc::incoming(Listener::bind(&node, address)?);
    Ok(server.serve_with_incoming(incoming).await?)
}

/// Calls in a second.
async fn calls(client: EchoClient<Channel>) -> Outcome<f64> {
    let message = message(SMALL);
    let begun = Instant::now();
    let callers = (0..UNDER_WAY).map(|_| {
        let (mut client, message) = (client.clone(), message.clone());
        tokio::spawn(async move {
            let mut answered = 0_u32;
            while begun.elapsed() < SPAN {
                client.once(message.clone()).await?;
                answered += 1;
            }
            Ok::<_, Status>(answered)
        })
    });
    let mut all = 0.0;
    for caller in callers.collect::<Vec<_>>() {
        all += f64::from(caller.await??);
    }
    Ok(all / begun.elapsed().as_secs_f64())
}

/// MiB in a second.
async fn stream(mut client: EchoClient<Channel>) -> Outcome<f64> {
    let (messages, bytes) = (u64::MAX, LARGE);
    let mut answers = client.many(Series { messages, bytes }).await?.into_inner();
    let (begun, mut all) = (Instant::now(), 0.0);
    while begun.elapsed() < SPAN {
        let answer = answers.message().await?.ok_or("it has ended")?;
        all += answer.payload.len() as f64;
    }
    Ok(all / f64::from(1 << 20) / begun.elapsed().as_secs_f64())
}

async fn ask(how: String, address: SocketAddr, what: String) -> Outcome<()> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?;
    let channel = if how == "tcp" {
        endpoint.connect().await?
    } else {
        let node = Node::new(trunkline::Node::builder().address([127, 77, 0, 1].into()))?;
        trunkline_grpc::connect(&node, address).await?
    };
    let client = EchoClient::new(channel);
    let rate = match what.as_str() {
        "calls" => calls(client).await?,
        _ => stream(client).await?,
    };
    println!("{rate}");
    Ok(())
}

/// A server, which is killed with this.
struct Listening(Child);

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn compare() -> Outcome<()> {
    let program = std::env::current_exe()?;
    let mut servers = Vec::new();
    for (how, address) in HOW {
        let mut server = Command::new(&program);
        let server = server.args(["listen", how, address]).stdout(Stdio::piped());
        let mut server = server.spawn()?;
        let said = server.stdout.take().ok_or("it says nothing")?;
        servers.push(Listening(server));
        BufReader::new(said).read_line(&mut String::new())?;
    }
    std::thread::sleep(Duration::from_millis(200));
    for (what, unit) in [("calls", "/s"), ("stream", " MiB/s")] {
        let mut rates = [(); 2].map(|()| Vec::new());
        for _ in 0..ROUNDS {
            for ((how, address), rates) in HOW.iter().zip(&mut rates) {
                let output = Command::new(&program)
                    .args(["ask", how, address, what])
                    .output()?;
                let said = String::from_utf8(output.stdout)?;
                let rate: f64 = said
                    .trim()
                    .parse()
                    .map_err(|_| format!("{how}: {:?}", output.stderr))?;
                rates.push(rate);
            }
        }
        let medians = rates.map(|mut rates| {
            rates.sort_by(f64::total_cmp);
            println!("{what}: {rates:.0?}");
            rates[ROUNDS / 2]
        });
        let [own, tcp] = medians;
        println!(
            "{what}: trunkline {own:.0}{unit}, tcp {tcp:.0}{unit}: {:.2}",
            own / tcp
        );
    }
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [] => compare(),
        [end, how, address, rest @ ..] => {
            let (how, address) = (how.clone(), address.parse()?);
            match (end.as_str(), rest) {
                ("listen", []) => tokio::spawn(listen(how, address)).await?,
                ("ask", [what]) => tokio::spawn(ask(how, address, what.clone())).await?,
                _ => Err("listen HOW ADDRESS | ask HOW ADDRESS WHAT".into()),
            }
        }
        _ => Err("nothing, or listen or ask with more".into()),
    }
}
