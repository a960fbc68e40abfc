#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use crate::prng::Prng;

/// Lengths tried one by one.
const EXHAUSTIVE: usize = if cfg!(miri) { 40 } else { 2048 };
/// Bytes around a copy that must stay untouched.
const FENCE: usize = 128;

/// A buffer that starts at an address that is a multiple of 64.
struct Aligned {
    lines: Vec<[u8; 64]>,
    skip: usize,
}

impl Aligned {
    fn new(bytes: usize) -> Self {
        let lines = vec![[0; 64]; bytes.div_ceil(64) + 1];
        let skip = lines.as_ptr().cast::<u8>().align_offset(64);
        Self { lines, skip }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.lines.as_flattened_mut()[self.skip..]
    }
}

/// Copies both ways at these offsets from an aligned address and checks bytes, sum and
/// surroundings.
fn check(
    copier: Copier,
    data: &mut Aligned,
    room: &mut Aligned,
    from: usize,
    to: usize,
    length: usize,
) {
    let name = copier.name();
    let state = 0x9e37_79b9_u32.wrapping_mul(length as u32 + 1);
    let data = &mut data.bytes()[from..from + length];
    let expected = resume(state, data);
    assert_eq!(
        copier.sum(data, state),
        expected,
        "{name}: sum of {length} bytes from {from}, without a copy"
    );
    for (sums, inward) in [(true, true), (true, false), (false, true), (false, false)] {
        let room = &mut room.bytes()[..to + length + 2 * FENCE];
        room.fill(0xa5);
        let (head, rest) = room.split_at_mut(FENCE + to);
        let (target, tail) = rest.split_at_mut(length);
        let (target_at, data_at) = (target.as_mut_ptr(), data.as_mut_ptr());
        let (around_target, around_data) =
            (Bounds::of(target_at, length), Bounds::of(data_at, length));
        let sum = match (sums, inward) {
            // SAFETY: both are slices of `length` bytes of different buffers.
            (true, true) => unsafe { copier.copy_in_crc(target_at, data, state, around_target) },
            // SAFETY: as above.
            (true, false) => unsafe { copier.copy_out_crc(target, data_at, state, around_data) },
            (false, true) => {
                // SAFETY: as above.
                unsafe { copier.copy_in(target_at, data, around_target) };
                expected
            }
            (false, false) => {
                // SAFETY: as above.
                unsafe { copier.copy_out(target, data_at, around_data) };
                expected
            }
        };
        assert_eq!(
            sum, expected,
            "{name}: sum of {length} bytes from {from} to {to}"
        );
        assert!(target == data, "{name}: {length} bytes from {from} to {to}");
        // Compared as slices, which Miri does at once.
        let untouched = [head, tail].map(|around| *around == *vec![0xa5; around.len()]);
        assert!(
            untouched == [true, true],
            "{name}: bytes around {length} bytes from {from} to {to}"
        );
    }
}

fn filled(bytes: usize) -> Aligned {
    let mut data = Aligned::new(bytes);
    let mut prng = Prng::new(1);
    data.bytes().fill_with(|| prng.next_u64() as u8);
    data
}

#[test]
fn every_length_up_to_2048_is_copied_and_summed_as_crc32fast_does() {
    let (mut data, mut room) = (
        filled(EXHAUSTIVE + 64),
        Aligned::new(EXHAUSTIVE + 64 + 2 * FENCE),
    );
    for copier in Copier::available() {
        for length in 0..=EXHAUSTIVE {
            check(copier, &mut data, &mut room, 0, 0, length);
            check(
                copier,
                &mut data,
                &mut room,
                length % 64,
                (length / 7) % 64,
                length,
            );
        }
    }
}

#[test]
fn every_pair_of_alignments_is_copied_and_summed() {
    const LENGTHS: &[usize] = if cfg!(miri) {
        &[19]
    } else {
        &[1, 3, 15, 16, 17, 63, 64, 65, 67, 130, 256, 515, 1029]
    };
    let step = if cfg!(miri) { 9 } else { 1 };
    let (mut data, mut room) = (filled(2048), Aligned::new(2048 + 2 * FENCE));
    for copier in Copier::available() {
        for from in (0..64).step_by(step) {
            for to in (0..64).step_by(step) {
                for length in LENGTHS {
                    check(copier, &mut data, &mut room, from, to, *length);
                }
            }
        }
    }
}

#[test]
fn long_random_pieces_are_copied_and_summed() {
    const MOST: usize = if cfg!(miri) { 500 } else { 1 << 18 };
    let (mut data, mut room) = (filled(MOST + 64), Aligned::new(MOST + 64 + 2 * FENCE));
    let mut prng = Prng::new(2);
    let rounds = if cfg!(miri) { 2 } else { 100 };
    for copier in Copier::available() {
        for _ in 0..rounds {
            let (from, to) = (prng.below(64) as usize, prng.below(64) as usize);
            let length = prng.below(MOST as u64) as usize;
            check(copier, &mut data, &mut room, from, to, length);
        }
    }
}

#[test]
fn a_message_may_be_summed_in_any_pieces() {
    let mut data = filled(if cfg!(miri) { 100 } else { 5000 });
    let data = data.bytes();
    let whole = resume(0, data);
    let mut out = vec![0; data.len()];
    for copier in Copier::available() {
        let mut prng = Prng::new(3);
        for _ in 0..if cfg!(miri) { 2 } else { 200 } {
            let (mut state, mut done) = (0, 0);
            while done < data.len() {
                let piece = (1 + prng.below(700) as usize).min(data.len() - done);
                let out = &mut out[done..done + piece];
                let (from, left) = (data[done..].as_mut_ptr(), data.len() - done);
                let within = Bounds::of(from, left);
                // SAFETY: `piece` bytes of `data` start there.
                state = unsafe { copier.copy_out_crc(out, from, state, within) };
                done += piece;
            }
            assert_eq!(state, whole, "{}", copier.name());
        }
    }
}

/// A writer fills buffers with one value and then the next; a reader that sees the new value in the
/// last byte must find it everywhere.
#[test]
fn the_last_byte_is_written_last() {
    const LENGTHS: &[usize] = &[2, 16, 17, 64, 65, 100, 127, 128, 513, 4096];
    const ROUNDS: u8 = if cfg!(miri) { 2 } else { 50 };
    for copier in Copier::available() {
        for length in LENGTHS
            .iter()
            .copied()
            .filter(|length| !cfg!(miri) || *length < 70)
        {
            // One byte past a line, so that blocks straddle lines.
            let region = crate::Region::allocate(8192).unwrap();
            let writer = region.clone();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for value in 1..=ROUNDS {
                        let data = vec![value; length];
                        writer.copy_in_with(copier, 1, &data);
                        while writer.byte(0) != value {
                            std::thread::yield_now();
                        }
                    }
                });
                for value in 1..=ROUNDS {
                    while region.byte(length) != value {
                        std::thread::yield_now();
                    }
                    for i in 1..=length {
                        assert_eq!(region.byte(i), value, "{} {length} {i}", copier.name());
                    }
                    region.copy_in_with(copier, 0, &[value]);
                }
            });
        }
    }
}

/// Pages between two that nobody may touch.
#[cfg(not(miri))]
struct Guarded {
    base: *mut u8,
    page: usize,
    pages: usize,
}

#[cfg(not(miri))]
impl Guarded {
    fn new(pages: usize) -> Self {
        // SAFETY: a question.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap();
        let bytes = (pages + 2) * page;
        let (protection, flags) = (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping where the kernel likes.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        let base = base.cast::<u8>();
        let (inner, protection) = (base.wrapping_add(page), libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: pages of the mapping that was just made.
        let allowed = unsafe { libc::mprotect(inner.cast(), pages * page, protection) };
        assert_eq!(allowed, 0);
        Self { base, page, pages }
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: these pages are there for reading and writing, and nobody else has them.
        unsafe {
            std::slice::from_raw_parts_mut(
                self.base.wrapping_add(self.page),
                self.page * self.pages,
            )
        }
    }
}

#[cfg(not(miri))]
impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and nobody has any of it any more.
        unsafe { libc::munmap(self.base.cast(), (self.pages + 2) * self.page) };
    }
}

/// A byte that is read before the first one or behind the last one ends the test.
#[cfg(not(miri))]
#[test]
fn nothing_beside_a_copy_is_read_or_written() {
    let (mut data, mut room) = (Guarded::new(1), Guarded::new(1));
    let (data, room) = (data.bytes(), room.bytes());
    let mut prng = Prng::new(4);
    data.fill_with(|| prng.next_u64() as u8);
    let most = data.len();
    for copier in Copier::available() {
        for length in (0..600).chain(most - 70..=most) {
            let (first, last) = (0..length, most - length..most);
            for (from, to) in [
                (&first, &first),
                (&first, &last),
                (&last, &first),
                (&last, &last),
            ] {
                let data = &mut data[from.clone()];
                let room = &mut room[to.clone()];
                let expected = resume(5, data);
                let (data_at, room_at) = (data.as_mut_ptr(), room.as_mut_ptr());
                let around = (Bounds::of(data_at, length), Bounds::of(room_at, length));
                assert_eq!(copier.sum(data, 5), expected);
                // SAFETY: slices of `length` bytes of different mappings, here and below.
                let sum = unsafe { copier.copy_in_crc(room_at, data, 5, around.1) };
                assert!(sum == expected && room == data, "{length} to {to:?}");
                room.fill(0);
                // SAFETY: as above.
                let sum = unsafe { copier.copy_out_crc(room, data_at, 5, around.0) };
                assert!(sum == expected && room == data, "{length} from {from:?}");
                room.fill(0);
                // SAFETY: as above.
                unsafe { copier.copy_in(room_at, data, around.1) };
                assert!(room == data, "{length} to {to:?}");
                room.fill(0);
                // SAFETY: as above.
                unsafe { copier.copy_out(room, data_at, around.0) };
                assert!(room == data, "{length} from {from:?}");
            }
        }
    }
}
