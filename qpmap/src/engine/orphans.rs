//! What peers are told about QP pairs that have no flow here, or none any more.

use super::build::{Item, ItemKind};
use super::notice::control_entry;
use super::{Engine, Platform};
use crate::slab::NONE;
use trunkline_wire::{Answer as AnswerEntry, Control as ControlEntry, ControlKind};

/// Most answers to packets without a flow that may wait.
const MAX_ORPHANS: usize = 1024;

/// Something to tell a peer about a QP pair that has no flow here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Orphan {
    pub(crate) conn: u32,
    pub(crate) content: OrphanContent,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum OrphanContent {
    Answer(AnswerEntry),
    Control(ControlEntry),
}

impl<P: Platform> Engine<P> {
    /// Something for the peer went down with its connection, and no flow of ours says it again.
    pub(crate) fn rescue_blob(&mut self, item: &Item, other: u32) {
        let Some(bytes) = self.blobs.get(item.slot, item.serial).map(<[u8]>::to_vec) else {
            return;
        };
        if item.kind == ItemKind::Control {
            let entries = ControlEntry::entries(&bytes)
                .into_iter()
                .flatten()
                .flatten();
            let ends = [ControlKind::Unbind, ControlKind::Refused];
            for entry in entries.filter(|entry| ends.contains(&entry.kind)) {
                self.orphan(other, OrphanContent::Control(entry));
            }
            return;
        }
        for entry in AnswerEntry::entries(&bytes).into_iter().flatten().flatten() {
            let flow = self
                .qp_index(entry.responder)
                .and_then(|qp| self.flow_from(qp, entry.requester, other));
            if flow.is_none() {
                self.orphan(other, OrphanContent::Answer(entry));
            }
        }
    }

    /// Tells the peer that a flow of ours ends.
    pub(crate) fn send_unbind(&mut self, flow: u32) {
        let record = &self.flows[flow];
        if record.conn == NONE {
            return;
        }
        let number = self.qp_number(record.qp);
        let content =
            OrphanContent::Control(control_entry(record, number, ControlKind::Unbind, false));
        self.orphan(record.conn, content);
    }

    /// A packet for a QP pair that has no flow here.
    pub(crate) fn refuse_orphan(&mut self, conn: u32, answer: AnswerEntry) {
        self.orphan(conn, OrphanContent::Answer(answer));
    }

    pub(crate) fn orphan(&mut self, conn: u32, content: OrphanContent) {
        if self.orphans.len() >= MAX_ORPHANS {
            self.counters.control_overflow += 1;
            return;
        }
        self.orphans.push_back(Orphan { conn, content });
        self.conns[conn].flags.patience.owe(true);
        self.touch(conn);
    }
}
