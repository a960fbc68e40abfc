#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::writer::{INBOUND, OUTBOUND};
use super::*;
use crate::fault::{Direction, Fault, Faults};
use crate::udp::MAX_SEND;
use crate::{MemoryConfig, MemoryPort, UdpConfig, UdpPort};
use pcap_file::DataLink;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use std::net::{Ipv4Addr, Ipv6Addr};
use trunkline_wire::{Frame, IpFields, Mac, icrc};

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
        ip: IpFields::DEFAULT,
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
        ip: IpFields::DEFAULT,
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
