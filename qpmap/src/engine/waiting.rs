//! QPs that wait to hear what their peer is, and flows that lost their connection.
//!
//! All of them wait for an ask of the node (`peer_asked`). One that nobody answers says little: a
//! few packets may be lost. So the peer is asked again for as long as anybody waits for it, and
//! they end by their own time; only a peer whose connection died of silence has had its time.
//!
//! What says that there is no way (`peer_unreachable`) ends those that wait since before that ask.

use super::binding::Ending;
use super::homes::Group;
use super::qp::{Flags, Wire};
use super::{Engine, Event, Platform, cold_of};
use crate::chain::{Chain, Chains};
use crate::slab::NONE;
use std::collections::BTreeMap;
use trunkline_conn::time::Instant;
use trunkline_conn::work::Status;
use trunkline_wire::{Gid, Qpn, Workers};

/// A QP whose peer is being asked what it is.
#[derive(Clone, Copy, Debug)]
struct Undecided {
    qp: u32,
    /// When the first ask began since it waits.
    asked: Option<Instant>,
}

/// A worker of a peer to which no connection leads any more.
#[derive(Clone, Copy, Debug, Default)]
struct Silence {
    /// The last one died of it; when it was heard last then.
    died: Option<Instant>,
    /// When the first ask began since then.
    asked: Option<Instant>,
}

/// One of those that wait.
#[derive(Clone, Copy, Debug)]
enum Waiter {
    Undecided(Undecided),
    Stranded(u32),
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
    /// What is heard of the workers of peers that they wait for: nothing.
    silences: BTreeMap<(u32, u8), Silence>,
}

impl Default for Waiting {
    fn default() -> Self {
        Self {
            undecided: BTreeMap::new(),
            links: Chains::new(),
            stranded: BTreeMap::new(),
            stranded_len: 0,
            silences: BTreeMap::new(),
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
        let link = self.waiting.join(remote, Undecided { qp, asked: None });
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

    /// The last connection to the worker of `peer` that has the QP `remote` is gone. Where it died
    /// of silence, its peer was heard last then.
    pub(crate) fn cut_off(&mut self, peer: u32, remote: Qpn, died: Option<Instant>) {
        let owner = self.peers[peer].workers.owner(remote.get());
        let silence = Silence { died, asked: None };
        self.waiting.silences.insert((peer, owner), silence);
    }

    /// There is a connection to it again. Gives when the peer was heard last over the one before,
    /// where that died of silence: an answer to an ask does not say that packets arrive.
    pub(crate) fn reach_again(&mut self, peer: u32, remote: Qpn) -> Option<Instant> {
        let owner = self.peers[peer].workers.owner(remote.get());
        self.waiting.silences.remove(&(peer, owner))?.died
    }

    /// What was heard of a peer counts no more.
    pub(crate) fn forget_silence(&mut self, peer: u32) {
        let silences = &mut self.waiting.silences;
        while let Some((&at, _)) = silences.range((peer, 0)..=(peer, u8::MAX)).next() {
            silences.remove(&at);
        }
    }

    /// Whether the last connection to the worker at `address` that has the QP `remote` died of its
    /// silence, and it has said nothing since.
    pub fn is_silent(&self, address: Gid, remote: Qpn) -> bool {
        let (peer, workers) = self.peer_and_workers(address);
        let at = (peer.unwrap_or(NONE), workers.owner(remote.get()));
        let silence = self.waiting.silences.get(&at);
        silence.is_some_and(|silence| silence.died.is_some())
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
    /// [`peer_unreachable`](Self::peer_unreachable) and [`peer_silent`](Self::peer_silent) speak
    /// for those that wait from now on.
    pub fn peer_asked(&mut self, now: Instant, address: Gid, remote: Qpn) {
        let (peer, workers) = self.peer_and_workers(address);
        let peer = peer.unwrap_or(NONE);
        let owner = workers.owner(remote.get());
        let Self { waiting, colds, .. } = self;
        if let Some(chain) = waiting.undecided.get(&address) {
            waiting.links.for_each(*chain, |at| {
                let remote = cold_of(colds, at.qp).attributes.dest_qpn;
                if workers.owner(remote.get()) == owner {
                    at.asked.get_or_insert(now);
                }
            });
        }
        for flow in self.homes.flows(self.waiting.stranded(peer)) {
            let record = &mut self.flows[flow];
            if workers.owner(record.remote.get()) == owner {
                record.flags.set(Flags::ASKED);
                let silence = self.waiting.silences.entry((peer, owner)).or_default();
                silence.asked.get_or_insert(now);
            }
        }
    }

    /// There is no way to the worker at `address` that has the QP `remote`: QPs that waited for an
    /// ask of it from its beginning go to error. Others may still wait
    /// ([`waiting_for`](Self::waiting_for)): for them it is to be asked again.
    pub fn peer_unreachable(&mut self, address: Gid, remote: Qpn) {
        self.ask_failed(address, remote, |_, _| true);
    }

    /// The same where it did not answer: QPs whose time is not over still wait, but for those whose
    /// connection died of the peer's silence and that asked for no more than failover takes.
    pub fn peer_silent(&mut self, now: Instant, address: Gid, remote: Qpn) {
        let (peer, workers) = self.peer_and_workers(address);
        let at = (peer.unwrap_or(NONE), workers.owner(remote.get()));
        let silence = self.waiting.silences.get(&at).copied();
        let silence = silence.unwrap_or_default();
        self.ask_failed(address, remote, |engine, waiter| {
            engine.has_waited(now, waiter, silence)
        });
    }

    /// Whether one that waits for a silent peer has done so for long enough.
    fn has_waited(&self, now: Instant, waiter: Waiter, silence: Silence) -> bool {
        let grace = self.config.failover_grace_ns;
        let waited = |asked: Option<Instant>| asked.map_or(0, |asked| now.since(asked));
        match waiter {
            Waiter::Undecided(at) => waited(at.asked) >= self.patience_of(at.qp).unwrap_or(grace),
            Waiter::Stranded(flow) => {
                let record = &self.flows[flow];
                let own = self.patience_of(record.qp);
                match own.filter(|_| record.ending == Ending::No) {
                    // Its clock runs, and ends it.
                    Some(own) => silence.died.is_some() && own <= grace,
                    None => silence.died.is_some() || waited(silence.asked) >= grace,
                }
            }
        }
    }

    fn ask_failed(&mut self, address: Gid, remote: Qpn, ends: impl Fn(&Self, Waiter) -> bool) {
        let (peer, workers) = self.peer_and_workers(address);
        let owner = workers.owner(remote.get());
        let owned = |remote: Qpn| workers.owner(remote.get()) == owner;
        let in_vain = |at: &Undecided| {
            at.asked.is_some()
                && owned(self.cold(at.qp).attributes.dest_qpn)
                && ends(self, Waiter::Undecided(*at))
        };
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
        let (failed, left): (Vec<u32>, Vec<u32>) =
            asked.partition(|flow| ends(self, Waiter::Stranded(*flow)));
        for flow in left {
            self.flows[flow].flags.clear(Flags::ASKED);
        }
        self.fail_stranded(failed);
    }
}
