//! QPs that wait to hear what their peer is, and flows that lost their connection.
//!
//! All of them wait for an ask of the node (`peer_asked`). Those that joined while it was under way
//! are not judged by its end: their peer had less time to answer than an ask has.

use super::qp::{Flags, Wire};
use super::{Engine, Event, Platform};
use crate::slab::NONE;
use crate::state::QpType;
use std::collections::BTreeMap;
use trunkline_conn::work::Status;
use trunkline_wire::{Gid, Qpn, Workers};

/// A QP whose peer is being asked what it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Undecided {
    qp: u32,
    /// An ask began since it waits.
    asked: bool,
}

/// A flow whose connection is gone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stranded {
    peer: u32,
    flow: u32,
    /// An ask began since it waits.
    asked: bool,
}

impl<P: Platform> Engine<P> {
    /// A QP has to wait until it is known what its peer is.
    pub(crate) fn wait_undecided(&mut self, qp: u32) {
        self.qps[qp].wire = Wire::Undecided;
        let remote = self.cold(qp).attributes.remote;
        let waiter = Undecided { qp, asked: false };
        self.undecided.entry(remote).or_default().push(waiter);
    }

    pub(crate) fn undecided_of(&self, peer: Gid) -> impl Iterator<Item = u32> {
        let waiting = self.undecided.get(&peer);
        waiting.into_iter().flatten().map(|waiter| waiter.qp)
    }

    pub(crate) fn leave_undecided(&mut self, qp: u32) {
        if self.qps[qp].wire != Wire::Undecided {
            return;
        }
        self.qps[qp].wire = Wire::None;
        let remote = self.cold(qp).attributes.remote;
        if let Some(waiting) = self.undecided.get_mut(&remote) {
            waiting.retain(|other| other.qp != qp);
            if waiting.is_empty() {
                self.undecided.remove(&remote);
            }
        }
    }

    /// The peer at `address` shares connections: QPs that waited to hear it bind to one.
    pub(crate) fn resolve_undecided(&mut self, address: Gid) {
        let peer = self.peer_of[&address];
        for Undecided { qp, .. } in self.undecided.remove(&address).unwrap_or_default() {
            match self.pick(peer, self.cold(qp).attributes.dest_qpn) {
                Some(conn) => self.share(qp, conn),
                None => self.wait_undecided(qp),
            }
        }
    }

    /// The peer at `address` is an ordinary RoCEv2 host: QPs that waited to hear it get an IBTA
    /// connection of their own.
    pub fn peer_is_plain(&mut self, address: Gid) {
        for Undecided { qp, .. } in self.undecided.remove(&address).unwrap_or_default() {
            self.open_plain(qp);
        }
    }

    /// A flow has to wait for another connection to its peer.
    pub(crate) fn strand(&mut self, peer: u32, flow: u32) {
        self.flows[flow].flags.set(Flags::STRANDED);
        self.stranded.push(Stranded {
            peer,
            flow,
            asked: false,
        });
    }

    pub(crate) fn is_stranded(&self, peer: u32, flow: u32) -> bool {
        let is_it = |other: &Stranded| (other.peer, other.flow) == (peer, flow);
        self.flows[flow].flags.has(Flags::STRANDED) && self.stranded.iter().any(is_it)
    }

    pub(crate) fn leave_stranded(&mut self, flow: u32) {
        self.stranded.retain(|other| other.flow != flow);
    }

    /// There is a connection to `peer`: flows that waited for one move to it.
    pub(crate) fn rescue_stranded(&mut self, peer: u32) {
        for flow in self.take_stranded(|_, at| at.peer == peer) {
            match self.pick(peer, self.flows[flow].remote) {
                Some(conn) => self.resume_on(flow, conn),
                None => self.strand(peer, flow),
            }
        }
    }

    /// Fails those that wait for `peer` and that the peer has heard of; whether there are others.
    pub(crate) fn fail_heard(&mut self, peer: u32) -> bool {
        let stranded = std::mem::take(&mut self.stranded).into_iter();
        let heard = |at: &Stranded| self.flows[at.flow].flags.has(Flags::HEARD);
        let (failed, left): (Vec<_>, _) = stranded.partition(|at| at.peer == peer && heard(at));
        self.stranded = left;
        self.fail_stranded(failed.into_iter().map(|at| at.flow).collect());
        self.stranded.iter().any(|flow| flow.peer == peer)
    }

    fn take_stranded(&mut self, chosen: impl Fn(&Self, &Stranded) -> bool) -> Vec<u32> {
        let (taken, left): (Vec<_>, Vec<_>) = std::mem::take(&mut self.stranded)
            .into_iter()
            .partition(|at| chosen(self, at));
        self.stranded = left;
        taken.into_iter().map(|stranded| stranded.flow).collect()
    }

    fn fail_stranded(&mut self, flows: Vec<u32>) {
        for flow in flows {
            self.flows[flow].flags.clear(Flags::STRANDED);
            if self.is_idle_route(flow) {
                // The QP has others; what is posted to this one later will fail.
                self.flows[flow].flags.clear(Flags::BOUND);
                self.flows[flow].flags.clear(Flags::PEER_BOUND);
                self.reset_responder(flow);
            } else {
                self.fail_flow(flow, Status::RetryExceeded);
            }
        }
    }

    /// Whether a flow is one of several that an app-managed QP may have, with nothing outstanding.
    fn is_idle_route(&self, flow: u32) -> bool {
        let record = &self.flows[flow];
        self.cold(record.qp).kind == QpType::Src && record.head == NONE
    }

    /// QPs at `address` that QPs here wait for a connection to: one of each worker there.
    pub fn waiting_for(&self, address: Gid) -> Vec<Qpn> {
        let (peer, workers) = self.peer_and_workers(address);
        let undecided = self.undecided.get(&address).into_iter().flatten();
        let undecided = undecided.map(|at| self.cold(at.qp).attributes.dest_qpn);
        let stranded = self.stranded.iter().filter(|at| Some(at.peer) == peer);
        let stranded = stranded.map(|at| self.flows[at.flow].remote);
        let mut found: BTreeMap<u8, Qpn> = BTreeMap::new();
        for remote in undecided.chain(stranded) {
            found.entry(workers.owner(remote.get())).or_insert(remote);
        }
        found.into_values().collect()
    }

    /// There is a connection to `peer`, and yet some wait: for other workers of it, which may not
    /// have been known before.
    pub(crate) fn ask_for_waiting(&mut self, peer: Gid) {
        for remote in self.waiting_for(peer) {
            self.events.push_back(Event::Ask { peer, remote });
        }
    }

    /// The peer at `address`, and its workers: one, as long as nothing is known of it.
    fn peer_and_workers(&self, address: Gid) -> (Option<u32>, Workers) {
        let peer = self.peer_of.get(&address).copied();
        let workers = peer.map_or(Workers::ONE, |peer| self.peers[peer].workers);
        (peer, workers)
    }

    /// An ask of the worker at `address` that has the QP `remote` begins:
    /// [`peer_unreachable`](Self::peer_unreachable) speaks for those that wait from now on.
    pub fn peer_asked(&mut self, address: Gid, remote: Qpn) {
        let (peer, workers) = self.peer_and_workers(address);
        let owner = workers.owner(remote.get());
        let mut undecided = self.undecided.remove(&address).unwrap_or_default();
        for at in &mut undecided {
            let remote = self.cold(at.qp).attributes.dest_qpn;
            at.asked |= workers.owner(remote.get()) == owner;
        }
        if !undecided.is_empty() {
            self.undecided.insert(address, undecided);
        }
        for at in self.stranded.iter_mut().filter(|at| Some(at.peer) == peer) {
            at.asked |= workers.owner(self.flows[at.flow].remote.get()) == owner;
        }
    }

    /// The worker at `address` that has the QP `remote` did not answer an ask: QPs that waited for
    /// it from its beginning go to error. Others may still wait
    /// ([`waiting_for`](Self::waiting_for)): for them it is to be asked again.
    pub fn peer_unreachable(&mut self, address: Gid, remote: Qpn) {
        let (peer, workers) = self.peer_and_workers(address);
        let owner = workers.owner(remote.get());
        if let Some(waiting) = self.undecided.remove(&address) {
            let in_vain = |at: &Undecided| {
                let remote = self.cold(at.qp).attributes.dest_qpn;
                at.asked && workers.owner(remote.get()) == owner
            };
            let (asked, others): (Vec<_>, Vec<_>) = waiting.into_iter().partition(in_vain);
            if !others.is_empty() {
                self.undecided.insert(address, others);
            }
            for Undecided { qp, .. } in asked {
                self.qps[qp].wire = Wire::None;
                self.fail_qp(qp, Status::RetryExceeded);
            }
        }
        let to_fail = |engine: &Self, at: &Stranded| {
            let remote = engine.flows[at.flow].remote;
            Some(at.peer) == peer && at.asked && workers.owner(remote.get()) == owner
        };
        let flows = self.take_stranded(to_fail);
        self.fail_stranded(flows);
    }

    /// QPs and flows that wait.
    pub(super) fn waiting_len(&self) -> usize {
        let undecided: usize = self.undecided.values().map(Vec::len).sum();
        undecided + self.stranded.len()
    }
}
