//! BINDs that go with the question whether a node shares connections, and consent to them.

use super::qp::Wire;
use super::{ConnId, Engine, Platform};
use crate::state::{QpState, QpType};
use trunkline_conn::time::Instant;
use trunkline_wire::{Control as ControlEntry, ControlKind, Gid};

impl<P: Platform> Engine<P> {
    /// A BIND or BOUND that came in the handshake of connection `id`, if that still stands and it
    /// is for a QP of this engine. One for another worker's comes again, where it belongs. So does
    /// one for an IBTA QP: since it left with the question, the QP that it speaks for may have
    /// become one, too.
    pub fn handle_early(&mut self, now: Instant, id: ConnId, entry: ControlEntry) {
        let wire = self.qp_index(entry.dest_qp).map(|qp| self.qps[qp].wire);
        if self.links.live(id).is_some() && !matches!(wire, None | Some(Wire::Ibta(_))) {
            self.handle_entry(now, id.index, entry);
        }
    }

    /// BINDs of the QPs that wait to hear what `peer` is, to go with the question.
    pub fn early_binds(&self, peer: Gid) -> impl Iterator<Item = ControlEntry> {
        self.undecided_of(peer).map(|qp| ControlEntry {
            kind: ControlKind::Bind,
            src_qp: self.qp_number(qp),
            round: 0,
            dest_qp: self.cold(qp).attributes.dest_qpn,
            generation: self.qps.generation(qp),
            status: 0,
            msn: 0,
        })
    }

    /// The answer to a BIND that came with the question of a peer which is not known yet, if its QP
    /// is ready for it. No QP changes: who asks has proved nothing so far. The BIND itself is
    /// [taken up](Self::handle_early) once the connection stands.
    ///
    /// Who names too many QPs that there are not learns of no app-managed one before it has proved
    /// its address. All share that limit, as addresses may be forged: beyond it consent takes a
    /// round trip more.
    pub fn consent(
        &mut self,
        now: Instant,
        peer: Gid,
        bind: &ControlEntry,
    ) -> Option<ControlEntry> {
        if self.links.peer_at(peer).is_some() {
            return None;
        }
        let Some(qp) = self.qp_index(bind.dest_qp) else {
            self.control.replies.guessed_wrong(now);
            return None;
        };
        let (cold, state) = (self.cold(qp), self.qps[qp].state);
        let waits = || {
            let named = (cold.attributes.remote, cold.attributes.dest_qpn);
            matches!(self.qps[qp].wire, Wire::Undecided(_)) && named == (peer, bind.src_qp)
        };
        let meant = match cold.kind {
            QpType::Src => {
                self.flows.routes().may_be_opened_by(None) && self.control.replies.may_guess(now)
            }
            QpType::Rc => waits(),
            QpType::Uc | QpType::Ud => false,
        };
        let ready = matches!(state, QpState::Rtr | QpState::Rts);
        (meant && ready).then(|| ControlEntry {
            kind: ControlKind::Bound,
            src_qp: bind.dest_qp,
            dest_qp: bind.src_qp,
            status: self.qps.generation(qp),
            ..*bind
        })
    }
}
