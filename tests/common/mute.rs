//! A node whose packets stop at a switch: it vanishes without a word.

use super::address;
use super::host::Host;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use trunkline::{Node, Port, PortCounters, PortError};
use trunkline_dataplane::port::{Arrival, Capabilities, Egress, Slot};
use trunkline_dataplane::{Routes, UdpConfig, UdpPort};
use trunkline_wire::Path;

/// A UDP port that hears and says nothing while the switch is set.
struct Mute {
    inner: UdpPort,
    silent: Arc<AtomicBool>,
}

impl Egress for Mute {
    fn reserve(&mut self, path: &Path, length: usize) -> Option<Slot<'_>> {
        self.inner.reserve(path, length)
    }

    fn commit(&mut self) {
        // What is not committed is gone.
        if !self.silent.load(Ordering::Relaxed) {
            self.inner.commit();
        }
    }
}

impl Port for Mute {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn flush(&mut self) -> Result<(), PortError> {
        self.inner.flush()
    }

    fn receive(
        &mut self,
        limit: usize,
        sink: &mut dyn FnMut(&Arrival, &[u8]),
    ) -> Result<usize, PortError> {
        let silent = self.silent.load(Ordering::Relaxed);
        self.inner.receive(limit, &mut |arrival, datagram| {
            if !silent {
                sink(arrival, datagram);
            }
        })
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.fd()
    }

    fn counters(&self) -> PortCounters {
        self.inner.counters()
    }

    fn source_ports(&self) -> &[u16] {
        self.inner.source_ports()
    }

    fn routes(&self, local: IpAddr) -> Option<Box<dyn Routes + Send>> {
        self.inner.routes(local)
    }
}

/// A host on such a port, and its switch.
pub fn host() -> (Host, Arc<AtomicBool>) {
    let (own, silent) = (address(), Arc::<AtomicBool>::default());
    let port = Mute {
        inner: UdpPort::open(&UdpConfig::new(own)).unwrap(),
        silent: Arc::clone(&silent),
    };
    let node = Node::builder()
        .address(own)
        .build_on(Box::new(port))
        .unwrap();
    (Host::of(node, own), silent)
}
