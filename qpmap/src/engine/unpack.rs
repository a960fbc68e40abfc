//! Packets that several messages share, as they come in: each record is taken up like the packet
//! that could stand for it, and what becomes of it is its own affair.

use super::packet::{Packet, Verdict};
use super::qp::Flags;
use super::{Engine, Platform};
use trunkline_conn::time::Instant;
use trunkline_wire::Records;

impl<P: Platform> Engine<P> {
    /// Takes up the records of a packet, in order. It is accepted as a whole: records whose flow
    /// has no room for them are told so by an answer of that flow. One that makes no sense is not
    /// acknowledged, and nothing of it is taken up.
    pub(super) fn handle_packed(
        &mut self,
        now: Instant,
        conn: u32,
        packet: &Packet<'_>,
    ) -> Verdict {
        let records = Records::of(packet.payload);
        let Ok(count) = records.check() else {
            self.counters.malformed.add(1);
            return Verdict::Drop;
        };
        if !self.may_refuse(conn, packet, count) {
            self.counters.control_overflow.add(1);
            return Verdict::Drop;
        }
        self.counters.packed_received.add(1);
        self.look_at_requests(packet);
        let mut each = packet.blank();
        for record in records.flatten() {
            each.turn_to(&record);
            self.dispatch(now, conn, &each);
            if self.links.get(conn).is_none() {
                break;
            }
        }
        Verdict::Accept
    }

    /// Whether there is room to refuse those of `count` records which are for no pair of QPs.
    fn may_refuse(&mut self, conn: u32, packet: &Packet<'_>, count: usize) -> bool {
        let address = self.links.address_of(conn);
        if self.control.replies.has_room(address, count) {
            return true;
        }
        let mut unbound = 0;
        let mut each = packet.blank();
        for record in Records::of(packet.payload).flatten() {
            each.turn_to(&record);
            unbound += usize::from(each.is_request() && self.bound_flow(conn, &each).is_none());
        }
        self.control.replies.has_room(address, unbound)
    }

    /// A record of a flow found no room to wait. The rest of its packet was taken up: so it does
    /// not come again by itself, and its requester hears that it has to send it again.
    pub(super) fn record_dropped(&mut self, flow: u32) {
        self.flows[flow].flags.set(Flags::LOST);
        self.answer(flow);
    }
}
