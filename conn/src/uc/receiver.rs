//! The receiving end of an unreliable connection.

use super::Config;
use crate::host::Host;
use crate::mem::{Access, Memory, Order};
use crate::rc::{Dropped, pkeys_match, segment};
use crate::work::{Completion, Extra, MAX_MESSAGE, Receive, Status, VendorError, WorkOpcode};
use trunkline_wire::{Operation, Packet, Position, Psn, Qpn, Rkey, Transport};

/// A packet that is behind by no more than this came late or twice.
const RECENT: i32 = 1 << 16;

/// The message whose packets are coming.
#[derive(Clone, Copy, Debug)]
enum Message {
    /// None, or what is left of one that was dropped.
    None,
    /// Into the receive in hand.
    Send { offset: u32 },
    Write {
        key: Rkey,
        addr: u64,
        length: u32,
        offset: u32,
    },
}

#[derive(Debug)]
pub(super) struct Receiver {
    expected: Psn,
    message: Message,
    /// Taken for a message that may yet be dropped.
    in_hand: Option<Receive>,
}

impl Receiver {
    pub(super) const fn new(expected: Psn) -> Self {
        Self {
            expected,
            message: Message::None,
            in_hand: None,
        }
    }

    pub(super) fn handle(
        &mut self,
        config: &Config,
        packet: &Packet<'_>,
        host: &mut impl Host,
    ) -> Result<(), Dropped> {
        if packet.bth.dest_qp != config.qpn {
            return Err(Dropped::WrongQp);
        }
        if !pkeys_match(packet.bth.pkey, config.pkey) {
            return Err(Dropped::WrongPartition);
        }
        let opcode = packet.opcode();
        let (Transport::Uc, Some(operation), Some(place)) =
            (opcode.transport(), opcode.operation(), opcode.position())
        else {
            return Err(Dropped::WrongTransport);
        };
        // After a gap whole messages may follow, the rest of a broken one may not. What is far
        // behind comes after a gap of half a circle.
        let ahead = packet.bth.psn.offset_from(self.expected);
        if (-RECENT..0).contains(&ahead) {
            return Err(Dropped::Duplicate);
        }
        self.expected = packet.bth.psn.advance(1);
        let message = core::mem::replace(&mut self.message, Message::None);
        let message = if ahead == 0 { message } else { Message::None };
        let length = packet.payload.len() as u32;
        if !segment::length_fits(place, length, config.path_mtu.bytes()) {
            return Err(Dropped::Refused);
        }
        match operation {
            Operation::Send => self.send(config, packet, place, message, host),
            _ => self.write(config, packet, place, message, host),
        }
    }

    fn send(
        &mut self,
        config: &Config,
        packet: &Packet<'_>,
        place: Position,
        message: Message,
        host: &mut impl Host,
    ) -> Result<(), Dropped> {
        let offset = match message {
            _ if place.starts() => 0,
            Message::Send { offset } => offset,
            _ => return Err(Dropped::PartialMessage),
        };
        let receive = self.take(host)?;
        let end = u64::from(offset) + packet.payload.len() as u64;
        if end > receive.capacity().min(MAX_MESSAGE.into()) {
            return Err(Dropped::TooLong);
        }
        let sges = &receive.sges;
        host.memory()
            .scatter(config.pd, sges, offset, packet.payload, None)
            .map_err(|_| Dropped::LocalMemory)?;
        let offset = end as u32;
        if place.ends() {
            self.complete(config, packet, WorkOpcode::Receive, offset, host);
        } else {
            self.message = Message::Send { offset };
        }
        Ok(())
    }

    fn write(
        &mut self,
        config: &Config,
        packet: &Packet<'_>,
        place: Position,
        message: Message,
        host: &mut impl Host,
    ) -> Result<(), Dropped> {
        let (key, addr, length, offset) = match (message, packet.reth) {
            (_, Some(reth)) => {
                if !config.access.contains(Access::REMOTE_WRITE) || reth.length > MAX_MESSAGE {
                    return Err(Dropped::Refused);
                }
                let (key, addr, length) = (reth.rkey, reth.va, reth.length);
                host.memory()
                    .check_remote(config.responder(), key, addr, length, Access::REMOTE_WRITE)
                    .map_err(|_| Dropped::AccessDenied)?;
                (key, addr, length, 0)
            }
            (
                Message::Write {
                    key,
                    addr,
                    length,
                    offset,
                },
                None,
            ) => (key, addr, length, offset),
            _ => return Err(Dropped::PartialMessage),
        };
        let bytes = packet.payload.len() as u32;
        let rest = length - offset;
        if bytes > rest || place.ends() != (bytes == rest) {
            return Err(Dropped::Refused);
        }
        if packet.imm.is_some() {
            self.take(host)?;
        }
        // The whole range was checked: the sum does not wrap.
        let at = addr.wrapping_add(u64::from(offset));
        let order = Order::of_write(place.ends());
        host.memory()
            .write(config.responder(), key, at, packet.payload, order, None)
            .map_err(|_| Dropped::AccessDenied)?;
        if !place.ends() {
            let offset = offset + bytes;
            self.message = Message::Write {
                key,
                addr,
                length,
                offset,
            };
        } else if packet.imm.is_some() {
            self.complete(config, packet, WorkOpcode::ReceiveWriteImm, length, host);
        }
        Ok(())
    }

    /// The receive in hand, or the next one.
    fn take(&mut self, host: &mut impl Host) -> Result<&Receive, Dropped> {
        if self.in_hand.is_none() {
            self.in_hand = host.take_receive()?;
        }
        self.in_hand.as_ref().ok_or(Dropped::ReceiverNotReady)
    }

    fn complete(
        &mut self,
        config: &Config,
        packet: &Packet<'_>,
        opcode: WorkOpcode,
        byte_len: u32,
        host: &mut impl Host,
    ) {
        let receive = self.in_hand.take().expect("the message has a receive");
        host.received(Completion {
            wr_id: receive.wr_id,
            status: Status::Success,
            opcode,
            qpn: config.qpn,
            byte_len,
            extra: packet
                .imm
                .map_or(Extra::None, |imm| Extra::Immediate(imm.0)),
            src_qp: Qpn::default(),
            route: 0,
            solicited: packet.bth.solicited,
            vendor_err: VendorError::None,
            ticks: 0,
        });
    }

    /// The receive in hand ends so.
    pub(super) fn end(&mut self, config: &Config, host: &mut impl Host, status: Status) {
        self.message = Message::None;
        if let Some(receive) = self.in_hand.take() {
            host.received(Completion {
                wr_id: receive.wr_id,
                status,
                opcode: WorkOpcode::Receive,
                qpn: config.qpn,
                byte_len: 0,
                extra: Extra::None,
                src_qp: Qpn::default(),
                route: 0,
                solicited: false,
                vendor_err: VendorError::None,
                ticks: 0,
            });
        }
    }
}
