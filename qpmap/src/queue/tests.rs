use super::*;
use crate::allowed::Allowed;
use crate::error::VerbsError;
use crate::ring::Position;
use crate::wqe::OWN_BINDING;
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;
use trunkline_conn::mem::{Access, AtomicOp, PdId, Sge};
use trunkline_conn::work::{
    BindMw, Datagram, Local, MAX_INLINE, MAX_MESSAGE, MAX_SGE, OwnOp, Remote, SendFlags, SendOp,
};
use trunkline_wire::{Gid, IpFields, Lkey, Qpn, Rkey};

type Heap = Arc<[std::sync::atomic::AtomicU64]>;

const REMOTE: Remote = Remote {
    addr: 0x1234_5678_9abc_def0,
    rkey: Rkey(0xfeed_f00d),
};

fn send_queue(max_wr: u32) -> SendQueue<Heap> {
    SendQueue::new(Size::send(max_wr, MAX_SGE as u32, MAX_INLINE as u32, true).unwrap())
}

fn sge(length: u32) -> Sge {
    Sge {
        addr: 0x1000,
        length,
        lkey: Lkey(5),
    }
}

fn send(op: SendOp, sges: &[Sge]) -> SendWr<'_> {
    SendWr {
        wr_id: 1,
        op,
        flags: SendFlags::default(),
        sges,
        inline: None,
        route: OWN_BINDING,
    }
}

/// A [`SendWr`] that owns its data.
#[derive(Clone, Debug)]
struct Sample {
    wr_id: u64,
    op: SendOp,
    flags: SendFlags,
    sges: Vec<Sge>,
    inline: Option<Vec<u8>>,
    route: u32,
}

impl Sample {
    fn wr(&self) -> SendWr<'_> {
        SendWr {
            wr_id: self.wr_id,
            op: self.op,
            flags: self.flags,
            sges: &self.sges,
            inline: self.inline.as_deref(),
            route: self.route,
        }
    }

    fn assert_is(&self, request: &Request, route: u32) {
        assert_eq!(request.wr_id, self.wr_id);
        assert_eq!(request.op, self.op);
        let datagram = matches!(self.op, SendOp::SendTo(_));
        assert_eq!(route, if datagram { OWN_BINDING } else { self.route });
        match (&request.local, &self.inline) {
            (Local::Inline(bytes), Some(inline)) => {
                assert_eq!(&bytes[..], &inline[..]);
                assert_eq!(
                    bytes.spilled(),
                    inline.len() > 64,
                    "only long ones are allocated"
                );
                assert_eq!(request.flags, self.flags.with(SendFlags::INLINE));
                assert_eq!(request.length as usize, inline.len());
            }
            (Local::Sges(sges), None) => {
                assert_eq!(&sges[..], &self.sges[..]);
                assert_eq!(request.flags, self.flags);
                let length = match self.op {
                    SendOp::Atomic(..) => 8,
                    _ => self.sges.iter().map(|sge| sge.length).sum(),
                };
                assert_eq!(request.length, length);
            }
            other => panic!("inline and elements mixed up: {other:?}"),
        }
    }
}

fn op() -> impl Strategy<Value = SendOp> {
    let remote = (any::<u64>(), any::<u32>()).prop_map(|(addr, rkey)| Remote {
        addr,
        rkey: Rkey(rkey),
    });
    (0..12, remote, any::<u64>(), any::<u64>()).prop_map(|(kind, remote, first, second)| {
        let (compare, swap, extra) = (first, second, first as u32);
        match kind {
            0 => SendOp::Send,
            1 => SendOp::SendImm(extra),
            2 => SendOp::SendInvalidate(Rkey(extra)),
            3 => SendOp::Write(remote),
            4 => SendOp::WriteImm(remote, extra),
            5 => SendOp::Read(remote),
            6 => SendOp::Atomic(remote, AtomicOp::CompareSwap { compare, swap }),
            7 => SendOp::Atomic(remote, AtomicOp::FetchAdd { add: first }),
            10 => SendOp::Own(OwnOp::Invalidate(Rkey(extra))),
            11 => SendOp::Own(OwnOp::BindMw(BindMw {
                rkey: Rkey(extra),
                lkey: Lkey(remote.rkey.0),
                addr: remote.addr,
                length: second,
                access: Access::from_bits(second as u32),
            })),
            _ => SendOp::SendTo(Datagram {
                remote: Gid((u128::from(first) << 64 | u128::from(second)).to_be_bytes()),
                traffic_class: second as u8,
                ip: IpFields::new(extra, (second >> 8) as u8),
                pd: PdId(remote.rkey.0),
                node: 0,
                qpn: Qpn::from_wire(extra),
                qkey: remote.addr as u32,
                imm: (kind == 8).then_some(extra),
            }),
        }
    })
}

fn sges() -> impl Strategy<Value = Vec<Sge>> {
    let sge = (any::<u64>(), 8..=MAX_MESSAGE / 16, any::<u32>());
    let sge = sge.prop_map(|(addr, length, lkey)| Sge {
        addr,
        length,
        lkey: Lkey(lkey),
    });
    vec(sge, 0..=MAX_SGE)
}

fn sample() -> impl Strategy<Value = Sample> {
    let bytes = prop::option::of(vec(any::<u8>(), 0..=MAX_INLINE));
    let rest = (any::<u64>(), 0..8u32, any::<u32>());
    (op(), sges(), bytes, rest).prop_map(|(op, mut sges, bytes, (wr_id, flags, route))| {
        let own = matches!(op, SendOp::Own(_));
        let inline = bytes.filter(|_| !op.has_response_data() && !own);
        if inline.is_some() || own {
            sges.clear();
        } else if matches!(op, SendOp::Atomic(..)) {
            sges.resize(1, sge(8));
        }
        let flags = SendFlags(flags);
        Sample {
            wr_id,
            op,
            flags,
            sges,
            inline,
            route,
        }
    })
}

/// What may happen to a queue.
#[derive(Clone, Debug)]
enum Step<T> {
    Post(Vec<T>),
    Fetch(usize),
    Release(usize),
}

fn steps<T: std::fmt::Debug>(
    item: impl Strategy<Value = T>,
) -> impl Strategy<Value = Vec<Step<T>>> {
    let step = prop_oneof![
        vec(item, 0..6).prop_map(Step::Post),
        (0..6usize).prop_map(Step::Fetch),
        (0..6usize).prop_map(Step::Release),
    ];
    vec(step, 0..60)
}

/// What posting `count` requests gives where `room` fit of the 5 that a queue holds.
fn taken(room: usize, count: usize) -> Result<(), PostError> {
    if count <= room {
        return Ok(());
    }
    Err(PostError {
        posted: room,
        error: VerbsError::QueueFull { capacity: 5 },
    })
}

proptest! {
    #[test]
    fn a_send_queue_gives_what_was_posted_and_is_full_when_it_says(steps in steps(sample())) {
        let queue = send_queue(5);
        let mut cursor = SendCursor::default();
        let (mut posted, mut fetched) = (VecDeque::new(), VecDeque::new());
        for step in steps {
            match step {
                Step::Post(list) => {
                    let requests: Vec<_> = list.iter().map(Sample::wr).collect();
                    let room = 5 - posted.len() - fetched.len();
                    prop_assert_eq!(queue.post(&requests), taken(room, list.len()));
                    posted.extend(list.into_iter().take(room));
                }
                Step::Fetch(count) => for _ in 0..count {
                    prop_assert_eq!(queue.has_entry(&cursor), !posted.is_empty());
                    let Some((request, route, slots)) = queue.fetch(&mut cursor).unwrap() else {
                        prop_assert!(posted.is_empty());
                        break;
                    };
                    posted.pop_front().unwrap().assert_is(&request, route);
                    fetched.push_back(slots);
                }
                Step::Release(count) => for slots in fetched.drain(..count.min(fetched.len())) {
                    queue.release(slots);
                }
            }
        }
    }

    #[test]
    fn a_receive_queue_gives_what_was_posted_and_frees_it_at_once(steps in steps(sges())) {
        let queue = RecvQueue::<Heap>::new(Size::receive(5, MAX_SGE as u32).unwrap());
        let mut posted = VecDeque::new();
        for step in steps {
            match step {
                Step::Post(list) => {
                    let requests: Vec<_> = list
                        .iter()
                        .map(|sges| RecvWr { wr_id: sges.len() as u64, sges })
                        .collect();
                    let room = 5 - posted.len();
                    prop_assert_eq!(queue.post(&requests), taken(room, list.len()));
                    posted.extend(list.iter().take(room).cloned());
                }
                Step::Fetch(count) | Step::Release(count) => for _ in 0..count {
                    prop_assert_eq!(queue.has_entry(), !posted.is_empty());
                    let Some(receive) = queue.fetch().unwrap() else {
                        prop_assert!(posted.is_empty());
                        break;
                    };
                    let sges = posted.pop_front().unwrap();
                    prop_assert_eq!(receive.wr_id, sges.len() as u64);
                    prop_assert_eq!(&receive.sges[..], &sges[..]);
                }
            }
        }
    }

    /// A program that writes what it likes gets errors or requests within limits.
    #[test]
    fn hostile_send_rings_give_errors_or_requests_that_make_sense(
        words in vec(prop_oneof![any::<u64>(), 0..0x30_ffffu64], 64),
        tails in vec(prop_oneof![0..10u32, any::<u32>()], 1..6),
    ) {
        let queue = send_queue(1);
        queue.post(&[send(SendOp::Send, &[])]).unwrap();
        let ring = queue.queue.ring().unwrap();
        prop_assert_eq!(ring.capacity(), 8);
        for (at, word) in words.iter().enumerate() {
            ring.store(0, at, *word);
        }
        let mut cursor = SendCursor::default();
        for tail in tails {
            ring.publish(Position { slots: tail, entries: 0 });
            while let Ok(Some((request, _, slots))) = queue.fetch(&mut cursor) {
                prop_assert!((1..=8).contains(&slots));
                prop_assert!(request.length <= MAX_MESSAGE);
                match request.local {
                    Local::Sges(sges) => prop_assert!(sges.len() <= MAX_SGE),
                    Local::Inline(bytes) => {
                        prop_assert!(bytes.len() <= MAX_INLINE);
                        prop_assert!(!request.op.has_response_data());
                    }
                }
                queue.release(slots);
            }
        }
        queue.discard(&mut cursor);
        prop_assert!(matches!(queue.fetch(&mut cursor), Ok(None)));
    }

    #[test]
    fn hostile_receive_rings_give_errors_or_requests_that_make_sense(
        words in vec(prop_oneof![any::<u64>(), 0..20u64], 64),
        tails in vec(prop_oneof![0..10u32, any::<u32>()], 1..6),
    ) {
        let queue = RecvQueue::<Heap>::new(Size::receive(1, MAX_SGE as u32).unwrap());
        queue.post(&[RecvWr { wr_id: 0, sges: &[] }]).unwrap();
        let ring = queue.queue.ring().unwrap();
        prop_assert_eq!(ring.capacity(), 8);
        for (at, word) in words.iter().enumerate() {
            ring.store(0, at, *word);
        }
        for tail in tails {
            ring.publish(Position { slots: tail, entries: 0 });
            while let Ok(Some(receive)) = queue.fetch() {
                prop_assert!(receive.sges.len() <= MAX_SGE);
                prop_assert!(receive.capacity() <= u64::from(MAX_MESSAGE));
            }
        }
        queue.discard();
        prop_assert!(matches!(queue.fetch(), Ok(None)));
    }
}

#[test]
fn what_a_program_may_not_write_is_named() {
    let fetch = |words: [u64; 8], slots: u32| {
        let queue = send_queue(1);
        queue.post(&[send(SendOp::Send, &[])]).unwrap();
        let ring = queue.queue.ring().unwrap();
        for (at, word) in words.into_iter().enumerate() {
            ring.store(0, at, word);
        }
        ring.publish(Position { slots, entries: 1 });
        let mut cursor = SendCursor::default();
        let error = queue.fetch(&mut cursor).unwrap_err();
        assert_eq!(queue.fetch(&mut cursor).unwrap_err(), error, "it stays");
        error
    };
    let what =
        |code: u64, flags: u64, count: u64| [0, code | flags << 8 | count << 16, 0, 0, 0, 0, 0, 0];
    let full = u64::from(u32::MAX);
    let cases = [
        (what(10, 0, 0), 1, RingError::UnknownOpcode { opcode: 10 }),
        (what(7, 8, 0), 1, RingError::BadFlags { flags: 8 }),
        (what(7, 0, 1), 1, RingError::TooManySge { count: 1, max: 0 }),
        (what(255, 0, 0), 1, RingError::UnknownOpcode { opcode: 255 }),
        (what(2, 0x10, 0), 1, RingError::BadFlags { flags: 0x10 }),
        (what(4, 8, 8), 1, RingError::BadFlags { flags: 8 }),
        (what(5, 8, 8), 1, RingError::BadFlags { flags: 8 }),
        (
            what(2, 0, 17),
            8,
            RingError::TooManySge { count: 17, max: 16 },
        ),
        (
            what(2, 8, 257),
            8,
            RingError::InlineTooLong {
                length: 257,
                max: 256,
            },
        ),
        (what(2, 0, 3), 1, RingError::Truncated { need: 2, have: 1 }),
        (what(2, 8, 33), 1, RingError::Truncated { need: 2, have: 1 }),
        (
            what(2, 0, 0),
            9,
            RingError::TailOutOfRange {
                claimed: 9,
                capacity: 8,
            },
        ),
        (what(6, 0, 0), 1, RingError::BadAtomic { length: 0 }),
        (what(6, 0, 2), 8, RingError::TooManySge { count: 2, max: 1 }),
        (
            [0, 2 | 2 << 16, 0, 0, 0, full, 0, full],
            1,
            RingError::MessageTooLong {
                length: 2 * full,
                max: MAX_MESSAGE,
            },
        ),
    ];
    for (words, slots, error) in cases {
        assert_eq!(fetch(words, slots), error);
    }
}

/// Writes requests of one slot, each with this word 1 (send) or elements (receive), whatever the
/// queue was made for.
fn forge(ring: &Ring<Heap>, requests: u32, what: u64) {
    for slot in 0..requests {
        ring.store(slot, 0, slot.into());
        ring.store(slot, 1, what);
    }
    let tail = Position {
        slots: requests,
        entries: requests,
    };
    ring.publish(tail);
}

#[test]
fn who_posts_past_the_library_gets_no_more_requests_than_the_queue_was_made_for() {
    // Most requests of it take several slots, so that there is room for more short ones.
    let queue = send_queue(3);
    queue.post(&[send(SendOp::Send, &[])]).unwrap();
    let ring = queue.queue.ring().unwrap();
    assert!(ring.capacity() > 4);
    forge(ring, ring.capacity(), 2);
    let mut cursor = SendCursor::default();
    let mut fetch = || queue.fetch(&mut cursor);
    let too_many = RingError::TooManyRequests { max: 3 };
    for _ in 0..3 {
        assert!(fetch().unwrap().is_some());
    }
    assert_eq!(fetch().unwrap_err(), too_many);
    assert_eq!(fetch().unwrap_err(), too_many, "it stays");
    // One that is done makes room for one.
    queue.release(1);
    assert!(fetch().unwrap().is_some());
    assert_eq!(fetch().unwrap_err(), too_many);
    queue.put_back(&mut cursor, 2, 2);
    let again = [(); 2].map(|()| queue.fetch(&mut cursor).unwrap().unwrap().0.wr_id);
    assert_eq!(again, [2, 3]);
    assert_eq!(queue.fetch(&mut cursor).unwrap_err(), too_many);
    queue.discard(&mut cursor);
    assert!(matches!(queue.fetch(&mut cursor), Ok(None)));
}

#[test]
fn who_posts_past_the_library_gets_no_longer_requests_than_the_queue_was_made_for() {
    let many = |count| RingError::TooManySge { count, max: 1 };
    let inline = RingError::InlineTooLong { length: 9, max: 8 };
    for (what, error) in [
        (2 | 2 << 16, many(2)),
        (2 | 3 << 16, many(3)),
        (2 | 8 << 8 | 9 << 16, inline),
    ] {
        let queue = SendQueue::<Heap>::new(Size::send(8, 1, 8, false).unwrap());
        queue.post(&[send(SendOp::Send, &[])]).unwrap();
        forge(queue.queue.ring().unwrap(), 8, what);
        let mut cursor = SendCursor::default();
        assert_eq!(queue.fetch(&mut cursor).unwrap_err(), error);
    }
    for count in [2, 3] {
        let queue = RecvQueue::<Heap>::new(Size::receive(8, 1).unwrap());
        let receive = RecvWr {
            wr_id: 0,
            sges: &[],
        };
        queue.post(&[receive]).unwrap();
        forge(queue.queue.ring().unwrap(), 8, count.into());
        assert_eq!(queue.fetch().unwrap_err(), many(count));
    }
}

#[test]
fn what_verbs_refuse_is_refused_and_only_what_precedes_it_is_posted() {
    let queue = SendQueue::<Heap>::new(Size::send(4, 2, 32, false).unwrap());
    let (three, short, long) = ([sge(1); 3], [sge(7)], [sge(MAX_MESSAGE), sge(1)]);
    let bytes = [0; 33];
    let fine = [sge(64)];
    let base = send(SendOp::Send, &fine);
    let atomic = SendOp::Atomic(REMOTE, AtomicOp::FetchAdd { add: 1 });
    let inline = SendWr {
        sges: &[],
        inline: Some(&bytes[..32]),
        ..base
    };
    let flags = |bits, why| VerbsError::BadFlags { bits, why };
    let cases = [
        (
            send(SendOp::Send, &three),
            VerbsError::TooManySge { count: 3, max: 2 },
        ),
        (
            send(atomic, &short),
            VerbsError::BadSge {
                index: 0,
                length: 7,
                least: 8,
            },
        ),
        (
            send(atomic, &three[..2]),
            VerbsError::TooManySge { count: 2, max: 1 },
        ),
        (
            send(atomic, &[]),
            Allowed::Range(1, 1).refuse("num_sge of an atomic", 0),
        ),
        (
            send(SendOp::Write(REMOTE), &long),
            VerbsError::MessageTooLong {
                length: u64::from(MAX_MESSAGE) + 1,
                max: MAX_MESSAGE,
            },
        ),
        (
            SendWr {
                flags: SendFlags(16),
                ..base
            },
            flags(16, "there are no such flags"),
        ),
        (
            SendWr {
                flags: SendFlags::INLINE,
                ..base
            },
            flags(8, "INLINE is for requests with inline bytes"),
        ),
        (
            SendWr {
                op: SendOp::Read(REMOTE),
                ..inline
            },
            flags(0, "READs and atomics have no inline bytes"),
        ),
        (
            SendWr {
                inline: Some(&bytes),
                ..inline
            },
            VerbsError::InlineTooLong {
                length: 33,
                max: 32,
            },
        ),
        (
            SendWr {
                sges: &fine,
                ..inline
            },
            Allowed::Range(0, 0).refuse("num_sge beside inline data", 1),
        ),
    ];
    let mut cursor = SendCursor::default();
    for (request, error) in cases {
        let refused = Err(PostError { posted: 1, error });
        assert_eq!(queue.post(&[base, request, base]), refused, "{request:?}");
        assert!(queue.fetch(&mut cursor).unwrap().is_some(), "{request:?}");
        assert!(queue.fetch(&mut cursor).unwrap().is_none(), "{request:?}");
        queue.discard(&mut cursor);
    }
    assert_eq!(
        queue.post(&[base, inline]),
        Ok(()),
        "the good ones are good"
    );
}

#[test]
fn sizes_beyond_the_limits_are_refused() {
    let error = |what, value, most| Allowed::Range(0, most).refuse(what, value);
    let send = |wr, sge, inline| Size::send(wr, sge, inline, false).unwrap_err();
    assert_eq!(send(MAX_WR + 1, 1, 0), error("max_send_wr", 32769, 32768));
    assert_eq!(send(1, 17, 0), error("max_send_sge", 17, 16));
    assert_eq!(send(1, 1, 257), error("max_inline_data", 257, 256));
    let recv = |wr, sge| Size::receive(wr, sge).unwrap_err();
    assert_eq!(recv(MAX_WR + 1, 1), error("max_recv_wr", 32769, 32768));
    assert_eq!(recv(1, 17), error("max_recv_sge", 17, 16));
}

#[test]
fn a_queue_for_nothing_is_always_full() {
    let queue = send_queue(0);
    let full = Err(VerbsError::QueueFull { capacity: 0 }.into());
    assert_eq!(queue.post(&[send(SendOp::Send, &[])]), full);
    assert_eq!(queue.post(&[]), Ok(()));
}

#[test]
fn a_ring_comes_with_the_first_post() {
    let queue = SendQueue::<Heap>::new(Size::send(4, 2, 0, false).unwrap());
    assert_eq!(queue.ring_bytes(), 0);
    assert!(matches!(queue.fetch(&mut SendCursor::default()), Ok(None)));
    queue.post(&[]).unwrap();
    assert_eq!(queue.ring_bytes(), 0, "posting nothing is not posting");
    queue.post(&[send(SendOp::Send, &[])]).unwrap();
    assert_eq!(queue.ring_bytes(), 128 + 4 * 64);
}

#[test]
fn discarding_makes_room_for_as_much_as_ever() {
    let queue = send_queue(3);
    let mut cursor = SendCursor::default();
    for _ in 0..4 {
        queue.post(&[send(SendOp::Send, &[]); 3]).unwrap();
        queue.fetch(&mut cursor).unwrap().unwrap();
        assert!(
            queue.post(&[send(SendOp::Send, &[])]).is_err(),
            "fetched is not done"
        );
        queue.discard(&mut cursor);
        assert!(matches!(queue.fetch(&mut cursor), Ok(None)));
    }
}

/// Two threads post, a third fetches and releases late: nothing is lost, nothing is doubled, and
/// each thread's requests keep their order.
#[test]
fn threads_that_post_at_once_lose_nothing() {
    const EACH: u64 = 40_000;
    let queue = send_queue(16);
    let post = |thread: u64| {
        let mut next = 0;
        while next < EACH {
            let sges = [sge(64); 5];
            let count = (next % 3 + 1).min(EACH - next);
            let requests: Vec<_> = (next..next + count)
                .map(|n| {
                    let sges = &sges[..n as usize % 6];
                    SendWr {
                        wr_id: thread << 32 | n,
                        ..send(SendOp::Write(REMOTE), sges)
                    }
                })
                .collect();
            match queue.post(&requests) {
                Ok(()) => next += count,
                Err(PostError {
                    posted,
                    error: VerbsError::QueueFull { .. },
                }) => {
                    next += posted as u64;
                    thread::yield_now();
                }
                Err(other) => panic!("{other}"),
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| post(0));
        scope.spawn(|| post(1));
        let (mut cursor, mut next, mut held) = (SendCursor::default(), [0, 0], VecDeque::new());
        while next.iter().sum::<u64>() < 2 * EACH {
            let Some((request, _, slots)) = queue.fetch(&mut cursor).unwrap() else {
                held.drain(..).for_each(|slots| queue.release(slots));
                thread::yield_now();
                continue;
            };
            let expected = &mut next[(request.wr_id >> 32) as usize];
            assert_eq!(request.wr_id as u32 as u64, *expected);
            assert_eq!(request.length as u64, 64 * (*expected % 6));
            *expected += 1;
            held.push_back(slots);
            if held.len() > 7 {
                queue.release(held.pop_front().unwrap());
            }
        }
    });
}

#[test]
fn threads_that_receive_keep_the_order() {
    const COUNT: u64 = 100_000;
    let queue = RecvQueue::<Heap>::new(Size::receive(8, 4).unwrap());
    thread::scope(|scope| {
        scope.spawn(|| {
            for wr_id in 0..COUNT {
                let sges = [sge(wr_id as u32 & 0xff); 4];
                let request = RecvWr {
                    wr_id,
                    sges: &sges[..wr_id as usize % 5],
                };
                while queue.post(&[request]).is_err() {
                    thread::yield_now();
                }
            }
        });
        for wr_id in 0..COUNT {
            let receive = loop {
                match queue.fetch().unwrap() {
                    Some(receive) => break receive,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(receive.wr_id, wr_id);
            assert_eq!(receive.capacity(), (wr_id & 0xff) * (wr_id % 5));
        }
    });
}

#[test]
fn halves_that_share_only_memory_are_one_queue() {
    let size = Size::send(2, 1, 0, false).unwrap();
    let memory = Heap::zeroed(size.ring_words());
    let (queue, producer) = (SendQueue::new(size), Producer::new(size, memory.clone()));
    let sges = [sge(8)];
    producer.post(&[send(SendOp::Send, &sges); 2]).unwrap();
    let mut cursor = SendCursor::default();
    assert!(
        queue.fetch(&mut cursor).unwrap().is_none(),
        "it has no ring"
    );
    assert!(queue.begin(memory.clone()) && !queue.begin(memory));
    for _ in 0..2 {
        let (request, _, slots) = queue.fetch(&mut cursor).unwrap().expect("it was posted");
        assert_eq!((request.op, request.length), (SendOp::Send, 8));
        let full = producer.post(&[send(SendOp::Send, &sges)]).unwrap_err();
        assert_eq!(full.error, VerbsError::QueueFull { capacity: 2 });
        queue.release(slots);
        producer.post(&[send(SendOp::Send, &sges)]).unwrap();
    }
    let size = Size::receive(4, 1).unwrap();
    let memory = Heap::zeroed(size.ring_words());
    let (queue, producer) = (RecvQueue::new(size), Producer::new(size, memory.clone()));
    assert!(queue.begin(memory));
    producer
        .post(&[RecvWr {
            wr_id: 7,
            sges: &sges,
        }])
        .unwrap();
    assert_eq!(queue.posted(), 1);
    assert_eq!(queue.fetch().unwrap().map(|receive| receive.wr_id), Some(7));
}

#[test]
#[should_panic(expected = "ring")]
fn a_ring_of_another_length_is_none() {
    let size = Size::send(2, 1, 0, false).unwrap();
    Producer::new(size, Heap::zeroed(size.ring_words() + 8 * 8));
}

#[test]
fn who_posts_past_the_library_gets_no_more_receives_read_than_the_queue_was_made_for() {
    let size = Size::receive(4, 1).unwrap();
    let memory = Heap::zeroed(size.ring_words());
    let (queue, ring) = (RecvQueue::new(size), Ring::new(memory.clone()));
    assert!(queue.begin(memory));
    let mut posted = Position::default();
    let mut read = 0;
    for _ in 0..8 {
        posted = posted.advance(1, 1);
        ring.publish(posted);
        match queue.read() {
            Ok(found) => read += u32::from(found.is_some()),
            Err(error) => assert_eq!(error, RingError::TooManyRequests { max: 4 }),
        }
    }
    assert_eq!(read, 4);
    queue.release(1);
    assert!(queue.read().unwrap().is_some() && queue.read().is_err());
}
