use super::*;
use crate::ring::heap_words;
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::{Condvar, PoisonError};
use std::thread;
use std::time::Duration;

type Heap = Box<[AtomicU64]>;

const DONE: Completion = Completion {
    wr_id: 0,
    status: Status::Success,
    opcode: WorkOpcode::Send,
    qpn: Qpn::GSI,
    byte_len: 0,
    extra: Extra::None,
    src_qp: Qpn::GSI,
    route: 0,
    solicited: false,
};

fn queue(depth: u32) -> CompletionQueue<Heap> {
    CompletionQueue::new(depth, heap_words).unwrap()
}

fn push(queue: &CompletionQueue<Heap>, completion: Completion) {
    queue.push(&completion).unwrap();
    queue.publish();
}

fn poll_one(queue: &CompletionQueue<Heap>) -> Option<Completion> {
    let mut out = [DONE];
    (queue.poll(&mut out) == 1).then_some(out[0])
}

fn completion() -> impl Strategy<Value = Completion> {
    use Status::*;
    let statuses = [
        Success,
        LocalLength,
        LocalQpOperation,
        LocalProtection,
        Flushed,
        BadResponse,
        LocalAccess,
        RemoteInvalidRequest,
        RemoteAccess,
        RemoteOperation,
        RetryExceeded,
        RnrRetryExceeded,
        RemoteAborted,
        General,
    ];
    let opcodes = [
        WorkOpcode::Send,
        WorkOpcode::Write,
        WorkOpcode::Read,
        WorkOpcode::CompareSwap,
        WorkOpcode::FetchAdd,
        WorkOpcode::Receive,
        WorkOpcode::ReceiveWriteImm,
    ];
    let extra = prop_oneof![
        Just(Extra::None),
        any::<u32>().prop_map(Extra::Immediate),
        any::<u32>().prop_map(|key| Extra::Invalidated(Rkey(key))),
    ];
    let what = (
        prop::sample::select(statuses.to_vec()),
        prop::sample::select(opcodes.to_vec()),
        extra,
    );
    let what = what.prop_map(|(status, opcode, extra)| (status, opcode, extra));
    let rest = (
        any::<u64>(),
        any::<u32>(),
        any::<u32>(),
        any::<u32>(),
        any::<bool>(),
    );
    (what, rest).prop_map(
        |((status, opcode, extra), (wr_id, byte_len, qpn, src, solicited))| {
            let (qpn, src_qp) = (Qpn::from_wire(qpn), Qpn::from_wire(src));
            Completion {
                wr_id,
                status,
                opcode,
                qpn,
                byte_len,
                extra,
                src_qp,
                route: src.wrapping_mul(257),
                solicited,
            }
        },
    )
}

#[derive(Clone, Debug)]
enum Step {
    Push(Completion),
    Publish,
    Poll(usize),
}

proptest! {
    #[test]
    fn a_queue_gives_what_was_published_in_order_and_loses_only_what_it_says(
        steps in vec(
            prop_oneof![
                3 => completion().prop_map(Step::Push),
                1 => Just(Step::Publish),
                1 => (0..6usize).prop_map(Step::Poll),
            ],
            0..80,
        ),
    ) {
        let queue = queue(5);
        prop_assert_eq!(queue.capacity(), 8);
        let (mut hidden, mut visible) = (VecDeque::new(), VecDeque::new());
        for step in steps {
            match step {
                Step::Push(completion) => {
                    let fits = hidden.len() + visible.len() < 8;
                    let expected = if fits { Ok(()) } else { Err(CqOverflow { capacity: 8 }) };
                    prop_assert_eq!(queue.push(&completion), expected);
                    if fits {
                        hidden.push_back(completion);
                    }
                }
                Step::Publish => {
                    queue.publish();
                    visible.append(&mut hidden);
                }
                Step::Poll(count) => {
                    let mut out = vec![DONE; count];
                    let got = queue.poll(&mut out);
                    prop_assert_eq!(got, count.min(visible.len()));
                    let expected: Vec<_> = visible.drain(..got).collect();
                    prop_assert_eq!(&out[..got], &expected[..]);
                }
            }
        }
    }

    /// A program that writes what it likes harms neither the worker nor, beyond its own
    /// completions, itself.
    #[test]
    fn hostile_words_harm_nobody(scribbles in vec((0..56usize, any::<u64>()), 0..40)) {
        let queue = queue(8);
        push(&queue, DONE);
        let ring = queue.ring.get().unwrap();
        prop_assert_eq!(ring.as_slice().len(), 56);
        let mut out = [DONE; 16];
        for (at, value) in scribbles {
            ring.as_slice()[at].store(value, Ordering::Relaxed);
            // Full or not: the worker goes on.
            let _ = queue.push(&DONE);
            prop_assert!(queue.poll(&mut out) <= 8);
            queue.publish();
            queue.take_notification();
            prop_assert!(queue.poll(&mut out) <= 8);
            queue.arm(true);
        }
    }
}

#[test]
fn depths_out_of_range_are_refused() {
    for depth in [0, MAX_CQE + 1] {
        let error = CompletionQueue::<Heap>::new(depth, heap_words).unwrap_err();
        assert_eq!(
            error,
            VerbsError::BadAttribute {
                what: "cqe",
                value: depth.into()
            }
        );
    }
}

#[test]
fn a_ring_comes_when_it_is_needed() {
    let queue = queue(4);
    assert_eq!(poll_one(&queue), None);
    queue.publish();
    assert!(!queue.take_notification());
    assert_eq!(queue.ring_bytes(), 0);
    queue.arm(false);
    assert_eq!(queue.ring_bytes(), 192 + 4 * 32);
}

#[test]
fn an_arming_fires_once_and_only_for_what_comes_later() {
    let queue = queue(8);
    push(&queue, DONE);
    assert!(!queue.take_notification(), "nobody armed");
    queue.arm(false);
    queue.publish();
    assert!(!queue.take_notification(), "nothing came since");
    push(&queue, DONE);
    assert!(queue.take_notification());
    push(&queue, DONE);
    assert!(!queue.take_notification(), "once");
}

#[test]
fn an_arming_for_solicited_completions_waits_for_one_or_for_a_failure() {
    let solicited = Completion {
        solicited: true,
        ..DONE
    };
    let failed = Completion {
        status: Status::Flushed,
        ..DONE
    };
    let queue = queue(16);
    for event in [solicited, failed] {
        push(&queue, event);
        queue.take_notification();
        queue.arm(true);
        push(&queue, DONE);
        assert!(
            !queue.take_notification(),
            "that was before the arming, and this is not one"
        );
        queue.push(&event).unwrap();
        queue.push(&DONE).unwrap();
        queue.publish();
        assert!(queue.take_notification());
    }
}

#[test]
fn an_arming_for_any_is_not_narrowed() {
    let queue = queue(8);
    queue.arm(true);
    queue.arm(false);
    queue.arm(true);
    push(&queue, DONE);
    assert!(queue.take_notification());
}

#[test]
fn an_overflow_wakes_the_program_up() {
    let queue = queue(1);
    push(&queue, DONE);
    queue.take_notification();
    queue.arm(false);
    assert_eq!(queue.push(&DONE), Err(CqOverflow { capacity: 1 }));
    queue.publish();
    assert!(queue.take_notification());
}

/// Notifications as a condition variable; waiting gives up after long.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Notify for Bell {
    fn notify(&self) {
        *self.rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_one();
    }
}

impl Bell {
    fn wait(&self) -> bool {
        let rung = self.rung.lock().unwrap();
        let limit = Duration::from_secs(20);
        let (mut rung, _) = self
            .changed
            .wait_timeout_while(rung, limit, |rung| !*rung)
            .unwrap();
        std::mem::take(&mut *rung)
    }
}

/// The program sleeps whenever it finds nothing: a lost wake-up leaves it asleep for good, as the
/// worker goes on only when what it published has been polled.
#[test]
fn no_wake_up_is_lost() {
    const COUNT: u32 = 30_000;
    let queue = queue(8);
    let bell = Bell::default();
    let polled = AtomicU32::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut pushed, mut burst) = (0, 1);
            while pushed < COUNT {
                for _ in 0..burst.min(COUNT - pushed) {
                    queue
                        .push(&Completion {
                            wr_id: pushed.into(),
                            ..DONE
                        })
                        .unwrap();
                    pushed += 1;
                }
                burst = burst % 5 + 1;
                queue.publish();
                if queue.take_notification() {
                    bell.notify();
                }
                while polled.load(Ordering::Acquire) < pushed {
                    // Most of the time the program is just about to sleep.
                    std::hint::spin_loop();
                }
            }
        });
        let (mut next, mut out) = (0, [DONE; 3]);
        let mut drain = || {
            let got = queue.poll(&mut out);
            for completion in &out[..got] {
                assert_eq!(completion.wr_id, u64::from(next));
                next += 1;
            }
            polled.store(next, Ordering::Release);
            (got, next)
        };
        loop {
            let (got, next) = drain();
            if next == COUNT {
                break;
            }
            if got > 0 {
                continue;
            }
            queue.arm(false);
            let (got, next) = drain();
            if got == 0 && !bell.wait() {
                polled.store(u32::MAX, Ordering::Release);
                panic!("completion {next} did not wake the program up");
            }
            if next == COUNT {
                break;
            }
        }
    });
}
