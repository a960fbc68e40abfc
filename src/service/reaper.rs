//! The end of what a program had: some of it at a time, so that others are served in between.

use super::client::{Belongings, Estate, Farewell};
use super::events::Owners;
use super::graves::Graves;
use super::objects::{CqEntry, MrEntry, QpEntry, SrqEntry};
use crate::node::shared::Shared;
use crate::verbs::mr::Pd;
use crate::verbs::mw::Mw;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use trunkline_dataplane::ProcessMemory;
use trunkline_host::handles::Drain;
use trunkline_host::{Lent, Piece, Pieces, Share};
use trunkline_qpmap::Tenant;

/// Objects that one step destroys at most.
const STEP: usize = 32;

/// What is left of a program that is gone. What depends on something goes before it.
#[derive(Debug)]
pub(super) struct Reaper {
    qps: Drain<QpEntry>,
    srqs: Drain<SrqEntry>,
    cqs: Drain<CqEntry>,
    mws: Drain<Mw>,
    mrs: Drain<MrEntry>,
    /// Said once its regions are gone.
    farewell: Option<Farewell>,
    pds: Drain<Pd>,
    memories: Drain<Arc<Piece>>,
    lent: Drain<Arc<Lent>>,
    graves: Graves,
    pieces: Pieces,
    memory: Option<ProcessMemory>,
    uid: u32,
    /// The program ended in order.
    in_order: bool,
    tenant: Tenant,
    /// Bytes of its memory that were registered, of the user's budget until the regions are gone.
    _foreign: Share,
}

/// What a step leaves to do.
#[derive(Debug)]
pub(super) enum Left {
    /// Some of it.
    More,
    /// What takes long to let go of.
    Remains(Remains),
}

/// What a program of that user leaves when all its objects are gone: to close descriptors takes as
/// long as it likes, as it does until a thread that waits for a page of it ends, and to unmap
/// segments takes as long as the system needs for their pages.
#[derive(Debug)]
pub(super) struct Remains {
    pub(super) uid: u32,
    /// The thread that reached its memory.
    pub(super) copier: Option<JoinHandle<()>>,
    _descriptors: Vec<OwnedFd>,
    _pieces: Pieces,
    _lent: Vec<Arc<Lent>>,
}

impl Reaper {
    /// That of a program which ended in order, or did not. Its bells are silent from here on.
    pub(super) fn new(node: &Shared, left: Estate, in_order: bool) -> Self {
        let mut all: Belongings = left.belongings;
        let wakes = all.bells.end(node);
        all.graves.bury(wakes);
        Self {
            qps: all.qps.into_drain(),
            srqs: all.srqs.into_drain(),
            cqs: all.cqs.into_drain(),
            mws: all.mws.into_drain(),
            mrs: all.mrs.into_drain(),
            farewell: Some(left.farewell),
            pds: all.pds.into_drain(),
            memories: all.memories.into_drain(),
            lent: all.lent.into_drain(),
            graves: all.graves,
            pieces: all.pieces,
            memory: left.memory,
            uid: left.uid,
            in_order,
            tenant: all.tenant,
            _foreign: all.foreign,
        }
    }

    /// The user of the program.
    pub(super) const fn uid(&self) -> u32 {
        self.uid
    }

    /// Destroys some of it.
    pub(super) fn step(&mut self, node: &Shared, owners: &mut Owners) -> Left {
        if !self.qps.is_empty() {
            for entry in self.qps.drain_some(STEP) {
                owners.qps.remove(&entry.qp.qpn());
                if !self.in_order {
                    entry.qp.abandon();
                }
            }
        } else if !self.srqs.is_empty() {
            for entry in self.srqs.drain_some(STEP) {
                owners.srqs.remove(&entry.srq.id());
            }
        } else if !self.cqs.is_empty() {
            for CqEntry { cq, signal, .. } in self.cqs.drain_some(STEP) {
                owners.cqs.remove(&cq.id());
                drop(cq);
                self.graves.bury_signal(signal);
            }
        } else if !self.mws.is_empty() {
            self.mws.drain_some(STEP).for_each(drop);
        } else if !self.mrs.is_empty() {
            self.mrs.drain_some(STEP).for_each(drop);
        } else if let Some(farewell) = self.farewell.take() {
            self.graves.bury([farewell.say()]);
        } else if !self.pds.is_empty() {
            self.pds.drain_some(STEP).for_each(drop);
        } else if !self.memories.is_empty() {
            self.memories.drain_some(STEP).for_each(drop);
        } else if let Some(descriptors) = self.graves.all() {
            if self.tenant != Tenant::OWN {
                let removed = node.on_all(|core| core.engine.remove_tenant(self.tenant));
                node.gave_up(removed, "a tenant has no QPs once they are reaped");
            }
            return Left::Remains(Remains {
                uid: self.uid,
                copier: self.memory.take().and_then(ProcessMemory::into_thread),
                _descriptors: descriptors,
                _pieces: std::mem::replace(&mut self.pieces, Pieces::new(0)),
                _lent: self.lent.drain_some(usize::MAX).collect(),
            });
        }
        Left::More
    }
}
