//! A request of a client and its response.
//!
//! Most requests are bytes that fit a message and have no deadline: what such a call keeps fits 80
//! bytes, as thousands of them wait at a time, and it allocates nothing.

use crate::calls::{Held, Outcome, Ticket};
use crate::client::Handle;
use crate::error::RpcError;
use crate::frame::{Body, Entry, HEADER, PLACE};
use crate::request::{Part, Request};
use bytes::Bytes;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::time::{Instant, Sleep};
use tracing::Span;

/// How far a call has come.
#[derive(Debug)]
enum Stage {
    /// The bytes of a request that go in a message as they are, until it has a turn.
    Short(Bytes, Ticket),
    /// Any other.
    Long(Box<Long>),
    Sent(u32),
    Over,
}

/// A request with bytes of its own in registered memory, or a place for its response.
#[derive(Debug)]
struct Long {
    request: Request,
    place: Option<Part>,
    /// What goes in the message, and what is held for it.
    prepared: Option<(Body, Held)>,
    ticket: Ticket,
}

/// When a call ends that has no response.
#[derive(Debug)]
enum Limit {
    None,
    /// So long after it was polled first.
    After(Duration),
    At(Pin<Box<Sleep>>),
}

/// A request and its response.
pub(crate) struct Exchange {
    client: Arc<Handle>,
    stage: Stage,
    limit: Limit,
    /// Where somebody wants to know of it.
    span: Option<Box<Span>>,
}

const _: () = assert!(size_of::<Exchange>() <= 80);

impl Exchange {
    #[inline]
    pub(crate) fn new(client: &Arc<Handle>, request: Request, place: Option<Part>) -> Self {
        let limit = request.time_left().map_or(Limit::None, Limit::After);
        let span = tracing::debug_span!("call", peer = %client.channel.peer);
        let is_short = place.is_none() && client.takes_in_message(&request);
        let stage = match is_short {
            true => Stage::Short(request.into_body(), None),
            false => Stage::Long(Box::new(Long {
                request,
                place,
                prepared: None,
                ticket: None,
            })),
        };
        Self {
            client: Arc::clone(client),
            stage,
            limit,
            span: (!span.is_disabled()).then(|| Box::new(span)),
        }
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Outcome, RpcError>> {
        let polled = self.poll_stage(cx);
        if let (Poll::Ready(Err(why)), Some(span)) = (&polled, &self.span) {
            span.in_scope(|| tracing::debug!("{why}"));
        }
        polled
    }

    fn poll_stage(&mut self, cx: &mut Context<'_>) -> Poll<Result<Outcome, RpcError>> {
        if let Limit::After(limit) = self.limit {
            // A deadline too far to be told apart from none is none.
            let at = Instant::now().checked_add(limit);
            let timer = at.map(|at| Box::pin(tokio::time::sleep_until(at)));
            self.limit = timer.map_or(Limit::None, Limit::At);
        }
        let polled = match &self.stage {
            Stage::Short(..) | Stage::Long(_) => self.send(cx.waker()),
            Stage::Sent(id) => self.receive(*id, cx.waker()),
            Stage::Over => panic!("a call was polled after its end"),
        };
        if polled.is_ready() {
            self.stage = Stage::Over;
            return polled;
        }
        if let Limit::At(timer) = &mut self.limit
            && timer.as_mut().poll(cx).is_ready()
        {
            self.abandon();
            return Poll::Ready(Err(RpcError::Deadline));
        }
        Poll::Pending
    }

    /// Sends the request, if it has a turn.
    fn send(&mut self, waker: &Waker) -> Poll<Result<Outcome, RpcError>> {
        let client = &self.client;
        if let Stage::Long(long) = &mut self.stage
            && long.prepared.is_none()
        {
            long.prepared = Some(client.prepare(&long.request, long.place.as_ref())?);
        }
        let mut state = client.channel.state();
        state.may_call()?;
        let ticket = match &mut self.stage {
            Stage::Short(_, ticket) => ticket,
            Stage::Long(long) => &mut long.ticket,
            Stage::Sent(_) | Stage::Over => return Poll::Pending,
        };
        let Poll::Ready(id) = state.calls().begin(ticket, waker) else {
            return Poll::Pending;
        };
        let (place, body) = match std::mem::replace(&mut self.stage, Stage::Sent(id)) {
            Stage::Short(body, _) => (None, Body::Here(body)),
            Stage::Long(long) => {
                let Some((body, held)) = long.prepared else {
                    unreachable!("it was prepared before it had its turn");
                };
                state.calls().hold(id, held);
                (long.place.as_ref().map(Part::extent), body)
            }
            Stage::Sent(_) | Stage::Over => unreachable!("it waited for its turn"),
        };
        let left = match &self.limit {
            Limit::At(timer) => Some(timer.deadline().saturating_duration_since(Instant::now())),
            Limit::None | Limit::After(_) => None,
        };
        state.outbox.push(&Entry::Request {
            id,
            deadline: left,
            place,
            body,
        });
        drop(state);
        client.channel.mark();
        Poll::Pending
    }

    fn receive(&self, id: u32, waker: &Waker) -> Poll<Result<Outcome, RpcError>> {
        let mut state = self.client.channel.state();
        let Poll::Ready((outcome, next)) = state.calls().poll(id, waker) else {
            return Poll::Pending;
        };
        drop(state);
        if let Some(next) = next {
            next.wake();
        }
        Poll::Ready(outcome)
    }

    /// Nobody waits for the response any more.
    fn abandon(&mut self) {
        let channel = &self.client.channel;
        let left = |ticket: Ticket| channel.state().calls().leave(ticket?);
        let next = match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Short(_, ticket) => left(ticket),
            Stage::Long(long) => left(long.ticket),
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

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("peer", &self.client.channel.peer)
            .field("stage", &self.stage)
            .finish_non_exhaustive()
    }
}

impl Handle {
    /// Whether a request is no more than bytes that go in a message.
    fn takes_in_message(&self, request: &Request) -> bool {
        let length = request.body().len();
        request.from().is_none()
            && length <= self.takes.max_body as usize
            && HEADER + length <= self.most
    }

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
