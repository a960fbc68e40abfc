//! Protection domains, regions and windows of the program.

use super::promotion::Promotable;
use super::{Client, words_of};
use crate::error::Error;
use crate::node::shared::Shared;
use crate::platform::Reach;
use crate::verbs::mr::Keys;
use std::sync::Arc;
use trunkline_conn::mem::{Access, PdId, RegionMemory};
use trunkline_dataplane::Region;
use trunkline_host::control::answers::{
    Done, MemoryAllocated, MrRegistered, MwAllocated, PdAllocated,
};
use trunkline_host::control::attributes::{MwKind, RegionPlace};
use trunkline_host::control::requests::{
    AllocMemory, AllocMw, AllocPd, CheckPeer, DeallocMw, DeallocPd, DeregisterMr, FreeMemory,
    RegisterMr, ReregisterMr,
};
use trunkline_host::pieces::MAX_WORDS;
use trunkline_host::{Handle, Words};
use trunkline_qpmap::regions::MwType;
use trunkline_qpmap::ring::RingMemory;
use trunkline_wire::{Gid, Rkey};

/// Memory of the program for a region.
#[derive(Debug)]
pub(crate) struct Memory {
    /// Pages of it that are promoted are its own again before it is gone itself.
    source: Source,
    pub(crate) region: Region,
}

/// Whose memory it is.
#[derive(Debug)]
enum Source {
    /// The program's, of a node inside it.
    Inside,
    /// A service's, which both share and the service calls so.
    Segment(Handle),
    /// The program's, which the service reaches through `/proc/self/mem`, but for what is promoted.
    /// Regions of nodes inside a program stay small.
    Foreign(Box<Promotable>),
}

impl Memory {
    /// Memory of the program's own, for a region of that node.
    pub(crate) fn foreign(node: &Shared, region: Region, access: Access) -> Self {
        let source = match node.client() {
            Some(client) => Source::Foreign(Box::new(client.promoter.hold(&region, access))),
            None => Source::Inside,
        };
        Self { source, region }
    }

    /// New zeroed memory for a region of that node.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn allocate(node: &Shared, length: usize, access: Access) -> Result<Self, Error> {
        if let Some(client) = node.client()
            && let Some(memory) = client.allocate(length)?
        {
            return Ok(memory);
        }
        let region = Region::allocate(length).map_err(Error::system("mmap"))?;
        Ok(Self::foreign(node, region, access))
    }

    /// How a node inside the program reaches it.
    pub(crate) fn reach(&self) -> Reach {
        Reach::Mapped(self.region.clone())
    }

    /// Address of its first byte for requests and peers, unless the program chooses another one.
    pub(crate) fn iova(&self, access: Access) -> u64 {
        match access.contains(Access::ZERO_BASED) {
            true => 0,
            false => self.region.addr(),
        }
    }

    /// Whether this process may touch it.
    ///
    /// # Errors
    /// It is a child of the one that shares it with a service.
    pub(crate) fn check_own(&self, node: &Shared) -> Result<(), Error> {
        match &self.source {
            Source::Segment(_) => Ok(node.life.check_own()?),
            Source::Inside | Source::Foreign(_) => Ok(()),
        }
    }

    /// Bytes of it that are in this process and in the one that carries the node.
    pub(crate) fn shared_len(&self) -> usize {
        match &self.source {
            Source::Inside | Source::Segment(_) => self.region.len(),
            Source::Foreign(promotable) => promotable.shared_len(),
        }
    }

    fn place(&self) -> RegionPlace {
        let addr = self.region.addr();
        match &self.source {
            Source::Segment(memory) => RegionPlace::Shared {
                memory: *memory,
                offset: 0,
            },
            Source::Foreign(promotable) => promotable.place(addr),
            Source::Inside => RegionPlace::Foreign { addr },
        }
    }
}

/// How a region is to be registered.
pub(crate) struct Registration {
    pub(crate) pd: Handle,
    pub(crate) iova: u64,
    pub(crate) access: Access,
}

impl Client {
    pub(crate) fn alloc_pd(&self) -> Result<(Handle, PdId), Error> {
        let PdAllocated { pd, domain } = self.ask(AllocPd {})?;
        Ok((pd, PdId(domain)))
    }

    pub(crate) fn dealloc_pd(&self, pd: Handle) {
        self.destroy(DeallocPd { pd });
    }

    /// Zeroed memory for a region that is shared with the service; `None`: that has no room for it.
    fn allocate(&self, length: usize) -> Result<Option<Memory>, Error> {
        let words = length.div_ceil(size_of::<u64>());
        let words = u32::try_from(words)
            .ok()
            .filter(|words| *words <= MAX_WORDS);
        let Some(words) = words.filter(|words| *words > 0) else {
            return Ok(None);
        };
        let place = |allocated: &MemoryAllocated| (allocated.piece, allocated.new_segment);
        let allocated = self.line.ask_for_piece(AllocMemory { words }, place);
        let (MemoryAllocated { memory, .. }, piece, _) = match allocated {
            Ok(allocated) => allocated,
            Err(Error::Refused { .. } | Error::Verbs(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        let piece = piece.inspect_err(|_| self.destroy(FreeMemory { memory }))?;
        let region = Region::of_words(Arc::new(words_of(piece)), Words::as_slice);
        let region = region.part(0, length).expect("there are as many words");
        Ok(Some(Memory {
            region,
            source: Source::Segment(memory),
        }))
    }

    /// The service keeps the memory for as long as it is registered.
    fn let_go(&self, memory: &Memory) {
        if let Source::Segment(memory) = memory.source {
            self.destroy(FreeMemory { memory });
        }
    }

    pub(crate) fn register(
        &self,
        memory: &Memory,
        how: &Registration,
    ) -> Result<(Handle, Keys), Error> {
        let request = RegisterMr {
            pd: how.pd,
            iova: how.iova,
            length: memory.region.len() as u64,
            access: how.access,
            place: memory.place(),
        };
        let registered = self.ask::<MrRegistered>(request);
        self.let_go(memory);
        let registered = registered?;
        Ok((registered.mr, keys(&registered)))
    }

    /// Without `memory` that stays what it was.
    pub(crate) fn reregister(
        &self,
        mr: Handle,
        memory: Option<&Memory>,
        how: &Registration,
    ) -> Result<Keys, Error> {
        let request = ReregisterMr {
            mr,
            pd: how.pd,
            iova: how.iova,
            length: memory.map_or(0, |memory| memory.region.len() as u64),
            access: how.access,
            place: memory.map(Memory::place),
        };
        let registered = self.ask::<MrRegistered>(request);
        if let Some(memory) = memory {
            self.let_go(memory);
        }
        Ok(keys(&registered?))
    }

    /// Ends a registration; unless windows are `unbind`ed, those that are bound keep it.
    pub(crate) fn deregister(&self, mr: Handle, unbind: bool) -> Result<(), Error> {
        let Done {} = self.ask(DeregisterMr { mr, unbind })?;
        Ok(())
    }

    pub(crate) fn alloc_mw(&self, pd: Handle, kind: MwType) -> Result<(Handle, Rkey), Error> {
        let kind = match kind {
            MwType::Type1 => MwKind::Type1,
            MwType::Type2 => MwKind::Type2,
        };
        let MwAllocated { mw, rkey } = self.ask(AllocMw { pd, kind })?;
        Ok((mw, rkey))
    }

    pub(crate) fn dealloc_mw(&self, mw: Handle) {
        self.destroy(DeallocMw { mw });
    }

    /// Whether there may be a peer at an address.
    pub(crate) fn check_peer(&self, remote: Gid) -> Result<(), Error> {
        let Done {} = self.ask(CheckPeer { remote })?;
        Ok(())
    }
}

const fn keys(registered: &MrRegistered) -> Keys {
    Keys {
        lkey: registered.lkey,
        rkey: registered.rkey,
        iova: registered.iova,
    }
}
