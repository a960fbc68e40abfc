//! How a server hands requests to its service.

use crate::channel::Channel;
use crate::error::Refusal;
use crate::frame::Extent;
use crate::lock;
use crate::request::Request;
use crate::served::{Answer, Failure};
use crate::state::Role;
use bytes::Bytes;
use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::task::AbortHandle;
use tower_service::Service;
use tracing::Instrument;

/// A request that has come in full.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) channel: Arc<Channel>,
    /// Its ID, and what tells it apart from a later one under the same.
    pub(crate) id: (u32, u32),
    pub(crate) deadline: Option<Duration>,
    pub(crate) place: Option<Extent>,
    pub(crate) body: Bytes,
}

type Response = Pin<Box<dyn Future<Output = Result<Bytes, Refusal>> + Send>>;

/// A service of any type.
pub(crate) trait Serve: Send {
    /// Begins a request.
    fn call(&mut self, request: Request) -> Response;
}

/// The service of one connection.
pub(crate) struct Served<S>(pub(crate) S);

impl<S> Serve for Served<S>
where
    S: Service<Request> + Clone + Send + 'static,
    S::Response: Into<Bytes>,
    S::Error: Into<Refusal>,
    S::Future: Send + 'static,
{
    fn call(&mut self, request: Request) -> Response {
        let mut cx = Context::from_waker(Waker::noop());
        match self.0.poll_ready(&mut cx) {
            Poll::Ready(Ok(())) => {
                let response = self.0.call(request);
                Box::pin(async { response.await.map(Into::into).map_err(Into::into) })
            }
            Poll::Ready(Err(error)) => {
                let refusal = error.into();
                Box::pin(async { Err(refusal) })
            }
            Poll::Pending => {
                // That one goes on waiting with the request; the next has one of its own.
                let next = self.0.clone();
                let mut service = std::mem::replace(&mut self.0, next);
                Box::pin(async move {
                    let ready = poll_fn(|cx| service.poll_ready(cx)).await;
                    ready.map_err(Into::into)?;
                    let response = service.call(request).await;
                    response.map(Into::into).map_err(Into::into)
                })
            }
        }
    }
}

/// The service of a connection, behind a lock that only its lane's task takes.
pub(crate) struct Door(Mutex<Box<dyn Serve>>);

impl Door {
    pub(crate) fn new(service: Box<dyn Serve>) -> Self {
        Self(Mutex::new(service))
    }
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Door")
    }
}

/// Whoever holds it owes a response: where it is dropped, that says so.
struct Ticket {
    channel: Arc<Channel>,
    id: (u32, u32),
    place: Option<Extent>,
    answered: bool,
}

impl Ticket {
    /// What came of the request.
    fn answer(&mut self, outcome: Result<Bytes, Failure>) -> Answer {
        self.answered = true;
        let (id, serial) = self.id;
        Answer {
            id,
            serial,
            place: self.place,
            outcome,
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.answered {
            let refusal = Refusal::new(0, "the service ended without a response");
            let answer = self.answer(Err(Failure::Service(refusal)));
            self.channel.answer([answer]);
        }
    }
}

/// Runs requests. Those of one connection mostly come together, and so do their responses go.
pub(crate) fn run(requests: &mut Vec<Incoming>, answers: &mut Vec<Answer>) {
    let mut requests = requests.drain(..).peekable();
    while let Some(incoming) = requests.next() {
        let channel = Arc::clone(&incoming.channel);
        answers.extend(begin(incoming));
        let more = |next: &Incoming| Arc::ptr_eq(&next.channel, &channel);
        if !answers.is_empty() && !requests.peek().is_some_and(more) {
            channel.answer(answers.drain(..));
        }
    }
}

/// Begins a request: the lane's task itself polls the service first, so that one which answers at
/// once costs no task. Returns that answer.
fn begin(incoming: Incoming) -> Option<Answer> {
    let Incoming {
        channel,
        id,
        deadline,
        place,
        body,
    } = incoming;
    channel.lane.counters.requests_received.add(1);
    let request = Request::received(body, deadline, channel.peer);
    let span =
        tracing::debug_span!("rpc", peer = %channel.peer, id = id.0, bytes = request.body().len());
    let mut ticket = Ticket {
        channel,
        id,
        place,
        answered: false,
    };
    let begun = catch_unwind(AssertUnwindSafe(|| {
        let _entered = span.enter();
        let mut response = ticket.channel.serve(id.0, request)?;
        let polled = response
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
        Some((response, polled))
    }));
    let response = match begun {
        Ok(Some((_, Poll::Ready(outcome)))) => {
            return Some(ticket.answer(outcome.map_err(Failure::Service)));
        }
        Ok(Some((response, Poll::Pending))) => response,
        // It panicked, or there is no service any more: the ticket says so.
        Ok(None) | Err(_) => return None,
    };
    if !ticket.channel.began(id.0) {
        return None;
    }
    let channel = Arc::clone(&ticket.channel);
    let task = tokio::spawn(
        async move {
            let outcome = match deadline {
                None => response.await.map_err(Failure::Service),
                Some(deadline) => match tokio::time::timeout(deadline, response).await {
                    Ok(outcome) => outcome.map_err(Failure::Service),
                    Err(_) => Err(Failure::Deadline),
                },
            };
            let answer = ticket.answer(outcome);
            ticket.channel.answer([answer]);
        }
        .instrument(span),
    );
    channel.runs_in(id, task.abort_handle());
    None
}

impl Channel {
    /// Begins a request; `None`: nobody waits for it any more.
    fn serve(&self, id: u32, request: Request) -> Option<Response> {
        let door = self.door.as_ref()?;
        let mut state = self.state();
        if !state.begin(&self.lane, id) {
            return None;
        }
        drop(state);
        Some(lock(&door.0).call(request))
    }

    /// The service of a request did not answer at once. `false`: nobody waits for it any more.
    fn began(&self, id: u32) -> bool {
        let mut state = self.state();
        let stands = state.failed().is_none();
        if let Role::Server(served) = &mut state.role {
            served.runs(id);
        }
        stands
    }

    /// The task of a request. Where the connection has failed since it began, it ends.
    fn runs_in(self: &Arc<Self>, id: (u32, u32), task: AbortHandle) {
        let mut state = self.state();
        if state.failed().is_some() {
            return task.abort();
        }
        state.runs_in(&self.lane, id, task);
        drop(state);
        self.mark();
    }

    /// What services have answered goes out.
    fn answer(self: &Arc<Self>, answers: impl IntoIterator<Item = Answer>) {
        let mut state = self.state();
        if state.failed().is_some() {
            return;
        }
        let answered = state.answer(&self.lane, answers);
        drop(state);
        match answered {
            Ok(()) => self.mark(),
            Err(why) => self.close(why),
        }
    }
}
