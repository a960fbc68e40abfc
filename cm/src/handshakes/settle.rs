//! How handshakes come to something, and how they end.

use super::NodeCm;
use crate::event::{CloseReason, Established, Event};
use crate::hello::Purpose;
use crate::identity::Identity;
use crate::random::Random;
use crate::records::Records;
use crate::refusal::RefusalCode;
use crate::state::{Exchange, State};
use alloc::vec::Vec;
use trunkline_conn::time::Instant;
use trunkline_wire::cm::Answered;

impl<R: Random> NodeCm<R> {
    /// The peer confirmed, by RTU or by a packet on the connection.
    pub(super) fn confirmed(&mut self, now: Instant, index: u32) {
        let (id, route) = (self.id(index), self.table.route(index));
        let slot = self.table.slot(index);
        let State::RepSent(state) = slot.state() else {
            unreachable!("only accepted handshakes are confirmed")
        };
        let terms = state.on_rtu(id, route, slot.remote_qpn());
        if self.is_outlived(index, state.knew, terms.identity) {
            let transaction = state.sent.transaction;
            self.send_rej(index, transaction, Answered::Other, RefusalCode::Cancelled);
            self.abandoned(now, index, CloseReason::PeerRestarted);
            return;
        }
        self.establish(now, index, terms);
    }

    /// Whether the one who proves to be `identity` may belong to an earlier life of the peer: since
    /// it was asked, when the peer had proved to be `knew`, another life has proved to be there,
    /// and this answer may have been under way for longer.
    pub(super) fn is_outlived(
        &self,
        index: u32,
        knew: Option<Identity>,
        identity: Identity,
    ) -> bool {
        let known = self.known(index);
        known.is_some() && known != Some(identity) && known != knew
    }

    /// The connection stands: what it supersedes ends before.
    pub(super) fn establish(&mut self, now: Instant, index: u32, terms: Established) {
        let peer = self.table.slot(index).peer();
        // What others say who have the same GUID elsewhere counts for nothing here, nor this there.
        let old = self.table.peer(peer).identity();
        if let Some(old) = old.filter(|old| *old != terms.identity) {
            self.table.forget_identity(peer);
            self.restarted(index, peer, old, terms.identity);
        }
        let ours = self.config.identity.guid == terms.identity.guid;
        let twin = ours || self.table.has_twin(peer, terms.identity.guid);
        if twin && self.table.peer(peer).identity().is_none() {
            self.counters.duplicate_guid += 1;
        }
        if let Purpose::Pool(_) = terms.purpose {
            let owner = terms.workers.owner(terms.remote_id.get());
            let superseded: Vec<u32> = self
                .table
                .in_place(peer, terms.purpose)
                .filter(|(other, slot)| {
                    *other != index
                        && terms.workers.owner(slot.remote_qpn().get()) == owner
                        && matches!(slot.state(), State::Established(_))
                })
                .map(|(other, _)| other)
                .collect();
            for other in superseded {
                self.finish_later(now, other, CloseReason::Replaced);
            }
        }
        self.table.set_identity(peer, terms.identity, terms.workers);
        let exchange = self.exchange(index);
        self.table.set_state(index, State::Established(exchange));
        self.events.push_back(Event::Established(terms));
    }

    /// Behind the addresses of `peer` another incarnation has proved to be: what the old one had
    /// ends. `keep` is the handshake that proved it.
    fn restarted(&mut self, keep: u32, peer: u16, old: Identity, new: Identity) {
        let route = self.table.peer_route(peer);
        self.events
            .push_back(Event::PeerRestarted { route, old, new });
        let ended: Vec<u32> = self
            .table
            .slots_of(peer)
            .filter(|(index, slot)| {
                *index != keep && (slot.state().is_live() || slot.state().claimed() == Some(old))
            })
            .map(|(index, _)| index)
            .collect();
        for index in ended {
            self.finish(index, CloseReason::PeerRestarted);
        }
    }

    /// Ends a handshake at once: late messages of it find nothing.
    pub(super) fn finish(&mut self, index: u32, reason: CloseReason) {
        let (id, route) = (self.id(index), self.table.route(index));
        self.finish_with(index, Event::Closed { id, route, reason });
    }

    pub(super) fn finish_with(&mut self, index: u32, event: Event) {
        self.table.remove(index);
        self.events.push_back(event);
    }

    /// Ends a connection that stood: late messages of it are known for what they are.
    pub(super) fn finish_later(&mut self, now: Instant, index: u32, reason: CloseReason) {
        let (id, route) = (self.id(index), self.table.route(index));
        let until = now + self.config.time_wait_ns;
        let exchange = self.exchange(index);
        self.table
            .set_state(index, State::TimeWait { exchange, until });
        self.linger(index);
        self.events.push_back(Event::Closed { id, route, reason });
    }

    /// An accepted request of the peer came to nothing. The request of this node that it had
    /// absorbed, if any, begins anew.
    pub(super) fn abandoned(&mut self, now: Instant, index: u32, reason: CloseReason) {
        let resumed = match self.table.slot(index).state() {
            State::RepSent(state) => state.resumable(),
            _ => None,
        };
        match resumed {
            Some((request, resumed)) => self.send_request(now, index, request, resumed),
            None => self.finish(index, reason),
        }
    }

    fn exchange(&self, index: u32) -> Exchange {
        let exchange = self.table.slot(index).state().exchange();
        exchange.expect("a handshake that comes to something was opened in an exchange")
    }

    /// Nobody answers, decides or confirms.
    pub(super) fn timed_out(&mut self, now: Instant, index: u32) {
        match self.table.slot(index).state() {
            State::ReqSent(_) => {
                let (id, route) = (self.id(index), self.table.route(index));
                self.finish_with(index, Event::Silent { id, route });
            }
            State::ReqReceived(_) => {
                self.refuse_received(index, RefusalCode::Busy, CloseReason::Undecided);
            }
            State::RepSent(state) => {
                let (transaction, code) = (state.sent.transaction, RefusalCode::Unconfirmed);
                self.send_rej(index, transaction, Answered::Other, code);
                self.abandoned(now, index, CloseReason::Unconfirmed);
            }
            State::DreqSent(_) => self.finish_later(now, index, CloseReason::Local),
            state => unreachable!("a {state:?} has no deadline"),
        }
    }
}
