//! An inline node that has something to say does not wait.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::Pair;
use std::time::{Duration, Instant};
use trunkline::rdma_cm::{CmEvent, EventChannel, Kind, Params, PortSpace};
use trunkline::{ConnectionOptions, Node, QpOptions};

/// Longer than any timer of the tests.
const LONG: Duration = Duration::from_secs(5);

fn does_not_wait(what: &str, node: &Node) {
    assert!(node.is_busy(), "{what}");
    let began = Instant::now();
    node.wait(LONG).unwrap();
    let waited = began.elapsed();
    assert!(waited < LONG / 2, "{what}: {waited:?}");
}

#[test]
fn a_node_that_asks_a_peer_for_something_does_not_wait_before() {
    let pair = Pair::new();
    let _qps = pair.qps();
    does_not_wait("a QP is connected", &pair.a.node);
    pair.run_for(Duration::from_millis(20));
    let peer = pair.b.node.gid().address();
    let options = ConnectionOptions::default();
    let connection = pair.a.node.open_connection(peer, &options).unwrap();
    does_not_wait("a connection is opened", &pair.a.node);
    pair.until("the connection", || connection.is_open());
}

#[test]
fn a_node_whose_ids_have_something_to_say_does_not_wait_before() {
    let pair = Pair::new();
    let server = (pair.b.node.gid().address(), 4000).into();
    let [channel, served] = [&pair.a.node, &pair.b.node].map(|node| node.create_event_channel());
    let (channel, served) = (channel.unwrap(), served.unwrap());
    let event = |channel: &EventChannel| -> CmEvent {
        let mut event = None;
        pair.until("an event", || {
            event = channel.poll_event();
            event.is_some()
        });
        event.unwrap()
    };
    let listener = served.create_id(PortSpace::Tcp, Kind::Rc).unwrap();
    listener.bind(server).unwrap();
    listener.listen(4).unwrap();
    let id = channel.create_id(PortSpace::Tcp, Kind::Rc).unwrap();
    id.resolve_addr(server, LONG).unwrap();
    event(&channel);
    id.resolve_route().unwrap();
    event(&channel);
    let (end, options) = (&pair.a, QpOptions::default());
    let _qp = id
        .create_qp(&end.pd, &end.send_cq, &end.recv_cq, &options)
        .unwrap();
    id.connect(&Params::default()).unwrap();
    does_not_wait("an ID connects", &pair.a.node);
    let request = event(&served);
    pair.run_for(Duration::from_millis(20));
    request.id.reject(b"no").unwrap();
    does_not_wait("an ID refuses", &pair.b.node);
}
