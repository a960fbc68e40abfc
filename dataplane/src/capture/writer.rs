//! The writer of the file.

use crate::Identification;
use crate::port::Arrival;
use crate::super_packet::MAX_SEND;
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
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use trunkline_wire::{Frame, IcrcSeed, Mac, Path};

/// Times in the file are nanoseconds: 10^-9 s.
const NANOSECONDS: u8 = 9;
/// Direction in `epb_flags`.
pub(super) const INBOUND: u32 = 1;
pub(super) const OUTBOUND: u32 = 2;

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

pub(super) fn time_of_day() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

/// Writes datagrams down, as [`Capture`](super::Capture) does with all that goes through a port.
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
