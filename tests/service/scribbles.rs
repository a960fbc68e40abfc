//! A program that writes anything into all memory that it shares with the service.

use super::raw::{Numbers, Raw, own_memory, qp_of};
use super::{Neighbours, is_clean, service_of, still_serves, until};
use crate::common::resident;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use trunkline::{Access, Attributes, Gid};
use trunkline_host::Handle;
use trunkline_host::control::answers::EventTaken;
use trunkline_host::control::attributes::{EventKind, QpAttributes, QpStep, RegionPlace, RingKind};
use trunkline_host::control::requests as ask;
use trunkline_host::control::{Answer, Request, VERSION};
use trunkline_qpmap::QpType;
use trunkline_wire::Qpn;

/// How long it goes on, unless `TRUNKLINE_WORDS` asks for a number of words instead.
const LONG: Duration = Duration::from_secs(4);
/// How long a program scribbles before the next one comes.
const LIFE: Duration = Duration::from_millis(400);
/// Most bytes by which memory may grow after the first few programs.
const MAX_GROWTH: u64 = 8 << 20;
const WORKERS: u8 = 2;
/// Four of each worker.
const QPS: usize = 4 * WORKERS as usize;

/// Takes a QP to RTS, towards a QP of that number at `remote`.
fn connect(raw: &mut Raw, qp: Handle, remote: Gid, dest_qpn: Qpn) {
    let all = QpAttributes {
        access: Some(Access::ALL),
        remote: Some(remote),
        dest_qpn: Some(dest_qpn),
        path_mtu: Some(Attributes::default().path_mtu),
        ..QpAttributes::default()
    };
    let init = QpAttributes {
        access: Some(Access::ALL),
        ..QpAttributes::default()
    };
    for (step, attributes) in [(QpStep::Init, init), (QpStep::Rtr, all), (QpStep::Rts, all)] {
        raw.ask(ask::ModifyQp {
            qp,
            step,
            attributes,
        });
    }
}

/// A program with queues of all kinds, some of them connected to each other.
fn equip(path: &str, remote: Gid) -> (Raw, Handle, Vec<Handle>) {
    let mut raw = Raw::connect(path);
    let bytes = Request::from(super::raw::hello(VERSION)).to_bytes(1);
    raw.send(&bytes, &[own_memory().as_fd()]);
    assert!(
        matches!(raw.hear(), Some((1, Answer::Welcome(welcome))) if welcome.workers == WORKERS)
    );
    let (pd, cq) = (raw.pd(), raw.cq(64));
    let srq = raw.ask(ask::CreateSrq {
        pd,
        max_wr: 64,
        max_sge: 2,
    });
    let Answer::SrqCreated(srq) = srq else {
        panic!("{srq:?}");
    };
    let srq = srq.srq;
    raw.ring(RingKind::Shared, Some(srq), 0);
    for worker in 0..WORKERS {
        raw.ring(RingKind::Doorbells, None, worker);
        raw.ring(RingKind::CompletionHeader, Some(cq), worker);
        raw.ring(RingKind::Completions, Some(cq), worker);
    }
    let Answer::MemoryAllocated(memory) = raw.memory(512) else {
        panic!("memory");
    };
    raw.ask(ask::RegisterMr {
        pd,
        iova: 0,
        length: 4096,
        access: Access::ALL.with(Access::MW_BIND),
        place: RegionPlace::Shared {
            memory: memory.memory,
            offset: 0,
        },
    });
    let made: Vec<_> = (0..QPS)
        .map(|number| {
            let with = (number % 2 == 1).then_some(srq);
            let kind = [QpType::Rc, QpType::Rc, QpType::Uc, QpType::Ud][number % 4];
            let request = ask::CreateQp {
                kind,
                // The SRQ has QPs at each worker.
                worker: Some((number / 4) as u8),
                srq: with,
                ..qp_of(pd, cq, with)
            };
            let Answer::QpCreated(created) = raw.ask(request) else {
                panic!("a QP");
            };
            created
        })
        .collect();
    for (number, qp) in made.iter().enumerate() {
        let to = made[(number + 4) % QPS].qpn;
        connect(&mut raw, qp.qp, remote, to);
        raw.ring(RingKind::Send, Some(qp.qp), 0);
        raw.ring(RingKind::Receive, Some(qp.qp), 0);
    }
    let qps = made.iter().map(|qp| qp.qp).collect();
    (raw, cq, qps)
}

/// Words that mean something somewhere, changed a little, or anything.
fn word(numbers: &mut Numbers, before: u64) -> u64 {
    let bits = numbers.next();
    match numbers.below(8) {
        0 => bits,
        1 => u64::from(bits as u32 % 64),
        2 => before.wrapping_add(bits % 5).wrapping_sub(2),
        3 => before ^ (1 << (bits % 64)),
        4 => 0,
        5 => u64::MAX,
        6 => ((bits % 32) << 32) | ((bits >> 40) % 32),
        _ => before,
    }
}

fn scribble(seed: u64, is_slow: bool) {
    let all = service_of(WORKERS, |_| {});
    let mut neighbours = Neighbours::of(&all.1);
    neighbours.exchange();
    let remote = all.0.node().gid();
    let (is_over, said) = (AtomicBool::new(false), AtomicU64::new(0));
    let (mut exchanged, mut longest, mut warm) = (0, Duration::ZERO, None);
    let words = std::env::var("TRUNKLINE_WORDS").ok();
    let words: Option<u64> = words.map(|words| words.parse().expect("a number"));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut numbers = Numbers(seed);
            while !is_over.load(Ordering::Relaxed) {
                let (mut raw, cq, qps) = equip(&all.1, remote);
                let end = Instant::now() + LIFE;
                while Instant::now() < end && !is_over.load(Ordering::Relaxed) {
                    for piece in &raw.pieces {
                        let words = piece.as_slice();
                        let count = if is_slow { 1 } else { words.len().min(64) };
                        said.fetch_add(count as u64, Ordering::Relaxed);
                        for _ in 0..count {
                            // The first words say what the rest is.
                            let near = numbers.below(words.len().min(24));
                            let far = numbers.below(words.len());
                            let at = [near, far][numbers.below(2)];
                            let before = words[at].load(Ordering::Relaxed);
                            words[at].store(word(&mut numbers, before), Ordering::Relaxed);
                        }
                    }
                    // Wakes the worker, and whatever else can be rung.
                    for descriptor in &raw.descriptors {
                        let _ = trunkline_host::wake::ring(descriptor.as_fd());
                    }
                    let qp = qps[numbers.below(QPS)];
                    let steps = [QpStep::Reset, QpStep::Error, QpStep::Drain, QpStep::Init];
                    let answer = match numbers.below(64) {
                        0 => raw.ask(ask::ModifyQp {
                            qp,
                            step: steps[numbers.below(4)],
                            attributes: QpAttributes::default(),
                        }),
                        1 => raw.ask(ask::ResizeCq {
                            cq,
                            depth: 1 << numbers.below(10),
                        }),
                        2 => raw.ask(ask::DestroyQp { qp }),
                        3 => raw.ask(ask::TakeEvent {}),
                        _ => continue,
                    };
                    assert!(!matches!(answer, Answer::Detached(_)), "{answer:?}");
                }
            }
        });
        let start = Instant::now();
        let is_said = || match words {
            Some(words) => said.load(Ordering::Relaxed) >= words,
            None => start.elapsed() > LONG,
        };
        while !is_said() {
            longest = longest.max(neighbours.exchange());
            exchanged += 1;
            if warm.is_none() && start.elapsed() > LIFE * 4 {
                warm = Some(resident());
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let growth = resident().saturating_sub(warm.expect("it went on for long enough"));
    let said = said.into_inner();
    eprintln!("{said} words, {growth} bytes more; {exchanged} exchanges, the longest {longest:?}");
    assert!(exchanged > 10, "{exchanged} exchanges");
    assert!(growth < MAX_GROWTH, "memory grew by {growth} bytes");
    still_serves(&all);
    drop(neighbours);
    is_clean(&all.0);
}

#[test]
fn neighbours_hear_nothing_of_who_scribbles_all_the_time() {
    scribble(1, false);
}

#[test]
fn neighbours_hear_nothing_of_who_scribbles_now_and_then() {
    scribble(2, true);
}

/// The events of a program that wait.
fn taken(raw: &mut Raw) -> Vec<(EventKind, Option<Handle>)> {
    let next = || match raw.ask(ask::TakeEvent {}) {
        Answer::EventTaken(EventTaken { kind, object }) => kind.map(|kind| (kind, object)),
        other => panic!("{other:?}"),
    };
    std::iter::from_fn(next).collect()
}

#[test]
fn who_breaks_the_ring_of_an_srq_hears_once_that_it_is_in_error_and_nobody_else_does() {
    let all = service_of(WORKERS, |_| {});
    let mut programs = [(); 2].map(|()| Raw::attach(&all.1));
    let srqs = programs.each_mut().map(|raw| {
        let pd = raw.pd();
        let made = ask::CreateSrq {
            pd,
            max_wr: 64,
            max_sge: 2,
        };
        let Answer::SrqCreated(made) = raw.ask(made) else {
            panic!("an SRQ");
        };
        raw.ring(RingKind::Shared, Some(made.srq), 0);
        made.srq
    });
    let [breaks, other] = &mut programs;
    for word in breaks.pieces[0].as_slice() {
        word.store(u64::MAX, Ordering::Relaxed);
    }
    let larger = |srq| ask::ModifySrq {
        srq,
        max_wr: Some(128),
        limit: None,
    };
    for _ in 0..2 {
        let refused = breaks.ask(larger(srqs[0]));
        assert!(matches!(refused, Answer::Failed(_)), "{refused:?}");
    }
    let resized = other.ask(larger(srqs[1]));
    assert!(matches!(resized, Answer::Done(_)), "{resized:?}");
    let mut events = Vec::new();
    until("an event", || {
        events.extend(taken(breaks));
        !events.is_empty()
    });
    std::thread::sleep(Duration::from_millis(200));
    events.extend(taken(breaks));
    assert_eq!(events, [(EventKind::SrqError, Some(srqs[0]))]);
    assert_eq!(taken(other), []);
    still_serves(&all);
    drop(programs);
    is_clean(&all.0);
}
