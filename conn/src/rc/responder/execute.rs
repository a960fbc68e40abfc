//! Executing a request whose turn it is.

use super::{MSN_MASK, Message, Refusal, Remembered, Responder, Response, received};
use crate::host::Host;
use crate::mem::{Access, AtomicOp, Memory, MemoryFault, Order};
use crate::rc::config::Config;
use crate::rc::segment;
use crate::work::{Completion, Extra, MAX_MESSAGE, Status, WorkOpcode};
use trunkline_wire::{NakCode, Operation, Packet, Position, Psn, Reth};

type Executed = Result<(), Refusal>;

impl Responder {
    /// Executes the packet with the PSN that is expected. When a receive is wanting, nothing has
    /// been done.
    pub(super) fn execute(
        &mut self,
        config: &Config,
        packet: &Packet<'_>,
        host: &mut impl Host,
    ) -> Executed {
        let (Some(operation), Some(place)) =
            (packet.opcode().operation(), packet.opcode().position())
        else {
            return Err(Refusal::INVALID);
        };
        let in_order = match (&self.message, operation) {
            (Message::None, _) => place.starts(),
            (Message::Send { .. }, Operation::Send) => !place.starts(),
            (Message::Write { .. }, Operation::Write) => !place.starts(),
            _ => false,
        };
        if !in_order {
            return Err(Refusal::INVALID);
        }
        let psns = match operation {
            Operation::Send => self.send(config, packet, place, host)?,
            Operation::Write => self.write(config, packet, place, host)?,
            Operation::ReadRequest => self.read(config, packet, host)?,
            Operation::CompareSwap | Operation::FetchAdd => self.atomic(config, packet, host)?,
            _ => return Err(Refusal::INVALID),
        };
        let psn = self.expected;
        self.expected = psn.advance(psns);
        let answered = !matches!(operation, Operation::Send | Operation::Write);
        if packet.bth.ack_req && !answered {
            self.push_ack(psn);
        }
        Ok(())
    }

    fn count_message(&mut self) {
        self.msn = (self.msn + 1) & MSN_MASK;
    }

    fn send(
        &mut self,
        config: &Config,
        packet: &Packet<'_>,
        place: Position,
        host: &mut impl Host,
    ) -> Result<u32, Refusal> {
        let length = packet.payload.len() as u32;
        if !segment::length_fits(place, length, config.path_mtu.bytes()) {
            return Err(Refusal::INVALID);
        }
        if place.starts() {
            let receive = host.take_receive()?.ok_or(Refusal::NotReady)?;
            let capacity = receive.capacity();
            self.message = Message::Send {
                receive,
                capacity,
                offset: 0,
            };
        }
        let Message::Send {
            receive,
            capacity,
            offset,
        } = &mut self.message
        else {
            return Err(Refusal::INVALID);
        };
        let end = u64::from(*offset) + u64::from(length);
        if end > (*capacity).min(MAX_MESSAGE.into()) {
            return Err(Refusal::Nak(NakCode::InvalidRequest, Status::LocalLength));
        }
        let memory = host.memory();
        if memory
            .scatter(config.pd, &receive.sges, *offset, packet.payload, None)
            .is_err()
        {
            let status = Status::LocalProtection;
            return Err(Refusal::Nak(NakCode::RemoteOperational, status));
        }
        *offset = end as u32;
        if place.ends() {
            let mut extra = packet
                .imm
                .map_or(Extra::None, |imm| Extra::Immediate(imm.0));
            if let Some(ieth) = packet.ieth {
                if memory.invalidate(config.responder(), ieth.0).is_err() {
                    return Err(Refusal::Nak(NakCode::RemoteAccess, Status::LocalAccess));
                }
                extra = Extra::Invalidated(ieth.0);
            }
            let completion = Completion {
                byte_len: *offset,
                extra,
                solicited: packet.bth.solicited,
                ..received(config, receive.wr_id, WorkOpcode::Receive)
            };
            host.received(completion);
            self.message = Message::None;
            self.count_message();
        }
        Ok(1)
    }

    fn write(
        &mut self,
        config: &Config,
        packet: &Packet<'_>,
        place: Position,
        host: &mut impl Host,
    ) -> Result<u32, Refusal> {
        let bytes = packet.payload.len() as u32;
        if !segment::length_fits(place, bytes, config.path_mtu.bytes()) {
            return Err(Refusal::INVALID);
        }
        let (key, addr, length, offset) = match (&self.message, packet.reth) {
            (
                &Message::Write {
                    key,
                    addr,
                    length,
                    offset,
                },
                _,
            ) => (key, addr, length, offset),
            (_, Some(reth)) => {
                check_write(config, &reth, host)?;
                (reth.rkey, reth.va, reth.length, 0)
            }
            _ => return Err(Refusal::INVALID),
        };
        // The sum of the payloads is what the first packet promised (IBTA Vol 1, 9.7.4.1.6).
        let rest = length - offset;
        if bytes > rest || place.ends() != (bytes == rest) {
            return Err(Refusal::INVALID);
        }
        let receive = match packet.imm {
            Some(_) => Some(host.take_receive()?.ok_or(Refusal::NotReady)?),
            None => None,
        };
        // The whole range was checked: the sum does not wrap.
        let at = addr.wrapping_add(u64::from(offset));
        let order = Order::of_write(place.ends());
        let written = host
            .memory()
            .write(config.responder(), key, at, packet.payload, order, None);
        if let Some(receive) = receive {
            let status = if written.is_ok() {
                Status::Success
            } else {
                Status::Flushed
            };
            host.received(Completion {
                status,
                byte_len: length,
                extra: packet
                    .imm
                    .map_or(Extra::None, |imm| Extra::Immediate(imm.0)),
                solicited: packet.bth.solicited,
                ..received(config, receive.wr_id, WorkOpcode::ReceiveWriteImm)
            });
        }
        written.map_err(|_| Refusal::ACCESS)?;
        if place.ends() {
            self.message = Message::None;
            self.count_message();
        } else {
            let offset = offset + bytes;
            self.message = Message::Write {
                key,
                addr,
                length,
                offset,
            };
        }
        Ok(1)
    }

    fn read(
        &mut self,
        config: &Config,
        packet: &Packet<'_>,
        host: &mut impl Host,
    ) -> Result<u32, Refusal> {
        let Some(reth) = packet.reth else {
            return Err(Refusal::INVALID);
        };
        if !self.has_resource(config) {
            return Err(Refusal::INVALID);
        }
        self.push_read(config, packet.bth.psn, reth, None, host)?;
        self.count_message();
        Ok(segment::packets(reth.length, config.path_mtu.bytes()))
    }

    /// Checks a READ and queues its response. `repeated`: it was answered before; the MSN to say
    /// now.
    pub(super) fn push_read(
        &mut self,
        config: &Config,
        psn: Psn,
        reth: Reth,
        repeated: Option<u32>,
        host: &mut impl Host,
    ) -> Executed {
        if !config.access.contains(Access::REMOTE_READ) || reth.length > MAX_MESSAGE {
            return Err(Refusal::INVALID);
        }
        let (key, addr, length) = (reth.rkey, reth.va, reth.length);
        host.memory()
            .check_remote(config.responder(), key, addr, length, Access::REMOTE_READ)
            .map_err(|_| Refusal::ACCESS)?;
        self.queue.push_back(Response::Read {
            psn,
            key,
            addr,
            length,
            packets: segment::packets(length, config.path_mtu.bytes()),
            sent: 0,
            msn: repeated.unwrap_or((self.msn + 1) & MSN_MASK),
            repeated: repeated.is_some(),
        });
        Ok(())
    }

    fn atomic(
        &mut self,
        config: &Config,
        packet: &Packet<'_>,
        host: &mut impl Host,
    ) -> Result<u32, Refusal> {
        let Some(header) = packet.atomic else {
            return Err(Refusal::INVALID);
        };
        let resources = usize::from(config.max_dest_rd_atomic);
        if !config.access.contains(Access::REMOTE_ATOMIC) || !self.has_resource(config) {
            return Err(Refusal::INVALID);
        }
        let op = match packet.opcode().operation() {
            Some(Operation::CompareSwap) => AtomicOp::CompareSwap {
                compare: header.compare,
                swap: header.swap_or_add,
            },
            _ => AtomicOp::FetchAdd {
                add: header.swap_or_add,
            },
        };
        let value = match host
            .memory()
            .atomic(config.responder(), header.rkey, header.va, op)
        {
            Ok(value) => value,
            Err(MemoryFault::Misaligned { .. }) => return Err(Refusal::INVALID),
            Err(_) => return Err(Refusal::ACCESS),
        };
        if self.atomics.len() >= resources {
            self.atomics.pop_front();
        }
        let (psn, opcode) = (packet.bth.psn, packet.opcode());
        self.atomics.push_back(Remembered { psn, opcode, value });
        self.count_message();
        self.queue.push_back(Response::Atomic {
            psn,
            msn: self.msn,
            value,
            repeated: false,
        });
        Ok(1)
    }
}

/// Whether the whole range of a WRITE may be written.
fn check_write(config: &Config, reth: &Reth, host: &mut impl Host) -> Executed {
    if !config.access.contains(Access::REMOTE_WRITE) || reth.length > MAX_MESSAGE {
        return Err(Refusal::INVALID);
    }
    host.memory()
        .check_remote(
            config.responder(),
            reth.rkey,
            reth.va,
            reth.length,
            Access::REMOTE_WRITE,
        )
        .map_err(|_| Refusal::ACCESS)
}
