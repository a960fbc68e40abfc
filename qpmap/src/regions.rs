//! Memory regions and protection domains of a node: keys, ranges and rights.
//!
//! A key names a slot: index (20 bits) and salt (12 bits), disguised by a secret permutation. The
//! whole key is compared with that of the region in the slot, so that a key that was never given
//! out, or whose region is gone, names nothing. The salt of a slot changes with each registration;
//! a key comes back only after the slot was used 4096 times.
//!
//! A region is registered once, in the node's [`RegionTable`]. Each worker finds it by its own view
//! ([`Regions`]) without locks, and the registration ends when no worker can be using the memory
//! any more ([`Unregistered`]).

mod binding;
mod table;
mod windows;

use crate::key::Secret32;
use crate::rcu::Reader;
pub use binding::MwType;
use std::sync::atomic::{AtomicBool, Ordering};
pub use table::{RegionTable, Registered, Unregistered};
use trunkline_conn::mem::{
    Access, AtomicOp, Memory, MemoryFault, Order, PdId, RegionMemory, Responder, Sge, Unreachable,
};
use trunkline_wire::{Crc, Rkey};
pub use windows::MAX_WINDOWS;

/// Most regions.
pub const MAX_REGIONS: u32 = 1 << INDEX_BITS;

const INDEX_BITS: u32 = 20;

/// The regions of a node, as one worker sees them.
#[derive(Debug)]
pub struct Regions<B> {
    table: RegionTable<B>,
    reader: Reader<Region<B>>,
    secret: Secret32,
}

#[derive(Debug)]
struct Region<B> {
    /// Address of its first byte, as keys are used with it.
    iova: u64,
    /// As `bytes` had it when it was registered: what is checked does not change under us.
    length: u64,
    key: u32,
    /// Tells this registration from others of its slot and key.
    registration: u32,
    pd: PdId,
    access: Access,
    /// A peer took the key away, at whichever worker.
    invalidated: AtomicBool,
    bytes: B,
}

impl<B> Region<B> {
    /// What it says of an access at `addr` to bytes that are not there.
    const fn unreachable(&self, addr: u64) -> impl FnOnce(Unreachable) -> MemoryFault + use<B> {
        let key = self.key;
        move |Unreachable| MemoryFault::Unreachable { key, addr }
    }

    /// Itself, and the place of `addr` in it, if `length` bytes from there on may be used for
    /// `access`.
    #[inline(always)]
    fn range(
        &self,
        pd: PdId,
        (addr, length): (u64, u64),
        access: Access,
    ) -> Result<(&Self, usize), MemoryFault> {
        let key = self.key;
        if self.pd != pd {
            return Err(MemoryFault::ForeignDomain { key });
        }
        if !self.access.contains(access) {
            let (allowed, wanted) = (self.access.bits(), access.bits());
            return Err(MemoryFault::NotAllowed {
                key,
                allowed,
                wanted,
            });
        }
        let offset = addr.wrapping_sub(self.iova);
        // An address below the region wraps to an offset beyond it: a region ends before 2^64.
        if offset > self.length || length > self.length - offset {
            return Err(MemoryFault::OutOfRange { key, addr, length });
        }
        Ok((self, offset as usize))
    }
}

impl<B: RegionMemory> Regions<B> {
    /// Where regions are registered.
    pub const fn table(&self) -> &RegionTable<B> {
        &self.table
    }

    /// The memory behind a key, for its owner: no rights are checked.
    pub fn bytes(&self, key: Rkey) -> Option<&B> {
        Some(&self.find(key.0)?.bytes)
    }

    #[inline(always)]
    fn find(&self, key: u32) -> Option<&Region<B>> {
        let index = self.secret.open(key) & (MAX_REGIONS - 1);
        self.reader.get(index).filter(|region| region.key == key)
    }

    /// The region of `key`, if it was not taken away.
    #[inline(always)]
    fn live(&self, key: u32) -> Option<&Region<B>> {
        let found = self.find(key);
        found.filter(|region| !region.invalidated.load(Ordering::Acquire))
    }

    #[inline(always)]
    fn usable(&self, pd: PdId, key: u32) -> Result<&Region<B>, MemoryFault> {
        match self.live(key) {
            Some(region) if region.pd == pd => Ok(region),
            Some(_) => Err(MemoryFault::ForeignDomain { key }),
            None => Err(MemoryFault::UnknownKey { key }),
        }
    }

    /// Takes a key of the domain away, for a program of this node: the region refuses all use,
    /// until its owner deregisters it or registers it anew; a window of type 2 is bound no more.
    ///
    /// # Errors
    /// The domain has no such key, or it was taken away before; a window of type 1, or one that
    /// another QP bound.
    pub fn invalidate_own(&self, by: Responder, key: Rkey) -> Result<(), MemoryFault> {
        self.take_key_away(by, key, |_| Ok(()))
    }

    /// Takes the key of a region away, if it `may` be; that of a window where no region has it.
    fn take_key_away(
        &self,
        by: Responder,
        key: Rkey,
        may: impl FnOnce(&Region<B>) -> Result<(), MemoryFault>,
    ) -> Result<(), MemoryFault> {
        if let Err(MemoryFault::UnknownKey { .. }) = self.usable(by.pd, key.0) {
            return self.invalidate_window(by, key.0);
        }
        // Nobody registers it anew meanwhile, from which this would be lost.
        let books = self.table.books();
        let region = self.usable(by.pd, key.0)?;
        may(region)?;
        region.invalidated.store(true, Ordering::Release);
        drop(books);
        Ok(())
    }

    /// The region of `key` and the place of `addr` in it, if `length` bytes from there on may be
    /// used for `access`.
    #[inline(always)]
    fn range(
        &self,
        pd: PdId,
        key: u32,
        addr: u64,
        length: u64,
        access: Access,
    ) -> Result<(&Region<B>, usize), MemoryFault> {
        match self.live(key) {
            Some(region) => region.range(pd, (addr, length), access),
            None => Err(MemoryFault::UnknownKey { key }),
        }
    }

    /// The same for a peer, which may also use a window.
    #[inline(always)]
    fn remote_range(
        &self,
        by: Responder,
        key: u32,
        addr: u64,
        length: u64,
        access: Access,
    ) -> Result<(&Region<B>, usize), MemoryFault> {
        match self.live(key) {
            Some(region) => region.range(by.pd, (addr, length), access),
            None => self.range_of_window(by, key, (addr, length), access),
        }
    }

    /// Runs `copy` on each piece of the `length` bytes that begin `offset` bytes into the buffer:
    /// its memory, its offset in that, and where in the `length` bytes it is.
    #[inline(always)]
    fn each_piece(
        &self,
        pd: PdId,
        sges: &[Sge],
        (offset, length): (u32, usize),
        access: Access,
        mut copy: impl FnMut(&B, usize, std::ops::Range<usize>) -> Result<(), Unreachable>,
    ) -> Result<(), MemoryFault> {
        if length == 0 {
            return Ok(());
        }
        let (mut skip, mut done) = (u64::from(offset), 0);
        let need = skip.saturating_add(length as u64);
        // Nearly always all of it lies in the first element.
        if let Some(first) = sges.first()
            && need <= u64::from(first.length)
            && let Some(addr) = first.addr.checked_add(skip)
        {
            let (region, at) = self.range(pd, first.lkey.0, addr, length as u64, access)?;
            return copy(&region.bytes, at, 0..length).map_err(region.unreachable(addr));
        }
        // Nothing is touched if the others are not enough.
        let have = sges.iter().map(|sge| u64::from(sge.length)).sum();
        if have < need {
            return Err(MemoryFault::TooShort { have, need });
        }
        for sge in sges {
            let bytes = u64::from(sge.length);
            if skip >= bytes {
                skip -= bytes;
                continue;
            }
            let take = (bytes - skip).min((length - done) as u64);
            let outside = MemoryFault::OutOfRange {
                key: sge.lkey.0,
                addr: sge.addr,
                length: bytes,
            };
            let addr = sge.addr.checked_add(skip).ok_or(outside)?;
            let (region, at) = self.range(pd, sge.lkey.0, addr, take, access)?;
            copy(&region.bytes, at, done..done + take as usize)
                .map_err(region.unreachable(addr))?;
            done += take as usize;
            if done == length {
                break;
            }
            skip = 0;
        }
        Ok(())
    }
}

impl<B: RegionMemory> Memory for Regions<B> {
    fn check_local(&self, pd: PdId, sges: &[Sge], access: Access) -> Result<(), MemoryFault> {
        for sge in sges.iter().filter(|sge| sge.length != 0) {
            self.range(pd, sge.lkey.0, sge.addr, u64::from(sge.length), access)?;
        }
        Ok(())
    }

    fn gather(
        &self,
        pd: PdId,
        sges: &[Sge],
        offset: u32,
        out: &mut [u8],
        mut crc: Option<&mut Crc>,
    ) -> Result<(), MemoryFault> {
        self.each_piece(
            pd,
            sges,
            (offset, out.len()),
            Access::LOCAL_READ,
            |bytes, at, range| bytes.copy_out(at, &mut out[range], crc.as_deref_mut()),
        )
    }

    fn scatter(
        &self,
        pd: PdId,
        sges: &[Sge],
        offset: u32,
        data: &[u8],
        mut crc: Option<&mut Crc>,
    ) -> Result<(), MemoryFault> {
        self.each_piece(
            pd,
            sges,
            (offset, data.len()),
            Access::LOCAL_WRITE,
            |bytes, at, range| bytes.copy_in(at, &data[range], Order::Any, crc.as_deref_mut()),
        )
    }

    fn check_remote(
        &self,
        by: Responder,
        key: Rkey,
        addr: u64,
        length: u32,
        access: Access,
    ) -> Result<(), MemoryFault> {
        if length == 0 {
            return Ok(());
        }
        self.remote_range(by, key.0, addr, u64::from(length), access)
            .map(|_| ())
    }

    fn read(
        &self,
        by: Responder,
        key: Rkey,
        addr: u64,
        out: &mut [u8],
        crc: Option<&mut Crc>,
    ) -> Result<(), MemoryFault> {
        if out.is_empty() {
            return Ok(());
        }
        let (region, at) =
            self.remote_range(by, key.0, addr, out.len() as u64, Access::REMOTE_READ)?;
        let copied = region.bytes.copy_out(at, out, crc);
        copied.map_err(region.unreachable(addr))
    }

    #[inline]
    fn write(
        &self,
        by: Responder,
        key: Rkey,
        addr: u64,
        data: &[u8],
        order: Order,
        crc: Option<&mut Crc>,
    ) -> Result<(), MemoryFault> {
        if data.is_empty() {
            return Ok(());
        }
        let (region, at) =
            self.remote_range(by, key.0, addr, data.len() as u64, Access::REMOTE_WRITE)?;
        let copied = region.bytes.copy_in(at, data, order, crc);
        copied.map_err(region.unreachable(addr))
    }

    fn atomic(
        &self,
        by: Responder,
        key: Rkey,
        addr: u64,
        op: AtomicOp,
    ) -> Result<u64, MemoryFault> {
        let (region, at) = self.remote_range(by, key.0, addr, 8, Access::REMOTE_ATOMIC)?;
        // An iova need not have the alignment of the memory.
        let cell = region.bytes.addr().wrapping_add(at as u64);
        if !(addr | cell).is_multiple_of(8) {
            return Err(MemoryFault::Misaligned { addr });
        }
        let before = region.bytes.atomic(at, op);
        before.map_err(region.unreachable(addr))
    }

    /// The key refuses all use, local too, until its owner deregisters it. Only of a region that
    /// was registered for that: any other one is none of the peer's business.
    fn invalidate(&mut self, by: Responder, key: Rkey) -> Result<(), MemoryFault> {
        self.take_key_away(by, key, |region| {
            let (allowed, wanted) = (region.access, Access::REMOTE_INVALIDATE);
            if allowed.contains(wanted) {
                return Ok(());
            }
            Err(MemoryFault::NotAllowed {
                key: key.0,
                allowed: allowed.bits(),
                wanted: wanted.bits(),
            })
        })
    }
}

#[cfg(test)]
mod tests;
