//! Memory, a host and a port as plain as they can be, for tests of the engines of plain QPs.

#![allow(dead_code, reason = "each test program uses a part of it")]

pub(crate) mod bench;
pub(crate) mod capture;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use trunkline_conn::egress::{Egress, Slot};
use trunkline_conn::host::{Host, QpEvent, ReceivesInError};
use trunkline_conn::mem::{Access, AtomicOp, Memory, MemoryFault, Order, PdId, Responder, Sge};
use trunkline_conn::work::{
    Completion, Local, Receive, Request, SendFlags, SendOp, Status, WorkOpcode,
};
pub(crate) use trunkline_testkit::Rng;
use trunkline_wire::{Crc, IpFields, Lkey, Path, Rkey, icrc};

/// A memory region; one key serves as lkey and rkey.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) pd: PdId,
    pub(crate) key: u32,
    pub(crate) addr: u64,
    pub(crate) access: Access,
    pub(crate) bytes: RefCell<Vec<u8>>,
}

impl Region {
    pub(crate) fn new(key: u32, addr: u64, bytes: Vec<u8>) -> Self {
        Self {
            pd: PdId(0),
            key,
            addr,
            access: Access::ALL,
            bytes: RefCell::new(bytes),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Ram {
    pub(crate) regions: Vec<Region>,
    /// In which order the packets of WRITEs were to show.
    pub(crate) orders: RefCell<Vec<Order>>,
}

impl Ram {
    pub(crate) fn region(&self, key: u32) -> &Region {
        let found = self.regions.iter().find(|region| region.key == key);
        found.expect("the test has such a region")
    }

    pub(crate) fn bytes(&self, key: u32, addr: u64, length: usize) -> Vec<u8> {
        let region = self.region(key);
        let start = (addr - region.addr) as usize;
        region.bytes.borrow()[start..start + length].to_vec()
    }

    pub(crate) fn set(&self, key: u32, addr: u64, data: &[u8]) {
        let region = self.region(key);
        let start = (addr - region.addr) as usize;
        region.bytes.borrow_mut()[start..start + data.len()].copy_from_slice(data);
    }

    /// The region and the offset in it, if the access is fine.
    fn check(
        &self,
        pd: PdId,
        key: u32,
        addr: u64,
        length: u64,
        wanted: Access,
    ) -> Result<(&Region, usize), MemoryFault> {
        let found = self.regions.iter().find(|region| region.key == key);
        let region = found.ok_or(MemoryFault::UnknownKey { key })?;
        if region.pd != pd {
            return Err(MemoryFault::ForeignDomain { key });
        }
        if !region.access.contains(wanted) {
            let (allowed, wanted) = (region.access.bits(), wanted.bits());
            return Err(MemoryFault::NotAllowed {
                key,
                allowed,
                wanted,
            });
        }
        let end = addr.checked_add(length);
        let limit = region.addr + region.bytes.borrow().len() as u64;
        if addr < region.addr || end.is_none_or(|end| end > limit) {
            return Err(MemoryFault::OutOfRange { key, addr, length });
        }
        Ok((region, (addr - region.addr) as usize))
    }

    /// Calls `visit` with the pieces of a buffer: element, address, range of the data.
    fn pieces(
        sges: &[Sge],
        offset: u32,
        length: usize,
        mut visit: impl FnMut(&Sge, u64, std::ops::Range<usize>) -> Result<(), MemoryFault>,
    ) -> Result<(), MemoryFault> {
        let (mut skip, mut done) = (u64::from(offset), 0);
        for sge in sges {
            let have = u64::from(sge.length);
            let start = skip.min(have);
            skip -= start;
            let take = ((have - start) as usize).min(length - done);
            if take > 0 {
                visit(sge, sge.addr + start, done..done + take)?;
                done += take;
            }
        }
        if done < length {
            return Err(MemoryFault::TooShort {
                have: done as u64,
                need: length as u64,
            });
        }
        Ok(())
    }
}

impl Memory for Ram {
    fn check_local(&self, pd: PdId, sges: &[Sge], access: Access) -> Result<(), MemoryFault> {
        for sge in sges.iter().filter(|sge| sge.length > 0) {
            self.check(pd, sge.lkey.0, sge.addr, sge.length.into(), access)?;
        }
        Ok(())
    }

    fn gather(
        &self,
        pd: PdId,
        sges: &[Sge],
        offset: u32,
        out: &mut [u8],
        crc: Option<&mut Crc>,
    ) -> Result<(), MemoryFault> {
        Self::pieces(sges, offset, out.len(), |sge, addr, range| {
            let length = range.len();
            let (region, at) =
                self.check(pd, sge.lkey.0, addr, length as u64, Access::LOCAL_READ)?;
            out[range].copy_from_slice(&region.bytes.borrow()[at..at + length]);
            Ok(())
        })?;
        if let Some(crc) = crc {
            crc.update(out);
        }
        Ok(())
    }

    fn scatter(
        &self,
        pd: PdId,
        sges: &[Sge],
        offset: u32,
        data: &[u8],
        crc: Option<&mut Crc>,
    ) -> Result<(), MemoryFault> {
        Self::pieces(sges, offset, data.len(), |sge, addr, range| {
            let length = range.len();
            let (region, at) =
                self.check(pd, sge.lkey.0, addr, length as u64, Access::LOCAL_WRITE)?;
            region.bytes.borrow_mut()[at..at + length].copy_from_slice(&data[range]);
            Ok(())
        })?;
        if let Some(crc) = crc {
            crc.update(data);
        }
        Ok(())
    }

    fn check_remote(
        &self,
        by: Responder,
        key: Rkey,
        addr: u64,
        length: u32,
        access: Access,
    ) -> Result<(), MemoryFault> {
        if length == 0 {
            return Ok(());
        }
        self.check(by.pd, key.0, addr, length.into(), access)
            .map(|_| ())
    }

    fn read(
        &self,
        by: Responder,
        key: Rkey,
        addr: u64,
        out: &mut [u8],
        crc: Option<&mut Crc>,
    ) -> Result<(), MemoryFault> {
        if !out.is_empty() {
            let length = out.len();
            let (region, at) =
                self.check(by.pd, key.0, addr, length as u64, Access::REMOTE_READ)?;
            out.copy_from_slice(&region.bytes.borrow()[at..at + length]);
        }
        if let Some(crc) = crc {
            crc.update(out);
        }
        Ok(())
    }

    fn write(
        &self,
        by: Responder,
        key: Rkey,
        addr: u64,
        data: &[u8],
        order: Order,
        crc: Option<&mut Crc>,
    ) -> Result<(), MemoryFault> {
        self.orders.borrow_mut().push(order);
        if !data.is_empty() {
            let length = data.len();
            let (region, at) =
                self.check(by.pd, key.0, addr, length as u64, Access::REMOTE_WRITE)?;
            region.bytes.borrow_mut()[at..at + length].copy_from_slice(data);
        }
        if let Some(crc) = crc {
            crc.update(data);
        }
        Ok(())
    }

    fn atomic(
        &self,
        by: Responder,
        key: Rkey,
        addr: u64,
        op: AtomicOp,
    ) -> Result<u64, MemoryFault> {
        let (region, at) = self.check(by.pd, key.0, addr, 8, Access::REMOTE_ATOMIC)?;
        if !addr.is_multiple_of(8) {
            return Err(MemoryFault::Misaligned { addr });
        }
        let mut bytes = region.bytes.borrow_mut();
        let place = bytes[at..]
            .first_chunk_mut::<8>()
            .expect("the range was checked");
        let before = u64::from_ne_bytes(*place);
        *place = op.after(before).to_ne_bytes();
        Ok(before)
    }

    fn invalidate(&mut self, by: Responder, key: Rkey) -> Result<(), MemoryFault> {
        self.check_key(by.pd, key.0)?;
        self.regions.retain(|region| region.key != key.0);
        Ok(())
    }
}

impl Ram {
    fn check_key(&self, pd: PdId, key: u32) -> Result<(), MemoryFault> {
        let known = |region: &Region| region.key == key && region.pd == pd;
        if self.regions.iter().any(known) {
            Ok(())
        } else {
            Err(MemoryFault::UnknownKey { key })
        }
    }
}

/// How a send request ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Sent {
    pub(crate) wr_id: u64,
    pub(crate) opcode: WorkOpcode,
    pub(crate) status: Status,
    pub(crate) byte_len: u32,
}

/// A QP that remembers all it is told.
#[derive(Debug, Default)]
pub(crate) struct Qp {
    pub(crate) ram: Ram,
    pub(crate) receives: VecDeque<Receive>,
    pub(crate) sent: Vec<Sent>,
    pub(crate) received: Vec<Completion>,
    pub(crate) events: Vec<QpEvent>,
    /// The peer gets credits.
    pub(crate) counts_receives: bool,
    /// No receives come behind those that are there.
    pub(crate) receives_in_error: bool,
}

impl Host for Qp {
    type Memory = Ram;

    fn memory(&mut self) -> &mut Ram {
        &mut self.ram
    }

    fn take_receive(&mut self) -> Result<Option<Receive>, ReceivesInError> {
        match self.receives.pop_front() {
            None if self.receives_in_error => Err(ReceivesInError),
            next => Ok(next),
        }
    }

    fn receives(&self) -> Option<u32> {
        self.counts_receives.then_some(self.receives.len() as u32)
    }

    fn sent(&mut self, request: Request, status: Status, byte_len: u32) {
        self.sent.push(Sent {
            wr_id: request.wr_id,
            opcode: WorkOpcode::from(&request.op),
            status,
            byte_len,
        });
    }

    fn received(&mut self, completion: Completion) {
        self.received.push(completion);
    }

    fn event(&mut self, event: QpEvent) {
        self.events.push(event);
    }
}

/// A port that keeps what is sent.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) out: VecDeque<(Path, u16, Vec<u8>)>,
    /// How many packets it still takes.
    pub(crate) room: usize,
    building: (Option<Path>, Vec<u8>),
    identification: u16,
}

impl Default for Port {
    fn default() -> Self {
        Self {
            out: VecDeque::new(),
            room: usize::MAX,
            building: (None, Vec::new()),
            identification: 0xfff0,
        }
    }
}

impl Port {
    /// The oldest datagram sent, its ICRC checked.
    pub(crate) fn take(&mut self) -> Option<Vec<u8>> {
        let (path, identification, datagram) = self.out.pop_front()?;
        assert!(icrc::verify(&path, identification, &datagram), "ICRC");
        Some(datagram)
    }
}

impl Egress for Port {
    fn reserve(&mut self, path: &Path, length: usize) -> Option<Slot<'_>> {
        if self.room == 0 {
            return None;
        }
        self.building = (Some(*path), vec![0xa5; length]);
        Some(Slot {
            datagram: &mut self.building.1,
            identification: self.identification,
        })
    }

    fn commit(&mut self) {
        let path = self.building.0.take().expect("a slot was reserved");
        let datagram = std::mem::take(&mut self.building.1);
        self.out.push_back((path, self.identification, datagram));
        self.identification = self.identification.wrapping_add(1);
        self.room -= 1;
    }
}

/// From host `from` to host `to` of a documentation network.
pub(crate) fn path(from: u8, to: u8) -> Path {
    Path {
        src: IpAddr::V4(Ipv4Addr::new(192, 0, 2, from)),
        dst: IpAddr::V4(Ipv4Addr::new(192, 0, 2, to)),
        src_port: 0xc000 + u16::from(from),
        traffic_class: 0,
        ip: IpFields::DEFAULT,
    }
}

pub(crate) fn sge(key: u32, addr: u64, length: u32) -> Sge {
    Sge {
        addr,
        length,
        lkey: Lkey(key),
    }
}

/// A signalled request over one element.
pub(crate) fn request(wr_id: u64, op: SendOp, element: Sge) -> Request {
    Request {
        wr_id,
        op,
        flags: SendFlags::SIGNALED,
        length: element.length,
        local: Local::Sges([element].into_iter().collect()),
    }
}

pub(crate) fn receive(wr_id: u64, element: Sge) -> Receive {
    Receive {
        wr_id,
        sges: [element].into_iter().collect(),
    }
}

/// Bytes that tell one seed and place from another.
pub(crate) fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    (0..length).map(|_| rng.next() as u8).collect()
}
