//! Peers' QPs that leave in order: by being destroyed or reset, or with their node.
//!
//! The QP here stays as it is, as one of a device would, which hears nothing of that. Its program
//! hears [`Event::PeerQpGone`] once. What it has posted and is not done, or posts later, waits for
//! [`GRACE_NS`]: the next life of the peer's QP may take it, where nothing of it was sent to the
//! last one. Then it fails, and the QP with it. A request waits so for one life, and not for each
//! of those that leave one after the other.
//!
//! Routes of app-managed QPs are no part of this: with one of them ends nothing but what was posted
//! to it, so that fails at once.

use super::qp::Wire;
use super::{Engine, Event, Platform};
use crate::state::QpState;
use trunkline_conn::time::MILLISECOND;
use trunkline_conn::work::VendorError;

/// How long requests wait for another life of a QP that has left, in ns.
pub(super) const GRACE_NS: u64 = 100 * MILLISECOND;

impl<P: Platform> Engine<P> {
    /// Whether a flow is one that its peer's QP may leave.
    pub(super) fn may_be_left(&self, flow: u32) -> bool {
        let record = &self.qps[self.flows[flow].qp];
        record.state != QpState::Error && record.wire == Wire::Shared(flow)
    }

    /// The peer's QP of a flow has left, and the flow has heard it.
    pub(super) fn is_left_alone(&mut self, flow: u32) {
        self.flows.leaves(flow);
        self.tell_deserted(flow);
        let msn = self.flows[flow].acked_msn;
        let head = self.requests.get(self.flows[flow].head);
        if head.is_none_or(|head| !head.begun) {
            self.flows[flow].count_anew();
        }
        // The clock that it may have is for peers that say nothing.
        self.stop_watch(flow);
        if !self.is_outstanding(flow) {
            self.flows.wants_nothing(flow);
            return;
        }
        match self.flows.waits_though_left(flow, msn) {
            true => self.fail_left(flow),
            false => self.watch(flow),
        }
    }

    /// The peer of a flow has ended in order, and no connection leads to it. Gives `false` where
    /// that ends the flow.
    pub(super) fn is_left_with_node(&mut self, flow: u32) -> bool {
        let may = self.may_be_left(flow);
        if may {
            self.flows[flow].hear_node_left();
            self.forget_peers_requests(flow);
            self.is_left_alone(flow);
        }
        may
    }

    /// What a flow wants of a QP that has left has waited for long enough.
    pub(super) fn fail_left(&mut self, flow: u32) {
        self.stop_watch(flow);
        self.because(VendorError::QpGone, |engine| engine.fail_stranded(flow));
    }

    /// The peer's QP of a flow is gone, or in another life. If the QP did not fail for that, its
    /// program and its node hear so.
    pub(super) fn tell_deserted(&mut self, flow: u32) {
        if self.may_be_left(flow) && self.flows.tell_once(flow) {
            let qpn = self.own_number(flow);
            self.events.push(Event::PeerQpGone { qpn });
        }
    }
}
