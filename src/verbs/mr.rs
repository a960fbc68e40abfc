//! Protection domains and memory regions.

mod reregister;

pub use reregister::Reregister;

use crate::attached::{Memory, Registration};
use crate::error::Error;
use crate::node::life::Down;
use crate::node::shared::Shared;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use trunkline_conn::mem::{Access, AtomicOp, PdId, RegionMemory, Sge};
use trunkline_conn::work::Remote;
use trunkline_dataplane::Region;
use trunkline_host::Handle;
use trunkline_qpmap::VerbsError;
use trunkline_qpmap::regions::{RegionTable, Registered};
use trunkline_wire::{Lkey, Rkey};

/// A protection domain (`ibv_alloc_pd(3)`). Freed when the last clone and everything in it is gone.
#[derive(Clone)]
pub struct Pd(pub(crate) Arc<PdInner>);

pub(crate) struct PdInner {
    pub(crate) node: Arc<Shared>,
    /// `None`: its node was down when it was made.
    id: Option<PdId>,
    /// What its service calls it, if one carries the node.
    served: Option<Handle>,
}

impl PdInner {
    pub(crate) fn alloc(node: &Arc<Shared>) -> Self {
        // There is always room for one more, so only a node that is down refuses, or a service.
        let (id, served) = match node.client() {
            None => (node.regions().ok().map(RegionTable::alloc_pd), None),
            Some(client) => match client.alloc_pd() {
                Ok((pd, id)) => (Some(id), Some(pd)),
                Err(_) => (None, None),
            },
        };
        let node = Arc::clone(node);
        Self { node, id, served }
    }
}

impl Drop for PdInner {
    fn drop(&mut self) {
        if let (Some(client), Some(pd)) = (self.node.client(), self.served) {
            return client.dealloc_pd(pd);
        }
        let Some(id) = self.id else { return };
        let freed = self
            .node
            .regions()
            .and_then(|regions| Ok(regions.dealloc_pd(id)?));
        self.node
            .gave_up(freed, "what belongs to a PD keeps it alive");
    }
}

impl PdInner {
    /// What the node knows it by.
    ///
    /// # Errors
    /// The node is down.
    pub(crate) fn id(&self) -> Result<PdId, Error> {
        self.node.life.check()?;
        let refused = || match self.node.client() {
            // As many as the service gives this program.
            Some(_) => VerbsError::InvalidArgument { what: "PD" }.into(),
            None => Error::from(Down::ShutDown),
        };
        self.id.ok_or_else(refused)
    }

    /// What its service calls it.
    ///
    /// # Errors
    /// The service refused to make it, or is gone.
    pub(crate) fn served(&self) -> Result<Handle, Error> {
        self.id()?;
        Ok(self.served.expect("a PD that was made has a name"))
    }
}

impl fmt::Debug for Pd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = &self.0.id;
        f.debug_struct("Pd").field("id", id).finish_non_exhaustive()
    }
}

impl Pd {
    /// Whether nobody else has a handle of it.
    pub(crate) fn is_last_handle(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// Allocates `length` zeroed bytes and registers them for `access`. With
    /// [`Access::ZERO_BASED`] peers and work requests name them by their offsets.
    ///
    /// # Errors
    /// No memory, no key left, no bytes, or remote rights without [`Access::LOCAL_WRITE`].
    pub fn register(&self, length: usize, access: Access) -> Result<Mr, Error> {
        // Nobody gives back what is allocated for a domain that was refused.
        self.0.id()?;
        let memory = Memory::allocate(&self.0.node, length, access)?;
        self.register_memory(memory, None, access)
    }

    /// Allocates `length` zeroed bytes and registers them for `access` under the addresses from
    /// `iova` on (`ibv_reg_mr_iova(3)`): so peers and work requests name them. Unlike hardware it
    /// takes any iova: it need not have the page offset of the memory.
    ///
    /// # Errors
    /// As [`register`](Self::register); addresses that wrap around; [`Access::ZERO_BASED`] with
    /// another iova than 0.
    ///
    /// ```no_run
    /// use trunkline::{Access, Node};
    ///
    /// # fn program(node: &Node) -> Result<(), trunkline::Error> {
    /// let mr = node.alloc_pd().register_iova(4096, 0x10_0000, Access::ALL)?;
    /// assert_eq!(mr.remote(8).addr, 0x10_0008);
    /// # Ok(())
    /// # }
    /// ```
    pub fn register_iova(&self, length: usize, iova: u64, access: Access) -> Result<Mr, Error> {
        // Nobody gives back what is allocated for a domain that was refused.
        self.0.id()?;
        let memory = Memory::allocate(&self.0.node, length, access)?;
        self.register_memory(memory, Some(iova), access)
    }

    /// Registers memory that the program already has.
    ///
    /// # Errors
    /// As [`register`](Self::register).
    ///
    /// # Safety
    /// The `length` bytes at `address` must stay mapped, readable and (for any write access)
    /// writable until the [`Mr`] is dropped, and the program must treat them like memory that a
    /// device writes: no references to bytes that a peer may change.
    pub unsafe fn register_foreign(
        &self,
        address: NonNull<u8>,
        length: usize,
        access: Access,
    ) -> Result<Mr, Error> {
        // SAFETY: the caller promises what `Region::foreign` asks for.
        let region = unsafe { Region::foreign(address, length) };
        let memory = Memory::foreign(&self.0.node, region, access);
        self.register_memory(memory, None, access)
    }

    /// Registers memory that the program already has under the addresses from `iova` on
    /// (`ibv_reg_mr_iova(3)`).
    ///
    /// # Errors
    /// As [`register_iova`](Self::register_iova).
    ///
    /// # Safety
    /// As [`register_foreign`](Self::register_foreign).
    pub unsafe fn register_foreign_iova(
        &self,
        address: NonNull<u8>,
        length: usize,
        iova: u64,
        access: Access,
    ) -> Result<Mr, Error> {
        // SAFETY: the caller promises what `Region::foreign` asks for.
        let region = unsafe { Region::foreign(address, length) };
        let memory = Memory::foreign(&self.0.node, region, access);
        self.register_memory(memory, Some(iova), access)
    }

    /// Registers memory under its own addresses, or those from an iova on.
    fn register_memory(
        &self,
        memory: Memory,
        iova: Option<u64>,
        access: Access,
    ) -> Result<Mr, Error> {
        let node = &self.0.node;
        let (keys, served) = match node.client() {
            None => {
                let (id, region) = (self.0.id()?, memory.reach());
                let regions = node.regions()?;
                let registered = match iova {
                    Some(iova) => regions.register_at(id, region, iova, access),
                    None => regions.register(id, region, access),
                }?;
                (registered.into(), None)
            }
            Some(client) => {
                let pd = self.0.served()?;
                let iova = iova.unwrap_or_else(|| memory.iova(access));
                let how = Registration { pd, iova, access };
                let (mr, keys) = client.register(&memory, &how)?;
                (keys, Some(mr))
            }
        };
        Ok(Mr {
            pd: self.clone(),
            memory,
            access,
            keys,
            served,
            is_over: false,
        })
    }
}

/// What a region is called in requests and by peers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keys {
    pub(crate) lkey: Lkey,
    pub(crate) rkey: Rkey,
    /// Address of its first byte.
    pub(crate) iova: u64,
}

impl From<Registered> for Keys {
    fn from(registered: Registered) -> Self {
        Self {
            lkey: registered.lkey,
            rkey: registered.rkey,
            iova: registered.iova,
        }
    }
}

/// A registered memory region (`ibv_reg_mr(3)`).
///
/// It owns its memory and copies in and out: peers may change the bytes at any time, so there is no
/// reference to them. Dropping it deregisters, and unbinds its windows before; leaking it leaves
/// memory registered, which is sound.
pub struct Mr {
    pd: Pd,
    memory: Memory,
    access: Access,
    keys: Keys,
    /// What its service calls it, if one carries the node.
    served: Option<Handle>,
    /// It was deregistered.
    is_over: bool,
}

impl fmt::Debug for Mr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mr")
            .field("addr", &format_args!("{:#x}", self.addr()))
            .field("iova", &format_args!("{:#x}", self.iova()))
            .field("len", &self.len())
            .field("lkey", &format_args!("{}", self.lkey()))
            .field("rkey", &format_args!("{}", self.rkey()))
            .finish_non_exhaustive()
    }
}

impl Mr {
    /// Virtual address of the first byte, in this program.
    pub fn addr(&self) -> u64 {
        self.memory.region.addr()
    }

    /// Address of the first byte as peers and work requests name it: [`addr`](Self::addr), unless
    /// it was registered with another one or for [`Access::ZERO_BASED`].
    pub const fn iova(&self) -> u64 {
        self.keys.iova
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.memory.region.len()
    }

    /// Bytes of it on which atomics of peers are atomic towards this program's own instructions:
    /// all of them in a node inside the program, and in memory that a service allocates for
    /// [`Pd::register`]; elsewhere those of promoted pages ([`Promotion`](crate::Promotion)).
    pub fn shared_len(&self) -> usize {
        self.memory.shared_len()
    }

    /// Returns false: every region has bytes.
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Key for work requests of this node.
    pub const fn lkey(&self) -> Lkey {
        self.keys.lkey
    }

    /// Key for peers.
    pub const fn rkey(&self) -> Rkey {
        self.keys.rkey
    }

    /// A scatter-gather element of `length` bytes from `offset` on. Whether the range fits is
    /// checked when it is used, as in verbs. An element holds less than 2^32 bytes, and no message
    /// more than 2^31: a greater length becomes 2^32 - 1, with which no request can be posted.
    pub fn sge(&self, offset: usize, length: usize) -> Sge {
        Sge {
            addr: self.iova().wrapping_add(offset as u64),
            length: u32::try_from(length).unwrap_or(u32::MAX),
            lkey: self.lkey(),
        }
    }

    /// How a peer names the byte at `offset`.
    pub fn remote(&self, offset: usize) -> Remote {
        Remote {
            addr: self.iova().wrapping_add(offset as u64),
            rkey: self.rkey(),
        }
    }

    /// Copies `data` in.
    ///
    /// # Errors
    /// [`Error::OutOfRegion`]; [`Down::Forked`] in a child of the program, if a service has
    /// allocated the memory: the child would write what its parent has.
    pub fn write(&self, offset: usize, data: &[u8]) -> Result<(), Error> {
        self.check(offset, data.len())?;
        self.memory.region.copy_in(offset, data, None);
        Ok(())
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        self.check(offset, out.len())?;
        self.memory.region.copy_out(offset, out, None);
        Ok(())
    }

    /// Runs an atomic on the 8 bytes at `offset`; atomic also towards peers' atomics.
    ///
    /// # Errors
    /// As [`write`](Self::write); [`Error::Misaligned`] when the address is not a multiple of 8.
    pub fn atomic(&self, offset: usize, op: AtomicOp) -> Result<u64, Error> {
        self.check(offset, 8)?;
        if !self.addr().wrapping_add(offset as u64).is_multiple_of(8) {
            return Err(Error::Misaligned { offset });
        }
        Ok(self.memory.region.atomic(offset, op))
    }

    /// Deregisters it (`ibv_dereg_mr(3)`), unless windows are bound to it. Where the service that
    /// carried the node is gone, the region is gone with it.
    ///
    /// # Errors
    /// [`VerbsError::Busy`] with the number of windows, and the region, which is as it was.
    #[expect(
        clippy::result_large_err,
        reason = "a region that stays comes back whole"
    )]
    pub fn deregister(mut self) -> Result<(), (Self, Error)> {
        if let (Some(client), Some(mr)) = (self.pd.0.node.client(), self.served) {
            return match client.deregister(mr, false) {
                // A service that is gone touches nothing any more.
                Ok(()) | Err(Error::Down(Down::Service { .. })) => {
                    self.is_over = true;
                    Ok(())
                }
                Err(error) => Err((self, error)),
            };
        }
        let regions = self.pd.0.node.regions();
        let taken = regions.and_then(|regions| Ok(regions.unregister(self.rkey())?));
        let taken = match taken {
            Ok(taken) => taken,
            Err(error) => return Err((self, error)),
        };
        self.is_over = true;
        let node = &self.pd.0.node;
        // A worker that failed touches nothing any more.
        node.gave_up(node.retire(taken), "the region was registered");
        Ok(())
    }

    fn check(&self, offset: usize, length: usize) -> Result<(), Error> {
        self.memory.check_own(&self.pd.0.node)?;
        match offset.checked_add(length) {
            Some(end) if end <= self.len() => Ok(()),
            _ => Err(Error::OutOfRegion {
                offset,
                length,
                size: self.len(),
            }),
        }
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let node = &self.pd.0.node;
        if let (Some(client), Some(mr)) = (node.client(), self.served) {
            // A service that is gone touches nothing any more.
            let _ = client.deregister(mr, true);
            return;
        }
        let taken = node.deregister(self.rkey());
        node.gave_up(taken, "an Mr is registered as long as it lives");
    }
}
