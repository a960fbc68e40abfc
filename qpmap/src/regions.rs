//! Memory regions and protection domains of one worker: keys, ranges and rights.
//!
//! A key names a slot: index (20 bits) and salt (12 bits), disguised by a secret permutation. The
//! whole key is compared with that of the region in the slot, so that a key that was never given
//! out, or whose region is gone, names nothing. The salt of a slot changes with each registration;
//! a key comes back only after the slot was used 4096 times.

use crate::error::VerbsError;
use crate::key::Secret32;
use crate::slab::Slab;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use trunkline_conn::mem::{Access, AtomicOp, Memory, MemoryFault, PdId, RegionMemory, Sge};
use trunkline_conn::secret::{Purpose, Secret, Stream};
use trunkline_wire::{Crc, Lkey, Rkey};

/// Most regions.
pub const MAX_REGIONS: u32 = 1 << INDEX_BITS;

const INDEX_BITS: u32 = 20;
const SALT_MASK: u16 = 0xfff;
/// Flags that a provider may ignore (`IBV_ACCESS_OPTIONAL_RANGE`).
const OPTIONAL: u32 = 0x3ff0_0000;
/// The memory is of huge pages (`IBV_ACCESS_HUGETLB`): nothing to a NIC that copies.
const HUGETLB: u32 = 1 << 7;

/// What [`Regions::register`] gives.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Registered {
    /// Key for local work requests.
    pub lkey: Lkey,
    /// Key for peers; the same number.
    pub rkey: Rkey,
    /// Slot of the region.
    pub index: u32,
}

/// All regions and protection domains of a worker.
#[derive(Debug)]
pub struct Regions<B> {
    regions: Slab<Region<B>>,
    /// Salt of the last registration in each slot.
    salts: Vec<u16>,
    /// From which the first salt of a slot is drawn.
    first_salts: Stream,
    domains: Slab<Domain>,
    secret: Secret32,
}

#[derive(Debug)]
struct Region<B> {
    /// As `bytes` had it when it was registered: what is checked does not change under us.
    addr: u64,
    length: u64,
    key: u32,
    pd: PdId,
    access: Access,
    /// A peer took the key away.
    invalidated: bool,
    /// The same, in whichever worker it came to; where the node has several.
    revoked: Option<Arc<AtomicBool>>,
    bytes: B,
}

impl<B> Region<B> {
    #[inline]
    fn is_invalidated(&self) -> bool {
        let elsewhere = |revoked: &Arc<AtomicBool>| revoked.load(Ordering::Acquire);
        self.invalidated || self.revoked.as_ref().is_some_and(elsewhere)
    }
}

/// Who is in a protection domain.
#[derive(Clone, Copy, Debug, Default)]
struct Domain {
    regions: u32,
    others: u32,
}

impl<B: RegionMemory> Regions<B> {
    /// No regions and no domains; `secret` decides on their keys.
    pub fn new(secret: &Secret) -> Self {
        Self {
            first_salts: secret.stream(Purpose::RegionSalts),
            regions: Slab::new(),
            salts: Vec::new(),
            domains: Slab::new(),
            secret: Secret32::new(secret.stream(Purpose::RegionKeys)),
        }
    }

    /// A new protection domain (`ibv_alloc_pd(3)`).
    pub fn alloc_pd(&mut self) -> PdId {
        PdId(self.domains.insert(Domain::default()))
    }

    /// Ends a protection domain (`ibv_dealloc_pd(3)`).
    ///
    /// # Errors
    /// There is no such domain, or something is still in it.
    pub fn dealloc_pd(&mut self, pd: PdId) -> Result<(), VerbsError> {
        let domain = *self.domain(pd)?;
        let users = domain.regions.saturating_add(domain.others);
        if users != 0 {
            return Err(VerbsError::Busy {
                what: "protection domain",
                users,
            });
        }
        self.domains.remove(pd.0);
        Ok(())
    }

    /// Puts a QP or an SRQ into a domain.
    ///
    /// # Errors
    /// There is no such domain.
    pub fn pd_ref(&mut self, pd: PdId) -> Result<(), VerbsError> {
        self.domain(pd)?.others += 1;
        Ok(())
    }

    /// Takes it out again.
    ///
    /// # Panics
    /// When nothing was put in.
    pub fn pd_unref(&mut self, pd: PdId) {
        let others = &mut self.domains[pd.0].others;
        *others = others
            .checked_sub(1)
            .expect("whatever leaves a domain was put into it");
    }

    fn domain(&mut self, pd: PdId) -> Result<&mut Domain, VerbsError> {
        self.domains
            .get_mut(pd.0)
            .ok_or(VerbsError::UnknownPd { pd: pd.0 })
    }

    /// Registers memory (`ibv_reg_mr(3)`).
    ///
    /// # Errors
    /// As [`register_with`](Self::register_with).
    pub fn register(
        &mut self,
        pd: PdId,
        bytes: B,
        access: Access,
    ) -> Result<Registered, VerbsError> {
        self.register_with(pd, bytes, access, None)
    }

    /// The same of a region that is registered with several workers: `revoked` is one flag for all
    /// of them, so that a key that a peer takes away at one is gone at all.
    ///
    /// # Errors
    /// Remote writes or atomics without local writes, or flags that mean nothing; no bytes, which
    /// `ibv_reg_mr(3)` of Linux refuses, too; a range that wraps around; no such domain;
    /// [`MAX_REGIONS`] regions already.
    pub fn register_with(
        &mut self,
        pd: PdId,
        bytes: B,
        access: Access,
        revoked: Option<Arc<AtomicBool>>,
    ) -> Result<Registered, VerbsError> {
        // Drawn for each: those who register equally in equal order get equal keys.
        let random = self.first_salts.next_u64();
        check_access(access)?;
        let (addr, length) = (bytes.addr(), bytes.len() as u64);
        if length == 0 {
            return Err(VerbsError::EmptyRegion);
        }
        if addr.checked_add(length).is_none() {
            return Err(VerbsError::BadRange { addr, length });
        }
        let index = self.regions.next_index();
        if index >= MAX_REGIONS {
            return Err(VerbsError::Limit {
                what: "memory regions",
                limit: u64::from(MAX_REGIONS),
            });
        }
        self.domain(pd)?.regions += 1;
        if index as usize == self.salts.len() {
            self.salts.push(random as u16 & SALT_MASK);
        }
        let salt = &mut self.salts[index as usize];
        *salt = salt.wrapping_add(1) & SALT_MASK;
        let key = self.secret.seal(index | u32::from(*salt) << INDEX_BITS);
        let region = Region {
            addr,
            length,
            key,
            pd,
            access,
            invalidated: false,
            revoked,
            bytes,
        };
        let inserted = self.regions.insert(region);
        assert_eq!(inserted, index, "the slab says where it inserts");
        Ok(Registered {
            lkey: Lkey(key),
            rkey: Rkey(key),
            index,
        })
    }

    /// Ends a registration (`ibv_dereg_mr(3)`), also of a key that a peer invalidated, and gives
    /// the memory back.
    ///
    /// # Errors
    /// There is no such key.
    pub fn deregister(&mut self, key: Rkey) -> Result<B, VerbsError> {
        let index = self
            .index(key.0)
            .ok_or(VerbsError::UnknownKey { key: key.0 })?;
        let region = self.regions.remove(index);
        self.domains[region.pd.0].regions -= 1;
        Ok(region.bytes)
    }

    /// The memory behind a key, for its owner: no rights are checked.
    pub fn bytes(&self, key: Rkey) -> Option<&B> {
        Some(&self.regions[self.index(key.0)?].bytes)
    }

    /// Regions.
    pub const fn len(&self) -> usize {
        self.regions.len()
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    #[inline]
    fn index(&self, key: u32) -> Option<u32> {
        let index = self.secret.open(key) & (MAX_REGIONS - 1);
        self.regions
            .get(index)
            .filter(|region| region.key == key)
            .map(|_| index)
    }

    #[inline(always)]
    fn usable(&self, pd: PdId, key: u32) -> Result<&Region<B>, MemoryFault> {
        let index = self.secret.open(key) & (MAX_REGIONS - 1);
        match self.regions.get(index) {
            Some(region) if region.key == key && !region.is_invalidated() => {
                if region.pd == pd {
                    Ok(region)
                } else {
                    Err(MemoryFault::ForeignDomain { key })
                }
            }
            _ => Err(MemoryFault::UnknownKey { key }),
        }
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
        let region = self.usable(pd, key)?;
        if !region.access.contains(access) {
            let (allowed, wanted) = (region.access.bits(), access.bits());
            return Err(MemoryFault::NotAllowed {
                key,
                allowed,
                wanted,
            });
        }
        let offset = addr.wrapping_sub(region.addr);
        // An address below the region wraps to an offset beyond it: a region ends before 2^64.
        if offset > region.length || length > region.length - offset {
            return Err(MemoryFault::OutOfRange { key, addr, length });
        }
        Ok((region, offset as usize))
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
        mut copy: impl FnMut(&B, usize, std::ops::Range<usize>),
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
            copy(&region.bytes, at, 0..length);
            return Ok(());
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
            copy(&region.bytes, at, done..done + take as usize);
            done += take as usize;
            if done == length {
                break;
            }
            skip = 0;
        }
        Ok(())
    }
}

/// What `ibv_reg_mr(3)` says about access flags.
fn check_access(access: Access) -> Result<(), VerbsError> {
    let bits = access.bits();
    let writes = Access::REMOTE_WRITE.bits() | Access::REMOTE_ATOMIC.bits();
    let invalidate = Access::REMOTE_INVALIDATE.bits();
    let known = Access::ALL.bits() | invalidate | HUGETLB | OPTIONAL;
    if bits & !known != 0 || (bits & writes != 0 && !access.contains(Access::LOCAL_WRITE)) {
        return Err(VerbsError::BadAccess { bits });
    }
    Ok(())
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
            |bytes, at, range| {
                bytes.copy_out(at, &mut out[range], crc.as_deref_mut());
            },
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
            |bytes, at, range| {
                bytes.copy_in(at, &data[range], crc.as_deref_mut());
            },
        )
    }

    fn check_remote(
        &self,
        pd: PdId,
        key: Rkey,
        addr: u64,
        length: u32,
        access: Access,
    ) -> Result<(), MemoryFault> {
        if length == 0 {
            return Ok(());
        }
        self.range(pd, key.0, addr, u64::from(length), access)
            .map(|_| ())
    }

    fn read(
        &self,
        pd: PdId,
        key: Rkey,
        addr: u64,
        out: &mut [u8],
        crc: Option<&mut Crc>,
    ) -> Result<(), MemoryFault> {
        if out.is_empty() {
            return Ok(());
        }
        let (region, at) = self.range(pd, key.0, addr, out.len() as u64, Access::REMOTE_READ)?;
        region.bytes.copy_out(at, out, crc);
        Ok(())
    }

    #[inline]
    fn write(
        &self,
        pd: PdId,
        key: Rkey,
        addr: u64,
        data: &[u8],
        crc: Option<&mut Crc>,
    ) -> Result<(), MemoryFault> {
        if data.is_empty() {
            return Ok(());
        }
        let (region, at) = self.range(pd, key.0, addr, data.len() as u64, Access::REMOTE_WRITE)?;
        region.bytes.copy_in(at, data, crc);
        Ok(())
    }

    fn atomic(&self, pd: PdId, key: Rkey, addr: u64, op: AtomicOp) -> Result<u64, MemoryFault> {
        let (region, at) = self.range(pd, key.0, addr, 8, Access::REMOTE_ATOMIC)?;
        if !addr.is_multiple_of(8) {
            return Err(MemoryFault::Misaligned { addr });
        }
        Ok(region.bytes.atomic(at, op))
    }

    /// The key refuses all use, local too, until its owner deregisters it. Only of a region that
    /// was registered for that: any other one is none of the peer's business.
    fn invalidate(&mut self, pd: PdId, key: Rkey) -> Result<(), MemoryFault> {
        let (allowed, wanted) = (self.usable(pd, key.0)?.access, Access::REMOTE_INVALIDATE);
        if !allowed.contains(wanted) {
            return Err(MemoryFault::NotAllowed {
                key: key.0,
                allowed: allowed.bits(),
                wanted: wanted.bits(),
            });
        }
        let index = self.secret.open(key.0) & (MAX_REGIONS - 1);
        let region = &mut self.regions[index];
        region.invalidated = true;
        if let Some(revoked) = &region.revoked {
            revoked.store(true, Ordering::Release);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
