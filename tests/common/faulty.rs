//! A UDP port that a test makes fail: it falls silent, panics, or returns a system's error.

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;
use trunkline::{Builder, Errno, Node, Port, PortCounters, PortError};
use trunkline_cm::gsi;
use trunkline_dataplane::port::{Arrival, Capabilities, Egress, PortEvent, Slot};
use trunkline_dataplane::{Routes, UdpConfig, UdpPort};
use trunkline_wire::cm::{CmMad, Message};
use trunkline_wire::{Path, Workers};

/// What the panics of a faulty port say.
pub const PANIC: &str = "the port is faulty";

/// What goes wrong at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Fault {
    None,
    /// No datagram arrives or leaves, as behind a switch that failed.
    Silent,
    /// No confirmation of a connection (RTU) arrives.
    LosesConfirmations,
    /// The machine's firewall refuses every datagram.
    Refuses,
    /// Asking for datagrams panics, in the worker's thread.
    ReceivePanics,
    /// Asking for counters panics, in the program's thread with the node's lock held.
    CountersPanic,
    /// The kernel has no buffers: an error that passes.
    LacksBuffers,
    /// The socket is gone: an error that stays.
    IsGone,
    /// The next system call that sends takes until the fault is another one.
    Stalls,
    /// It has begun.
    Stalled,
}

/// The test's handle to the fault of a port.
#[derive(Clone)]
pub struct Switch(Arc<AtomicU8>);

impl Switch {
    pub fn set(&self, fault: Fault) {
        self.0.store(fault as u8, Ordering::Relaxed);
    }

    pub fn is(&self, fault: Fault) -> bool {
        self.0.load(Ordering::Relaxed) == fault as u8
    }
}

struct Faulty {
    inner: UdpPort,
    fault: Switch,
    /// Where the last slot leads, and what the machine says of such.
    dst: Option<IpAddr>,
    refused: Option<PortEvent>,
}

impl Egress for Faulty {
    fn reserve(&mut self, path: &Path, length: usize) -> Option<Slot<'_>> {
        self.dst = Some(path.dst);
        self.inner.reserve(path, length)
    }

    fn commit(&mut self) {
        // What is not committed is gone.
        if self.fault.is(Fault::Refuses) {
            let error = Errno::new(libc::EPERM);
            self.refused = self.dst.map(|dst| PortEvent::Unsent { dst, error });
        } else if !self.fault.is(Fault::Silent) {
            self.inner.commit();
        }
    }
}

impl Port for Faulty {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn flush(&mut self) -> Result<(), PortError> {
        if self.fault.is(Fault::Stalls) {
            self.fault.set(Fault::Stalled);
            while self.fault.is(Fault::Stalled) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        self.inner.flush()
    }

    fn receive(
        &mut self,
        limit: usize,
        sink: &mut dyn FnMut(&Arrival, &[u8]),
    ) -> Result<usize, PortError> {
        let error = |code| {
            Err(PortError::System {
                call: "recvmsg",
                source: io::Error::from_raw_os_error(code),
            })
        };
        assert!(!self.fault.is(Fault::ReceivePanics), "{PANIC}");
        if self.fault.is(Fault::LacksBuffers) {
            return error(libc::ENOBUFS);
        }
        if self.fault.is(Fault::IsGone) {
            return error(libc::EBADF);
        }
        let silent = self.fault.is(Fault::Silent);
        let loses = self.fault.is(Fault::LosesConfirmations);
        self.inner.receive(limit, &mut |arrival, datagram| {
            let lost = silent || loses && is_rtu(datagram);
            if !lost {
                sink(arrival, datagram);
            }
        })
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.fd()
    }

    fn poll_event(&mut self) -> Option<PortEvent> {
        let event = self.refused.take().or_else(|| self.inner.poll_event());
        event.filter(|_| !self.fault.is(Fault::Silent))
    }

    fn counters(&self) -> PortCounters {
        assert!(!self.fault.is(Fault::CountersPanic), "{PANIC}");
        self.inner.counters()
    }

    fn source_ports(&self) -> &[u16] {
        self.inner.source_ports()
    }

    fn routes(&self, local: IpAddr) -> Option<Box<dyn Routes + Send>> {
        self.inner.routes(local)
    }
}

/// Whether a datagram confirms a connection.
fn is_rtu(datagram: &[u8]) -> bool {
    let mad = gsi::parse(datagram).ok();
    let cm = mad.and_then(|mad| CmMad::parse(mad).ok());
    cm.is_some_and(|cm| matches!(cm.message, Message::Rtu(_)))
}

/// Builds a node at `own` whose port serves until the switch is set.
pub fn node(own: IpAddr, builder: Builder) -> (Node, Switch) {
    let (node, [fault]) = node_of_workers(own, builder);
    (node, fault)
}

/// Builds a node at `own` of so many workers, each with a port and a switch of its own.
pub fn node_of_workers<const N: usize>(own: IpAddr, builder: Builder) -> (Node, [Switch; N]) {
    let workers = Workers::new(N as u8).unwrap();
    let faults = [(); N].map(|()| Switch(Arc::default()));
    let group = UdpPort::open_group(&UdpConfig::new(own), workers).unwrap();
    let ports = group.into_iter().zip(&faults).map(|(inner, fault)| {
        let port = Faulty {
            inner,
            fault: fault.clone(),
            dst: None,
            refused: None,
        };
        Box::new(port) as Box<dyn Port + Send>
    });
    let builder = builder.address(own).workers(workers.count());
    let node = builder.build_on_all(ports.collect()).unwrap();
    (node, faults)
}
