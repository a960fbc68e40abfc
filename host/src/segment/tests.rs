use super::*;
use rustix::fs::FallocateFlags;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

/// A memory file of `bytes` bytes with `seals` instead of those of a segment.
fn file(bytes: u64, seals: SealFlags) -> OwnedFd {
    let file = memory_file().unwrap();
    rustix::fs::ftruncate(&file, bytes).unwrap();
    rustix::fs::fcntl_add_seals(&file, seals).unwrap();
    file
}

fn map(file: impl AsFd, bytes: u64) -> Result<Mapping, SegmentError> {
    Mapping::of_sealed(file.as_fd(), bytes)
}

#[test]
fn both_sides_see_the_same_words() {
    let bytes = 2 * page();
    let segment = Segment::create(bytes).unwrap();
    let other = map(segment.fd(), bytes).unwrap();
    let (here, there) = (segment.mapping().words(), other.words());
    assert_eq!((here.len() as u64 * 8, there.len()), (bytes, here.len()));
    assert!(here.iter().all(|word| word.load(Ordering::Relaxed) == 0));
    let last = here.len() - 1;
    here[0].store(7, Ordering::Release);
    there[last].store(8, Ordering::Release);
    assert_eq!(there[0].load(Ordering::Acquire), 7);
    assert_eq!(here[last].load(Ordering::Acquire), 8);
}

#[test]
fn a_mapping_outlives_the_descriptor() {
    let segment = Segment::create(page()).unwrap();
    let copy = segment.fd().try_clone_to_owned().unwrap();
    let other = map(&copy, page()).unwrap();
    drop((segment, copy));
    other.words()[3].store(9, Ordering::Relaxed);
    assert_eq!(other.words()[3].load(Ordering::Relaxed), 9);
}

#[test]
fn nobody_changes_the_length_or_the_seals_of_a_segment() {
    let segment = Segment::create(page()).unwrap();
    for bytes in [0, page() - 1, page() + 1, 2 * page()] {
        let refused = rustix::fs::ftruncate(segment.fd(), bytes);
        assert_eq!(refused, Err(Errno::PERM), "{bytes}");
    }
    let grown = rustix::fs::fallocate(segment.fd(), FallocateFlags::empty(), 0, 2 * page());
    assert_eq!(grown, Err(Errno::PERM));
    let written = File::from(segment.fd().try_clone_to_owned().unwrap());
    assert!(written.write_at(&[1], page()).is_err(), "past the end");
    assert_eq!(
        written.write_at(&[1; 2], page() - 1).unwrap(),
        1,
        "up to the end"
    );
    let sealed = rustix::fs::fcntl_add_seals(segment.fd(), SealFlags::WRITE);
    assert_eq!(sealed, Err(Errno::PERM));
    let flags = rustix::io::fcntl_getfd(segment.fd()).unwrap();
    assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
}

#[test]
fn a_file_that_lacks_one_of_the_seals_is_not_mapped() {
    for missing in [SealFlags::SHRINK, SealFlags::GROW, SealFlags::SEAL] {
        let refused = map(file(page(), SEALS.difference(missing)), page());
        assert!(
            matches!(refused, Err(SegmentError::NotSealed)),
            "{missing:?}"
        );
    }
    assert!(map(file(page(), SEALS), page()).is_ok());
}

#[test]
fn a_descriptor_of_something_else_is_not_mapped() {
    let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    for other in [File::open("/dev/zero").unwrap().into(), socket.into()] {
        let other: OwnedFd = other;
        assert!(matches!(map(other, page()), Err(SegmentError::NotSealed)));
    }
}

#[test]
fn a_length_that_is_not_that_of_the_file_is_refused() {
    let file = file(2 * page(), SEALS);
    for said in [page(), 3 * page()] {
        let found = 2 * page();
        let refused = map(&file, said).unwrap_err();
        let expected = SegmentError::OtherLength { said, found };
        assert_eq!(refused.to_string(), expected.to_string());
    }
}

#[test]
fn lengths_that_no_segment_has_are_refused() {
    let sealed = file(page(), SEALS);
    for bytes in [0, 1, page() - 1, page() + 8, MAX_SEGMENT + page(), u64::MAX] {
        let made = Segment::create(bytes).map(drop);
        for refused in [made, map(&sealed, bytes).map(drop)] {
            assert!(
                matches!(refused, Err(SegmentError::BadLength { bytes: b }) if b == bytes),
                "{refused:?}"
            );
        }
    }
}

#[test]
fn strict_overcommit_is_refused_and_the_error_says_what_to_do() {
    for fine in ["0\n", "1\n"] {
        assert!(judge_overcommit(fine).is_ok());
    }
    let refused = judge_overcommit("2\n").unwrap_err().to_string();
    assert!(refused.contains("Set it to 0 or 1"), "{refused}");
    let setting = std::fs::read_to_string(OVERCOMMIT).unwrap();
    assert_eq!(check_overcommit().is_err(), setting == "2\n");
}

#[test]
fn nothing_outside_a_segment_is_discarded() {
    let segment = Segment::create(2 * page()).unwrap();
    let (page, mapping) = (page() as usize, segment.mapping());
    mapping.words()[0].store(7, Ordering::Relaxed);
    for outside in [2 * page..3 * page, page..3 * page, 3 * page..3 * page] {
        let refused = mapping.discard(outside).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
    }
    assert_eq!(mapping.words()[0].load(Ordering::Relaxed), 7);
    mapping.discard(0..2 * page).unwrap();
    assert_eq!(mapping.words()[0].load(Ordering::Relaxed), 0);
}

#[test]
fn nobody_executes_a_segment_where_the_system_can_forbid_it() {
    let can_forbid = rustix::fs::memfd_create("asked", MemfdFlags::NOEXEC_SEAL).is_ok();
    let segment = Segment::create(page()).unwrap();
    let mode = rustix::fs::fstat(segment.fd()).unwrap().st_mode;
    assert_eq!(mode & 0o111 == 0, can_forbid, "{mode:o}");
}
