//! A port that writes down what goes through it, as a pcapng file for Wireshark, and the writer for
//! those that want to write down less.
//!
//! Ports carry datagrams; the file gets Ethernet frames around them, with headers such that the
//! ICRC of a sound datagram is right: where a port only predicts the IPv4 identification, the one
//! that fits is solved for. The link layer's addresses are made up (02:00 and the last four bytes
//! of the IP address), the UDP destination port is always 4791.

mod writer;

use crate::links::LinkChanges;
use crate::port::{
    Arrival, Capabilities, Egress, LinkState, Port, PortCounters, PortError, PortEvent, Slot,
};
use crate::routes::Routes;
use std::fmt;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;
use trunkline_wire::Path;

pub use writer::PacketWriter;
use writer::time_of_day;

/// A port with a recorder.
///
/// Outbound datagrams are recorded when they are committed, inbound ones when they are received.
/// When writing fails, recording ends ([`failure`](Self::failure) says why) and the port goes on.
pub struct Capture<P, W: Write> {
    port: P,
    writer: PacketWriter<W>,
    /// The datagram being built, and what was promised for it.
    staged: Vec<u8>,
    reserved: Option<(Path, u16)>,
}

impl<P: fmt::Debug, W: Write> fmt::Debug for Capture<P, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capture")
            .field("port", &self.port)
            .field("writer", &self.writer)
            .finish_non_exhaustive()
    }
}

impl<P: Port, W: Write> Capture<P, W> {
    /// Records what goes through `port` with the time of day.
    ///
    /// # Errors
    /// When the file's header cannot be written.
    pub fn new(port: P, writer: W) -> io::Result<Self> {
        Self::with_clock(port, writer, time_of_day)
    }

    /// Records with the times that `clock` gives, since 1970.
    ///
    /// # Errors
    /// When the file's header cannot be written.
    pub fn with_clock(
        port: P,
        writer: W,
        clock: impl FnMut() -> Duration + Send + 'static,
    ) -> io::Result<Self> {
        Ok(Self {
            port,
            writer: PacketWriter::with_clock(writer, clock)?,
            staged: Vec::new(),
            reserved: None,
        })
    }

    /// Datagrams recorded so far.
    pub const fn recorded(&self) -> u64 {
        self.writer.recorded()
    }

    /// Datagrams no frame can be made for: too long for IP, or with addresses of two families.
    pub const fn skipped(&self) -> u64 {
        self.writer.skipped()
    }

    /// Why recording ended, if it did.
    pub const fn failure(&self) -> Option<&io::Error> {
        self.writer.failure()
    }

    /// The wrapped port.
    pub const fn port(&self) -> &P {
        &self.port
    }

    /// The wrapped port.
    pub const fn port_mut(&mut self) -> &mut P {
        &mut self.port
    }

    /// Ends recording: the port and the writer, which is flushed.
    ///
    /// # Errors
    /// What ended recording earlier, or what flushing said.
    pub fn finish(self) -> io::Result<(P, W)> {
        Ok((self.port, self.writer.finish()?))
    }
}

impl<P: Port, W: Write> Egress for Capture<P, W> {
    fn part(&mut self) {
        self.reserved = None;
        self.port.part();
    }

    fn reserve(&mut self, path: &Path, length: usize) -> Option<Slot<'_>> {
        self.reserved = None;
        let identification = self.port.reserve(path, length)?.identification;
        self.reserved = Some((*path, identification));
        self.staged.resize(length, 0);
        Some(Slot {
            datagram: &mut self.staged,
            identification,
        })
    }

    fn commit(&mut self) {
        let (path, identification) = self.reserved.take().expect("commit follows reserve");
        let slot = self.port.reserve(&path, self.staged.len());
        let slot = slot.expect("a slot that was not committed is given out again");
        assert_eq!(
            slot.identification, identification,
            "the same slot, the same identification"
        );
        slot.datagram.copy_from_slice(&self.staged);
        self.port.commit();
        self.writer.sent(&path, identification, &self.staged);
    }
}

impl<P: Port, W: Write> Port for Capture<P, W> {
    fn capabilities(&self) -> Capabilities {
        self.port.capabilities()
    }

    fn flush(&mut self) -> Result<(), PortError> {
        self.reserved = None;
        self.port.flush()
    }

    fn receive(
        &mut self,
        limit: usize,
        sink: &mut dyn FnMut(&Arrival, &[u8]),
    ) -> Result<usize, PortError> {
        let writer = &mut self.writer;
        self.port.receive(limit, &mut |arrival, datagram| {
            writer.received(arrival, datagram);
            sink(arrival, datagram);
        })
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.port.fd()
    }

    fn fetch(&mut self) -> Result<bool, PortError> {
        self.port.fetch()
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.port.fds()
    }

    fn full(&self) -> Option<usize> {
        self.port.full()
    }

    fn poll_event(&mut self) -> Option<PortEvent> {
        self.port.poll_event()
    }

    fn counters(&self) -> PortCounters {
        self.port.counters()
    }

    fn source_ports(&self) -> &[u16] {
        self.port.source_ports()
    }

    fn link_state(&self, local: IpAddr) -> Option<LinkState> {
        self.port.link_state(local)
    }

    fn link_changes(&self, local: IpAddr) -> Option<Box<dyn LinkChanges + Send>> {
        self.port.link_changes(local)
    }

    fn routes(&self, local: IpAddr) -> Option<Box<dyn Routes + Send>> {
        self.port.routes(local)
    }
}

#[cfg(test)]
mod tests;
