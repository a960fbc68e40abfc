//! Who sends next: connections take turns, and all that leaves a node shares the room of its port.
//!
//! As long as the port takes everything, a turn of a connection does all that it has to do. Once
//! the port has refused a packet, the next rounds are *tight*, until it has refused none for
//! [`CALM`] of them: what others wait for goes first (management, answers, acknowledgements),
//! connection after connection, and gets up to half of the room while data waits. Data then goes on
//! where it was interrupted: the connection whose turn the full port cut short keeps its place and
//! the rest of its share.

use super::Ready;
use super::tenants::Pause;
use crate::chain::{Chain, Chains};
use crate::hash::IndexMap;
use crate::slab::{NONE, reach};

/// What a connection of weight 1 may send before the next one's turn: packets, and bytes, so that
/// what waits in the port still fits the second-level cache.
const PACKETS: u32 = 64;
const BYTES: i32 = 256 << 10;
/// Packets of data that what goes first may be in arrears by: it may be so much ahead later.
const ARREARS: i32 = 32;
/// Rounds without a refusal that end the tight ones. The first may only mean that turns were over
/// before the room was.
const CALM: u8 = 2;

/// What a connection may still send in its turn.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Share {
    packets: u32,
    bytes: i32,
}

impl Share {
    /// That of a whole turn.
    pub(crate) fn of(weight: u8) -> Self {
        Self {
            packets: u32::from(weight) * PACKETS,
            bytes: i32::from(weight) * BYTES,
        }
    }

    pub(crate) const fn is_spent(&self) -> bool {
        self.packets == 0 || self.bytes <= 0
    }

    /// Bytes left.
    pub(crate) const fn bytes(&self) -> i32 {
        self.bytes
    }

    /// Counts a packet, and gives its bytes as a deficit counts them.
    pub(crate) const fn take(&mut self, bytes: u32) -> i32 {
        self.packets -= 1;
        self.bytes -= bytes as i32;
        bytes as i32
    }

    /// Counts bytes that join a packet that was counted.
    pub(crate) const fn add(&mut self, bytes: u32) {
        self.bytes -= bytes as i32;
    }

    /// As much of it as `packets` packets.
    pub(crate) fn limited(self, packets: u32) -> Self {
        Self {
            packets: self.packets.min(packets),
            ..self
        }
    }

    /// What is left when of a [`limited`](Self::limited) part so much is.
    pub(crate) const fn without(self, given: Self, left: Self) -> Self {
        Self {
            packets: self.packets - (given.packets - left.packets),
            bytes: left.bytes,
        }
    }
}

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
    /// Turns in a row after which tenants had nothing more to send that they could and may.
    fruitless: usize,
    /// After one of these, what they had was more than they may.
    spent: bool,
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
            fruitless: 0,
            spent: false,
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
        self.judge_period(who, served, share);
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

    /// Takes note of whether a tenant could and may send more after a turn: one that only ended as
    /// it was long enough.
    fn judge_period(&mut self, who: Ready, served: Served, share: Share) {
        let goes_on = served == Served::Again && share.is_spent() && matches!(who, Ready::Conn(_));
        match served {
            Served::Full | Served::Paused(Pause::Held) => {}
            _ if goes_on => self.fruitless = 0,
            _ => self.fruitless = self.fruitless.saturating_add(1),
        }
        self.spent |= served == Served::Paused(Pause::Spent);
    }

    /// Whether tenants wait for others to send what they may, and no connection has more of that
    /// that could go now. Gives how many have something to send.
    #[inline]
    pub(crate) fn end_period(&mut self) -> Option<usize> {
        if !self.spent || self.fruitless < self.len {
            return None;
        }
        (self.fruitless, self.spent) = (0, false);
        Some(self.len)
    }
}

/// The place of an index, which is made if there is none.
#[inline]
fn slot<T: Clone>(places: &mut Vec<T>, index: u32, blank: T) -> &mut T {
    reach(places, index, || blank.clone());
    &mut places[index as usize]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Connections that always have data, and a port with so much room in each round.
    struct Model {
        turns: Schedule,
        /// Connections owe something, always.
        owes: bool,
        room: u32,
        sent: BTreeMap<u32, u32>,
        first: BTreeMap<bool, u32>,
    }

    impl Model {
        fn new(connections: u32, room: u32) -> Self {
            let mut turns = Schedule::default();
            (0..connections).for_each(|conn| turns.mark_ready(Ready::Conn(conn)));
            Self {
                turns,
                owes: true,
                room,
                sent: BTreeMap::new(),
                first: BTreeMap::new(),
            }
        }

        fn go_first(&mut self, left: &mut u32, managing: bool) {
            while let Some(first) = self.turns.first(managing) {
                if let First::Owed(conn) = first
                    && !self.owes
                {
                    self.turns.owed(conn, Owed::Nothing);
                    continue;
                }
                if *left == 0 {
                    match first {
                        First::Management => self.turns.refuse(),
                        First::Owed(conn) => self.turns.owed(conn, Owed::Full),
                    }
                    continue;
                }
                *left -= 1;
                self.turns.went_first(first);
                let managed = matches!(first, First::Management);
                *self.first.entry(managed).or_default() += 1;
                if let First::Owed(conn) = first {
                    self.turns.owed(conn, Owed::Sent);
                }
            }
        }

        fn round(&mut self, managing: bool) {
            let mut left = self.room;
            self.turns.begin();
            if self.turns.is_tight() {
                self.go_first(&mut left, managing);
            }
            for _ in 0..self.turns.len() {
                if self.turns.is_full() {
                    return;
                }
                let (who, rest) = self.turns.next().expect("as many as there are");
                let Ready::Conn(conn) = who else {
                    unreachable!("none is ibta")
                };
                let (mut share, mut packets) = (rest.unwrap_or(Share::of(1)), 0);
                while left > 0 && !share.is_spent() {
                    share.take(1000);
                    (left, packets) = (left - 1, packets + 1);
                }
                *self.sent.entry(conn).or_default() += packets;
                let served = if share.is_spent() {
                    Served::Again
                } else {
                    Served::Full
                };
                self.turns.end(who, served, share, packets.into());
            }
        }
    }

    #[test]
    fn a_turn_that_a_full_port_cut_short_goes_on_and_is_no_longer_than_any_other() {
        for room in [1, 3, 63, 64, 65, 200] {
            let mut model = Model::new(4, room);
            model.owes = false;
            let mut total = 0;
            while total < 4 * PACKETS * 10 {
                model.round(false);
                total = model.sent.values().sum();
            }
            let least = model.sent.values().min().expect("they sent");
            let most = model.sent.values().max().expect("they sent");
            assert_eq!(model.sent.len(), 4, "at {room}");
            assert!(most - least <= PACKETS, "{least} to {most} at {room}");
        }
    }

    #[test]
    fn management_and_what_connections_owe_take_turns_and_get_half_together() {
        for room in [1, 2, 5, 30] {
            let mut model = Model::new(3, room);
            for _ in 0..3000 {
                model.round(true);
            }
            let data: u32 = model.sent.values().sum();
            let [owed, managed] = [false, true].map(|kind| model.first[&kind]);
            assert!(owed + managed <= data, "{owed}, {managed}, {data}");
            assert!(
                10 * (owed + managed) >= 8 * data,
                "{owed}, {managed}, {data}"
            );
            assert!(owed.abs_diff(managed) <= 2, "{owed}, {managed}");
        }
    }

    #[test]
    fn what_owes_goes_first_only_as_long_as_the_port_is_full_and_is_never_forgotten() {
        let mut turns = Schedule::default();
        turns.mark_ready(Ready::Conn(0));
        turns.begin();
        assert_eq!(turns.first(false), None, "one turn does it all");
        turns.refuse();
        turns.begin();
        assert_eq!(turns.first(false), Some(First::Owed(0)));
        turns.owed(0, Owed::Later);
        assert_eq!(turns.first(false), None, "not twice in a round");
        let (who, _) = turns.next().expect("it is ready, too");
        turns.end(who, Served::Done, Share::of(1), 0);
        turns.begin();
        turns.begin();
        assert!(!turns.is_tight());
        assert_eq!(turns.next().map(|(who, _)| who), Some(Ready::Conn(0)));
    }

    #[test]
    fn a_turn_ends_after_its_packets_or_after_its_bytes_whichever_come_first() {
        for (bytes, packets) in [(64, PACKETS), (4096, PACKETS), (4097, PACKETS), (8192, 32)] {
            for weight in [1, 3] {
                let (mut share, mut taken) = (Share::of(weight), 0);
                while !share.is_spent() {
                    share.take(bytes);
                    taken += 1;
                }
                assert_eq!(taken, u32::from(weight) * packets, "{bytes}");
            }
        }
    }

    #[test]
    fn connections_that_are_gone_leave_no_trace_in_any_list() {
        let mut turns = Schedule::default();
        (0..6).for_each(|conn| turns.mark_ready(Ready::Conn(conn)));
        turns.mark_ready(Ready::Ibta(0));
        turns.refuse();
        turns.begin();
        for owed in [Owed::Later, Owed::Sent, Owed::Nothing, Owed::Full] {
            let Some(First::Owed(conn)) = turns.first(false) else {
                panic!("they are asked in turn");
            };
            turns.owed(conn, owed);
        }
        turns.forget(Ready::Ibta(0));
        for conn in [3, 0, 5, 1, 4, 2] {
            turns.forget(Ready::Conn(conn));
            assert!(!turns.is_owing(conn));
        }
        assert!(turns.is_empty() && turns.links.len() == 0);
        turns.mark_ready(Ready::Conn(3));
        assert_eq!(turns.next(), Some((Ready::Conn(3), None)));
    }

    #[test]
    fn a_connection_that_is_gone_leaves_its_share_to_nobody() {
        let mut turns = Schedule::default();
        (0..2).for_each(|conn| turns.mark_ready(Ready::Conn(conn)));
        turns.begin();
        let (who, _) = turns.next().expect("two are ready");
        let mut share = Share::of(1);
        share.take(1000);
        turns.end(who, Served::Full, share, 1);
        turns.forget(who);
        assert_eq!(turns.next(), Some((Ready::Conn(1), None)));
        turns.forget(Ready::Conn(1));
        assert!(turns.is_empty());
    }

    fn turn(turns: &mut Schedule, served: Served, share: Share) -> Option<usize> {
        let (who, _) = turns.next().expect("they are ready");
        turns.end(who, served, share, 0);
        turns.end_period()
    }

    #[test]
    fn a_period_ends_when_all_had_a_turn_and_who_is_held_back_counts_for_nothing() {
        let mut turns = Schedule::default();
        (0..2).for_each(|conn| turns.mark_ready(Ready::Conn(conn)));
        let whole = Share::of(1);
        for _ in 0..3 {
            assert_eq!(turn(&mut turns, Served::Paused(Pause::Held), whole), None);
            assert_eq!(turn(&mut turns, Served::Paused(Pause::Spent), whole), None);
            assert_eq!(turn(&mut turns, Served::Paused(Pause::Held), whole), None);
            assert_eq!(
                turn(&mut turns, Served::Paused(Pause::Spent), whole),
                Some(2)
            );
        }
        // Its window let no more go.
        assert_eq!(turn(&mut turns, Served::Again, whole), None);
        assert_eq!(
            turn(&mut turns, Served::Paused(Pause::Spent), whole),
            Some(2)
        );
        // It was long enough: there may be more.
        let mut spent = Share::of(1);
        spent.add(BYTES as u32);
        assert_eq!(turn(&mut turns, Served::Again, spent), None);
        assert_eq!(turn(&mut turns, Served::Paused(Pause::Spent), whole), None);
    }

    #[test]
    fn an_ibta_one_holds_up_no_period() {
        let mut turns = Schedule::default();
        turns.mark_ready(Ready::Conn(0));
        turns.mark_ready(Ready::Ibta(0));
        let mut spent = Share::of(1);
        spent.add(BYTES as u32);
        assert_eq!(turn(&mut turns, Served::Paused(Pause::Spent), spent), None);
        assert_eq!(turn(&mut turns, Served::Again, spent), Some(2));
    }
}
