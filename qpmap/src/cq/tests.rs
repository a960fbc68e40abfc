mod apart;
mod resize;

use super::*;
use crate::allowed::Allowed;
use crate::error::VerbsError;
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::Condvar;
use std::sync::atomic::AtomicU32;
use std::thread;
use std::time::Duration;
use trunkline_conn::work::{Extra, Status, VendorError, WorkOpcode};
use trunkline_wire::{Qpn, Rkey};

type Heap = Arc<[AtomicU64]>;

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
    vendor_err: VendorError::None,
    ticks: 0,
};

/// Both sides of a queue.
fn queue(depth: u32) -> (Writer<Heap>, Arc<CompletionQueue<Heap>>) {
    let writer = Writer::new(depth).unwrap();
    let queue = Arc::clone(writer.queue());
    (writer, queue)
}

/// A queue that has seen very many completions.
fn started_at(depth: u32, position: u32) -> (Writer<Heap>, Arc<CompletionQueue<Heap>>) {
    let (mut writer, queue) = queue(depth);
    for word in [HEAD, TAIL] {
        queue.header()[word].store(position.into(), Ordering::Relaxed);
    }
    (writer.written, writer.polled) = (position, position);
    queue.reader().seen = position;
    (writer, queue)
}

fn push(writer: &mut Writer<Heap>, completion: Completion) {
    writer.push(&completion).unwrap();
    writer.publish();
}

/// Resizes a queue as its engine does.
fn resize(writer: &mut Writer<Heap>, depth: u32) -> Result<(), VerbsError> {
    let entries = Entries::new(depth)?;
    writer.check_resize(0, entries.capacity())?;
    writer.resize(entries);
    Ok(())
}

fn poll_one(queue: &CompletionQueue<Heap>) -> Option<Completion> {
    let mut out = [DONE];
    (queue.poll(&mut out).unwrap() == 1).then_some(out[0])
}

fn completion() -> impl Strategy<Value = Completion> {
    use Status::*;
    let statuses = [
        Success,
        LocalLength,
        LocalQpOperation,
        LocalProtection,
        MemoryManagement,
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
        WorkOpcode::BindMw,
        WorkOpcode::LocalInvalidate,
        WorkOpcode::Receive,
        WorkOpcode::ReceiveWriteImm,
    ];
    let extra = prop_oneof![
        Just(Extra::None),
        any::<u32>().prop_map(Extra::Immediate),
        any::<u32>().prop_map(|key| Extra::Invalidated(Rkey(key))),
    ];
    let why = [
        VendorError::None,
        VendorError::NoQp,
        VendorError::OtherPeer,
        VendorError::NoRoom,
        VendorError::QpGone,
        VendorError::NoNode,
        VendorError::NotSharing,
    ];
    let what = (
        prop::sample::select(statuses.to_vec()),
        prop::sample::select(opcodes.to_vec()),
        extra,
        prop::sample::select(why.to_vec()),
    );
    let rest = (
        any::<u64>(),
        any::<u32>(),
        any::<u32>(),
        any::<u32>(),
        any::<bool>(),
    );
    (what, rest).prop_map(
        |((status, opcode, extra, vendor_err), (wr_id, byte_len, qpn, src, solicited))| {
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
                vendor_err,
                ticks: 0,
            }
        },
    )
}

#[derive(Clone, Debug)]
enum Step {
    Push(Completion),
    Publish,
    Poll(usize),
    Forget(Qpn),
    Resize(u32),
}

/// Few QPs, so that each has several completions.
fn qpn() -> impl Strategy<Value = Qpn> {
    (2..5u32).prop_map(Qpn::from_wire)
}

proptest! {
    #[test]
    fn a_queue_gives_what_was_published_in_order_but_for_what_is_forgotten_until_it_overflows(
        steps in vec(
            prop_oneof![
                4 => (completion(), qpn()).prop_map(|(completion, qpn)| {
                    Step::Push(Completion { qpn, ..completion })
                }),
                1 => Just(Step::Publish),
                1 => (1..6usize).prop_map(Step::Poll),
                1 => qpn().prop_map(Step::Forget),
                1 => (1..20u32).prop_map(Step::Resize),
            ],
            0..120,
        ),
        // Positions are about to wrap around.
        start in prop::sample::select(vec![0_u32, u32::MAX - 20, i32::MAX as u32 - 20]),
    ) {
        let (mut writer, queue) = started_at(5, start);
        let mut capacity = 8;
        let (mut hidden, mut visible) = (VecDeque::new(), VecDeque::new());
        let (mut failed, mut told) = (false, false);
        for step in steps {
            prop_assert_eq!(queue.capacity(), capacity);
            match step {
                Step::Push(completion) => {
                    failed |= hidden.len() + visible.len() == capacity as usize;
                    let overflow = CqOverflow { capacity };
                    let expected = if failed { Err(overflow) } else { Ok(()) };
                    prop_assert_eq!(writer.push(&completion), expected);
                    if !failed {
                        hidden.push_back(completion);
                    }
                }
                Step::Publish => {
                    writer.publish();
                    visible.append(&mut hidden);
                    told = failed;
                }
                Step::Poll(count) => {
                    let mut out = vec![DONE; count];
                    let polled = queue.poll(&mut out);
                    if polled.is_err() {
                        prop_assert!(failed && visible.is_empty());
                        continue;
                    }
                    let got = polled.unwrap();
                    prop_assert!(got > 0 || !told, "told once it is empty");
                    // Making room of what is forgotten publishes the rest.
                    prop_assert!(got >= count.min(visible.len()));
                    while visible.len() < got {
                        visible.extend(hidden.pop_front());
                    }
                    let expected: Vec<_> = visible.drain(..got).collect();
                    prop_assert_eq!(&out[..got], &expected[..]);
                }
                Step::Forget(qpn) => {
                    writer.forget(qpn);
                    hidden.retain(|completion: &Completion| completion.qpn != qpn);
                    visible.retain(|completion: &Completion| completion.qpn != qpn);
                }
                Step::Resize(depth) => {
                    let count = (hidden.len() + visible.len()) as u32;
                    let wanted = depth.next_power_of_two();
                    let expected = if failed {
                        Err(VerbsError::CqInError { cq: 0 })
                    } else if count > wanted {
                        Err(VerbsError::TooManyCompletions { count, capacity: wanted })
                    } else {
                        capacity = wanted;
                        Ok(())
                    };
                    prop_assert_eq!(resize(&mut writer, depth), expected);
                }
            }
        }
    }

    /// A program that writes what it likes harms neither the worker nor, beyond its own
    /// completions, itself.
    #[test]
    fn hostile_words_harm_nobody(scribbles in vec((0..56usize, any::<u64>()), 0..40)) {
        let (mut writer, queue) = queue(8);
        push(&mut writer, DONE);
        let entries = Arc::clone(&writer.entries);
        let (header, slots) = (queue.header(), entries.slots());
        prop_assert_eq!(header.len(), 24);
        let mut out = [DONE; 16];
        for (at, value) in scribbles {
            match header.get(at) {
                Some(word) => word.store(value, Ordering::Relaxed),
                None => slots.store((at - 24) as u32 / 4, [value; 4]),
            }
            // Full or not: the worker goes on.
            let _ = writer.push(&DONE);
            prop_assert!(queue.poll(&mut out).unwrap_or(0) <= 8);
            writer.publish();
            writer.take_notification();
            prop_assert!(queue.poll(&mut out).unwrap_or(0) <= 8);
            queue.arm(true);
            writer.forget(DONE.qpn);
        }
        let _ = resize(&mut writer, 4);
        prop_assert!(queue.poll(&mut out).unwrap_or(0) <= 8);
    }
}

#[test]
fn depths_out_of_range_are_refused() {
    for depth in [0, MAX_CQE + 1] {
        let error = Writer::<Heap>::new(depth).unwrap_err();
        assert_eq!(
            error,
            Allowed::Range(1, MAX_CQE).refuse("cqe", depth.into())
        );
    }
}

#[test]
fn a_ring_comes_when_it_is_needed() {
    let (mut writer, queue) = queue(4);
    assert_eq!(poll_one(&queue), None);
    writer.publish();
    assert!(!writer.take_notification());
    assert_eq!(queue.ring_bytes(), 0);
    queue.arm(false);
    assert_eq!(queue.ring_bytes(), 192);
    push(&mut writer, DONE);
    assert_eq!(queue.ring_bytes(), 192 + 4 * 32);
}

#[test]
fn an_arming_fires_once_and_only_for_what_comes_later() {
    let (mut writer, queue) = queue(8);
    push(&mut writer, DONE);
    assert!(!writer.take_notification(), "nobody armed");
    queue.arm(false);
    writer.publish();
    assert!(!writer.take_notification(), "nothing came since");
    push(&mut writer, DONE);
    assert!(writer.take_notification());
    push(&mut writer, DONE);
    assert!(!writer.take_notification(), "once");
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
    let (mut writer, queue) = queue(16);
    for event in [solicited, failed] {
        push(&mut writer, event);
        writer.take_notification();
        queue.arm(true);
        push(&mut writer, DONE);
        assert!(
            !writer.take_notification(),
            "that was before the arming, and this is not one"
        );
        writer.push(&event).unwrap();
        writer.push(&DONE).unwrap();
        writer.publish();
        assert!(writer.take_notification());
    }
}

#[test]
fn an_arming_for_any_is_not_narrowed() {
    let (mut writer, queue) = queue(8);
    queue.arm(true);
    queue.arm(false);
    queue.arm(true);
    push(&mut writer, DONE);
    assert!(writer.take_notification());
}

#[test]
fn an_overflow_wakes_the_program_up() {
    let (mut writer, queue) = queue(1);
    push(&mut writer, DONE);
    writer.take_notification();
    queue.arm(false);
    assert_eq!(writer.push(&DONE), Err(CqOverflow { capacity: 1 }));
    writer.publish();
    assert!(writer.take_notification());
}

#[test]
fn a_queue_in_error_gives_what_it_had_taken_and_then_says_so_for_good() {
    let (mut writer, queue) = queue(2);
    let overflow = CqOverflow { capacity: 2 };
    push(&mut writer, DONE);
    push(&mut writer, DONE);
    assert_eq!(writer.push(&DONE), Err(overflow));
    writer.publish();
    let mut out = [DONE; 8];
    assert_eq!(queue.poll(&mut out), Ok(2));
    for _ in 0..3 {
        assert_eq!(queue.poll(&mut out), Err(overflow));
        assert_eq!(queue.poll(&mut []), Ok(0), "nothing was asked for");
        assert_eq!(writer.push(&DONE), Err(overflow));
        writer.publish();
    }
}

#[test]
fn a_queue_that_another_one_put_in_error_wakes_the_program_up() {
    let (mut writer, queue) = queue(4);
    queue.arm(true);
    writer.fail();
    writer.publish();
    assert!(writer.take_notification());
    assert_eq!(queue.poll(&mut [DONE]), Err(CqOverflow { capacity: 4 }));
    assert_eq!(writer.push(&DONE), Err(CqOverflow { capacity: 4 }));
}

/// A QP that goes costs the same however many completions wait, and those noted do not pile up.
#[test]
fn qps_that_go_leave_no_more_behind_than_completions_wait() {
    let (mut writer, queue) = queue(64);
    push(&mut writer, DONE);
    for qpn in 2..100_000 {
        writer.forget(Qpn::from_wire(qpn));
        assert!(queue.reader().gone.len() <= 1);
    }
    // One that waits behind each of them: they are forgotten once it was polled.
    for qpn in 2..100_000 {
        push(&mut writer, DONE);
        writer.forget(Qpn::from_wire(qpn));
        assert!(queue.reader().gone.len() <= 2);
        assert_eq!(poll_one(&queue), Some(DONE));
    }
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
    let (mut writer, queue) = queue(8);
    let bell = Bell::default();
    let polled = AtomicU32::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut pushed, mut burst) = (0, 1);
            while pushed < COUNT {
                for _ in 0..burst.min(COUNT - pushed) {
                    writer
                        .push(&Completion {
                            wr_id: pushed.into(),
                            ..DONE
                        })
                        .unwrap();
                    pushed += 1;
                }
                burst = burst % 5 + 1;
                writer.publish();
                if writer.take_notification() {
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
            let got = queue.poll(&mut out).unwrap();
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
