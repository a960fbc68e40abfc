//! What a program may have is bounded, and it can go on when it was refused more.

use super::raw::{Raw, hello, own_memory, qp_of};
use super::{Neighbours, is_clean, service, still_serves, until};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use trunkline::{Access, Node};
use trunkline_host::Handle;
use trunkline_host::control::attributes::{MwKind, Reason, RegionPlace};
use trunkline_host::control::requests as ask;
use trunkline_host::control::{Answer, Request, VERSION};

/// Asks until it is refused; gives how often it was not, and why then.
fn as_many_as_possible(raw: &mut Raw, request: impl Into<Request>) -> (usize, String) {
    let request = request.into();
    for count in 0..1000 {
        if let Answer::Failed(why) = raw.ask(request) {
            return (count, why.text.as_str().into());
        }
    }
    panic!("{request:?} is not refused");
}

#[test]
fn each_quota_is_refused_by_its_name_and_what_is_freed_can_be_had_again() {
    let all = service(|limits| {
        limits.qps = 5;
        limits.cqs = 3;
        limits.mrs = 4;
        limits.segment_bytes = 1 << 20;
        limits.registered_bytes = 10_000;
    });
    let mut neighbours = Neighbours::of(&all.1);
    let (mut raw, pd, cq) = attached(&all.1);
    assert_eq!(as_many_as_possible(&mut raw, ask::AllocPd {}).0, 3);
    assert_eq!(
        as_many_as_possible(&mut raw, ask::CreateCq { depth: 1 }).0,
        2
    );
    assert_eq!(as_many_as_possible(&mut raw, qp_of(pd, cq, None)).0, 5);
    let kind = MwKind::Type1;
    assert_eq!(
        as_many_as_possible(&mut raw, ask::AllocMw { pd, kind }).0,
        4
    );
    let srq = ask::CreateSrq {
        pd,
        max_wr: 4,
        max_sge: 1,
    };
    assert_eq!(as_many_as_possible(&mut raw, srq).0, 3);
    let region = ask::RegisterMr {
        pd,
        iova: 0,
        length: 3000,
        access: Access::ALL,
        place: RegionPlace::Foreign { addr: 4096 },
    };
    let (count, why) = as_many_as_possible(&mut raw, region);
    assert_eq!(count, 3);
    assert!(why.contains("10000"), "{why}");
    // Whether there is a device or not: it is opened no more.
    let fault = Request::from(ask::OpenUserfault {});
    let answers = (0..17).map(|_| raw.ask(fault));
    let Some(Answer::Failed(why)) = answers.last() else {
        panic!("the 17th userfaultfd is not refused");
    };
    assert!(why.text.as_str().contains("16"), "{}", why.text.as_str());
    // All pieces of 64 KiB that there are, and the CQs have some bytes, too.
    let (count, why) = as_many_as_possible(&mut raw, ask::AllocMemory { words: 1 << 13 });
    assert!(count <= 4, "{count} pieces of memory, of 4");
    assert!(!why.is_empty());
    let big = ask::AllocMemory { words: 1 << 24 };
    assert!(matches!(raw.ask(big), Answer::Failed(_)));
    let beyond_limits = all.0.beyond_limits();
    assert!((8..=10).contains(&beyond_limits), "{beyond_limits} of 9");
    for depth in [0, 1 << 22, u32::MAX] {
        assert!(matches!(
            raw.ask(ask::ResizeCq { cq, depth }),
            Answer::Failed(_)
        ));
    }
    // What is freed can be had again.
    for _ in 0..200 {
        let destroyed = raw.ask(ask::DestroyCq { cq });
        assert!(matches!(destroyed, Answer::Failed(_)), "its QPs have it");
    }
    neighbours.exchange();
    drop((raw, neighbours));
    still_serves(&all);
    is_clean(&all.0);
}

/// A program that says where its memory is, with a PD and a CQ, once what others of its user had
/// leaves it as much.
fn attached(path: &str) -> (Raw, Handle, Handle) {
    let mut raw = Raw::connect(path);
    let bytes = Request::from(hello(VERSION)).to_bytes(1);
    raw.send(&bytes, &[own_memory().as_fd()]);
    assert!(matches!(raw.hear(), Some((1, Answer::Welcome(_)))));
    let start = Instant::now();
    loop {
        let pd = raw.ask(ask::AllocPd {});
        let cq = raw.ask(ask::CreateCq { depth: 16 });
        if let (Answer::PdAllocated(pd), Answer::CqCreated(cq)) = (&pd, &cq) {
            return (raw, pd.pd, cq.cq);
        }
        if let Answer::PdAllocated(allocated) = pd {
            raw.ask(ask::DeallocPd { pd: allocated.pd });
        }
        if let Answer::CqCreated(created) = cq {
            raw.ask(ask::DestroyCq { cq: created.cq });
        }
        assert!(
            start.elapsed() < Duration::from_secs(5),
            "all is given back"
        );
    }
}

/// How many windows a program can have, which it frees again.
fn windows(raw: &mut Raw, pd: Handle) -> usize {
    let kind = MwKind::Type1;
    let allocate = || match raw.ask(ask::AllocMw { pd, kind }) {
        Answer::MwAllocated(allocated) => Some(allocated.mw),
        _ => None,
    };
    let all: Vec<Handle> = std::iter::from_fn(allocate).collect();
    for mw in &all {
        raw.ask(ask::DeallocMw { mw: *mw });
    }
    all.len()
}

#[test]
fn programs_of_a_user_have_no_more_together_than_its_quotas_and_leave_it_all() {
    let all = service(|limits| {
        limits.qps_per_user = 5;
        limits.cqs_per_user = 3;
        limits.mrs_per_user = 4;
        limits.registered_bytes_per_user = 10_000;
    });
    for _ in 0..20 {
        let [(mut first, pd, cq), (mut second, other_pd, other_cq)] =
            [0, 1].map(|_| attached(&all.1));
        let start = Instant::now();
        while windows(&mut first, pd) < 4 {
            assert!(
                start.elapsed() < Duration::from_secs(5),
                "all is given back"
            );
        }
        let mut both = |requests: [Request; 2], most: usize, limit: &str| {
            let [of_first, of_second] = requests;
            assert!(!matches!(second.ask(of_second), Answer::Failed(_)));
            let (count, _) = as_many_as_possible(&mut first, of_first);
            let (more, why) = as_many_as_possible(&mut second, of_second);
            assert_eq!((count, more), (most - 1, 0), "{why}");
            let text = format!("the limit of all programs of the user is {limit}");
            assert!(why.contains(&text), "{why}");
        };
        let of = [(pd, cq), (other_pd, other_cq)];
        both(of.map(|(pd, cq)| qp_of(pd, cq, None).into()), 5, "5");
        let window = |pd| ask::AllocMw {
            pd,
            kind: MwKind::Type1,
        };
        both(of.map(|(pd, _)| window(pd).into()), 4, "4");
        let srq = |pd| ask::CreateSrq {
            pd,
            max_wr: 4,
            max_sge: 1,
        };
        both(of.map(|(pd, _)| srq(pd).into()), 3, "3");
        let region = |pd| ask::RegisterMr {
            pd,
            iova: 0,
            length: 3000,
            access: Access::ALL,
            place: RegionPlace::Foreign { addr: 4096 },
        };
        both(of.map(|(pd, _)| region(pd).into()), 3, "10000");
        let (pds, _) = as_many_as_possible(&mut first, ask::AllocPd {});
        let (cqs, _) = as_many_as_possible(&mut second, ask::CreateCq { depth: 1 });
        assert_eq!((pds, cqs), (2, 1), "beside those that each has");
    }
    still_serves(&all);
    is_clean(&all.0);
}

#[test]
fn segments_of_a_users_programs_have_no_more_bytes_together_than_its_quota() {
    let all = service(|limits| limits.segment_bytes_per_user = 1 << 20);
    let piece = ask::AllocMemory { words: 1 << 13 };
    let most = {
        let mut programs = [0, 1].map(|_| attached(&all.1).0);
        let [(first, _), (second, why)] = programs
            .each_mut()
            .map(|raw| as_many_as_possible(raw, piece));
        assert!(
            first + second < 16,
            "{first} and {second} pieces of 64 KiB, of 16"
        );
        assert!(why.contains("all programs of the user is 1048576"), "{why}");
        first
    };
    // What they had is unmapped, sooner or later.
    let start = Instant::now();
    loop {
        let mut raw = Raw::attach(&all.1);
        if as_many_as_possible(&mut raw, piece).0 >= most {
            break;
        }
        assert!(
            start.elapsed() < Duration::from_secs(5),
            "all is given back"
        );
    }
    is_clean(&all.0);
}

#[test]
fn regions_that_were_refused_changed_leave_the_count_of_bytes_right() {
    let all = service(|limits| limits.registered_bytes = 10_000);
    let mut raw = Raw::connect(&all.1);
    let bytes = Request::from(hello(VERSION)).to_bytes(1);
    raw.send(&bytes, &[own_memory().as_fd()]);
    assert!(matches!(raw.hear(), Some((1, Answer::Welcome(_)))));
    let pd = raw.pd();
    let Answer::MemoryAllocated(memory) = raw.memory(16) else {
        panic!("memory");
    };
    let memory = memory.memory;
    let shared = RegionPlace::Shared { memory, offset: 8 };
    let foreign = RegionPlace::Foreign { addr: 4096 };
    for _ in 0..50 {
        let (iova, access) = (0, Access::ALL);
        let request = ask::RegisterMr {
            pd,
            iova,
            length: 6000,
            access,
            place: foreign,
        };
        let Answer::MrRegistered(registered) = raw.ask(request) else {
            panic!("the bytes of the last round were not given back");
        };
        let mr = registered.mr;
        let places = [
            (foreign, 20_000),
            (shared, 64),
            (foreign, 9000),
            (shared, 999),
        ];
        let done = [false, true, true, false];
        for ((place, length), is_done) in places.into_iter().zip(done) {
            let place = Some(place);
            let change = ask::ReregisterMr {
                mr,
                pd,
                iova,
                length,
                access,
                place,
            };
            let answer = raw.ask(change);
            assert_eq!(
                matches!(answer, Answer::MrRegistered(_)),
                is_done,
                "{answer:?}"
            );
        }
        let sum = all
            .0
            .clients()
            .iter()
            .map(|it| it.foreign_bytes)
            .sum::<u64>();
        assert!(sum <= 10_000, "{sum}");
        let unbind = false;
        assert!(matches!(
            raw.ask(ask::DeregisterMr { mr, unbind }),
            Answer::Done(_)
        ));
    }
    drop(raw);
    is_clean(&all.0);
}

#[test]
fn programs_beyond_the_limit_are_turned_away_and_let_in_when_there_is_room() {
    let all = service(|limits| limits.clients = 2);
    // What those before had is closed, sooner or later; the service has nothing else to do.
    let let_in = || {
        let start = Instant::now();
        loop {
            if let Ok(node) = Node::attach(&all.1) {
                return node;
            }
            assert!(start.elapsed() < Duration::from_secs(5), "there is room");
        }
    };
    for pause in [0, 0, 50, 200] {
        let inside = [let_in(), let_in()];
        let mut third = Raw::connect(&all.1);
        assert_eq!(third.end().0, Reason::TooManyClients);
        drop(inside);
        until("they are gone", || all.0.clients().is_empty());
        std::thread::sleep(Duration::from_millis(pause));
    }
    let beyond_limits = all.0.beyond_limits();
    assert!(beyond_limits >= 4, "{beyond_limits} are counted");
    is_clean(&all.0);
}

#[test]
fn a_program_that_ends_before_its_answer_comes_has_violated_nothing() {
    let all = service(|_| {});
    for _ in 0..300 {
        let mut raw = Raw::attach(&all.1);
        for _ in 0..4 {
            raw.say(ask::AllocPd {});
        }
        drop(raw);
    }
    is_clean(&all.0);
    assert_eq!(all.0.violations(), 0);
}
