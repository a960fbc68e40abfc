//! A port with faults for a node that runs by the clock.

use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::time::Instant as Clock;
use trunkline::{Instant, Port, PortCounters, PortError};
use trunkline_dataplane::fault::{Direction, Faults};
use trunkline_dataplane::port::{Arrival, Capabilities, Egress, Slot};
use trunkline_dataplane::{Fault, Routes};

/// A port whose outgoing datagrams have faults: those that come in have theirs from the other
/// end. It is polled, as what is held back leaves without a packet coming in.
pub(crate) struct Faulty {
    fault: Fault<Box<dyn Port + Send>>,
    started: Clock,
}

impl Faulty {
    pub(crate) fn new(port: Box<dyn Port + Send>, faults: Faults, seed: u64) -> Self {
        let mut fault = Fault::new(port, seed);
        fault.set(Direction::Outbound, faults);
        Self {
            fault,
            started: Clock::now(),
        }
    }

    fn advance(&mut self) {
        let elapsed = self.started.elapsed().as_nanos() as u64;
        self.fault.advance(Instant::ZERO + elapsed);
    }
}

impl Egress for Faulty {
    fn reserve(&mut self, path: &trunkline_wire::Path, length: usize) -> Option<Slot<'_>> {
        self.fault.reserve(path, length)
    }

    fn commit(&mut self) {
        self.fault.commit();
    }
}

impl Port for Faulty {
    fn capabilities(&self) -> Capabilities {
        self.fault.capabilities()
    }

    fn flush(&mut self) -> Result<(), PortError> {
        self.advance();
        self.fault.flush()
    }

    fn receive(
        &mut self,
        limit: usize,
        sink: &mut dyn FnMut(&Arrival, &[u8]),
    ) -> Result<usize, PortError> {
        self.advance();
        self.fault.receive(limit, sink)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn counters(&self) -> PortCounters {
        self.fault.counters()
    }

    fn source_ports(&self) -> &[u16] {
        self.fault.source_ports()
    }

    fn routes(&self, local: IpAddr) -> Option<Box<dyn Routes + Send>> {
        self.fault.routes(local)
    }
}
