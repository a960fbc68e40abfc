//! Management datagrams, written down by the nodes that send and receive them.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{End, Pair, inline};
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use trunkline_wire::cm::CmMad;
use trunkline_wire::{Frame, Qpn, parse_datagram};

/// A file in memory that others can read.
#[derive(Clone, Debug, Default)]
struct Tape(Arc<Mutex<Vec<u8>>>);

impl Write for Tape {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Tape {
    /// Every datagram, and whether it came in; each is a sound management datagram.
    fn datagrams(&self) -> Vec<(bool, Vec<u8>)> {
        let file = self.0.lock().unwrap().clone();
        let mut reader = PcapNgReader::new(&file[..]).unwrap();
        let mut found = Vec::new();
        while let Some(block) = reader.next_block() {
            let Block::EnhancedPacket(packet) = block.unwrap() else {
                continue;
            };
            let frame = Frame::parse(&packet.data).unwrap();
            let roce = frame.roce().unwrap();
            assert!(roce.icrc_ok());
            let parsed = parse_datagram(roce.datagram).unwrap();
            assert_eq!(parsed.bth.dest_qp, Qpn::GSI);
            CmMad::parse(parsed.payload).unwrap();
            let inbound = packet.options.contains(&EnhancedPacketOption::Flags(1));
            found.push((inbound, roce.datagram.to_vec()));
        }
        found
    }
}

fn of(datagrams: &[(bool, Vec<u8>)], inbound: bool) -> Vec<&[u8]> {
    let wanted = datagrams.iter().filter(|(came, _)| *came == inbound);
    wanted.map(|(_, bytes)| &bytes[..]).collect()
}

#[test]
fn what_one_node_has_sent_the_other_has_received_and_nothing_else_is_written() {
    let tapes = [Tape::default(), Tape::default()];
    let [a, b] = [0, 1].map(|i| {
        let builder = inline().capture_management(tapes[i].clone()).unwrap();
        End::new(builder)
    });
    let pair = Pair { a, b };
    let qps: Vec<_> = (0..5).map(|_| pair.qps()).collect();
    pair.until("all QPs are bound", || {
        pair.a.node.cm_stats().qps == 5 && pair.b.node.cm_stats().qps == 5
    });
    let (qa, qb) = &qps[0];
    pair.b.receive(qb, 1, 0, 4096);
    pair.a.post(qa, 1, trunkline::SendOp::Send, 0, 4096);
    pair.next(&pair.b.recv_cq);
    pair.run_for(Duration::from_millis(20));
    let [a, b] = [tapes[0].datagrams(), tapes[1].datagrams()];
    assert!(!a.is_empty());
    assert_eq!(of(&a, false), of(&b, true));
    assert_eq!(of(&b, false), of(&a, true));
    for (node, seen) in [(&pair.a.node, &a), (&pair.b.node, &b)] {
        let (stats, state) = (node.cm_stats(), node.capture_state().unwrap());
        assert_eq!(of(seen, false).len() as u64, stats.sent);
        assert_eq!(of(seen, true).len() as u64, stats.received);
        assert_eq!(state.recorded, stats.sent + stats.received);
        assert_eq!((state.skipped, state.failure), (0, None));
    }
}

/// A disk that is full after so many bytes.
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

#[test]
fn a_node_goes_on_when_its_capture_cannot() {
    let a = End::new(inline().capture_management(Full(300)).unwrap());
    let pair = Pair {
        a,
        b: End::new(inline()),
    };
    let _qps = pair.qps();
    pair.until("the QPs are bound", || pair.a.node.cm_stats().qps == 1);
    let state = pair.a.node.capture_state().unwrap();
    assert_eq!(state.failure, Some(io::ErrorKind::StorageFull));
    assert_eq!(pair.b.node.capture_state(), None);
}
