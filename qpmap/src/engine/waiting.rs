//! QPs that wait to hear what their peer is, and flows that lost their connection.
//!
//! All of them wait for a connect request of the node (`connect_request_begins`). One that nobody
//! answers says little: a few packets may be lost. So the peer is asked again for as long as
//! anybody waits for it, and they end by their own time; only a peer whose connection died of
//! silence has had its time.
//!
//! What says that there is no way (`peer_unreachable`) ends those that wait since before that
//! connect request.
//!
//! There may be as many as there are QPs. So they stand in lines by what their numbers say of the
//! peer's worker, whole lists of which change hands at once, and what each of them has to go
//! through is done some in each round (`backlog`).

use super::backlog::{Share, Task};
use super::ending::Ending;
use super::flows::Group;
use super::links::Peer;
use super::pairing::{LINES, LineOf, Undecided, Verdict, line_of, number_of};
use super::qp::{Flags, Wire};
use super::{Cause, Engine, Event, Platform};
use crate::chain::Chain;
use crate::slab::NONE;
use std::collections::{BTreeMap, BTreeSet};
use trunkline_conn::time::Instant;
use trunkline_conn::work::{Status, VendorError};
use trunkline_wire::{Gid, Qpn, Workers};

impl<P: Platform> Engine<P> {
    /// A QP has to wait until it is known what its peer is.
    pub(crate) fn wait_undecided(&mut self, qp: u32) {
        self.wait_again(Undecided {
            qp,
            requested: None,
        });
    }

    fn wait_again(&mut self, waiter: Undecided) {
        let at = self.undecided_line(waiter.qp);
        let link = self.pairing.waiting.join(at, waiter);
        self.qps[waiter.qp].wire = Wire::Undecided(link);
    }

    fn undecided_line(&self, qp: u32) -> (Gid, u8) {
        let attributes = &self.cold(qp).attributes;
        (attributes.remote, line_of(attributes.dest_qpn))
    }

    pub(crate) fn undecided_of(&self, peer: Gid) -> impl Iterator<Item = u32> {
        self.pairing.waiting.undecided_of(peer)
    }

    pub(crate) fn leave_undecided(&mut self, qp: u32) {
        self.take_undecided(qp);
    }

    fn take_undecided(&mut self, qp: u32) -> Option<Undecided> {
        let Wire::Undecided(link) = self.qps[qp].wire else {
            return None;
        };
        self.qps[qp].wire = Wire::None;
        let at = self.undecided_line(qp);
        Some(self.pairing.waiting.leave(at, link))
    }

    /// The peer at `peer` shares connections: QPs that waited to hear it bind to one. Gives whether
    /// all have that can.
    pub(super) fn share_undecided(&mut self, peer: Gid, share: &mut Share) -> bool {
        let Some(index) = self.links.peer_at(peer) else {
            return true;
        };
        for at in 0..LINES as u8 {
            while let Some(qp) = self.pairing.waiting.first_undecided((peer, at))
                && let Some(conn) = self.links.pick(index, number_of(at))
            {
                if !share.take() {
                    return false;
                }
                self.leave_undecided(qp);
                self.share(qp, conn);
            }
        }
        true
    }

    /// A packet of `conn` from the QP `remote` is for one without a flow. If that is the peer which
    /// it waits to hear of, it shares a connection at once. Gives its flow then.
    #[cold]
    pub(super) fn share_named(&mut self, qp: u32, remote: Qpn, conn: u32) -> Option<u32> {
        let peer = self.links[conn].peer();
        if !matches!(self.qps[qp].wire, Wire::Undecided(_)) || !self.is_for(qp, peer, remote) {
            return None;
        }
        let pooled = self.links.pick(peer, remote)?;
        self.leave_undecided(qp);
        self.share(qp, pooled);
        match self.qps[qp].wire {
            Wire::Shared(flow) => Some(flow),
            _ => None,
        }
    }

    /// The peer at `address` is an ordinary RoCEv2 host, or one that this node shares no
    /// connections with: QPs that waited to hear it get an IBTA connection of their own. QPs that
    /// shared one before and wait for another go to error: it has none of the QPs that they were
    /// bound to.
    pub fn peer_is_ibta(&mut self, address: Gid) {
        let peer = self.links.peer_at(address);
        let (waiting, homes) = (&mut self.pairing.waiting, self.flows.homes());
        let lines = (address, peer.unwrap_or(NONE));
        waiting.each_line(
            homes,
            lines,
            |_| true,
            |line| match line {
                LineOf::Qps(line, links) => line.judge(Verdict::Ibta, links),
                LineOf::Flows(line, homes) => line.judge(Verdict::Ibta, homes),
            },
        );
        self.backlog.add(Task::JudgeQps { peer: address });
        if let Some(peer) = peer.filter(|peer| self.pairing.waiting.has_stranded(*peer)) {
            self.backlog.add(Task::JudgeFlows { peer });
        }
    }

    /// A flow without a connection has to wait for another one to its peer, which is
    /// `requested` since before, or will be.
    pub(crate) fn strand(&mut self, flow: u32, requested: bool) {
        self.flows[flow].flags.set(Flags::STRANDED);
        self.watch(flow);
        let at = self.stranded_line(flow);
        self.pairing
            .waiting
            .strand(self.flows.homes(), at, flow, requested);
    }

    fn stranded_line(&self, flow: u32) -> (u32, u8) {
        (self.flows.peer(flow), line_of(self.flows[flow].remote))
    }

    pub(crate) fn leave_stranded(&mut self, flow: u32) {
        let flags = &mut self.flows[flow].flags;
        if !flags.has(Flags::STRANDED) {
            return;
        }
        flags.clear(Flags::STRANDED);
        let at = self.stranded_line(flow);
        self.pairing.waiting.unstrand(self.flows.homes(), at, flow);
    }

    /// There is a connection to `peer`: those that waited for one get it. Connect requests that
    /// began before said nothing of other workers, which may not have been known.
    pub(super) fn begin_rescue(&mut self, peer: u32) {
        let address = self.links.peer_address(peer);
        let unled: u64 = self
            .pairing
            .waiting
            .lines(address, peer)
            .filter(|at| self.links.pick(peer, number_of(*at)).is_none())
            .fold(0, |all, at| all | 1 << at);
        let (waiting, homes) = (&mut self.pairing.waiting, self.flows.homes());
        let is_unled = |at: u8| unled >> at & 1 != 0;
        waiting.each_line(homes, (address, peer), is_unled, |line| {
            if let LineOf::Flows(line, homes) = line {
                line.put_back(homes);
            }
        });
        let is_led = |at: u8| !is_unled(at);
        waiting.each_line(homes, (address, peer), is_led, |line| match line {
            LineOf::Flows(line, homes) => line.pardon(homes),
            LineOf::Qps(line, links) => line.pardon(links),
        });
        let (peer, index) = (address, peer);
        self.backlog.add(Task::Decide { peer });
        self.backlog.add(Task::Rescue { peer: index });
    }

    /// Flows that waited for a connection to `peer` move to it. Gives whether all have that can.
    pub(super) fn rescue_stranded(&mut self, peer: u32, share: &mut Share) -> bool {
        if self.links.known_peer(peer).is_none() {
            return true;
        }
        for at in 0..LINES as u8 {
            while let Some(flow) = self.pairing.waiting.first_stranded((peer, at))
                && let Some(conn) = self.links.pick(peer, number_of(at))
            {
                if !share.take() {
                    return false;
                }
                self.resume_on(flow, conn);
            }
        }
        true
    }

    /// The peer is gone, which is the `cause`: flows that wait for it, and that it has heard of,
    /// fail, or are left.
    pub(crate) fn fail_heard(&mut self, peer: u32, cause: Cause) {
        self.links.each_tombstone(peer, |stone| stone.cause = cause);
        let verdict = match cause {
            Cause::PeerLeft => Verdict::Left,
            _ => Verdict::Gone,
        };
        let (waiting, homes) = (&mut self.pairing.waiting, self.flows.homes());
        // Nobody is at this address: QPs that wait to hear what is there still do.
        waiting.each_line(
            homes,
            (Gid::default(), peer),
            |_| true,
            |line| {
                if let LineOf::Flows(line, homes) = line {
                    line.judge(verdict, homes);
                }
            },
        );
        if self.pairing.waiting.has_stranded(peer) {
            self.backlog.add(Task::JudgeFlows { peer });
        }
    }

    /// A peer that was gone is forgotten when nobody waits for its next incarnation.
    pub(super) fn forget_if_unknown(&mut self, peer: u32) {
        if self.links.known_peer(peer).is_some_and(Peer::is_unknown)
            && !self.links.reaches(peer)
            && !self.pairing.waiting.has_stranded(peer)
            && !self.links.has_tombstones(peer)
            && !self.pairing.binds.has(peer)
        {
            self.forget_peer(peer);
        }
    }

    /// The last connection to the worker of `peer` that has the QP `remote` is gone. Where it died
    /// of silence, its peer was heard last then.
    pub(crate) fn cut_off(&mut self, peer: u32, remote: Qpn, died: Option<Instant>) {
        let owner = self.links.peer(peer).workers().owner(remote.get());
        self.pairing.waiting.silences.begin((peer, owner), died);
    }

    /// When the peer was heard last over the connection before, where that died of silence: an
    /// answer to a connect request does not say that packets arrive.
    pub(crate) fn last_heard(&self, peer: u32, remote: Qpn) -> Option<Instant> {
        let owner = self.links.peer(peer).workers().owner(remote.get());
        self.pairing.waiting.silences.of((peer, owner))?.died
    }

    /// There is a connection of the pool to it again. One of a program's own does not end its
    /// silence: it may be closed before anything was heard on it.
    pub(crate) fn reach_again(&mut self, peer: u32, remote: Qpn) {
        let owner = self.links.peer(peer).workers().owner(remote.get());
        self.pairing.waiting.silences.end((peer, owner));
    }

    /// What was heard of a peer counts no more.
    pub(crate) fn forget_silence(&mut self, peer: u32) {
        self.pairing.waiting.silences.forget(peer);
    }

    /// Whether the last connection to the worker at `address` that has the QP `remote` died of its
    /// silence, and it has said nothing since.
    pub fn is_silent(&self, address: Gid, remote: Qpn) -> bool {
        let (peer, workers) = self.peer_and_workers(address);
        let at = (peer.unwrap_or(NONE), workers.owner(remote.get()));
        let silence = self.pairing.waiting.silences.of(at);
        silence.is_some_and(|silence| silence.died.is_some())
    }

    /// For which workers at `address` QPs here wait for a connection: a number of each.
    pub fn waiting_for(&self, address: Gid) -> Vec<Qpn> {
        let (peer, workers) = self.peer_and_workers(address);
        let undecided = self.pairing.waiting.of(address);
        let undecided = undecided.filter(|(_, line)| line.waits(Chain::EMPTY));
        let stranded = self.pairing.waiting.stranded_at(peer.unwrap_or(NONE));
        let stranded = stranded.filter(|(_, line)| line.waits(Group::EMPTY));
        let lines = undecided
            .map(|(at, _)| at)
            .chain(stranded.map(|(at, _)| at));
        let lost = self.links.lost(peer.unwrap_or(NONE));
        let mut found: BTreeMap<u8, Qpn> = BTreeMap::new();
        for remote in lines.map(number_of).chain(lost) {
            let led = peer.is_some_and(|peer| self.links.pick(peer, remote).is_some());
            if !led {
                found.entry(workers.owner(remote.get())).or_insert(remote);
            }
        }
        found.into_values().collect()
    }

    /// There is a connection to `peer`, and yet some wait: for other workers of it, which may not
    /// have been known before.
    pub(crate) fn need_connection_for_waiting(&mut self, peer: Gid) {
        for remote in self.waiting_for(peer) {
            self.events.push(Event::NeedsConnection { peer, remote });
        }
    }

    /// Flows wait for a connection to the worker of `peer` that has the QP `remote`: where no
    /// connect request of it has begun yet, the node hears so.
    pub(super) fn need_connection_for_stranded(&mut self, peer: u32, remote: Qpn) {
        let workers = self.links.peer(peer).workers();
        let owner = |number: Qpn| workers.owner(number.get());
        let mut lines = self.pairing.waiting.stranded_at(peer);
        let waits =
            lines.any(|(at, line)| owner(number_of(at)) == owner(remote) && !line.fresh.is_empty());
        drop(lines);
        if waits && self.links.pick(peer, remote).is_none() {
            let peer = self.links.peer_address(peer);
            self.events.push(Event::NeedsConnection { peer, remote });
        }
    }

    /// The peer at `address`, and its workers: one, as long as nothing is known of it.
    fn peer_and_workers(&self, address: Gid) -> (Option<u32>, Workers) {
        let peer = self.links.peer_at(address);
        let workers = peer.map_or(Workers::ONE, |peer| self.links.peer(peer).workers());
        (peer, workers)
    }

    /// A connect request of the worker at `address` that has the QP `remote` begins:
    /// [`peer_unreachable`](Self::peer_unreachable) and [`peer_silent`](Self::peer_silent) speak
    /// for those that wait from now on.
    pub fn connect_request_begins(&mut self, now: Instant, address: Gid, remote: Qpn) {
        let (peer, workers) = self.peer_and_workers(address);
        let peer = peer.unwrap_or(NONE);
        let owner = workers.owner(remote.get());
        let is_its = |number: Qpn| workers.owner(number.get()) == owner;
        let (waiting, homes) = (&mut self.pairing.waiting, self.flows.homes());
        let mut stranded = false;
        waiting.each_line(
            homes,
            (address, peer),
            |at| is_its(number_of(at)),
            |line| match line {
                LineOf::Qps(line, links) => line.connect_request_begins(now, links),
                LineOf::Flows(line, homes) => {
                    line.connect_request_begins(now, homes);
                    stranded |= !line.requested.is_empty();
                }
            },
        );
        self.links.each_tombstone(peer, |stone| {
            if is_its(stone.toward) {
                stone.requested = true;
                stranded |= stone.flows > 0;
            }
        });
        if stranded {
            self.pairing
                .waiting
                .silences
                .connect_request_begins((peer, owner), now);
        }
    }

    /// There is no way to the worker at `address` that has the QP `remote`: QPs that waited for an
    /// ask of it from its beginning go to error, with requests that say `why`. Others may still
    /// wait ([`waiting_for`](Self::waiting_for)): for them it is to be asked again.
    pub fn peer_unreachable(&mut self, address: Gid, remote: Qpn, why: VendorError) {
        self.connect_request_failed(address, remote, Verdict::Unreachable(why));
    }

    /// The same where it did not answer: QPs whose time is not over still wait, but for those whose
    /// connection died of the peer's silence and that asked for no more than failover takes.
    pub fn peer_silent(&mut self, now: Instant, address: Gid, remote: Qpn, why: VendorError) {
        let (peer, workers) = self.peer_and_workers(address);
        let at = (peer.unwrap_or(NONE), workers.owner(remote.get()));
        let silence = self.pairing.waiting.silences.of(at);
        let verdict = Verdict::Silent(now, silence.unwrap_or_default(), why);
        self.connect_request_failed(address, remote, verdict);
    }

    fn connect_request_failed(&mut self, address: Gid, remote: Qpn, verdict: Verdict) {
        let (peer, workers) = self.peer_and_workers(address);
        let index = peer.unwrap_or(NONE);
        let owner = workers.owner(remote.get());
        let is_its = |number: Qpn| workers.owner(number.get()) == owner;
        let (waiting, homes) = (&mut self.pairing.waiting, self.flows.homes());
        waiting.each_line(
            homes,
            (address, index),
            |at| is_its(number_of(at)),
            |line| match line {
                LineOf::Qps(line, links) => line.judge(verdict, links),
                LineOf::Flows(line, homes) => line.judge(verdict, homes),
            },
        );
        // Their flows are asked for again when they wait.
        self.links.each_tombstone(index, |stone| {
            stone.requested &= !is_its(stone.toward);
        });
        self.backlog.add(Task::JudgeQps { peer: address });
        if peer.is_some() {
            self.backlog.add(Task::JudgeFlows { peer: index });
        }
    }

    /// Looks through QPs whose connect request came to nothing. Gives whether that is done.
    pub(super) fn judge_qps(&mut self, peer: Gid, share: &mut Share) -> bool {
        for at in 0..LINES as u8 {
            while let Some((qp, verdict, requested_at)) =
                self.pairing.waiting.first_judged((peer, at))
            {
                if !share.take() {
                    return false;
                }
                let mut waiter = self.take_undecided(qp).expect("it waits");
                if matches!(verdict, Verdict::Ibta) {
                    self.open_ibta(waiter.qp);
                    self.admit_waiting(waiter.qp);
                    continue;
                }
                let requested = *waiter.requested.get_or_insert(requested_at);
                if self.has_waited_undecided(waiter.qp, requested, verdict) {
                    self.because(verdict.why(), |engine| {
                        engine.fail_qp(waiter.qp, Status::RetryExceeded);
                    });
                    continue;
                }
                let known = self.links.peer_at(peer);
                match known.and_then(|known| self.links.pick(known, number_of(at))) {
                    Some(conn) => self.share(waiter.qp, conn),
                    None => self.wait_again(waiter),
                }
            }
        }
        self.need_connection_again(peer);
        true
    }

    /// The same for flows.
    pub(super) fn judge_flows(&mut self, peer: u32, share: &mut Share) -> bool {
        if self.links.known_peer(peer).is_none() {
            return true;
        }
        for at in 0..LINES as u8 {
            while let Some((flow, verdict)) = self.pairing.waiting.first_judged_flow((peer, at)) {
                if !share.take() {
                    return false;
                }
                self.judge_flow(flow, verdict);
            }
        }
        self.need_connection_again(self.links.peer_address(peer));
        self.forget_if_unknown(peer);
        true
    }

    /// A packet of the peer is for a flow that waits for a connection to it, and for what is said
    /// of its connect request: it hears that and gets one before its turn, if there is one. What
    /// comes after it must not be taken for what came before.
    #[cold]
    pub(super) fn rescue_named(&mut self, flow: u32) {
        let (peer, at) = self.stranded_line(flow);
        if self.links.pick(peer, number_of(at)).is_some() {
            let judged = self.pairing.waiting.first_judged_flow((peer, at));
            let verdict = judged.map_or(Verdict::Open, |(_, verdict)| verdict);
            self.judge_flow(flow, verdict);
        }
    }

    /// Applies what came of the connect request to a flow that waits for it: the flow ends, gets a
    /// connection, or waits again.
    fn judge_flow(&mut self, flow: u32, verdict: Verdict) {
        if self.has_waited_stranded(flow, verdict) {
            if matches!(verdict, Verdict::Left | Verdict::Gone | Verdict::Ibta) {
                self.leave_stranded(flow);
            }
            if matches!(verdict, Verdict::Left) && self.is_left_with_node(flow) {
                return;
            }
            self.because(verdict.why(), |engine| engine.fail_stranded(flow));
            return;
        }
        let (peer, at) = self.stranded_line(flow);
        self.leave_stranded(flow);
        match self.links.pick(peer, number_of(at)) {
            Some(conn) => self.resume_on(flow, conn),
            None => self.strand(flow, false),
        }
    }

    /// A flow has no connection of the pool, and gets none any more. Its peer hears of its end over
    /// one that programs opened, where there is one: it may wait there for what it sent.
    pub(super) fn fail_stranded(&mut self, flow: u32) {
        if self.flows[flow].flags.has(Flags::STRANDED) {
            match self
                .links
                .fallback(self.flows.peer(flow), self.flows[flow].remote)
            {
                NONE => self.leave_stranded(flow),
                conn => self.resume_on(flow, conn),
            }
        }
        self.fail_flow(flow, Status::RetryExceeded);
    }

    /// The peer is to be asked again for those that nobody has asked for since they wait.
    fn need_connection_again(&mut self, address: Gid) {
        let (peer, workers) = self.peer_and_workers(address);
        let undecided = self.pairing.waiting.of(address);
        let undecided = undecided.filter(|(_, line)| !line.fresh.is_empty());
        let stranded = self.pairing.waiting.stranded_at(peer.unwrap_or(NONE));
        let stranded = stranded.filter(|(_, line)| !line.fresh.is_empty());
        let lines = undecided
            .map(|(at, _)| at)
            .chain(stranded.map(|(at, _)| at));
        let fresh: BTreeSet<u8> = lines.map(|at| workers.owner(number_of(at).get())).collect();
        for remote in self.waiting_for(address) {
            if fresh.contains(&workers.owner(remote.get())) {
                let peer = address;
                self.events.push(Event::NeedsConnection { peer, remote });
            }
        }
    }

    /// Whether a QP that waits since a connect request of its peer has done so for long enough.
    fn has_waited_undecided(&self, qp: u32, requested: Instant, verdict: Verdict) -> bool {
        match verdict {
            Verdict::Silent(now, ..) => {
                let grace = self.config.failover_grace_ns;
                now.since(requested) >= self.wait_limit(qp).unwrap_or(grace)
            }
            Verdict::Unreachable(_) => true,
            Verdict::Open | Verdict::Left | Verdict::Gone | Verdict::Ibta => false,
        }
    }

    /// The same for a flow.
    fn has_waited_stranded(&self, flow: u32, verdict: Verdict) -> bool {
        let record = &self.flows[flow];
        match verdict {
            Verdict::Silent(now, silence, _) => {
                let grace = self.config.failover_grace_ns;
                let own = self.wait_limit(record.qp);
                match own.filter(|_| record.ending == Ending::No) {
                    // Its clock runs, and ends it.
                    Some(own) => silence.died.is_some() && own <= grace,
                    None => {
                        let waited = silence
                            .requested
                            .map_or(0, |requested| now.since(requested));
                        silence.died.is_some() || waited >= grace
                    }
                }
            }
            Verdict::Unreachable(_) | Verdict::Ibta => true,
            Verdict::Left | Verdict::Gone => record.has_heard(),
            Verdict::Open => false,
        }
    }
}
