//! The QP's own clock on shared connections: what becomes of requests whose peer says nothing.
//!
//! A QP that has something outstanding is *watched*: one timer per flow, armed by the first request
//! and looked at when it fires, so that packets cost nothing. It ends the flow where it has waited
//! in vain for the whole of its time, and got nowhere: for a connection, for the consent of the
//! peer's QP, or on a connection from which nothing comes although packets are in flight; or where
//! connections come and get lost that carry none of its requests (`InVain`), nor does the present
//! one. Data, or a BIND, that waits for window, pacing or its turn is none of its business, nor is
//! a receiver that is not ready.

use super::build::{SentKind, SentPacket};
use super::ending::Ending;
use super::flows::Seen;
use super::in_vain::InVain;
use super::leaving::GRACE_NS;
use super::qp::Flags;
use super::requests::Pending;
use super::timer::Timer;
use super::{Cause, Engine, Platform};
use crate::slab::NONE;
use crate::state::QpState;
use trunkline_conn::rc::ack_timeout_ns;
use trunkline_conn::time::Instant;

impl<P: Platform> Engine<P> {
    /// How long a QP may wait for its peer in vain: its tries, of 4.096 us times 2^timeout each, at
    /// least the grace that failover gets. `None`: for as long as its peer or connection lives.
    pub(super) fn wait_limit(&self, qp: u32) -> Option<u64> {
        let attributes = &self.cold(qp).attributes;
        let tries = u64::from(attributes.retry_count) + 1;
        let own = ack_timeout_ns(attributes.timeout)?.saturating_mul(tries);
        Some(own.max(self.config.failover_grace_ns))
    }

    /// The same for a flow, whose peer's QP may have left.
    fn limit_of(&self, flow: u32) -> Option<u64> {
        match self.flows.is_left(flow) {
            true => Some(GRACE_NS),
            false => self.wait_limit(self.flows[flow].qp),
        }
    }

    /// A flow has something to wait for: its clock runs, from the next round of the loop on. Where
    /// its BIND has to go out first, it runs from then on, unless the peer's QP has left.
    #[inline]
    pub(crate) fn watch(&mut self, flow: u32) {
        let record = &self.flows[flow];
        let stranded = record.flags.has(Flags::STRANDED);
        if record.watch == NONE
            && (stranded || !record.is_to_ask_first() || self.flows.is_left(flow))
        {
            self.begin_watch(flow);
        }
    }

    /// The same where it is to be seen whether it has.
    pub(super) fn watch_if_outstanding(&mut self, flow: u32) {
        if self.is_outstanding(flow) {
            self.watch(flow);
        }
    }

    #[inline(never)]
    fn begin_watch(&mut self, flow: u32) {
        if self.limit_of(flow).is_none() {
            return;
        }
        self.flows.start_clock(flow);
    }

    /// A flow waits for nothing, or for something else from now on.
    pub(super) fn stop_watch(&mut self, flow: u32) {
        if self.flows.stop_clock(flow) {
            self.timers.cancel(Timer::Watch(flow).key());
        }
    }

    /// The connection of a flow is gone. It waits from now on, where that says nothing of its peer.
    /// One that acknowledged nothing, or left BINDs without an answer, has been waited for already.
    pub(super) fn begins_to_wait(&mut self, flow: u32, cause: Cause) {
        let record = &self.flows[flow];
        let answered = record.flags.has(Flags::BOUND) || record.asks < 2;
        let waits = cause == Cause::Dead || self.flows.is_left(flow);
        if answered && !record.in_vain.is_certain() && !waits {
            self.stop_watch(flow);
        }
    }

    /// The connection of a flow is gone, and may have carried its requests in vain.
    pub(super) fn sent_in_vain(&mut self, flow: u32) {
        let flags = self.flows[flow].flags;
        let sends = flags.has(Flags::BOUND) && !flags.has(Flags::RNR_WAIT);
        if !sends || !self.is_outstanding(flow) {
            self.flows[flow].in_vain.rested();
            return;
        }
        let record = &self.flows[flow];
        let part = match self.requests.get(record.head) {
            Some(head) if head.request.op.has_response_data() => head.has_part_of_response(),
            Some(_) => {
                let rest = record.sending == record.head && record.sent_bytes > 0;
                record.in_vain.had_a_part(rest)
            }
            None => false,
        };
        self.flows[flow].in_vain.lost(part);
    }

    /// A packet of a request goes down with its connection.
    pub(super) fn missed_request(&mut self, item: &SentPacket) {
        let same = |at: &Pending| at.serial == item.serial;
        let is_there = self.requests.get(item.slot).is_some_and(same);
        if let Some(record) = self.flows.get_mut(item.flow)
            && is_there
            && record.head == item.slot
        {
            record.in_vain.missed(item.offset);
        }
    }

    /// Whether a connection is carrying the first request of a flow: a part of it has arrived.
    /// It looks at all packets in flight.
    fn is_carried(&self, flow: u32) -> bool {
        let record = &self.flows[flow];
        let Some(head) = self.requests.get(record.head) else {
            return false;
        };
        if head.replay_epoch != record.replay_epoch {
            return false;
        }
        if head.request.op.has_response_data() {
            return head.has_part_of_response();
        }
        let Some(conn) = self.links.get(record.conn) else {
            return false;
        };
        let of_head = |item: &SentPacket| {
            (item.kind, item.flow, item.slot, item.serial)
                == (SentKind::Request, flow, record.head, head.serial)
        };
        let mut under_way = InVain::NONE;
        for packet in conn.delivery.unacked() {
            let items = self.tx.packs.records(&packet).iter();
            let of_head = items.filter(|item| of_head(item));
            of_head.for_each(|item| under_way.missed(item.offset));
        }
        under_way.had_a_part(record.sending == record.head && record.sent_bytes > 0)
    }

    /// Winds up the clocks of flows that begin to wait.
    pub(super) fn wind_up(&mut self, now: Instant) {
        while let Some(flow) = self.flows.next_to_watch() {
            self.arm_watch(now, flow);
        }
    }

    fn arm_watch(&mut self, now: Instant, flow: u32) {
        let record = &self.flows[flow];
        let live = record.ending == Ending::No;
        let limit = live.then(|| self.limit_of(flow)).flatten();
        let Some(limit) = limit else {
            self.stop_watch(flow);
            return;
        };
        let acked_msn = record.acked_msn;
        self.flows.waits_though_left(flow, acked_msn);
        let record = &self.flows[flow];
        let seen = Seen {
            waited: self.waits_since(flow, Instant::FAR),
            conn: self
                .links
                .get(record.conn)
                .map(|_| self.links.id(record.conn)),
            bound: record.flags.has(Flags::BOUND),
            replay_epoch: record.replay_epoch,
            acked_msn: record.acked_msn,
        };
        self.flows.see(flow, seen);
        self.timers.arm(now + limit, Timer::Watch(flow).key());
    }

    /// Whether a flow waits for its peer: to agree, or to say anything at all after `heard`.
    fn waits_since(&self, flow: u32, heard: Instant) -> bool {
        let record = &self.flows[flow];
        if record.flags.has(Flags::RNR_WAIT) {
            return false;
        }
        let conn = self.links.get(record.conn);
        match conn.filter(|_| !record.flags.has(Flags::STRANDED)) {
            Some(conn) if record.flags.has(Flags::BOUND) => {
                conn.delivery.in_flight() > 0 && conn.delivery.heard_at() <= heard
            }
            // The peer cannot agree to what it was not asked yet.
            Some(_) => !record.is_to_ask_first(),
            None => true,
        }
    }

    /// Whether a connection has carried a word of the peer that ends what a flow waited for, which
    /// may be waiting for something else by now.
    fn went_on(&self, flow: u32, seen: &Seen, heard: Instant) -> bool {
        let record = &self.flows[flow];
        let Some(conn) = self.links.get(record.conn) else {
            return false;
        };
        if seen.conn != Some(self.links.id(record.conn)) {
            return false;
        }
        // A replay epoch begins after one to which the peer has agreed.
        record.replay_epoch != seen.replay_epoch || (seen.bound && conn.delivery.heard_at() > heard)
    }

    /// Whether a flow has something to wait for.
    pub(super) fn is_outstanding(&self, flow: u32) -> bool {
        let record = &self.flows[flow];
        let posted = || {
            let qp = &self.qps[record.qp];
            qp.state == QpState::Rts && qp.has_posted()
        };
        record.flags.has(Flags::STRANDED) || record.head != NONE || record.rung && posted()
    }

    /// The clock of a flow has run down.
    pub(super) fn watch_over(&mut self, now: Instant, flow: u32) {
        let record = &self.flows[flow];
        let (qp, acked_msn) = (record.qp, record.acked_msn);
        if record.ending != Ending::No || !self.is_outstanding(flow) {
            self.stop_watch(flow);
            return;
        }
        if self.flows.is_left(flow) {
            self.fail_left(flow);
            return;
        }
        let seen = self.flows.seen(flow);
        let limit = self.wait_limit(qp).unwrap_or(u64::MAX);
        let heard = Instant::from_nanos(now.as_nanos().saturating_sub(limit));
        let same = seen.acked_msn == acked_msn;
        let waited = seen.waited && same && !self.went_on(flow, &seen, heard);
        let lost = self.flows[flow].in_vain;
        let in_vain = same && lost.is_certain() && (lost.is_hopeless() || !self.is_carried(flow));
        if !(in_vain || waited && self.waits_since(flow, heard)) {
            self.arm_watch(now, flow);
            return;
        }
        self.stop_watch(flow);
        self.counters.timed_out.add(1);
        self.fail_stranded(flow);
    }
}
