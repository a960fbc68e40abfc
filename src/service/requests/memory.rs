//! Protection domains, regions, windows, and memory for them.

use super::{Answered, Desk, busy, done, entry, full};
use crate::node::shared::Shared;
use crate::platform::Reach;
use crate::service::client::{MAX_USERFAULTS, words};
use crate::service::objects::MrEntry;
use crate::service::reply::{Refusal, Reply};
use crate::verbs::ah::check_peer;
use crate::verbs::mr::Pd;
use std::sync::Arc;
use trunkline_dataplane::process::page_size;
use trunkline_dataplane::{PartedRegion, ProcessRegion, Region, promotion};
use trunkline_host::budget::Spent;
use trunkline_host::control::answers::{
    MemoryAllocated, MemoryLent, MrRegistered, MwAllocated, PdAllocated, UserfaultOpened,
};
use trunkline_host::control::attributes::{MwKind, RegionPlace};
use trunkline_host::control::requests::{RegisterMr, ReregisterMr};
use trunkline_host::{Handle, Lent, Words};
use trunkline_qpmap::VerbsError;
use trunkline_qpmap::regions::MwType;
use trunkline_qpmap::ring::RingMemory;
use trunkline_wire::Gid;

impl Desk<'_> {
    pub(super) fn alloc_pd(&mut self) -> Answered {
        let pd = self.node.alloc_pd();
        let domain = pd.0.id()?.0;
        let inserted = self.client.belongings.pds.insert(pd);
        let pd = inserted.map_err(full("protection domains"))?;
        Ok(PdAllocated { pd, domain }.into())
    }

    pub(super) fn dealloc_pd(&mut self, pd: Handle) -> Answered {
        if !self.pd(pd)?.is_last_handle() {
            return Err(busy("protection domain"));
        }
        drop(self.client.belongings.pds.remove(pd));
        done()
    }

    fn pd(&self, pd: Handle) -> Result<&Pd, Refusal> {
        entry!(self.client.belongings.pds, pd, "PD")
    }

    pub(super) fn check_peer(&self, remote: Gid) -> Answered {
        let node: &Shared = self.shared();
        check_peer(node, remote)?;
        done()
    }

    pub(super) fn alloc_memory(&mut self, words: u32) -> Answered {
        let all = &mut self.client.belongings;
        let piece = all.piece(words as usize)?;
        let inserted = all.memories.insert(Arc::clone(&piece));
        let memory = inserted.map_err(full("pieces of memory"))?;
        Ok(all.name(&piece, |piece, new_segment| MemoryAllocated {
            memory,
            piece,
            new_segment,
        }))
    }

    pub(super) fn free_memory(&mut self, memory: Handle) -> Answered {
        let freed = self.client.belongings.memories.remove(memory);
        freed.ok_or_else(|| Refusal::unknown("memory"))?;
        done()
    }

    pub(super) fn lend_memory(&mut self, bytes: u64) -> Answered {
        let all = &mut self.client.belongings;
        if all.graves.close(&self.client.closer) {
            return Err(busy("lent memory that was given back"));
        }
        let segment = Arc::new(all.pieces.lend(bytes)?);
        let file = Arc::clone(segment.file());
        let lent = all.lent.insert(segment).map_err(full("lent segments"))?;
        Ok(Reply {
            descriptor: Some(file),
            ..MemoryLent { lent }.into()
        })
    }

    pub(super) fn return_memory(&mut self, lent: Handle) -> Answered {
        let all = &mut self.client.belongings;
        if Arc::strong_count(entry!(all.lent, lent, "lent memory")?) > 1 {
            return Err(busy("lent memory"));
        }
        let segment = all.lent.remove(lent).and_then(Arc::into_inner);
        let file = segment.and_then(|segment| Arc::into_inner(segment.into_file()));
        // All its pages may go with the descriptor, which takes long.
        all.graves.bury(file);
        all.graves.close(&self.client.closer);
        done()
    }

    pub(super) fn open_userfault(&mut self) -> Answered {
        let asked = &mut self.client.belongings.userfaults;
        if *asked >= MAX_USERFAULTS {
            let (what, limit) = ("userfaultfd devices", MAX_USERFAULTS.into());
            return Err(VerbsError::Limit { what, limit }.into());
        }
        *asked += 1;
        let device = promotion::open_device()?;
        Ok(Reply {
            descriptor: Some(Arc::new(device)),
            ..UserfaultOpened {}.into()
        })
    }

    /// Memory of the program's own.
    fn foreign(&self, addr: u64, length: usize) -> Result<ProcessRegion, Refusal> {
        let memory = self.client.memory.as_ref();
        let none = || Refusal::fault("no descriptor of the program's memory came".into());
        Ok(memory.ok_or_else(none)?.region(addr, length)?)
    }

    /// How the memory of a region is reached.
    fn reach(&self, place: RegionPlace, length: u64) -> Result<Reach, Refusal> {
        let too_long = || Refusal::fault(format!("{length} bytes are not all there"));
        let length = usize::try_from(length).map_err(|_| too_long())?;
        match place {
            RegionPlace::Shared { memory, offset } => {
                let piece = entry!(self.client.belongings.memories, memory, "memory")?;
                let region = Region::of_words(Arc::new(words(piece)), Words::as_slice);
                let region = usize::try_from(offset)
                    .ok()
                    .and_then(|offset| region.part(offset, length));
                Ok(Reach::Mapped(region.ok_or_else(too_long)?))
            }
            RegionPlace::Foreign { addr } => Ok(Reach::Process(self.foreign(addr, length)?)),
            RegionPlace::Promoted {
                lent,
                addr,
                start,
                length: pages,
                offset,
            } => {
                let whole = self.foreign(addr, length)?;
                let lent = entry!(self.client.belongings.lent, lent, "lent memory")?;
                // Words of both are at the same places of their pages, so that atomics are whole.
                let page = page_size() as u64;
                let is_aligned = addr.wrapping_add(start) % page == 0 && offset % page == 0;
                let [start, pages, offset] = [start, pages, offset].map(usize::try_from);
                let (Ok(start), Ok(pages), Ok(offset), true) = (start, pages, offset, is_aligned)
                else {
                    return Err(too_long());
                };
                let shared = Region::of_words(Arc::clone(lent), Lent::words).part(offset, pages);
                let parted = shared.and_then(|shared| PartedRegion::new(whole, start, shared));
                Ok(Reach::Parted(Arc::new(parted.ok_or_else(too_long)?)))
            }
        }
    }

    /// Counts the bytes of the program's own memory in a region that has `before` of them counted.
    /// Gives how many it has more.
    ///
    /// # Errors
    /// The program, or all of its user, may not register so many.
    fn count_foreign(&mut self, reach: &Reach, before: u64) -> Result<u64, Refusal> {
        let what = "bytes of registered memory";
        let foreign = &mut self.client.belongings.foreign;
        let more = reach.foreign_bytes().saturating_sub(before);
        let limit = self.limits.registered_bytes;
        if foreign.amount().saturating_add(more) > limit {
            return Err(VerbsError::Limit { what, limit }.into());
        }
        let spent = |Spent { limit }| Refusal::user_has_all(what, limit);
        foreign.grow(more).map_err(spent)?;
        Ok(more)
    }

    pub(super) fn register_mr(&mut self, request: &RegisterMr) -> Answered {
        let reach = self.reach(request.place, request.length)?;
        let counted = self.count_foreign(&reach, 0)?;
        let answer = self.register(request, reach);
        if answer.is_err() {
            self.client.belongings.foreign.shrink(counted);
        }
        answer
    }

    fn register(&mut self, request: &RegisterMr, reach: Reach) -> Answered {
        let pd = self.pd(request.pd)?;
        let entry = MrEntry::register(pd, reach, request.iova, request.access)?;
        let (keys, promoted) = (entry.keys, entry.promoted_bytes());
        let inserted = self.client.belongings.mrs.insert(entry);
        let mr = inserted.map_err(full("memory regions"))?;
        self.client.belongings.promoted += promoted;
        Ok(registered(mr, keys))
    }

    pub(super) fn reregister_mr(&mut self, request: &ReregisterMr) -> Answered {
        let pd = self.pd(request.pd)?.clone();
        let reach = match request.place {
            Some(place) => Some(self.reach(place, request.length)?),
            None => None,
        };
        let before = entry!(self.client.belongings.mrs, request.mr, "MR")?.foreign_bytes();
        let counted = match &reach {
            Some(reach) => self.count_foreign(reach, before)?,
            None => 0,
        };
        let entry = entry!(mut self.client.belongings.mrs, request.mr, "MR")?;
        let promoted = entry.promoted_bytes();
        let changed = entry.reregister(&pd, reach, request.iova, request.access);
        let (keys, after) = (entry.keys, entry.foreign_bytes());
        let promoted_after = entry.promoted_bytes();
        let all = &mut self.client.belongings;
        all.promoted = all.promoted - promoted + promoted_after;
        all.foreign.shrink(before + counted - after);
        changed?;
        Ok(registered(request.mr, keys))
    }

    pub(super) fn deregister_mr(&mut self, mr: Handle, unbind: bool) -> Answered {
        let entry = entry!(mut self.client.belongings.mrs, mr, "MR")?;
        if !unbind {
            entry.deregister()?;
        }
        let (foreign, promoted) = (entry.foreign_bytes(), entry.promoted_bytes());
        let all = &mut self.client.belongings;
        all.foreign.shrink(foreign);
        all.promoted -= promoted;
        drop(all.mrs.remove(mr));
        done()
    }

    pub(super) fn alloc_mw(&mut self, pd: Handle, kind: MwKind) -> Answered {
        let mw = self.pd(pd)?.alloc_mw(match kind {
            MwKind::Type1 => MwType::Type1,
            MwKind::Type2 => MwType::Type2,
        })?;
        let rkey = mw.rkey();
        let inserted = self.client.belongings.mws.insert(mw);
        let mw = inserted.map_err(full("memory windows"))?;
        Ok(MwAllocated { mw, rkey }.into())
    }

    pub(super) fn dealloc_mw(&mut self, mw: Handle) -> Answered {
        let freed = self.client.belongings.mws.remove(mw);
        freed.ok_or_else(|| Refusal::unknown("memory window"))?;
        done()
    }
}

fn registered(mr: Handle, keys: crate::verbs::mr::Keys) -> Reply {
    MrRegistered {
        mr,
        lkey: keys.lkey,
        rkey: keys.rkey,
        iova: keys.iova,
    }
    .into()
}
