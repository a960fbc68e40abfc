//! A peer asks.

use super::NodeCm;
use crate::TRUNKLINE_SERVICE;
use crate::binds::Bounds;
use crate::event::{Event, Route};
use crate::hello::{Hello, HelloError, Purpose};
use crate::message;
use crate::random::Random;
use crate::refusal::RefusalCode;
use crate::room::Room;
use crate::setup::Setup;
use crate::state::{Crossing, Exchange, ReqReceived, State};
use crate::table::Ids;
use alloc::boxed::Box;
use trunkline_conn::time::Instant;
use trunkline_wire::cm::{Answered, CommId, RejReason, Req, TransportService};
use trunkline_wire::{Gid, Qpn};

impl<R: Random> NodeCm<R> {
    pub(super) fn on_req(&mut self, now: Instant, route: Route, transaction: u64, req: &Req) {
        let ids = Ids {
            local: CommId(0),
            remote: req.local,
        };
        if req.service_id != TRUNKLINE_SERVICE {
            self.counters.foreign_service += 1;
            let reason = RejReason::InvalidServiceId;
            let rej = message::plain_rej(ids, Answered::Req, reason);
            self.send_to(route, message::mad(transaction, rej));
            return;
        }
        let inside = (req.primary.local_gid, req.primary.remote_gid);
        if inside != (Gid::from(route.remote), Gid::from(route.local)) {
            self.counters.address_mismatch += 1;
            return;
        }
        if let Some(index) = self.find_repeated(route, transaction, req.local) {
            self.on_repeated_req(index, transaction);
            return;
        }
        match self.consider(now, route, transaction, req) {
            Ok(()) => {}
            Err(code) => {
                let rej = message::rej(ids, Answered::Req, self.config.identity, code);
                self.send_to(route, message::mad(transaction, rej));
            }
        }
    }

    /// The slot of a peer's request that has come before. The peer's ID alone does not tell: a
    /// request that begins anew, after another had absorbed it, keeps its ID in a new transaction.
    fn find_repeated(&self, route: Route, transaction: u64, remote: CommId) -> Option<u32> {
        if remote == CommId(0) {
            return None;
        }
        self.table
            .find_theirs(route, remote, Exchange::of(transaction))
    }

    fn on_repeated_req(&mut self, index: u32, transaction: u64) {
        self.counters.duplicate += 1;
        let reply = self.table.update(index, |state| match state {
            State::RepSent(state) if state.sent.transaction == transaction => {
                state.credit.earn();
                Some(state.sent.mad)
            }
            _ => None,
        });
        if let Some(reply) = reply {
            self.send_in(index, reply);
        }
    }

    fn consider(
        &mut self,
        now: Instant,
        route: Route,
        transaction: u64,
        req: &Req,
    ) -> Result<(), RefusalCode> {
        let hello = match message::hello(req) {
            Ok(hello) if req.service == TransportService::Rc => hello,
            Err(HelloError::Version { .. }) => {
                self.counters.bad_hello += 1;
                return Err(RefusalCode::Version);
            }
            _ => {
                self.counters.bad_hello += 1;
                return Err(RefusalCode::Malformed);
            }
        };
        let crossing = self.crossing(route, req.qpn, &hello);
        // Before anything takes time: what a flood is told costs little.
        if crossing.is_none() {
            match self.room(route) {
                Room::Enough => {}
                Room::PeerHasItsShare => {
                    self.counters.unfair += 1;
                    return Err(RefusalCode::Busy);
                }
                Room::Share => {
                    self.counters.over_share += 1;
                    return Err(RefusalCode::Share);
                }
                Room::None => {
                    self.counters.busy += 1;
                    return Err(RefusalCode::Busy);
                }
            }
        }
        let us = self.config.identity;
        if us.tell_apart(hello.end.identity).is_err() {
            self.counters.identity += 1;
            return Err(RefusalCode::DuplicateGuid);
        }
        if let Some(index) = crossing {
            match Crossing::settle(us, hello.end.identity) {
                Crossing::OursWins => self.outdo(index),
                Crossing::TheirsWins => self.absorb(now, index, transaction, req, hello),
            }
            return Ok(());
        }
        let index = self
            .table
            .insert(route, (hello.purpose, true), &mut self.random)
            .ok_or(RefusalCode::Busy)?;
        let received = ReqReceived {
            transaction,
            hello,
            deadline: now + self.config.decide_ns,
        };
        self.table
            .set_state(index, State::ReqReceived(Box::new(received)));
        self.table.set_remote(index, req.local, req.qpn);
        self.events.push_back(Event::Incoming {
            id: self.id(index),
            route,
            remote_id: req.qpn,
            hello,
        });
        Ok(())
    }

    fn room(&self, route: Route) -> Room {
        let (load, limits) = (self.table.load(), &self.config.limits);
        let shares = (self.table.shares(), route.remote);
        Room::of(limits, load, self.events.len(), shares)
    }

    /// Our own request for the same connection.
    fn crossing(&self, route: Route, end: Qpn, hello: &Hello) -> Option<u32> {
        let peer = self.table.peer_at(route)?;
        let Purpose::Pool(_) = hello.purpose else {
            return None;
        };
        let crosses = |state: &State| match state {
            State::ReqSent(ours) => Crossing::of(&ours.request, end, hello),
            _ => false,
        };
        let mut same = self.table.in_place(peer, hello.purpose);
        let found = same.find(|(_, slot)| crosses(slot.state()));
        found.map(|(index, _)| index)
    }

    /// Ours wins: instead of a refusal the peer gets our request once more, as the first may be
    /// lost.
    fn outdo(&mut self, index: u32) {
        self.counters.crossed += 1;
        if let State::ReqSent(state) = self.table.slot(index).state() {
            let request = state.sent.mad;
            self.send_to(self.table.route(index), request);
        }
    }

    /// Theirs wins: our handshake goes on as the answer to it, under the same number.
    fn absorb(&mut self, now: Instant, index: u32, transaction: u64, req: &Req, hello: Hello) {
        self.table.set_remote(index, req.local, req.qpn);
        let State::ReqSent(ours) = self.table.slot(index).state() else {
            unreachable!("only a request of ours is absorbed")
        };
        let (request, resumed) = (ours.request, ours.resumed);
        let bounds = Bounds::mutual(&request.binds, &hello.binds);
        let (received, absorbed) = ((transaction, hello), Some((request, resumed)));
        self.answer(now, index, received, request.offer, bounds, absorbed);
    }
}
