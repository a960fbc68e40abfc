//! QPs that wait to hear what their peer is, and flows that lost their connection.
//!
//! All of them wait for an ask of the node (`peer_asked`). One that nobody answers says little: a
//! few packets may be lost. So the peer is asked again for as long as anybody waits for it, and
//! they end by their own time; only a peer whose connection died of silence has had its time.
//!
//! What says that there is no way (`peer_unreachable`) ends those that wait since before that ask.
//!
//! There may be as many as there are QPs. So they stand in lines by what their numbers say of the
//! peer's worker, whole lists of which change hands at once, and what each of them has to go
//! through is done some in each round (`backlog`).

use super::backlog::{Share, Task};
use super::binding::Ending;
use super::homes::{Group, Homes};
use super::qp::{Flags, Wire};
use super::{Engine, Event, Platform};
use crate::chain::{Chain, Chains};
use crate::slab::NONE;
use std::collections::BTreeMap;
use trunkline_conn::time::Instant;
use trunkline_conn::work::{Status, VendorError};
use trunkline_wire::{Gid, Qpn, Workers};

/// Lines of a peer: the low bits of a number, of which those are some that say whose worker's it
/// is. They say the same whatever becomes known of the peer.
const LINES: u32 = (Workers::MOST as u32).next_power_of_two();

/// The line of those that wait for the worker which has the QP `remote`.
const fn line_of(remote: Qpn) -> u8 {
    (remote.get() % LINES) as u8
}

/// A number of the worker that a line waits for.
const fn number_of(line: u8) -> Qpn {
    Qpn::from_wire(line as u32)
}

/// A QP whose peer is being asked what it is.
#[derive(Clone, Copy, Debug)]
struct Undecided {
    qp: u32,
    /// When the first ask began since it waits, as far as that was looked at.
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

/// What comes of an ask for those that wait for it. A stronger one stands against a weaker one.
#[derive(Clone, Copy, Debug, Default)]
enum Verdict {
    /// None yet.
    #[default]
    Open,
    /// Nobody answered, up to then. Those whose time is not over still wait.
    Silent(Instant, Silence, VendorError),
    /// There is no way: they end.
    Unreachable(VendorError),
    /// The peer is gone: those that it has heard of end.
    Gone,
    /// It is an ordinary host: QPs get a connection of their own.
    Plain,
}

impl Verdict {
    const fn strength(self) -> u8 {
        match self {
            Self::Open => 0,
            Self::Silent(..) => 1,
            Self::Unreachable(_) => 2,
            Self::Gone => 3,
            Self::Plain => 4,
        }
    }

    const fn why(self) -> VendorError {
        match self {
            Self::Silent(_, _, why) | Self::Unreachable(why) => why,
            Self::Open | Self::Gone | Self::Plain => VendorError::None,
        }
    }
}

/// Lists, and what joins two of them at once.
trait Lists {
    type List: Copy + PartialEq;
    const EMPTY: Self::List;

    fn append(&mut self, list: &mut Self::List, from: &mut Self::List);
}

impl Lists for Homes {
    type List = Group;
    const EMPTY: Group = Group::EMPTY;

    fn append(&mut self, list: &mut Group, from: &mut Group) {
        Self::append(self, list, from);
    }
}

impl Lists for Chains<Undecided> {
    type List = Chain;
    const EMPTY: Chain = Chain::EMPTY;

    fn append(&mut self, list: &mut Chain, from: &mut Chain) {
        Self::append(self, list, from);
    }
}

/// Those that wait for one worker of a peer, by how far their asks have come.
#[derive(Clone, Copy, Debug)]
struct Line<L> {
    /// No ask began since they wait.
    fresh: L,
    /// One began.
    asked: L,
    /// It came to nothing: they are being looked through.
    judged: L,
    verdict: Verdict,
    /// When the last ask began.
    asked_at: Instant,
}

impl<L: Copy + PartialEq> Line<L> {
    const fn new(empty: L) -> Self {
        Self {
            fresh: empty,
            asked: empty,
            judged: empty,
            verdict: Verdict::Open,
            asked_at: Instant::ZERO,
        }
    }

    const fn lists(&mut self) -> [&mut L; 3] {
        [&mut self.fresh, &mut self.asked, &mut self.judged]
    }

    fn is_empty(&self, empty: L) -> bool {
        [self.fresh, self.asked, self.judged] == [empty; 3]
    }

    /// Whether some wait for an answer.
    fn waits(&self, empty: L) -> bool {
        [self.fresh, self.asked] != [empty; 2]
    }

    /// An ask begins.
    fn ask(&mut self, now: Instant, lists: &mut impl Lists<List = L>) {
        lists.append(&mut self.asked, &mut self.fresh);
        self.asked_at = now;
    }

    /// It said nothing to those that wait here.
    fn unask(&mut self, lists: &mut impl Lists<List = L>) {
        lists.append(&mut self.fresh, &mut self.asked);
    }

    /// There is a connection after all: who was to be told that there is none waits for it.
    fn pardon(&mut self, lists: &mut impl Lists<List = L>) {
        if matches!(self.verdict, Verdict::Silent(..) | Verdict::Unreachable(_)) {
            lists.append(&mut self.fresh, &mut self.judged);
        }
    }

    /// It came to this. Where something worse is being gone through, the others have to be asked
    /// for again.
    fn judge<S: Lists<List = L>>(&mut self, verdict: Verdict, lists: &mut S) {
        let weaker = self.judged != S::EMPTY && self.verdict.strength() > verdict.strength();
        if weaker {
            self.unask(lists);
            return;
        }
        self.verdict = verdict;
        lists.append(&mut self.judged, &mut self.asked);
        if matches!(verdict, Verdict::Gone | Verdict::Plain) {
            lists.append(&mut self.judged, &mut self.fresh);
        }
    }
}

/// Who waits, for which peer. Ordered, so that walks replay; lines are there while they are not
/// empty.
#[derive(Debug)]
pub(crate) struct Waiting {
    /// QPs that wait to hear what the peer at an address is.
    undecided: BTreeMap<(Gid, u8), Line<Chain>>,
    links: Chains<Undecided>,
    /// Flows whose connection to a peer died.
    stranded: BTreeMap<(u32, u8), Line<Group>>,
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

    fn join(&mut self, at: (Gid, u8), waiter: Undecided) -> u32 {
        let line = self.undecided.entry(at);
        let line = line.or_insert(Line::new(Chain::EMPTY));
        self.links.push(&mut line.fresh, waiter)
    }

    fn leave(&mut self, at: (Gid, u8), link: u32) -> Undecided {
        let line = self.undecided.get_mut(&at);
        let line = line.expect("it holds the line of each link");
        let waiter = self.links.remove_from(line.lists(), link);
        if line.is_empty(Chain::EMPTY) {
            self.undecided.remove(&at);
        }
        waiter
    }

    fn of(&self, peer: Gid) -> impl Iterator<Item = (u8, &Line<Chain>)> {
        let all = self.undecided.range((peer, 0)..=(peer, u8::MAX));
        all.map(|((_, at), line)| (*at, line))
    }

    fn stranded_at(&self, peer: u32) -> impl Iterator<Item = (u8, &Line<Group>)> {
        let all = self.stranded.range((peer, 0)..=(peer, u8::MAX));
        all.map(|((_, at), line)| (*at, line))
    }

    /// Whether flows wait for a peer, or are about to hear what came of it.
    pub(super) fn has_stranded(&self, peer: u32) -> bool {
        self.stranded_at(peer).next().is_some()
    }

    /// Lines of the worker of a peer that `is_its` knows, of both kinds, change.
    fn each_line(
        &mut self,
        homes: &mut Homes,
        (address, peer): (Gid, u32),
        is_its: impl Fn(u8) -> bool,
        mut change: impl FnMut(LineOf<'_>),
    ) {
        let lines = self.undecided.range_mut((address, 0)..=(address, u8::MAX));
        for (_, line) in lines.filter(|((_, at), _)| is_its(*at)) {
            change(LineOf::Qps(line, &mut self.links));
        }
        let lines = self.stranded.range_mut((peer, 0)..=(peer, u8::MAX));
        for (_, line) in lines.filter(|((_, at), _)| is_its(*at)) {
            change(LineOf::Flows(line, homes));
        }
    }
}

/// A line, and what holds its lists.
enum LineOf<'a> {
    Qps(&'a mut Line<Chain>, &'a mut Chains<Undecided>),
    Flows(&'a mut Line<Group>, &'a mut Homes),
}

impl<P: Platform> Engine<P> {
    /// A QP has to wait until it is known what its peer is.
    pub(crate) fn wait_undecided(&mut self, qp: u32) {
        self.wait_again(Undecided { qp, asked: None });
    }

    fn wait_again(&mut self, waiter: Undecided) {
        let at = self.undecided_line(waiter.qp);
        let link = self.waiting.join(at, waiter);
        self.qps[waiter.qp].wire = Wire::Undecided(link);
    }

    fn undecided_line(&self, qp: u32) -> (Gid, u8) {
        let attributes = &self.cold(qp).attributes;
        (attributes.remote, line_of(attributes.dest_qpn))
    }

    pub(crate) fn undecided_of(&self, peer: Gid) -> impl Iterator<Item = u32> {
        let lines = self.waiting.of(peer);
        let chains = lines.flat_map(|(_, line)| [line.fresh, line.asked]);
        let waiters = chains.flat_map(|chain| self.waiting.links.iter(chain));
        waiters.map(|waiter| waiter.qp)
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
        Some(self.waiting.leave(at, link))
    }

    /// The peer at `peer` shares connections: QPs that waited to hear it bind to one. Gives whether
    /// all have that can.
    pub(super) fn share_undecided(&mut self, peer: Gid, share: &mut Share) -> bool {
        let Some(&index) = self.peer_of.get(&peer) else {
            return true;
        };
        for at in 0..LINES as u8 {
            while let Some(qp) = self.first_undecided((peer, at))
                && let Some(conn) = self.pick(index, number_of(at))
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

    /// A packet of `conn` from the QP `remote` is for one without a flow. If that is the peer which it
    /// waits to hear of, it shares a connection at once. Gives its flow then.
    #[cold]
    pub(super) fn share_named(&mut self, qp: u32, remote: Qpn, conn: u32) -> Option<u32> {
        let peer = self.conns[conn].peer;
        if !matches!(self.qps[qp].wire, Wire::Undecided(_)) || !self.is_for(qp, peer, remote) {
            return None;
        }
        let pooled = self.pick(peer, remote)?;
        self.leave_undecided(qp);
        self.share(qp, pooled);
        match self.qps[qp].wire {
            Wire::Shared(flow) => Some(flow),
            _ => None,
        }
    }

    /// The first QP of a line that waits for an answer.
    fn first_undecided(&self, at: (Gid, u8)) -> Option<u32> {
        let line = self.waiting.undecided.get(&at)?;
        let first = |chain| self.waiting.links.first(chain);
        let waiter = first(line.asked).or_else(|| first(line.fresh));
        waiter.map(|waiter| waiter.qp)
    }

    /// The peer at `address` is an ordinary RoCEv2 host: QPs that waited to hear it get an IBTA
    /// connection of their own.
    pub fn peer_is_plain(&mut self, address: Gid) {
        let Self { waiting, homes, .. } = self;
        let all = |_| true;
        waiting.each_line(homes, (address, NONE), all, |line| {
            if let LineOf::Qps(line, links) = line {
                line.judge(Verdict::Plain, links);
            }
        });
        self.backlog.add(Task::JudgeQps { peer: address });
    }

    /// A flow without a connection has to wait for another one to its peer, which is being `asked`
    /// since before, or will be.
    pub(crate) fn strand(&mut self, flow: u32, asked: bool) {
        self.flows[flow].flags.set(Flags::STRANDED);
        self.watch(flow);
        let at = self.stranded_line(flow);
        let line = self.waiting.stranded.entry(at);
        let line = line.or_insert(Line::new(Group::EMPTY));
        let group = if asked {
            &mut line.asked
        } else {
            &mut line.fresh
        };
        self.homes.join(group, flow);
        self.waiting.stranded_len += 1;
    }

    fn stranded_line(&self, flow: u32) -> (u32, u8) {
        (self.homes.peer(flow), line_of(self.flows[flow].remote))
    }

    pub(crate) fn leave_stranded(&mut self, flow: u32) {
        let flags = &mut self.flows[flow].flags;
        if !flags.has(Flags::STRANDED) {
            return;
        }
        flags.clear(Flags::STRANDED);
        let at = self.stranded_line(flow);
        let line = self.waiting.stranded.get_mut(&at);
        let line = line.expect("it holds the line of each flow that waits");
        self.homes.leave_one_of(line.lists(), flow);
        self.waiting.stranded_len -= 1;
        if line.is_empty(Group::EMPTY) {
            self.waiting.stranded.remove(&at);
        }
    }

    /// There is a connection to `peer`: those that waited for one get it. Asks that began before
    /// said nothing of other workers, which may not have been known.
    pub(super) fn begin_rescue(&mut self, peer: u32) {
        let address = self.peers[peer].address;
        let unled: u64 = (0..LINES as u8)
            .filter(|at| self.pick(peer, number_of(*at)).is_none())
            .fold(0, |all, at| all | 1 << at);
        let Self { waiting, homes, .. } = self;
        let is_unled = |at: u8| unled >> at & 1 != 0;
        waiting.each_line(homes, (address, peer), is_unled, |line| {
            if let LineOf::Flows(line, homes) = line {
                line.unask(homes);
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
        if self.peers.get(peer).is_none() {
            return true;
        }
        for at in 0..LINES as u8 {
            while let Some(line) = self.waiting.stranded.get(&(peer, at))
                && let Some(flow) = line.asked.first().or(line.fresh.first())
                && let Some(conn) = self.pick(peer, number_of(at))
            {
                if !share.take() {
                    return false;
                }
                self.resume_on(flow, conn);
            }
        }
        true
    }

    /// The peer is gone: flows that wait for it, and that it has heard of, fail.
    pub(crate) fn fail_heard(&mut self, peer: u32) {
        for stone in self.tombstones.of_peer(peer) {
            stone.cause = super::Cause::PeerGone;
        }
        let Self { waiting, homes, .. } = self;
        // Nobody is at this address: QPs that wait to hear what is there still do.
        waiting.each_line(
            homes,
            (Gid::default(), peer),
            |_| true,
            |line| {
                if let LineOf::Flows(line, homes) = line {
                    line.judge(Verdict::Gone, homes);
                }
            },
        );
        if self.waiting.has_stranded(peer) {
            self.backlog.add(Task::JudgeFlows { peer });
        }
    }

    /// A peer that was gone is forgotten when nobody waits for its next incarnation.
    pub(super) fn forget_if_unknown(&mut self, peer: u32) {
        if self.is_unknown(peer)
            && self.conns_of(peer).next().is_none()
            && !self.waiting.has_stranded(peer)
            && !self.tombstones.has(peer)
            && !self.waiting_binds.has(peer)
        {
            self.forget_peer(peer);
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

    /// For which workers at `address` QPs here wait for a connection: a number of each.
    pub fn waiting_for(&self, address: Gid) -> Vec<Qpn> {
        let (peer, workers) = self.peer_and_workers(address);
        let undecided = self.waiting.of(address);
        let undecided = undecided.filter(|(_, line)| line.waits(Chain::EMPTY));
        let stranded = self.waiting.stranded_at(peer.unwrap_or(NONE));
        let stranded = stranded.filter(|(_, line)| line.waits(Group::EMPTY));
        let lines = undecided
            .map(|(at, _)| at)
            .chain(stranded.map(|(at, _)| at));
        let lost = self.tombstones.lost(peer.unwrap_or(NONE));
        let mut found: BTreeMap<u8, Qpn> = BTreeMap::new();
        for remote in lines.map(number_of).chain(lost) {
            let led = peer.is_some_and(|peer| self.pick(peer, remote).is_some());
            if !led {
                found.entry(workers.owner(remote.get())).or_insert(remote);
            }
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

    /// Flows wait for a connection to the worker of `peer` that has the QP `remote`: where no ask
    /// of it has begun yet, the node hears so.
    pub(super) fn ask_for_stranded(&mut self, peer: u32, remote: Qpn) {
        let workers = self.peers[peer].workers;
        let owner = |number: Qpn| workers.owner(number.get());
        let mut lines = self.waiting.stranded_at(peer);
        let waits =
            lines.any(|(at, line)| owner(number_of(at)) == owner(remote) && !line.fresh.is_empty());
        drop(lines);
        if waits && self.pick(peer, remote).is_none() {
            let peer = self.peers[peer].address;
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
        let is_its = |number: Qpn| workers.owner(number.get()) == owner;
        let Self { waiting, homes, .. } = self;
        let mut stranded = false;
        waiting.each_line(
            homes,
            (address, peer),
            |at| is_its(number_of(at)),
            |line| match line {
                LineOf::Qps(line, links) => line.ask(now, links),
                LineOf::Flows(line, homes) => {
                    line.ask(now, homes);
                    stranded |= !line.asked.is_empty();
                }
            },
        );
        for stone in self
            .tombstones
            .of_peer(peer)
            .filter(|stone| is_its(stone.toward))
        {
            stone.asked = true;
            stranded |= stone.flows > 0;
        }
        if stranded {
            let silence = self.waiting.silences.entry((peer, owner)).or_default();
            silence.asked.get_or_insert(now);
        }
    }

    /// There is no way to the worker at `address` that has the QP `remote`: QPs that waited for an
    /// ask of it from its beginning go to error, with requests that say `why`. Others may still
    /// wait ([`waiting_for`](Self::waiting_for)): for them it is to be asked again.
    pub fn peer_unreachable(&mut self, address: Gid, remote: Qpn, why: VendorError) {
        self.ask_failed(address, remote, Verdict::Unreachable(why));
    }

    /// The same where it did not answer: QPs whose time is not over still wait, but for those whose
    /// connection died of the peer's silence and that asked for no more than failover takes.
    pub fn peer_silent(&mut self, now: Instant, address: Gid, remote: Qpn, why: VendorError) {
        let (peer, workers) = self.peer_and_workers(address);
        let at = (peer.unwrap_or(NONE), workers.owner(remote.get()));
        let silence = self.waiting.silences.get(&at).copied();
        let verdict = Verdict::Silent(now, silence.unwrap_or_default(), why);
        self.ask_failed(address, remote, verdict);
    }

    fn ask_failed(&mut self, address: Gid, remote: Qpn, verdict: Verdict) {
        let (peer, workers) = self.peer_and_workers(address);
        let index = peer.unwrap_or(NONE);
        let owner = workers.owner(remote.get());
        let is_its = |number: Qpn| workers.owner(number.get()) == owner;
        let Self { waiting, homes, .. } = self;
        waiting.each_line(
            homes,
            (address, index),
            |at| is_its(number_of(at)),
            |line| match line {
                LineOf::Qps(line, links) => line.judge(verdict, links),
                LineOf::Flows(line, homes) => line.judge(verdict, homes),
            },
        );
        for stone in self
            .tombstones
            .of_peer(index)
            .filter(|stone| is_its(stone.toward))
        {
            // Its flows are asked for again when they wait.
            stone.asked = false;
        }
        self.backlog.add(Task::JudgeQps { peer: address });
        if peer.is_some() {
            self.backlog.add(Task::JudgeFlows { peer: index });
        }
    }

    /// Looks through QPs whose ask came to nothing. Gives whether that is done.
    pub(super) fn judge_qps(&mut self, peer: Gid, share: &mut Share) -> bool {
        for at in 0..LINES as u8 {
            while let Some(line) = self.waiting.undecided.get(&(peer, at))
                && let Some(first) = self.waiting.links.first(line.judged)
            {
                if !share.take() {
                    return false;
                }
                let (verdict, asked_at) = (line.verdict, line.asked_at);
                let mut waiter = self.take_undecided(first.qp).expect("it waits");
                if matches!(verdict, Verdict::Plain) {
                    self.open_plain(waiter.qp);
                    self.admit_waiting(waiter.qp);
                    continue;
                }
                let asked = *waiter.asked.get_or_insert(asked_at);
                if self.has_waited_undecided(waiter.qp, asked, verdict) {
                    self.because(verdict.why(), |engine| {
                        engine.fail_qp(waiter.qp, Status::RetryExceeded);
                    });
                    continue;
                }
                let known = self.peer_of.get(&peer).copied();
                match known.and_then(|known| self.pick(known, number_of(at))) {
                    Some(conn) => self.share(waiter.qp, conn),
                    None => self.wait_again(waiter),
                }
            }
        }
        self.ask_for_unasked(peer);
        true
    }

    /// The same for flows.
    pub(super) fn judge_flows(&mut self, peer: u32, share: &mut Share) -> bool {
        if self.peers.get(peer).is_none() {
            return true;
        }
        for at in 0..LINES as u8 {
            while let Some(line) = self.waiting.stranded.get(&(peer, at))
                && let Some(flow) = line.judged.first()
            {
                if !share.take() {
                    return false;
                }
                self.judge_flow(flow, line.verdict);
            }
        }
        self.ask_for_unasked(self.peers[peer].address);
        self.forget_if_unknown(peer);
        true
    }

    /// A packet of the peer is for a flow that waits for a connection to it, and for what is said of
    /// its ask: it hears that and gets one before its turn, if there is one. What comes after it must
    /// not be taken for what came before.
    #[cold]
    pub(super) fn rescue_named(&mut self, flow: u32) {
        let (peer, at) = self.stranded_line(flow);
        if self.pick(peer, number_of(at)).is_some() {
            let line = &self.waiting.stranded[&(peer, at)];
            let verdict = match line.judged.is_empty() {
                true => Verdict::Open,
                false => line.verdict,
            };
            self.judge_flow(flow, verdict);
        }
    }

    /// This came of the ask for a flow that waits: it ends, gets a connection, or waits again.
    fn judge_flow(&mut self, flow: u32, verdict: Verdict) {
        if self.has_waited_stranded(flow, verdict) {
            if matches!(verdict, Verdict::Gone | Verdict::Plain) {
                self.leave_stranded(flow);
            }
            self.because(verdict.why(), |engine| engine.fail_stranded(flow));
            return;
        }
        let (peer, at) = self.stranded_line(flow);
        self.leave_stranded(flow);
        match self.pick(peer, number_of(at)) {
            Some(conn) => self.resume_on(flow, conn),
            None => self.strand(flow, false),
        }
    }

    /// A flow has no connection of the pool, and gets none any more. Its peer hears of its end over
    /// one that programs opened, where there is one: it may wait there for what it sent.
    pub(super) fn fail_stranded(&mut self, flow: u32) {
        if self.flows[flow].flags.has(Flags::STRANDED) {
            match self.heir(self.homes.peer(flow), self.flows[flow].remote) {
                NONE => self.leave_stranded(flow),
                conn => self.resume_on(flow, conn),
            }
        }
        self.fail_flow(flow, Status::RetryExceeded);
    }

    /// The peer is to be asked again for those that nobody has asked for since they wait.
    fn ask_for_unasked(&mut self, address: Gid) {
        let (peer, workers) = self.peer_and_workers(address);
        let undecided = self.waiting.of(address);
        let undecided = undecided.filter(|(_, line)| !line.fresh.is_empty());
        let stranded = self.waiting.stranded_at(peer.unwrap_or(NONE));
        let stranded = stranded.filter(|(_, line)| !line.fresh.is_empty());
        let lines = undecided
            .map(|(at, _)| at)
            .chain(stranded.map(|(at, _)| at));
        let fresh: std::collections::BTreeSet<u8> =
            lines.map(|at| workers.owner(number_of(at).get())).collect();
        for remote in self.waiting_for(address) {
            if fresh.contains(&workers.owner(remote.get())) {
                let peer = address;
                self.events.push_back(Event::Ask { peer, remote });
            }
        }
    }

    /// Whether a QP that waits since an ask of its peer has done so for long enough.
    fn has_waited_undecided(&self, qp: u32, asked: Instant, verdict: Verdict) -> bool {
        match verdict {
            Verdict::Silent(now, ..) => {
                let grace = self.config.failover_grace_ns;
                now.since(asked) >= self.patience_of(qp).unwrap_or(grace)
            }
            Verdict::Unreachable(_) => true,
            Verdict::Open | Verdict::Gone | Verdict::Plain => false,
        }
    }

    /// The same for a flow.
    fn has_waited_stranded(&self, flow: u32, verdict: Verdict) -> bool {
        let record = &self.flows[flow];
        match verdict {
            Verdict::Silent(now, silence, _) => {
                let grace = self.config.failover_grace_ns;
                let own = self.patience_of(record.qp);
                match own.filter(|_| record.ending == Ending::No) {
                    // Its clock runs, and ends it.
                    Some(own) => silence.died.is_some() && own <= grace,
                    None => {
                        let waited = silence.asked.map_or(0, |asked| now.since(asked));
                        silence.died.is_some() || waited >= grace
                    }
                }
            }
            Verdict::Unreachable(_) => true,
            Verdict::Gone => record.flags.has(Flags::HEARD),
            Verdict::Open | Verdict::Plain => false,
        }
    }
}

#[cfg(test)]
mod tests;
