use super::*;
use crate::piece::SegmentTable;
use proptest::collection::vec;
use proptest::prelude::*;
use rustix::fs::fstat;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

const QUOTA: u64 = 64 << 20;

fn fill(piece: &Piece, value: u64) {
    for word in piece.as_slice() {
        word.store(value, Ordering::Relaxed);
    }
}

fn holds(piece: &Piece, value: u64) -> bool {
    let mut words = piece.as_slice().iter();
    words.all(|word| word.load(Ordering::Relaxed) == value)
}

/// Bytes of the lines that a piece takes.
fn span(name: PieceName) -> std::ops::Range<u64> {
    name.offset..name.offset + (u64::from(name.words) * 8).next_multiple_of(LINE)
}

#[test]
fn rings_and_cqs_take_no_more_than_they_need() {
    let pieces = Pieces::new(QUOTA);
    for log in 0..10 {
        for words in [16 + (8 << log), 24, 4 << (log + 1)] {
            let piece = pieces.allocate(words).unwrap();
            assert_eq!(piece.as_slice().len(), words as usize);
            let bytes = span(piece.name());
            assert_eq!(bytes.end - bytes.start, u64::from(words) * 8);
        }
    }
}

#[test]
fn as_much_is_lent_as_the_quota_leaves() {
    let page = segment::page();
    let pieces = Pieces::new(10 * page);
    let lent = pieces.lend(10 * page).unwrap();
    assert!(matches!(pieces.lend(page), Err(PieceError::Quota { .. })));
    drop(lent);
    assert_eq!(pieces.taken(), 0);
}

#[test]
fn segments_double_up_to_4_mib() {
    let pieces = Pieces::new(QUOTA);
    assert_eq!(
        pieces.taken(),
        0,
        "a client that posts nothing has no segment"
    );
    let mut held = Vec::new();
    while pieces.taken() < 20 << 20 {
        held.push(pieces.allocate(16 + 8 * 64).unwrap());
    }
    let mut lengths = Vec::new();
    while let Some(new) = pieces.unsent(lengths.len() as u32) {
        pieces.sent(new.number);
        assert_eq!(fstat(&new.file).unwrap().st_size as u64, new.bytes);
        lengths.push(new.bytes >> 10);
    }
    assert_eq!(lengths[..8], [64, 128, 256, 512, 1024, 2048, 4096, 4096]);
}

#[test]
fn a_segment_is_unsent_until_it_was_sent() {
    let pieces = Pieces::new(QUOTA);
    assert!(pieces.unsent(0).is_none());
    let _two = [8, 1 << 20].map(|words| pieces.allocate(words).unwrap());
    // In whatever order their pieces are asked for.
    for number in [1, 0] {
        let first = pieces.unsent(number).unwrap();
        let again = pieces.unsent(number).unwrap();
        assert_eq!((first.number, again.number), (number, number));
        pieces.sent(number);
        drop(again);
        assert_eq!(Arc::strong_count(&first.file), 1, "and is closed here then");
        assert!(pieces.unsent(number).is_none());
    }
    pieces.sent(2);
}

#[test]
fn a_piece_longer_than_a_segment_gets_one_of_its_own_length() {
    let pieces = Pieces::new(QUOTA);
    let long = pieces.allocate(1 << 20).unwrap();
    assert_eq!((long.name().offset, pieces.taken()), (0, 8 << 20));
    let short = pieces.allocate(24).unwrap();
    assert_eq!((short.name().segment, short.name().offset), (1, 0));
}

#[test]
fn the_quota_bounds_the_segments_and_says_so() {
    let page = segment::page();
    let quota = (64 << 10) + 3 * page + 17;
    let pieces = Pieces::new(quota);
    let first = pieces.allocate(64 << 7).unwrap();
    let rest = pieces.allocate(8).unwrap();
    assert_eq!(pieces.taken(), quota - 17, "whole pages of what is left");
    let wanted = 3 * page;
    let refused = pieces.allocate((wanted / 8) as u32).unwrap_err();
    match refused {
        PieceError::Quota {
            wanted: w,
            taken,
            quota: q,
        } => assert_eq!((w, taken, q), (wanted, quota - 17, quota)),
        other => panic!("{other}"),
    }
    drop(first);
    let again = pieces.allocate((wanted / 8) as u32).unwrap();
    assert_eq!(again.name().segment, 0, "what was given back is used");
    assert_eq!(rest.name().segment, 1);
    assert!(matches!(
        Pieces::new(0).allocate(1),
        Err(PieceError::Quota { .. })
    ));
}

#[test]
fn a_budget_bounds_the_segments_of_several_clients_and_gets_back_what_they_had() {
    let page = segment::page();
    let budget = Arc::new(Budget::new((128 << 10) + 3 * page));
    let [first, second] = [0, 1].map(|_| Pieces::sharing(QUOTA, &budget));
    let held = first.allocate((64 << 10) / 8).unwrap();
    let other = second.allocate(8).unwrap();
    // The usual next one is longer than what is left.
    let last = first.allocate((3 * page / 8) as u32).unwrap();
    let refused = first.allocate(8).unwrap_err();
    assert!(matches!(refused, PieceError::Shared { .. }), "{refused}");
    assert_eq!(first.taken() + second.taken(), (128 << 10) + 3 * page);
    let refused = second.lend(page).unwrap_err();
    assert!(matches!(refused, PieceError::Shared { wanted, .. } if wanted == page));
    drop((held, last, first));
    let lent = second.lend(64 << 10).unwrap();
    assert!(second.lend(4 * page).is_err());
    drop((lent, other, second));
    assert!(
        Pieces::sharing(QUOTA, &budget)
            .lend((128 << 10) + 3 * page)
            .is_ok()
    );
}

#[test]
fn lengths_that_no_piece_has_are_refused() {
    let pieces = Pieces::new(QUOTA);
    for words in [0, MAX_WORDS + 1, u32::MAX] {
        let refused = pieces.allocate(words).unwrap_err();
        assert!(matches!(refused, PieceError::BadLength { words: w } if w == words));
    }
    assert_eq!(pieces.taken(), 0);
}

#[test]
fn what_is_given_out_again_is_zero() {
    let pieces = Pieces::new(QUOTA);
    // Keeps the segment in use, so that its pages stay.
    let other = pieces.allocate(8).unwrap();
    let first = pieces.allocate(100).unwrap();
    let place = first.name();
    fill(&first, u64::MAX);
    drop(first);
    // Reaches past what was used.
    let second = pieces.allocate(200).unwrap();
    assert_eq!(second.name().offset, place.offset);
    assert!(holds(&second, 0));
    assert!(holds(&other, 0));
}

#[test]
fn a_piece_may_outlive_its_allocator() {
    let pieces = Pieces::new(QUOTA);
    let piece = pieces.allocate(8).unwrap();
    drop(pieces);
    fill(&piece, 3);
    assert!(holds(&piece, 3));
}

#[test]
fn the_client_finds_each_piece_by_its_name() {
    let pieces = Pieces::new(QUOTA);
    let mut client = SegmentTable::new();
    for value in 1..200 {
        let piece = pieces.allocate(16 + 8 * value).unwrap();
        if let Some(new) = pieces.unsent(piece.name().segment) {
            pieces.sent(new.number);
            client.add(new.number, new.file.as_fd(), new.bytes).unwrap();
        }
        let theirs = client.resolve(piece.name()).unwrap();
        fill(&piece, value.into());
        assert!(holds(&theirs, value.into()));
        assert_eq!(theirs.name(), piece.name());
    }
}

#[test]
fn pieces_may_be_dropped_by_other_threads() {
    let pieces = Pieces::new(QUOTA);
    std::thread::scope(|scope| {
        for value in 1..4 {
            let pieces = &pieces;
            scope.spawn(move || {
                for _ in 0..500 {
                    let piece = pieces.allocate(24).unwrap();
                    assert!(holds(&piece, 0));
                    fill(&piece, value);
                    assert!(holds(&piece, value));
                }
            });
        }
    });
    assert_eq!(pieces.taken(), FIRST_SEGMENT, "all of it was used again");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The client writes where it has a piece, and gives it back.
    #[test]
    fn a_piece_is_zero_whatever_was_written_before(
        steps in vec((1..200_000_u32, any::<u64>(), any::<bool>()), 1..24),
    ) {
        let pieces = Pieces::new(16 << 20);
        let mut held = std::collections::VecDeque::new();
        for (words, value, keep) in steps {
            if held.len() > 3 || !keep {
                held.pop_front();
            }
            let piece = pieces.allocate(words).unwrap();
            prop_assert!(holds(&piece, 0));
            fill(&piece, value);
            held.push_back(piece);
        }
    }

    #[test]
    fn pieces_are_zero_and_apart(steps in vec((any::<bool>(), 1..2000_u32, any::<u8>()), 0..120)) {
        let pieces = Pieces::new(1 << 20);
        let mut held: Vec<Piece> = Vec::new();
        for (allocate, words, which) in steps {
            if allocate {
                let Ok(piece) = pieces.allocate(words) else {
                    prop_assert!(!held.is_empty());
                    continue;
                };
                prop_assert!(holds(&piece, 0));
                let new = piece.name();
                for other in held.iter().map(Piece::name) {
                    let (a, b) = (span(new), span(other));
                    let apart = a.end <= b.start || b.end <= a.start;
                    prop_assert!(new.segment != other.segment || apart, "{:?} {:?}", new, other);
                }
                fill(&piece, u64::from(words));
                held.push(piece);
            } else if !held.is_empty() {
                held.swap_remove(usize::from(which) % held.len());
            }
            for piece in &held {
                prop_assert!(holds(piece, piece.as_slice().len() as u64));
            }
            prop_assert!(pieces.taken() <= 1 << 20);
        }
        // Free ranges have joined: each segment is one piece.
        drop(held);
        let taken = pieces.taken();
        let bytes = |owned: &Owned| owned.home.mapping.bytes();
        let mut lengths: Vec<_> = pieces.state().owned.iter().map(bytes).collect();
        lengths.sort_unstable();
        let whole = lengths.iter().map(|bytes| pieces.allocate((bytes / 8) as u32).unwrap());
        prop_assert_eq!(whole.collect::<Vec<_>>().len(), lengths.len());
        prop_assert_eq!(pieces.taken(), taken);
    }
}
