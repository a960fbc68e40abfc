#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Count {
    fn new() -> (Arc<Self>, Waker) {
        let count = Arc::new(Self::default());
        (Arc::clone(&count), count.into())
    }

    fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

fn begun(calls: &mut Calls) -> u32 {
    match calls.begin(&mut None, Waker::noop()) {
        Poll::Ready(id) => id,
        Poll::Pending => panic!("there is room"),
    }
}

fn response(byte: u8) -> Result<Outcome, RpcError> {
    Ok(Outcome::Bytes(Bytes::from(vec![byte])))
}

fn taken(calls: &mut Calls, id: u32) -> Result<u8, RpcError> {
    match calls.poll(id, Waker::noop()) {
        Poll::Ready((Ok(Outcome::Bytes(bytes)), _)) => Ok(bytes[0]),
        Poll::Ready((Ok(Outcome::Written(_)), _)) => panic!("nothing was written"),
        Poll::Ready((Err(error), _)) => Err(error),
        Poll::Pending => panic!("it has its response"),
    }
}

#[test]
fn responses_in_any_order_go_to_those_that_asked() {
    let mut calls = Calls::new(10);
    let ids = [(); 10].map(|()| begun(&mut calls));
    for (byte, id) in ids.iter().enumerate().rev() {
        assert!(calls.poll(*id, Waker::noop()).is_pending());
        calls.finish(*id, response(byte as u8)).unwrap();
    }
    for (byte, id) in ids.iter().enumerate() {
        assert_eq!(taken(&mut calls, *id), Ok(byte as u8));
    }
}

#[test]
fn a_request_has_one_response_and_ids_of_others_have_none() {
    let mut calls = Calls::new(2);
    let id = begun(&mut calls);
    assert!(calls.finish(id + 1, response(0)).is_err(), "no such slot");
    assert!(
        calls.finish(id + (1 << 16), response(0)).is_err(),
        "another generation"
    );
    calls.finish(id, response(1)).unwrap();
    assert!(calls.finish(id, response(2)).is_err(), "twice");
    assert!(calls.is_awaited(id).is_err());
    assert_eq!(taken(&mut calls, id), Ok(1));
    assert!(calls.finish(id, response(3)).is_err(), "after it was taken");
    let next = begun(&mut calls);
    assert_ne!(next, id);
    assert!(
        calls.finish(id, response(4)).is_err(),
        "its slot is another's"
    );
}

#[test]
fn an_abandoned_request_keeps_its_slot_until_it_has_its_response() {
    let mut calls = Calls::new(1);
    let id = begun(&mut calls);
    assert!(calls.abandon(id).0, "the server is told");
    let ((count, waker), mut ticket) = (Count::new(), None);
    assert!(calls.begin(&mut ticket, &waker).is_pending());
    assert_eq!(calls.is_awaited(id), Ok(false));
    calls.finish(id, response(0)).unwrap().unwrap().wake();
    assert_eq!(count.get(), 1);
    assert!(calls.begin(&mut ticket, &waker).is_ready());
    assert_eq!(ticket, None);
}

#[test]
fn one_that_is_abandoned_with_its_response_leaves_its_slot_at_once() {
    let mut calls = Calls::new(1);
    let id = begun(&mut calls);
    calls.finish(id, response(0)).unwrap();
    assert!(!calls.abandon(id).0, "there is nothing to tell");
    begun(&mut calls);
}

#[test]
fn calls_get_slots_in_order_and_none_is_lost_where_one_leaves() {
    let mut calls = Calls::new(1);
    let id = begun(&mut calls);
    let mut waiting = [(); 3].map(|()| (Count::new(), None));
    for ((_, waker), ticket) in &mut waiting {
        assert!(calls.begin(ticket, waker).is_pending());
    }
    let woken = waiting.each_ref().map(|((count, _), _)| Arc::clone(count));
    let counts = || woken.each_ref().map(|count| count.get());
    calls.finish(id, response(0)).unwrap();
    let Poll::Ready((_, woken)) = calls.poll(id, Waker::noop()) else {
        panic!("it has its response");
    };
    woken.unwrap().wake();
    assert_eq!(counts(), [1, 0, 0]);
    // One that comes now waits behind the others.
    let mut late = None;
    assert!(calls.begin(&mut late, Waker::noop()).is_pending());
    // The second leaves while it waits, the first after it was woken: the third has the turn.
    assert!(calls.leave(waiting[1].1.unwrap()).is_none());
    calls.leave(waiting[0].1.unwrap()).unwrap().wake();
    assert_eq!(counts(), [1, 0, 1]);
    let ((_, waker), ticket) = &mut waiting[2];
    assert!(calls.begin(ticket, waker).is_ready());
}

#[test]
fn a_connection_that_fails_tells_all_and_leaves_no_slot_taken() {
    let mut calls = Calls::new(3);
    let [first, second, third] = [(); 3].map(|()| begun(&mut calls));
    calls.abandon(second);
    calls.finish(third, response(9)).unwrap();
    let ((count, waker), mut ticket) = (Count::new(), None);
    assert!(calls.begin(&mut ticket, &waker).is_pending());
    calls
        .fail(&RpcError::Silent)
        .into_iter()
        .for_each(Waker::wake);
    assert_eq!(count.get(), 1, "who waits for a slot hears, too");
    assert_eq!(taken(&mut calls, first), Err(RpcError::Silent));
    assert_eq!(taken(&mut calls, third), Ok(9));
    assert_eq!(calls.free.len(), 3);
}
