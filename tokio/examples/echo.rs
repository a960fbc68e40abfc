//! Requests of 64 bytes and their answers over a stream, as with any other byte stream.
//!
//! `echo --listen 127.0.0.2`, then `echo --connect 127.0.0.2 [requests [under way]]`.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, split};
use trunkline_tokio::Node;
use trunkline_tokio::stream::{Listener, Stream};

const PORT: u16 = 7471;
const REQUEST: usize = 64;

type Outcome = Result<(), Box<dyn std::error::Error>>;

async fn serve(own: IpAddr) -> Outcome {
    let node = Node::new(trunkline::Node::builder().address(own))?;
    let listener = Listener::bind(&node, SocketAddr::new(own, PORT))?;
    println!("listening");
    loop {
        let (mut requests, mut answers) = listener.accept().await?.into_split();
        tokio::spawn(async move { copy(&mut requests, &mut answers).await });
    }
}

async fn ask(server: IpAddr, requests: usize, under_way: usize) -> Outcome {
    let node = Node::new(trunkline::Node::builder())?;
    let stream = Stream::connect(&node, SocketAddr::new(server, PORT)).await?;
    let (mut answers, mut questions) = split(stream);
    let (mut answer, begun) = ([0; REQUEST], Instant::now());
    for request in 0..requests + under_way {
        if request >= under_way {
            answers.read_exact(&mut answer).await?;
        }
        if request < requests {
            questions.write_all(&[request as u8; REQUEST]).await?;
        }
    }
    let each = begun.elapsed().as_secs_f64() / requests as f64;
    println!("{requests} answers, {:.2} us each", each * 1e6);
    questions.shutdown().await?;
    Ok(node.shutdown(Duration::from_secs(1)).await?)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, usual| arguments.get(at).map_or(Ok(usual), |number| number.parse());
    match (arguments.first().map(String::as_str), arguments.get(1)) {
        (Some("--listen"), Some(own)) => serve(own.parse()?).await,
        (Some("--connect"), Some(server)) => {
            ask(server.parse()?, number(2, 10_000)?, number(3, 1)?).await
        }
        _ => Err("echo --listen ADDRESS | --connect ADDRESS [REQUESTS [UNDER WAY]]".into()),
    }
}
