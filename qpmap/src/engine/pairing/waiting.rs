//! Who waits for which worker of a peer, and what came of the connect requests for it.

use crate::chain::{Chain, Chains};
use crate::engine::flows::{Group, Homes};
use crate::engine::routes::Member;
use std::collections::BTreeMap;
use trunkline_conn::time::Instant;
use trunkline_conn::work::VendorError;
use trunkline_wire::{Gid, Qpn, Workers};

/// Lines of a peer: the low bits of a number, of which those are some that say whose worker's it
/// is. They say the same whatever becomes known of the peer.
pub(crate) const LINES: u32 = (Workers::MOST as u32).next_power_of_two();

/// The line of those that wait for the worker which has the QP `remote`.
pub(crate) const fn line_of(remote: Qpn) -> u8 {
    (remote.get() % LINES) as u8
}

/// A number of the worker that a line waits for.
pub(crate) const fn number_of(line: u8) -> Qpn {
    Qpn::from_wire(line as u32)
}

/// A QP whose peer is being asked what it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Undecided {
    pub(crate) qp: u32,
    /// When the first connect request began since it waits, as far as that was looked at.
    pub(crate) requested: Option<Instant>,
}

/// A worker of a peer to which no connection leads any more.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Silence {
    /// The last one died of it; when it was heard last then.
    pub(crate) died: Option<Instant>,
    /// When the first connect request began since then.
    pub(crate) requested: Option<Instant>,
}

/// By peer and worker.
#[derive(Debug, Default)]
pub(crate) struct Silences(BTreeMap<(u32, u8), Silence>);

impl Silences {
    /// The last connection to a worker is gone: of its silence, if it `died`. One that ends while
    /// the peer is silent already, as those of programs may, says nothing else.
    pub(crate) fn begin(&mut self, worker: (u32, u8), died: Option<Instant>) {
        let silence = self.0.entry(worker).or_default();
        silence.died = silence.died.max(died);
    }

    /// There is a connection to it again.
    pub(crate) fn end(&mut self, worker: (u32, u8)) {
        self.0.remove(&worker);
    }

    /// What was heard of a peer counts no more.
    pub(crate) fn forget(&mut self, peer: u32) {
        while let Some((&at, _)) = self.0.range((peer, 0)..=(peer, u8::MAX)).next() {
            self.0.remove(&at);
        }
    }

    /// It is asked.
    pub(crate) fn connect_request_begins(&mut self, worker: (u32, u8), now: Instant) {
        let silence = self.0.entry(worker).or_default();
        silence.requested.get_or_insert(now);
    }

    pub(crate) fn of(&self, worker: (u32, u8)) -> Option<Silence> {
        self.0.get(&worker).copied()
    }
}

/// What comes of a connect request for those that wait for it. A stronger one stands against a
/// weaker one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Verdict {
    /// None yet.
    #[default]
    Open,
    /// Nobody answered, up to then. Those whose time is not over still wait.
    Silent(Instant, Silence, VendorError),
    /// There is no way: they end.
    Unreachable(VendorError),
    /// The peer has ended in order: those that it has heard of are left.
    Left,
    /// The peer is gone: those that it has heard of end.
    Gone,
    /// It is an ordinary host: QPs get a connection of their own, and flows end.
    Ibta,
}

impl Verdict {
    const fn strength(self) -> u8 {
        match self {
            Self::Open => 0,
            Self::Silent(..) => 1,
            Self::Unreachable(_) => 2,
            Self::Left => 3,
            Self::Gone => 4,
            Self::Ibta => 5,
        }
    }

    pub(crate) const fn why(self) -> VendorError {
        match self {
            Self::Silent(_, _, why) | Self::Unreachable(why) => why,
            Self::Left | Self::Gone | Self::Ibta => VendorError::QpGone,
            Self::Open => VendorError::None,
        }
    }
}

/// Lists, and what joins two of them at once.
pub(crate) trait Lists {
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

/// Those that wait for one worker of a peer, by how far their connect requests have come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line<L> {
    /// No ask began since they wait.
    pub(crate) fresh: L,
    /// One began.
    pub(crate) requested: L,
    /// It came to nothing: they are being looked through.
    judged: L,
    verdict: Verdict,
    /// When the last connect request began.
    requested_at: Instant,
}

impl<L: Copy + PartialEq> Line<L> {
    const fn new(empty: L) -> Self {
        Self {
            fresh: empty,
            requested: empty,
            judged: empty,
            verdict: Verdict::Open,
            requested_at: Instant::ZERO,
        }
    }

    const fn lists(&mut self) -> [&mut L; 3] {
        [&mut self.fresh, &mut self.requested, &mut self.judged]
    }

    fn is_empty(&self, empty: L) -> bool {
        [self.fresh, self.requested, self.judged] == [empty; 3]
    }

    /// Whether some wait for an answer.
    pub(crate) fn waits(&self, empty: L) -> bool {
        [self.fresh, self.requested] != [empty; 2]
    }

    /// A connect request begins.
    pub(crate) fn connect_request_begins(
        &mut self,
        now: Instant,
        lists: &mut impl Lists<List = L>,
    ) {
        lists.append(&mut self.requested, &mut self.fresh);
        self.requested_at = now;
    }

    /// It said nothing to those that wait here.
    pub(crate) fn put_back(&mut self, lists: &mut impl Lists<List = L>) {
        lists.append(&mut self.fresh, &mut self.requested);
    }

    /// There is a connection after all: who was to be told that there is none waits for it.
    pub(crate) fn pardon(&mut self, lists: &mut impl Lists<List = L>) {
        if matches!(self.verdict, Verdict::Silent(..) | Verdict::Unreachable(_)) {
            lists.append(&mut self.fresh, &mut self.judged);
        }
    }

    /// It came to this. Where something worse is being gone through, the others have to be asked
    /// for again.
    pub(crate) fn judge<S: Lists<List = L>>(&mut self, verdict: Verdict, lists: &mut S) {
        if matches!((self.verdict, verdict), (Verdict::Ibta, Verdict::Ibta))
            && !self.waits(S::EMPTY)
        {
            // Hosts say it with each message.
            return;
        }
        let weaker = self.judged != S::EMPTY && self.verdict.strength() > verdict.strength();
        if weaker {
            self.put_back(lists);
            return;
        }
        self.verdict = verdict;
        lists.append(&mut self.judged, &mut self.requested);
        if matches!(verdict, Verdict::Left | Verdict::Gone | Verdict::Ibta) {
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
    /// Of workers of peers to which no connection leads any more.
    pub(crate) silences: Silences,
}

impl Default for Waiting {
    fn default() -> Self {
        Self {
            undecided: BTreeMap::new(),
            links: Chains::new(),
            stranded: BTreeMap::new(),
            stranded_len: 0,
            silences: Silences::default(),
        }
    }
}

impl Waiting {
    /// QPs and flows that wait.
    pub(crate) const fn len(&self) -> usize {
        self.links.len() + self.stranded_len
    }

    pub(crate) fn join(&mut self, at: (Gid, u8), waiter: Undecided) -> u32 {
        let line = self.undecided.entry(at);
        let line = line.or_insert(Line::new(Chain::EMPTY));
        self.links.push(&mut line.fresh, waiter)
    }

    pub(crate) fn leave(&mut self, at: (Gid, u8), link: u32) -> Undecided {
        let line = self.undecided.get_mut(&at);
        let line = line.expect("it holds the line of each link");
        let waiter = self.links.remove_from(line.lists(), link);
        if line.is_empty(Chain::EMPTY) {
            self.undecided.remove(&at);
        }
        waiter
    }

    /// The QP which stands first among those of a line that wait for an answer.
    pub(crate) fn first_undecided(&self, at: (Gid, u8)) -> Option<u32> {
        let line = self.undecided.get(&at)?;
        let first = |chain| self.links.first(chain);
        let waiter = first(line.requested).or_else(|| first(line.fresh));
        waiter.map(|waiter| waiter.qp)
    }

    /// The first QP of a line that is to hear what came of its connect request, that, and when the
    /// connect request began.
    pub(crate) fn first_judged(&self, at: (Gid, u8)) -> Option<(u32, Verdict, Instant)> {
        let line = self.undecided.get(&at)?;
        let waiter = self.links.first(line.judged)?;
        Some((waiter.qp, line.verdict, line.requested_at))
    }

    /// QPs that wait for an answer of the peer at an address.
    pub(crate) fn undecided_of(&self, peer: Gid) -> impl Iterator<Item = u32> {
        let chains = self
            .of(peer)
            .flat_map(|(_, line)| [line.fresh, line.requested]);
        let waiters = chains.flat_map(|chain| self.links.iter(chain));
        waiters.map(|waiter| waiter.qp)
    }

    /// A flow has to wait for a connection, which is `requested` since before, or will be.
    pub(crate) fn strand(&mut self, homes: &mut Homes, at: (u32, u8), flow: u32, requested: bool) {
        let line = self.stranded.entry(at);
        let line = line.or_insert(Line::new(Group::EMPTY));
        let group = if requested {
            &mut line.requested
        } else {
            &mut line.fresh
        };
        homes.join(group, flow);
        self.stranded_len += 1;
    }

    pub(crate) fn unstrand(&mut self, homes: &mut Homes, at: (u32, u8), flow: u32) {
        let line = self.stranded.get_mut(&at);
        let line = line.expect("it holds the line of each flow that waits");
        homes.leave_one_of(line.lists(), flow);
        self.stranded_len -= 1;
        if line.is_empty(Group::EMPTY) {
            self.stranded.remove(&at);
        }
    }

    /// The first flow of a line that waits for an answer.
    pub(crate) fn first_stranded(&self, at: (u32, u8)) -> Option<u32> {
        let line = self.stranded.get(&at)?;
        line.requested
            .first()
            .or(line.fresh.first())
            .map(Member::awake)
    }

    /// The first flow of a line that is to hear what came of its connect request, and that.
    pub(crate) fn first_judged_flow(&self, at: (u32, u8)) -> Option<(u32, Verdict)> {
        let line = self.stranded.get(&at)?;
        Some((line.judged.first()?.awake(), line.verdict))
    }

    pub(crate) fn of(&self, peer: Gid) -> impl Iterator<Item = (u8, &Line<Chain>)> {
        let all = self.undecided.range((peer, 0)..=(peer, u8::MAX));
        all.map(|((_, at), line)| (*at, line))
    }

    pub(crate) fn stranded_at(&self, peer: u32) -> impl Iterator<Item = (u8, &Line<Group>)> {
        let all = self.stranded.range((peer, 0)..=(peer, u8::MAX));
        all.map(|((_, at), line)| (*at, line))
    }

    /// The lines of a peer in which anybody stands, of both kinds.
    pub(crate) fn lines(&self, address: Gid, peer: u32) -> impl Iterator<Item = u8> {
        let undecided = self.of(address).map(|(at, _)| at);
        undecided.chain(self.stranded_at(peer).map(|(at, _)| at))
    }

    /// Whether flows wait for a peer, or are about to hear what came of it.
    pub(crate) fn has_stranded(&self, peer: u32) -> bool {
        self.stranded_at(peer).next().is_some()
    }

    /// Lines of the worker of a peer that `is_its` knows, of both kinds, change.
    pub(crate) fn each_line(
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
pub(crate) enum LineOf<'a> {
    Qps(&'a mut Line<Chain>, &'a mut Chains<Undecided>),
    Flows(&'a mut Line<Group>, &'a mut Homes),
}

#[cfg(test)]
mod tests;
