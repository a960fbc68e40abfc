//! Frames of a capture file: pcap (both byte orders, micro- and nanoseconds) or pcapng.
//!
//! Packet blocks are read from their raw form: a comment that is not UTF-8, or a frame longer than
//! the snapshot length that the file announces, does not matter here.

use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
use pcap_file::pcapng::blocks::{ENHANCED_PACKET_BLOCK, PACKET_BLOCK, SIMPLE_PACKET_BLOCK};
use pcap_file::pcapng::{PcapNgReader, RawBlock};
use pcap_file::{Endianness, PcapError, TsResolution};
use std::borrow::Cow;
use std::io::{self, ErrorKind, Read};

const NS_PER_SECOND: u64 = 1_000_000_000;
/// First bytes of a pcapng file: the type of its section header.
const PCAPNG: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
/// First bytes of pcap files: seconds and microseconds, or nanoseconds, in both byte orders.
const PCAP: [[u8; 4]; 4] = [
    [0xa1, 0xb2, 0xc3, 0xd4],
    [0xa1, 0xb2, 0x3c, 0x4d],
    [0xd4, 0xc3, 0xb2, 0xa1],
    [0x4d, 0x3c, 0xb2, 0xa1],
];

/// Why there is no (further) frame.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CaptureError {
    /// Another kind of file.
    #[error("not a capture: neither pcap nor pcapng")]
    NotACapture,
    /// The end came too early.
    #[error("the capture is cut off, or holds a length that makes no sense")]
    Cut,
    /// A length or number that cannot be.
    #[error("the capture is damaged: {0}")]
    Damaged(Cow<'static, str>),
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<PcapError> for CaptureError {
    fn from(error: PcapError) -> Self {
        match error {
            PcapError::IoError(error) if error.kind() == ErrorKind::UnexpectedEof => Self::Cut,
            PcapError::IncompleteBuffer => Self::Cut,
            PcapError::IoError(error) => Self::Io(error),
            PcapError::InvalidField(what) => Self::Damaged(what.into()),
            other => Self::Damaged(other.to_string().into()),
        }
    }
}

/// A frame as it was captured.
#[derive(Debug)]
pub(crate) struct Captured<'a> {
    /// When, in nanoseconds since 1970; 0 where the file does not say.
    pub(crate) time_ns: u64,
    /// Link type, as pcap numbers them.
    pub(crate) link: u32,
    /// Its bytes, as many as were kept.
    pub(crate) bytes: Cow<'a, [u8]>,
}

/// A capture file being read.
pub(crate) enum Capture<R: Read> {
    /// The classic format.
    Pcap(PcapReader<Input<R>>),
    /// Its successor.
    PcapNg(PcapNgReader<Input<R>>),
}

/// A reader whose first bytes were looked at.
pub(crate) type Input<R> = io::Chain<io::Cursor<Vec<u8>>, R>;

impl<R: Read> std::fmt::Debug for Capture<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Pcap(_) => "Pcap",
            Self::PcapNg(_) => "PcapNg",
        })
    }
}

impl<R: Read> Capture<R> {
    /// Starts to read.
    ///
    /// # Errors
    /// It is no capture, or cannot be read.
    pub(crate) fn open(mut reader: R) -> Result<Self, CaptureError> {
        let mut magic = Vec::new();
        reader.by_ref().take(4).read_to_end(&mut magic)?;
        let known = <[u8; 4]>::try_from(magic.as_slice());
        let input = io::Cursor::new(magic).chain(reader);
        match known {
            Ok(PCAPNG) => Ok(Self::PcapNg(PcapNgReader::new(input)?)),
            Ok(magic) if PCAP.contains(&magic) => Ok(Self::Pcap(PcapReader::new(input)?)),
            _ => Err(CaptureError::NotACapture),
        }
    }

    /// The next frame; `None` after the last.
    ///
    /// # Errors
    /// The file is cut off or damaged: there is nothing behind it.
    pub(crate) fn next_frame(&mut self) -> Result<Option<Captured<'_>>, CaptureError> {
        match self {
            Self::Pcap(reader) => next_of_pcap(reader),
            Self::PcapNg(reader) => next_of_pcapng(reader),
        }
    }
}

fn next_of_pcap<R: Read>(reader: &mut PcapReader<R>) -> Result<Option<Captured<'_>>, CaptureError> {
    let header = reader.header();
    let fraction_ns = match header.ts_resolution {
        TsResolution::MicroSecond => 1000,
        TsResolution::NanoSecond => 1,
    };
    let Some(packet) = reader.next_raw_packet().transpose()? else {
        return Ok(None);
    };
    let time_ns =
        u64::from(packet.ts_sec) * NS_PER_SECOND + u64::from(packet.ts_frac) * fraction_ns;
    // The upper half says how much of a frame check sequence there is.
    let link = u32::from(header.datalink) & 0xffff;
    Ok(Some(Captured {
        time_ns,
        link,
        bytes: packet.data,
    }))
}

fn next_of_pcapng<R: Read>(
    reader: &mut PcapNgReader<R>,
) -> Result<Option<Captured<'_>>, CaptureError> {
    loop {
        // The block is copied where it holds a frame: the interfaces are asked for after it.
        let Some(block) = reader.next_raw_block().transpose()? else {
            return Ok(None);
        };
        let Some(body) = frame_of(&block) else {
            continue;
        };
        let (kind, body) = (block.type_, body.into_owned());
        let packet = PacketBlock::read(kind, &body, reader.section().endianness)?;
        let Some(interface) = reader.interfaces().get(packet.interface) else {
            let what = format!("no interface {} has been described", packet.interface);
            return Err(CaptureError::Damaged(what.into()));
        };
        let length = match (kind, interface.snaplen as usize) {
            (SIMPLE_PACKET_BLOCK, snaplen @ 1..) => packet.length.min(snaplen),
            (SIMPLE_PACKET_BLOCK, 0) => packet.length.min(body.len() - packet.data_at),
            _ => packet.length,
        };
        let Some(bytes) = body[packet.data_at..].get(..length) else {
            return Err(CaptureError::Damaged(
                "a frame is longer than its block".into(),
            ));
        };
        return Ok(Some(Captured {
            time_ns: time_ns(packet.timestamp, &interface.options),
            link: u32::from(interface.linktype) & 0xffff,
            bytes: Cow::Owned(bytes.to_vec()),
        }));
    }
}

/// The body of a block that holds a frame.
fn frame_of<'a>(block: &RawBlock<'a>) -> Option<Cow<'a, [u8]>> {
    let kinds = [ENHANCED_PACKET_BLOCK, SIMPLE_PACKET_BLOCK, PACKET_BLOCK];
    kinds.contains(&block.type_).then(|| block.body.clone())
}

/// What stands before the frame in its block.
struct PacketBlock {
    interface: usize,
    timestamp: u64,
    length: usize,
    data_at: usize,
}

impl PacketBlock {
    fn read(kind: u32, body: &[u8], order: Endianness) -> Result<Self, CaptureError> {
        let too_short = || CaptureError::Damaged("a packet block is too short".into());
        let word = |at: usize| {
            let bytes: &[u8; 4] = body.get(at..).and_then(|rest| rest.first_chunk())?;
            Some(match order {
                Endianness::Big => u32::from_be_bytes(*bytes),
                Endianness::Little => u32::from_le_bytes(*bytes),
            })
        };
        let word = |at| word(at).ok_or_else(too_short);
        if kind == SIMPLE_PACKET_BLOCK {
            let length = word(0)? as usize;
            return Ok(Self {
                interface: 0,
                timestamp: 0,
                length,
                data_at: 4,
            });
        }
        let interface = match (kind, order) {
            (ENHANCED_PACKET_BLOCK, _) => word(0)?,
            // The old packet block: two bytes of interface, two of packets dropped.
            (_, Endianness::Big) => word(0)? >> 16,
            (_, Endianness::Little) => word(0)? & 0xffff,
        };
        let timestamp = u64::from(word(4)?) << 32 | u64::from(word(8)?);
        let length = word(12)? as usize;
        // The original length stands before the frame.
        word(16)?;
        Ok(Self {
            interface: interface as usize,
            timestamp,
            length,
            data_at: 20,
        })
    }
}

/// A timestamp in nanoseconds since 1970, given the units and the offset of its interface.
fn time_ns(timestamp: u64, options: &[InterfaceDescriptionOption<'_>]) -> u64 {
    // Microseconds, unless the interface says otherwise.
    let (mut resolution, mut offset) = (6, 0_i64);
    for option in options {
        match option {
            InterfaceDescriptionOption::IfTsResol(value) => resolution = *value,
            InterfaceDescriptionOption::IfTsOffset(seconds) => offset = seconds.cast_signed(),
            _ => {}
        }
    }
    let per_second = match resolution {
        0..=19 => 10_u64.checked_pow(u32::from(resolution)),
        0x80..=0xbf => 1_u64.checked_shl(u32::from(resolution & 0x7f)),
        _ => None,
    };
    // Units too small to count nanoseconds in: as if there were no time.
    let Some(per_second) = per_second else {
        return 0;
    };
    let ns = u128::from(timestamp) * u128::from(NS_PER_SECOND) / u128::from(per_second);
    let ns = i128::try_from(ns).unwrap_or(i128::MAX);
    let shifted = ns.saturating_add(i128::from(offset) * i128::from(NS_PER_SECOND));
    u64::try_from(shifted).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_scaled_by_their_interface() {
        use InterfaceDescriptionOption::{IfTsOffset, IfTsResol};
        assert_eq!(time_ns(5, &[]), 5000);
        assert_eq!(time_ns(5, &[IfTsResol(9)]), 5);
        assert_eq!(time_ns(5, &[IfTsResol(0)]), 5 * NS_PER_SECOND);
        assert_eq!(time_ns(3, &[IfTsResol(0x81)]), 1_500_000_000);
        assert_eq!(
            time_ns(5, &[IfTsResol(9), IfTsOffset(2)]),
            2 * NS_PER_SECOND + 5
        );
        assert_eq!(time_ns(5, &[IfTsOffset((-1_i64).cast_unsigned())]), 0);
        for absurd in [20, 0x7f, 0xc0, 0xff] {
            assert_eq!(time_ns(5, &[IfTsResol(absurd)]), 0);
        }
        assert_eq!(time_ns(u64::MAX, &[IfTsResol(0)]), 0);
    }

    #[test]
    fn what_is_no_capture_is_refused() {
        for bytes in [&b""[..], b"\x0a\x0d", b"#!/bin/sh\n", &[0; 100]] {
            let error = Capture::open(bytes).expect_err("it is no capture");
            assert!(
                matches!(error, CaptureError::NotACapture),
                "{bytes:?}: {error}"
            );
        }
        for magic in PCAP.iter().chain([&PCAPNG]) {
            let error = Capture::open(&magic[..]).expect_err("there is only a magic");
            assert!(matches!(error, CaptureError::Cut), "{magic:?}: {error}");
        }
    }
}
