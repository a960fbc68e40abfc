//! QPs that wait to hear what their peer is, and flows that lost their connection.
//!
//! All of them wait for an ask of the node (`peer_asked`). Those that joined while it was under way
//! are not judged by its end: their peer had less time to answer than an ask has.

use super::homes::Group;
use super::qp::{Flags, Wire};
use super::{Engine, Event, Platform, cold_of};
use crate::chain::{Chain, Chains};
use crate::slab::NONE;
use std::collections::BTreeMap;
use trunkline_conn::work::Status;
use trunkline_wire::{Gid, Qpn, Workers};

/// A QP whose peer is being asked what it is.
#[derive(Clone, Copy, Debug)]
struct Undecided {
    qp: u32,
    /// An ask began since it waits.
    asked: bool,
}

/// Who waits, for which peer.
#[derive(Debug)]
pub(crate) struct Waiting {
    /// QPs that wait to hear what the peer at an address is. Ordered, so that walks replay.
    undecided: BTreeMap<Gid, Chain>,
    links: Chains<Undecided>,
    /// Flows whose connection to a peer died.
    stranded: BTreeMap<u32, Group>,
    stranded_len: usize,
}

impl Default for Waiting {
    fn default() -> Self {
        Self {
            undecided: BTreeMap::new(),
            links: Chains::new(),
            stranded: BTreeMap::new(),
            stranded_len: 0,
        }
    }
}

impl Waiting {
    /// QPs and flows that wait.
    pub(super) const fn len(&self) -> usize {
        self.links.len() + self.stranded_len
    }

    fn join(&mut self, peer: Gid, waiter: Undecided) -> u32 {
        let chain = self.undecided.entry(peer).or_insert(Chain::EMPTY);
        self.links.push(chain, waiter)
    }

    fn leave(&mut self, peer: Gid, link: u32) {
        let chain = self.undecided.get_mut(&peer);
        let chain = chain.expect("it holds the list of each link");
        self.links.remove(chain, link);
        if chain.is_empty() {
            self.undecided.remove(&peer);
        }
    }

    fn of(&self, peer: Gid) -> impl Iterator<Item = Undecided> {
        let chain = self.undecided.get(&peer).copied();
        self.links.iter(chain.unwrap_or(Chain::EMPTY))
    }

    /// Empties a list.
    fn take(&mut self, peer: Gid) -> Vec<u32> {
        let mut chain = self.undecided.remove(&peer).unwrap_or(Chain::EMPTY);
        let taken = std::iter::from_fn(|| self.links.pop(&mut chain));
        taken.map(|waiter| waiter.qp).collect()
    }

    fn stranded(&self, peer: u32) -> Group {
        self.stranded.get(&peer).copied().unwrap_or(Group::EMPTY)
    }
}

impl<P: Platform> Engine<P> {
    /// A QP has to wait until it is known what its peer is.
    pub(crate) fn wait_undecided(&mut self, qp: u32) {
        let remote = self.cold(qp).attributes.remote;
        let link = self.waiting.join(remote, Undecided { qp, asked: false });
        self.qps[qp].wire = Wire::Undecided(link);
    }

    pub(crate) fn undecided_of(&self, peer: Gid) -> impl Iterator<Item = u32> {
        self.waiting.of(peer).map(|waiter| waiter.qp)
    }

    pub(crate) fn leave_undecided(&mut self, qp: u32) {
        if let Wire::Undecided(link) = self.qps[qp].wire {
            self.qps[qp].wire = Wire::None;
            let remote = self.cold(qp).attributes.remote;
            self.waiting.leave(remote, link);
        }
    }

    /// The peer at `address` shares connections: QPs that waited to hear it bind to one.
    pub(crate) fn resolve_undecided(&mut self, address: Gid) {
        let peer = self.peer_of[&address];
        for qp in self.waiting.take(address) {
            match self.pick(peer, self.cold(qp).attributes.dest_qpn) {
                Some(conn) => self.share(qp, conn),
                None => self.wait_undecided(qp),
            }
        }
    }

    /// The peer at `address` is an ordinary RoCEv2 host: QPs that waited to hear it get an IBTA
    /// connection of their own.
    pub fn peer_is_plain(&mut self, address: Gid) {
        for qp in self.waiting.take(address) {
            self.open_plain(qp);
            self.admit_waiting(qp);
        }
    }

    /// A flow without a connection has to wait for another one to its peer.
    pub(crate) fn strand(&mut self, flow: u32) {
        let flags = &mut self.flows[flow].flags;
        flags.set(Flags::STRANDED);
        flags.clear(Flags::ASKED);
        self.watch(flow);
        let peer = self.homes.peer(flow);
        let group = self.waiting.stranded.entry(peer).or_insert(Group::EMPTY);
        self.homes.join(group, flow);
        self.waiting.stranded_len += 1;
    }

    pub(crate) fn leave_stranded(&mut self, flow: u32) {
        let flags = &mut self.flows[flow].flags;
        if !flags.has(Flags::STRANDED) {
            return;
        }
        flags.clear(Flags::STRANDED);
        let peer = self.homes.peer(flow);
        let group = self.waiting.stranded.get_mut(&peer);
        let group = group.expect("it holds the group of each flow that waits");
        self.homes.leave(group, flow);
        self.waiting.stranded_len -= 1;
        if group.is_empty() {
            self.waiting.stranded.remove(&peer);
        }
    }

    /// Flows that wait for a connection to `peer`.
    fn stranded_at(&self, peer: u32) -> impl Iterator<Item = u32> {
        self.homes.flows(self.waiting.stranded(peer))
    }

    /// There is a connection to `peer`: flows that waited for one move to it.
    pub(crate) fn rescue_stranded(&mut self, peer: u32) {
        let waiting: Vec<u32> = self.stranded_at(peer).collect();
        for flow in waiting {
            if let Some(conn) = self.pick(peer, self.flows[flow].remote) {
                self.resume_on(flow, conn);
            } else {
                // For another worker of the peer, which may have to be asked for yet.
                self.flows[flow].flags.clear(Flags::ASKED);
            }
        }
    }

    /// Fails those that wait for `peer` and that the peer has heard of; whether there are others.
    pub(crate) fn fail_heard(&mut self, peer: u32) -> bool {
        let heard = |flow: &u32| self.flows[*flow].flags.has(Flags::HEARD);
        let failed: Vec<u32> = self.stranded_at(peer).filter(heard).collect();
        self.fail_stranded(failed);
        !self.waiting.stranded(peer).is_empty()
    }

    pub(crate) fn fail_stranded(&mut self, flows: Vec<u32>) {
        for &flow in &flows {
            self.leave_stranded(flow);
        }
        for flow in flows {
            self.fail_flow(flow, Status::RetryExceeded);
        }
    }

    /// Whether flows to `address` have lost their connection and wait for another.
    pub fn has_stranded(&self, address: Gid) -> bool {
        let (peer, _) = self.peer_and_workers(address);
        self.stranded_at(peer.unwrap_or(NONE)).next().is_some()
    }

    /// QPs at `address` that QPs here wait for a connection to: one of each worker there.
    pub fn waiting_for(&self, address: Gid) -> Vec<Qpn> {
        let (peer, workers) = self.peer_and_workers(address);
        let undecided = self.waiting.of(address);
        let undecided = undecided.map(|at| self.cold(at.qp).attributes.dest_qpn);
        let stranded = self.stranded_at(peer.unwrap_or(NONE));
        let stranded = stranded.map(|flow| self.flows[flow].remote);
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
        let Self { waiting, colds, .. } = self;
        if let Some(chain) = waiting.undecided.get(&address) {
            waiting.links.for_each(*chain, |at| {
                let remote = cold_of(colds, at.qp).attributes.dest_qpn;
                at.asked |= workers.owner(remote.get()) == owner;
            });
        }
        let group = self.waiting.stranded(peer.unwrap_or(NONE));
        for flow in self.homes.flows(group) {
            let record = &mut self.flows[flow];
            if workers.owner(record.remote.get()) == owner {
                record.flags.set(Flags::ASKED);
            }
        }
    }

    /// There is no way to the worker at `address` that has the QP `remote`: QPs that waited for an
    /// ask of it from its beginning go to error. Others may still wait
    /// ([`waiting_for`](Self::waiting_for)): for them it is to be asked again.
    pub fn peer_unreachable(&mut self, address: Gid, remote: Qpn) {
        self.ask_failed(address, remote, |_, _| true);
    }

    /// The same where it did not answer: QPs that were to wait for longer than failover takes still
    /// do, until their own time is over.
    pub fn peer_silent(&mut self, address: Gid, remote: Qpn) {
        self.ask_failed(address, remote, |engine, flow| {
            !engine.outlasts_failover(flow)
        });
    }

    fn ask_failed(&mut self, address: Gid, remote: Qpn, ends: impl Fn(&Self, u32) -> bool) {
        let (peer, workers) = self.peer_and_workers(address);
        let owner = workers.owner(remote.get());
        let owned = |remote: Qpn| workers.owner(remote.get()) == owner;
        let in_vain = |at: &Undecided| at.asked && owned(self.cold(at.qp).attributes.dest_qpn);
        let failed = self.waiting.of(address).filter(in_vain);
        let failed: Vec<u32> = failed.map(|at| at.qp).collect();
        for &qp in &failed {
            self.leave_undecided(qp);
        }
        for qp in failed {
            self.fail_qp(qp, Status::RetryExceeded);
        }
        let in_vain = |flow: &u32| {
            let record = &self.flows[*flow];
            record.flags.has(Flags::ASKED) && owned(record.remote)
        };
        let asked = self.stranded_at(peer.unwrap_or(NONE)).filter(in_vain);
        let (failed, left): (Vec<u32>, Vec<u32>) = asked.partition(|flow| ends(self, *flow));
        for flow in left {
            self.flows[flow].flags.clear(Flags::ASKED);
        }
        self.fail_stranded(failed);
    }
}
