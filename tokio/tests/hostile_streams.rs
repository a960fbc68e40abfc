//! Peers that break the rules of docs/stream-format.md: their stream ends with an error that says
//! which, and no other.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{End, in_time, node, on_both};
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use trunkline::rdma_cm::Params;
use trunkline::rdma_cm::sync::ConnectError;
use trunkline::{QpOptions, Remote, SendFlags, SendOp, SendWr};
use trunkline_tokio::Node;
use trunkline_tokio::rdma_cm::{Connection, Listener as CmListener};
use trunkline_tokio::stream::{Listener, OpenError, Stream, StreamError};

/// A hello with 8 receives of 4 KiB.
const HELLO: [u8; 12] = *b"TLst\x01\x00\x00\x08\x00\x00\x10\x00";
const RECEIVES: u32 = 8;
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
        let sges = [self.end.mr.sge(0, bytes)];
        let request = SendWr {
            wr_id: 0,
            op,
            flags: SendFlags::SIGNALED | SendFlags::SOLICITED,
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

#[test]
fn a_peer_that_sends_more_than_it_was_granted_waits_and_loses_nothing() {
    on_both(async || {
        const MESSAGES: usize = 100;
        let server = node();
        let listener = Listener::bind(&server, at(&server)).unwrap();
        let (liar, stream) = tokio::join!(Liar::connect(&HELLO, &server), listener.accept());
        let (liar, mut stream) = (liar.unwrap(), stream.unwrap());
        (0..4).for_each(|id| liar.end.receive(liar.connection.qp(), id));
        (0..MESSAGES).for_each(|_| liar.say(DATA | RECEIVES, 1000));
        let mut got = vec![0; MESSAGES * 1000];
        stream.read_exact(&mut got).await.unwrap();
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
