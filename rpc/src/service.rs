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
use tracing::{Instrument, Span};

/// What a request says beside its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    pub(crate) id: u32,
    /// Tells it apart from a later one under the same ID.
    pub(crate) serial: u32,
    pub(crate) deadline: Option<Duration>,
    /// Where its response is to be written.
    pub(crate) place: Option<Extent>,
}

/// A request that has come in full.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) head: Head,
    pub(crate) body: Bytes,
    /// Somebody waits for its response.
    pub(crate) is_awaited: bool,
}

/// Requests that are about to run. Those of one connection mostly come together.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    all: Vec<Incoming>,
    /// Whose they are, in the same order, and how many.
    runs: Vec<(Arc<Channel>, usize)>,
    answers: Vec<Answer>,
}

impl Requests {
    pub(crate) fn push(&mut self, channel: &Arc<Channel>, head: Head, body: Bytes) {
        self.all.push(Incoming {
            head,
            body,
            is_awaited: true,
        });
        match self.runs.last_mut() {
            Some((last, count)) if Arc::ptr_eq(last, channel) => *count += 1,
            _ => self.runs.push((Arc::clone(channel), 1)),
        }
    }

    /// Runs all. What those of one connection answer at once goes together.
    pub(crate) fn run(&mut self) {
        let mut rest = &mut self.all[..];
        for (channel, count) in self.runs.drain(..) {
            let (run, others) = rest.split_at_mut(count);
            rest = others;
            channel.serve(run, &mut self.answers);
            if !self.answers.is_empty() {
                channel.answer(self.answers.drain(..));
            }
        }
        self.all.clear();
    }
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

/// The task of a request has it, and owes a response: where it is dropped, that says so.
struct Ticket {
    channel: Arc<Channel>,
    head: Option<Head>,
}

impl Ticket {
    /// What came of the request.
    fn answer(&mut self, outcome: Result<Bytes, Failure>) {
        if let Some(head) = self.head.take() {
            self.channel.answer([Answer { head, outcome }]);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.answer(no_response());
    }
}

fn no_response() -> Result<Bytes, Failure> {
    let refusal = Refusal::new(0, "the service ended without a response");
    Err(Failure::Service(refusal))
}

/// What has come of a request that has just begun.
enum Begun {
    Answered(Result<Bytes, Failure>),
    Runs(Response),
}

/// Begins a request, and polls its response once, so that one which is there costs no task.
fn begin(service: &mut dyn Serve, request: Request, span: &Span) -> Begun {
    let begun = catch_unwind(AssertUnwindSafe(|| {
        let _entered = span.enter();
        let mut response = service.call(request);
        let mut cx = Context::from_waker(Waker::noop());
        match response.as_mut().poll(&mut cx) {
            Poll::Ready(outcome) => Begun::Answered(outcome.map_err(Failure::Service)),
            Poll::Pending => Begun::Runs(response),
        }
    }));
    begun.unwrap_or_else(|_| Begun::Answered(no_response()))
}

impl Channel {
    /// Begins requests, as far as anybody waits for them. What is answered at once is added to
    /// `answers`.
    fn serve(self: &Arc<Self>, requests: &mut [Incoming], answers: &mut Vec<Answer>) {
        let Some(door) = &self.door else { return };
        let mut state = self.state();
        if state.failed().is_some() {
            return;
        }
        state.begin(&self.lane, requests);
        drop(state);
        let (mut service, mut handed) = (lock(&door.0), 0);
        for incoming in requests.iter_mut().filter(|request| request.is_awaited) {
            handed += 1;
            let head = incoming.head;
            let body = std::mem::take(&mut incoming.body);
            let span =
                tracing::debug_span!("rpc", peer = %self.peer, id = head.id, bytes = body.len());
            let request = Request::received(body, head.deadline, self.peer);
            match begin(&mut **service, request, &span) {
                Begun::Answered(outcome) => answers.push(Answer { head, outcome }),
                Begun::Runs(response) => self.spawn(head, response, span),
            }
        }
        self.lane.counters.requests_received.add(handed);
    }

    /// The service of a request did not answer at once: a task of its own goes on.
    fn spawn(self: &Arc<Self>, head: Head, response: Response, span: Span) {
        let mut ticket = Ticket {
            channel: Arc::clone(self),
            head: Some(head),
        };
        if !self.runs(head.id) {
            return;
        }
        let answered = async move {
            let outcome = match head.deadline {
                None => response.await.map_err(Failure::Service),
                Some(deadline) => match tokio::time::timeout(deadline, response).await {
                    Ok(outcome) => outcome.map_err(Failure::Service),
                    Err(_) => Err(Failure::Deadline),
                },
            };
            ticket.answer(outcome);
        };
        let task = tokio::spawn(answered.instrument(span));
        self.runs_in((head.id, head.serial), task.abort_handle());
    }

    /// The service of a request did not answer at once. `false`: nobody waits for it any more.
    fn runs(&self, id: u32) -> bool {
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
