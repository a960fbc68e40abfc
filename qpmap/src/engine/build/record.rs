//! Building one packet that several messages share.

use super::{BASE, Emitted, ICRC, Out, PacketTemplate, SentPacket, further_length};
use crate::regions::Regions;
use trunkline_conn::delivery::Stamp;
use trunkline_conn::egress::Egress;
use trunkline_conn::mem::{MemoryFault, RegionMemory};
use trunkline_conn::work::SendOp;
use trunkline_wire::{Opcode, Record, icrc};

/// Bytes of the record of a request whose packets carry `length` bytes of payload.
#[inline]
pub(crate) const fn record_bytes(op: &SendOp, length: u32) -> u32 {
    (Record::LEN + further_length(op)) as u32 + length
}

/// Bytes of a packet of records that have `bytes` bytes.
#[inline]
pub(crate) const fn packed_datagram(bytes: u32) -> usize {
    BASE + bytes as usize + ICRC
}

impl PacketTemplate<'_> {
    /// Bytes of the record that says what this packet does.
    pub(crate) const fn record_bytes(&self) -> u32 {
        Record::LEN as u32 + self.further as u32 + self.length
    }

    /// The record's header, where `length` bytes of payload follow it.
    const fn record(&self, length: u32) -> Record {
        Record {
            opcode: self.opcode,
            solicited: self.solicited,
            abort: self.abort,
            generation: self.id.generation,
            src_qp: self.id.source,
            replay_epoch: self.id.replay_epoch,
            dest_qp: self.id.dest,
            msn: self.id.msn,
            offset: self.ahead,
            length: length as u16,
        }
    }

    /// Writes the record into `out`, which has exactly [`record_bytes`](Self::record_bytes).
    ///
    /// # Errors
    /// The payload cannot be had: then `out` holds a record of the same length that says so.
    #[inline(always)]
    fn write_record<B: RegionMemory>(
        &self,
        regions: &Regions<B>,
        out: &mut [u8],
    ) -> Result<(), MemoryFault> {
        let (head, rest) = out
            .split_first_chunk_mut()
            .expect("a record has its header");
        self.record(self.length).emit(head);
        let (further, payload) = rest.split_at_mut(usize::from(self.further));
        if let Some(op) = self.op {
            self.write_further(op, further);
        }
        self.write_payload(regions, payload, None).inspect_err(|_| {
            self.voided().record(rest.len() as u32).emit(head);
            rest.fill(0);
        })
    }
}

impl<B: RegionMemory, E: Egress + ?Sized> Out<'_, B, E> {
    /// The same as [`emit`](Self::emit) for a packet of records, `bytes` bytes of them with the
    /// padding: of those `items` that have a template. Those whose payload cannot be had any more
    /// are `lost`, and go as words that say so. Where there is no record, there is no packet:
    /// [`Emitted::Spent`].
    #[inline(always)]
    pub(in crate::engine) fn emit_packed<'t>(
        &mut self,
        (items, template): (
            &[SentPacket],
            impl Fn(&SentPacket) -> Option<PacketTemplate<'t>>,
        ),
        bytes: u32,
        port: u8,
        (stamp, mut lost): (impl FnOnce() -> Stamp, impl FnMut(&SentPacket)),
    ) -> Emitted {
        let (other, regions) = (self.route.over(self.ports, port), self.regions);
        let route = other.as_ref().unwrap_or(self.route);
        let Some(slot) = self.egress.reserve(&route.path, packed_datagram(bytes)) else {
            return Emitted::NoRoom;
        };
        let mut crc = route.seed.start(slot.datagram.len(), slot.identification);
        let (sealed, trailer) = slot
            .datagram
            .split_last_chunk_mut()
            .expect("a datagram ends in its ICRC");
        let mut rest = &mut sealed[BASE..];
        let room = rest.len();
        for item in items {
            let Some(template) = template(item) else {
                continue;
            };
            let (place, behind) = rest.split_at_mut(template.record_bytes() as usize);
            if template.write_record(regions, place).is_err() {
                lost(item);
            }
            rest = behind;
        }
        if rest.len() == room {
            return Emitted::Spent;
        }
        rest.fill(0);
        PacketTemplate::bare(Opcode::SRC_PACKED, &[]).write_headers(route, &stamp(), sealed);
        crc = crc.masking(sealed);
        B::sum(sealed, &mut crc);
        *trailer = icrc::trailer(crc);
        self.egress.commit();
        Emitted::Sent
    }
}
