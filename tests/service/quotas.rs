//! What a program may have is bounded, and it can go on when it was refused more.

use super::raw::{Raw, hello, own_memory, qp_of};
use super::{Neighbours, is_clean, service, still_serves, until};
use std::os::fd::AsFd;
use std::time::Duration;
use trunkline::Access;
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
    let mut raw = Raw::connect(&all.1);
    let bytes = Request::from(hello(VERSION)).to_bytes(1);
    raw.send(&bytes, &[own_memory().as_fd()]);
    assert!(matches!(raw.hear(), Some((1, Answer::Welcome(_)))));
    let (pd, cq) = (raw.pd(), raw.cq(16));
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
    for pause in [0, 0, 50, 200] {
        let inside = [Raw::attach(&all.1), Raw::attach(&all.1)];
        let mut third = Raw::connect(&all.1);
        assert_eq!(third.end().0, Reason::TooManyClients);
        drop(inside);
        until("they are gone", || all.0.clients().is_empty());
        // What they had is closed, sooner or later; the service has nothing else to do.
        std::thread::sleep(Duration::from_millis(200 + pause));
    }
    is_clean(&all.0);
}
