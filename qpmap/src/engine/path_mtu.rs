//! Paths that carry less than both of their ends: path MTU discovery by the packetization layer
//! (RFC 8899).
//!
//! A connection begins with the largest datagrams that both ends carry. When these do not get
//! through any more, all connections to the peer fall to what every path carries, and larger sizes
//! are tried again by padded PINGs: soon the usual ones below the one that failed, all of them
//! after a while. What is too large and in flight cannot be cut, as it has its number: its number
//! goes out with nothing in it when it is found lost, and its flow sends anew what was not
//! executed, in a replay epoch that the peer agrees to, as after the death of a connection.

use super::build::{SentKind, SentPacket};
use super::ending::Ending;
use super::links::PAUSE_NS;
use super::timer::Timer;
use super::{Engine, Platform};
use trunkline_conn::delivery::EVERY_PATH;
use trunkline_conn::time::Instant;
use trunkline_wire::Gid;

impl<P: Platform> Engine<P> {
    /// A port cannot send datagrams of `datagram` bytes (BTH to ICRC) to `address`, which it could
    /// when it was opened: connections to it send smaller ones from now on.
    pub fn refused_as_too_long(&mut self, now: Instant, address: Gid, datagram: u32) {
        let Some(peer) = self.links.peer_at(address) else {
            return;
        };
        let most = self.links.largest_to(peer).unwrap_or(0);
        // What only was tried tells nothing new.
        if datagram > EVERY_PATH && datagram <= most {
            self.narrow(now, peer);
        }
    }

    /// The path to a peer does not carry datagrams of this size any more.
    pub(super) fn narrow(&mut self, now: Instant, peer: u32) {
        self.counters.narrowed.add(1);
        self.links.narrow(now, peer);
        self.timers.arm(now + PAUSE_NS, Timer::Widen(peer).key());
    }

    /// It is time to try a larger size.
    pub(super) fn widen(&mut self, now: Instant, peer: u32) {
        if let Some((probing, again)) = self.links.widen(now, peer) {
            if let Some(conn) = probing {
                self.mark_ready(conn);
            }
            self.timers.arm(now + again, Timer::Widen(peer).key());
        }
    }

    /// A PING was acknowledged: the path carries what it was padded to.
    pub(super) fn ping_arrived(&mut self, now: Instant, item: &SentPacket) {
        let Some((peer, whole)) = self.links.ping_arrived(item) else {
            return;
        };
        self.counters.widened.add(1);
        if whole {
            self.timers.cancel(Timer::Widen(peer).key());
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
                    at.serial == item.serial && at.replay_epoch == item.replay_epoch
                };
                let waits = self.requests.get(item.slot).is_some_and(is_it);
                if waits && self.flows[item.flow].replay_epoch == item.replay_epoch {
                    self.counters.resegmented.add(1);
                    self.replay(item.flow);
                    self.queue_control(item.flow);
                    self.wake(item.flow);
                }
            }
            SentKind::Response => self.response_lost(item.flow, item.slot, item.serial),
            SentKind::Answers | SentKind::Control | SentKind::Ping => {}
            SentKind::Packed => {
                // Its control messages go again alone, in its place.
                for item in self.tx.packs.records(item).to_vec() {
                    match self.responses.get(item.slot, item.serial) {
                        Some(kept) if item.kind == SentKind::Response && !kept.reads_memory() => {
                            self.answer_again(item.flow, kept.msn, kept.replay_epoch);
                        }
                        _ => self.give_up(&item),
                    }
                }
            }
        }
    }

    /// A flow sends again what may have got lost, in a new epoch. The peer agrees to each such
    /// epoch before anything is sent in it: so it knows it or the one before, however many there
    /// are without a packet getting through.
    pub(super) fn replay(&mut self, flow: u32) {
        self.restart(flow, true);
        let record = &mut self.flows[flow];
        if record.ending == Ending::No && !record.has_lapsed() {
            record.ask_anew();
        }
    }
}
