//! A node's port on the simulated network.

use super::Network;
use std::os::fd::BorrowedFd;
use trunkline_dataplane::port::{Arrival, Egress, Slot};
use trunkline_dataplane::{Capabilities, Port, PortCounters, PortError};
use trunkline_wire::Path;

/// What a port can do.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PortShape {
    /// Most bytes of a datagram, BTH to ICRC.
    pub max_datagram: usize,
    /// Datagrams that fit between two flushes.
    pub ring: usize,
    /// UDP source ports it has.
    pub source_ports: &'static [u16],
}

/// The port of one worker of a node on the network.
#[derive(Debug)]
pub struct SimPort {
    network: Network,
    node: usize,
    worker: u8,
    plug: u64,
    shape: PortShape,
    identification: u16,
    reserved: Option<(Path, usize)>,
    buffer: Vec<u8>,
    committed: Vec<(Path, u16, Vec<u8>)>,
    counters: PortCounters,
}

impl SimPort {
    pub(super) fn new(
        network: Network,
        (node, worker): (usize, u8),
        plug: u64,
        shape: PortShape,
    ) -> Self {
        Self {
            network,
            node,
            worker,
            plug,
            shape,
            identification: (plug as u16).wrapping_mul(7919) ^ u16::from(worker) << 8,
            reserved: None,
            buffer: Vec::with_capacity(shape.max_datagram),
            committed: Vec::new(),
            counters: PortCounters::default(),
        }
    }
}

impl Egress for SimPort {
    fn reserve(&mut self, path: &Path, length: usize) -> Option<Slot<'_>> {
        if length == 0 || self.committed.len() >= self.shape.ring {
            return None;
        }
        self.reserved = Some((*path, length));
        if self.buffer.len() < length {
            // What a slot holds before it is written is nobody's business: make that visible.
            self.buffer.resize(length, 0xdb);
        }
        let identification = self.identification;
        Some(Slot {
            datagram: &mut self.buffer[..length],
            identification,
        })
    }

    fn commit(&mut self) {
        let (path, length) = self.reserved.take().expect("commit follows reserve");
        if length > self.shape.max_datagram {
            self.counters.too_long += 1;
            return;
        }
        let blank = self.network.net().spare.pop().unwrap_or_default();
        let mut bytes = std::mem::replace(&mut self.buffer, blank);
        bytes.truncate(length);
        self.committed.push((path, self.identification, bytes));
        self.identification = self.identification.wrapping_add(1);
    }
}

impl Port for SimPort {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            max_datagram: self.shape.max_datagram,
            sees_identification: true,
            super_packets: false,
            coalesced_receive: false,
            lossless: false,
        }
    }

    fn flush(&mut self) -> Result<(), PortError> {
        if self.committed.is_empty() {
            return Ok(());
        }
        let mut net = self.network.net();
        let here = net.plugged[self.node] == self.plug;
        self.counters.send_calls += 1;
        for (path, identification, bytes) in self.committed.drain(..) {
            self.counters.sent += 1;
            self.counters.sent_bytes += bytes.len() as u64;
            if here && path.src == net.addresses[self.node] {
                net.send(self.node, &path, identification, bytes);
            } else {
                self.counters.misrouted += 1;
                net.spare.push(bytes);
            }
        }
        Ok(())
    }

    fn receive(
        &mut self,
        limit: usize,
        sink: &mut dyn FnMut(&Arrival, &[u8]),
    ) -> Result<usize, PortError> {
        let mut count = 0;
        while count < limit {
            let mut net = self.network.net();
            if net.plugged[self.node] != self.plug {
                break;
            }
            let Some((arrival, bytes)) =
                net.inboxes[self.node][usize::from(self.worker)].pop_front()
            else {
                break;
            };
            drop(net);
            sink(&arrival, &bytes);
            self.counters.received += 1;
            self.counters.received_bytes += bytes.len() as u64;
            self.network.net().spare.push(bytes);
            count += 1;
        }
        self.counters.receive_calls += u64::from(count > 0);
        Ok(count)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }

    fn source_ports(&self) -> &[u16] {
        self.shape.source_ports
    }
}

impl Drop for SimPort {
    fn drop(&mut self) {
        let mut net = self.network.net();
        if net.plugged[self.node] == self.plug {
            net.plugged[self.node] = 0;
            net.inboxes[self.node].clear();
        }
    }
}
