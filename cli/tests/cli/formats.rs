//! Frames as files of every format that captures come in.

use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use pcap_file::pcapng::PcapNgBlock;
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::blocks::simple_packet::SimplePacketBlock;
use pcap_file::{DataLink, Endianness, TsResolution};
use std::borrow::Cow;
use std::path::Path;
use std::time::Duration;

/// A frame and when it was captured.
pub(crate) type Frame = (Duration, Vec<u8>);

/// The frames of a capture of this repository (little-endian, microseconds, Ethernet).
pub(crate) fn frames(path: &Path) -> Vec<Frame> {
    let file = std::fs::read(path).unwrap();
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
    assert_eq!((word(0), word(20)), (0xa1b2_c3d4, 1), "magic and link type");
    let mut frames = Vec::new();
    let mut at = 24;
    while at < file.len() {
        let time = Duration::new(word(at).into(), word(at + 4) * 1000);
        let length = word(at + 8) as usize;
        frames.push((time, file[at + 16..at + 16 + length].to_vec()));
        at += 16 + length;
    }
    frames
}

pub(crate) fn pcap(
    frames: &[Frame],
    link: DataLink,
    endianness: Endianness,
    resolution: TsResolution,
) -> Vec<u8> {
    let header = PcapHeader {
        snaplen: 65_535,
        datalink: link,
        ts_resolution: resolution,
        endianness,
        ..PcapHeader::default()
    };
    let mut writer = PcapWriter::with_header(Vec::new(), header).unwrap();
    for (time, frame) in frames {
        let packet = PcapPacket::new(*time, frame.len() as u32, frame);
        writer.write_packet(&packet).unwrap();
    }
    writer.into_writer()
}

/// `units` per second: a power of ten.
pub(crate) fn pcapng(
    frames: &[Frame],
    link: DataLink,
    endianness: Endianness,
    units: Option<u8>,
) -> Vec<u8> {
    let mut writer = PcapNgWriter::with_endianness(Vec::new(), endianness).unwrap();
    let mut interface = InterfaceDescriptionBlock::new(link, 0);
    interface
        .options
        .extend(units.map(InterfaceDescriptionOption::IfTsResol));
    writer.write_block(&interface.into_block()).unwrap();
    for (time, frame) in frames {
        let shift = 10_u64.pow(u32::from(9 - units.unwrap_or(6)));
        let packet = EnhancedPacketBlock {
            interface_id: 0,
            // The library writes nanoseconds, whatever the interface says.
            timestamp: Duration::from_nanos(time.as_nanos() as u64 / shift),
            original_len: frame.len() as u32,
            data: Cow::Borrowed(frame),
            options: Vec::new(),
        };
        writer.write_block(&packet.into_block()).unwrap();
    }
    writer.into_inner()
}

/// As simple packet blocks: without times.
pub(crate) fn pcapng_simple(frames: &[Frame], link: DataLink, endianness: Endianness) -> Vec<u8> {
    let mut writer = PcapNgWriter::with_endianness(Vec::new(), endianness).unwrap();
    writer
        .write_block(&InterfaceDescriptionBlock::new(link, 0).into_block())
        .unwrap();
    for (_, frame) in frames {
        let data = Cow::Borrowed(&frame[..]);
        let packet = SimplePacketBlock {
            original_len: frame.len() as u32,
            data,
        };
        writer.write_block(&packet.into_block()).unwrap();
    }
    writer.into_inner()
}

/// The frames with another link layer: `header` makes it from the EtherType.
pub(crate) fn relinked(frames: &[Frame], header: impl Fn([u8; 2]) -> Vec<u8>) -> Vec<Frame> {
    let relink = |(time, frame): &Frame| {
        let mut bytes = header([frame[12], frame[13]]);
        bytes.extend_from_slice(&frame[14..]);
        (*time, bytes)
    };
    frames.iter().map(relink).collect()
}
