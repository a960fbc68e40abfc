//! A store of keys and values: a GET is an RDMA READ, which the server's program does not see, a
//! PUT a request to it.
//!
//! `kv serve 127.0.0.2`, then `kv put 127.0.0.2 KEY VALUE`, `kv get 127.0.0.2 KEY`, or
//! `kv check 127.0.0.2`: PUTs and GETs at a time, none of which may see half of a value. A fifth
//! argument is the own address, where 127.0.0.1 is taken.

mod table;

use std::sync::{Arc, Mutex};
use table::{BUCKET, answer, bucket, parse};
use trunkline::{Mr, Remote, Rkey};
use trunkline_rpc::{Client, Endpoint, Options, Request};
use trunkline_tokio::Node;

const USAGE: &str = "serve|put|get|check ADDRESS [KEY [VALUE [OWN_ADDRESS]]]";

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

async fn put(store: &Client, key: &[u8], value: &[u8]) -> Outcome {
    let request = [&[key.len().try_into()?], key, value].concat();
    store.call(request).await?;
    Ok(())
}

async fn get(store: &Client, table: Remote, mr: &Arc<Mr>, key: &[u8]) -> Outcome<Option<Vec<u8>>> {
    let addr = table.addr + bucket(key) as u64;
    let mut read = [0; BUCKET];
    loop {
        store.read(Remote { addr, ..table }, mr, 0, BUCKET).await?;
        mr.read(0, &mut read)?;
        let slots: Option<Vec<_>> = read.chunks(table::SLOT).map(parse).collect();
        if let Some(slots) = slots {
            let found = slots.into_iter().find(|(other, _)| *other == key);
            return Ok(found.map(|(_, value)| value.to_vec()));
        }
    }
}

/// A value is one byte, many times: whoever sees two of them has seen half of one.
async fn check(store: &Client, table: Remote, mr: &Arc<Mr>) -> Outcome {
    put(store, b"key", &[0; 200]).await?;
    let writer = store.clone();
    let puts = tokio::spawn(async move {
        for byte in 0..10_000_u32 {
            put(&writer, b"key", &[byte as u8; 200]).await?;
        }
        Outcome::Ok(())
    });
    let mut gets = 0;
    while !puts.is_finished() {
        let value = get(store, table, mr, b"key").await?.ok_or("it was there")?;
        let whole = value.len() == 200 && value.iter().all(|byte| *byte == value[0]);
        gets += u32::from(whole);
        whole.then_some(()).ok_or("half of a value")?;
    }
    puts.await??;
    println!("{gets} values while 10000 were put, each of them whole");
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |at: usize| arguments.get(at).map(String::as_str);
    let (what, server) = (argument(0), argument(1).ok_or(USAGE)?);
    if !matches!(what, Some("serve" | "put" | "get" | "check")) {
        return Err(USAGE.into());
    }
    let own = if what == Some("serve") {
        server
    } else {
        argument(4).unwrap_or("127.0.0.1")
    };
    let node = Node::new(trunkline::Node::builder().address(own.parse()?))?;
    let endpoint = Endpoint::new(&node, Options::default())?;
    let server = (server.parse::<std::net::IpAddr>()?, 7471).into();
    if what == Some("serve") {
        let table = endpoint.register_readable(table::BYTES)?;
        let table = Arc::new(Mutex::new(table));
        let service = tower::service_fn(move |request: Request| {
            std::future::ready(answer(&table, request.body()))
        });
        let _server = endpoint.listen(server, service)?;
        println!("listening");
        return Ok(tokio::signal::ctrl_c().await?);
    }
    let store = endpoint.connect(server).await?;
    let told = store.call("").await?;
    let (addr, rkey) = told.split_first_chunk().ok_or("no store is there")?;
    let rkey = Rkey(u32::from_be_bytes(rkey.try_into()?));
    let table = Remote {
        addr: u64::from_be_bytes(*addr),
        rkey,
    };
    let mr = endpoint.register(BUCKET)?;
    match (what, argument(2), argument(3)) {
        (Some("put"), Some(key), Some(value)) => {
            put(&store, key.as_bytes(), value.as_bytes()).await
        }
        (Some("get"), Some(key), _) => {
            let value = get(&store, table, &mr, key.as_bytes())
                .await?
                .ok_or("no such key")?;
            println!("{}", String::from_utf8_lossy(&value));
            Ok(())
        }
        (Some("check"), ..) => check(&store, table, &mr).await,
        _ => Err(USAGE.into()),
    }
}
