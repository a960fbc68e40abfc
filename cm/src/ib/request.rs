//! A peer asks for a connection.

use super::event::{Event, RequestTerms};
use super::message::{self, Ids};
use super::state::{State, Undecided};
use super::table::Subject;
use super::{CloseReason, IbCm};
use crate::event::Route;
use crate::message::mad;
use crate::random::Random;
use crate::retry::timeout_ns;
use crate::room::Room;
use crate::setup::Setup;
use alloc::boxed::Box;
use trunkline_conn::time::Instant;
use trunkline_wire::cm::{Answered, CommId, PrivateData, RejReason, Req, TransportService};
use trunkline_wire::{Gid, Qpn};

impl<R: Random> IbCm<R> {
    pub(super) fn on_req(&mut self, now: Instant, route: Route, transaction: u64, req: &Req) {
        if let Some(index) = self.find_theirs(route, Subject::Connection, req.local) {
            self.on_repeated_req(index, transaction, req);
            return;
        }
        if let Err(reason) = self.judge_req(route, req) {
            self.refuse_req(route, transaction, req, reason);
            return;
        }
        if self.is_stale(now, route, req.qpn, req.ca_guid) {
            self.refuse_req(route, transaction, req, RejReason::StaleConnection);
            return;
        }
        match self.room(route) {
            Room::Enough => self.take_req(now, route, transaction, req),
            Room::PeerHasItsShare => {
                self.counters.unfair += 1;
                self.refuse_req(route, transaction, req, RejReason::NoResources);
            }
            Room::Share => {
                self.counters.over_share += 1;
                self.refuse_req(route, transaction, req, RejReason::NoResources);
            }
            Room::None => {
                self.counters.busy += 1;
                let timeout = self.config.busy_timeout;
                let mra = message::mra(no_number(req.local), Answered::Req, timeout);
                self.send_to(route, mad(transaction, mra));
            }
        }
    }

    /// What the peer asked for under this number; our address has to be the same too.
    pub(super) fn find_theirs(&self, route: Route, subject: Subject, id: CommId) -> Option<u32> {
        let index = self.table.find_theirs(route.remote, subject, id)?;
        (self.table.slot(index).route == route).then_some(index)
    }

    fn on_repeated_req(&mut self, index: u32, transaction: u64, req: &Req) {
        self.table.credit(index).earn();
        let slot = self.table.slot(index);
        let same_qp = slot.remote_qp().is_some_and(|(qpn, _)| qpn == req.qpn);
        let refusal = match slot.state() {
            State::TimeWait { .. } => {
                self.counters.stale += 1;
                let reason = RejReason::StaleConnection;
                Some(reason)
            }
            State::ReqReceived(undecided) if undecided.transaction == transaction && same_qp => {
                self.counters.duplicate += 1;
                // Until the first MRA is due, only the network makes copies: they need no answer.
                if undecided.mra_at.is_none() {
                    self.send_mra(index, transaction, Answered::Req);
                }
                None
            }
            State::RepSent(sent) if sent.transaction == transaction && same_qp => {
                self.counters.duplicate += 1;
                let again = sent.mad;
                self.send_in(index, again);
                None
            }
            State::ReqReceived(_) | State::RepSent(_) => {
                self.counters.mismatch += 1;
                let reason = RejReason::DuplicateLocalCommId;
                Some(reason)
            }
            // A copy that the network made: a peer that is connected does not ask again.
            _ => {
                self.counters.duplicate += 1;
                None
            }
        };
        if let Some(reason) = refusal {
            self.refuse_req(self.table.slot(index).route, transaction, req, reason);
        }
    }

    fn judge_req(&mut self, route: Route, req: &Req) -> Result<(), RejReason> {
        if !self.services.contains(&req.service_id.0) {
            self.counters.no_service += 1;
            return Err(RejReason::InvalidServiceId);
        }
        let inside = (req.primary.local_gid, req.primary.remote_gid);
        if inside != (Gid::from(route.remote), Gid::from(route.local)) {
            self.counters.address_mismatch += 1;
            return Err(RejReason::InvalidGid);
        }
        let reason = match req.service {
            TransportService::Rd | TransportService::Extended => RejReason::InvalidTransportType,
            _ if req.local == CommId(0) => RejReason::InvalidCommId,
            _ if req.qpn <= Qpn::GSI => RejReason::InvalidCommInstance,
            _ if !(1..=self.config.mtu).contains(&req.path_mtu) => RejReason::InvalidMtu,
            _ => return Ok(()),
        };
        self.counters.invalid += 1;
        Err(reason)
    }

    /// Whether a peer's QP has a connection already that is not over here. If that one stood, the
    /// peer has lost it: it is ended, and the peer told so.
    ///
    /// The GUID has to be the one with which the QP was connected. A Trunkline peer tells each
    /// address another ([`Guids::PerPeer`](super::Guids::PerPeer)), which nobody else can guess, so
    /// that forged messages end nothing.
    pub(super) fn is_stale(&mut self, now: Instant, route: Route, qpn: Qpn, guid: u64) -> bool {
        let found = self.table.find_remote_qp(route.remote, qpn, guid);
        let Some(index) = found else {
            return false;
        };
        let slot = self.table.slot(index);
        if slot.route != route {
            return false;
        }
        self.counters.stale += 1;
        match slot.state() {
            State::Established(_) => {
                self.disconnect(now, index, CloseReason::Stale, PrivateData::default());
            }
            // The peer may have given that one up, and say so when it hears of it.
            State::RepSent(sent) => {
                let again = sent.mad;
                self.send_in(index, again);
            }
            _ => {}
        }
        true
    }

    pub(super) fn room(&self, route: Route) -> Room {
        let (load, limits) = (self.table.load(), &self.config.limits);
        let shares = (self.table.shares(), route.remote);
        Room::of(limits, load, self.events.len(), shares)
    }

    fn take_req(&mut self, now: Instant, route: Route, transaction: u64, req: &Req) {
        let index = self.table.insert(route, &mut self.random);
        self.table.set_theirs(index, Subject::Connection, req.local);
        let granted = timeout_ns(req.remote_response_timeout);
        let undecided = self.decision(now, transaction, granted);
        self.table.set_state(index, State::ReqReceived(undecided));
        self.meet(index, req.qpn, req.ca_guid);
        self.events.push_back(Event::Incoming {
            id: self.conn(index),
            route,
            terms: RequestTerms::of(req),
        });
    }

    /// What this node's owner has to decide on from now on; the peer granted `granted_ns` for it.
    pub(super) fn decision(
        &self,
        now: Instant,
        transaction: u64,
        granted_ns: u64,
    ) -> Box<Undecided> {
        Box::new(Undecided {
            transaction,
            mra_at: Some(now + self.config.mra_ns.min(granted_ns / 2)),
            decide_by: now + self.config.decide_ns,
        })
    }

    fn refuse_req(&mut self, route: Route, transaction: u64, req: &Req, reason: RejReason) {
        let rej = message::rej(no_number(req.local), Answered::Req, reason);
        self.send_to(route, mad(transaction, rej));
    }
}

/// This end has made no number for what the peer calls `remote`.
const fn no_number(remote: CommId) -> Ids {
    Ids {
        local: CommId(0),
        remote,
    }
}
