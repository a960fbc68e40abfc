//! What no peer brings about at will.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use crate::rdma_cm::channel::{Channel, tests::node};
use crate::rdma_cm::event::ChannelEvent;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use trunkline_cm::rdma::Id;

const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn a_rejection_says_in_words_what_its_reason_means() {
    for (code, meaning) in [
        (8, "nobody listens at that port"),
        (28, "its program does not want the connection"),
        (99, "it does not agree to the terms"),
    ] {
        assert_eq!(words(RejReason::from_code(code)), meaning);
    }
}

/// How long a call takes while an event of `id` comes out of its channel every 10 ms, for up to
/// 3 s.
fn among_events(channel: &Channel, id: Id, call: impl FnOnce()) -> Duration {
    let done = AtomicBool::new(false);
    let began = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) && began.elapsed() < Duration::from_secs(3) {
                channel.queue.push(ChannelEvent::Route(id, Ok(())));
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        call();
        done.store(true, Ordering::Relaxed);
    });
    began.elapsed()
}

#[test]
fn a_limit_bounds_the_whole_call_whatever_comes_meanwhile() {
    let ((server, there), (client, _)) = (node(), node());
    let listener = Listener::bind(&server, (there, 0).into(), 0).unwrap();
    let to = listener.local_addr().unwrap();
    let params = Params::default();
    let ends = [&server, &client].map(|node| {
        let cq = node.create_cq(16).unwrap();
        (node.alloc_pd(), cq, QpOptions::default())
    });
    let [serving, asking] = ends.each_ref().map(|(pd, cq, options)| Resources {
        pd,
        send_cq: cq,
        recv_cq: cq,
        options,
    });
    let (near, _far) = std::thread::scope(|scope| {
        let asked = scope.spawn(|| Endpoint::connect(&client, &asking, to, &params, PATIENCE));
        let request = listener.get_request(&server, PATIENCE).unwrap();
        let far = request.accept(&serving, &params, PATIENCE).unwrap();
        (asked.join().unwrap().unwrap(), far)
    });
    let limit = Duration::from_millis(200);
    let bounds = limit..Duration::from_secs(2);
    let took = among_events(&near.id.channel(), near.id.0.id, || {
        let ended = near.wait_for_end(limit);
        assert!(matches!(ended, Err(ConnectError::Timeout)), "{ended:?}");
    });
    assert!(bounds.contains(&took), "wait_for_end: {took:?}");
    let at = listener.awaited.id();
    let took = among_events(&at.channel(), at.0.id, || {
        let request = listener.get_request(&server, limit);
        assert!(matches!(request, Err(ConnectError::Timeout)), "{request:?}");
    });
    assert!(bounds.contains(&took), "get_request: {took:?}");
    // Of an ID that is gone no event is told.
    let channel = client.create_event_channel().unwrap();
    let gone = channel.create_id(PortSpace::Tcp, Kind::Rc).unwrap().0.id;
    let took = among_events(&channel.0, gone, || {
        let event = channel.get_event(limit);
        assert!(event.is_none(), "{event:?}");
    });
    assert!(bounds.contains(&took), "get_event: {took:?}");
    // Nobody decides.
    let began = Instant::now();
    let asked = Endpoint::connect(&client, &asking, to, &params, limit);
    assert!(matches!(asked, Err(ConnectError::Timeout)), "{asked:?}");
    assert!(bounds.contains(&began.elapsed()), "connect");
}

#[test]
fn whoever_waits_hears_at_once_that_the_node_was_shut_down() {
    let (server, there) = node();
    let listener = Listener::bind(&server, (there, 0).into(), 0).unwrap();
    let channel = server.create_event_channel().unwrap();
    let began = Instant::now();
    std::thread::scope(|scope| {
        let asks = scope.spawn(|| listener.get_request(&server, Duration::MAX));
        let gets = scope.spawn(|| channel.get_event(Duration::MAX));
        std::thread::sleep(Duration::from_millis(100));
        server.shutdown(Duration::from_secs(1)).unwrap();
        let asked = asks.join().unwrap().map(|_| ());
        let down = "the node was shut down";
        assert_eq!(asked.unwrap_err().to_string(), down);
        assert!(gets.join().unwrap().is_none());
    });
    assert!(began.elapsed() < PATIENCE);
}
