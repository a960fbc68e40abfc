//! What was said for a QP that has begun another life since.

use super::NodeCm;
use crate::event::HandshakeId;
use crate::message;
use crate::random::Random;
use crate::state::State;
use trunkline_wire::Qpn;

impl<R: Random> NodeCm<R> {
    /// A QP of this node is gone, or was reset: its BIND and its consent in a handshake under way
    /// are not said again. A peer that hears of them late would talk to somebody who is not there,
    /// and take the QP's next life for the end of the one it was told of.
    pub fn withdraw(&mut self, id: HandshakeId, qp: Qpn) {
        if let Ok(index) = self.index(id, |state| state.speaks_for(qp)) {
            self.say_without(index, qp);
        }
    }

    fn say_without(&mut self, index: u32, qp: Qpn) {
        let (ids, route) = (self.table.ids(index), self.table.route(index));
        let us = self.config.identity;
        self.table.update(index, |state| match state {
            State::ReqSent(state) => {
                state.request.binds = state.request.binds.without(|bind| bind.src_qp == qp);
                let req = message::req(ids.local, route, us, &state.request);
                state.sent.mad = message::mad(state.sent.transaction, req);
            }
            State::RepSent(state) => {
                if let Some((request, _)) = &mut state.absorbed {
                    request.binds = request.binds.without(|bind| bind.src_qp == qp);
                }
                state.bounds = state.bounds.without(|bound| bound.src_qp == qp);
                let rep = message::rep(ids, us, &state.offer, state.bounds);
                state.sent.mad = message::mad(state.sent.transaction, rep);
            }
            _ => {}
        });
    }
}
