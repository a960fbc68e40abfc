//! Paths that carry less than both of their ends (RFC 8899): which sizes are known, and which is
//! tried next.

use crate::engine::ConnId;
use crate::engine::build::{BASE, ICRC, SentPacket};
use crate::hash::IndexMap;
use trunkline_conn::delivery::EVERY_PATH;
use trunkline_conn::time::{Instant, SECOND};

/// Sizes of datagrams that are tried beside the largest that both ends carry: of an MTU of 1500,
/// and for payloads of one and two pages.
const SIZES: [u32; 3] = [1500 - 40 - 8, 4096 + 80, 8192 + 80];
/// Pause before a size is tried for the first time, and again.
pub(crate) const PAUSE_NS: u64 = SECOND;
/// Times that a size is tried at once.
const TRIES: u8 = 3;
/// Pause before larger sizes are tried again (RFC 8899, `PMTU_RAISE_TIMER`).
const REST_NS: u64 = 600 * SECOND;

/// What pads a PING.
static PADDING: [u8; 1 << 16] = [0; 1 << 16];

/// Peers whose paths carry less than both ends.
#[derive(Debug, Default)]
pub(super) struct Paths {
    narrow: IndexMap<Narrow>,
    serial: u32,
}

/// Such a path.
#[derive(Clone, Copy, Debug)]
struct Narrow {
    /// Largest datagram that it carries, as far as is known.
    size: u32,
    /// No size from here on is tried before that time: the last one failed.
    avoid: u32,
    until: Instant,
    tried: u8,
    probe: Option<Probe>,
}

/// A PING of a size that is being tried.
#[derive(Clone, Copy, Debug)]
struct Probe {
    size: u32,
    serial: u32,
    /// Over which connection it is to go; `None`: it went.
    by: Option<ConnId>,
}

impl Narrow {
    /// The next size to try, where `most` is the largest.
    fn next(&self, most: u32) -> Option<u32> {
        let sizes = SIZES.into_iter().filter(|size| *size < most);
        let next = sizes.chain([most]).find(|size| *size > self.size);
        next.filter(|size| *size < self.avoid)
    }
}

impl Paths {
    /// The largest datagram that the path to a peer carries, if that is less than its ends do.
    pub(super) fn size(&self, peer: u32) -> Option<u32> {
        self.narrow.get(&peer).map(|path| path.size)
    }

    /// Datagrams of `failed` bytes do not get through any more.
    pub(super) fn fail(&mut self, now: Instant, peer: u32, failed: u32) {
        let path = Narrow {
            size: EVERY_PATH,
            avoid: failed,
            until: now + REST_NS,
            tried: 0,
            probe: None,
        };
        self.narrow.insert(peer, path);
    }

    /// The path to a peer carries what both ends do, or the peer is gone. Gives whether it was
    /// narrow.
    pub(super) fn forget(&mut self, peer: u32) -> bool {
        self.narrow.remove(&peer).is_some()
    }

    /// It is time to try a larger size over `by`, where `most` is the largest. Gives whether there
    /// is one, and when it is time again, in ns.
    pub(super) fn widen(
        &mut self,
        now: Instant,
        peer: u32,
        (most, by): (u32, ConnId),
    ) -> (bool, u64) {
        self.serial = self.serial.wrapping_add(1);
        let path = self.narrow.get_mut(&peer).expect("it was there");
        path.probe = None;
        if now >= path.until {
            path.avoid = u32::MAX;
        }
        let Some(size) = path.next(most).filter(|_| path.tried < TRIES) else {
            path.tried = 0;
            return (false, REST_NS);
        };
        path.tried += 1;
        path.probe = Some(Probe {
            size,
            serial: self.serial,
            by: Some(by),
        });
        (true, PAUSE_NS)
    }

    /// The padded PING that connection `id` to a peer owes.
    pub(super) fn probe(&self, peer: u32, id: ConnId) -> Option<SentPacket> {
        let probe = self.narrow.get(&peer).and_then(|path| path.probe)?;
        (probe.by == Some(id)).then(|| SentPacket {
            slot: peer,
            serial: probe.serial,
            length: probe.size - (BASE + ICRC) as u32,
            ..SentPacket::PING
        })
    }

    /// The path whose probe a PING stands for.
    fn probed(&mut self, item: &SentPacket) -> Option<&mut Narrow> {
        let path = self.narrow.get_mut(&item.slot)?;
        let is_it = |probe: Probe| item.length > 0 && probe.serial == item.serial;
        path.probe.is_some_and(is_it).then_some(path)
    }

    /// A PING is on its way.
    pub(super) fn pinged(&mut self, item: &SentPacket) {
        if let Some(Narrow {
            probe: Some(probe), ..
        }) = self.probed(item)
        {
            probe.by = None;
        }
    }

    /// It was lost: what comes in answer from now on says nothing.
    pub(super) fn ping_lost(&mut self, item: &SentPacket) {
        if let Some(path) = self.probed(item) {
            path.probe = None;
        }
    }

    /// It was acknowledged. Gives the peer whose path carries more than was known.
    pub(super) fn ping_arrived(&mut self, item: &SentPacket) -> Option<u32> {
        let path = self.probed(item)?;
        path.size = path.probe.take().map_or(path.size, |probe| probe.size);
        path.tried = 0;
        Some(item.slot)
    }
}

/// What a PING is padded with.
pub(crate) fn padding(item: &SentPacket) -> &'static [u8] {
    PADDING.get(..item.length as usize).unwrap_or(&PADDING)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BY: ConnId = ConnId {
        index: 3,
        serial: 1,
    };
    const MOST: u32 = 9000;

    fn later(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * SECOND)
    }

    #[test]
    fn sizes_are_tried_one_after_the_other_until_one_fails_three_times() {
        let mut paths = Paths::default();
        paths.fail(later(1), 7, MOST);
        assert_eq!(paths.size(7), Some(EVERY_PATH));
        for size in SIZES {
            assert_eq!(paths.widen(later(2), 7, (MOST, BY)), (true, PAUSE_NS));
            let ping = paths.probe(7, BY).expect("a size is tried");
            assert_eq!(ping.length as usize + BASE + ICRC, size as usize);
            paths.pinged(&ping);
            assert!(paths.probe(7, BY).is_none(), "it goes once");
            assert_eq!(paths.ping_arrived(&ping), Some(7));
            assert_eq!(paths.ping_arrived(&ping), None, "it says so once");
            assert_eq!(paths.size(7), Some(size));
        }
        // The one that failed is not tried before its time.
        assert_eq!(paths.widen(later(3), 7, (MOST, BY)), (false, REST_NS));
        for _ in 0..TRIES {
            assert_eq!(paths.widen(later(601), 7, (MOST, BY)), (true, PAUSE_NS));
        }
        assert_eq!(paths.widen(later(601), 7, (MOST, BY)), (false, REST_NS));
        assert!(paths.forget(7) && !paths.forget(7));
    }

    #[test]
    fn a_ping_that_was_lost_or_is_of_an_earlier_try_says_nothing() {
        let mut paths = Paths::default();
        paths.fail(later(1), 7, MOST);
        paths.widen(later(2), 7, (MOST, BY));
        let first = paths.probe(7, BY).expect("a size is tried");
        paths.pinged(&first);
        paths.widen(later(3), 7, (MOST, BY));
        assert_eq!(paths.ping_arrived(&first), None);
        let second = paths.probe(7, BY).expect("it is tried again");
        assert!(paths.probe(7, ConnId { serial: 2, ..BY }).is_none());
        paths.ping_lost(&second);
        assert_eq!(paths.ping_arrived(&second), None);
        assert_eq!(paths.size(7), Some(EVERY_PATH));
        assert_eq!(paths.ping_arrived(&SentPacket::PING), None);
    }
}
