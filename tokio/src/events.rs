//! Events of a node as a stream.

use crate::node::Node;
use crate::waiters::{Waiter, Waiters, lock};
use futures_core::Stream;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use trunkline::Event;

/// What a node's drivers and its streams of events share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// Streams there are: without one, events stay in the node.
    streams: AtomicUsize,
    /// The oldest event, if a driver has found one.
    oldest: Mutex<Option<Event>>,
    pub(crate) waiters: Arc<Waiters>,
}

impl Shared {
    /// Looks for an event, where somebody wants to hear of it.
    pub(crate) fn look(&self, node: &trunkline::Node) {
        if self.streams.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut oldest = lock(&self.oldest);
        if oldest.is_none() {
            *oldest = node.poll_event();
            let found = oldest.is_some();
            drop(oldest);
            if found {
                self.waiters.wake_all();
            }
        }
    }

    fn take(&self, node: &trunkline::Node) -> Option<Event> {
        let mut oldest = lock(&self.oldest);
        oldest.take().or_else(|| node.poll_event())
    }
}

/// The asynchronous events of a node (`ibv_get_async_event(3)`), until it has ended. Where there
/// are several streams, each event comes out of one of them.
#[derive(Debug)]
pub struct Events {
    node: Node,
    waiter: Waiter,
}

impl Events {
    pub(crate) fn new(node: &Node) -> Self {
        let shared = &node.shared().events;
        shared.streams.fetch_add(1, Ordering::Relaxed);
        Self {
            node: node.clone(),
            waiter: Waiter::new(&shared.waiters),
        }
    }

    /// Returns the next event, or `None` once the node has ended and all were told. A future that
    /// is dropped takes none with it.
    pub async fn next(&mut self) -> Option<Event> {
        poll_fn(|cx| self.poll_event(cx)).await
    }

    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        self.waiter.register(cx.waker());
        let shared = self.node.shared();
        let over = shared.over();
        match shared.events.take(shared.node()) {
            None if !over => Poll::Pending,
            event => Poll::Ready(event),
        }
    }
}

impl Stream for Events {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        self.poll_event(cx)
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        let shared = &self.node.shared().events;
        shared.streams.fetch_sub(1, Ordering::Relaxed);
    }
}
