//! How many connections of programs one peer is asked for at once, and who waits for it.
//!
//! A peer admits only so many requests of one address that are not confirmed. Requests beyond that
//! would be refused, so they wait here until those before them have come to something. A peer that
//! says it is busy all the same is left alone for a while.

use super::open_queue::Wanted;
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use trunkline_conn::time::Instant;

/// Requests of programs to one peer that are under way: half of what a node admits of one address
/// (`Limits::half_open_per_peer`), so that pools have room beside them.
const AT_ONCE: u32 = 32;
/// Refusals in a row, without a request between them that came to something, until the next is
/// told.
const BUSY_TRIES: u32 = 128;

/// One peer.
#[derive(Debug, Default)]
struct Turn {
    under_way: u32,
    waiting: VecDeque<Wanted>,
    /// It said that it is busy, so often in a row.
    busy: u32,
    /// Until when it is not asked again.
    pause: Option<Instant>,
}

impl Turn {
    fn is_free(&self) -> bool {
        self.under_way < AT_ONCE && self.pause.is_none()
    }
}

/// All peers that are being asked, or waited for.
#[derive(Debug, Default)]
pub(super) struct Turns {
    peers: BTreeMap<IpAddr, Turn>,
    /// Peers that are left alone for a while.
    pauses: BTreeMap<(Instant, IpAddr), ()>,
    waiting: usize,
}

impl Turns {
    /// Whether `peer` may be asked now.
    pub(super) fn is_free(&self, peer: IpAddr) -> bool {
        self.peers.get(&peer).is_none_or(Turn::is_free)
    }

    /// Whether others wait for `peer`, or it may not be asked now.
    pub(super) fn has_to_wait(&self, peer: IpAddr) -> bool {
        let waits = |turn: &Turn| !turn.is_free() || !turn.waiting.is_empty();
        self.peers.get(&peer).is_some_and(waits)
    }

    /// Requests that wait.
    pub(super) const fn len(&self) -> usize {
        self.waiting
    }

    pub(super) fn wait(&mut self, wanted: Wanted) {
        self.waiting += 1;
        let turn = self.peers.entry(wanted.peer).or_default();
        turn.waiting.push_back(wanted);
    }

    pub(super) fn begin(&mut self, peer: IpAddr) {
        self.peers.entry(peer).or_default().under_way += 1;
    }

    /// A request is over; it came to something if it `stands`. Gives who waited longest, if the
    /// peer may be asked now.
    pub(super) fn end(&mut self, peer: IpAddr, stands: bool) -> Option<Wanted> {
        let turn = self.peers.get_mut(&peer)?;
        turn.under_way = turn.under_way.saturating_sub(1);
        if stands {
            turn.busy = 0;
        }
        self.next(peer)
    }

    /// The peer has no room now for `wanted`, which waits for its next turn, before others. Comes
    /// back when it was refused too often.
    pub(super) fn refused(
        &mut self,
        now: Instant,
        pause: impl FnOnce(u32) -> u64,
        wanted: Wanted,
    ) -> Result<(), Wanted> {
        let turn = self.peers.entry(wanted.peer).or_default();
        turn.under_way = turn.under_way.saturating_sub(1);
        if turn.busy == BUSY_TRIES {
            return Err(wanted);
        }
        // Those that were asked together are refused together: that is one refusal.
        if turn.pause.is_none() {
            let until = now + pause(turn.busy);
            turn.busy += 1;
            turn.pause = Some(until);
            self.pauses.insert((until, wanted.peer), ());
        }
        turn.waiting.push_front(wanted);
        self.waiting += 1;
        Ok(())
    }

    /// Ends pauses that are over. Gives who may be asked for now.
    pub(super) fn resume(&mut self, now: Instant) -> Vec<Wanted> {
        let mut free = Vec::new();
        while let Some((&(until, peer), ())) = self.pauses.first_key_value()
            && until <= now
        {
            self.pauses.remove(&(until, peer));
            if let Some(turn) = self.peers.get_mut(&peer) {
                turn.pause = None;
                let room = AT_ONCE.saturating_sub(turn.under_way) as usize;
                let count = room.min(turn.waiting.len());
                self.waiting -= count;
                free.extend(turn.waiting.drain(..count));
            }
        }
        free
    }

    /// The next that waits for `peer`, if it may be asked.
    pub(super) fn next(&mut self, peer: IpAddr) -> Option<Wanted> {
        let turn = self.peers.get_mut(&peer)?;
        let next = turn.is_free().then(|| turn.waiting.pop_front()).flatten();
        self.waiting -= usize::from(next.is_some());
        if turn.under_way == 0 && turn.waiting.is_empty() && turn.pause.is_none() {
            self.peers.remove(&peer);
        }
        next
    }

    /// When a pause ends.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        Some(self.pauses.first_key_value()?.0.0)
    }

    pub(super) fn state_bytes(&self) -> usize {
        self.peers.len() * size_of::<(IpAddr, Turn)>()
            + self.waiting * size_of::<Wanted>()
            + self.pauses.len() * size_of::<(Instant, IpAddr)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::connection::ConnectionOptions;

    const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    fn wanted(handle: u64) -> Wanted {
        Wanted {
            handle,
            peer: PEER,
            options: ConnectionOptions::default(),
        }
    }

    #[test]
    fn who_comes_first_is_asked_for_first_and_no_more_than_the_peer_admits() {
        let mut turns = Turns::default();
        for _ in 0..AT_ONCE {
            assert!(turns.is_free(PEER) && !turns.has_to_wait(PEER));
            turns.begin(PEER);
        }
        assert!(!turns.is_free(PEER) && turns.has_to_wait(PEER));
        (0..3).for_each(|handle| turns.wait(wanted(handle)));
        assert_eq!(turns.len(), 3);
        for expected in 0..3 {
            let next = turns.end(PEER, true).expect("one waits");
            assert_eq!(next.handle, expected);
            turns.begin(PEER);
        }
        for _ in 0..AT_ONCE {
            assert!(turns.end(PEER, true).is_none());
        }
        assert_eq!(turns.state_bytes(), 0);
    }

    #[test]
    fn a_busy_peer_is_left_alone_and_asked_again() {
        let mut turns = Turns::default();
        let (now, later) = (Instant::ZERO, Instant::from_nanos(10));
        turns.begin(PEER);
        turns.begin(PEER);
        for handle in [1, 2] {
            assert!(turns.refused(now, |_| 10, wanted(handle)).is_ok());
        }
        assert!(!turns.is_free(PEER));
        assert_eq!(turns.next_timeout(), Some(later));
        assert!(turns.resume(now).is_empty());
        let again: Vec<u64> = turns.resume(later).iter().map(|next| next.handle).collect();
        assert_eq!(again, [2, 1]);
        assert_eq!((turns.len(), turns.next_timeout()), (0, None));
    }

    #[test]
    fn a_peer_that_never_has_room_is_given_up() {
        let mut turns = Turns::default();
        let (mut now, mut times) = (Instant::ZERO, 0);
        loop {
            turns.begin(PEER);
            if turns.refused(now, |_| 10, wanted(1)).is_err() {
                break;
            }
            times += 1;
            now = now + 10;
            assert_eq!(turns.resume(now).len(), 1);
        }
        assert_eq!(times, BUSY_TRIES);
        assert!(turns.next(PEER).is_none());
        assert_eq!(turns.state_bytes(), 0);
    }
}
