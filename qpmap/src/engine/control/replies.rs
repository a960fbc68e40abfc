//! Stateless replies: what peers are told about pairs of QPs that have no flow here.
//!
//! They are not worth any state of their own: an asker that hears nothing asks again, and a packet
//! that would be refused comes again when it is not acknowledged. So there may be few of them, and
//! each address has room of its own.

use crate::hash::{IndexMap, Keyed, WideMap, bits};
use hashbrown::hash_map::Entry;
use std::collections::VecDeque;
use trunkline_wire::{Answer as AnswerEntry, Control as ControlEntry, Gid, Record};

/// Most replies that wait, in all, beside [`LEAST_PER_ADDRESS`] for each address.
const MOST: usize = 1 << 16;
/// Most that wait for one address, which gets half of what others leave at most.
const MOST_PER_ADDRESS: usize = 1024;
/// As many may wait for any address as one packet can ask for: it is taken up as a whole, or never.
const LEAST_PER_ADDRESS: usize = 4096 / Record::LEN;
/// What a peer is told.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reply {
    /// There is no such pair of QPs.
    Answer(AnswerEntry),
    /// A BIND is refused.
    Refused(ControlEntry),
}

/// Replies that wait.
#[derive(Debug)]
pub(crate) struct Replies {
    by_conn: IndexMap<Line>,
    /// How many wait for each address, if any do.
    by_address: WideMap<u128, usize>,
    len: usize,
}

#[derive(Debug)]
struct Line {
    address: Gid,
    replies: VecDeque<Reply>,
}

impl Replies {
    /// None. `hash` is of addresses, which peers choose.
    pub(crate) fn new(hash: Keyed) -> Self {
        Self {
            by_conn: IndexMap::default(),
            by_address: WideMap::with_hasher(hash),
            len: 0,
        }
    }

    /// Replies that wait.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Whether some wait for connection `conn`.
    pub(crate) fn has(&self, conn: u32) -> bool {
        self.len > 0 && self.by_conn.contains_key(&conn)
    }

    /// Refuses a BIND. `false`: there is no room.
    pub(crate) fn refuse(&mut self, of: (u32, Gid), entry: ControlEntry) -> bool {
        self.push(of, Reply::Refused(entry))
    }

    /// Says that there is no such pair of QPs. `false`: there is no room.
    pub(crate) fn answer(&mut self, (conn, address): (u32, Gid), entry: AnswerEntry) -> bool {
        let said = |reply: &Reply| matches!(reply, Reply::Answer(other) if *other == entry);
        let last = self.by_conn.get(&conn).and_then(|line| line.replies.back());
        if last.is_some_and(said) {
            // Packets of one message, most of the time.
            return true;
        }
        self.push((conn, address), Reply::Answer(entry))
    }

    /// The next reply for a connection, which stays.
    pub(crate) fn next(&self, conn: u32) -> Option<Reply> {
        self.by_conn.get(&conn)?.replies.front().copied()
    }

    /// Whether so many more may wait for an address.
    pub(crate) fn has_room(&self, address: Gid, count: usize) -> bool {
        let waiting = self.by_address.get(&bits(address)).copied().unwrap_or(0);
        count == 0 || waiting + count <= self.most_per_address()
    }

    fn most_per_address(&self) -> usize {
        let left = MOST.saturating_sub(self.len) / 2;
        left.clamp(LEAST_PER_ADDRESS, MOST_PER_ADDRESS)
    }

    /// Lets a reply wait, if there is room for another one to its address.
    fn push(&mut self, (conn, address): (u32, Gid), reply: Reply) -> bool {
        let most = self.most_per_address();
        let waiting = self.by_address.entry(bits(address)).or_insert(0);
        if *waiting >= most {
            return false;
        }
        *waiting += 1;
        let line = self.by_conn.entry(conn).or_insert_with(|| Line {
            address,
            replies: VecDeque::new(),
        });
        line.replies.push_back(reply);
        self.len += 1;
        true
    }

    /// The next one for connection `conn`.
    pub(crate) fn pop(&mut self, conn: u32) -> Option<Reply> {
        let line = self.by_conn.get_mut(&conn)?;
        let (reply, address) = (line.replies.pop_front(), line.address);
        if line.replies.is_empty() {
            self.by_conn.remove(&conn);
        }
        if reply.is_some() {
            self.len -= 1;
            if let Entry::Occupied(mut waiting) = self.by_address.entry(bits(address)) {
                *waiting.get_mut() -= 1;
                if *waiting.get() == 0 {
                    waiting.remove();
                }
            }
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
pub(super) mod tests {
    use super::*;
    use trunkline_wire::{ControlKind, NakCode, Qpn, Syndrome};

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

    pub(in crate::engine::control) const REFUSED: ControlEntry = ControlEntry {
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
        let mut replies = Replies::new(Keyed::new([1, 2]));
        let silent = (1, address(1));
        let taken = (0..10_000).filter(|n| replies.answer(silent, answer(*n)));
        assert_eq!(taken.count(), MOST_PER_ADDRESS);
        assert!(!replies.refuse(silent, REFUSED));
        assert!(!replies.refuse((3, address(1)), REFUSED), "by another way");
        let other = (2, address(2));
        assert!(replies.answer(other, answer(0)));
        assert!(replies.refuse(other, REFUSED));
        assert!(matches!(replies.pop(2), Some(Reply::Answer(_))));
        assert!(matches!(replies.pop(2), Some(Reply::Refused(_))));
        assert!(replies.pop(2).is_none() && !replies.has(2));
        replies.forget(1);
        assert_eq!((replies.len(), replies.by_address.len()), (0, 0));
        assert!(replies.answer(silent, answer(0)));
    }

    #[test]
    fn what_was_just_said_is_not_said_twice() {
        let mut replies = Replies::new(Keyed::new([1, 2]));
        for n in [1, 2, 2, 1] {
            assert!(replies.answer((1, address(1)), answer(n)));
        }
        assert_eq!(replies.len(), 3);
    }

    #[test]
    fn peers_that_take_nothing_leave_another_more_than_one() {
        let mut replies = Replies::new(Keyed::new([1, 2]));
        let mut taken = 0;
        for n in 0..=64_u16 {
            let of = (n.into(), address(n));
            let all = 0..MOST_PER_ADDRESS as u32;
            taken = all.filter(|at| replies.answer(of, answer(*at))).count();
        }
        assert!(taken > 100, "{taken}");
    }

    #[test]
    fn any_number_of_peers_leaves_room_for_a_packet_of_one_more() {
        const PEERS: u16 = 1000;
        let mut replies = Replies::new(Keyed::new([1, 2]));
        for n in 0..PEERS {
            for at in 0..MOST_PER_ADDRESS as u32 {
                replies.answer((n.into(), address(n)), answer(at));
            }
        }
        assert!(replies.len() <= MOST + usize::from(PEERS) * LEAST_PER_ADDRESS);
        assert!(replies.has_room(address(9999), LEAST_PER_ADDRESS));
        for at in 0..LEAST_PER_ADDRESS as u32 {
            assert!(replies.answer((9999, address(9999)), answer(at)), "{at}");
        }
    }
}
