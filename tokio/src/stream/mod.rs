//! Byte streams over QPs.
//!
//! A [`Stream`] is to QPs what a `TcpStream` is to sockets: bytes arrive once and in order, either
//! direction ends by itself, and who writes waits for who reads. Under it are SENDs from buffers
//! that the stream has registered, and credits, so that none comes before there is a receive for
//! it. What the two ends say is in docs/stream-format.md.
//!
//! ```
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//! use trunkline_tokio::Node;
//! use trunkline_tokio::stream::{Listener, Stream};
//!
//! # async fn program() -> Result<(), Box<dyn std::error::Error>> {
//! let node = |last| Node::new(trunkline::Node::builder().address([127, 9, 2, last].into()));
//! let (client, server) = (node(1)?, node(2)?);
//! let listener = Listener::bind(&server, "127.9.2.2:7471".parse()?)?;
//! let echo = tokio::spawn(async move {
//!     let mut stream = listener.accept().await?;
//!     let mut all = Vec::new();
//!     stream.read_to_end(&mut all).await?;
//!     stream.write_all(&all).await?;
//!     stream.shutdown().await?;
//!     Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
//! });
//! let mut stream = Stream::connect(&client, "127.9.2.2:7471".parse()?).await?;
//! stream.write_all(b"hello").await?;
//! stream.shutdown().await?;
//! let mut answer = String::new();
//! stream.read_to_string(&mut answer).await?;
//! assert_eq!(answer, "hello");
//! echo.await?.unwrap();
//! # Ok(())
//! # }
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
//! #     .block_on(program()).unwrap();
//! ```

mod error;
mod frame;
mod link;
mod listener;
mod reading;
mod writing;

pub use error::{OpenError, StreamError};
pub use listener::Listener;

use crate::node::Node;
use crate::rdma_cm::{ACK_TIMEOUT, Connecting, Connection};
use crate::waiters::{Waiter, Waiters, lock};
use frame::Hello;
use link::{CONTROLS, Link, OWN, REGION, SENDS};
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::coop::poll_proceed;
use trunkline::rdma_cm::Params;
use trunkline::rdma_cm::sync::Resources;
use trunkline::{Access, Cq, Error, Mr, Pd, QpOptions};

/// How long the way to a peer is looked for.
const RESOLVE_LIMIT: Duration = Duration::from_secs(5);
/// How long a stream that was dropped goes on until its peer has all that was written.
const LINGER: Duration = Duration::from_secs(10);

/// What a stream is made with, before there is a connection.
struct Parts {
    pd: Pd,
    cq: Cq,
    mr: Mr,
    options: QpOptions,
    waiters: Arc<Waiters>,
}

impl Parts {
    fn new(node: &Node) -> Result<Self, Error> {
        let options = QpOptions {
            max_send_wr: u32::from(SENDS + CONTROLS),
            max_recv_wr: OWN.receives.into(),
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
            ..QpOptions::default()
        };
        let waiters = Arc::new(Waiters::default());
        let depth = options.max_send_wr + options.max_recv_wr;
        let verbs = node.verbs();
        let cq = verbs.create_cq_notifying(depth, Arc::clone(&waiters) as _)?;
        node.shared().tell_end_to(&waiters);
        let pd = verbs.alloc_pd();
        Ok(Self {
            mr: pd.register(REGION, Access::LOCAL_WRITE)?,
            pd,
            cq,
            options,
            waiters,
        })
    }

    const fn resources(&self) -> Resources<'_> {
        Resources {
            pd: &self.pd,
            send_cq: &self.cq,
            recv_cq: &self.cq,
            options: &self.options,
        }
    }

    fn finish(self, connection: Connection, peer: Hello) -> Stream {
        // Its end may flush nothing that they would be woken by.
        connection.tell_end_to(&self.waiters);
        let queue = (self.cq, Arc::clone(&self.waiters));
        let link = Link::new(connection, self.mr, queue, peer);
        let both = Arc::new(Both {
            link: Mutex::new(link),
            waiters: self.waiters,
        });
        Stream {
            read: ReadHalf::new(&both),
            write: WriteHalf::new(both),
        }
    }
}

/// What both directions share.
#[derive(Debug)]
pub(crate) struct Both {
    link: Mutex<Link>,
    waiters: Arc<Waiters>,
}

impl Both {
    /// Has its turn: what was written and is not on its way yet is sent, and a reader that has had
    /// its share has another one.
    pub(crate) fn turn(&self) {
        self.turn_of(lock(&self.link));
    }

    /// The same, unless another thread uses the stream just now. Returns whether it did.
    pub(crate) fn try_turn(&self) -> bool {
        let link = match self.link.try_lock() {
            Ok(link) => Some(link),
            Err(TryLockError::Poisoned(link)) => Some(link.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        link.map(|link| self.turn_of(link)).is_some()
    }

    fn turn_of(&self, mut link: MutexGuard<'_, Link>) {
        link.send_open();
        let waits = link.unread.renew();
        drop(link);
        if waits {
            self.waiters.wake_all();
        }
    }

    /// Whether its reader waits for the next turn, as it has had its share of this one.
    fn gives_way(self: &Arc<Self>, cx: &Context<'_>, waiter: &mut Waiter) -> bool {
        let mut link = lock(&self.link);
        if !link.unread.is_share_over() {
            return false;
        }
        waiter.register(cx.waker());
        if link.shared().over() {
            // Without a driver there are no turns.
            link.unread.renew();
            return false;
        }
        if link.unread.wait() {
            link.shared().take_part_in_next_turn(self);
        }
        true
    }

    /// Tries something until it gives an answer, and waits for completions in between: a reader
    /// for those of messages. Whoever waits has armed the queue since its last look, so it is woken
    /// whichever direction takes the completion. Where the node has ended none of them comes any
    /// more, and the stream is over.
    fn poll<T>(
        &self,
        cx: &mut Context<'_>,
        waiter: &mut Waiter,
        reads: bool,
        mut attempt: impl FnMut(&mut Link) -> Option<T>,
    ) -> Poll<T> {
        let mut link = lock(&self.link);
        let (mut armed, mut over) = (false, false);
        loop {
            link.pump();
            match attempt(&mut link) {
                Some(answer) => return Poll::Ready(answer),
                None if over => link.end_with_node(),
                None if armed => return Poll::Pending,
                None => {
                    waiter.register(cx.waker());
                    link.arm(reads);
                    armed = true;
                    // What the node flushed as it ended is there by then.
                    over = link.shared().over();
                }
            }
        }
    }
}

/// A stream of bytes to a peer and from it.
///
/// `shutdown` ends what this end writes: the peer reads the end behind it, and when the call
/// returns the peer's node has all of it. What is read goes on. A stream that is dropped without is
/// ended in the background, within ten seconds, and what was not read is lost.
///
/// What is written goes when the task of the node has its next turn, with all that was written
/// before that; `flush` waits for nothing.
///
/// Reads, and messages that are begun, take of the budget that tokio gives each task for its turn,
/// so that whoever always finds something to do gives way to others all the same.
///
/// Futures of `AsyncReadExt` and `AsyncWriteExt` that are cancel safe over other streams are so
/// here. An error says why in a [`StreamError`].
#[derive(Debug)]
pub struct Stream {
    read: ReadHalf,
    write: WriteHalf,
}

impl Stream {
    /// Connects to a [`Listener`]. Dropping the future ends the attempt, and the peer hears so.
    ///
    /// # Errors
    /// There is no way, the peer does not want the connection or speaks of no stream, or the node
    /// has ended.
    pub async fn connect(node: &Node, peer: SocketAddr) -> Result<Self, OpenError> {
        let parts = Parts::new(node)?;
        let connecting = Connecting::to(node, &parts.resources(), peer, RESOLVE_LIMIT).await?;
        connecting.set(ACK_TIMEOUT)?;
        link::post_receives(connecting.qp(), &parts.mr)?;
        let connection = connecting.connect(&params(&OWN.emit())).await?;
        let hello = Hello::parse(connection.data()).ok_or(OpenError::NoStream)?;
        Ok(parts.finish(connection, hello))
    }

    /// Returns the address and port of this end, unless the node has ended.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        lock(&self.read.both.link).connection().local_addr()
    }

    /// Returns the address and port of the peer.
    pub fn peer_addr(&self) -> SocketAddr {
        lock(&self.read.both.link).connection().peer_addr()
    }

    /// Returns both directions, each of its own. The connection ends with the latter of them.
    pub fn into_split(self) -> (ReadHalf, WriteHalf) {
        (self.read, self.write)
    }
}

/// What both ends agree on beside their hello: credits see to it that receives are there.
fn params(hello: &[u8]) -> Params<'_> {
    Params {
        private_data: hello,
        ..Params::default()
    }
}

/// What a stream reads.
#[derive(Debug)]
pub struct ReadHalf {
    both: Arc<Both>,
    waiter: Waiter,
}

impl ReadHalf {
    fn new(both: &Arc<Both>) -> Self {
        Self {
            both: Arc::clone(both),
            waiter: Waiter::new(&both.waiters),
        }
    }
}

impl AsyncRead for ReadHalf {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let budget = ready!(poll_proceed(cx));
        let Self { both, waiter } = &mut *self;
        if both.gives_way(cx, waiter) {
            return Poll::Pending;
        }
        let read = ready!(both.poll(cx, waiter, true, |link| link.read(out)));
        budget.made_progress();
        Poll::Ready(Ok(read?))
    }
}

impl Drop for ReadHalf {
    fn drop(&mut self) {
        leave(&self.both, false);
    }
}

/// What a stream writes. Dropping it ends that direction.
#[derive(Debug)]
pub struct WriteHalf {
    both: Arc<Both>,
    waiter: Waiter,
}

impl WriteHalf {
    fn new(both: Arc<Both>) -> Self {
        let waiter = Waiter::new(&both.waiters);
        Self { both, waiter }
    }

    fn poll<T>(
        &mut self,
        cx: &mut Context<'_>,
        attempt: impl FnMut(&mut Link) -> Option<Result<T, StreamError>>,
    ) -> Poll<io::Result<T>> {
        let answer = self.both.poll(cx, &mut self.waiter, false, attempt);
        answer.map(|answer| Ok(answer?))
    }

    fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        data: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let budget = ready!(poll_proceed(cx));
        let Self { both, waiter } = self;
        let mut joined = false;
        let written = ready!(both.poll(cx, waiter, false, |link| {
            let (had_unsent, room) = (link.has_unsent(), link.room());
            let written = link.write(data);
            if link.has_unsent() && !had_unsent {
                link.shared().take_part_in_next_turn(both);
            }
            joined = had_unsent && link.room() == room;
            written
        }));
        // What joins a message costs nothing: small pieces go together, however many they are.
        if !joined || written.is_err() {
            budget.made_progress();
        }
        Poll::Ready(Ok(written?))
    }
}

impl AsyncWrite for WriteHalf {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        (*self).poll_write(cx, &[IoSlice::new(data)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        (*self).poll_write(cx, data)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(lock(&self.both.link).flush()?))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll(cx, Link::shut_down)
    }
}

impl Drop for WriteHalf {
    fn drop(&mut self) {
        leave(&self.both, true);
    }
}

/// A direction is dropped. The connection goes on in the background until the peer knows what it
/// has to: that it ended, where it was this end's.
fn leave(both: &Arc<Both>, ends: bool) {
    let mut link = lock(&both.link);
    if link.finish(ends).is_some() {
        return;
    }
    let runtime = link.shared().runtime.clone();
    drop(link);
    let (both, mut waiter) = (Arc::clone(both), Waiter::new(&both.waiters));
    runtime.spawn(async move {
        let finished = poll_fn(|cx| both.poll(cx, &mut waiter, false, |link| link.finish(ends)));
        // Whoever reads nothing for so long is not told of the end.
        let _ = tokio::time::timeout(LINGER, finished).await;
    });
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.read).poll_read(cx, out)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.write).poll_write(cx, data)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.write).poll_write_vectored(cx, data)
    }

    fn is_write_vectored(&self) -> bool {
        self.write.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.write).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.write).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests;
