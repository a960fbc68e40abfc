//! Registration: what happens once per node, whoever of its workers uses the memory then.

use super::binding::Windows;
use super::windows::{SLOT_BITS, Slot};
use super::{INDEX_BITS, MAX_REGIONS, Region, Regions};
use crate::chunks::{Chunks, chunks};
use crate::error::VerbsError;
use crate::key::Secret32;
use crate::rcu::{Removed, Table};
use crate::slab::Slab;
use crate::sync::{Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use trunkline_conn::mem::{Access, PdId, RegionMemory};
use trunkline_conn::secret::{Purpose, Secret, Stream};
use trunkline_wire::{Lkey, Rkey};

const SALT_MASK: u16 = 0xfff;
/// Flags that a provider may ignore (`IBV_ACCESS_OPTIONAL_RANGE`).
const OPTIONAL: u32 = 0x3ff0_0000;
/// The memory is of huge pages (`IBV_ACCESS_HUGETLB`): nothing to a NIC that copies.
const HUGETLB: u32 = 1 << 7;

/// What [`RegionTable::register`] gives.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Registered {
    /// Key for local work requests.
    pub lkey: Lkey,
    /// Key for peers; the same number.
    pub rkey: Rkey,
    /// Address of its first byte, as keys are used with it.
    pub iova: u64,
    /// Slot of the region.
    pub index: u32,
}

/// All regions and protection domains of a node. Clones are the same table.
#[derive(Debug)]
pub struct RegionTable<B> {
    regions: Arc<Table<Region<B>>>,
    pub(super) windows: Arc<Chunks<Slot, { chunks(SLOT_BITS) }>>,
    books: Arc<Mutex<Books>>,
}

impl<B> Clone for RegionTable<B> {
    fn clone(&self) -> Self {
        Self {
            regions: Arc::clone(&self.regions),
            windows: Arc::clone(&self.windows),
            books: Arc::clone(&self.books),
        }
    }
}

/// What only those who register and deregister need.
#[derive(Debug)]
pub(super) struct Books {
    /// The key and the domain of each region.
    regions: Slab<(u32, PdId)>,
    /// Salt of the last registration in each slot.
    salts: Vec<u16>,
    /// Registrations so far.
    registrations: u32,
    /// From which the first salt of a slot is drawn.
    pub(super) first_salts: Stream,
    pub(super) domains: Slab<Domain>,
    pub(super) secret: Secret32,
    pub(super) windows: Windows,
}

/// What is in a protection domain.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Domain {
    regions: u32,
    pub(super) others: u32,
}

impl<B: RegionMemory> RegionTable<B> {
    /// No regions and no domains; `secret` decides on their keys.
    pub fn new(secret: &Secret) -> Self {
        let books = Books {
            regions: Slab::new(),
            salts: Vec::new(),
            registrations: 0,
            first_salts: secret.stream(Purpose::RegionSalts),
            domains: Slab::new(),
            secret: Secret32::new(secret.stream(Purpose::RegionKeys)),
            windows: Windows::new(),
        };
        Self {
            regions: Table::new(),
            windows: Arc::new(Chunks::new()),
            books: Arc::new(Mutex::new(books)),
        }
    }

    pub(super) fn books(&self) -> MutexGuard<'_, Books> {
        self.books
            .lock()
            .expect("who panics with the books has broken their law")
    }

    /// The view of a further worker.
    pub fn view(&self) -> Regions<B> {
        Regions {
            table: self.clone(),
            reader: self.regions.reader(),
            secret: self.books().secret.clone(),
        }
    }

    /// A new protection domain (`ibv_alloc_pd(3)`).
    pub fn alloc_pd(&self) -> PdId {
        PdId(self.books().domains.insert(Domain::default()))
    }

    /// Ends a protection domain (`ibv_dealloc_pd(3)`).
    ///
    /// # Errors
    /// There is no such domain, or something is still in it.
    pub fn dealloc_pd(&self, pd: PdId) -> Result<(), VerbsError> {
        let mut books = self.books();
        let domain = *books.domain(pd)?;
        let users = domain.regions.saturating_add(domain.others);
        if users != 0 {
            return Err(VerbsError::Busy {
                what: "protection domain",
                users,
            });
        }
        books.domains.remove(pd.0);
        Ok(())
    }

    /// Puts a QP or an SRQ into a domain.
    ///
    /// # Errors
    /// There is no such domain.
    pub fn pd_ref(&self, pd: PdId) -> Result<(), VerbsError> {
        self.books().domain(pd)?.others += 1;
        Ok(())
    }

    /// Takes it out again.
    ///
    /// # Panics
    /// When nothing was put in.
    pub fn pd_unref(&self, pd: PdId) {
        let others = &mut self.books().domains[pd.0].others;
        *others = others
            .checked_sub(1)
            .expect("whatever leaves a domain was put into it");
    }

    /// Registers memory (`ibv_reg_mr(3)`) with all workers. Its iova is its virtual address; with
    /// [`Access::ZERO_BASED`] it is 0.
    ///
    /// # Errors
    /// As [`register_at`](Self::register_at).
    pub fn register(&self, pd: PdId, bytes: B, access: Access) -> Result<Registered, VerbsError> {
        let iova = match access.contains(Access::ZERO_BASED) {
            true => 0,
            false => bytes.addr(),
        };
        self.register_at(pd, bytes, iova, access)
    }

    /// Registers memory with all workers under the addresses from `iova` on
    /// (`ibv_reg_mr_iova(3)`): so peers and work requests name it.
    ///
    /// # Errors
    /// Remote writes or atomics without local writes, or flags that mean nothing;
    /// [`Access::ZERO_BASED`] with another iova than 0; no bytes, which `ibv_reg_mr(3)` of Linux
    /// refuses, too; a range, of addresses or of memory, that wraps around; no such domain;
    /// [`MAX_REGIONS`] regions already.
    pub fn register_at(
        &self,
        pd: PdId,
        bytes: B,
        iova: u64,
        access: Access,
    ) -> Result<Registered, VerbsError> {
        check_access(access, iova)?;
        let length = check_range(&bytes, iova)?;
        let mut books = self.books();
        let (index, key) = books.enter(pd)?;
        let region = Region {
            iova,
            length,
            key,
            registration: books.next_registration(),
            pd,
            access,
            invalidated: AtomicBool::new(false),
            bytes,
        };
        self.regions.insert(index, Box::new(region));
        Ok(Registered {
            lkey: Lkey(key),
            rkey: Rkey(key),
            iova,
            index,
        })
    }

    /// Changes a registration (`ibv_rereg_mr(3)`): whoever uses the key finds the old one or the
    /// new one, and from now on the new one. A worker may be using the old memory still.
    ///
    /// The key stays, unless the region was invalidated: then it gets a new one.
    ///
    /// # Errors
    /// There is no such key; [`VerbsError::Busy`] while windows are bound to the region; those of
    /// [`register_at`](Self::register_at). The region is then as it
    /// was.
    pub fn reregister(
        &self,
        key: Rkey,
        pd: PdId,
        bytes: B,
        iova: u64,
        access: Access,
    ) -> Result<(Registered, Unregistered<B>), VerbsError> {
        check_access(access, iova)?;
        let length = check_range(&bytes, iova)?;
        let mut books = self.books();
        let index = books.known(key)?;
        books.check_unbound(index)?;
        let reader = self.regions.reader();
        let old = reader.get(index).expect("the books list what is there");
        let revoked = old.invalidated.load(Ordering::Acquire);
        let key = books.change(index, pd, revoked)?;
        let region = Region {
            iova,
            length,
            key,
            registration: books.next_registration(),
            pd,
            access,
            invalidated: AtomicBool::new(false),
            bytes,
        };
        // This reader is none that has to rest.
        drop(reader);
        let removed = self.regions.replace(index, Box::new(region));
        let registered = Registered {
            lkey: Lkey(key),
            rkey: Rkey(key),
            iova,
            index,
        };
        Ok((registered, Unregistered(removed)))
    }

    /// Ends a registration (`ibv_dereg_mr(3)`), also of a key that a peer invalidated: nobody finds
    /// the region from now on. A worker may be using its memory still.
    ///
    /// # Errors
    /// There is no such key; [`VerbsError::Busy`] while windows are bound to the region.
    pub fn unregister(&self, key: Rkey) -> Result<Unregistered<B>, VerbsError> {
        let mut books = self.books();
        let index = books.known(key)?;
        books.check_unbound(index)?;
        Ok(self.remove(&mut books, index))
    }

    /// The same, and ends all binds of windows to the region before.
    ///
    /// # Errors
    /// There is no such key.
    pub fn unregister_with_windows(&self, key: Rkey) -> Result<Unregistered<B>, VerbsError> {
        let mut books = self.books();
        let index = books.known(key)?;
        self.unbind_region(&mut books, index);
        Ok(self.remove(&mut books, index))
    }

    fn remove(&self, books: &mut Books, index: u32) -> Unregistered<B> {
        books.leave(index);
        let removed = self.regions.remove(index);
        Unregistered(removed.expect("the books list what is there"))
    }

    /// Regions.
    pub fn len(&self) -> usize {
        self.books().regions.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Books {
    pub(super) fn domain(&mut self, pd: PdId) -> Result<&mut Domain, VerbsError> {
        self.domains
            .get_mut(pd.0)
            .ok_or(VerbsError::UnknownPd { pd: pd.0 })
    }

    /// Slot and key of a region that is new.
    fn enter(&mut self, pd: PdId) -> Result<(u32, u32), VerbsError> {
        let index = self.regions.next_index();
        if index >= MAX_REGIONS {
            return Err(VerbsError::Limit {
                what: "memory regions",
                limit: u64::from(MAX_REGIONS),
            });
        }
        self.domain(pd)?.regions += 1;
        if index as usize == self.salts.len() {
            let random = self.first_salts.next_u64();
            self.salts.push(random as u16 & SALT_MASK);
        }
        let key = self.next_key(index);
        let inserted = self.regions.insert((key, pd));
        assert_eq!(inserted, index, "the slab says where it inserts");
        Ok((index, key))
    }

    /// What tells the next registration from others.
    fn next_registration(&mut self) -> u32 {
        self.registrations = self.registrations.wrapping_add(1);
        self.registrations
    }

    /// The next key of a slot.
    fn next_key(&mut self, index: u32) -> u32 {
        loop {
            let salt = &mut self.salts[index as usize];
            *salt = salt.wrapping_add(1) & SALT_MASK;
            let key = self.secret.seal(index | u32::from(*salt) << INDEX_BITS);
            // Of the keys of a slot hardly one is a window's.
            if !self.is_window(key) {
                return key;
            }
        }
    }

    /// The slot of the region that has a key.
    pub(super) fn known(&self, key: Rkey) -> Result<u32, VerbsError> {
        let index = self.secret.open(key.0) & (MAX_REGIONS - 1);
        let entry = self.regions.get(index).filter(|(its, _)| *its == key.0);
        let found = entry.map(|_| index);
        found.ok_or(VerbsError::UnknownKey { key: key.0 })
    }

    /// Checks that no window is bound to a region.
    pub(super) fn check_unbound(&self, index: u32) -> Result<(), VerbsError> {
        match self.windows.of_region(index) {
            0 => Ok(()),
            users => Err(VerbsError::Busy {
                what: "memory region",
                users,
            }),
        }
    }

    /// Moves a region to a domain, and gives it a new key where its own was `revoked`. Returns its
    /// key.
    fn change(&mut self, index: u32, pd: PdId, revoked: bool) -> Result<u32, VerbsError> {
        self.domain(pd)?.regions += 1;
        let (old_key, old_pd) = self.regions[index];
        self.domains[old_pd.0].regions -= 1;
        let key = match revoked {
            true => self.next_key(index),
            false => old_key,
        };
        self.regions[index] = (key, pd);
        Ok(key)
    }

    /// Frees the slot of a region.
    fn leave(&mut self, index: u32) {
        let (_, pd) = self.regions.remove(index);
        self.domains[pd.0].regions -= 1;
    }
}

/// A region that nobody finds any more. Its memory may be used for other things once each worker of
/// the node has rested since ([`quiesced`](Self::quiesced)): that is between two of its calls.
#[derive(Debug)]
pub struct Unregistered<B>(Removed<Region<B>>);

impl<B> Unregistered<B> {
    /// A worker is in no call.
    pub fn quiesced(&mut self, worker: &mut Regions<B>) {
        self.0.quiesced(&mut worker.reader);
    }

    /// Returns the memory. `None` where some worker has not rested: it stays registered with
    /// nobody, and is given back with the last worker's view.
    pub fn reclaim(self) -> Option<B> {
        Some(self.0.reclaim()?.bytes)
    }
}

/// Checks that memory has bytes and that neither their addresses nor those from `iova` on wrap
/// around. Returns how many bytes there are.
fn check_range(bytes: &impl RegionMemory, iova: u64) -> Result<u64, VerbsError> {
    let length = bytes.len() as u64;
    if length == 0 {
        return Err(VerbsError::EmptyRegion);
    }
    for addr in [bytes.addr(), iova] {
        if addr.checked_add(length).is_none() {
            return Err(VerbsError::BadRange { addr, length });
        }
    }
    Ok(length)
}

/// What `ibv_reg_mr(3)` says about access flags.
fn check_access(access: Access, iova: u64) -> Result<(), VerbsError> {
    let bits = access.bits();
    let writes = Access::REMOTE_WRITE.bits() | Access::REMOTE_ATOMIC.bits();
    let others = Access::REMOTE_INVALIDATE
        .with(Access::ZERO_BASED)
        .with(Access::MW_BIND)
        .bits();
    let known = Access::ALL.bits() | others | HUGETLB | OPTIONAL;
    if bits & !known != 0 {
        let why = "some of them mean nothing";
        return Err(VerbsError::BadAccess { bits, why });
    }
    if bits & writes != 0 && !access.contains(Access::LOCAL_WRITE) {
        let why = "remote writes and atomics need LOCAL_WRITE";
        return Err(VerbsError::BadAccess { bits, why });
    }
    if access.contains(Access::ZERO_BASED) && iova != 0 {
        let why = "ZERO_BASED regions begin at iova 0";
        return Err(VerbsError::BadAccess { bits, why });
    }
    Ok(())
}
