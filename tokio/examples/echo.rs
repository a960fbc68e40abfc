//! Requests of 64 bytes and their answers over a stream, as over any other byte stream: over TCP,
//! too, to compare.
//!
//! `echo listen 127.0.0.2`, then `echo ask 127.0.0.2 [REQUESTS [UNDER_WAY [OWN_ADDRESS]]]`; the
//! same with `tcp-listen` and `tcp-ask`.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy, split};
use tokio::net::{TcpListener, TcpStream};
use trunkline_tokio::Node;
use trunkline_tokio::stream::{Listener, Stream};

const REQUEST: usize = 64;

type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;

async fn answer(stream: impl AsyncRead + AsyncWrite) {
    let (mut requests, mut answers) = split(stream);
    let _ = copy(&mut requests, &mut answers).await; // until one of them is gone
    let _ = answers.shutdown().await;
}

async fn ask<S>(stream: S, requests: usize, under_way: usize) -> Outcome
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let (mut answers, mut questions) = split(stream);
    let (mut answer, begun) = ([0; REQUEST], Instant::now());
    let (mut asked, mut took) = (VecDeque::new(), Vec::new());
    for request in 0..requests + under_way {
        if request >= under_way {
            answers.read_exact(&mut answer).await?;
            took.extend(asked.pop_front().map(|asked: Instant| asked.elapsed()));
        }
        if request < requests {
            asked.push_back(Instant::now());
            questions.write_all(&[request as u8; REQUEST]).await?;
        }
    }
    let each = begun.elapsed() / requests.try_into()?;
    took.sort_unstable();
    let half = took.get(took.len() / 2);
    println!("{requests} answers, one in {each:?}, half of them within {half:?}");
    Ok(questions.shutdown().await?)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [what, address, rest @ ..] = &arguments[..] else {
        return Err("listen ADDRESS | ask ADDRESS [REQUESTS [UNDER_WAY [OWN_ADDRESS]]]".into());
    };
    let number = |at: usize, usual| rest.get(at).map_or(Ok(usual), |number| number.parse());
    let (requests, under_way) = (number(0, 10_000)?, number(1, 1)?);
    if requests == 0 || under_way == 0 {
        return Err("REQUESTS and UNDER_WAY are 1 at least".into());
    }
    let server = SocketAddr::new(address.parse::<IpAddr>()?, 7471);
    match what.as_str() {
        "listen" => {
            let node = Node::new(trunkline::Node::builder().address(server.ip()))?;
            let listener = Listener::bind(&node, server)?;
            println!("listening");
            loop {
                tokio::spawn(answer(listener.accept().await?));
            }
        }
        "ask" => {
            let own: IpAddr = rest.get(2).map_or("127.0.0.1", |own| own).parse()?;
            let node = Node::new(trunkline::Node::builder().address(own))?;
            let stream = Stream::connect(&node, server).await?;
            tokio::spawn(ask(stream, requests, under_way)).await??;
            Ok(node.shutdown(Duration::from_secs(1)).await?)
        }
        "tcp-listen" => {
            let listener = TcpListener::bind(server).await?;
            println!("listening");
            loop {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                tokio::spawn(answer(stream));
            }
        }
        "tcp-ask" => {
            let stream = TcpStream::connect(server).await?;
            stream.set_nodelay(true)?;
            tokio::spawn(ask(stream, requests, under_way)).await?
        }
        _ => Err("what? listen or ask".into()),
    }
}
