//! Peers to whom this machine refuses to send: a firewall drops what leaves, or there is no route.

use std::collections::BTreeMap;
use std::net::IpAddr;
use trunkline_conn::time::{Instant, SECOND};
use trunkline_dataplane::Errno;

/// A refusal explains a peer's silence for so long, and is not logged again meanwhile.
const FRESH_FOR: u64 = 60 * SECOND;
/// Peers and reasons that are kept at most; what does not fit is not logged.
const MOST: usize = 256;

/// When a peer's datagrams were refused.
#[derive(Clone, Copy, Debug)]
struct Refusal {
    logged: Instant,
    last: Instant,
}

/// What this machine refused to send, by peer and reason.
#[derive(Debug, Default)]
pub(super) struct Unsent(BTreeMap<(IpAddr, Errno), Refusal>);

impl Unsent {
    /// Notes that datagrams to a peer were refused. Returns whether that is to be logged.
    pub(super) fn note(&mut self, now: Instant, peer: IpAddr, error: Errno) -> bool {
        if let Some(known) = self.0.get_mut(&(peer, error)) {
            known.last = now;
            let again = now.since(known.logged) >= FRESH_FOR;
            if again {
                known.logged = now;
            }
            return again;
        }
        if self.0.len() >= MOST {
            self.0.retain(|_, known| is_fresh(now, known));
        }
        if self.0.len() >= MOST {
            return false;
        }
        let (logged, last) = (now, now);
        self.0.insert((peer, error), Refusal { logged, last });
        true
    }

    /// Returns why the machine refused, the last time, to send to a peer that is silent.
    pub(super) fn why(&self, now: Instant, peer: IpAddr) -> Option<Errno> {
        let all = (peer, Errno::new(i32::MIN))..=(peer, Errno::new(i32::MAX));
        let fresh = self.0.range(all).filter(|(_, known)| is_fresh(now, known));
        let latest = fresh.max_by_key(|(_, known)| known.last);
        latest.map(|((_, error), _)| *error)
    }
}

fn is_fresh(now: Instant, known: &Refusal) -> bool {
    now.since(known.last) < FRESH_FOR
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIREWALL: Errno = Errno::new(1);
    const ROUTE: Errno = Errno::new(101);

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + seconds * SECOND
    }

    #[test]
    fn a_peer_and_a_reason_are_logged_once_a_minute() {
        let mut unsent = Unsent::default();
        let (one, other) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let mut logged = Vec::new();
        for second in 0..150 {
            for (peer, error) in [(one, FIREWALL), (one, ROUTE), (other, FIREWALL)] {
                if unsent.note(at(second), peer, error) {
                    logged.push((second, peer, error));
                }
            }
        }
        let all = [0, 60, 120].map(|second| {
            [(one, FIREWALL), (one, ROUTE), (other, FIREWALL)]
                .map(|(peer, error)| (second, peer, error))
        });
        assert_eq!(logged, all.concat());
    }

    #[test]
    fn the_last_reason_explains_silence_while_it_is_fresh() {
        let mut unsent = Unsent::default();
        let peer = [10, 0, 0, 1].into();
        unsent.note(at(0), peer, ROUTE);
        unsent.note(at(1), peer, FIREWALL);
        assert_eq!(unsent.why(at(2), peer), Some(FIREWALL));
        assert_eq!(unsent.why(at(2), [10, 0, 0, 2].into()), None);
        assert_eq!(unsent.why(at(61), peer), None);
    }

    #[test]
    fn any_number_of_peers_takes_so_much_room_and_gives_it_back() {
        let mut unsent = Unsent::default();
        let peer = |number: u32| IpAddr::from(number.to_be_bytes());
        for number in 0..1000 {
            let logged = unsent.note(at(0), peer(number), FIREWALL);
            assert_eq!(logged, (number as usize) < MOST);
        }
        assert_eq!(unsent.0.len(), MOST);
        assert!(unsent.note(at(60), peer(1000), FIREWALL));
        assert_eq!(unsent.0.len(), 1);
    }
}
