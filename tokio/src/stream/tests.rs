#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
#![allow(
    clippy::await_holding_lock,
    reason = "a thread that stands still in a stream"
)]

use super::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const PATIENCE: Duration = Duration::from_secs(10);

fn node(last: u8) -> Node {
    Node::new(trunkline::Node::builder().address([127, 9, 79, last].into())).unwrap()
}

#[test]
fn a_stream_is_over_with_its_node_though_it_hears_of_nothing_flushed() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let test = async {
        let (near, far) = (node(3), node(4));
        let at = (far.gid().address(), 7471).into();
        let listener = Listener::bind(&far, at).unwrap();
        let (mut a, b) = tokio::join!(Stream::connect(&near, at), listener.accept());
        let (mut reads, mut writes) = b.unwrap().into_split();
        a.as_mut().unwrap().write_all(b"before").await.unwrap();
        reads.read_exact(&mut [0; 3]).await.unwrap();
        let _ = far.shutdown(Duration::ZERO).await;
        lock(&reads.both.link).lose_completions();
        reads.read_exact(&mut [0; 3]).await.unwrap();
        let ends = [
            reads.read(&mut [0]).await.unwrap_err(),
            writes.write(&[0]).await.unwrap_err(),
            writes.shutdown().await.unwrap_err(),
        ];
        for error in ends {
            let why = error.get_ref().unwrap().downcast_ref();
            let down = StreamError::Node(trunkline::Down::ShutDown);
            assert_eq!(why, Some(&down));
        }
    };
    let ended = runtime.block_on(async { tokio::time::timeout(PATIENCE, test).await });
    ended.expect("it ends in time");
}

#[test]
fn a_thread_that_stands_still_in_a_stream_holds_up_no_other_one() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let test = async {
        let (near, far) = (node(1), node(2));
        let at = (far.gid().address(), 7471).into();
        let listener = Listener::bind(&far, at).unwrap();
        let mut pairs = Vec::new();
        for _ in 0..2 {
            let (near, far) = tokio::join!(Stream::connect(&near, at), listener.accept());
            pairs.push((near.unwrap(), far.unwrap()));
        }
        let [(a, mut from_a), (mut b, mut from_b)] = <[_; 2]>::try_from(pairs).unwrap();
        let both = Arc::clone(&a.write.both);
        let mut a = a;
        a.write_all(b"late").await.unwrap();
        let stands_still = lock(&both.link);
        b.write_all(b"at once").await.unwrap();
        let mut got = [0; 7];
        from_b.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"at once");
        // The node has nothing else to do by then, and does not sleep for that.
        tokio::time::sleep(Duration::from_millis(100)).await;
        drop(stands_still);
        let mut got = [0; 4];
        let soon = Duration::from_millis(700);
        let read = tokio::time::timeout(soon, from_a.read_exact(&mut got));
        read.await.expect("no timer has to wake it").unwrap();
        assert_eq!(&got, b"late");
    };
    let ended = runtime.block_on(async { tokio::time::timeout(PATIENCE, test).await });
    ended.expect("it ends in time");
}

#[test]
fn who_gives_streams_their_turn_waits_for_those_that_another_thread_gives_it() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (near, far) = (node(3), node(4));
        let at = (far.gid().address(), 7471).into();
        let listener = Listener::bind(&far, at).unwrap();
        let (stream, _peer) = tokio::join!(Stream::connect(&near, at), listener.accept());
        let mut stream = stream.unwrap();
        stream.write_all(b"begun").await.unwrap();
        let both = Arc::clone(&stream.write.both);
        let stands_still = lock(&both.link);
        let turns = || {
            let node = near.clone();
            std::thread::spawn(move || node.shared().turn())
        };
        let first = turns();
        while near.shared().has_due() {
            std::thread::yield_now();
        }
        let second = turns();
        std::thread::sleep(Duration::from_millis(50));
        assert!(!second.is_finished(), "the message was not posted yet");
        drop(stands_still);
        second.join().unwrap();
        assert!(!lock(&both.link).has_unsent());
        first.join().unwrap();
    });
}
