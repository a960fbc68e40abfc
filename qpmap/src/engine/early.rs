//! BINDs that go with the question whether a node shares connections, and consent to them.

use super::qp::Wire;
use super::{ConnId, Engine, Platform};
use crate::state::{QpState, QpType};
use trunkline_conn::time::Instant;
use trunkline_wire::{Control as ControlEntry, ControlKind, Gid, Qpn};

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

    /// A BIND that came in the handshake of connection `id`, to which that has agreed already, in
    /// the name of `life` of the QP. Other routes of an app-managed QP may have ended since, which
    /// begins another life of it for those that are opened later: this one keeps what was said.
    pub fn handle_agreed(&mut self, now: Instant, id: ConnId, bind: ControlEntry, life: u32) {
        // A life 0 is none: what names it is judged below.
        if bind.sender_life() != Some(0)
            && let Some(qp) = self.qp_index(bind.dest_qp)
            && self.may_begin_in_past_life(qp, id, bind.src_qp)
        {
            self.open_route(qp, (id.index, bind.src_qp), life, true);
        }
        self.handle_early(now, id, bind);
    }

    /// Whether a QP may open a route to `remote` in a life that is past for other routes: it has
    /// none there, and had none in that life, as no route has ended since its peer came. The peer
    /// may lie of having come first: two routes between the same QPs in one life are then its own.
    fn may_begin_in_past_life(&mut self, qp: u32, id: ConnId, remote: Qpn) -> bool {
        let Some(conn) = self.links.live(id) else {
            return false;
        };
        let peer = conn.peer();
        let ready = matches!(self.qps[qp].state, QpState::Rtr | QpState::Rts);
        ready
            && self.cold(qp).kind == QpType::Src
            && !self.links.peer(peer).parted()
            && self.flow_from(qp, remote, id.index).is_none()
            && self.pairing.endings.get(&(qp, remote, peer)).is_none()
            && self.may_open_route(id.index)
    }

    /// BINDs of the QPs that wait to hear what `peer` is, to go with the question.
    pub fn early_binds(&self, peer: Gid) -> impl Iterator<Item = ControlEntry> {
        self.undecided_of(peer).map(|qp| ControlEntry {
            kind: ControlKind::Bind,
            src_qp: self.qp_number(qp),
            replay_epoch: 0,
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
        if bind.sender_life() == Some(0) || self.links.peer_at(peer).is_some() {
            return None;
        }
        let Some(qp) = self.qp_index(bind.dest_qp) else {
            self.control.refusals.guessed_wrong(now);
            return None;
        };
        let (cold, state) = (self.cold(qp), self.qps[qp].state);
        let waits = || {
            let named = (cold.attributes.remote, cold.attributes.dest_qpn);
            matches!(self.qps[qp].wire, Wire::Undecided(_)) && named == (peer, bind.src_qp)
        };
        let meant = match cold.kind {
            QpType::Src => {
                self.flows.routes().may_be_opened_by(None) && self.control.refusals.may_guess(now)
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
