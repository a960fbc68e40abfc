//! The owner of news: for the node, which reads it, and for those who only watch.

use super::{Event, Trace};
use std::collections::VecDeque;
use trunkline_conn::observer::Observer;

/// News of an engine.
pub(crate) struct Events {
    queue: VecDeque<Event>,
    observer: Observer<Trace>,
}

impl Events {
    pub(crate) const fn new() -> Self {
        Self {
            queue: VecDeque::new(),
            observer: Observer::none(),
        }
    }

    /// The node is to hear of this.
    pub(crate) fn push(&mut self, event: Event) {
        self.queue.push_back(event);
    }

    /// Whether there is something that the node has not heard.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// What the node has not heard yet, oldest first.
    pub(crate) fn pop(&mut self) -> Option<Event> {
        self.queue.pop_front()
    }

    /// From now on `watch` is told.
    pub(crate) fn observe(&mut self, watch: impl FnMut(&Trace) + Send + 'static) {
        self.observer.set(watch);
    }

    /// Who watches, until [given back](Self::give_back); `None`: nobody does.
    #[inline]
    pub(crate) fn take_observer(&mut self) -> Option<Observer<Trace>> {
        let watched = self.observer.is_watched();
        watched.then(|| std::mem::replace(&mut self.observer, Observer::none()))
    }

    pub(crate) fn give_back(&mut self, observer: Observer<Trace>) {
        self.observer = observer;
    }
}
