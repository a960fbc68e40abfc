//! Memory that peers reach.
//!
//! A [`Region`] never hands out a reference to its bytes: they are copied in and copied out, as
//! [`crate::copy`] explains, and 8 of them at a time can be changed atomically. So it may be shared
//! by any number of threads, of this process and of others, and a race costs bytes, not soundness.

use crate::copy::{self, Bounds, Copier};
use crate::mapping::Mapping;
use crate::prefetch::prefetch;
use std::any::Any;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use trunkline_conn::mem::{AtomicOp, Order, RegionMemory, Unreachable};
use trunkline_wire::Crc;

/// A range of memory. Clones share it; owned memory is given back with the last one.
#[derive(Clone, Debug)]
pub struct Region {
    base: NonNull<u8>,
    len: usize,
    copier: Copier,
    /// What keeps it mapped; `None` for memory that belongs to someone else.
    _owned: Option<Arc<dyn Any + Send + Sync>>,
}

// SAFETY: the memory outlives every clone, and it is only accessed by atomics and by the copies of
// `crate::copy`, both of which bear concurrent access.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// New zeroed memory of `len` bytes, starting at a page. Pages are taken when first touched.
    ///
    /// # Errors
    /// When the system has no such room.
    pub fn allocate(len: usize) -> io::Result<Self> {
        let mapping = Mapping::new(len.max(1))?;
        let base = mapping.base();
        Ok(Self {
            base,
            len,
            copier: Copier::detect(),
            _owned: Some(Arc::new(mapping)),
        })
    }

    /// `len` bytes at `base`, which belong to someone else.
    ///
    /// # Safety
    /// The memory must be readable and writable until the last clone is gone. While it is reachable
    /// through the region, nobody may hold a reference to it or rely on what it contains, except as
    /// a program relies on the buffers of a device that may write them at any time.
    pub unsafe fn foreign(base: NonNull<u8>, len: usize) -> Self {
        Self {
            base,
            len,
            copier: Copier::detect(),
            _owned: None,
        }
    }

    /// `words` as bytes, which are there for as long as `owner` is: both come from `of`.
    pub fn of_words<T: Any + Send + Sync>(owner: Arc<T>, of: fn(&T) -> &[AtomicU64]) -> Self {
        // The words stay lent while `owner` is kept, and may be written though they are shared.
        let words = of(&owner);
        Self {
            base: NonNull::from_ref(words).cast(),
            len: size_of_val(words),
            copier: Copier::detect(),
            _owned: Some(owner),
        }
    }

    /// The `len` bytes of it from `offset` on; `None` where they are not all in it.
    #[must_use]
    pub fn part(self, offset: usize, len: usize) -> Option<Self> {
        let inside = offset <= self.len && len <= self.len - offset;
        inside.then(|| Self {
            // SAFETY: inside the region, or one past its end for no bytes.
            base: unsafe { self.base.add(offset) },
            len,
            ..self
        })
    }

    /// The byte at `offset`, for programs that poll the last byte of a WRITE: when it shows the new
    /// value, the bytes before it are in place.
    ///
    /// # Panics
    /// When `offset` is not inside.
    pub fn byte(&self, offset: usize) -> u8 {
        let at = self.at(offset, 1);
        // SAFETY: inside the region, which is only accessed atomically or by raw copies.
        unsafe { copy::load_byte(at, self.bounds()) }
    }

    /// Copies bytes out; where `crc` is given they are fed into it in the same pass. This memory is
    /// always there.
    ///
    /// # Panics
    /// When the range is not inside.
    #[inline]
    pub fn copy_out(&self, offset: usize, out: &mut [u8], crc: Option<&mut Crc>) {
        let src = self.at(offset, out.len());
        announce(src, out.len());
        match crc {
            Some(crc) => {
                // SAFETY: `at` has checked the range; `out` is private, so it does not overlap.
                let sum = unsafe {
                    self.copier
                        .copy_out_crc(out, src, crc.value(), self.bounds())
                };
                *crc = Crc::resume(sum);
            }
            // SAFETY: as above.
            None => unsafe { self.copier.copy_out(out, src, self.bounds()) },
        }
    }

    /// Copies bytes in, in ascending order of addresses, the last one last.
    ///
    /// # Panics
    /// When the range is not inside.
    #[inline]
    pub fn copy_in(&self, offset: usize, data: &[u8], crc: Option<&mut Crc>) {
        let dst = self.at(offset, data.len());
        announce(dst, data.len());
        match crc {
            Some(crc) => {
                // SAFETY: `at` has checked the range; `data` is private, so it does not overlap.
                let sum = unsafe {
                    self.copier
                        .copy_in_crc(dst, data, crc.value(), self.bounds())
                };
                *crc = Crc::resume(sum);
            }
            // SAFETY: as above.
            None => unsafe { self.copier.copy_in(dst, data, self.bounds()) },
        }
    }

    /// Runs an atomic on 8 aligned bytes; gives the value before.
    ///
    /// # Panics
    /// When the range is not inside or not aligned.
    pub fn atomic(&self, offset: usize, op: AtomicOp) -> u64 {
        let at = self.at(offset, 8);
        assert!(at.addr().is_multiple_of(8), "atomic at {:#x}", at.addr());
        // SAFETY: 8 aligned bytes inside the region, which is only accessed atomically, as words
        // where they are whole, or by raw copies.
        let cell = unsafe { AtomicU64::from_ptr(at.cast()) };
        match op {
            AtomicOp::CompareSwap { compare, swap } => {
                let old = cell.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst);
                old.unwrap_or_else(|old| old)
            }
            AtomicOp::FetchAdd { add } => cell.fetch_add(add, Ordering::SeqCst),
        }
    }

    /// Copies in with a kernel of the caller's choice.
    #[cfg(test)]
    pub(crate) fn copy_in_with(&self, copier: Copier, offset: usize, data: &[u8]) {
        // SAFETY: `at` checks the range; `data` is private, so it does not overlap.
        unsafe { copier.copy_in(self.at(offset, data.len()), data, self.bounds()) };
    }

    /// Its first byte.
    pub(crate) const fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn bounds(&self) -> Bounds {
        Bounds::of(self.base.as_ptr(), self.len)
    }

    /// Address of `length` bytes at `offset`.
    fn at(&self, offset: usize, length: usize) -> *mut u8 {
        let inside = offset <= self.len && length <= self.len - offset;
        assert!(
            inside,
            "{length} bytes at {offset} of a region of {}",
            self.len
        );
        // SAFETY: inside the region, or one past its end for no bytes.
        unsafe { self.base.as_ptr().add(offset) }
    }
}

/// A large copy is seldom the last: fetches what the next one begins with. The hardware does so by
/// itself only within a page.
#[inline]
fn announce(from: *const u8, length: usize) {
    if length >= 2048 {
        prefetch(from.wrapping_add(length), 4);
    }
}

impl RegionMemory for Region {
    fn addr(&self) -> u64 {
        self.base.as_ptr().addr() as u64
    }

    fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn copy_out(
        &self,
        offset: usize,
        out: &mut [u8],
        crc: Option<&mut Crc>,
    ) -> Result<(), Unreachable> {
        self.copy_out(offset, out, crc);
        Ok(())
    }

    /// The last byte is last in any case.
    #[inline]
    fn copy_in(
        &self,
        offset: usize,
        data: &[u8],
        _: Order,
        crc: Option<&mut Crc>,
    ) -> Result<(), Unreachable> {
        self.copy_in(offset, data, crc);
        Ok(())
    }

    fn atomic(&self, offset: usize, op: AtomicOp) -> Result<u64, Unreachable> {
        Ok(self.atomic(offset, op))
    }

    #[inline]
    fn sum(bytes: &[u8], crc: &mut Crc) {
        *crc = Crc::resume(Copier::detect().sum(bytes, crc.value()));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    fn pattern(length: usize) -> Vec<u8> {
        (0..length).map(|i| (i * 7 + i / 256) as u8).collect()
    }

    #[test]
    fn new_memory_is_zero_and_starts_at_a_page() {
        let region = Region::allocate(10_000).unwrap();
        assert_eq!(region.len(), 10_000);
        assert!(region.addr().is_multiple_of(4096));
        let mut out = vec![1; 10_000];
        region.copy_out(0, &mut out, None);
        assert!(out.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn what_was_copied_in_comes_out_with_the_right_sum() {
        let region = Region::allocate(4096).unwrap();
        for (offset, length) in [(0, 1), (3, 5), (1, 64), (17, 777), (4095, 1), (0, 4096)] {
            let data = pattern(length);
            let mut expected = Crc::resume(0x1234_5678);
            expected.update(&data);
            let (mut crc_in, mut crc_out) = (Crc::resume(0x1234_5678), Crc::resume(0x1234_5678));
            region.copy_in(offset, &data, Some(&mut crc_in));
            let mut out = vec![0; length];
            region.copy_out(offset, &mut out, Some(&mut crc_out));
            assert_eq!(out, data, "{length} bytes at {offset}");
            assert_eq!(
                (crc_in, crc_out),
                (expected, expected),
                "{length} bytes at {offset}"
            );
            assert_eq!(region.byte(offset + length - 1), data[length - 1]);
        }
    }

    #[test]
    fn an_empty_access_at_the_end_is_inside() {
        let region = Region::allocate(16).unwrap();
        region.copy_in(16, &[], None);
        region.copy_out(16, &mut [], None);
        assert_eq!(Region::allocate(0).unwrap().len(), 0);
    }

    #[test]
    #[should_panic(expected = "8 bytes at 18446744073709551615 of a region of 16")]
    fn an_offset_that_would_wrap_is_outside() {
        Region::allocate(16)
            .unwrap()
            .copy_in(usize::MAX, &[0; 8], None);
    }

    #[test]
    #[should_panic(expected = "2 bytes at 15 of a region of 16")]
    fn a_range_that_reaches_past_the_end_is_outside() {
        Region::allocate(16)
            .unwrap()
            .copy_out(15, &mut [0; 2], None);
    }

    #[test]
    fn atomics_give_the_value_before() {
        let region = Region::allocate(64).unwrap();
        assert_eq!(region.atomic(8, AtomicOp::FetchAdd { add: 5 }), 0);
        assert_eq!(region.atomic(8, AtomicOp::FetchAdd { add: u64::MAX }), 5);
        let miss = AtomicOp::CompareSwap {
            compare: 9,
            swap: 1,
        };
        let hit = AtomicOp::CompareSwap {
            compare: 4,
            swap: u64::MAX,
        };
        assert_eq!(region.atomic(8, miss), 4);
        assert_eq!(region.atomic(8, hit), 4);
        let mut out = [0; 8];
        region.copy_out(8, &mut out, None);
        assert_eq!(out, [0xff; 8]);
    }

    #[test]
    #[should_panic(expected = "atomic at")]
    fn an_atomic_must_be_aligned() {
        let _ = Region::allocate(64)
            .unwrap()
            .atomic(4, AtomicOp::FetchAdd { add: 1 });
    }

    #[test]
    fn clones_share_the_memory_from_any_thread() {
        const ROUNDS: u64 = if cfg!(miri) { 50 } else { 10_000 };
        let region = Region::allocate(4096).unwrap();
        let threads: Vec<_> = (0..4)
            .map(|i| {
                let region = region.clone();
                std::thread::spawn(move || {
                    let mut out = [0; 100];
                    for _ in 0..ROUNDS {
                        region.atomic(0, AtomicOp::FetchAdd { add: 1 });
                        region.copy_in(64, &[i; 100], None);
                        region.copy_out(64, &mut out, None);
                        assert!(out.iter().all(|byte| *byte < 4));
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(region.atomic(0, AtomicOp::FetchAdd { add: 0 }), 4 * ROUNDS);
    }

    /// Copies of all lengths from and to the same bytes, beside atomics: for Miri, which sees
    /// whether sizes mix.
    #[test]
    fn accesses_of_any_length_may_race() {
        const ROUNDS: usize = if cfg!(miri) { 20 } else { 2_000 };
        // So that the region begins and ends within a word.
        let mut memory = [0_u64; 8];
        let base = NonNull::from(&mut memory).cast::<u8>();
        // SAFETY: inside `memory`.
        let start = unsafe { base.add(3) };
        // SAFETY: 50 bytes from there are inside `memory`, which is not touched while the region
        // lives.
        let region = unsafe { Region::foreign(start, 50) };
        let accesses: [fn(&Region); 5] = [
            |region| region.copy_in(0, &[7; 8], None),
            |region| region.copy_out(0, &mut [0; 7], None),
            |region| region.copy_in(1, &[7; 49], Some(&mut Crc::resume(0))),
            |region| region.copy_out(6, &mut [0; 44], Some(&mut Crc::resume(0))),
            |region| {
                region.atomic(5, AtomicOp::FetchAdd { add: 0 });
                assert!([0, 7].contains(&region.byte(9)));
                region.copy_in(7, &[7; 3], None);
            },
        ];
        std::thread::scope(|scope| {
            for access in accesses {
                let region = region.clone();
                scope.spawn(move || (0..ROUNDS).for_each(|_| access(&region)));
            }
        });
        let mut out = [0; 50];
        region.copy_out(0, &mut out, None);
        assert_eq!(out, [7; 50]);
        drop(region);
        let expected: Vec<u8> = (0..64)
            .map(|at| 7 * u8::from((3..53).contains(&at)))
            .collect();
        let bytes: Vec<u8> = memory.iter().flat_map(|word| word.to_ne_bytes()).collect();
        assert_eq!(bytes, expected);
    }

    #[test]
    fn foreign_memory_is_reached_in_place_and_left_alone_afterwards() {
        let mut memory = [0u64; 8];
        let base = NonNull::from(&mut memory[0]).cast();
        // SAFETY: `memory` is not touched while the region lives.
        let region = unsafe { Region::foreign(base, 8) };
        region.copy_in(0, &7u64.to_ne_bytes(), None);
        assert_eq!(region.atomic(0, AtomicOp::FetchAdd { add: 1 }), 7);
        drop(region);
        assert_eq!(memory[0], 8);
    }
}
