//! Requests of 64 bytes, each answered with the same bytes.
//!
//! `rpc_echo listen 127.0.0.2`, then `rpc_echo ask 127.0.0.2 [REQUESTS [UNDER_WAY [OWN_ADDRESS]]]`.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use trunkline_rpc::{Client, Endpoint, Options, Request};
use trunkline_tokio::Node;

type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;

async fn listen(server: SocketAddr) -> Outcome {
    let node = Node::new(trunkline::Node::builder().address(server.ip()))?;
    let echo = |request: Request| async { Ok::<_, Infallible>(request.into_body()) };
    let endpoint = Endpoint::new(&node, Options::default())?;
    let server = endpoint.listen(server, tower::service_fn(echo))?;
    println!("listening");
    tokio::signal::ctrl_c().await?;
    server.shutdown(Duration::from_secs(1)).await;
    Ok(())
}

async fn ask(client: Client, requests: usize) -> Outcome {
    for _ in 0..requests {
        client.call(&[7; 64][..]).await?;
    }
    Ok(())
}

async fn ask_all(own: IpAddr, server: SocketAddr, requests: usize, under_way: usize) -> Outcome {
    let node = Node::new(trunkline::Node::builder().address(own))?;
    let client = Endpoint::new(&node, Options::default())?
        .connect(server)
        .await?;
    let (mut callers, begun) = (JoinSet::new(), Instant::now());
    for _ in 0..under_way {
        callers.spawn(ask(client.clone(), requests / under_way));
    }
    while let Some(asked) = callers.join_next().await {
        asked??;
    }
    let (took, answers) = (begun.elapsed(), requests / under_way * under_way);
    let rate = answers as f64 / took.as_secs_f64();
    println!("{answers} answers in {took:?}: {rate:.0} a second");
    Ok(node.shutdown(Duration::from_secs(1)).await?)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [what, address, rest @ ..] = &arguments[..] else {
        return Err("listen ADDRESS | ask ADDRESS [REQUESTS [UNDER_WAY [OWN_ADDRESS]]]".into());
    };
    let number = |at: usize, usual| rest.get(at).map_or(Ok(usual), |number| number.parse());
    let (requests, under_way) = (number(0, 100_000)?, number(1, 100)?.max(1));
    let own = rest.get(2).map_or("127.0.0.1", |own| own).parse()?;
    let server = SocketAddr::new(address.parse()?, 7471);
    match what.as_str() {
        "listen" => listen(server).await,
        "ask" => tokio::spawn(ask_all(own, server, requests, under_way)).await?,
        _ => Err("what? listen or ask".into()),
    }
}
