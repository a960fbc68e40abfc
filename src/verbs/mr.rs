//! Protection domains and memory regions.

use crate::error::Error;
use crate::node::life::Down;
use crate::node::shared::Shared;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use trunkline_conn::mem::{Access, AtomicOp, PdId, RegionMemory, Sge};
use trunkline_conn::work::Remote;
use trunkline_dataplane::Region;
use trunkline_wire::{Lkey, Rkey};

/// A protection domain (`ibv_alloc_pd(3)`). Freed when the last clone and everything in it is gone.
#[derive(Clone)]
pub struct Pd(pub(crate) Arc<PdInner>);

pub(crate) struct PdInner {
    pub(crate) node: Arc<Shared>,
    /// `None`: its node was down when it was made.
    pub(crate) id: Option<PdId>,
}

impl Drop for PdInner {
    fn drop(&mut self) {
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
        Ok(self.id.ok_or(Down::ShutDown)?)
    }
}

impl fmt::Debug for Pd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = &self.0.id;
        f.debug_struct("Pd").field("id", id).finish_non_exhaustive()
    }
}

impl Pd {
    /// Allocates `length` zeroed bytes and registers them for `access`.
    ///
    /// # Errors
    /// No memory, no key left, no bytes, or remote rights without [`Access::LOCAL_WRITE`].
    pub fn register(&self, length: usize, access: Access) -> Result<Mr, Error> {
        let region = Region::allocate(length).map_err(Error::system("mmap"))?;
        self.register_region(region, access)
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
        self.register_region(region, access)
    }

    fn register_region(&self, region: Region, access: Access) -> Result<Mr, Error> {
        let node = &self.0.node;
        let id = self.0.id()?;
        let keys = node.regions()?.register(id, region.clone(), access)?;
        Ok(Mr {
            pd: self.clone(),
            region,
            lkey: keys.lkey,
            rkey: keys.rkey,
        })
    }
}

/// A registered memory region (`ibv_reg_mr(3)`).
///
/// It owns its memory and copies in and out: peers may change the bytes at any time, so there is no
/// reference to them. Dropping it deregisters; leaking it leaves memory registered, which is sound.
pub struct Mr {
    pd: Pd,
    region: Region,
    lkey: Lkey,
    rkey: Rkey,
}

impl fmt::Debug for Mr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mr")
            .field("addr", &format_args!("{:#x}", self.addr()))
            .field("len", &self.len())
            .field("lkey", &format_args!("{}", self.lkey))
            .field("rkey", &format_args!("{}", self.rkey))
            .finish_non_exhaustive()
    }
}

impl Mr {
    /// Virtual address of the first byte, as peers name it.
    pub fn addr(&self) -> u64 {
        self.region.addr()
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.region.len()
    }

    /// Returns false: every region has bytes.
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Key for work requests of this node.
    pub const fn lkey(&self) -> Lkey {
        self.lkey
    }

    /// Key for peers.
    pub const fn rkey(&self) -> Rkey {
        self.rkey
    }

    /// A scatter-gather element of `length` bytes from `offset` on. Whether the range fits is
    /// checked when it is used, as in verbs. An element holds less than 2^32 bytes, and no message
    /// more than 2^31: a greater length becomes 2^32 - 1, with which no request can be posted.
    pub fn sge(&self, offset: usize, length: usize) -> Sge {
        Sge {
            addr: self.addr().wrapping_add(offset as u64),
            length: u32::try_from(length).unwrap_or(u32::MAX),
            lkey: self.lkey,
        }
    }

    /// How a peer names the byte at `offset`.
    pub fn remote(&self, offset: usize) -> Remote {
        Remote {
            addr: self.addr().wrapping_add(offset as u64),
            rkey: self.rkey,
        }
    }

    /// Copies `data` in.
    ///
    /// # Errors
    /// [`Error::OutOfRegion`]
    pub fn write(&self, offset: usize, data: &[u8]) -> Result<(), Error> {
        self.check(offset, data.len())?;
        self.region.copy_in(offset, data, None);
        Ok(())
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// [`Error::OutOfRegion`]
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        self.check(offset, out.len())?;
        self.region.copy_out(offset, out, None);
        Ok(())
    }

    /// Runs an atomic on the 8 bytes at `offset`; atomic also towards peers' atomics.
    ///
    /// # Errors
    /// [`Error::OutOfRegion`]; [`Error::Misaligned`] when the address is not a multiple of 8.
    pub fn atomic(&self, offset: usize, op: AtomicOp) -> Result<u64, Error> {
        self.check(offset, 8)?;
        if !self.addr().wrapping_add(offset as u64).is_multiple_of(8) {
            return Err(Error::Misaligned { offset });
        }
        Ok(self.region.atomic(offset, op))
    }

    fn check(&self, offset: usize, length: usize) -> Result<(), Error> {
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
        let node = &self.pd.0.node;
        let taken = node.deregister(self.rkey);
        node.gave_up(taken, "an Mr is registered as long as it lives");
    }
}
