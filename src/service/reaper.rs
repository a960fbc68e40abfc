//! The end of what a program had: some of it at a time, so that others are served in between.

use super::client::Belongings;
use super::events::Owners;
use super::objects::{CqEntry, MrEntry, QpEntry, SrqEntry};
use crate::node::shared::Shared;
use crate::verbs::mr::Pd;
use crate::verbs::mw::Mw;
use std::sync::Arc;
use trunkline_host::Piece;
use trunkline_host::handles::Drain;

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
    pds: Drain<Pd>,
    memories: Drain<Arc<Piece>>,
}

impl Reaper {
    /// Its bells are silent from here on.
    pub(super) fn new(node: &Shared, mut all: Belongings) -> Self {
        all.bells.end(node);
        Self {
            qps: all.qps.into_drain(),
            srqs: all.srqs.into_drain(),
            cqs: all.cqs.into_drain(),
            mws: all.mws.into_drain(),
            mrs: all.mrs.into_drain(),
            pds: all.pds.into_drain(),
            memories: all.memories.into_drain(),
        }
    }

    /// Destroys some of it. True while there is more.
    pub(super) fn step(&mut self, owners: &mut Owners) -> bool {
        if !self.qps.is_empty() {
            for entry in self.qps.drain_some(STEP) {
                owners.qps.remove(&entry.qp.qpn());
            }
        } else if !self.srqs.is_empty() {
            for entry in self.srqs.drain_some(STEP) {
                owners.srqs.remove(&entry.srq.id());
            }
        } else if !self.cqs.is_empty() {
            for entry in self.cqs.drain_some(STEP) {
                owners.cqs.remove(&entry.cq.id());
            }
        } else if !self.mws.is_empty() {
            self.mws.drain_some(STEP).for_each(drop);
        } else if !self.mrs.is_empty() {
            self.mrs.drain_some(STEP).for_each(drop);
        } else if !self.pds.is_empty() {
            self.pds.drain_some(STEP).for_each(drop);
        } else {
            self.memories.drain_some(STEP).for_each(drop);
            return !self.memories.is_empty();
        }
        true
    }
}
