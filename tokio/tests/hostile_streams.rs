//! Peers that break the rules of docs/stream-format.md: their stream ends with an error that says
//! which, and no other.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{End, in_time, node, on_both};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use trunkline::rdma_cm::Params;
use trunkline::rdma_cm::sync::ConnectError;
use trunkline::{Extra, QpOptions, RecvWr, Remote, SendFlags, SendOp, SendWr, WorkOpcode};
use trunkline_tokio::Node;
use trunkline_tokio::rdma_cm::{Connection, Listener as CmListener};
use trunkline_tokio::stream::{Listener, OpenError, Stream, StreamError};

/// A hello with 8 receives of 4 KiB.
const HELLO: [u8; 12] = *b"TLst\x01\x00\x00\x08\x00\x00\x10\x00";
const RECEIVES: u32 = 8;
/// Receives of an end that is none of a liar.
const OWN_RECEIVES: usize = 24;
/// Kinds of messages, as their immediate words have them.
const DATA: u32 = 0;
const CREDIT: u32 = 1 << 30;
const END: u32 = 2 << 30;
const HEARD: u32 = 3 << 30;

fn at(node: &Node) -> SocketAddr {
    (node.gid().address(), 7471).into()
}

/// A peer that says by hand what streams say.
struct Liar {
    end: End,
    connection: Connection,
}

fn options() -> QpOptions {
    QpOptions {
        max_send_wr: 128,
        ..QpOptions::default()
    }
}

impl Liar {
    async fn connect(hello: &[u8], server: &Node) -> Result<Self, ConnectError> {
        let end = End::new();
        let connecting = end.connecting(at(server), &options()).await?;
        let params = Params {
            private_data: hello,
            ..Params::default()
        };
        let connection = connecting.connect(&params).await?;
        Ok(Self { end, connection })
    }

    fn post(&self, op: SendOp, bytes: usize) {
        self.post_with(op, bytes, SendFlags::SIGNALED | SendFlags::SOLICITED);
    }

    fn post_with(&self, op: SendOp, bytes: usize, flags: SendFlags) {
        let sges = [self.end.mr.sge(0, bytes)];
        let request = SendWr {
            wr_id: 0,
            op,
            flags,
            sges: if bytes > 0 { &sges } else { &[] },
            inline: None,
            route: 0,
        };
        self.connection.qp().post_send(&[request]).unwrap();
    }

    /// Says a message with this immediate word.
    fn say(&self, word: u32, bytes: usize) {
        self.post(SendOp::SendImm(word), bytes);
    }

    /// A server's stream whose peer lies.
    async fn of_stream() -> (Self, Stream) {
        let server = node();
        let listener = Listener::bind(&server, at(&server)).unwrap();
        let (liar, stream) = tokio::join!(Self::connect(&HELLO, &server), listener.accept());
        (liar.unwrap(), stream.unwrap())
    }

    /// The kind of the next message that comes.
    async fn hear(&self) -> u32 {
        loop {
            let done = in_time(self.end.cq.next()).await.unwrap();
            if let (WorkOpcode::Receive, Extra::Immediate(word)) = (done.opcode, done.extra) {
                return word & HEARD;
            }
        }
    }
}

/// The server's end of a stream whose peer says these messages, until it ends: what it has read,
/// and why it ended. A stream beside it goes on.
async fn ends_with(lie: impl Fn(&Liar)) -> (usize, StreamError) {
    let (server, honest) = (node(), node());
    let listener = Listener::bind(&server, at(&server)).unwrap();
    let (asked, answered) = tokio::join!(Stream::connect(&honest, at(&server)), listener.accept());
    let (mut asked, mut answered) = (asked.unwrap(), answered.unwrap());
    let (liar, stream) = tokio::join!(Liar::connect(&HELLO, &server), listener.accept());
    let (liar, stream) = (liar.unwrap(), stream.unwrap());
    let (mut reads, mut writes) = stream.into_split();
    lie(&liar);
    let (mut read, mut room) = (0, vec![0; 4096]);
    // After the end of what the peer says, the other direction tells of what it did.
    let error = loop {
        match in_time(reads.read(&mut room)).await {
            Ok(0) => match in_time(writes.write(&[0])).await {
                Ok(_) => tokio::task::yield_now().await,
                Err(error) => break error,
            },
            Ok(count) => read += count,
            Err(error) => break error,
        }
    };
    // The liar hears of it, too.
    in_time(liar.connection.ended()).await;
    asked.write_all(b"still here").await.unwrap();
    let mut got = [0; 10];
    answered.read_exact(&mut got).await.unwrap();
    assert_eq!(&got, b"still here");
    let why = error.get_ref().unwrap().downcast_ref::<StreamError>();
    (read, why.unwrap().clone())
}

/// Which rule is broken, how many bytes were good before that, and how it is done.
type Lie<'a> = (&'static str, usize, &'a dyn Fn(&Liar));

#[test]
fn each_violation_ends_its_stream_and_no_other() {
    let nowhere = Remote::default();
    let lies: [Lie<'_>; 12] = [
        ("without its word", 0, &|liar| liar.post(SendOp::Send, 8)),
        ("no SEND", 0, &|liar| {
            liar.post(SendOp::WriteImm(nowhere, DATA | RECEIVES), 0);
        }),
        ("reserved bits", 0, &|liar| liar.say(1 << 16 | RECEIVES, 8)),
        ("none where some do", 0, &|liar| {
            liar.say(DATA | RECEIVES, 0);
        }),
        ("bytes where none belong", 0, &|liar| {
            liar.say(CREDIT | RECEIVES, 8);
        }),
        ("more receives than it has", 0, &|liar| {
            liar.say(CREDIT | (RECEIVES + 1), 0);
        }),
        ("fewer than before", 0, &|liar| {
            liar.say(CREDIT | (RECEIVES - 1), 0);
        }),
        ("fewer than before", 0, &|liar| liar.say(CREDIT | 0xffff, 0)),
        ("more after the end", 5, &|liar| {
            liar.say(DATA | RECEIVES, 5);
            liar.say(END | RECEIVES, 0);
            liar.say(DATA | RECEIVES, 7);
        }),
        ("more after the end", 0, &|liar| {
            liar.say(END | RECEIVES, 0);
            liar.say(END | RECEIVES, 0);
        }),
        ("not said", 0, &|liar| liar.say(HEARD | RECEIVES, 0)),
        ("longer than its receive", 0, &|liar| {
            liar.say(DATA | RECEIVES, (60 << 10) + 1);
        }),
    ];
    for (rule, bytes, lie) in lies {
        on_both(async || {
            let (read, why) = ends_with(lie).await;
            let StreamError::Violation(what) = why else {
                panic!("{rule}: {why}");
            };
            assert!(what.contains(rule), "{rule}: {what}");
            assert_eq!(read, bytes, "{rule}");
        });
    }
}

#[test]
fn a_peer_gets_at_no_memory_of_a_stream() {
    on_both(async || {
        let (read, _) = ends_with(|liar| {
            liar.post(SendOp::Read(Remote::default()), 8);
        })
        .await;
        assert_eq!(read, 0);
        let (read, _) = ends_with(|liar| {
            liar.post(SendOp::Write(Remote::default()), 8);
        })
        .await;
        assert_eq!(read, 0);
    });
}

/// What becomes of the other end of a stream.
#[derive(Clone, Copy, Debug)]
enum After {
    Nothing,
    /// Its node ends.
    Gone,
    /// This end's node ends.
    ShutDown,
}

/// A liar that takes `receives` messages with bytes, and the other end of its stream.
async fn liar_and_stream(server: &Node, receives: u64) -> (Liar, Stream) {
    let listener = Listener::bind(server, at(server)).unwrap();
    let (liar, stream) = tokio::join!(Liar::connect(&HELLO, server), listener.accept());
    let liar = liar.unwrap();
    for wr_id in 0..receives {
        let sges = [liar.end.mr.sge(0, 4096)];
        let receive = RecvWr { wr_id, sges: &sges };
        liar.connection.qp().post_recv(&[receive]).unwrap();
    }
    (liar, stream.unwrap())
}

/// The rule that was broken, of a stream that ended so.
fn rule(error: &std::io::Error) -> &'static str {
    let why = error.get_ref().unwrap().downcast_ref::<StreamError>();
    match why {
        Some(StreamError::Violation(rule)) => rule,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_peer_that_takes_the_last_receive_for_bytes_keeps_no_writer_waiting() {
    for after in [After::Nothing, After::Gone, After::ShutDown] {
        on_both(async || {
            let server = node();
            let (liar, mut stream) = liar_and_stream(&server, RECEIVES.into()).await;
            let writer = tokio::spawn(async move {
                let error = stream.write_all(&vec![0; 1 << 20]).await.unwrap_err();
                (error, stream)
            });
            (0..OWN_RECEIVES).for_each(|_| liar.say(DATA | RECEIVES, 1));
            // The writer has used up what it was granted, and the liar all that there is.
            tokio::time::sleep(Duration::from_millis(50)).await;
            let liar = match after {
                After::Nothing => Some(liar),
                After::Gone => {
                    drop(liar);
                    None
                }
                After::ShutDown => {
                    let _ = server.shutdown(Duration::ZERO).await;
                    Some(liar)
                }
            };
            let (error, mut stream) = in_time(writer).await.unwrap();
            assert!(rule(&error).contains("granted no receive"), "{after:?}");
            // What came before is read, and then why there is no more.
            let mut got = Vec::new();
            let error = in_time(stream.read_to_end(&mut got)).await.unwrap_err();
            assert!(rule(&error).contains("granted no receive"), "{after:?}");
            assert_eq!(got.len(), OWN_RECEIVES - 1, "{after:?}");
            drop(liar);
        });
    }
}

#[test]
fn a_peer_that_wakes_nobody_and_dies_keeps_no_reader_waiting() {
    for after in [After::Gone, After::ShutDown] {
        on_both(async || {
            let server = node();
            let (liar, mut stream) = liar_and_stream(&server, 0).await;
            let reader = tokio::spawn(async move {
                let mut got = Vec::new();
                let error = stream.read_to_end(&mut got).await.unwrap_err();
                (rule(&error), got.len())
            });
            tokio::time::sleep(Duration::from_millis(50)).await;
            // Without the flag that asks for an event.
            let silent =
                |_| liar.post_with(SendOp::SendImm(DATA | RECEIVES), 1, SendFlags::SIGNALED);
            (0..OWN_RECEIVES).for_each(silent);
            for _ in 0..OWN_RECEIVES {
                in_time(liar.end.cq.next()).await.unwrap();
            }
            let liar = match after {
                After::ShutDown => {
                    let _ = server.shutdown(Duration::ZERO).await;
                    Some(liar)
                }
                _ => {
                    drop(liar);
                    None
                }
            };
            let (rule, read) = in_time(reader).await.unwrap();
            assert!(rule.contains("granted no receive"), "{after:?}: {rule}");
            assert_eq!(read, OWN_RECEIVES - 1, "{after:?}");
            drop(liar);
        });
    }
}

#[test]
fn a_message_that_only_grants_may_take_the_last_receive() {
    on_both(async || {
        let server = node();
        let (liar, mut stream) = liar_and_stream(&server, RECEIVES.into()).await;
        (1..OWN_RECEIVES).for_each(|_| liar.say(DATA | RECEIVES, 1));
        liar.say(CREDIT | RECEIVES, 0);
        for _ in 0..OWN_RECEIVES {
            in_time(liar.end.cq.next()).await.unwrap();
        }
        in_time(stream.read_exact(&mut [0; OWN_RECEIVES - 1]))
            .await
            .unwrap();
        in_time(stream.write_all(b"still here")).await.unwrap();
    });
}

#[test]
fn who_speaks_of_no_stream_is_refused_and_others_are_let_in() {
    on_both(async || {
        let server = node();
        let listener = Listener::bind(&server, at(&server)).unwrap();
        let accepts = tokio::spawn(async move { (listener.accept().await, listener) });
        let bad: [&[u8]; 4] = [
            b"",
            b"GET / HTTP/1",
            b"TLst\x02\x00\x00\x08\x00\x00\x10\x00",
            b"TLst\x01\x00\x00\x01\x00\x00\x10\x00",
        ];
        for hello in bad {
            let refused = Liar::connect(hello, &server).await.map(|_| ());
            let rejected = matches!(refused, Err(ConnectError::Rejected { .. }));
            assert!(rejected, "{refused:?}");
        }
        let client = node();
        let _stream = Stream::connect(&client, at(&server)).await.unwrap();
        accepts.await.unwrap().0.unwrap();
    });
}

#[test]
fn a_server_that_speaks_of_no_stream_is_left() {
    on_both(async || {
        let (end, client) = (End::new(), node());
        let listener = CmListener::bind(&end.node, end.at(), 4).unwrap();
        let server = end.at();
        let asks = tokio::spawn(async move { Stream::connect(&client, server).await });
        let request = listener.next().await.unwrap();
        let accepting = end.accepting(request, &options()).unwrap();
        let accepted = accepting.accept(&Params::default()).unwrap();
        let refused = asks.await.unwrap().unwrap_err();
        assert!(matches!(refused, OpenError::NoStream), "{refused}");
        in_time(accepted.ended()).await;
    });
}

fn why(error: &io::Error) -> StreamError {
    let inner = error.get_ref().unwrap().downcast_ref::<StreamError>();
    inner.unwrap().clone()
}

/// Long enough for what waits for nothing.
const PAUSE: Duration = Duration::from_millis(20);

impl Liar {
    /// Bytes come into all of its receives but one.
    async fn hears_all_but_one(&self, stream: &mut Stream) {
        (0..16).for_each(|id| self.end.receive(self.connection.qp(), id));
        for _ in 1..RECEIVES {
            stream.write_all(b"bytes").await.unwrap();
            assert_eq!(self.hear().await, DATA);
        }
    }

    /// The stream reads as much as is worth a message that says so.
    async fn is_read(&self, stream: &mut Stream) {
        (0..12).for_each(|_| self.say(DATA | RECEIVES, 8));
        stream.read_exact(&mut [0; 12 * 8]).await.unwrap();
    }
}

#[test]
fn the_last_receive_of_a_peer_is_left_to_what_grants_some() {
    on_both(async || {
        let (liar, mut stream) = Liar::of_stream().await;
        liar.hears_all_but_one(&mut stream).await;
        let more = tokio::time::timeout(PAUSE, stream.write_all(b"more")).await;
        assert!(more.is_err());
        let end = tokio::time::timeout(PAUSE, stream.shutdown()).await;
        assert!(end.is_err());
        liar.is_read(&mut stream).await;
        assert_eq!(liar.hear().await, CREDIT);
    });
}

#[test]
fn a_reader_that_could_not_grant_receives_does_so_as_soon_as_the_peer_grants_some() {
    on_both(async || {
        let (liar, mut stream) = Liar::of_stream().await;
        liar.hears_all_but_one(&mut stream).await;
        liar.is_read(&mut stream).await;
        assert_eq!(liar.hear().await, CREDIT);
        liar.is_read(&mut stream).await;
        let reader = tokio::spawn(async move { stream.read(&mut [0]).await });
        tokio::time::sleep(PAUSE).await;
        // A grant, which is not solicited, is all that comes.
        let grant = SendOp::SendImm(CREDIT | (RECEIVES + 1));
        liar.post_with(grant, 0, SendFlags::SIGNALED);
        assert_eq!(liar.hear().await, CREDIT);
        reader.abort();
    });
}

#[test]
fn a_peer_is_told_that_its_end_was_heard_before_the_connection_ends() {
    on_both(async || {
        let (liar, mut stream) = Liar::of_stream().await;
        (0..4).for_each(|id| liar.end.receive(liar.connection.qp(), id));
        stream.shutdown().await.unwrap();
        assert_eq!(liar.hear().await, END);
        liar.say(END | RECEIVES, 0);
        assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
        drop(stream);
        assert_eq!(liar.hear().await, HEARD);
        in_time(liar.connection.ended()).await;
    });
}

#[test]
fn bytes_that_did_not_arrive_are_no_success_though_the_peer_has_ended_before_it_left() {
    on_both(async || {
        // It has no receive.
        let (liar, mut stream) = Liar::of_stream().await;
        stream.write_all(b"lost").await.unwrap();
        liar.say(END | RECEIVES, 0);
        assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
        drop(liar);
        let lost = in_time(stream.shutdown()).await.unwrap_err();
        assert_eq!(why(&lost), StreamError::Reset);
    });
}

#[test]
fn an_end_that_has_arrived_stays_a_success_when_the_peer_has_left() {
    on_both(async || {
        let (liar, mut stream) = Liar::of_stream().await;
        (0..2).for_each(|id| liar.end.receive(liar.connection.qp(), id));
        stream.write_all(b"bytes").await.unwrap();
        stream.shutdown().await.unwrap();
        drop(liar);
        let left = in_time(stream.read(&mut [0])).await.unwrap_err();
        assert_eq!(why(&left), StreamError::Reset);
        stream.shutdown().await.unwrap();
    });
}

impl Liar {
    /// Nothing comes for a while.
    async fn hears_nothing(&self) {
        let heard = tokio::time::timeout(PAUSE, self.hear()).await;
        assert!(heard.is_err(), "{heard:?}");
    }

    /// It has receives again, so many since the beginning, and says so without waking anybody.
    fn grants(&self, posted: u32) {
        let grant = SendOp::SendImm(CREDIT | posted);
        self.post_with(grant, 0, SendFlags::SIGNALED);
    }
}

#[test]
fn that_an_end_was_heard_may_take_the_last_receive() {
    on_both(async || {
        let (liar, mut stream) = Liar::of_stream().await;
        liar.hears_all_but_one(&mut stream).await;
        liar.say(END | RECEIVES, 0);
        assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
        assert_eq!(liar.hear().await, HEARD);
    });
}

#[test]
fn nothing_at_all_is_said_to_a_peer_without_receives() {
    on_both(async || {
        let (liar, mut stream) = Liar::of_stream().await;
        liar.hears_all_but_one(&mut stream).await;
        liar.is_read(&mut stream).await;
        assert_eq!(liar.hear().await, CREDIT);
        liar.is_read(&mut stream).await;
        liar.hears_nothing().await;
        let reader = tokio::spawn(async move {
            let ended = stream.read(&mut [0]).await.unwrap();
            (ended, stream)
        });
        liar.grants(RECEIVES + 1);
        assert_eq!(liar.hear().await, CREDIT);
        liar.say(END | (RECEIVES + 1), 0);
        let (ended, mut stream) = reader.await.unwrap();
        assert_eq!(ended, 0);
        liar.hears_nothing().await;
        let writer = tokio::spawn(async move { stream.shutdown().await });
        liar.grants(RECEIVES + 2);
        assert_eq!(liar.hear().await, HEARD);
        writer.abort();
    });
}

#[test]
fn one_message_that_only_grants_is_under_way_at_a_time() {
    on_both(async || {
        let (liar, mut stream) = Liar::of_stream().await;
        // It has no receive yet, so none of them arrives.
        liar.is_read(&mut stream).await;
        liar.is_read(&mut stream).await;
        (0..11).for_each(|_| liar.say(DATA | RECEIVES, 8));
        stream.read_exact(&mut [0; 11 * 8]).await.unwrap();
        let reader = tokio::spawn(async move { stream.read(&mut [0]).await });
        (0..8).for_each(|id| liar.end.receive(liar.connection.qp(), id));
        let mut told = Vec::new();
        while told.len() < 2 {
            let done = in_time(liar.end.cq.next()).await.unwrap();
            if let (WorkOpcode::Receive, Extra::Immediate(word)) = (done.opcode, done.extra) {
                told.push(word);
            }
        }
        let own = OWN_RECEIVES as u32;
        let first = CREDIT | (own + 12);
        assert_eq!(told[0], first);
        assert!(told[1] >= CREDIT | (own + 35), "{told:?}");
        reader.abort();
    });
}
