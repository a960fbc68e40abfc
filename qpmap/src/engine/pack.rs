//! Packets that several messages share: what a turn of a connection has to say of whole small
//! messages, answers and control messages is put together, and leaves when no more fits or the turn
//! ends. Nothing waits for company.

use super::build::{self, Emitted, PacketTemplate, SentKind, SentPacket};
use super::contents::contents;
use super::control::MAX_BLOB;
use super::packs::SMALL;
use super::schedule::Share;
use super::send::{Attempt, TxContext};
use super::{Engine, Platform};
use trunkline_conn::delivery::{Delivery, Stamp};
use trunkline_conn::egress::Egress;
use trunkline_wire::{Opcode, Record};

impl<P: Platform> Engine<P> {
    /// Whether a message with so many bytes of payload may share a packet of a connection.
    #[inline]
    pub(super) fn may_share(&self, conn: u32, length: u32) -> bool {
        length <= SMALL && self.links[conn].flags.packs()
    }

    /// A record joins the packet that is being put together for a connection, or the next one;
    /// [`Emitted::Sent`]: it has. Where it is [`Emitted::Voided`], requests have failed meanwhile,
    /// its own perhaps.
    pub(super) fn join(
        &mut self,
        tx: &mut TxContext<'_, impl Egress + ?Sized>,
        item: SentPacket,
        bytes: u32,
        share: &mut Share,
    ) -> Emitted {
        let payload = self.links[tx.conn].payload();
        if self.tx.packs.is_open() && self.tx.packs.bytes() + bytes > self.tx.packs.most(payload) {
            let sent = self.end_pack(tx, true, share);
            if sent != Emitted::Sent {
                return sent;
            }
        }
        if !self.begin_pack(tx, bytes, share) {
            return Emitted::NoRoom;
        }
        share.add(bytes);
        self.tx.packs.join(item, bytes);
        Emitted::Sent
    }

    /// Sees to it that a packet is being put together which a record of `bytes` bytes may join;
    /// `false`: the port has no room for one.
    #[inline]
    pub(super) fn begin_pack(
        &mut self,
        tx: &mut TxContext<'_, impl Egress + ?Sized>,
        bytes: u32,
        share: &mut Share,
    ) -> bool {
        if self.tx.packs.is_open() {
            return true;
        }
        // Those before it may have been shorter than it is.
        let payload = self.links[tx.conn].payload();
        let most = build::packed_datagram(self.tx.packs.most(payload).max(bytes));
        let port = self.links[tx.conn].delivery.next_port();
        if !tx.has_room(&self.config.source_ports, port, most) {
            return false;
        }
        share.take(build::packed_datagram(0) as u32);
        true
    }

    /// [Sends](Self::send_pack) the packet that is being put together, as another one is to follow;
    /// [`Emitted::Sent`]: it may.
    pub(super) fn end_pack(
        &mut self,
        tx: &mut TxContext<'_, impl Egress + ?Sized>,
        full: bool,
        share: &Share,
    ) -> Emitted {
        match self.send_pack(tx, full) {
            Emitted::Sent if share.is_spent() => Emitted::Spent,
            sent => sent,
        }
    }

    /// Bytes of control messages that may still join the packet; 0 where there is none.
    pub(super) fn room_to_join(&self, conn: u32) -> usize {
        match self.tx.packs.is_open() {
            true => self.room_for_control(conn),
            false => 0,
        }
    }

    /// The same of that packet, or of the next one. All of a packet get over any path: they cannot
    /// be cut when it has narrowed.
    pub(super) fn room_for_control(&self, conn: u32) -> usize {
        let most = self.tx.packs.most(self.links[conn].payload());
        let left = most.saturating_sub(self.tx.packs.bytes()) as usize;
        let limit = left.min(Record::LEN + MAX_BLOB - self.tx.packs.control_bytes());
        limit.saturating_sub(Record::LEN)
    }

    /// Sends the packet that is being put together, if there is one; `full`: another record did
    /// not fit. [`Emitted::Voided`]: requests whose data are gone have failed, and others of their
    /// QPs. Where the port has no room, though it had when the packet was begun, it is lost on
    /// its way, and is sent again.
    pub(super) fn send_pack(
        &mut self,
        tx: &mut TxContext<'_, impl Egress + ?Sized>,
        full: bool,
    ) -> Emitted {
        if !self.tx.packs.is_open() {
            return Emitted::Sent;
        }
        let (records, bytes) = self.tx.packs.take(full);
        if let [item] = records[..] {
            self.tx.packs.give_back(records);
            return self.send_alone(tx, item);
        }
        let item = self.tx.packs.insert(records);
        let (now, port) = (tx.now, self.links[tx.conn].delivery.next_port());
        let datagram = build::packed_datagram(bytes) as u32;
        let attempt = Attempt::First;
        let emitted = self.emit_records(tx, (&item, attempt), (bytes, port), |delivery| {
            delivery.record(now, item, datagram)
        });
        match emitted {
            Emitted::Spent => {
                // Nobody waits for any of it any more.
                self.item_arrived(now, &item);
                return Emitted::Sent;
            }
            Emitted::NoRoom => {
                self.links[tx.conn].delivery.record(now, item, datagram);
            }
            Emitted::Sent | Emitted::Voided => {}
        }
        self.counters.packed_sent.add(1);
        self.counters.sent.add(1);
        emitted
    }

    /// Bytes of those records of a packet that somebody waits for; `None`: there are none.
    fn bytes_of(&self, item: &SentPacket) -> Option<u32> {
        let contents = contents!(self);
        let records = self.tx.packs.records(item).iter();
        let bytes = records
            .filter_map(|record| contents.template(record))
            .map(|record| record.record_bytes())
            .sum();
        (bytes > 0).then_some(bytes)
    }

    /// Builds a packet of the records that somebody waits for. Those whose data are gone fail.
    fn emit_records(
        &mut self,
        tx: &mut TxContext<'_, impl Egress + ?Sized>,
        (item, attempt): (&SentPacket, Attempt),
        (bytes, port): (u32, u8),
        stamp: impl FnOnce(&mut Delivery<SentPacket>) -> Stamp,
    ) -> Emitted {
        let delivery = &mut self.links[tx.conn].delivery;
        let mut lost = Vec::new();
        let contents = contents!(self);
        let records = self.tx.packs.records(item);
        let template = |record: &SentPacket| contents.template(record);
        let mut out = tx.out(&self.config.source_ports, &self.regions);
        let (stamp, gone) = (|| stamp(delivery), |at: &SentPacket| lost.push(*at));
        let emitted = out.emit_packed((records, template), bytes, port, (stamp, gone));
        if lost.is_empty() {
            return emitted;
        }
        lost.iter().for_each(|item| self.data_lost(item, attempt));
        Emitted::Voided
    }

    /// Sends a lost packet of several records again: those that somebody waits for. It stays lost
    /// as long as the port has no room for it.
    pub(super) fn send_packed_again(
        &mut self,
        tx: &mut TxContext<'_, impl Egress + ?Sized>,
        item: &SentPacket,
    ) -> Emitted {
        let bytes = self.bytes_of(item);
        let (now, port) = (tx.now, self.links[tx.conn].delivery.next_port());
        let emitted = match bytes {
            Some(bytes) => {
                let attempt = Attempt::Again;
                self.emit_records(tx, (item, attempt), (bytes, port), |delivery| {
                    delivery.retransmit(now, build::packed_datagram(bytes) as u32)
                })
            }
            None => {
                let void = PacketTemplate::bare(Opcode::SRC_VOID, &[]);
                let delivery = &mut self.links[tx.conn].delivery;
                let mut out = tx.out(&self.config.source_ports, &self.regions);
                let bytes = void.datagram() as u32;
                out.emit(&void, port, || delivery.retransmit(now, bytes))
            }
        };
        self.counters
            .sent
            .add(u64::from(emitted != Emitted::NoRoom));
        emitted
    }

    /// Sends what would share a packet, and has none to share it with.
    fn send_alone(
        &mut self,
        tx: &mut TxContext<'_, impl Egress + ?Sized>,
        item: SentPacket,
    ) -> Emitted {
        let (now, contents) = (tx.now, contents!(self));
        let Some(template) = contents.template(&item) else {
            self.item_arrived(now, &item);
            return Emitted::Sent;
        };
        let bytes = template.datagram() as u32;
        let delivery = &mut self.links[tx.conn].delivery;
        let port = delivery.next_port();
        let stamp = delivery.record(now, item, bytes);
        let mut out = tx.out(&self.config.source_ports, &self.regions);
        let emitted = out.emit(&template, port, || stamp);
        self.counters.sent.add(1);
        if emitted == Emitted::Voided {
            self.data_lost(&item, Attempt::First);
        }
        emitted
    }

    /// The data of a request, or of a READ that was to be answered, are gone. It may have ended
    /// meanwhile, with another record of its packet. Who may have had the data of a READ has been
    /// told with the packet what it is to do if not: nothing else follows.
    pub(super) fn data_lost(&mut self, item: &SentPacket, attempt: Attempt) {
        let request = self.requests.get(item.slot);
        match item.kind {
            SentKind::Response if attempt == Attempt::Again => self.counters.void_sent.add(1),
            SentKind::Response if self.responses.get(item.slot, item.serial).is_some() => {
                self.read_lost(item.flow, item.slot);
            }
            SentKind::Request if request.is_some_and(|at| at.serial == item.serial) => {
                self.request_lost(item.flow, item.slot);
            }
            _ => {}
        }
    }
}
