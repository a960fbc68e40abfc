//! Peers that break the rules of docs/rpc-format.md: their connection ends with an error that says
//! which, and no other.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[path = "../common/mod.rs"]
mod common;
mod shares;

use bytes::Bytes;
use common::{End, at, echo, endpoint, node, on_both, pair, until};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use trunkline::rdma_cm::Params;
use trunkline::{Completion, Mr, QpOptions, RecvWr, Remote, Rkey, SendWr};
use trunkline_rpc::{Client, Endpoint, OpenError, Options, Refusal, Request, RpcError, Server};
use trunkline_tokio::Node;
use trunkline_tokio::rdma_cm::{Connection, Listener};

/// A hello with 64 receives of 4,096 bytes, 16 requests at a time, and bodies of up to 1 MiB.
const HELLO: [u8; 18] = *b"TLrp\x01\x00\x00\x40\x00\x10\x00\x00\x10\x00\x00\x10\x00\x00";
const RECEIVES: usize = 64;

const REQUEST: u8 = 1;
const RESPONSE: u8 = 2;
const WRITTEN: u8 = 3;
const REFUSED: u8 = 4;
const CANCEL: u8 = 5;
const RELEASE: u8 = 6;
const AT: u8 = 1;

/// An entry: ID, kind, flags, length, the last word, what it carries.
fn entry(id: u32, kind: u8, flags: u8, length: u32, last: u32, carried: &[u8]) -> Vec<u8> {
    let mut entry = id.to_be_bytes().to_vec();
    entry.extend([kind, flags, 0, 0]);
    entry.extend(length.to_be_bytes());
    entry.extend(last.to_be_bytes());
    entry.extend(carried);
    entry
}

fn request(id: u32, body: &[u8]) -> Vec<u8> {
    entry(id, REQUEST, 0, body.len() as u32, 0, body)
}

fn extent(remote: Remote) -> Vec<u8> {
    let mut extent = remote.addr.to_be_bytes().to_vec();
    extent.extend(remote.rkey.0.to_be_bytes());
    extent
}

/// An end that says by hand what ends say.
struct Liar {
    end: End,
    connection: Connection,
    posted: u16,
    /// Messages that were said, and those that have not gone.
    said: Cell<usize>,
    under_way: Cell<usize>,
}

fn options() -> QpOptions {
    QpOptions {
        max_send_wr: 256,
        max_recv_wr: 256,
        ..QpOptions::default()
    }
}

fn params(hello: &[u8]) -> Params<'_> {
    Params {
        private_data: hello,
        responder_resources: 8,
        initiator_depth: 8,
        ..Params::default()
    }
}

fn post_receives(end: &End, qp: &trunkline::Qp) {
    for slot in 0..RECEIVES {
        let sges = [end.mr.sge(slot * 4096, 4096)];
        let receive = RecvWr::new().wr_id(slot as u64).sges(&sges);
        qp.post_recv(&[receive]).unwrap();
    }
}

impl Liar {
    const fn new(end: End, connection: Connection) -> Self {
        Self {
            end,
            connection,
            posted: RECEIVES as u16,
            said: Cell::new(0),
            under_way: Cell::new(0),
        }
    }

    async fn connect(node: &Node, server: &Endpoint) -> Self {
        let end = End::of(node.clone());
        let connecting = end.connecting(at(server), &options()).await.unwrap();
        post_receives(&end, connecting.qp());
        let connection = connecting.connect(&params(&HELLO)).await.unwrap();
        Self::new(end, connection)
    }

    /// A server that answers by hand, and a client of it.
    async fn accept(
        node: &Node,
        near: &Endpoint,
        hello: &[u8],
    ) -> (Self, Result<Client, OpenError>) {
        let end = End::of(node.clone());
        let listener = Listener::bind(node, end.at(), 8).unwrap();
        let accepted = async {
            let request = listener.next().await.unwrap();
            let accepting = end.accepting(request, &options()).unwrap();
            post_receives(&end, accepting.qp());
            accepting.accept(&params(hello)).unwrap()
        };
        let (connection, client) = tokio::join!(accepted, near.connect(end.at()));
        (Self::new(end, connection), client)
    }

    fn qp(&self) -> &trunkline::Qp {
        self.connection.qp()
    }

    fn next_place(&self) -> usize {
        let said = self.said.get();
        self.said.set(said + 1);
        said % 64
    }

    /// Says a message with this word.
    fn say_with(&self, word: u32, message: &[u8]) {
        // Each has bytes of its own until it has gone.
        let from = RECEIVES * 4096 + self.next_place() * 1024;
        self.end.mr.write(from, message).unwrap();
        let sges = [self.end.mr.sge(from, message.len())];
        let send = SendWr::send_imm(word).wr_id(1000).signaled();
        let send = if message.is_empty() {
            send
        } else {
            send.sges(&sges)
        };
        self.qp().post_send(&[send]).unwrap();
        self.under_way.set(self.under_way.get() + 1);
    }

    fn say(&self, message: &[u8]) {
        self.say_with(self.posted.into(), message);
    }

    /// Whether it may post one more message: those that were answered have made room.
    fn may_say(&self) -> bool {
        let mut done = [Completion::BLANK; 16];
        let count = self.end.cq.verbs().poll(&mut done).unwrap();
        let sent = done[..count].iter().filter(|done| done.wr_id == 1000);
        self.under_way.set(self.under_way.get() - sent.count());
        self.under_way.get() < 64
    }

    /// The ID of the next request that comes.
    async fn asked(&mut self) -> u32 {
        let asked = self.hear().await;
        u32::from_be_bytes(asked[..4].try_into().unwrap())
    }

    /// The next message that comes.
    async fn hear(&mut self) -> Vec<u8> {
        loop {
            let done: Completion = self.end.cq.next().await.unwrap();
            if done.wr_id < 1000 {
                let mut message = vec![0; done.byte_len as usize];
                self.end
                    .mr
                    .read(done.wr_id as usize * 4096, &mut message)
                    .unwrap();
                let sges = [self.end.mr.sge(done.wr_id as usize * 4096, 4096)];
                let receive = RecvWr::new().wr_id(done.wr_id).sges(&sges);
                self.qp().post_recv(&[receive]).unwrap();
                self.posted = self.posted.wrapping_add(1);
                return message;
            }
        }
    }
}

/// The same, with the first bytes of a region as the place of the response.
fn calling_into(
    client: &Client,
    mr: &Arc<Mr>,
    place: usize,
) -> JoinHandle<Result<usize, RpcError>> {
    let (client, mr) = (client.clone(), Arc::clone(mr));
    tokio::spawn(async move { client.call_into("hello", &mr, 0, place).await })
}

/// A server, an honest client of it, and where liars are at home.
struct World {
    far: Endpoint,
    _server: Server,
    honest: Client,
    near: Endpoint,
    home: Node,
}

impl World {
    async fn new() -> Self {
        let (far, server, near, honest) = pair(Options::default()).await;
        Self {
            far,
            _server: server,
            honest,
            near,
            home: node(),
        }
    }

    async fn liar(&self) -> Liar {
        Liar::connect(&self.home, &self.far).await
    }

    async fn goes_on(&self) {
        assert_eq!(self.honest.call("on").await.unwrap(), "on");
    }

    /// A client says this, which is a violation: its connection ends, and another goes on.
    async fn violates(&self, what: &str, lie: impl Fn(&Liar)) {
        let before = self.far.counters();
        let liar = self.liar().await;
        lie(&liar);
        until(|| self.far.counters().connections_closed > before.connections_closed).await;
        let violations = self.far.counters().violations;
        assert_eq!(violations, before.violations + 1, "{what}");
        self.goes_on().await;
    }

    /// A server that answers by hand, and a client of it.
    async fn accept(&self, hello: &[u8]) -> (Liar, Result<Client, OpenError>) {
        Liar::accept(&self.home, &self.near, hello).await
    }

    /// A server answers a request so, which is a violation.
    async fn breaks(&self, what: &str, answer: impl Fn(u32) -> Vec<u8>) {
        let before = self.near.counters().violations;
        let (mut liar, client) = self.accept(&HELLO).await;
        let client = client.unwrap();
        let call = calling(&client);
        let id = liar.asked().await;
        liar.say(&answer(id));
        let why = call.await.unwrap().unwrap_err();
        assert!(matches!(why, RpcError::Violation(_)), "{what}: {why:?}");
        assert_eq!(self.near.counters().violations, before + 1, "{what}");
        assert!(client.failed().is_some(), "{what}");
    }
}

fn calling(client: &Client) -> JoinHandle<Result<Bytes, RpcError>> {
    let client = client.clone();
    tokio::spawn(async move { client.call("hello").await })
}

#[test]
fn whatever_no_client_says_ends_its_connection_and_no_other() {
    on_both(async || {
        let good = request(1, b"hello");
        let world = World::new().await;
        for length in 1..good.len() {
            world
                .violates("cut short", |liar| liar.say(&good[..length]))
                .await;
        }
        let messages: &[(&str, Vec<u8>)] = &[
            ("overrun", entry(1, REQUEST, 0, 6, 0, b"hello")),
            (
                "overrun by much",
                entry(1, REQUEST, 0, u32::MAX, 0, b"hello"),
            ),
            ("no kind", entry(1, 0, 0, 0, 0, &[])),
            ("another kind", entry(1, 7, 0, 0, 0, &[])),
            ("a flag", entry(1, REQUEST, 4, 0, 0, &[0; 16])),
            ("memory of no bytes", entry(1, REQUEST, AT, 0, 0, &[0; 12])),
            ("a response", entry(1, RESPONSE, 0, 0, 0, &[])),
            ("a written one", entry(1, WRITTEN, 0, 0, 0, &[])),
            ("a refusal", entry(1, REFUSED, 0, 0, 0, &[])),
            ("a release of nothing", entry(1, RELEASE, 0, 0, 0, &[])),
            ("a cancel with a length", entry(1, CANCEL, 0, 1, 0, &[])),
            ("nonsense behind", [&good[..], b"x"].concat()),
            ("an ID beyond the last one", request(1024, b"x")),
        ];
        for (what, message) in messages {
            world.violates(what, |liar| liar.say(message)).await;
        }
        world
            .violates("reserved bits", |liar| liar.say_with(1 << 16, &good))
            .await;
        world
            .violates("too many granted", |liar| liar.say_with(65, &good))
            .await;
        world
            .violates("granted less", |liar| liar.say_with(63, &good))
            .await;
        world
            .violates("more messages than were granted", |liar| {
                (0..200).for_each(|_| liar.say(&[]));
            })
            .await;
        world
            .violates("no word", |liar| {
                let sges = [liar.end.mr.sge(0, 16)];
                liar.qp().post_send(&[SendWr::send().sges(&sges)]).unwrap();
            })
            .await;
    });
}

#[test]
fn more_requests_than_allowed_and_ids_that_repeat_are_violations() {
    on_both(async || {
        let options = Options {
            requests: 4,
            ..Options::default()
        };
        let (far, home) = (endpoint(options), node());
        let running = Arc::new(());
        let holds = Arc::clone(&running);
        let never = tower::service_fn(move |_| {
            let holds = Arc::clone(&holds);
            async move {
                std::future::pending::<()>().await;
                drop(holds);
                Ok::<_, Refusal>(Bytes::new())
            }
        });
        let _server = far.listen(at(&far), never).unwrap();
        let ids = [
            (1, [0, 1, 2, 3, 4]),
            (2, [0, 1, 2, 2, 3]),
            // Another request with the same low half.
            (3, [0, 1, 2, 0x1_0002, 3]),
        ];
        for (at, ids) in ids {
            // In one message, and in one each.
            for each in [5, 1] {
                let liar = Liar::connect(&home, &far).await;
                let all: Vec<_> = ids.iter().map(|id| request(*id, b"x")).collect();
                all.chunks(each).for_each(|some| liar.say(&some.concat()));
                let closed = 2 * at - u64::from(each == 5);
                until(|| far.counters().connections_closed == closed).await;
                assert_eq!(far.counters().violations, closed, "{ids:?}");
                // All that the connection had is gone: what is left is the listener's.
                until(|| Arc::strong_count(&running) <= 2).await;
            }
        }
    });
}

#[test]
fn ids_that_repeat_in_one_message_are_a_violation_too() {
    on_both(async || {
        let world = World::new().await;
        let twice = [request(3, b"x"), request(3, b"y")].concat();
        world.violates("an ID twice", |liar| liar.say(&twice)).await;
    });
}

#[test]
fn a_cancel_in_the_message_of_its_request_keeps_the_service_from_beginning() {
    on_both(async || {
        let world = World::new().await;
        let mut liar = world.liar().await;
        let cancel = entry(7, CANCEL, 0, 0, 0, &[]);
        liar.say(&[request(7, b"x"), cancel].concat());
        let answer = liar.hear().await;
        assert_eq!(answer[..5], [0, 0, 0, 7, REFUSED]);
        assert_eq!(answer[12..16], [0, 0, 0, 3], "it was cancelled");
        assert_eq!(world.far.counters().requests_cancelled, 1);
        world.goes_on().await;
    });
}

#[test]
fn a_write_with_immediate_however_long_is_a_violation_and_no_more() {
    on_both(async || {
        let world = World::new().await;
        // The client shows the server where it may write, which writes too much and says so.
        let (mut liar, client) = world.accept(&HELLO).await;
        let mr = world.near.register(2 << 20).unwrap();
        let call = calling_into(&client.unwrap(), &mr, 2 << 20);
        liar.asked().await;
        // More than all buffers that are registered at a time.
        let sges = [(); 4].map(|()| liar.end.mr.sge(0, 300_000));
        let write = SendWr::write_imm(mr.remote(0), liar.posted.into()).sges(&sges);
        liar.qp().post_send(&[write]).unwrap();
        let why = call.await.unwrap().unwrap_err();
        assert!(matches!(why, RpcError::Violation(_)), "{why:?}");
        world.goes_on().await;
    });
}

#[test]
fn a_client_that_names_memory_it_has_not_ends_alone() {
    on_both(async || {
        let world = World::new().await;
        let mut liar = world.liar().await;
        let wrong = Remote {
            rkey: Rkey(liar.end.mr.rkey().0 ^ 0x5555_0000),
            ..liar.end.mr.remote(0)
        };
        liar.say(&entry(1, REQUEST, AT, 9000, 0, &extent(wrong)));
        until(|| world.far.counters().connections_closed == 1).await;
        world.goes_on().await;
        // One that names its own is served.
        liar = world.liar().await;
        let own = liar.end.mr.remote(0);
        liar.say(&entry(7, REQUEST, AT, 9000, 0, &extent(own)));
        let answer = liar.hear().await;
        assert_eq!(answer[..5], [0, 0, 0, 7, RESPONSE]);
        assert_eq!(answer[5], AT, "it is to be read");
    });
}

#[test]
fn a_client_that_reads_no_responses_is_bounded_and_harms_nobody() {
    on_both(async || {
        let world = World::new().await;
        let liar = world.liar().await;
        // It posts no receive again, and asks on though nobody can tell it of more room: it gets
        // what it has room for, and more messages than it was granted are a violation.
        let mut asked = 0;
        while world.far.counters().violations == 0 {
            assert!(asked < 5000, "its requests are bounded");
            if liar.may_say() {
                liar.say(&request(asked % 1024, &[0; 1000]));
                asked += 1;
            }
            tokio::task::yield_now().await;
        }
        assert!(asked > 8, "{asked}");
        // Four of them fit a message.
        let sent = world.far.counters().responses_sent;
        assert!(sent <= 4 * (RECEIVES as u64 - 1), "{sent}");
        world.goes_on().await;
    });
}

#[test]
fn whatever_no_server_says_ends_its_connection() {
    on_both(async || {
        let world = World::new().await;
        world
            .breaks("another's", |id| entry(id + 1, RESPONSE, 0, 0, 0, &[]))
            .await;
        world
            .breaks("an old one", |id| {
                entry(id ^ 0x1_0000, RESPONSE, 0, 0, 0, &[])
            })
            .await;
        world.breaks("a request", |id| request(id, b"x")).await;
        world
            .breaks("a cancel", |id| entry(id, CANCEL, 0, 0, 0, &[]))
            .await;
        world
            .breaks("a release", |id| entry(id, RELEASE, 0, 0, 0, &[]))
            .await;
        world
            .breaks("written nowhere", |id| entry(id, WRITTEN, 0, 1, 0, &[]))
            .await;
        world
            .breaks("no reason", |id| entry(id, REFUSED, 0, 0, 9, &[]))
            .await;
        world
            .breaks("overrun", |id| entry(id, RESPONSE, 0, 2, 0, b"x"))
            .await;
        let at = |id: u32| entry(id, RESPONSE, AT, 0, 0, &[0; 12]);
        world.breaks("memory of no bytes", at).await;
    });
}

#[test]
fn a_server_that_answers_twice_gives_one_answer() {
    on_both(async || {
        let world = World::new().await;
        let (mut liar, client) = world.accept(&HELLO).await;
        let call = calling(&client.unwrap());
        let id = liar.asked().await;
        let twice = [
            entry(id, RESPONSE, 0, 3, 0, b"one"),
            entry(id, RESPONSE, 0, 3, 0, b"two"),
        ];
        liar.say(&twice.concat());
        assert_eq!(call.await.unwrap().unwrap(), "one");
        until(|| world.near.counters().violations == 1).await;
    });
}

#[test]
fn a_server_that_never_answers_meets_the_deadline() {
    on_both(async || {
        let world = World::new().await;
        let (_liar, client) = world.accept(&HELLO).await;
        let client = client.unwrap();
        for _ in 0..16 {
            let request = Request::new("hello").deadline(Duration::from_millis(5));
            assert_eq!(client.call(request).await, Err(RpcError::Deadline));
        }
        // All that it takes at a time are with it: a further one waits, and is not sent.
        let request = Request::new("hello").deadline(Duration::from_millis(5));
        assert_eq!(client.call(request).await, Err(RpcError::Deadline));
        assert_eq!(world.near.counters().requests_sent, 16);
    });
}

#[test]
fn a_server_that_writes_more_than_the_place_holds_ends() {
    on_both(async || {
        let world = World::new().await;
        let (mut liar, client) = world.accept(&HELLO).await;
        let mr = world.near.register(100).unwrap();
        let call = calling_into(&client.unwrap(), &mr, 50);
        let id = liar.asked().await;
        liar.say(&entry(id, WRITTEN, 0, 51, 0, &[]));
        let why = call.await.unwrap().unwrap_err();
        assert!(matches!(why, RpcError::Violation(_)), "{why:?}");
    });
}

#[test]
fn a_server_that_offers_memory_it_has_not_ends() {
    on_both(async || {
        let world = World::new().await;
        let (mut liar, client) = world.accept(&HELLO).await;
        let call = calling(&client.unwrap());
        let id = liar.asked().await;
        let nowhere = Remote {
            addr: 8,
            ..liar.end.mr.remote(0)
        };
        liar.say(&entry(id, RESPONSE, AT, 5000, 0, &extent(nowhere)));
        let why = call.await.unwrap().unwrap_err();
        // Its QP is in error by then, and its node may say so first.
        let ended = matches!(why, RpcError::Violation(_) | RpcError::Closed);
        assert!(ended, "{why:?}");
        until(|| world.near.counters().connections_closed == 1).await;
    });
}

#[test]
fn a_peer_that_speaks_of_something_else_is_no_server() {
    on_both(async || {
        let mut other = HELLO;
        other[2] = b's';
        let mut client_only = HELLO;
        client_only[8..10].fill(0);
        let world = World::new().await;
        for hello in [&other[..], &client_only, &HELLO[..7], &[]] {
            let (_liar, client) = world.accept(hello).await;
            assert!(matches!(client, Err(OpenError::NoServer)), "{hello:?}");
        }
    });
}

/// A server that takes four requests at a time, of up to 10,000 bytes, and a liar that calls it.
async fn of_four() -> (Endpoint, Server, Liar) {
    let options = Options {
        requests: 4,
        max_body: 10_000,
        ..Options::default()
    };
    let far = endpoint(options);
    let server = echo(&far);
    let liar = Liar::connect(&node(), &far).await;
    (far, server, liar)
}

/// Requests that are too long, and so refused at once, in one message.
fn refused(count: usize) -> Vec<u8> {
    entry(3, REQUEST, AT, 10_001, 0, &extent(Remote::default())).repeat(count)
}

impl Liar {
    /// So many refusals come in one message.
    async fn is_refused(&mut self, count: usize) {
        let answer = self.hear().await;
        let refused = entry(3, REFUSED, 0, 0, 4, &[]);
        assert_eq!(answer, refused.repeat(count), "they are too long");
    }

    /// A response comes that is to be read.
    async fn is_lent(&mut self, id: u32, length: u32) {
        self.say(&entry(
            id,
            REQUEST,
            AT,
            length,
            0,
            &extent(self.end.mr.remote(0)),
        ));
        let answer = self.hear().await;
        let lent = entry(id, RESPONSE, AT, length, 0, &[]);
        assert_eq!(answer[..lent.len()], lent);
    }
}

#[test]
fn a_request_that_was_refused_counts_until_its_refusal_has_gone_out() {
    on_both(async || {
        let (far, _server, mut liar) = of_four().await;
        for _ in 0..3 {
            liar.say(&refused(4));
            liar.is_refused(4).await;
        }
        assert_eq!(far.counters().violations, 0);
        liar.say(&refused(5));
        until(|| far.counters().violations == 1).await;
    });
}

#[test]
fn a_response_counts_as_a_request_under_way_until_it_was_read() {
    on_both(async || {
        let (far, _server, mut liar) = of_four().await;
        liar.is_lent(0, 9000).await;
        liar.is_lent(1, 9000).await;
        liar.say(&refused(2));
        liar.is_refused(2).await;
        let release = |id| entry(id, RELEASE, 0, 0, 0, &[]);
        liar.say(&[release(0), release(1), refused(4)].concat());
        liar.is_refused(4).await;
        liar.is_lent(2, 9000).await;
        assert_eq!(far.counters().violations, 0);
        liar.say(&refused(4));
        until(|| far.counters().connections_closed == 1).await;
        let counted = far.counters();
        assert_eq!(counted.violations, 1);
        assert_eq!(counted.requests_cancelled, 0, "all of them were answered");
    });
}

#[test]
fn what_is_longer_than_the_server_takes_is_refused_however_it_comes() {
    on_both(async || {
        let options = Options {
            max_body: 100,
            ..Options::default()
        };
        let far = endpoint(options);
        let _server = echo(&far);
        let mut liar = Liar::connect(&node(), &far).await;
        let own = extent(liar.end.mr.remote(0));
        let at = |id, length| entry(id, REQUEST, AT, length, 0, &own);
        liar.say(&[request(1, &[7; 101]), at(2, 101)].concat());
        let too_long = |id| entry(id, REFUSED, 0, 0, 4, &[]);
        assert_eq!(liar.hear().await, [too_long(1), too_long(2)].concat());
        liar.say(&request(1, &[7; 100]));
        let echoed = entry(1, RESPONSE, 0, 100, 0, &[7; 100]);
        assert_eq!(liar.hear().await, echoed);
        liar.say(&at(2, 100));
        assert_eq!(liar.hear().await[..6], [0, 0, 0, 2, RESPONSE, 0]);
        assert_eq!(far.counters().requests_received, 2);
    });
}

#[test]
fn the_end_of_a_service_that_was_cancelled_answers_no_later_request_under_its_id() {
    on_both(async || {
        let (far, home) = (endpoint(Options::default()), node());
        let gate = Arc::new(Semaphore::new(0));
        let by = Arc::clone(&gate);
        let service = tower::service_fn(move |request: Request| {
            let gate = Arc::clone(&by);
            async move {
                gate.acquire().await.unwrap().forget();
                Ok::<_, Refusal>(request.into_body())
            }
        });
        let _server = far.listen(at(&far), service).unwrap();
        let mut liar = Liar::connect(&home, &far).await;
        liar.say(&request(7, b"first"));
        until(|| far.counters().requests_received == 1).await;
        let cancel = entry(7, CANCEL, 0, 0, 0, &[]);
        liar.say(&[cancel, request(7, b"later")].concat());
        let cancelled = entry(7, REFUSED, 0, 0, 3, &[]);
        assert_eq!(liar.hear().await, cancelled);
        until(|| far.counters().requests_received == 2).await;
        gate.add_permits(1);
        let echoed = entry(7, RESPONSE, 0, 5, 0, b"later");
        assert_eq!(liar.hear().await, echoed);
    });
}
