//! Allocation and binding of memory windows: what happens under the lock of the table.

use super::table::Books;
use super::windows::{Binding, MAX_WINDOWS, SLOT_BITS, Slot, TAG};
use super::{MAX_REGIONS, RegionTable, Regions};
use crate::error::VerbsError;
use crate::slab::Slab;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use trunkline_conn::mem::{Access, MemoryFault, PdId, RegionMemory, Responder};
use trunkline_conn::work::BindMw;
use trunkline_wire::{Qpn, Rkey};

/// The types of memory windows, with the values of `enum ibv_mw_type`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum MwType {
    /// Type 1: any peer of the protection domain may use it, and each bind replaces the last.
    Type1 = 1,
    /// Type 2B: only the peer of the QP that bound it may use it, until it is invalidated.
    Type2 = 2,
}

/// The windows of a node, as its books list them.
#[derive(Debug)]
pub(super) struct Windows {
    all: Slab<Window>,
    salts: Vec<u16>,
    /// Of each region, by its slot, and of each QP: the windows bound to it.
    of_regions: BTreeSet<(u32, u32)>,
    of_qps: BTreeSet<(u32, u32)>,
}

#[derive(Debug)]
struct Window {
    kind: MwType,
    pd: PdId,
    /// Its key, with the tag 0.
    base: u32,
    /// Slot of the region and, of type 2, the QP that it is bound to.
    bound: Option<(u32, u32)>,
}

/// All pairs that begin with `first`.
fn with(set: &BTreeSet<(u32, u32)>, first: u32) -> Vec<u32> {
    let pairs = set.range((first, 0)..=(first, u32::MAX));
    pairs.map(|(_, window)| *window).collect()
}

impl Windows {
    pub(super) const fn new() -> Self {
        Self {
            all: Slab::new(),
            salts: Vec::new(),
            of_regions: BTreeSet::new(),
            of_qps: BTreeSet::new(),
        }
    }

    /// Windows that are bound to a region.
    pub(super) fn of_region(&self, region: u32) -> u32 {
        let pairs = self.of_regions.range((region, 0)..=(region, u32::MAX));
        pairs.count() as u32
    }

    /// Takes a window off the lists of what it is bound to.
    fn unlist(&mut self, index: u32) {
        if let Some((region, qpn)) = self.all[index].bound.take() {
            self.of_regions.remove(&(region, index));
            self.of_qps.remove(&(qpn, index));
        }
    }
}

impl Books {
    /// Whether a window may have this key, whatever the tag.
    pub(super) fn is_window(&self, key: u32) -> bool {
        self.window(key).is_some()
    }

    fn window(&self, key: u32) -> Option<u32> {
        let index = self.secret.open(key & !TAG) & (MAX_WINDOWS - 1);
        let window = self.windows.all.get(index)?;
        (window.base == key & !TAG).then_some(index)
    }

    /// The next key of a window's slot: no region has it with any tag.
    fn next_base(&mut self, index: u32) -> u32 {
        if index as usize == self.windows.salts.len() {
            let random = self.first_salts.next_u64();
            self.windows.salts.push(random as u16);
        }
        // One salt of 256 does, so each slot has about 256 keys, and some for certain.
        for _ in 0..1 << 17 {
            let salt = &mut self.windows.salts[index as usize];
            *salt = salt.wrapping_add(1);
            let base = self.secret.seal(index | u32::from(*salt) << SLOT_BITS);
            let region = |tag| self.known(Rkey(base | tag)).is_ok();
            if base & TAG == 0 && !(0..=TAG).any(region) {
                return base;
            }
        }
        unreachable!("some of 65,536 salts end in 0")
    }
}

impl<B: RegionMemory> RegionTable<B> {
    /// Allocates a memory window (`ibv_alloc_mw(3)`). Returns its key, which lets nobody do
    /// anything before the window is bound.
    ///
    /// # Errors
    /// No such domain; [`MAX_WINDOWS`] windows already.
    pub fn alloc_mw(&self, pd: PdId, kind: MwType) -> Result<Rkey, VerbsError> {
        let mut books = self.books();
        let index = books.windows.all.next_index();
        if index >= MAX_WINDOWS {
            return Err(VerbsError::Limit {
                what: "memory windows",
                limit: u64::from(MAX_WINDOWS),
            });
        }
        books.domain(pd)?.others += 1;
        let base = books.next_base(index);
        books.windows.all.insert(Window {
            kind,
            pd,
            base,
            bound: None,
        });
        self.windows.get_or_grow(index);
        Ok(Rkey(base))
    }

    /// Frees a memory window (`ibv_dealloc_mw(3)`), bound or not: its key names nothing any more.
    ///
    /// # Errors
    /// There is no such window.
    pub fn dealloc_mw(&self, key: Rkey) -> Result<(), VerbsError> {
        let mut books = self.books();
        let index = books
            .window(key.0)
            .ok_or(VerbsError::UnknownKey { key: key.0 })?;
        self.unbind(&mut books, index);
        let window = books.windows.all.remove(index);
        books.domains[window.pd.0].others -= 1;
        Ok(())
    }

    /// The QP is reset or gone: the windows that it bound are bound no more.
    pub fn unbind_qp(&self, qpn: Qpn) {
        let mut books = self.books();
        for index in with(&books.windows.of_qps, qpn.get()) {
            self.unbind(&mut books, index);
        }
    }

    /// Ends all binds of windows to the region in a slot.
    pub(super) fn unbind_region(&self, books: &mut Books, region: u32) {
        for index in with(&books.windows.of_regions, region) {
            self.unbind(books, index);
        }
    }

    fn slot(&self, index: u32) -> &Slot {
        self.windows.get_or_grow(index)
    }

    fn unbind(&self, books: &mut Books, index: u32) {
        self.slot(index).write(Binding::default());
        books.windows.unlist(index);
    }
}

impl<B: RegionMemory> Regions<B> {
    /// Binds a window of the domain of `by` (`IBV_WR_BIND_MW`): from now on its key is the new one,
    /// and no other names it. No bytes unbind a window of type 1.
    ///
    /// # Errors
    /// No such window or region; one of another domain; a window of type 2 that is bound, or of no
    /// bytes; a region without [`Access::MW_BIND`], or, for remote writes and atomics, without
    /// [`Access::LOCAL_WRITE`]; rights that no window has; a range outside of the region.
    pub fn bind(&self, by: Responder, op: &BindMw) -> Result<(), MemoryFault> {
        let key = op.rkey.0;
        let mut books = self.table.books();
        let unknown = MemoryFault::UnknownKey { key };
        let index = books.window(key).ok_or(unknown)?;
        let window = &books.windows.all[index];
        let (kind, pd) = (window.kind, window.pd);
        if pd != by.pd {
            return Err(MemoryFault::ForeignDomain { key });
        }
        let qpn = match kind {
            MwType::Type1 => 0,
            MwType::Type2 if window.bound.is_some() || op.length == 0 => return Err(unknown),
            MwType::Type2 => by.qpn.get(),
        };
        if op.length == 0 {
            self.table.unbind(&mut books, index);
            return Ok(());
        }
        let (region, offset) = self.range(pd, op.lkey.0, op.addr, op.length, needed(op.access))?;
        check_rights(op)?;
        let slot = self.secret.open(op.lkey.0) & (MAX_REGIONS - 1);
        let binding = Binding {
            key,
            pd,
            qpn,
            access: op.access,
            region: (slot, region.registration),
            start: match op.access.contains(Access::ZERO_BASED) {
                true => 0,
                false => op.addr,
            },
            offset: offset as u64,
            length: op.length,
        };
        books.windows.unlist(index);
        books.windows.all[index].bound = Some((slot, qpn));
        books.windows.of_regions.insert((slot, index));
        if kind == MwType::Type2 {
            books.windows.of_qps.insert((qpn, index));
        }
        self.table.slot(index).write(binding);
        Ok(())
    }

    /// Where a window with this key is bound.
    fn binding(&self, key: u32) -> Result<(u32, Binding), MemoryFault> {
        let index = self.secret.open(key & !TAG) & (MAX_WINDOWS - 1);
        let binding = self.table.windows.get(index).and_then(Slot::read);
        let bound = binding.filter(|binding| binding.key == key);
        let found = bound.map(|binding| (index, binding));
        found.ok_or(MemoryFault::UnknownKey { key })
    }

    /// The same, for a QP that may use it.
    pub(super) fn usable_window(
        &self,
        by: Responder,
        key: u32,
    ) -> Result<(u32, Binding), MemoryFault> {
        let (index, binding) = self.binding(key)?;
        if binding.pd != by.pd {
            return Err(MemoryFault::ForeignDomain { key });
        }
        if binding.qpn != 0 && binding.qpn != by.qpn.get() {
            return Err(MemoryFault::ForeignQp { key });
        }
        Ok((index, binding))
    }

    /// The region behind a window and the place of `addr` in it, if a peer may use `length` bytes
    /// from there on for `access`.
    #[cold]
    #[inline(never)]
    pub(super) fn range_of_window(
        &self,
        by: Responder,
        key: u32,
        (addr, length): (u64, u64),
        access: Access,
    ) -> Result<(&super::Region<B>, usize), MemoryFault> {
        let (_, binding) = self.usable_window(by, key)?;
        if !binding.access.contains(access) {
            return Err(MemoryFault::NotAllowed {
                key,
                allowed: binding.access.bits(),
                wanted: access.bits(),
            });
        }
        let offset = addr.wrapping_sub(binding.start);
        if offset > binding.length || length > binding.length - offset {
            return Err(MemoryFault::OutOfRange { key, addr, length });
        }
        self.bound_range(key, &binding, offset)
    }

    /// The place `offset` bytes into what a window was bound to, if that is registered still, as it
    /// was then.
    pub(super) fn bound_range(
        &self,
        key: u32,
        binding: &Binding,
        offset: u64,
    ) -> Result<(&super::Region<B>, usize), MemoryFault> {
        let (slot, registration) = binding.region;
        let found = self.reader.get(slot);
        let found = found.filter(|found| found.registration == registration);
        let valid = found.filter(|region| !region.invalidated.load(Ordering::Acquire));
        let region = valid.ok_or(MemoryFault::UnknownKey { key })?;
        Ok((region, (binding.offset + offset) as usize))
    }

    /// Ends the bind of a window of type 2, for its QP or that QP's peer.
    pub(super) fn invalidate_window(&self, by: Responder, key: u32) -> Result<(), MemoryFault> {
        self.usable_window(by, key)?;
        let mut books = self.table.books();
        // It may have been bound anew, or freed, until now.
        let (index, binding) = self.usable_window(by, key)?;
        if books.windows.all[index].kind != MwType::Type2 {
            return Err(MemoryFault::NotAllowed {
                key,
                allowed: binding.access.bits(),
                wanted: Access::REMOTE_INVALIDATE.bits(),
            });
        }
        self.table.unbind(&mut books, index);
        Ok(())
    }
}

/// What a region has to allow so that a window may have these rights.
const fn needed(access: Access) -> Access {
    let writes = Access::REMOTE_WRITE.bits() | Access::REMOTE_ATOMIC.bits();
    match access.bits() & writes {
        0 => Access::MW_BIND,
        _ => Access::MW_BIND.with(Access::LOCAL_WRITE),
    }
}

/// A window gives rights to peers, and no others.
fn check_rights(op: &BindMw) -> Result<(), MemoryFault> {
    let remote = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let allowed = (remote | Access::ZERO_BASED).bits();
    let wanted = op.access.bits();
    if wanted & !allowed == 0 {
        return Ok(());
    }
    let key = op.rkey.0;
    Err(MemoryFault::NotAllowed {
        key,
        allowed,
        wanted,
    })
}
