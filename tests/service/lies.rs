//! A program that lies about memory that it promotes changes its own memory, and nobody else's.

use super::raw::{Numbers, Raw, hello, own_memory};
use super::{Neighbours, is_clean, service, still_serves, until};
use rustix::fs::FallocateFlags;
use std::fs::{File, Metadata};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use trunkline::Access;
use trunkline_host::Handle;
use trunkline_host::control::attributes::RegionPlace;
use trunkline_host::control::requests as ask;
use trunkline_host::control::{Answer, Request, VERSION};

const PAGE: u64 = 4096;

/// One that is attached and gave its memory.
fn attach(path: &str) -> Raw {
    let mut raw = Raw::connect(path);
    let bytes = Request::from(hello(VERSION)).to_bytes(1);
    raw.send(&bytes, &[own_memory().as_fd()]);
    assert!(matches!(raw.hear(), Some((1, Answer::Welcome(_)))));
    raw
}

fn lend(raw: &mut Raw, bytes: u64) -> Option<Handle> {
    match raw.ask(ask::LendMemory { bytes }) {
        Answer::MemoryLent(lent) => Some(lent.lent),
        Answer::Failed(_) => None,
        other => panic!("{other:?}"),
    }
}

/// A region of that length.
fn register(raw: &mut Raw, pd: Handle, length: u64, place: RegionPlace) -> Option<Handle> {
    let (iova, access) = (0, Access::ALL);
    let region = ask::RegisterMr {
        pd,
        iova,
        length,
        access,
        place,
    };
    match raw.ask(region) {
        Answer::MrRegistered(registered) => Some(registered.mr),
        Answer::Failed(_) => None,
        other => panic!("{other:?}"),
    }
}

#[test]
fn pages_that_are_not_inside_what_was_lent_or_the_region_are_refused() {
    let all = service(|_| {});
    let mut neighbours = Neighbours::of(&all.1);
    let mut raw = attach(&all.1);
    let (pd, addr) = (raw.pd(), 1 << 20);
    let lent = lend(&mut raw, 16 * PAGE).unwrap();
    let place = |start, length, offset| RegionPlace::Promoted {
        lent,
        addr,
        start,
        length,
        offset,
    };
    let good = place(PAGE, 4 * PAGE, 12 * PAGE);
    let first = register(&mut raw, pd, 8 * PAGE, good).unwrap();
    // The same pages twice are its own affair.
    let second = register(&mut raw, pd, 8 * PAGE, good).unwrap();
    for (start, length, offset) in [
        (PAGE, 4 * PAGE, 13 * PAGE),
        (PAGE, 4 * PAGE, u64::MAX / PAGE * PAGE),
        (5 * PAGE, 4 * PAGE, 0),
        (u64::MAX / PAGE * PAGE, PAGE, 0),
        (0, u64::MAX, 0),
        (0, 17 * PAGE, 0),
        (8, PAGE, 0),
        (0, PAGE, 8),
        (PAGE + 4, PAGE, 4),
    ] {
        let refused = register(&mut raw, pd, 8 * PAGE, place(start, length, offset));
        assert_eq!(refused, None, "{start:#x}, {length:#x}, {offset:#x}");
    }
    let other = RegionPlace::Promoted {
        lent: first,
        addr,
        start: 0,
        length: PAGE,
        offset: 0,
    };
    let mut none = attach(&all.1);
    let none_pd = none.pd();
    assert_eq!(
        register(&mut none, none_pd, PAGE, other),
        None,
        "not its own"
    );
    // What is registered is not taken away.
    assert!(matches!(
        raw.ask(ask::ReturnMemory { lent }),
        Answer::Failed(_)
    ));
    for mr in [first, second] {
        let unbind = true;
        let done = raw.ask(ask::DeregisterMr { mr, unbind });
        assert!(matches!(done, Answer::Done(_)), "{done:?}");
    }
    assert!(matches!(
        raw.ask(ask::ReturnMemory { lent }),
        Answer::Done(_)
    ));
    assert_eq!(
        register(&mut raw, pd, 8 * PAGE, good),
        None,
        "it was given back"
    );
    assert!(matches!(
        raw.ask(ask::ReturnMemory { lent }),
        Answer::Failed(_)
    ));
    neighbours.exchange();
    drop((raw, none, neighbours));
    still_serves(&all);
    is_clean(&all.0);
}

#[test]
fn no_more_is_lent_than_the_quota_and_the_number_of_segments_allow() {
    let all = service(|limits| limits.segment_bytes = 1 << 20);
    let mut raw = attach(&all.1);
    for bytes in [0, 1, PAGE + 1, u64::MAX, 1 << 40, (1 << 20) + PAGE] {
        assert_eq!(lend(&mut raw, bytes), None, "{bytes}");
    }
    let whole = lend(&mut raw, 1 << 20).unwrap();
    assert_eq!(lend(&mut raw, PAGE), None);
    raw.ask(ask::ReturnMemory { lent: whole });
    let many = (0..1000).take_while(|_| lend(&mut raw, PAGE).is_some());
    assert_eq!(many.count(), 64);
    drop(raw);
    still_serves(&all);
    is_clean(&all.0);
}

/// How many descriptors of this process, which is the program's and the service's, are of the file
/// of that one.
fn open_ones(of: &OwnedFd) -> usize {
    let place = |found: Metadata| (found.dev(), found.ino());
    let own = place(File::from(of.try_clone().unwrap()).metadata().unwrap());
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    let all = all.filter_map(|entry| Some(place(std::fs::metadata(entry.ok()?.path()).ok()?)));
    all.filter(|found| *found == own).count()
}

#[test]
fn what_was_lent_is_closed_when_it_is_given_back() {
    let all = service(|limits| limits.segment_bytes = 1 << 20);
    let mut raw = attach(&all.1);
    for _ in 0..100 {
        let lent = lend(&mut raw, 1 << 20).unwrap();
        assert_eq!(open_ones(&raw.descriptors[0]), 2, "the service has it, too");
        let done = raw.ask(ask::ReturnMemory { lent });
        assert!(matches!(done, Answer::Done(_)), "{done:?}");
        until("the service has it no more", || {
            open_ones(&raw.descriptors[0]) == 1
        });
        raw.descriptors.clear();
    }
    drop(raw);
    still_serves(&all);
    is_clean(&all.0);
}

/// Behind the end of a file there is SIGBUS for whoever has it mapped.
#[test]
fn no_file_of_a_service_can_be_made_shorter_by_its_program() {
    let all = service(|_| {});
    let mut neighbours = Neighbours::of(&all.1);
    let mut raw = attach(&all.1);
    lend(&mut raw, 4 * PAGE).unwrap();
    raw.memory(512);
    let files: Vec<_> = raw
        .descriptors
        .drain(..)
        .chain(raw.files.drain(..))
        .collect();
    assert_eq!(files.len(), 2, "what was lent, and a segment");
    for file in files {
        let file = File::from(file);
        let length = file.metadata().unwrap().len();
        for length in [0, length / 2, length - 1, length + PAGE] {
            let refused = file.set_len(length).unwrap_err();
            assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
        }
        // A hole has zeros.
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, how, 0, length).unwrap();
    }
    neighbours.exchange();
    drop((raw, neighbours));
    still_serves(&all);
    is_clean(&all.0);
}

#[test]
fn neighbours_go_on_while_a_program_says_anything_of_its_memory() {
    let all = service(|_| {});
    let mut neighbours = Neighbours::of(&all.1);
    let mut raw = attach(&all.1);
    let pd = raw.pd();
    let mut numbers = Numbers(7);
    let mut lent: Vec<_> = (1..4).filter_map(|n| lend(&mut raw, n * PAGE)).collect();
    let odd = [0, 1, 8, PAGE, 2 * PAGE, 3 * PAGE, u64::MAX, 1 << 40];
    let mut taken = 0;
    for round in 0..3000 {
        let mut any = || odd[numbers.below(odd.len())];
        let (length, addr, start, pages, offset) = (any(), any(), any(), any(), any());
        let at = numbers.below(lent.len());
        let place = RegionPlace::Promoted {
            lent: lent[at],
            addr,
            start,
            length: pages,
            offset,
        };
        taken += u32::from(register(&mut raw, pd, length, place).is_some());
        if round % 100 == 0 {
            raw.ask(ask::ReturnMemory { lent: lent[at] });
            lent[at] = lend(&mut raw, (1 + round % 3) * PAGE).unwrap_or(lent[at]);
            neighbours.exchange();
        }
    }
    assert!(taken > 0, "some of it may be so");
    drop((raw, neighbours));
    still_serves(&all);
    is_clean(&all.0);
}
