//! QPs that ended: flows that are there only until the peer has heard of it, and control packets
//! that say so.
//!
//! Their number is bounded by that of the QPs and routes that were: each was one, and what a peer
//! does not acknowledge goes with its last connection, within [`Config::dead_after_ns`] of it.

use super::ending::Ending;
use super::qp::Flags;
use super::timer::Timer;
use super::{Engine, Platform};
use crate::slab::NONE;
use crate::state::QpState;
use trunkline_wire::Qpn;

#[cfg(doc)]
use super::Config;

impl<P: Platform> Engine<P> {
    /// The QP of a flow is in error: the peer hears what it has executed, and that it will execute
    /// nothing more.
    pub(crate) fn end_flow(&mut self, flow: u32) {
        if !self.flows[flow].flags.has(Flags::REFUSED) {
            // What it executed before a request that it refused, it still answers in full.
            self.drop_unsent_reads(flow);
        }
        self.flows[flow].end(false);
        self.timers.cancel(Timer::Ask(flow).key());
        self.queue_control(flow);
    }

    /// The QP of a flow is gone, in order if it was not in error. The flow stays until its peer has
    /// heard of it.
    pub(crate) fn close_flow(&mut self, flow: u32) {
        self.flows[flow].leave();
        self.drop_unsent_reads(flow);
        self.stop_watch(flow);
        for timer in [Timer::Rnr(flow), Timer::Ask(flow)] {
            self.timers.cancel(timer.key());
        }
        let record = &mut self.flows[flow];
        (record.head, record.tail, record.sending) = (NONE, NONE, NONE);
        (record.sent_bytes, record.reads_out) = (0, 0);
        self.inbound.staging_mut().clear(&mut record.staged);
        let record = &self.flows[flow];
        let (mut conn, told) = (record.conn, record.ending == Ending::Told);
        let pair = (record.qp, record.remote, self.flows.peer(flow));
        if record.flags.has(Flags::STRANDED) || self.is_left_behind(flow) {
            conn = self.links.fallback(pair.2, pair.1);
        }
        self.leave_stranded(flow);
        self.flows.end_move(flow);
        self.detach(flow);
        if conn == NONE || told || self.pairing.endings.get(&pair).is_some() {
            // Nobody is there to hear it, has not heard it yet, or has heard anything of this life
            // before the end of the last one.
            self.drop_responses(flow, |_| true);
            // Somebody may be working with it: its slot is free later.
            self.flows[flow].ending = Ending::Told;
            self.flows.end(flow);
            return;
        }
        let record = &mut self.flows[flow];
        record.end(true);
        for flag in [
            Flags::ANSWER_DUE,
            Flags::QUIESCING,
            Flags::RNR_WAIT,
            Flags::LOST,
        ] {
            record.flags.clear(flag);
        }
        self.pairing.endings.insert(pair, flow);
        self.join_ended(flow, conn);
    }

    /// Memory of a QP that is in error or gone is not read. Data on their way are waited for, so
    /// that the last word does not overtake them.
    fn drop_unsent_reads(&mut self, flow: u32) {
        self.drop_responses(flow, |response| {
            response.reads_memory() && !response.sent_all
        });
    }

    /// A flow whose QP is gone is with `conn`, which counts it no more.
    fn join_ended(&mut self, flow: u32, conn: u32) {
        self.flows[flow].conn = conn;
        self.flows.homes().join(&mut self.links[conn].members, flow);
        self.queue_control(flow);
        self.wake(flow);
    }

    /// And leaves it.
    pub(crate) fn part_ended(&mut self, flow: u32) {
        let conn = std::mem::replace(&mut self.flows[flow].conn, NONE);
        if conn != NONE {
            self.unlist(conn, flow);
            self.leave_group(conn, flow);
        }
    }

    /// Whether nothing is under way that the end of a flow must not overtake.
    pub(crate) fn may_tell_end(&self, flow: u32) -> bool {
        let record = &self.flows[flow];
        let mut responses = self.responses.of(record.responses);
        record.ending.is_due() && !responses.any(|(_, response)| response.is_under_way())
    }

    /// Whether what a flow has to say of its QP's present life waits until the peer has heard of
    /// the end of the last one.
    pub(crate) fn waits_for_end(&self, flow: u32) -> bool {
        if self.pairing.endings.is_empty() {
            return false;
        }
        let record = &self.flows[flow];
        let pair = (record.qp, record.remote, self.flows.peer(flow));
        let last = self.pairing.endings.get(&pair);
        last.is_some_and(|last| last != flow)
    }

    /// Whether the peer of `conn` is about to hear of the end of the QP that it means by QPN
    /// `number`, from the life of its QP `remote` that `is_meant` knows.
    pub(crate) fn is_ending(
        &self,
        conn: u32,
        (number, remote): (Qpn, Qpn),
        is_meant: impl Fn(&super::qp::Flow) -> bool,
    ) -> bool {
        let index = self.qps.index_at(number);
        let pair = (index, remote, self.links[conn].peer());
        let last = self.pairing.endings.get(&pair);
        last.is_some_and(|last| is_meant(&self.flows[last]))
    }

    /// The peer has acknowledged the packet that told of the end of a flow.
    pub(crate) fn end_told(&mut self, flow: u32) {
        let Some(record) = self.flows.get_mut(flow) else {
            return;
        };
        match record.ending {
            Ending::Sent => record.ending = Ending::Told,
            Ending::LastSent => self.finish(flow),
            _ => {}
        }
    }

    /// The packet that told of the end of a flow went down with its connection.
    pub(crate) fn end_lost(&mut self, flow: u32) {
        if let Some(record) = self.flows.get_mut(flow) {
            record.ending = record.ending.lost();
            self.queue_control(flow);
        }
    }

    /// The connection of a flow whose QP is gone is gone, too: its end is told over another one.
    /// Where there is none, the peer asks for the QP when there is, and hears it then.
    pub(crate) fn move_ended(&mut self, flow: u32) {
        let fallback = self
            .links
            .fallback(self.flows.peer(flow), self.flows[flow].remote);
        if fallback == NONE {
            self.finish(flow);
        } else {
            self.join_ended(flow, fallback);
        }
    }

    /// Nothing is left to say of a QP that is gone. What its next life has to say is said now.
    fn finish(&mut self, flow: u32) {
        let (qp, remote) = (self.flows[flow].qp, self.flows[flow].remote);
        let peer = self.flows.peer(flow);
        self.drop_responses(flow, |_| true);
        self.part_ended(flow);
        self.retire(flow);
        self.pairing.endings.remove(&(qp, remote, peer));
        let conn = self.links.conns_of(peer).next();
        if self.qps.get(qp).is_some()
            && let Some(conn) = conn
            && let Some(next) = self.flow_from(qp, remote, conn)
        {
            self.queue_control(next);
        }
    }

    /// Whether responses of a flow still go out, though its QP may be in error or gone.
    pub(crate) fn only_responds(&self, flow: u32) -> bool {
        let record = &self.flows[flow];
        record.ending.is_last() || self.qps[record.qp].state == QpState::Error
    }
}
