//! A QP with its memory and what is outstanding at it.

use crate::area::Area;
use crate::failure::{Failure, Verdict};
use crate::words::{Cell, Counter};
use crate::world::Denied;
use std::collections::VecDeque;
use std::ops::Range;
use trunkline::{Cq, Mr, Pd, Qp, Qpn, RecvWr, Sge, Srq, Status};

/// Bytes between things in an area that nobody may touch.
pub(crate) const GAP: usize = 64;
/// Words of each kind per process.
pub(crate) const WORDS: usize = 4;
/// Set in the cookie of a receive.
const RECEIVE: u64 = 1 << 63;
/// Set in the cookie of a receive of an SRQ.
const SHARED: u64 = 1 << 62;

/// What a cookie stands for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Cookie {
    /// A send request: endpoint and number.
    Send(usize, u64),
    /// A receive of an endpoint: endpoint and slot.
    Receive(usize, usize),
    /// A receive of a process's SRQ: slot.
    Shared(usize),
}

impl Cookie {
    /// As it goes into a work request.
    pub(crate) const fn word(self) -> u64 {
        match self {
            Self::Send(endpoint, seq) => (endpoint as u64) << 32 | seq,
            Self::Receive(endpoint, slot) => RECEIVE | (endpoint as u64) << 32 | slot as u64,
            Self::Shared(slot) => RECEIVE | SHARED | slot as u64,
        }
    }

    /// As it comes back in a completion.
    pub(crate) const fn parse(word: u64) -> Self {
        let low = word & 0xffff_ffff;
        let endpoint = (word >> 32 & 0x3fff_ffff) as usize;
        if word & RECEIVE == 0 {
            Self::Send(endpoint, low)
        } else if word & SHARED == 0 {
            Self::Receive(endpoint, low as usize)
        } else {
            Self::Shared(low as usize)
        }
    }
}

/// Room for messages: slots of one size, each in a few pieces.
#[derive(Debug)]
pub(crate) struct Receives {
    /// Bytes that a message may have.
    pub(crate) slot: usize,
    base: usize,
    pieces: Vec<Vec<Range<usize>>>,
    free: Vec<usize>,
    posted: VecDeque<usize>,
    /// Completions come in the order of posting: not where several QPs or peers share.
    ordered: bool,
}

impl Receives {
    /// Bytes that `count` slots of `slot` bytes take in an area.
    pub(crate) const fn bytes(count: usize, slot: usize) -> usize {
        count * (slot + GAP)
    }

    /// `count` slots of `slot` bytes from `base` on. `cut` says where to cut a slot into pieces.
    pub(crate) fn new(
        base: usize,
        count: usize,
        slot: usize,
        ordered: bool,
        mut cut: impl FnMut() -> usize,
    ) -> Self {
        let pieces = (0..count).map(|i| {
            let start = base + i * (slot + GAP);
            let at = start + cut() % (slot + 1);
            if at == start || at == start + slot {
                std::iter::once(start..start + slot).collect()
            } else {
                // Out of order on purpose: elements need not ascend.
                vec![at..start + slot, start..at]
            }
        });
        Self {
            slot,
            base,
            pieces: pieces.collect(),
            free: (0..count).rev().collect(),
            posted: VecDeque::new(),
            ordered,
        }
    }

    /// Where all of them are.
    pub(crate) fn range(&self) -> Range<usize> {
        self.base..self.base + Self::bytes(self.pieces.len(), self.slot)
    }

    /// Takes a slot to post it: its number and elements.
    pub(crate) fn take(&mut self, mr: &Mr) -> Option<(usize, Vec<Sge>)> {
        let slot = self.free.pop()?;
        self.posted.push_back(slot);
        let sges = self.pieces[slot]
            .iter()
            .map(|piece| mr.sge(piece.start, piece.len()));
        Some((slot, sges.collect()))
    }

    /// Slot `slot` completed; it may be posted again.
    ///
    /// # Errors
    /// It was not its turn.
    pub(crate) fn completed(&mut self, slot: usize) -> Verdict {
        let at = self.posted.iter().position(|posted| *posted == slot);
        match at {
            Some(at) if at == 0 || !self.ordered => {
                self.posted.remove(at);
                self.free.push(slot);
                Ok(())
            }
            Some(_) => Err(Failure::wrong(format!(
                "receive {slot} completed before {:?}, which was posted earlier",
                self.posted.front()
            ))),
            None => Err(Failure::wrong(format!(
                "receive {slot} completed and was not posted"
            ))),
        }
    }

    /// What a message of `bytes` puts where.
    pub(crate) fn placed<'a>(&self, slot: usize, mut bytes: &'a [u8]) -> Vec<(usize, &'a [u8])> {
        let mut placed = Vec::new();
        for piece in &self.pieces[slot] {
            let (now, later) = bytes.split_at(bytes.len().min(piece.len()));
            placed.push((piece.start, now));
            bytes = later;
        }
        placed
    }

    /// Everything of a slot.
    pub(crate) fn extent(&self, slot: usize) -> Range<usize> {
        let start = self.base + slot * (self.slot + GAP);
        start..start + self.slot
    }

    /// Forgets what was posted: the queue is gone.
    pub(crate) fn forget(&mut self) -> Vec<Range<usize>> {
        let slots: Vec<usize> = self.posted.drain(..).collect();
        let ranges = slots.iter().map(|slot| self.extent(*slot)).collect();
        self.free.extend(slots);
        ranges
    }
}

/// Posts a receive of an endpoint.
///
/// # Errors
/// The QP refuses.
pub(crate) fn post_receive(qp: &Qp, cookie: Cookie, sges: &[Sge]) -> Result<(), trunkline::Error> {
    qp.post_recv(&[RecvWr {
        wr_id: cookie.word(),
        sges,
    }])
}

/// Where READ data and results of atomics go: slots of one size.
#[derive(Debug)]
pub(crate) struct Landings {
    base: usize,
    size: usize,
    free: Vec<usize>,
    count: usize,
}

impl Landings {
    /// Bytes that `count` slots of `size` bytes take.
    pub(crate) const fn bytes(count: usize, size: usize) -> usize {
        count * (size + GAP)
    }

    /// `count` slots of `size` bytes from `base` on.
    pub(crate) fn new(base: usize, count: usize, size: usize) -> Self {
        Self {
            base,
            size,
            free: (0..count).rev().collect(),
            count,
        }
    }

    /// Takes a slot.
    pub(crate) fn take(&mut self) -> Option<usize> {
        self.free.pop()
    }

    /// Gives it back.
    pub(crate) fn give(&mut self, slot: usize) {
        self.free.push(slot);
    }

    /// Where it is.
    pub(crate) const fn extent(&self, slot: usize) -> Range<usize> {
        let start = self.base + slot * (self.size + GAP);
        start..start + self.size
    }

    /// Those in use.
    pub(crate) fn used(&self) -> Vec<Range<usize>> {
        let used = (0..self.count).filter(|slot| !self.free.contains(slot));
        used.map(|slot| self.extent(slot)).collect()
    }

    /// Takes all of them back.
    pub(crate) fn reset(&mut self) {
        self.free = (0..self.count).rev().collect();
    }
}

/// How a request has to end.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Expect {
    /// Well.
    Success,
    /// With this status.
    Fails(Status),
    /// Flushed, after one that failed.
    Flushed,
}

/// What a posted request does.
#[derive(Debug)]
pub(crate) enum Doing {
    /// A SEND or WRITE.
    Sends,
    /// A READ of the peer's window into a landing slot.
    ReadsWindow(usize, usize),
    /// A READ of the peer's pool, which never changes.
    ReadsPool(usize, Vec<u8>),
    /// A FETCH_ADD of 1 to a counter that was at least this.
    Adds {
        /// Landing slot.
        slot: usize,
        /// Word.
        word: usize,
        /// See [`Counter::post`].
        floor: u64,
    },
    /// A CMP_SWAP.
    Swaps {
        /// Landing slot.
        slot: usize,
        /// Word.
        word: usize,
        /// Value compared with.
        compare: u64,
        /// Value to be put there.
        swap: u64,
    },
}

impl Doing {
    /// The landing slot it uses.
    pub(crate) const fn landing(&self) -> Option<usize> {
        match self {
            Self::Sends => None,
            Self::ReadsWindow(slot, _)
            | Self::ReadsPool(slot, _)
            | Self::Adds { slot, .. }
            | Self::Swaps { slot, .. } => Some(*slot),
        }
    }
}

/// A send request whose end is not known.
#[derive(Debug)]
pub(crate) struct Posted {
    /// Its number at its endpoint.
    pub(crate) seq: u64,
    /// Where it went.
    pub(crate) channel: usize,
    /// What it does.
    pub(crate) doing: Doing,
    /// A completion was asked for.
    pub(crate) signaled: bool,
    /// How it has to end.
    pub(crate) expect: Expect,
    /// When it was posted.
    pub(crate) at: u64,
}

/// A process on a node.
#[derive(Debug)]
pub(crate) struct Process {
    /// Its protection domain.
    pub(crate) pd: Pd,
    /// Its completion queues.
    pub(crate) cqs: Vec<Cq>,
    /// Words for atomics: counters first, then cells.
    pub(crate) words: Area,
    /// Models of the counters.
    pub(crate) counters: Vec<Counter>,
    /// Models of the cells.
    pub(crate) cells: Vec<Cell>,
    /// Its SRQ with the memory of its slots.
    pub(crate) srq: Option<(Srq, Area, Receives)>,
    /// It does not look at completions before this time.
    pub(crate) stopped_until: u64,
    /// It tops its SRQ up at some later time already.
    pub(crate) top_up_due: bool,
}

/// How far an endpoint is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Stage {
    /// Created, not connected.
    Made,
    /// Connected: requests are posted.
    Live,
    /// A completion with an error came.
    Failed,
    /// Destroyed, reset, or gone with its node.
    Gone,
}

/// A QP in one incarnation.
#[derive(Debug)]
pub(crate) struct Endpoint {
    /// Its node.
    pub(crate) node: usize,
    /// Its process there.
    pub(crate) process: usize,
    /// Its group.
    pub(crate) group: usize,
    /// The QP.
    pub(crate) qp: Option<Qp>,
    /// Its number, also when it is gone.
    pub(crate) qpn: Qpn,
    /// Windows, receive slots, landing slots.
    pub(crate) area: Option<Area>,
    /// What it sends from.
    pub(crate) pool: Option<Area>,
    /// Its own receives; `None` with an SRQ.
    pub(crate) receives: Option<Receives>,
    /// Where READs go.
    pub(crate) landings: Landings,
    /// Small regions for peers to invalidate; whether a peer has been given the key.
    pub(crate) spares: Vec<(Option<Mr>, bool)>,
    /// Channels it posts to.
    pub(crate) outgoing: Vec<usize>,
    /// Channels that end here.
    pub(crate) incoming: Vec<usize>,
    /// What its QP lets no peer do.
    pub(crate) denied: Option<Denied>,
    /// How far it is.
    pub(crate) stage: Stage,
    /// Requests whose end is not known, in order.
    pub(crate) posted: VecDeque<Posted>,
    /// Number of the next request.
    pub(crate) next_seq: u64,
    /// Requests posted since the last one with a completion.
    pub(crate) silent: u32,
    /// Most outstanding.
    pub(crate) max_send: usize,
    /// Most elements.
    pub(crate) max_sge: usize,
    /// Most inline bytes.
    pub(crate) max_inline: usize,
    /// Every request completes visibly.
    pub(crate) signal_all: bool,
    /// Receives are posted late.
    pub(crate) late: bool,
    /// A top-up is on the agenda.
    pub(crate) top_up_due: bool,
    /// Requests after this one must not succeed: it was posted to fail.
    pub(crate) poisoned: bool,
}
