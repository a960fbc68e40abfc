#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use trunkline_conn::work::Status;

type Heap = Arc<[AtomicU64]>;

const DONE: Completion = Completion {
    status: Status::Success,
    ..Completion::BLANK
};

/// Counts how often a program is woken.
#[derive(Default)]
struct Woken(AtomicU32);

impl Notify for Woken {
    fn notify(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn polled(queue: &CompletionQueue<Heap>) -> usize {
    let mut out = [DONE; 8];
    queue.poll(&mut out).unwrap_or(0)
}

#[test]
fn completions_are_seen_once_they_are_published_and_wake_their_program_once() {
    let (mut owner, woken) = (Completions::new(), Arc::new(Woken::default()));
    let notify: Arc<dyn Notify> = Arc::<Woken>::clone(&woken);
    let (cq, queue) = owner.create(8, Some(notify)).unwrap();
    queue.arm(false);
    for _ in 0..3 {
        assert_eq!(owner.push(cq, &DONE), None);
    }
    assert_eq!((polled(&queue), woken.0.load(Ordering::Relaxed)), (0, 0));
    owner.publish();
    assert_eq!((polled(&queue), woken.0.load(Ordering::Relaxed)), (3, 1));
    owner.publish();
    assert_eq!((polled(&queue), woken.0.load(Ordering::Relaxed)), (0, 1));
}

#[test]
fn every_program_that_armed_is_woken_when_what_was_published_is_let_go() {
    let mut owner = Completions::new();
    let programs = [(); 3].map(|()| {
        let woken = Arc::new(Woken::default());
        let notify: Arc<dyn Notify> = Arc::<Woken>::clone(&woken);
        let (cq, queue) = owner.create(8, Some(notify)).unwrap();
        queue.arm(false);
        assert_eq!(owner.push(cq, &DONE), None);
        (queue, woken)
    });
    let woken = || {
        programs
            .each_ref()
            .map(|(_, woken)| woken.0.load(Ordering::Relaxed))
    };
    let notifications = owner.publish();
    assert_eq!(programs.each_ref().map(|(queue, _)| polled(queue)), [1; 3]);
    assert_eq!(woken(), [0; 3], "a lock may still be held");
    drop(notifications);
    assert_eq!(woken(), [1; 3]);
}

#[test]
fn programs_are_woken_in_the_order_in_which_their_queues_got_something() {
    struct Named(usize, Arc<std::sync::Mutex<Vec<usize>>>);
    impl Notify for Named {
        fn notify(&self) {
            self.1.lock().unwrap().push(self.0);
        }
    }
    let (mut owner, order) = (Completions::new(), Arc::default());
    let queues = [0, 1, 2].map(|name| {
        let (cq, queue) = owner
            .create(8, Some(Arc::new(Named(name, Arc::clone(&order)))))
            .unwrap();
        queue.arm(false);
        (cq, queue)
    });
    for name in [1, 0, 2, 1] {
        assert_eq!(owner.push(queues[name].0, &DONE), None);
    }
    owner.publish();
    assert_eq!(*order.lock().unwrap(), [1, 0, 2]);
    assert_eq!(queues.map(|(_, queue)| polled(&queue)), [1, 2, 1]);
}

#[test]
fn a_queue_that_overran_is_told_once_and_takes_no_more_qps() {
    let mut owner = Completions::<Heap>::new();
    let (cq, _queue) = owner.create(1, None).unwrap();
    let (fine, _other) = owner.create(1, None).unwrap();
    let mut pushed = || owner.push(cq, &DONE);
    let told: Vec<_> = std::iter::repeat_with(&mut pushed).take(4).collect();
    let id = owner.id(cq);
    assert_eq!(told, [None, Some(id), None, None]);
    assert!(matches!(owner.check([fine, fine]), Ok(())));
    let refused = owner.check([fine, cq]);
    assert!(
        matches!(refused, Err(VerbsError::CqInError { cq: at }) if at == cq),
        "{refused:?}"
    );
    // Another worker says so too: that is nothing new.
    assert!(!owner.fail(id));
}

#[test]
fn a_queue_that_failed_elsewhere_fails_here_once() {
    let mut owner = Completions::<Heap>::new();
    let (cq, queue) = owner.create(4, None).unwrap();
    assert_eq!(owner.push(cq, &DONE), None);
    let id = owner.id(cq);
    assert!(owner.fail(id) && !owner.fail(id));
    owner.publish();
    // What it had taken is still polled, and then the error.
    assert_eq!(polled(&queue), 1);
    assert!(queue.poll(&mut [DONE]).is_err());
}

#[test]
fn a_queue_goes_when_no_qp_uses_it_and_its_index_is_not_taken_for_it() {
    let mut owner = Completions::<Heap>::new();
    let (cq, _queue) = owner.create(4, None).unwrap();
    let first = owner.id(cq);
    owner.attach([cq, cq]);
    assert!(owner.is_used(first));
    let busy = owner.destroy(cq);
    assert!(
        matches!(busy, Err(VerbsError::Busy { users: 2, .. })),
        "{busy:?}"
    );
    owner.detach([cq, cq]);
    // It goes with what nobody has seen.
    assert_eq!(owner.push(cq, &DONE), None);
    owner.destroy(cq).unwrap();
    assert!(matches!(
        owner.destroy(cq),
        Err(VerbsError::UnknownCq { .. })
    ));
    assert_eq!(owner.push(cq, &DONE), None);
    let (again, queue) = owner.create(4, None).unwrap();
    assert_eq!(again, cq);
    owner.attach([again, again]);
    assert!(owner.id(again) != first && !owner.is_used(first) && !owner.fail(first));
    owner.publish();
    assert_eq!(polled(&queue), 0);
}

#[test]
fn a_program_hears_that_its_queue_overran_though_nothing_else_came() {
    let (mut owner, woken) = (Completions::new(), Arc::new(Woken::default()));
    let notify: Arc<dyn Notify> = Arc::<Woken>::clone(&woken);
    let (cq, queue) = owner.create(1, Some(notify)).unwrap();
    assert_eq!(owner.push(cq, &DONE), None);
    owner.publish();
    queue.arm(false);
    assert!(owner.push(cq, &DONE).is_some());
    owner.publish();
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    assert_eq!(polled(&queue), 1);
    assert!(queue.poll(&mut [DONE; 8]).is_err());
}
