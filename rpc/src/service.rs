//! How a server hands requests to its service.

use crate::channel::Channel;
use crate::error::Refusal;
use crate::frame::Extent;
use crate::lane::Work;
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

impl Incoming {
    pub(crate) const fn new(head: Head, body: Bytes) -> Self {
        Self {
            head,
            body,
            is_awaited: true,
        }
    }
}

type Response = Pin<Box<dyn Future<Output = Result<Bytes, Refusal>> + Send>>;

/// What has come of a request that has just begun.
enum Begun {
    Answered(Result<Bytes, Refusal>),
    Runs(Response),
}

/// A service of any type.
trait Serve: Send {
    /// Begins a request, and polls its response once, so that one which is there costs no task.
    fn begin(&mut self, request: Request) -> Begun;
}

/// The service of one connection.
struct Served<S: Service<Request>> {
    service: S,
    /// Where responses wait that are not there at once, for as long as all were.
    waits: Option<Pin<Box<Option<S::Future>>>>,
}

fn of<T: Into<Bytes>, E: Into<Refusal>>(outcome: Result<T, E>) -> Result<Bytes, Refusal> {
    outcome.map(Into::into).map_err(Into::into)
}

impl<S> Serve for Served<S>
where
    S: Service<Request> + Clone + Send + 'static,
    S::Response: Into<Bytes>,
    S::Error: Into<Refusal>,
    S::Future: Send + 'static,
{
    fn begin(&mut self, request: Request) -> Begun {
        let mut cx = Context::from_waker(Waker::noop());
        match self.service.poll_ready(&mut cx) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => return Begun::Answered(Err(error.into())),
            Poll::Pending => {
                // That one goes on waiting with the request; the next has one of its own.
                let next = self.service.clone();
                let mut service = std::mem::replace(&mut self.service, next);
                return Begun::Runs(Box::pin(async move {
                    let ready = poll_fn(|cx| service.poll_ready(cx)).await;
                    ready.map_err(Into::into)?;
                    of(service.call(request).await)
                }));
            }
        }
        let response = self.service.call(request);
        let mut waits = self.waits.take().unwrap_or_else(|| Box::pin(None));
        waits.set(Some(response));
        let poll = |waits: &mut Pin<Box<Option<S::Future>>>, cx: &mut Context<'_>| {
            let response = waits.as_mut().as_pin_mut();
            response.expect("it is there until it is over").poll(cx)
        };
        match poll(&mut waits, &mut cx) {
            Poll::Ready(outcome) => {
                waits.set(None);
                self.waits = Some(waits);
                Begun::Answered(of(outcome))
            }
            Poll::Pending => Begun::Runs(Box::pin(async move {
                of(poll_fn(|cx| poll(&mut waits, cx)).await)
            })),
        }
    }
}

/// The service of a connection, behind a lock that its lane's task takes, and who opens it.
pub(crate) struct Door(Mutex<Box<dyn Serve>>);

impl Door {
    pub(crate) fn new<S>(service: S) -> Self
    where
        S: Service<Request> + Clone + Send + 'static,
        S::Response: Into<Bytes>,
        S::Error: Into<Refusal>,
        S::Future: Send + 'static,
    {
        let waits = None;
        Self(Mutex::new(Box::new(Served { service, waits })))
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
        self.answer(Err(Failure::Service(no_response())));
    }
}

fn no_response() -> Refusal {
    Refusal::new(0, "the service ended without a response")
}

/// Begins a request; a service that panics gives no response.
fn begin(service: &mut dyn Serve, request: Request, span: &Span) -> Begun {
    let begun = catch_unwind(AssertUnwindSafe(|| {
        let _entered = span.enter();
        service.begin(request)
    }));
    begun.unwrap_or_else(|_| Begun::Answered(Err(no_response())))
}

impl Channel {
    /// Begins requests, as far as anybody waits for them. What they answer at once goes together.
    pub(crate) fn serve(self: &Arc<Self>, work: &mut Work) {
        let Some(door) = &self.door else { return };
        let mut state = self.state();
        if state.failed().is_some() {
            work.requests.clear();
            return;
        }
        state.begin(&self.lane, &mut work.requests);
        drop(state);
        let (mut service, mut handed) = (lock(&door.0), 0);
        for Incoming { head, body, .. } in work.requests.drain(..).filter(|one| one.is_awaited) {
            handed += 1;
            let span =
                tracing::debug_span!("rpc", peer = %self.peer, id = head.id, bytes = body.len());
            let request = Request::received(body, head.deadline, self.peer);
            match begin(&mut **service, request, &span) {
                Begun::Answered(outcome) => work.answers.push(Answer {
                    head,
                    outcome: outcome.map_err(Failure::Service),
                }),
                Begun::Runs(response) => self.spawn(head, response, span),
            }
        }
        drop(service);
        self.lane.counters.requests_received.add(handed);
        if !work.answers.is_empty() {
            self.answer(work.answers.drain(..));
        }
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
