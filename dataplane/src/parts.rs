//! Memory of another process some of which is mapped here, too.

use crate::process_memory::ProcessRegion;
use crate::region::Region;
use std::ops::Range;
use trunkline_conn::mem::{AtomicOp, Order, RegionMemory, Unreachable};
use trunkline_wire::Crc;

/// A range of another process's memory, with a part in it that both share.
#[derive(Clone, Debug)]
pub struct PartedRegion {
    /// All of it, for what is not shared.
    whole: ProcessRegion,
    /// Bytes from its start to the shared part.
    start: usize,
    shared: Region,
}

impl PartedRegion {
    /// `whole`, whose bytes from `start` on are those of `shared`; `None` where they are not all in
    /// it. Whether they are the same is for the process to see to, and to its own harm.
    pub fn new(whole: ProcessRegion, start: usize, shared: Region) -> Option<Self> {
        let end = start.checked_add(shared.len())?;
        let fits = end <= whole.len();
        fits.then_some(Self {
            whole,
            start,
            shared,
        })
    }

    /// Bytes that are not shared.
    pub fn foreign_bytes(&self) -> u64 {
        (self.whole.len() - self.shared.len()) as u64
    }

    /// Bytes that are.
    pub fn shared_bytes(&self) -> u64 {
        self.shared.len() as u64
    }

    /// Takes the bytes at `offset` apart: before, in and behind the shared part, as ranges of them.
    fn split(&self, offset: usize, length: usize) -> [Range<usize>; 3] {
        let end = self.start + self.shared.len();
        let first = self.start.saturating_sub(offset).min(length);
        let second = end.saturating_sub(offset).min(length);
        [0..first, first..second, second..length]
    }
}

impl RegionMemory for PartedRegion {
    fn addr(&self) -> u64 {
        self.whole.addr()
    }

    fn len(&self) -> usize {
        self.whole.len()
    }

    #[inline]
    fn copy_out(
        &self,
        offset: usize,
        out: &mut [u8],
        mut crc: Option<&mut Crc>,
    ) -> Result<(), Unreachable> {
        let [before, within, behind] = self.split(offset, out.len());
        if !before.is_empty() {
            let out = &mut out[before];
            self.whole.copy_out(offset, out, crc.as_deref_mut())?;
        }
        if !within.is_empty() {
            let at = offset + within.start - self.start;
            self.shared
                .copy_out(at, &mut out[within], crc.as_deref_mut());
        }
        if !behind.is_empty() {
            let at = offset + behind.start;
            self.whole.copy_out(at, &mut out[behind], crc)?;
        }
        Ok(())
    }

    #[inline]
    fn copy_in(
        &self,
        offset: usize,
        data: &[u8],
        order: Order,
        mut crc: Option<&mut Crc>,
    ) -> Result<(), Unreachable> {
        let [before, within, behind] = self.split(offset, data.len());
        if !before.is_empty() {
            let data = &data[before];
            // The last byte is not among these, unless they are all.
            let order = if within.is_empty() && behind.is_empty() {
                order
            } else {
                Order::Any
            };
            self.whole
                .copy_in(offset, data, order, crc.as_deref_mut())?;
        }
        if !within.is_empty() {
            let at = offset + within.start - self.start;
            self.shared.copy_in(at, &data[within], crc.as_deref_mut());
        }
        if !behind.is_empty() {
            let at = offset + behind.start;
            self.whole.copy_in(at, &data[behind], order, crc)?;
        }
        Ok(())
    }

    /// In the shared part it is atomic towards the process's own instructions, too.
    fn atomic(&self, offset: usize, op: AtomicOp) -> Result<u64, Unreachable> {
        let [_, within, _] = self.split(offset, 8);
        if within.len() == 8 {
            return Ok(self.shared.atomic(offset - self.start, op));
        }
        self.whole.atomic(offset, op)
    }

    #[inline]
    fn sum(bytes: &[u8], crc: &mut Crc) {
        Region::sum(bytes, crc);
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;
    use crate::process_memory::ProcessMemory;
    use std::fs::File;

    /// 100 bytes of this process, of which 40 from the 24th on are others, and both.
    fn parted() -> (PartedRegion, Region, Region) {
        let (own, shared) = (
            Region::allocate(100).unwrap(),
            Region::allocate(40).unwrap(),
        );
        let memory = File::options()
            .read(true)
            .write(true)
            .open("/proc/self/mem");
        let memory = ProcessMemory::new(memory.unwrap().into()).unwrap();
        let whole = memory.region(own.addr(), 100).unwrap();
        assert!(PartedRegion::new(whole.clone(), 61, shared.clone()).is_none());
        assert!(PartedRegion::new(whole.clone(), usize::MAX, shared.clone()).is_none());
        let parted = PartedRegion::new(whole, 24, shared.clone()).unwrap();
        (parted, own, shared)
    }

    #[test]
    fn bytes_go_to_their_part_and_come_from_it_with_the_right_sum() {
        let (parted, own, shared) = parted();
        assert_eq!((parted.len(), parted.foreign_bytes()), (100, 60));
        assert_eq!(parted.shared_bytes(), 40);
        for (offset, length) in [
            (0, 100),
            (0, 24),
            (24, 40),
            (64, 36),
            (20, 10),
            (60, 10),
            (30, 5),
        ] {
            let data: Vec<_> = (0..length).map(|at| (at * 3 + offset) as u8).collect();
            let mut expected = Crc::resume(7);
            expected.update(&data);
            let (mut sum_in, mut sum_out) = (Crc::resume(7), Crc::resume(7));
            let crc = Some(&mut sum_in);
            parted.copy_in(offset, &data, Order::Any, crc).unwrap();
            let mut out = vec![0; length];
            parted
                .copy_out(offset, &mut out, Some(&mut sum_out))
                .unwrap();
            assert_eq!(out, data, "{length} bytes at {offset}");
            assert_eq!((sum_in, sum_out), (expected, expected));
            for (at, byte) in data
                .iter()
                .enumerate()
                .map(|(at, byte)| (at + offset, byte))
            {
                let found = match at {
                    24..64 => shared.byte(at - 24),
                    _ => own.byte(at),
                };
                assert_eq!(found, *byte, "byte {at}");
            }
        }
    }

    #[test]
    fn an_atomic_is_one_of_the_part_that_has_its_bytes() {
        let (parted, own, shared) = parted();
        for (offset, add) in [(0, 1), (16, 2), (24, 3), (56, 4), (64, 5)] {
            assert_eq!(parted.atomic(offset, AtomicOp::FetchAdd { add }), Ok(0));
            assert_eq!(parted.atomic(offset, AtomicOp::FetchAdd { add }), Ok(add));
        }
        assert_eq!((own.byte(0), own.byte(16), own.byte(64)), (2, 4, 10));
        assert_eq!((shared.byte(0), shared.byte(32)), (6, 8));
        assert_eq!((own.byte(24), own.byte(56)), (0, 0));
    }
}
