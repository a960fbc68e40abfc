//! Completion queues.

use crate::node::Node;
use crate::waiters::{Waiter, Waiters};
use futures_core::Stream;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::task::coop::poll_proceed;
use trunkline::{Completion, Error, Notify};

/// A completion queue that tasks wait for. A completion wakes them without a system call.
///
/// Several tasks may wait for one queue: all are woken, and each completion goes to one of them. A
/// future that is dropped, at whatever point, takes no completion with it. Taking some takes of the
/// budget that tokio gives each task for its turn.
///
/// It keeps its node driven. Where that has ended, tasks get what it flushed, and then
/// [`Error::Down`].
#[derive(Clone)]
pub struct Cq {
    verbs: trunkline::Cq,
    waiters: Arc<Waiters>,
    node: Node,
}

impl fmt::Debug for Cq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.verbs.fmt(f)
    }
}

impl Cq {
    pub(crate) fn new(node: &Node, depth: u32) -> Result<Self, Error> {
        let waiters = Arc::new(Waiters::default());
        let notify = Arc::clone(&waiters) as Arc<dyn Notify>;
        let verbs = node.verbs().create_cq_notifying(depth, notify)?;
        node.shared().tell_end_to(&waiters);
        Ok(Self {
            verbs,
            waiters,
            node: node.clone(),
        })
    }

    /// Returns the queue itself, which QPs are made with. It has no descriptor.
    pub const fn verbs(&self) -> &trunkline::Cq {
        &self.verbs
    }

    /// Returns the next completion.
    ///
    /// # Errors
    /// As [`poll_many`](Self::poll_many).
    pub async fn next(&self) -> Result<Completion, Error> {
        let mut one = [Completion::BLANK];
        self.poll_many(&mut one).await?;
        Ok(one[0])
    }

    /// Waits until there are completions and takes as many as `out` has room for, oldest first.
    /// Returns how many: 0 only where there is no room.
    ///
    /// # Errors
    /// The queue is in error, or the node has ended, and all completions were taken.
    pub async fn poll_many(&self, out: &mut [Completion]) -> Result<usize, Error> {
        let mut waiter = Waiter::new(&self.waiters);
        poll_fn(|cx| self.poll_take(cx, &mut waiter, out)).await
    }

    /// Returns all completions from now on as a stream, which ends with the first error.
    pub fn completions(&self) -> Completions {
        Completions {
            waiter: Waiter::new(&self.waiters),
            cq: self.clone(),
            ended: false,
        }
    }

    fn poll_take(
        &self,
        cx: &mut Context<'_>,
        waiter: &mut Waiter,
        out: &mut [Completion],
    ) -> Poll<Result<usize, Error>> {
        let budget = ready!(poll_proceed(cx));
        let taken = ready!(self.poll_within_budget(cx, waiter, out));
        budget.made_progress();
        Poll::Ready(taken)
    }

    fn poll_within_budget(
        &self,
        cx: &Context<'_>,
        waiter: &mut Waiter,
        out: &mut [Completion],
    ) -> Poll<Result<usize, Error>> {
        let taken = self.verbs.poll(out)?;
        if taken > 0 || out.is_empty() {
            return Poll::Ready(Ok(taken));
        }
        waiter.register(cx.waker());
        self.verbs.arm(false);
        // What came before this raised no event; what a node flushed as it ended is there by then.
        let over = self.node.shared().over();
        match self.verbs.poll(out)? {
            0 if over => Poll::Ready(Err(self.node.down().into())),
            0 => Poll::Pending,
            taken => Poll::Ready(Ok(taken)),
        }
    }
}

/// The completions of a [`Cq`] as a stream. It ends behind the first error.
#[derive(Debug)]
pub struct Completions {
    cq: Cq,
    waiter: Waiter,
    ended: bool,
}

impl Completions {
    /// Takes as many completions as there are and `out` has room for, oldest first: returns how
    /// many, as [`Cq::poll_many`]. Where there are none the task is woken by the next.
    pub fn poll_many(
        &mut self,
        cx: &mut Context<'_>,
        out: &mut [Completion],
    ) -> Poll<Result<usize, Error>> {
        self.cq.poll_take(cx, &mut self.waiter, out)
    }
}

impl Stream for Completions {
    type Item = Result<Completion, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if this.ended {
            return Poll::Ready(None);
        }
        let mut one = [Completion::BLANK];
        let taken = this.cq.poll_take(cx, &mut this.waiter, &mut one);
        taken.map(|taken| {
            this.ended = taken.is_err();
            Some(taken.map(|_| one[0]))
        })
    }
}
