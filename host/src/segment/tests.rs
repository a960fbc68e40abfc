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

/// A segment all of whose words hold something, and the blocks that its file takes.
fn full(bytes: u64) -> (Segment, impl Fn() -> i64) {
    let segment = Segment::create(bytes).unwrap();
    for word in segment.mapping().words() {
        word.store(u64::MAX, Ordering::Relaxed);
    }
    let file = segment.fd().try_clone_to_owned().unwrap();
    (segment, move || rustix::fs::fstat(&file).unwrap().st_blocks)
}

/// Which words are zero, as the one range that they are in.
fn zeroed(mapping: &Mapping) -> Range<usize> {
    let zero = |word: &AtomicU64| word.load(Ordering::Relaxed) == 0;
    let words = mapping.words();
    let start = words.iter().position(zero).unwrap_or(0);
    let end = words.iter().rposition(zero).map_or(0, |last| last + 1);
    assert!(words[start..end].iter().all(zero));
    start..end
}

#[test]
fn what_is_punched_out_is_zero_and_takes_no_memory() {
    let (segment, blocks) = full(4 * page());
    let before = blocks();
    let mapping = segment.mapping();
    mapping.punch(page_words()..3 * page_words()).unwrap();
    assert_eq!(blocks(), before / 2);
    assert_eq!(zeroed(mapping), page_words()..3 * page_words());
    mapping.punch(0..mapping.words().len()).unwrap();
    assert_eq!(blocks(), 0);
}

#[test]
fn words_are_zeroed_whether_or_not_they_are_whole_pages() {
    let page = page_words();
    let last = (PUNCH_FROM + 3) * page;
    for range in [
        0..last,
        1..last - 1,
        page - 1..last - page + 1,
        page..(PUNCH_FROM + 1) * page,
        page..(PUNCH_FROM + 1) * page - 1,
        5..6,
        page - 1..page + 1,
        7..7,
    ] {
        let (segment, blocks) = full(last as u64 * 8);
        let before = blocks();
        segment.mapping().zero(range.clone());
        let pages = (range.end / page).saturating_sub(range.start.div_ceil(page));
        assert_eq!(blocks() < before, pages >= PUNCH_FROM, "{range:?}");
        let expected = if range.is_empty() { 0..0 } else { range };
        assert_eq!(zeroed(segment.mapping()), expected);
    }
}

#[test]
fn pages_that_the_system_does_not_take_are_zeroed_by_words() {
    let bytes = (PUNCH_FROM as u64 + 1) * page();
    let (segment, blocks) = full(bytes);
    let mapping = segment.mapping();
    let base = mapping.base.as_ptr().cast();
    // SAFETY: locks pages of the mapping, which change nothing by it.
    unsafe { rustix::mm::mlock(base, bytes as usize) }.unwrap();
    let whole = 0..mapping.words().len();
    assert!(mapping.punch(whole.clone()).is_err());
    let before = blocks();
    mapping.zero(whole.clone());
    assert_eq!((zeroed(mapping), blocks()), (whole, before));
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
