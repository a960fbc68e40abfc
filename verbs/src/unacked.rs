//! Events that a program got and has not acknowledged yet.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// How many events of an object its program got and did not acknowledge: until there are none, a
/// call that destroys the object waits.
#[derive(Default)]
pub(crate) struct Unacked {
    count: Mutex<Count>,
    none: Condvar,
}

#[derive(Default)]
struct Count {
    events: u64,
    /// Somebody waits: to wake nobody is a system call, too.
    awaited: bool,
}

impl Unacked {
    fn count(&self) -> MutexGuard<'_, Count> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The program got one more.
    pub(crate) fn add(&self) {
        self.count().events += 1;
    }

    /// The program acknowledges so many. More than it got count as all.
    pub(crate) fn acknowledge(&self, events: u64) {
        let mut count = self.count();
        count.events = count.events.saturating_sub(events);
        if count.events == 0 && count.awaited {
            self.none.notify_all();
        }
    }

    /// Waits until all are acknowledged.
    pub(crate) fn wait_for_none(&self) {
        let mut count = self.count();
        while count.events > 0 {
            count.awaited = true;
            count = self
                .none
                .wait(count)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn who_destroys_an_object_waits_for_its_last_event() {
        let unacked = Unacked::default();
        unacked.wait_for_none();
        unacked.add();
        unacked.add();
        std::thread::scope(|threads| {
            let waiting = threads.spawn(|| unacked.wait_for_none());
            unacked.acknowledge(1);
            std::thread::sleep(Duration::from_millis(20));
            assert!(!waiting.is_finished());
            unacked.acknowledge(1);
        });
    }

    #[test]
    fn more_acknowledgements_than_events_count_as_all() {
        let unacked = Unacked::default();
        unacked.acknowledge(1);
        assert_eq!(unacked.count().events, 0);
        unacked.add();
        unacked.acknowledge(2);
        assert_eq!(unacked.count().events, 0);
    }
}
