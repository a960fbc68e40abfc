//! Stateless replies: what peers are told about pairs of QPs that have no flow here.
//!
//! They are not worth any state of their own: an asker that hears nothing asks again, and a packet
//! that would be refused comes again when it is not acknowledged. So there may be few of them, each
//! address has room of its own, and how often it is refused a BIND is limited: whoever searches for
//! numbers of QPs learns one with each refusal.

use crate::hash::IndexMap;
use std::collections::{BTreeMap, VecDeque};
use trunkline_conn::time::{Instant, SECOND};
use trunkline_wire::{Answer as AnswerEntry, Control as ControlEntry, Gid};

/// Most replies that wait, in all, beside one for each address.
const MOST: usize = 1 << 16;
/// Most that wait for one address, which gets half of what others leave at most.
const MOST_PER_ADDRESS: usize = 1024;
/// Refusals that an address gets at once, and in a second.
pub(crate) const REFUSALS: u32 = 4096;
pub(crate) const REFUSALS_PER_SECOND: u64 = 1000;
/// Addresses that are looked through for those which need not be remembered any more.
const CROWD: usize = 1024;

/// What a peer is told.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reply {
    /// There is no such pair of QPs.
    Answer(AnswerEntry),
    /// A BIND is refused.
    Refused(ControlEntry),
}

/// Replies that wait, and how many refusals each address has left.
#[derive(Debug, Default)]
pub(crate) struct Replies {
    by_conn: IndexMap<Line>,
    by_address: BTreeMap<Gid, Share>,
    len: usize,
    /// Addresses beyond which some are forgotten.
    crowd: usize,
    /// What all who have not proved their address share.
    unproved: Allowance,
}

#[derive(Debug)]
struct Line {
    address: Gid,
    replies: VecDeque<Reply>,
}

/// What an address has of it all.
#[derive(Clone, Copy, Debug)]
struct Share {
    waiting: usize,
    refusals: Allowance,
}

/// Refusals that may still be given, in ns of the time that they take to grow again.
#[derive(Clone, Copy, Debug)]
struct Allowance {
    left: u64,
    since: Instant,
}

impl Allowance {
    const PRICE: u64 = SECOND / REFUSALS_PER_SECOND;
    const FULL: u64 = REFUSALS as u64 * Self::PRICE;

    const fn full(since: Instant) -> Self {
        let left = Self::FULL;
        Self { left, since }
    }

    fn refill(&mut self, now: Instant) {
        if now > self.since {
            self.left = (self.left + now.since(self.since)).min(Self::FULL);
            self.since = now;
        }
    }

    fn is_spent(&mut self, now: Instant) -> bool {
        self.refill(now);
        self.left < Self::PRICE
    }

    const fn spend(&mut self) {
        self.left = self.left.saturating_sub(Self::PRICE);
    }
}

impl Default for Allowance {
    fn default() -> Self {
        Self::full(Instant::ZERO)
    }
}

impl Replies {
    /// Replies that wait.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Whether some wait for connection `conn`.
    pub(crate) fn has(&self, conn: u32) -> bool {
        self.len > 0 && self.by_conn.contains_key(&conn)
    }

    /// Whether `address` may still learn of QPs that it has nothing to do with.
    pub(crate) fn may_ask(&mut self, now: Instant, address: Gid) -> bool {
        let share = self.by_address.get_mut(&address);
        share.is_none_or(|share| !share.refusals.is_spent(now))
    }

    /// Whether somebody who has not proved its address may learn of QPs that it has nothing to do
    /// with.
    pub(crate) fn may_guess(&mut self, now: Instant) -> bool {
        !self.unproved.is_spent(now)
    }

    /// Such a one named a QP that there is not.
    pub(crate) fn guessed_wrong(&mut self, now: Instant) {
        self.unproved.refill(now);
        self.unproved.spend();
    }

    /// Refuses a BIND, if `address` has not had too many refused. `false`: it hears nothing, and
    /// asks again.
    pub(crate) fn refuse(
        &mut self,
        now: Instant,
        (conn, address): (u32, Gid),
        entry: ControlEntry,
    ) -> bool {
        let Some(share) = self.room_for(now, address) else {
            return false;
        };
        if share.refusals.is_spent(now) {
            return false;
        }
        share.refusals.spend();
        share.waiting += 1;
        self.push((conn, address), Reply::Refused(entry));
        true
    }

    /// Says that there is no such pair of QPs. `false`: there is no room.
    pub(crate) fn answer(&mut self, (conn, address): (u32, Gid), entry: AnswerEntry) -> bool {
        let said = |reply: &Reply| matches!(reply, Reply::Answer(other) if *other == entry);
        let last = self.by_conn.get(&conn).and_then(|line| line.replies.back());
        if last.is_some_and(said) {
            // Packets of one message, most of the time.
            return true;
        }
        // It grows no credit by that: nothing is learned from it.
        let Some(share) = self.room_for(Instant::from_nanos(0), address) else {
            return false;
        };
        share.waiting += 1;
        self.push((conn, address), Reply::Answer(entry));
        true
    }

    /// What `address` has of it all, if another reply to it may wait.
    fn room_for(&mut self, now: Instant, address: Gid) -> Option<&mut Share> {
        if self.by_address.len() >= self.crowd.max(CROWD) {
            self.by_address.retain(|_, share| {
                share.refusals.refill(now);
                share.waiting > 0 || share.refusals.left < Allowance::FULL
            });
            self.crowd = 2 * self.by_address.len();
        }
        let share = self.by_address.entry(address).or_insert(Share {
            waiting: 0,
            refusals: Allowance::full(now),
        });
        let left = MOST.saturating_sub(self.len) / 2;
        (share.waiting < left.clamp(1, MOST_PER_ADDRESS)).then_some(share)
    }

    /// The next reply for a connection, which stays.
    pub(crate) fn next(&self, conn: u32) -> Option<Reply> {
        self.by_conn.get(&conn)?.replies.front().copied()
    }

    /// It counts as waiting already for its address.
    fn push(&mut self, (conn, address): (u32, Gid), reply: Reply) {
        let line = self.by_conn.entry(conn).or_insert_with(|| Line {
            address,
            replies: VecDeque::new(),
        });
        line.replies.push_back(reply);
        self.len += 1;
    }

    /// The next one for connection `conn`.
    pub(crate) fn pop(&mut self, conn: u32) -> Option<Reply> {
        let line = self.by_conn.get_mut(&conn)?;
        let reply = line.replies.pop_front();
        self.len -= usize::from(reply.is_some());
        if let Some(share) = self.by_address.get_mut(&line.address) {
            share.waiting -= usize::from(reply.is_some());
        }
        if line.replies.is_empty() {
            self.by_conn.remove(&conn);
        }
        reply
    }

    /// Connection `conn` is gone. What was to go over it is not said: who asked finds another
    /// connection, and asks there.
    pub(crate) fn forget(&mut self, conn: u32) {
        while self.pop(conn).is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline_wire::{ControlKind, NakCode, Qpn, Syndrome};

    const NOW: Instant = Instant::from_nanos(SECOND);

    fn address(n: u16) -> Gid {
        let [high, low] = n.to_be_bytes();
        std::net::IpAddr::from([10, 0, high, low]).into()
    }

    fn answer(n: u32) -> AnswerEntry {
        AnswerEntry {
            requester: Qpn::from_wire(n),
            syndrome: Syndrome::Nak(NakCode::InvalidRd),
            msn: 0,
            generation: 0,
            replay_epoch: 0,
            responder: Qpn::from_wire(1),
        }
    }

    const REFUSED: ControlEntry = ControlEntry {
        kind: ControlKind::Refused,
        src_qp: Qpn::from_wire(1),
        replay_epoch: 0,
        dest_qp: Qpn::from_wire(2),
        generation: 1,
        status: 1,
        msn: 0,
    };

    #[test]
    fn a_peer_that_takes_nothing_fills_its_own_room_alone() {
        let mut replies = Replies::default();
        let silent = (1, address(1));
        let taken = (0..10_000).filter(|n| replies.answer(silent, answer(*n)));
        assert_eq!(taken.count(), MOST_PER_ADDRESS);
        assert!(!replies.refuse(NOW, silent, REFUSED));
        let other = (2, address(2));
        assert!(replies.answer(other, answer(0)));
        assert!(replies.refuse(NOW, other, REFUSED));
        assert!(matches!(replies.pop(2), Some(Reply::Answer(_))));
        assert!(matches!(replies.pop(2), Some(Reply::Refused(_))));
        assert!(replies.pop(2).is_none() && !replies.has(2));
        replies.forget(1);
        assert_eq!(replies.len(), 0);
        assert!(replies.answer(silent, answer(0)));
    }

    #[test]
    fn any_number_of_peers_leaves_room_for_one_more() {
        let mut replies = Replies::default();
        for n in 0..5000 {
            for at in 0..MOST_PER_ADDRESS as u32 {
                replies.answer((n.into(), address(n)), answer(at));
            }
        }
        assert!(replies.len() < MOST + 5000);
        assert!(replies.answer((9999, address(9999)), answer(0)));
    }

    #[test]
    fn refusals_of_an_address_are_limited_in_rate_and_those_of_others_are_not() {
        let mut replies = Replies::default();
        let mut refused = |now: Instant, of: Gid| {
            let mut count = 0;
            while replies.refuse(now, (1, of), REFUSED) {
                replies.pop(1);
                count += 1;
            }
            assert!(!replies.may_ask(now, of));
            count
        };
        assert_eq!(refused(NOW, address(1)), REFUSALS);
        assert_eq!(refused(NOW + SECOND, address(1)), 1000);
        assert_eq!(refused(NOW + SECOND, address(2)), REFUSALS);
        assert_eq!(refused(NOW + 100 * SECOND, address(1)), REFUSALS);
    }

    #[test]
    fn addresses_that_have_their_credit_back_are_forgotten() {
        let mut replies = Replies::default();
        for n in 0..3000 {
            let now = NOW + u64::from(n) * 10 * SECOND;
            assert!(replies.refuse(now, (1, address(n)), REFUSED));
            replies.pop(1);
        }
        assert!(replies.by_address.len() <= CROWD);
    }
}
