//! Who sends next: connections take turns, and all that leaves a node shares the room of its port.
//!
//! As long as the port takes everything, a turn of a connection does all that it has to do. Once
//! the port has refused a packet, the next rounds are *tight*, until it has refused none for
//! [`CALM`] of them: what others wait for goes first (management, answers, acknowledgements),
//! connection after connection, and gets up to half of the room while data waits. Data then goes on
//! where it was interrupted: the connection whose turn the full port cut short keeps its place and
//! the rest of its share.

mod periods;
mod share;

pub(crate) use share::Share;

use super::Ready;
use super::tenants::Pause;
use crate::chain::{Chain, Chains};
use crate::hash::IndexMap;
use crate::slab::{NONE, reach};
use periods::Periods;

/// Packets of data that what goes first may be in arrears by: it may be so much ahead later.
const ARREARS: i32 = 32;
/// Rounds without a refusal that end the tight ones. The first may only mean that turns were over
/// before the room was.
const CALM: u8 = 2;

/// What is left to do for a connection after its turn.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Served {
    /// Nothing, until it is touched again.
    Done,
    /// More, in the next round.
    Again,
    /// More, but its tenants have no turn now.
    Paused(Pause),
    /// More, but the port is full.
    Full,
}

/// What came of asking a connection for what it owes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Owed {
    /// It owes nothing, or something else wakes it.
    Nothing,
    /// A packet was sent. There may be more.
    Sent,
    /// There is something, which had better wait for the next round.
    Later,
    /// There is something, but the port is full.
    Full,
}

/// What goes before data.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum First {
    /// Of connection managers.
    Management,
    /// Answers, control messages and acknowledgements of a connection.
    Owed(u32),
}

/// The turns of a node's connections, and the room that they share.
#[derive(Debug)]
pub(crate) struct Schedule {
    links: Chains<Ready>,
    /// Connections with something to send, the one whose turn is next in front.
    ready: Chain,
    /// So many.
    len: usize,
    /// What that one has left of a turn that a full port cut short.
    rest: Option<Share>,
    /// Connections that may owe something that goes first. Empty but in tight rounds.
    owing: Chain,
    /// Those of them that had better wait for the next round.
    later: Chain,
    /// Where a connection is in `ready`, by index; and IBTA ones.
    listed: Vec<u32>,
    ibta_listed: Vec<u32>,
    /// Where it is in `owing` or `later`.
    owes: IndexMap<Owes>,
    /// The port refused a packet in this round; it did so of late.
    refused: bool,
    tight: bool,
    /// Tight rounds in a row in which it refused none.
    calm: u8,
    /// Packets that went first in tight rounds, beyond those of data.
    ahead: i32,
    /// Management is what went first last: the others are next.
    managed: bool,
    periods: Periods,
}

/// Where a connection is that may owe something.
#[derive(Clone, Copy, Debug)]
struct Owes {
    link: u32,
    /// The link is one of `later`.
    later: bool,
}

impl Default for Schedule {
    fn default() -> Self {
        Self {
            links: Chains::new(),
            ready: Chain::EMPTY,
            len: 0,
            rest: None,
            owing: Chain::EMPTY,
            later: Chain::EMPTY,
            listed: Vec::new(),
            ibta_listed: Vec::new(),
            owes: IndexMap::default(),
            refused: false,
            tight: false,
            calm: 0,
            ahead: 0,
            managed: false,
            periods: Periods::default(),
        }
    }
}

impl Schedule {
    /// A connection has something to send, or may have.
    #[inline]
    pub(crate) fn mark_ready(&mut self, ready: Ready) {
        if let Ready::Conn(conn) = ready
            && let Some(listed) = self.listed.get(conn as usize)
            && *listed != NONE
            && (!self.tight || self.is_owing(conn))
        {
            return;
        }
        self.list(ready);
    }

    #[inline(never)]
    fn list(&mut self, ready: Ready) {
        if let Ready::Conn(conn) = ready {
            self.touch_owing(conn);
        }
        if *self.ready_link(ready) == NONE {
            *self.ready_link(ready) = self.links.push(&mut self.ready, ready);
            self.len += 1;
        }
    }

    /// Where the link of `ready` in the list of that name is kept.
    fn ready_link(&mut self, ready: Ready) -> &mut u32 {
        match ready {
            Ready::Conn(conn) => slot(&mut self.listed, conn, NONE),
            Ready::Ibta(ibta) => slot(&mut self.ibta_listed, ibta, NONE),
        }
    }

    /// What a connection may owe goes first, where there is little room.
    #[inline]
    fn touch_owing(&mut self, conn: u32) {
        if self.tight && !self.is_owing(conn) {
            let link = self.links.push(&mut self.owing, Ready::Conn(conn));
            self.owes.insert(conn, Owes { link, later: false });
        }
    }

    /// The first connection that may owe something, which is in that list no more.
    fn pop_owing(&mut self) -> Option<u32> {
        let Ready::Conn(conn) = self.links.pop(&mut self.owing)? else {
            unreachable!("ibta ones owe nothing")
        };
        self.owes.remove(&conn);
        Some(conn)
    }

    /// A connection is gone.
    pub(crate) fn forget(&mut self, gone: Ready) {
        if let Ready::Conn(conn) = gone
            && let Some(Owes { link, later }) = self.owes.remove(&conn)
        {
            let list = if later {
                &mut self.later
            } else {
                &mut self.owing
            };
            self.links.remove(list, link);
        }
        let link = std::mem::replace(self.ready_link(gone), NONE);
        if link == NONE {
            return;
        }
        if self.links.first(self.ready) == Some(gone) {
            self.rest = None;
        }
        self.links.remove(&mut self.ready, link);
        self.len -= 1;
    }

    /// Whether anything may have something to send.
    pub(crate) const fn is_empty(&self) -> bool {
        self.ready.is_empty() && self.owing.is_empty() && self.later.is_empty()
    }

    /// Bytes of all lists.
    pub(crate) fn state_bytes(&self) -> usize {
        let rows = self.listed.capacity() + self.ibta_listed.capacity();
        rows * size_of::<u32>() + self.links.state_bytes() + self.owes.allocation_size()
    }

    /// Connections with something to send.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// The connection with something to send, if there is one alone.
    pub(crate) fn sole(&self) -> Option<Ready> {
        (self.len == 1).then(|| self.links.first(self.ready))?
    }

    /// Begins a round: it is tight when the port was full of late.
    pub(crate) fn begin(&mut self) {
        let refused = std::mem::take(&mut self.refused);
        while let Some(again) = self.links.pop(&mut self.later) {
            let link = self.links.push(&mut self.owing, again);
            if let Ready::Conn(conn) = again {
                self.owes.insert(conn, Owes { link, later: false });
            }
        }
        self.calm = if refused {
            0
        } else {
            self.calm.saturating_add(1)
        };
        if refused && !self.tight {
            self.tight = true;
            self.ahead = 0;
            for _ in 0..self.len {
                if let Some(Ready::Conn(conn)) = self.links.first(self.ready) {
                    self.touch_owing(conn);
                }
                self.links.rotate(&mut self.ready);
            }
        } else if self.tight && self.calm >= CALM {
            self.tight = false;
            while let Some(conn) = self.pop_owing() {
                self.mark_ready(Ready::Conn(conn));
            }
            self.owes = IndexMap::default();
        }
    }

    /// Whether what goes first has a phase of its own in this round.
    pub(crate) const fn is_tight(&self) -> bool {
        self.tight
    }

    /// The port has no room for the next packet.
    pub(crate) const fn refuse(&mut self) {
        self.refused = true;
    }

    /// Whether the port refused a packet in this round, or in the last one before the next begins.
    pub(crate) const fn is_full(&self) -> bool {
        self.refused
    }

    /// What may go first now. Management and connections take turns; `managing`: as far as is
    /// known there is management to send.
    pub(crate) fn first(&mut self, managing: bool) -> Option<First> {
        let room = !self.refused && (!self.tight || self.ahead <= 0 || self.ready.is_empty());
        if !room {
            return None;
        }
        if managing && (!self.managed || self.owing.is_empty()) {
            return Some(First::Management);
        }
        Some(First::Owed(self.pop_owing()?))
    }

    /// A packet went first.
    pub(crate) const fn went_first(&mut self, first: First) {
        self.managed = matches!(first, First::Management);
        self.ahead += self.tight as i32;
    }

    /// Whether a connection is asked what it owes in this round or the next.
    pub(crate) fn is_owing(&self, conn: u32) -> bool {
        self.owes.contains_key(&conn)
    }

    /// What becomes of a connection that was asked what it owes.
    pub(crate) fn owed(&mut self, conn: u32, owed: Owed) {
        self.refused |= owed == Owed::Full;
        if owed == Owed::Nothing || self.is_owing(conn) {
            return;
        }
        let who = Ready::Conn(conn);
        let link = match owed {
            Owed::Full => self.links.push_first(&mut self.owing, who),
            Owed::Sent => self.links.push(&mut self.owing, who),
            Owed::Later | Owed::Nothing => self.links.push(&mut self.later, who),
        };
        let later = owed == Owed::Later;
        self.owes.insert(conn, Owes { link, later });
    }

    /// All connections have had their turns, and the port is not full. Where no data waits, what
    /// goes first may fill it.
    pub(crate) fn settle(&mut self) {
        if self.ready.is_empty() {
            self.ahead = self.ahead.min(0);
        }
    }

    /// Whose turn it is, and the rest of its share if a full port cut its turn short.
    pub(crate) fn next(&mut self) -> Option<(Ready, Option<Share>)> {
        Some((self.links.first(self.ready)?, self.rest.take()))
    }

    /// The one in front has had its turn, in which it sent `packets`.
    pub(crate) fn end(&mut self, who: Ready, served: Served, share: Share, packets: u64) {
        if self.tight {
            let packets = i32::try_from(packets).unwrap_or(i32::MAX);
            self.ahead = self.ahead.saturating_sub(packets).max(-ARREARS);
        }
        self.refused |= served == Served::Full;
        self.periods.judge(who, served, share);
        // Its turn may have been its end.
        if self.links.first(self.ready) != Some(who) {
            return;
        }
        match served {
            Served::Full => {
                self.rest = Some(share);
                return;
            }
            Served::Again | Served::Paused(_) => self.links.rotate(&mut self.ready),
            Served::Done => {
                self.links.pop(&mut self.ready);
                *self.ready_link(who) = NONE;
                self.len -= 1;
            }
        }
        self.rest = None;
    }

    /// Whether the period of tenants ends with this turn. Gives how many have something to send.
    #[inline]
    pub(crate) fn end_period(&mut self) -> Option<usize> {
        self.periods.end(self.len).then_some(self.len)
    }
}

/// The place of an index, which is made if there is none.
#[inline]
fn slot<T: Clone>(places: &mut Vec<T>, index: u32, blank: T) -> &mut T {
    reach(places, index, || blank.clone());
    &mut places[index as usize]
}

#[cfg(test)]
mod tests;
