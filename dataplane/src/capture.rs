//! A port that writes down what goes through it, as a pcapng file for Wireshark, and the writer for
//! those that want to write down less.
//!
//! Ports carry datagrams; the file gets Ethernet frames around them, with headers such that the
//! ICRC of a sound datagram is right: where a port only predicts the IPv4 identification, the one
//! that fits is solved for. The link layer's addresses are made up (02:00 and the last four bytes
//! of the IP address), the UDP destination port is always 4791.

use crate::port::{Arrival, Capabilities, Egress, Port, PortCounters, PortError, Slot};
use crate::routes::Routes;
use crate::{Identification, udp::MAX_SEND};
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::{DataLink, PcapError};
use std::borrow::Cow;
use std::fmt;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use trunkline_wire::{Frame, IcrcSeed, Mac, Path};

/// Times in the file are nanoseconds: 10^-9 s.
const NANOSECONDS: u8 = 9;
/// Direction in `epb_flags`.
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;

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
        self.writer.recorded
    }

    /// Datagrams no frame can be made for: too long for IP, or with addresses of two families.
    pub const fn skipped(&self) -> u64 {
        self.writer.skipped
    }

    /// Why recording ended, if it did.
    pub const fn failure(&self) -> Option<&io::Error> {
        self.writer.failure.as_ref()
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

    fn counters(&self) -> PortCounters {
        self.port.counters()
    }

    fn source_ports(&self) -> &[u16] {
        self.port.source_ports()
    }

    fn routes(&self, local: IpAddr) -> Option<Box<dyn Routes + Send>> {
        self.port.routes(local)
    }
}

/// The identification for which the ICRC is right, if the port did not see it and there is one.
fn fitting(arrival: &Arrival, datagram: &[u8]) -> u16 {
    let Path { src, dst, .. } = arrival.path;
    match arrival.identification {
        Identification::Predicted(guess) if src.is_ipv4() && dst.is_ipv4() => {
            let seed = IcrcSeed::new(&arrival.path);
            seed.solve_identification(datagram).unwrap_or(guess)
        }
        identification => identification.guess(),
    }
}

fn time_of_day() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

/// Writes datagrams down, as [`Capture`] does with all that goes through a port.
///
/// When writing fails, recording ends ([`failure`](Self::failure) says why).
pub struct PacketWriter<W: Write> {
    writer: PcapNgWriter<W>,
    clock: Box<dyn FnMut() -> Duration + Send>,
    frame: Vec<u8>,
    recorded: u64,
    skipped: u64,
    failure: Option<io::Error>,
}

impl<W: Write> fmt::Debug for PacketWriter<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PacketWriter")
            .field("recorded", &self.recorded)
            .field("failure", &self.failure)
            .finish_non_exhaustive()
    }
}

impl<W: Write> PacketWriter<W> {
    /// Begins a file; packets get the time of day.
    ///
    /// # Errors
    /// When the file's header cannot be written.
    pub fn new(writer: W) -> io::Result<Self> {
        Self::with_clock(writer, time_of_day)
    }

    /// Begins a file; packets get the times that `clock` gives, since 1970.
    ///
    /// # Errors
    /// When the file's header cannot be written.
    pub fn with_clock(
        writer: W,
        clock: impl FnMut() -> Duration + Send + 'static,
    ) -> io::Result<Self> {
        let mut writer = PcapNgWriter::new(writer).map_err(to_io)?;
        let interface = InterfaceDescriptionBlock {
            linktype: DataLink::ETHERNET,
            snaplen: 0,
            options: vec![
                InterfaceDescriptionOption::IfName(Cow::Borrowed("trunkline")),
                InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
            ],
        };
        writer.write_pcapng_block(interface).map_err(to_io)?;
        Ok(Self {
            writer,
            clock: Box::new(clock),
            frame: Vec::new(),
            recorded: 0,
            skipped: 0,
            failure: None,
        })
    }

    /// A datagram leaves, in a packet with this IPv4 identification.
    pub fn sent(&mut self, path: &Path, identification: u16, datagram: &[u8]) {
        self.record(OUTBOUND, path, identification, datagram);
    }

    /// A datagram came.
    pub fn received(&mut self, arrival: &Arrival, datagram: &[u8]) {
        let identification = fitting(arrival, datagram);
        self.record(INBOUND, &arrival.path, identification, datagram);
    }

    /// Datagrams recorded so far.
    pub const fn recorded(&self) -> u64 {
        self.recorded
    }

    /// Datagrams no frame can be made for: too long for IP, or with addresses of two families.
    pub const fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Why recording ended, if it did.
    pub const fn failure(&self) -> Option<&io::Error> {
        self.failure.as_ref()
    }

    /// Passes on what the writer holds back.
    pub fn flush(&mut self) {
        if self.failure.is_none()
            && let Err(error) = self.writer.get_mut().flush()
        {
            self.failure = Some(error);
        }
    }

    /// Ends recording: the writer, flushed.
    ///
    /// # Errors
    /// What ended recording earlier, or what flushing said.
    pub fn finish(self) -> io::Result<W> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        let mut writer = self.writer.into_inner();
        writer.flush()?;
        Ok(writer)
    }

    fn record(&mut self, direction: u32, path: &Path, identification: u16, datagram: &[u8]) {
        if self.failure.is_some() {
            return;
        }
        if path.src.is_ipv4() != path.dst.is_ipv4() || datagram.len() > MAX_SEND {
            self.skipped += 1;
            return;
        }
        let (to, from) = (mac(path.dst), mac(path.src));
        let frame = Frame::for_datagram(to, from, path, identification, datagram);
        self.frame.resize(frame.length(), 0);
        frame.emit(&mut self.frame);
        let written = self.writer.write_pcapng_block(EnhancedPacketBlock {
            interface_id: 0,
            timestamp: (self.clock)(),
            original_len: self.frame.len() as u32,
            data: Cow::Borrowed(&self.frame),
            options: vec![EnhancedPacketOption::Flags(direction)],
        });
        match written {
            Ok(_) => self.recorded += 1,
            Err(error) => self.failure = Some(to_io(error)),
        }
    }
}

/// A locally administered address that shows the IP address.
fn mac(address: IpAddr) -> Mac {
    let [a, b, c, d] = match address {
        IpAddr::V4(address) => address.octets(),
        IpAddr::V6(address) => {
            let [.., a, b, c, d] = address.octets();
            [a, b, c, d]
        }
    };
    Mac([0x02, 0x00, a, b, c, d])
}

fn to_io(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(error) => error,
        error => io::Error::other(error),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;
    use crate::fault::{Direction, Fault, Faults};
    use crate::{MemoryConfig, MemoryPort, UdpConfig, UdpPort};
    use pcap_file::pcapng::{Block, PcapNgReader};
    use std::net::{Ipv4Addr, Ipv6Addr};
    use trunkline_wire::icrc;

    fn path(v6: bool) -> Path {
        let (src, dst): (IpAddr, IpAddr) = if v6 {
            let last = |last| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last);
            (last(1).into(), last(2).into())
        } else {
            (
                Ipv4Addr::new(10, 0, 0, 1).into(),
                Ipv4Addr::new(10, 0, 0, 2).into(),
            )
        };
        Path {
            src,
            dst,
            src_port: 49_152,
            traffic_class: 2,
        }
    }

    fn send(port: &mut impl Port, path: &Path, tag: u8, length: usize) {
        let slot = port.reserve(path, length).unwrap();
        slot.datagram.fill(tag);
        icrc::seal(path, slot.identification, slot.datagram);
        port.commit();
    }

    /// Time, direction and frame of every packet in a file.
    fn read(file: &[u8]) -> Vec<(Duration, u32, Vec<u8>)> {
        let mut reader = PcapNgReader::new(file).unwrap();
        let mut packets = Vec::new();
        while let Some(block) = reader.next_block() {
            match block.unwrap() {
                Block::InterfaceDescription(interface) => {
                    assert_eq!(interface.linktype, DataLink::ETHERNET);
                    let nanoseconds = InterfaceDescriptionOption::IfTsResol(9);
                    assert!(interface.options.contains(&nanoseconds));
                }
                Block::EnhancedPacket(packet) => {
                    let [EnhancedPacketOption::Flags(direction)] = packet.options[..] else {
                        panic!("options {:?}", packet.options);
                    };
                    assert_eq!(packet.original_len as usize, packet.data.len());
                    packets.push((packet.timestamp, direction, packet.data.to_vec()));
                }
                block => panic!("{block:?}"),
            }
        }
        packets
    }

    #[test]
    fn both_directions_are_recorded_as_roce_frames_with_right_icrcs() {
        let (a, mut b) = MemoryPort::pair(MemoryConfig::default());
        let mut ticks = 1_700_000_000_000_000_000;
        let clock = move || {
            ticks += 7;
            Duration::from_nanos(ticks)
        };
        let mut a = Capture::with_clock(a, Vec::new(), clock).unwrap();
        send(&mut a, &path(false), 1, 64);
        a.flush().unwrap();
        send(&mut b, &path(true), 2, 77);
        b.flush().unwrap();
        let mut got = Vec::new();
        a.receive(9, &mut |_, bytes| got.extend_from_slice(bytes))
            .unwrap();
        assert_eq!((got.len(), got[0]), (77, 2));
        let mut got = Vec::new();
        b.receive(9, &mut |_, bytes| got.extend_from_slice(bytes))
            .unwrap();
        assert_eq!((got.len(), got[0]), (64, 1));
        assert_eq!((a.recorded(), a.skipped()), (2, 0));
        let (_, file) = a.finish().unwrap();
        let packets = read(&file);
        assert_eq!(packets.len(), 2);
        for (i, (at, direction, frame)) in packets.iter().enumerate() {
            let frame = Frame::parse(frame).unwrap();
            let roce = frame.roce().unwrap();
            assert_eq!(*direction, [OUTBOUND, INBOUND][i]);
            assert_eq!(roce.path, path(i == 1));
            assert!(roce.icrc_ok());
            assert_eq!(at.as_nanos(), 1_700_000_000_000_000_007 + 7 * i as u128);
        }
        let out = Frame::parse(&packets[0].2).unwrap();
        assert_eq!(out.eth.dst, Mac([2, 0, 10, 0, 0, 2]));
    }

    #[test]
    fn over_udp_the_identification_that_fits_is_recorded() {
        let address = |last| IpAddr::V4(Ipv4Addr::new(127, 0, 0, last));
        let mut configs = [31, 32].map(|last| UdpConfig::new(address(last)));
        // So that the receiver predicts 0 for all.
        configs[1].coalescing = false;
        configs[0].port = 0;
        let a = UdpPort::open(&configs[0]).unwrap();
        configs[1].port = a.local().port();
        let b = UdpPort::open(&configs[1]).unwrap();
        let path = Path {
            src: address(31),
            dst: address(32),
            src_port: a.local().port(),
            traffic_class: 0,
        };
        let mut a = Capture::new(a, Vec::new()).unwrap();
        let mut b = Capture::new(b, Vec::new()).unwrap();
        for i in 0..5 {
            send(&mut a, &path, i, 200);
        }
        a.flush().unwrap();
        let end = std::time::Instant::now() + Duration::from_secs(1);
        while b.recorded() < 5 && std::time::Instant::now() < end {
            b.receive(5, &mut |_, _| {}).unwrap();
        }
        for file in [a.finish().unwrap().1, b.finish().unwrap().1] {
            let packets = read(&file);
            assert_eq!(packets.len(), 5);
            for (i, (_, _, frame)) in (0..).zip(&packets) {
                let roce = Frame::parse(frame).unwrap().roce().unwrap();
                assert_eq!(roce.identification, i);
                assert!(roce.icrc_ok());
            }
        }
    }

    #[test]
    fn wrappers_compose_and_damage_shows_in_the_file() {
        let (a, mut b) = MemoryPort::pair(MemoryConfig::default());
        let mut inner = Fault::new(a, 5);
        inner.set(
            Direction::Inbound,
            Faults {
                corrupt_ppm: 500_000,
                ..Faults::default()
            },
        );
        let mut a = Fault::new(Capture::new(inner, Vec::new()).unwrap(), 6);
        a.set(
            Direction::Outbound,
            Faults {
                loss_ppm: 500_000,
                ..Faults::default()
            },
        );
        for i in 0..100 {
            send(&mut a, &path(false), i, 64);
            send(&mut b, &path(false), i, 64);
        }
        a.flush().unwrap();
        b.flush().unwrap();
        assert_eq!(a.receive(1000, &mut |_, _| {}).unwrap(), 100);
        let packets = read(&a.into_port().finish().unwrap().1);
        let right = |wanted: u32| {
            let of = packets
                .iter()
                .filter(move |(_, direction, _)| *direction == wanted);
            let of: Vec<_> = of.collect();
            let right = of
                .iter()
                .filter(|(_, _, frame)| Frame::parse(frame).unwrap().roce().unwrap().icrc_ok());
            (of.len(), right.count())
        };
        let (sent, sent_right) = right(OUTBOUND);
        assert!(
            (30..70).contains(&sent) && sent_right == sent,
            "{sent}, {sent_right} right"
        );
        let (got, got_right) = right(INBOUND);
        assert!(
            got == 100 && (30..80).contains(&got_right),
            "{got}, {got_right} right"
        );
    }

    #[test]
    fn a_writer_that_fails_ends_the_recording_and_not_the_port() {
        struct Full(usize);
        impl Write for Full {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0 = self
                    .0
                    .checked_sub(bytes.len())
                    .ok_or(io::ErrorKind::StorageFull)?;
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let (a, mut b) = MemoryPort::pair(MemoryConfig::default());
        let mut a = Capture::new(a, Full(500)).unwrap();
        for i in 0..20 {
            send(&mut a, &path(false), i, 64);
        }
        a.flush().unwrap();
        assert_eq!(b.receive(100, &mut |_, _| {}).unwrap(), 20);
        assert!((1..20).contains(&a.recorded()));
        assert_eq!(a.failure().unwrap().kind(), io::ErrorKind::StorageFull);
        assert!(a.finish().is_err());
    }

    #[test]
    fn datagrams_that_fit_no_frame_are_skipped() {
        let config = MemoryConfig {
            slot_bytes: 65_536,
            slots: 4,
        };
        let (a, _b) = MemoryPort::pair(config);
        let mut a = Capture::new(a, Vec::new()).unwrap();
        send(&mut a, &path(false), 1, MAX_SEND);
        let mixed = Path {
            dst: Ipv6Addr::LOCALHOST.into(),
            ..path(false)
        };
        for (path, length) in [(mixed, 64), (path(false), MAX_SEND + 1)] {
            a.reserve(&path, length).unwrap().datagram.fill(0);
            a.commit();
        }
        assert_eq!((a.recorded(), a.skipped()), (1, 2));
    }
}
