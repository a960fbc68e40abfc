//! Many clients, many workers, and middleware.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{address, at, echo, endpoint, on_both};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use tower::retry::Policy;
use tower::{Service, ServiceBuilder, ServiceExt};
use trunkline_rpc::{Endpoint, Options, Refusal, Request, RpcError};
use trunkline_tokio::Node;

#[test]
fn a_thousand_clients_share_the_connections_of_two_nodes() {
    on_both(async || {
        let options = Options {
            receives: 4,
            message_bytes: 512,
            ..Options::default()
        };
        let (far, near) = (endpoint(options), endpoint(options));
        let _server = echo(&far);
        let mut clients = Vec::new();
        for _ in 0..1000 {
            clients.push(near.connect(at(&far)).await.unwrap());
        }
        let connections = near.node().connections(at(&far).ip()).len();
        assert!(
            connections <= 4,
            "{connections} connections of 1,000 clients"
        );
        let mut calls = JoinSet::new();
        for (of, client) in clients.iter().enumerate() {
            let client = client.clone();
            calls.spawn(async move {
                let body = of.to_be_bytes().to_vec();
                assert_eq!(client.call(body.clone()).await.unwrap(), body);
            });
        }
        while let Some(ended) = calls.join_next().await {
            ended.unwrap();
        }
    });
}

#[test]
fn nodes_of_several_workers_serve_each_connection_where_it_is() {
    on_both(async || {
        let node = || {
            let builder = trunkline::Node::builder().address(address()).workers(2);
            Node::new(builder).unwrap()
        };
        let far = Endpoint::new(&node(), Options::default()).unwrap();
        let near = Endpoint::new(&node(), Options::default()).unwrap();
        let _server = echo(&far);
        for length in [10, 20_000] {
            for _ in 0..5 {
                let client = near.connect(at(&far)).await.unwrap();
                let body = vec![1; length];
                assert!(client.call(body.clone()).await.unwrap() == body);
            }
        }
    });
}

/// Refuses all but each third request.
#[derive(Clone)]
struct Moody(Arc<AtomicUsize>);

impl Moody {
    fn answer(&self, request: Request) -> Result<bytes::Bytes, Refusal> {
        match self.0.fetch_add(1, Ordering::SeqCst) % 3 {
            2 => Ok(request.into_body()),
            _ => Err(Refusal::new(503, "not now")),
        }
    }
}

/// Tries again what was refused.
#[derive(Clone)]
struct Again(usize);

impl<R> Policy<Request, R, RpcError> for Again {
    type Future = std::future::Ready<()>;

    fn retry(&mut self, _: &mut Request, result: &mut Result<R, RpcError>) -> Option<Self::Future> {
        let refused = matches!(result, Err(RpcError::Refused(_)));
        self.0 -= usize::from(refused);
        (refused && self.0 > 0).then(|| std::future::ready(()))
    }

    fn clone_request(&mut self, request: &Request) -> Option<Request> {
        Some(request.clone())
    }
}

#[test]
fn middleware_works_at_either_end() {
    on_both(async || {
        let far = endpoint(Options::default());
        let moody = Moody(Arc::default());
        let service = tower::service_fn(move |request| {
            let answer = moody.answer(request);
            async { answer }
        });
        let service = ServiceBuilder::new().concurrency_limit(4).service(service);
        let _server = far.listen(at(&far), service).unwrap();
        let near = endpoint(Options::default());
        let client = near.connect(at(&far)).await.unwrap();
        let mut retrying = ServiceBuilder::new()
            .retry(Again(5))
            .service(client.clone());
        for of in 0..10_u8 {
            let ready = retrying.ready().await.unwrap();
            let answer = ready.call(Request::new(vec![of])).await;
            assert_eq!(answer.unwrap(), [of].as_slice());
        }
        let refused = client.call("x").await.unwrap_err();
        assert_eq!(refused, RpcError::Refused(Refusal::new(503, "not now")));
    });
}

#[test]
fn a_limit_at_the_server_makes_requests_wait_and_a_timeout_refuses() {
    on_both(async || {
        let far = endpoint(Options::default());
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let peak = Arc::clone(&most);
        let service = tower::service_fn(move |request: Request| {
            let (running, most) = (Arc::clone(&running), Arc::clone(&most));
            async move {
                let now = running.fetch_add(1, Ordering::SeqCst) + 1;
                most.fetch_max(now, Ordering::SeqCst);
                let wait = u64::from(request.body()[0]);
                tokio::time::sleep(Duration::from_millis(wait)).await;
                running.fetch_sub(1, Ordering::SeqCst);
                Ok::<_, Refusal>(request.into_body())
            }
        });
        let service = ServiceBuilder::new()
            .concurrency_limit(2)
            .timeout(Duration::from_millis(200))
            .service(service);
        let _server = far.listen(at(&far), service).unwrap();
        let near = endpoint(Options::default());
        let client = near.connect(at(&far)).await.unwrap();
        let calls = (0..8).map(|_| client.call(vec![5]));
        let calls: JoinSet<_> = calls.collect();
        for answer in calls.join_all().await {
            assert_eq!(answer.unwrap(), [5].as_slice());
        }
        assert_eq!(peak.load(Ordering::SeqCst), 2);
        let refused = client.call(vec![255]).await.unwrap_err();
        assert!(matches!(refused, RpcError::Refused(_)), "{refused:?}");
    });
}
