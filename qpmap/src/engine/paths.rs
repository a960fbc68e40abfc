//! Paths that carry less than both of their ends: path MTU discovery by the packetization layer
//! (RFC 8899).
//!
//! A connection begins with the largest datagrams that both ends carry. When these do not get
//! through any more, all connections to the peer fall to what every path carries, and larger sizes
//! are tried again by padded PINGs: soon the usual ones below the one that failed, all of them
//! after a while. What is too large and in flight cannot be cut, as it has its number: its number
//! goes out with nothing in it when it is found lost, and its flow sends anew what was not
//! executed, in a round that the peer agrees to, as after the death of a connection.

use super::build::{BASE, ICRC, SentKind, SentPacket, full_payload};
use super::ending::Ending;
use super::link::Conn;
use super::timer::Timer;
use super::{ConnId, Engine, Platform};
use crate::hash::IndexMap;
use trunkline_conn::delivery::EVERY_PATH;
use trunkline_conn::time::{Instant, SECOND};
use trunkline_wire::Gid;

/// Sizes of datagrams that are tried beside the largest that both ends carry: of an MTU of 1500,
/// and for payloads of one and two pages.
const SIZES: [u32; 3] = [1500 - 40 - 8, 4096 + 80, 8192 + 80];
/// Pause before a size is tried for the first time, and again.
const PAUSE_NS: u64 = SECOND;
/// Times that a size is tried at once.
const TRIES: u8 = 3;
/// Pause before larger sizes are tried again (RFC 8899, `PMTU_RAISE_TIMER`).
const REST_NS: u64 = 600 * SECOND;

/// What pads a PING.
static PADDING: [u8; 1 << 16] = [0; 1 << 16];

/// Peers whose paths carry less than both ends.
#[derive(Debug, Default)]
pub(crate) struct Paths {
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
    ask: Option<Ask>,
}

/// A PING of a size that is being tried.
#[derive(Clone, Copy, Debug)]
struct Ask {
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

    const fn next_serial(&mut self) -> u32 {
        self.serial = self.serial.wrapping_add(1);
        self.serial
    }

    /// The ask that a PING stands for.
    fn asked(&mut self, item: &SentPacket) -> Option<&mut Narrow> {
        let path = self.narrow.get_mut(&item.slot)?;
        let is_it = |ask: Ask| item.length > 0 && ask.serial == item.serial;
        path.ask.is_some_and(is_it).then_some(path)
    }

    /// It was lost: what comes in answer from now on says nothing.
    pub(super) fn ping_lost(&mut self, item: &SentPacket) {
        if let Some(path) = self.asked(item) {
            path.ask = None;
        }
    }
}

/// What a PING is padded with.
pub(super) fn padding(item: &SentPacket) -> &'static [u8] {
    PADDING.get(..item.length as usize).unwrap_or(&PADDING)
}

impl<P: Platform> Engine<P> {
    /// A port cannot send datagrams of `datagram` bytes (BTH to ICRC) to `address`, which it could
    /// when it was opened: connections to it send smaller ones from now on.
    pub fn refused_as_too_long(&mut self, now: Instant, address: Gid, datagram: u32) {
        let Some(peer) = self.peer_of.get(address) else {
            return;
        };
        let used = |conn: u32| self.conns[conn].delivery.packet_size();
        let most = self.conns_of(peer).map(used).max().unwrap_or(0);
        // What only was tried tells nothing new.
        if datagram > EVERY_PATH && datagram <= most {
            self.narrow(now, peer);
        }
    }

    /// The path to a peer does not carry datagrams of this size any more.
    pub(super) fn narrow(&mut self, now: Instant, peer: u32) {
        let used = |conn: u32| self.conns[conn].delivery.packet_size();
        let failed = self.conns_of(peer).map(used).max().unwrap_or(EVERY_PATH);
        self.counters.narrowed += 1;
        let path = Narrow {
            size: EVERY_PATH,
            avoid: failed,
            until: now + REST_NS,
            tried: 0,
            ask: None,
        };
        self.paths.narrow.insert(peer, path);
        self.resize(peer);
        self.timers.arm(now + PAUSE_NS, Timer::Widen(peer).key());
    }

    /// The path to a peer carries what both ends do, or the peer is gone.
    pub(super) fn forget_path(&mut self, peer: u32) {
        if self.paths.narrow.remove(&peer).is_some() {
            self.timers.cancel(Timer::Widen(peer).key());
        }
    }

    /// Takes over what is known of the path into all connections to a peer.
    fn resize(&mut self, peer: u32) {
        let known = self.paths.size(peer);
        let all: Vec<u32> = self.conns_of(peer).collect();
        for conn in all {
            let conn = &mut self.conns[conn];
            let most = u32::from(conn.most);
            conn.resize(known.map_or(most, |size| size.min(most)));
        }
    }

    /// It is time to try a larger size.
    pub(super) fn widen(&mut self, now: Instant, peer: u32) {
        let most_of = |conn: u32| u32::from(self.conns[conn].most);
        let Some(widest) = self.conns_of(peer).max_by_key(|conn| most_of(*conn)) else {
            // The next connection finds out for itself.
            self.forget_path(peer);
            return;
        };
        let (most, by) = (most_of(widest), self.conn_id(widest));
        let ask_serial = self.paths.next_serial();
        let path = self.paths.narrow.get_mut(&peer).expect("it was there");
        path.ask = None;
        if now >= path.until {
            path.avoid = u32::MAX;
        }
        let next = path.next(most).filter(|_| path.tried < TRIES);
        let again = match next {
            Some(size) => {
                path.tried += 1;
                path.ask = Some(Ask {
                    size,
                    serial: ask_serial,
                    by: Some(by),
                });
                PAUSE_NS
            }
            None => {
                path.tried = 0;
                REST_NS
            }
        };
        if next.is_some() {
            self.conns[widest].flags.ping = true;
            self.mark_ready(widest);
        }
        self.timers.arm(now + again, Timer::Widen(peer).key());
    }

    /// The size that the next PING of a connection is to try.
    fn probe(&self, conn: u32) -> Option<Ask> {
        let peer = self.conns[conn].peer;
        let ask = self.paths.narrow.get(&peer).and_then(|path| path.ask);
        ask.filter(|ask| ask.by == Some(self.conn_id(conn)))
    }

    /// Whether the PING that a connection owes is to try a size.
    pub(super) fn is_probe(&self, conn: u32) -> bool {
        self.probe(conn).is_some()
    }

    /// The PING that a connection owes: padded, where it is to try a size.
    pub(super) fn ping(&self, conn: u32) -> SentPacket {
        let peer = self.conns[conn].peer;
        match self.probe(conn) {
            Some(ask) => SentPacket {
                slot: peer,
                serial: ask.serial,
                length: ask.size - (BASE + ICRC) as u32,
                ..SentPacket::PING
            },
            None => SentPacket::PING,
        }
    }

    /// It is on its way.
    pub(super) fn pinged(&mut self, item: &SentPacket) {
        if let Some(Narrow { ask: Some(ask), .. }) = self.paths.asked(item) {
            ask.by = None;
        }
    }

    /// A PING was acknowledged: the path carries what it was padded to.
    pub(super) fn ping_arrived(&mut self, now: Instant, item: &SentPacket) {
        let peer = item.slot;
        let Some(path) = self.paths.asked(item) else {
            return;
        };
        path.size = path.ask.take().map_or(path.size, |ask| ask.size);
        path.tried = 0;
        self.counters.widened += 1;
        self.resize(peer);
        let is_whole = |conn: u32| self.conns[conn].is_whole();
        if self.conns_of(peer).all(is_whole) {
            self.forget_path(peer);
        } else {
            self.timers.arm(now, Timer::Widen(peer).key());
        }
    }

    /// A packet of this size does not get through: what it carried is sent anew, in packets that
    /// do.
    pub(super) fn give_up(&mut self, item: &SentPacket) {
        match item.kind {
            SentKind::Request => {
                let is_it = |at: &super::requests::Pending| {
                    at.serial == item.serial && at.round == item.round
                };
                let waits = self.requests.get(item.slot).is_some_and(is_it);
                if waits && self.flows[item.flow].round == item.round {
                    self.counters.resegmented += 1;
                    self.replay(item.flow);
                    self.notice(item.flow);
                    self.wake(item.flow);
                }
            }
            SentKind::Response => self.response_lost(item.flow, item.slot, item.serial),
            SentKind::Answers | SentKind::Control | SentKind::Ping => {}
        }
    }

    /// A flow sends again what may have got lost, in a new round. The peer agrees to each such
    /// round before anything is sent in it: so it knows it or the one before, however many there
    /// are without a packet getting through.
    pub(super) fn replay(&mut self, flow: u32) {
        self.restart(flow, true);
        let record = &mut self.flows[flow];
        if record.ending == Ending::No && !record.has_lapsed() {
            record.ask_anew();
        }
    }
}

impl Conn {
    /// Packets have at most `bytes` bytes from now on, BTH to ICRC.
    pub(super) fn resize(&mut self, bytes: u32) {
        self.payload = full_payload(bytes) as u16;
        if bytes != self.delivery.packet_size() {
            self.delivery.set_packet_size(bytes);
        }
    }

    /// Whether its packets carry as much as both ends could.
    fn is_whole(&self) -> bool {
        u32::from(self.payload) == full_payload(self.most.into())
    }
}
