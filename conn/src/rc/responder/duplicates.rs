//! Requests that come again (IBTA Vol 1, 9.7.5.1.5): SENDs and WRITEs are acknowledged, READs
//! executed anew, atomics answered from memory.

use super::{Judged, Refusal, Remembered, Responder, Response};
use crate::host::Host;
use crate::rc::config::Config;
use crate::rc::segment;
use crate::rc::stats::{Dropped, Stats};
use trunkline_wire::{NakCode, Operation, Packet, Psn, Syndrome};

impl Responder {
    /// Answers what was executed already. `ahead` is negative.
    pub(super) fn handle_duplicate(
        &mut self,
        config: &Config,
        packet: &Packet<'_>,
        ahead: i32,
        host: &mut impl Host,
        stats: &mut Stats,
    ) -> Judged {
        let psn = packet.bth.psn;
        stats.duplicates += 1;
        match packet.opcode().operation() {
            Some(Operation::Send | Operation::Write) => {
                let ends = packet.opcode().position().is_some_and(|place| place.ends());
                if !ends && !packet.bth.ack_req {
                    return Judged::of(Err(Dropped::Duplicate));
                }
                self.push_ack(psn);
                Judged::of(Ok(()))
            }
            Some(Operation::ReadRequest) => self.repeat_read(config, packet, ahead, host),
            _ => {
                let opcode = packet.opcode();
                let found = self
                    .atomics
                    .iter()
                    .find(|known| known.psn == psn && known.opcode == opcode);
                let Some(&Remembered { value, .. }) = found else {
                    return Judged::of(Err(Dropped::Duplicate));
                };
                if !self.make_room(config, psn) {
                    return Judged::of(Err(Dropped::Duplicate));
                }
                self.queue.push_back(Response::Atomic {
                    psn,
                    msn: self.msn,
                    value,
                    repeated: true,
                });
                Judged::of(Ok(()))
            }
        }
    }

    fn repeat_read(
        &mut self,
        config: &Config,
        packet: &Packet<'_>,
        ahead: i32,
        host: &mut impl Host,
    ) -> Judged {
        let psn = packet.bth.psn;
        let Some(reth) = packet.reth else {
            return Judged::of(Err(Dropped::Duplicate));
        };
        let packets = segment::packets(reth.length, config.path_mtu.bytes());
        // It was executed once, so that all of it lies before what is expected.
        if packets > ahead.unsigned_abs() || !self.make_room(config, psn) {
            return Judged::of(Err(Dropped::Duplicate));
        }
        match self.push_read(config, psn, reth, Some(self.msn), host) {
            Ok(()) => Judged::of(Ok(())),
            Err(Refusal::Nak(NakCode::RemoteAccess, _)) => {
                self.refuse_repeated(psn);
                Judged::of(Err(Dropped::AccessDenied))
            }
            Err(Refusal::Nak(code, status)) => self.refuse(config, psn, (code, status), host),
            Err(Refusal::NotReady | Refusal::ReceivesInError) => {
                Judged::of(Err(Dropped::Duplicate))
            }
        }
    }

    /// The memory of a READ that comes again is gone. Whether the requester had its data nobody
    /// knows here: where it had not, the NAK ends the READ, else it says nothing to it. So it ends
    /// nothing here, and what was to be said to newer requests goes first.
    pub(super) fn refuse_repeated(&mut self, psn: Psn) {
        let refused = (psn, Syndrome::Nak(NakCode::RemoteAccess));
        self.nak.get_or_insert(refused);
    }

    /// The requester went back to `psn`, so that it asks for everything after it again: what
    /// waits to be sent from there on is stale. `false` when there is still no room.
    fn make_room(&mut self, config: &Config, psn: Psn) -> bool {
        self.withdraw(|_, response| response.last_psn().offset_from(psn) >= 0);
        self.has_resource(config)
    }

    /// Whether one more READ or atomic can be answered. The requester has no more outstanding than
    /// there are resources; when they are all taken by older ones, the oldest one was answered
    /// before, and that answer has reached it.
    pub(super) fn has_resource(&mut self, config: &Config) -> bool {
        let resources = usize::from(config.max_dest_rd_atomic);
        let used = self.queue.iter().filter(|one| one.is_data()).count();
        if used < resources {
            return true;
        }
        let Some(oldest) = self.queue.iter().position(Response::is_data) else {
            return false;
        };
        let stale = match self.queue[oldest] {
            Response::Read { repeated, .. } | Response::Atomic { repeated, .. } => repeated,
            Response::Ack { .. } => false,
        };
        if stale {
            self.withdraw(|at, _| at == oldest);
        }
        stale
    }
}
