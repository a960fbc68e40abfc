//! Rings whose other side does what it likes.

use crate::link::xdp::receive::Receiver;
use crate::link::xdp::rings::{Consumer, Producer};
use crate::link::xdp::send::Sender;
use crate::link::xdp::umem::{CHUNK, HEADROOM, Umem};
use crate::prng::Prng;
use libc::XDP_PKT_CONTD as MORE;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;

const PRODUCER: u64 = 0;
const CONSUMER: u64 = 64;
const FLAGS: u64 = 128;
const ENTRIES: u64 = 192;
const CAPACITY: u32 = 32;

const OFFSETS: libc::xdp_ring_offset = libc::xdp_ring_offset {
    producer: PRODUCER,
    consumer: CONSUMER,
    desc: ENTRIES,
    flags: FLAGS,
};

/// The kernel's side of a ring.
struct Other(File);

impl Other {
    fn new() -> Self {
        // SAFETY: the name is a string.
        let descriptor = unsafe { libc::memfd_create(c"ring".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(descriptor >= 0);
        // SAFETY: the call just made it, and nobody else knows of it.
        let file = unsafe { File::from_raw_fd(descriptor) };
        file.set_len(4096).unwrap();
        Self(file)
    }

    fn set(&self, word: u64, value: u32) {
        self.0.write_all_at(&value.to_ne_bytes(), word).unwrap();
    }

    fn get(&self, word: u64) -> u32 {
        let mut value = [0; 4];
        self.0.read_exact_at(&mut value, word).unwrap();
        u32::from_ne_bytes(value)
    }

    fn address(&self, position: u32, bytes: u64) -> u64 {
        let mut value = [0; 8];
        let at = ENTRIES + u64::from(position % CAPACITY) * bytes;
        self.0.read_exact_at(&mut value, at).unwrap();
        u64::from_ne_bytes(value)
    }

    /// Says that a piece of a frame arrived.
    fn piece(&self, address: u64, length: u32, options: u32) {
        let position = self.get(PRODUCER);
        let at = ENTRIES + u64::from(position % CAPACITY) * 16;
        let words = u64::from_ne_bytes(
            [length.to_ne_bytes(), options.to_ne_bytes()]
                .concat()
                .try_into()
                .unwrap(),
        );
        let entry = [address.to_ne_bytes(), words.to_ne_bytes()].concat();
        self.0.write_all_at(&entry, at).unwrap();
        self.set(PRODUCER, position.wrapping_add(1));
    }

    /// Says that a chunk was sent.
    fn sent(&self, address: u64) {
        let position = self.get(PRODUCER);
        let at = ENTRIES + u64::from(position % CAPACITY) * 8;
        self.0.write_all_at(&address.to_ne_bytes(), at).unwrap();
        self.set(PRODUCER, position.wrapping_add(1));
    }

    /// Takes the chunk that waits longest.
    fn chunk(&self) -> u64 {
        let position = self.get(CONSUMER);
        assert_ne!(position, self.get(PRODUCER), "a chunk waits");
        self.set(CONSUMER, position.wrapping_add(1));
        self.address(position, 8)
    }
}

struct Receiving {
    umem: Umem,
    fill: Other,
    rx: Other,
    receiver: Receiver,
}

impl Receiving {
    fn new(chunks: u32, stride: u32) -> Self {
        let (fill, rx) = (Other::new(), Other::new());
        let umem = Umem::new((chunks * stride) as usize).unwrap();
        let rings = (
            Producer::map(fill.0.as_raw_fd(), 0, &OFFSETS, CAPACITY).unwrap(),
            Consumer::map(rx.0.as_raw_fd(), 0, &OFFSETS, CAPACITY).unwrap(),
        );
        let receiver = Receiver::new(rings, (chunks, stride), 8192);
        Self {
            umem,
            fill,
            rx,
            receiver,
        }
    }

    fn look(&mut self) -> bool {
        let socket = self.rx.0.as_fd();
        self.receiver.look(&mut self.umem, socket)
    }

    /// Receives so many bytes into the next chunk, all of them `value`.
    fn fill(&mut self, length: usize, value: u8, options: u32) {
        let at = self.fill.chunk() as usize + HEADROOM;
        // SAFETY: it is the kernel's, which is played here.
        unsafe { self.umem.get_mut(at, length) }.fill(value);
        self.rx.piece(at as u64, length as u32, options);
    }

    fn front(&self) -> Option<(&[u8], bool)> {
        let unit = self.receiver.front(&self.umem)?;
        Some((unit.frame, unit.is_cut))
    }
}

#[test]
fn pieces_make_a_frame_wherever_they_lie() {
    for stride in [1, 2] {
        let mut side = Receiving::new(16, stride);
        for round in 0..100_u8 {
            // One chunk, two, two of which the first is not full, three, and more than a frame may
            // have.
            for lengths in [
                &[60][..],
                &[3840, 330],
                &[100, 3840],
                &[3840, 9, 3840],
                &[3840; 3],
            ] {
                for (number, length) in lengths.iter().enumerate() {
                    assert!(!side.look(), "the frame is not whole");
                    let more = if number + 1 < lengths.len() { MORE } else { 0 };
                    side.fill(*length, round.wrapping_add(number as u8), more);
                }
                assert!(side.look());
                let (frame, is_cut) = side.front().unwrap();
                let values = lengths.iter().zip(0..);
                let wanted: Vec<_> = values
                    .flat_map(|(length, number)| vec![round.wrapping_add(number); *length])
                    .collect();
                assert_eq!(is_cut, wanted.len() > 8192);
                assert!(frame == &wanted[..wanted.len().min(8192)]);
                side.receiver.recycle(&mut side.umem);
            }
        }
        assert_eq!(side.receiver.broken(), 0);
    }
}

#[test]
fn what_was_there_at_a_look_is_given_and_nothing_else() {
    let mut side = Receiving::new(16, 2);
    for value in 0..3 {
        side.fill(100, value, 0);
    }
    assert!(side.look());
    side.fill(100, 3, 0);
    for value in 0..3 {
        assert_eq!(side.front().unwrap().0, [value; 100]);
        side.receiver.recycle(&mut side.umem);
    }
    assert!(side.front().is_none());
    assert!(side.look() && side.look());
    assert_eq!(side.front().unwrap().0, [3; 100]);
}

#[test]
fn pieces_that_cannot_be_are_dropped() {
    for stride in [1_u64, 2] {
        let mut side = Receiving::new(16, stride as u32);
        side.fill(100, 1, 0);
        let held = side.look();
        assert!(held);
        let front = side.front().unwrap().0.as_ptr() as u64;
        let front = front - side.umem_base();
        let end = 16 * stride * CHUNK as u64;
        let lent = side.fill.chunk();
        let wrong = [
            // Behind the memory, and where sums wrap.
            (end, 1),
            (u64::MAX, 1),
            (u64::MAX - 10, u32::MAX),
            // Out of its chunk, into the next, or behind all.
            (lent + 1, CHUNK as u32),
            (lent, CHUNK as u32 + 1),
            (lent + CHUNK as u64 - 1, 2),
            (end - 1, 2),
            (lent, u32::MAX),
            // Ours: it is being read.
            (front, 100),
        ];
        for (address, length) in wrong {
            side.rx.piece(address, length, 0);
        }
        assert!(side.look(), "the front is still that");
        side.receiver.recycle(&mut side.umem);
        assert!(side.front().is_none());
        assert_eq!(side.receiver.broken(), wrong.len() as u64);
        // The chunk is still good, once.
        side.rx.piece(lent, CHUNK as u32, 0);
        side.rx.piece(lent, CHUNK as u32, 0);
        assert!(side.look());
        assert_eq!(side.front().unwrap().0.len(), CHUNK);
        side.receiver.recycle(&mut side.umem);
        assert!(side.front().is_none());
        // A frame is dropped for any of its pieces; the others come back.
        for at in 0..3 {
            for number in 0..3 {
                let more = if number < 2 { MORE } else { 0 };
                if number == at {
                    side.rx.piece(end, 5, more);
                } else {
                    side.fill(5, 0, more);
                }
            }
            assert!(!side.look());
        }
        for at in 0..2 {
            for (number, more) in [(0, MORE), (1, 0)] {
                if number == at {
                    side.rx.piece(end, 5, more);
                } else {
                    side.fill(5, 0, more);
                }
            }
            assert!(!side.look());
        }
        assert_eq!(side.receiver.broken(), wrong.len() as u64 + 6);
        // All chunks wait again.
        assert!(!side.look());
        let waiting = side
            .fill
            .get(PRODUCER)
            .wrapping_sub(side.fill.get(CONSUMER));
        assert_eq!(waiting, 16);
    }
}

#[test]
fn positions_that_cannot_be_are_not_believed() {
    let mut side = Receiving::new(16, 1);
    let mut prng = Prng::new(3);
    for _ in 0..1000 {
        // What is said to be there is nothing that was given out.
        side.rx.set(PRODUCER, prng.next_u64() as u32);
        side.fill.set(CONSUMER, prng.next_u64() as u32);
        if side.look() {
            let _ = side.front();
            side.receiver.recycle(&mut side.umem);
        }
    }
}

impl Receiving {
    fn umem_base(&self) -> u64 {
        // SAFETY: no bytes.
        unsafe { self.umem.get(0, 0) }.as_ptr() as u64
    }
}

struct Sending {
    umem: Umem,
    tx: Other,
    completion: Other,
    sender: Sender,
}

/// Where the slots begin.
const FIRST: u32 = 4;

impl Sending {
    fn new(slots: u32) -> Self {
        let (tx, completion) = (Other::new(), Other::new());
        let rings = (
            Producer::map(tx.0.as_raw_fd(), 0, &OFFSETS, CAPACITY).unwrap(),
            Consumer::map(completion.0.as_raw_fd(), 0, &OFFSETS, CAPACITY).unwrap(),
        );
        Self {
            umem: Umem::new((FIRST + 2 * slots) as usize).unwrap(),
            tx,
            completion,
            sender: Sender::new(rings, (FIRST, slots), true),
        }
    }

    /// Pushes as many frames as there is room for.
    fn push(&mut self, length: usize) -> usize {
        let mut pushed = 0;
        while self.sender.allocate(&mut self.umem, length).is_some() {
            self.sender.push();
            pushed += 1;
        }
        pushed
    }

    fn kick(&mut self) -> (usize, bool) {
        let kicked = self.sender.kick(self.tx.0.as_fd()).unwrap();
        assert_eq!(kicked.refused, 0);
        (kicked.sent, kicked.is_full)
    }
}

#[test]
fn a_driver_that_takes_frames_when_it_likes_gives_them_back_when_it_likes() {
    let mut side = Sending::new(8);
    let mut prng = Prng::new(5);
    let (mut out, mut next) = (Vec::new(), 0);
    let mut free = 8;
    for _ in 0..2000 {
        let length = [100, 4096, 4097, 8192][prng.below(4) as usize];
        let room = side.push(length);
        assert_eq!(room, free);
        free = 0;
        assert_eq!(side.kick().0, room);
        // Takes some, gives some of those back, in another order.
        let waiting = side.tx.get(PRODUCER).wrapping_sub(next);
        for _ in 0..prng.below(u64::from(waiting) + 1) {
            out.push(side.tx.address(next, 16));
            next = next.wrapping_add(1);
        }
        side.tx.set(CONSUMER, next);
        let before = slots(&side, &out, next);
        for _ in 0..prng.below(out.len() as u64 + 1) {
            let index = prng.below(out.len() as u64) as usize;
            side.completion.sent(out.swap_remove(index));
        }
        free += before - slots(&side, &out, next);
    }
}

/// Slots of which the other side has a piece.
fn slots(side: &Sending, out: &[u64], next: u32) -> usize {
    let behind = side.tx.get(PRODUCER).wrapping_sub(next);
    let waiting = (0..behind).map(|behind| side.tx.address(next.wrapping_add(behind), 16));
    let mut slots: Vec<_> = waiting
        .chain(out.iter().copied())
        .map(|address| (address / CHUNK as u64 - u64::from(FIRST)) / 2)
        .collect();
    slots.sort_unstable();
    slots.dedup();
    slots.len()
}

#[test]
fn chunks_that_were_not_sent_are_not_given_back() {
    let mut side = Sending::new(8);
    assert_eq!(side.push(5000), 8);
    // None was given to the other side; these are none, or not of slots.
    assert_eq!(side.kick(), (8, false));
    let end = u64::from(FIRST + 16) * CHUNK as u64;
    for address in [0, u64::from(FIRST) * CHUNK as u64 - 1, end, u64::MAX] {
        side.completion.sent(address);
    }
    assert_eq!(side.push(100), 0);
    // One is sent more often than there are pieces of it.
    side.tx.set(CONSUMER, 16);
    for _ in 0..5 {
        side.completion.sent(u64::from(FIRST) * CHUNK as u64);
    }
    assert_eq!(side.push(100), 1);
    assert_eq!(side.kick(), (1, false));
    // The consumer passes the producer, and goes back: nothing was taken.
    for wrong in [17, 15, u32::MAX] {
        side.tx.set(CONSUMER, wrong + u32::from(wrong == 17));
        assert_eq!(side.kick(), (0, false));
    }
    side.completion.set(PRODUCER, 1 << 31);
    assert_eq!(side.push(100), 0);
}
