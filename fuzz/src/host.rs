//! Targets of the host crate: control messages, and pieces with the names that find them.

use crate::input::Input;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use trunkline_host::control::law;
use trunkline_host::{Piece, PieceName, Pieces, SegmentTable};

const MAX_OPERATIONS: usize = 256;

/// Most bytes of the segments of a run.
const QUOTA: u64 = 1 << 20;

/// Target `control`: the messages of both sides. The input is one as it is, and the fields behind a
/// header that fits.
///
/// # Panics
/// When a law is broken.
pub fn control(data: &[u8]) {
    is_well_formed(data);
}

/// The same. Gives whether one of both was a message.
///
/// # Panics
/// As above.
pub fn is_well_formed(data: &[u8]) -> bool {
    let as_it_is = law::request(data) | law::answer(data);
    let Some((kind, fields)) = data.split_first_chunk::<2>() else {
        return as_it_is;
    };
    let mut message = kind.to_vec();
    message.extend([0; 2]);
    message.extend(7_u32.to_le_bytes());
    message.extend((fields.len() as u32).to_le_bytes());
    message.extend(fields);
    as_it_is | law::request(&message) | law::answer(&message)
}

/// Target `pieces`: a service gives out pieces and takes them back, its client finds them by their
/// names, writes what it likes into them, and tries names that nobody gave it.
///
/// # Panics
/// When two pieces have a word in common, a new one is not zero, a client finds other words by a
/// name than the service, or a name finds what is not inside its segment.
pub fn pieces(data: &[u8]) {
    let mut host = Host {
        pieces: Pieces::new(QUOTA),
        client: SegmentTable::new(),
        segments: Vec::new(),
        held: Vec::new(),
    };
    Input::new(data).drive(MAX_OPERATIONS, |input| host.step(input));
}

struct Host {
    pieces: Pieces,
    client: SegmentTable,
    /// Their bytes.
    segments: Vec<u64>,
    /// Pieces of the service and the same of the client.
    held: Vec<(Piece, Piece)>,
}

impl Host {
    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() & 7 {
            0..=2 => self.allocate(input),
            3 | 4 if !self.held.is_empty() => {
                let which = usize::from(input.byte()) % self.held.len();
                self.held.swap_remove(which);
            }
            _ => self.forge(input),
        }
    }

    fn allocate(&mut self, input: &mut Input<'_>) {
        let words = u32::from(input.u16()) << (input.byte() & 3);
        let Ok(piece) = self.pieces.allocate(words) else {
            // Of the quota whole pages are used, which are at most so long.
            let bytes = (u64::from(words) * 8).next_multiple_of(1 << 16);
            assert!(
                words == 0 || self.pieces.taken() + bytes > QUOTA,
                "{words} words"
            );
            return;
        };
        while let Some(new) = self.pieces.unsent(self.segments.len() as u32) {
            self.pieces.sent(new.number);
            let added = self.client.add(new.number, new.file.as_fd(), new.bytes);
            added.expect("segments of the service are sealed");
            self.segments.push(new.bytes);
        }
        let name = piece.name();
        let theirs = self.client.resolve(name).expect("a name that was given");
        assert_eq!(theirs.as_slice().len(), words as usize);
        for (own, _) in &self.held {
            assert!(are_apart(name, own.name()), "{name:?} {:?}", own.name());
        }
        for word in theirs.as_slice() {
            assert_eq!(word.swap(u64::MAX, Ordering::Relaxed), 0);
        }
        let last = &piece.as_slice()[words as usize - 1];
        assert_eq!(last.load(Ordering::Relaxed), u64::MAX, "other words");
        self.held.push((piece, theirs));
    }

    fn forge(&self, input: &mut Input<'_>) {
        let near = self.held.get(usize::from(input.byte()) % 8);
        let near = near.map_or((0, 0), |(own, _)| (own.name().offset, own.name().words));
        let high = if input.byte() == 0xff { input.u32() } else { 0 };
        let name = PieceName {
            segment: u32::from(input.byte() & 7),
            offset: u64::from(high) << 32 | u64::from(input.near(near.0 as u32)),
            words: input.near(near.1),
        };
        let Ok(piece) = self.client.resolve(name) else {
            return;
        };
        let bytes = self.segments[name.segment as usize];
        let end = u128::from(name.offset) + u128::from(name.words) * 8;
        assert!(end <= bytes.into() && name.offset.is_multiple_of(64));
        assert_eq!(piece.name(), name);
        let words = piece.as_slice();
        let ends = [words.first(), words.last()];
        for word in ends {
            let word = word.expect("a piece has words");
            word.load(Ordering::Relaxed);
        }
    }
}

/// Whether two pieces have no byte in common.
fn are_apart(a: PieceName, b: PieceName) -> bool {
    let end = |name: PieceName| name.offset + u64::from(name.words) * 8;
    a.segment != b.segment || end(a) <= b.offset || end(b) <= a.offset
}
