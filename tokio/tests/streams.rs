//! Streams: all bytes once and in order, each direction ends by itself, and errors say why.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{in_time, node, on_both, polled, runtimes};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use trunkline_tokio::Node;
use trunkline_tokio::stream::{Listener, OpenError, Stream, StreamError};

/// How long a loop may keep others from their turn before its test gives up on it.
const STARVED: Duration = Duration::from_secs(5);

fn at(node: &Node) -> SocketAddr {
    (node.gid().address(), 7471).into()
}

/// Both ends of a stream, with their nodes.
async fn ends() -> ([Stream; 2], [Node; 2]) {
    let nodes = [node(), node()];
    let listener = Listener::bind(&nodes[1], at(&nodes[1])).unwrap();
    let (connected, accepted) =
        tokio::join!(Stream::connect(&nodes[0], at(&nodes[1])), listener.accept());
    ([connected.unwrap(), accepted.unwrap()], nodes)
}

/// Bytes that tell where they belong.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at % 251) as u8).collect()
}

fn why(error: &io::Error) -> StreamError {
    let inner = error.get_ref().unwrap().downcast_ref::<StreamError>();
    inner.unwrap().clone()
}

#[test]
fn bytes_come_once_and_in_order_in_pieces_of_all_sizes() {
    on_both(|| async {
        let ([mut a, mut b], _nodes) = ends().await;
        let all = pattern(1 << 20);
        let expected = all.clone();
        let writes = tokio::spawn(async move {
            let (mut rest, mut piece) = (&all[..], 1);
            while !rest.is_empty() {
                let (now, later) = rest.split_at(piece.min(rest.len()));
                a.write_all(now).await.unwrap();
                (rest, piece) = (later, piece * 5 % 100_003);
            }
            a.shutdown().await.unwrap();
            a
        });
        let (mut got, mut piece) = (Vec::<u8>::new(), 1);
        loop {
            let mut room = vec![0; piece];
            let count = b.read(&mut room).await.unwrap();
            if count == 0 {
                break;
            }
            got.extend(&room[..count]);
            piece = piece * 3 % 70_001;
        }
        assert!(got == expected, "{} bytes", got.len());
        writes.await.unwrap();
    });
}

#[test]
fn what_is_being_written_leaves_the_last_receive_to_what_grants_some() {
    on_both(|| async {
        let ([mut a, mut b], _nodes) = ends().await;
        let a_turn = || tokio::time::sleep(Duration::from_millis(5));
        // Nobody reads them, until two receives are left.
        for _ in 0..22 {
            a.write_all(&[1]).await.unwrap();
            a_turn().await;
        }
        // As many as are worth a message that grants receives.
        for _ in 0..12 {
            b.write_all(&[2; 8]).await.unwrap();
            a_turn().await;
        }
        a.write_all(&[1]).await.unwrap();
        a.read_exact(&mut [0; 96]).await.unwrap();
        a_turn().await;
        let mut read = [0; 23];
        b.read_exact(&mut read).await.unwrap();
        assert_eq!(read, [1; 23]);
    });
}

#[test]
fn who_is_handed_the_first_pieces_has_its_turn_before_the_last_are_read() {
    let [one_thread, _] = runtimes();
    one_thread.block_on(in_time(async {
        let ([mut a, mut b], _nodes) = ends().await;
        let (first, rest) = (64, 4096 - 64);
        a.write_all(&pattern(first + rest)).await.unwrap();
        let mut piece = vec![0; first];
        // All of it has come.
        b.read_exact(&mut piece).await.unwrap();
        let read = Arc::new(AtomicUsize::new(0));
        let mut taker = None;
        while read.load(Ordering::Relaxed) < rest {
            b.read_exact(&mut piece).await.unwrap();
            read.fetch_add(first, Ordering::Relaxed);
            let seen = Arc::clone(&read);
            taker.get_or_insert_with(|| tokio::spawn(async move { seen.load(Ordering::Relaxed) }));
        }
        let before = taker.unwrap().await.unwrap();
        assert!((first..=1024).contains(&before), "{before} bytes");
    }));
}

/// Asserts that a loop that always finds something to do lets a timeout around it come.
async fn is_timed_out(began: Instant, turns: impl Future<Output = ()>) {
    let ended = tokio::time::timeout(Duration::from_millis(200), turns).await;
    assert!(ended.is_err(), "it had {:?}", began.elapsed());
}

#[test]
fn a_reader_of_what_never_ends_lets_others_have_their_turn() {
    on_both(|| async {
        let ([mut a, mut b], _nodes) = ends().await;
        // In messages that are all as long as they may be.
        let all = vec![1; 16 * (60 << 10)];
        let writes = tokio::spawn(async move { while a.write_all(&all).await.is_ok() {} });
        let reads = tokio::spawn(async move {
            let began = Instant::now();
            let turns = async {
                while began.elapsed() < STARVED {
                    // More is there by the time that this is read.
                    b.read_exact(&mut [0]).await.unwrap();
                }
            };
            is_timed_out(began, turns).await;
        });
        reads.await.unwrap();
        writes.await.unwrap();
    });
}

#[test]
fn a_writer_to_whom_there_is_always_room_lets_others_have_their_turn() {
    on_both(|| async {
        let ([mut a, mut b], _nodes) = ends().await;
        let reads = tokio::spawn(async move {
            let mut room = vec![0; 1 << 20];
            while b.read(&mut room).await.is_ok_and(|count| count > 0) {}
        });
        let writes = tokio::spawn(async move {
            let began = Instant::now();
            let turns = async {
                while began.elapsed() < STARVED {
                    a.write_all(&[1]).await.unwrap();
                }
            };
            is_timed_out(began, turns).await;
        });
        writes.await.unwrap();
        reads.await.unwrap();
    });
}

#[test]
fn who_reads_a_long_message_in_many_calls_gives_way_to_others() {
    on_both(|| async {
        let ([mut a, mut b], _nodes) = ends().await;
        a.write_all(&pattern(60 << 10)).await.unwrap();
        b.read_exact(&mut [0]).await.unwrap();
        let reads = async {
            for _ in 0..1000 {
                b.read_exact(&mut [0; 16]).await.unwrap();
            }
        };
        assert!(polled(reads, 1).await.is_none(), "all of it at once");
        // What was not read then is read later.
        let mut rest = Vec::new();
        a.shutdown().await.unwrap();
        in_time(b.read_to_end(&mut rest)).await.unwrap();
        let all = pattern(60 << 10);
        assert!(rest.len() >= all.len() - 1 - 16_000);
        assert!(rest == all[all.len() - rest.len()..]);
    });
}

#[test]
fn slices_that_are_written_at_once_come_behind_one_another() {
    on_both(|| async {
        let ([mut a, mut b], _nodes) = ends().await;
        assert!(a.is_write_vectored());
        let all = pattern(100_000);
        let expected = all.clone();
        let writes = tokio::spawn(async move {
            let mut at = 0;
            while at < all.len() {
                let (head, body) = all[at..].split_at(9.min(all.len() - at));
                let (body, tail) = body.split_at(body.len() * 2 / 3);
                let slices = [&[], head, &[], body, tail, &[]].map(io::IoSlice::new);
                let count = a.write_vectored(&slices).await.unwrap();
                assert!(count > 9 || count == all.len() - at, "only {count} bytes");
                at += count;
            }
            assert_eq!(a.write_vectored(&[]).await.unwrap(), 0);
            a.shutdown().await.unwrap();
        });
        let mut got = Vec::new();
        b.read_to_end(&mut got).await.unwrap();
        assert!(got == expected, "{} bytes", got.len());
        writes.await.unwrap();
    });
}

#[test]
fn both_ends_know_where_they_are() {
    on_both(|| async {
        let ([a, b], nodes) = ends().await;
        assert_eq!(a.peer_addr(), at(&nodes[1]));
        assert_eq!(b.local_addr(), Some(at(&nodes[1])));
        assert_eq!(b.peer_addr().ip(), nodes[0].gid().address());
        assert_eq!(a.local_addr(), Some(b.peer_addr()));
    });
}

#[test]
fn each_direction_ends_by_itself() {
    on_both(|| async {
        let ([mut a, mut b], _nodes) = ends().await;
        a.write_all(b"from a").await.unwrap();
        a.shutdown().await.unwrap();
        let refused = a.write_all(b"more").await.unwrap_err();
        assert_eq!(why(&refused), StreamError::ShutDown);
        let mut got = Vec::new();
        b.read_to_end(&mut got).await.unwrap();
        assert_eq!(got, b"from a");
        // The other direction goes on, for more than there is room for at once.
        let all = pattern(2 << 20);
        let expected = all.clone();
        let writes = tokio::spawn(async move {
            b.write_all(&all).await.unwrap();
            b.shutdown().await.unwrap();
            assert_eq!(b.read(&mut [0]).await.unwrap(), 0, "the end stays");
        });
        got.clear();
        a.read_to_end(&mut got).await.unwrap();
        assert!(got == expected);
        writes.await.unwrap();
    });
}

#[test]
fn both_directions_go_on_at_once_over_halves() {
    on_both(|| async {
        let (ends, _nodes) = ends().await;
        let all = pattern(3 << 20);
        let tasks = ends.map(|end| {
            let (mut read, mut write) = end.into_split();
            let (sent, expected) = (all.clone(), all.clone());
            let writes = tokio::spawn(async move {
                write.write_all(&sent).await.unwrap();
                // Dropping it ends this direction.
            });
            let reads = tokio::spawn(async move {
                let mut got = Vec::new();
                read.read_to_end(&mut got).await.unwrap();
                assert!(got == expected);
            });
            [writes, reads]
        });
        for task in tasks.into_iter().flatten() {
            task.await.unwrap();
        }
    });
}

#[test]
fn who_writes_waits_for_who_reads_and_the_other_direction_does_not() {
    on_both(|| async {
        let ([mut a, mut b], _nodes) = ends().await;
        // `b` reads nothing: what `a` may write is bounded.
        let (chunk, mut written) = (vec![7; 100_000], 0);
        while let Ok(count) =
            tokio::time::timeout(Duration::from_millis(200), a.write(&chunk)).await
        {
            written += count.unwrap();
            assert!(written < 4 << 20, "somebody keeps {written} bytes");
        }
        assert!(written > 100_000);
        // `a` reads: what `b` writes comes, also more than all its receives hold.
        let back = pattern(3 << 20);
        let expected = back.clone();
        let (writes, reads) = tokio::join!(
            async {
                b.write_all(&back).await.unwrap();
                b
            },
            async {
                let mut got = vec![0; expected.len()];
                a.read_exact(&mut got).await.unwrap();
                assert!(got == expected);
                a
            }
        );
        let (mut b, mut a) = (writes, reads);
        // And all that was written is there when it is read.
        let mut got = vec![0; written];
        b.read_exact(&mut got).await.unwrap();
        assert!(got.iter().all(|byte| *byte == 7));
        a.write_all(b"go on").await.unwrap();
        b.read_exact(&mut got[..5]).await.unwrap();
        assert_eq!(&got[..5], b"go on");
    });
}

#[test]
fn a_receiver_never_runs_out_of_receives() {
    on_both(|| async {
        let ([a, mut b], nodes) = ends().await;
        let (mut answers, mut questions) = a.into_split();
        let reads = tokio::spawn(async move {
            let mut all = Vec::new();
            answers.read_to_end(&mut all).await.unwrap();
            all.len()
        });
        tokio::spawn(async move {
            for _ in 0..2000 {
                questions.write_all(&[1; 10]).await.unwrap();
                tokio::task::yield_now().await;
            }
        });
        let (mut got, mut room) = (0, [0; 64]);
        loop {
            let count = b.read(&mut room).await.unwrap();
            if count == 0 {
                break;
            }
            got += count;
            b.write_all(&room[..count]).await.unwrap();
        }
        b.shutdown().await.unwrap();
        assert_eq!((got, reads.await.unwrap()), (20_000, 20_000));
        for node in &nodes {
            assert_eq!(node.counters().rnr_sent, 0);
        }
    });
}

#[test]
fn what_a_task_writes_before_others_have_their_turn_goes_in_one_message() {
    let [single, _] = runtimes();
    single.block_on(async {
        let ([mut a, mut b], nodes) = ends().await;
        for _ in 0..3 {
            let before = nodes[1].counters().executed;
            for _ in 0..1000 {
                a.write_all(&[1; 10]).await.unwrap();
                a.flush().await.unwrap();
            }
            in_time(b.read_exact(&mut [0; 10_000])).await.unwrap();
            assert_eq!(nodes[1].counters().executed, before + 1);
        }
    });
}

#[test]
fn a_node_that_ends_says_before_what_was_written() {
    on_both(|| async {
        let ([mut a, mut b], nodes) = ends().await;
        let all = pattern(100_000);
        a.write_all(&all).await.unwrap();
        nodes[0].shutdown(Duration::from_secs(5)).await.unwrap();
        let mut got = vec![0; all.len()];
        b.read_exact(&mut got).await.unwrap();
        assert!(got == all);
    });
}

#[test]
fn what_had_come_is_read_though_the_node_has_ended() {
    on_both(|| async {
        let ([mut a, mut b], nodes) = ends().await;
        let all = pattern(4096);
        a.write_all(&all).await.unwrap();
        let mut got = vec![0; all.len()];
        b.read_exact(&mut got[..64]).await.unwrap();
        let _ = nodes[1].shutdown(Duration::ZERO).await;
        // More than a reader takes before others have their turn, and nobody has one any more.
        b.read_exact(&mut got[64..]).await.unwrap();
        assert!(got == all);
        let ended = b.read(&mut [0]).await.unwrap_err();
        assert!(matches!(why(&ended), StreamError::Node(_)), "{ended}");
    });
}

#[test]
fn a_node_that_sleeps_is_woken_by_what_is_written() {
    on_both(|| async {
        let ([mut a, mut b], _nodes) = ends().await;
        let mut took = Duration::ZERO;
        for _ in 0..5 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let before = Instant::now();
            a.write_all(&[1]).await.unwrap();
            b.read_exact(&mut [0]).await.unwrap();
            took += before.elapsed();
        }
        // Its timers wake it after a second.
        assert!(took < Duration::from_secs(2), "{took:?}");
    });
}

#[test]
fn futures_that_are_dropped_lose_and_double_no_byte() {
    on_both(|| async {
        let ([mut a, mut b], _nodes) = ends().await;
        // More than there is room for at once.
        let all = pattern(4 << 20);
        let expected = all.clone();
        let writes = tokio::spawn(async move {
            let (mut at, mut dropped) = (0, 0);
            while at < all.len() {
                let end = all.len().min(at + 50_000);
                match polled(a.write(&all[at..end]), 1).await {
                    Some(count) => at += count.unwrap(),
                    None => {
                        dropped += 1;
                        tokio::task::yield_now().await;
                    }
                }
            }
            while polled(a.shutdown(), 1).await.is_none() {
                tokio::task::yield_now().await;
            }
            dropped
        });
        let (mut got, mut dropped) = (Vec::<u8>::new(), 0);
        loop {
            let mut room = [0; 3000];
            match polled(b.read(&mut room), 1 + got.len() % 2).await {
                Some(Ok(0)) => break,
                Some(count) => got.extend(&room[..count.unwrap()]),
                None => {
                    dropped += 1;
                    tokio::task::yield_now().await;
                }
            }
        }
        assert!(got == expected, "{} bytes", got.len());
        assert!(dropped > 0 && writes.await.unwrap() > 0);
    });
}

#[test]
fn a_stream_that_is_dropped_ends_behind_what_was_written() {
    on_both(|| async {
        let ([mut a, mut b], _nodes) = ends().await;
        let all = pattern(200_000);
        a.write_all(&all).await.unwrap();
        drop(a);
        let mut got = Vec::new();
        b.read_to_end(&mut got).await.unwrap();
        assert!(got == all);
        // Nobody is there to read, which is heard sooner or later.
        let refused = loop {
            if let Err(refused) = b.write_all(&all).await {
                break refused;
            }
        };
        assert_eq!(why(&refused), StreamError::Reset);
    });
}

#[test]
fn who_has_read_all_and_leaves_at_once_lets_the_other_end_hear_so() {
    on_both(|| async {
        let nodes = [node(), node()];
        let listener = Listener::bind(&nodes[1], at(&nodes[1])).unwrap();
        for _ in 0..200 {
            let connect = Stream::connect(&nodes[0], at(&nodes[1]));
            let (connected, accepted) = tokio::join!(connect, listener.accept());
            let (mut a, mut b) = (connected.unwrap(), accepted.unwrap());
            let writes = tokio::spawn(async move {
                for _ in 0..100 {
                    b.write_all(&[1; 10]).await.unwrap();
                }
                b.shutdown().await
            });
            a.shutdown().await.unwrap();
            let mut got = Vec::new();
            a.read_to_end(&mut got).await.unwrap();
            drop(a);
            writes.await.unwrap().unwrap();
            assert_eq!(got.len(), 1000);
        }
    });
}

#[test]
fn a_node_that_is_shut_down_ends_its_streams_at_both_ends() {
    on_both(|| async {
        let ([mut a, mut b], nodes) = ends().await;
        b.write_all(b"last words").await.unwrap();
        let mut read = [0; 10];
        a.read_exact(&mut read).await.unwrap();
        let waits = tokio::spawn(async move {
            let read = a.read(&mut [0]).await.unwrap_err();
            (read, a.write(&[1]).await.unwrap_err())
        });
        tokio::task::yield_now().await;
        let _ = nodes[0].shutdown(Duration::ZERO).await;
        let (read, written) = waits.await.unwrap();
        assert!(matches!(why(&read), StreamError::Node(_)), "{read}");
        assert!(matches!(why(&written), StreamError::Node(_)), "{written}");
        let read = b.read(&mut [0]).await.unwrap_err();
        assert_eq!(why(&read), StreamError::Reset);
        let refused = Stream::connect(&nodes[0], at(&nodes[1])).await.unwrap_err();
        assert!(matches!(refused, OpenError::Connect(_)), "{refused}");
    });
}

#[test]
fn an_accept_that_is_dropped_loses_no_stream_and_a_connect_is_heard_of() {
    on_both(|| async {
        let nodes = [node(), node()];
        let listener = Listener::bind(&nodes[1], at(&nodes[1])).unwrap();
        for polls in 1.. {
            let mut connecting = pin!(polled(Stream::connect(&nodes[0], at(&nodes[1])), polls));
            let mut accepted = Vec::new();
            let connected = loop {
                tokio::select! {
                    biased;
                    connected = &mut connecting => break connected,
                    stream = polled(listener.accept(), 1) => {
                        accepted.extend(stream.transpose().unwrap());
                    }
                }
                tokio::task::yield_now().await;
            };
            if let Some(stream) = connected {
                let mut stream = stream.unwrap();
                stream.write_all(b"here").await.unwrap();
                let mut accepted = match accepted.pop() {
                    Some(stream) => stream,
                    None => in_time(listener.accept()).await.unwrap(),
                };
                let mut got = [0; 4];
                accepted.read_exact(&mut got).await.unwrap();
                assert_eq!(&got, b"here");
                return;
            }
            // Its peer's end does not wait for ever.
            for mut stream in accepted {
                let ended = in_time(stream.read(&mut [0])).await.unwrap_err();
                assert!(matches!(why(&ended), StreamError::Reset), "{ended}");
            }
        }
    });
}

#[test]
fn each_message_that_is_begun_and_each_that_is_filled_takes_of_the_budget() {
    on_both(|| async {
        let ([mut a, _b], _nodes) = ends().await;
        tokio::task::yield_now().await;
        // Of 128: less is left than they take, and as much as half of them.
        let writes = async {
            for _ in 0..102 {
                tokio::task::coop::consume_budget().await;
            }
            for _ in 0..15 {
                a.write_all(&[1; (60 << 10) - 1]).await.unwrap();
                a.write_all(&[1]).await.unwrap();
            }
        };
        assert!(polled(writes, 1).await.is_none(), "all of it at once");
    });
}

#[test]
fn what_is_read_meanwhile_sends_no_message_early() {
    let [single, _] = runtimes();
    single.block_on(async {
        let ([mut a, mut b], nodes) = ends().await;
        b.write_all(&[2; 8]).await.unwrap();
        in_time(a.read_exact(&mut [0; 4])).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        let before = nodes[1].counters().executed;
        a.write_all(&[1]).await.unwrap();
        a.read_exact(&mut [0; 4]).await.unwrap();
        a.write_all(&[1]).await.unwrap();
        in_time(b.read_exact(&mut [0; 2])).await.unwrap();
        assert_eq!(nodes[1].counters().executed, before + 1);
    });
}
