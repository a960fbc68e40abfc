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
        drop(stands_still);
        let mut got = [0; 4];
        from_a.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"late");
    };
    let ended = runtime.block_on(async { tokio::time::timeout(PATIENCE, test).await });
    ended.expect("it ends in time");
}
