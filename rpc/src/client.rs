//! A handle to a server.

use crate::calls::{Held, Outcome};
use crate::channel::Channel;
use crate::endpoint::Inner;
use crate::error::RpcError;
use crate::frame::{Body, Entry, Extent, HEADER, PLACE};
use crate::hello::Hello;
use crate::request::{Part, Request};
use crate::transfers::{Memory, Then, Transfer};
use bytes::Bytes;
use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep};
use tower_service::Service;
use tracing::Span;
use trunkline::{Mr, Remote};

/// A handle to a server: one QP. Clones share it, and any number of tasks may call through them.
///
/// The connection ends with the last clone, and with the last call that was begun through one.
#[derive(Clone)]
pub struct Client(Arc<Handle>);

struct Handle {
    channel: Arc<Channel>,
    /// What the server takes, and the longest message to it.
    takes: Hello,
    most: usize,
    _endpoint: Arc<Inner>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.channel.close(RpcError::Closed);
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("peer", &self.0.channel.peer)
            .finish_non_exhaustive()
    }
}

impl Client {
    pub(crate) fn new(channel: Arc<Channel>, takes: Hello, endpoint: Arc<Inner>) -> Self {
        let most = takes.bytes.min(channel.lane.options.message_bytes) as usize;
        Self(Arc::new(Handle {
            channel,
            takes,
            most,
            _endpoint: endpoint,
        }))
    }

    /// Sends a request, and returns its response. The request is sent when the future is polled
    /// first, and cancelled where it is dropped before its end.
    ///
    /// It waits for a turn where the server has as many requests of this connection as it takes at
    /// a time.
    pub fn call(&self, request: impl Into<Request>) -> Call {
        Call(Exchange::new(&self.0, request.into(), None))
    }

    /// The same where the response is written to `length` bytes of a region that is registered with
    /// [`Endpoint::register`](crate::Endpoint::register), without a copy at this end. Returns how
    /// long it is. The bytes are the server's until then, and, where the caller stops waiting,
    /// until the connection ends.
    ///
    /// # Panics
    /// The range is empty, outside the region, or longer than 2 GiB.
    pub fn call_into(
        &self,
        request: impl Into<Request>,
        mr: &Arc<Mr>,
        offset: usize,
        length: usize,
    ) -> CallInto {
        let place = Part::of(mr, offset, length);
        let place = place.expect("the place of a response lies within its region");
        CallInto(Exchange::new(&self.0, request.into(), Some(place)))
    }

    /// Reads `length` bytes of the server's memory, which its program has told of, into a region
    /// that is registered with [`Endpoint::register`](crate::Endpoint::register): the server's
    /// program does not see it. Bytes that it writes meanwhile may be read in part.
    ///
    /// Where this future is dropped the bytes may still come.
    ///
    /// # Errors
    /// Why there is no connection any more; so it is where there is no such memory.
    ///
    /// # Panics
    /// The range is empty, outside the region, or longer than 2 GiB.
    pub async fn read(
        &self,
        from: Remote,
        mr: &Arc<Mr>,
        offset: usize,
        length: usize,
    ) -> Result<(), RpcError> {
        let part = Part::of(mr, offset, length);
        let part = part.expect("what is read goes to within its region");
        let (told, read) = oneshot::channel();
        let extent = Extent {
            remote: from,
            length: part.length,
        };
        let channel = &self.0.channel;
        channel.transfer(Transfer {
            memory: Memory::Part(part),
            extent,
            then: Then::Tell(told),
            written: None,
        })?;
        let failed = |_| self.failed().unwrap_or(RpcError::Reset);
        read.await.map_err(failed)
    }

    /// Returns the server's address.
    pub fn peer(&self) -> SocketAddr {
        self.0.channel.peer
    }

    /// Returns why no more requests can be sent, if so it is: what a call would end with.
    pub fn failed(&self) -> Option<RpcError> {
        let state = self.0.channel.state();
        let drains = state.peer_drains.then_some(RpcError::Draining);
        state.failed().cloned().or(drains)
    }
}

impl Service<Request> for Client {
    type Response = Bytes;
    type Error = RpcError;
    type Future = Call;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), RpcError>> {
        // The call itself waits for its turn.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Call {
        Self::call(self, request)
    }
}

/// How far a call has come.
#[derive(Debug)]
enum Stage {
    /// The request, until it has a turn; and what it waits under.
    Waits(Box<Waiting>),
    Sent(u32),
    Over,
}

#[derive(Debug)]
struct Waiting {
    request: Request,
    place: Option<Part>,
    ticket: Option<u64>,
    /// What goes in the message, and what is held for it.
    prepared: Option<(Body, Held)>,
}

/// A request and its response.
struct Exchange {
    client: Arc<Handle>,
    stage: Stage,
    limit: Option<Duration>,
    timer: Option<Pin<Box<Sleep>>>,
    span: Span,
}

impl Exchange {
    fn new(client: &Arc<Handle>, request: Request, place: Option<Part>) -> Self {
        let limit = request.time_left();
        let span = tracing::debug_span!("call", peer = %client.channel.peer);
        let waiting = Waiting {
            request,
            place,
            ticket: None,
            prepared: None,
        };
        Self {
            client: Arc::clone(client),
            stage: Stage::Waits(Box::new(waiting)),
            limit,
            timer: None,
            span,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Outcome, RpcError>> {
        let polled = self.poll_stage(cx);
        if let Poll::Ready(Err(why)) = &polled {
            self.span.in_scope(|| tracing::debug!("{why}"));
        }
        polled
    }

    fn poll_stage(&mut self, cx: &mut Context<'_>) -> Poll<Result<Outcome, RpcError>> {
        if let Some(limit) = self.limit.take() {
            // A deadline too far to be told apart from none is none.
            let at = Instant::now().checked_add(limit);
            self.timer = at.map(|at| Box::pin(tokio::time::sleep_until(at)));
        }
        let polled = match &self.stage {
            Stage::Waits(_) => self.send(cx.waker()),
            Stage::Sent(id) => self.receive(*id, cx.waker()),
            Stage::Over => panic!("a call was polled after its end"),
        };
        if polled.is_ready() {
            return polled;
        }
        if let Some(timer) = &mut self.timer
            && timer.as_mut().poll(cx).is_ready()
        {
            self.abandon();
            return Poll::Ready(Err(RpcError::Deadline));
        }
        Poll::Pending
    }

    /// Sends the request, if it has a turn.
    fn send(&mut self, waker: &Waker) -> Poll<Result<Outcome, RpcError>> {
        let (client, stage) = (&self.client, &mut self.stage);
        let Stage::Waits(waiting) = stage else {
            return Poll::Pending;
        };
        if waiting.prepared.is_none() {
            match client.prepare(&waiting.request, waiting.place.as_ref()) {
                Ok(prepared) => waiting.prepared = Some(prepared),
                Err(why) => {
                    *stage = Stage::Over;
                    return Poll::Ready(Err(why));
                }
            }
        }
        let mut state = client.channel.state();
        let over = state.failed().cloned();
        if let Some(why) = over.or(state.peer_drains.then_some(RpcError::Draining)) {
            drop(state);
            *stage = Stage::Over;
            return Poll::Ready(Err(why));
        }
        let Waiting {
            place,
            ticket,
            prepared,
            ..
        } = &mut **waiting;
        let begun = state.calls().begin(ticket, waker);
        let Poll::Ready(id) = begun else {
            return Poll::Pending;
        };
        let Some((body, held)) = prepared.take() else {
            return Poll::Pending;
        };
        state.calls().hold(id, held);
        let timer = self.timer.as_ref();
        let left = timer.map(|timer| timer.deadline().saturating_duration_since(Instant::now()));
        state.outbox.push(&Entry::Request {
            id,
            deadline: left,
            place: place.as_ref().map(Part::extent),
            body,
        });
        drop(state);
        client.channel.lane.counters.requests_sent.add(1);
        client.channel.mark();
        *stage = Stage::Sent(id);
        Poll::Pending
    }

    fn receive(&mut self, id: u32, waker: &Waker) -> Poll<Result<Outcome, RpcError>> {
        let mut state = self.client.channel.state();
        let Poll::Ready((outcome, next)) = state.calls().poll(id, waker) else {
            return Poll::Pending;
        };
        drop(state);
        self.stage = Stage::Over;
        if let Some(next) = next {
            next.wake();
        }
        Poll::Ready(outcome)
    }

    /// Nobody waits for the response any more.
    fn abandon(&mut self) {
        let stage = std::mem::replace(&mut self.stage, Stage::Over);
        let channel = &self.client.channel;
        let next = match stage {
            Stage::Waits(waiting) => {
                let left = |ticket| channel.state().calls().leave(ticket);
                waiting.ticket.and_then(left)
            }
            Stage::Sent(id) => {
                let mut state = channel.state();
                let (tells, next) = state.calls().abandon(id);
                if tells {
                    state.outbox.push(&Entry::Cancel { id });
                }
                drop(state);
                if tells {
                    channel.lane.counters.requests_abandoned.add(1);
                    channel.mark();
                }
                next
            }
            Stage::Over => None,
        };
        if let Some(next) = next {
            next.wake();
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.abandon();
    }
}

impl Handle {
    /// What a request carries, and what is held for it.
    ///
    /// # Errors
    /// It is too long for the server, or for the memory of this end.
    fn prepare(&self, request: &Request, place: Option<&Part>) -> Result<(Body, Held), RpcError> {
        let place = place.map(|part| (Arc::clone(&part.mr), part.length));
        let used = HEADER + place.as_ref().map_or(0, |_| PLACE);
        let (from, mut held) = (request.from(), request.held());
        held.place = place;
        let body = request.body();
        let length = from.map_or(body.len(), |part| part.length as usize);
        if length > self.takes.max_body as usize {
            return Err(RpcError::TooLong);
        }
        if let Some(part) = from {
            return Ok((Body::At(part.extent()), held));
        }
        if used + length <= self.most {
            return Ok((Body::Here(body.clone()), held));
        }
        let copy = self.channel.lane.regions.offer(body);
        let copy = copy.ok_or(RpcError::NoMemory)?;
        let extent = copy.extent();
        held.copy = Some(copy);
        Ok((Body::At(extent), held))
    }
}

/// A [request](Client::call) under way.
#[must_use = "nothing is sent before it is polled"]
pub struct Call(Exchange);

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Future for Call {
    type Output = Result<Bytes, RpcError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(cx).map_ok(|outcome| match outcome {
            Outcome::Bytes(bytes) => bytes,
            Outcome::Written(_) => unreachable!("the request has no place"),
        })
    }
}

/// A [request whose response is written to a place](Client::call_into) under way.
#[must_use = "nothing is sent before it is polled"]
pub struct CallInto(Exchange);

impl fmt::Debug for CallInto {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("peer", &self.client.channel.peer)
            .field("stage", &self.stage)
            .finish_non_exhaustive()
    }
}

impl Future for CallInto {
    type Output = Result<usize, RpcError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(cx).map(|outcome| match outcome? {
            Outcome::Written(length) => Ok(length as usize),
            Outcome::Bytes(_) => Err(RpcError::Violation("a response is not in its place")),
        })
    }
}
