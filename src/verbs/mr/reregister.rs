//! Changing what a memory region is registered as.

use super::{Mr, Pd};
use crate::attached::{Memory, Registration};
use crate::error::Error;
use std::ptr::NonNull;
use std::sync::Arc;
use trunkline_conn::mem::{Access, RegionMemory};
use trunkline_dataplane::Region;

/// What [`Mr::reregister`] changes (`ibv_rereg_mr(3)`). What is not named stays as it is.
#[derive(Debug, Default)]
pub struct Reregister<'a> {
    pd: Option<&'a Pd>,
    access: Option<Access>,
    memory: Option<Region>,
    iova: Option<u64>,
}

impl<'a> Reregister<'a> {
    /// Returns a change of nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Moves the region to another protection domain (`IBV_REREG_MR_CHANGE_PD`).
    #[must_use]
    pub const fn pd(mut self, pd: &'a Pd) -> Self {
        self.pd = Some(pd);
        self
    }

    /// Gives it other rights (`IBV_REREG_MR_CHANGE_ACCESS`).
    #[must_use]
    pub const fn access(mut self, access: Access) -> Self {
        self.access = Some(access);
        self
    }

    /// Gives it `length` zeroed bytes instead of its memory (`IBV_REREG_MR_CHANGE_TRANSLATION`).
    ///
    /// # Errors
    /// No memory.
    pub fn allocate(mut self, length: usize) -> Result<Self, Error> {
        self.memory = Some(Region::allocate(length).map_err(Error::system("mmap"))?);
        Ok(self)
    }

    /// Gives it memory that the program already has (`IBV_REREG_MR_CHANGE_TRANSLATION`).
    ///
    /// # Safety
    /// As [`Pd::register_foreign`], from now until the [`Mr`] has other memory or is dropped.
    #[must_use]
    pub unsafe fn foreign(mut self, address: NonNull<u8>, length: usize) -> Self {
        // SAFETY: the caller promises what `Region::foreign` asks for.
        self.memory = Some(unsafe { Region::foreign(address, length) });
        self
    }

    /// Gives it another iova. Without one, new memory has its own address, and a region that has or
    /// gets [`Access::ZERO_BASED`] begins at 0.
    #[must_use]
    pub const fn iova(mut self, iova: u64) -> Self {
        self.iova = Some(iova);
        self
    }
}

impl Mr {
    /// Changes memory, iova, protection domain and rights (`ibv_rereg_mr(3)`), in any combination
    /// and all at once: a request or packet finds the region as it was or as it is then.
    ///
    /// When this returns nobody touches the old memory any more. What is under way goes on with the
    /// region as it is now: each further packet is checked against it, and a request that it does
    /// not allow ends with an error.
    ///
    /// The keys stay, but for those of a region that was invalidated: it is valid again, under
    /// new keys, so that whoever has only the old one stays out. A program that is to run with any
    /// provider reads both keys again, as the manual page asks.
    ///
    /// # Errors
    /// As [`Pd::register_iova`]; a PD of another node. The region is then as it was: none of the
    /// cases is left in which the manual page lets a region become invalid. A node that has failed
    /// or belongs to another process.
    ///
    /// ```no_run
    /// use trunkline::{Access, Mr, Reregister};
    ///
    /// # fn program(mr: &mut Mr) -> Result<(), trunkline::Error> {
    /// let read_only = Reregister::new().access(Access::REMOTE_READ);
    /// mr.reregister(read_only.allocate(1 << 20)?)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn reregister(&mut self, change: Reregister<'_>) -> Result<(), Error> {
        let node = &self.pd.0.node;
        let pd = change.pd.unwrap_or(&self.pd);
        pd.0.node.check_same(node, "PD")?;
        let access = change.access.unwrap_or(self.access);
        let own = match &change.memory {
            _ if access.contains(Access::ZERO_BASED) => 0,
            Some(memory) => memory.addr(),
            None => self.iova(),
        };
        let iova = change.iova.unwrap_or(own);
        let (pd, node) = (pd.clone(), Arc::clone(node));
        let memory = change
            .memory
            .map(|region| Memory::foreign(&node, region, access));
        let taken = if let (Some(client), Some(mr)) = (node.client(), self.served) {
            let how = Registration {
                pd: pd.0.served()?,
                iova,
                access,
            };
            self.keys = client.reregister(mr, memory.as_ref(), &how)?;
            None
        } else {
            let (regions, id) = (node.regions()?, pd.0.id()?);
            let reach = memory.as_ref().unwrap_or(&self.memory).reach();
            let (registered, taken) = regions.reregister(self.rkey(), id, reach, iova, access)?;
            self.keys = registered.into();
            Some(taken)
        };
        self.access = access;
        let old = memory.map(|memory| std::mem::replace(&mut self.memory, memory));
        let left = std::mem::replace(&mut self.pd, pd);
        let outcome = taken.map_or(Ok(()), |taken| node.retire(taken));
        drop((old, left));
        outcome
    }
}
