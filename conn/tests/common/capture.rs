//! Captured traffic of RC QPs, one conversation per requester and responder.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use trunkline_wire::{
    Aeth, AtomicEth, Bth, Frame, Ieth, ImmDt, Operation, Packet, Position, Qpn, Reth, Transport,
    parse_datagram,
};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/captures");
/// Another folder with captures; or `none`, to do without.
const OVERRIDE: &str = "TRUNKLINE_CAPTURES";

/// The folder of captures; `None` when it is not wanted.
///
/// # Panics
/// It is wanted and not there.
pub(crate) fn folder() -> Option<PathBuf> {
    let folder = match std::env::var_os(OVERRIDE) {
        Some(value) if value == "none" => {
            eprintln!("SKIPPED: {OVERRIDE}=none");
            return None;
        }
        Some(value) => PathBuf::from(value),
        None => PathBuf::from(FOLDER),
    };
    assert!(
        folder.join("INDEX.txt").is_file(),
        "NO CAPTURES at {}: set {OVERRIDE} to a folder that has them, or to `none` to do without",
        folder.display()
    );
    Some(folder)
}

/// The captures of a folder: name and bytes.
pub(crate) fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = std::fs::read_dir(folder).expect("the folder was found");
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.expect("an entry of the folder is readable").path())
        .filter(|path| path.extension().is_some_and(|ext| ext == "pcap"))
        .collect();
    paths.sort();
    paths
        .into_iter()
        .map(|path| {
            let name = path
                .file_stem()
                .expect("it ends in .pcap")
                .to_string_lossy();
            let bytes = std::fs::read(&path).expect("a capture is readable");
            (name.into_owned(), bytes)
        })
        .collect()
}

/// The frames of a pcap file (little-endian, microseconds, Ethernet), with their times in ns.
fn frames(file: &[u8]) -> Vec<(u64, &[u8])> {
    let word = |at: usize| {
        let bytes = file[at..at + 4].try_into().expect("four bytes were sliced");
        u32::from_le_bytes(bytes)
    };
    assert_eq!((word(0), word(20)), (0xa1b2_c3d4, 1), "magic and link type");
    let mut frames = Vec::new();
    let mut at = 24;
    while at < file.len() {
        let time = u64::from(word(at)) * 1_000_000_000 + u64::from(word(at + 4)) * 1000;
        let length = word(at + 8) as usize;
        frames.push((time, &file[at + 16..at + 16 + length]));
        at += 16 + length;
    }
    frames
}

/// A packet that keeps its payload.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Seen {
    pub(crate) time_ns: u64,
    pub(crate) datagram: Vec<u8>,
    pub(crate) bth: Bth,
    pub(crate) reth: Option<Reth>,
    pub(crate) atomic: Option<AtomicEth>,
    pub(crate) aeth: Option<Aeth>,
    pub(crate) atomic_ack: Option<u64>,
    pub(crate) imm: Option<ImmDt>,
    pub(crate) ieth: Option<Ieth>,
    pub(crate) payload: Vec<u8>,
}

impl Seen {
    pub(crate) fn new(time_ns: u64, datagram: &[u8]) -> Self {
        let packet = parse_datagram(datagram).expect("captured and built packets parse");
        Self {
            time_ns,
            datagram: datagram.to_vec(),
            bth: packet.bth,
            reth: packet.reth,
            atomic: packet.atomic,
            aeth: packet.aeth,
            atomic_ack: packet.atomic_ack.map(|header| header.0),
            imm: packet.imm,
            ieth: packet.ieth,
            payload: packet.payload.to_vec(),
        }
    }

    pub(crate) fn packet(&self) -> Packet<'_> {
        parse_datagram(&self.datagram).expect("it parsed before")
    }

    pub(crate) fn operation(&self) -> Operation {
        self.bth.opcode.operation().expect("its opcode is known")
    }

    pub(crate) fn position(&self) -> Position {
        self.bth.opcode.position().expect("its opcode is known")
    }

    pub(crate) fn is_response(&self) -> bool {
        matches!(
            self.operation(),
            Operation::Acknowledge | Operation::ReadResponse | Operation::AtomicResponse
        )
    }

    /// The first byte of the AETH.
    pub(crate) fn syndrome(&self) -> Option<u8> {
        self.aeth.map(|aeth| aeth.syndrome.byte())
    }
}

/// Requests of one QP and the answers of its peer, in the order of the capture.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conversation {
    pub(crate) packets: Vec<Seen>,
}

impl Conversation {
    pub(crate) fn requests(&self) -> impl Iterator<Item = &Seen> {
        self.packets.iter().filter(|packet| !packet.is_response())
    }

    pub(crate) fn responses(&self) -> impl Iterator<Item = &Seen> {
        self.packets.iter().filter(|packet| packet.is_response())
    }

    /// QP of the responder and of the requester.
    pub(crate) fn qpns(&self) -> (Qpn, Qpn) {
        let to = |packet: Option<&Seen>| packet.map_or(Qpn::from_wire(9), |one| one.bth.dest_qp);
        (to(self.requests().next()), to(self.responses().next()))
    }

    /// Payload of a full packet, as far as there are any.
    pub(crate) fn full(&self) -> Option<usize> {
        let full = |packet: &&Seen| matches!(packet.position(), Position::First | Position::Middle);
        let lengths = self.packets.iter().filter(full);
        lengths.map(|packet| packet.payload.len()).max()
    }
}

/// The RC conversations of a capture. One QP's packets and those of its peer have the same UDP
/// source port there, and no other QP's have.
pub(crate) fn conversations(file: &[u8]) -> Vec<Conversation> {
    let mut found: BTreeMap<(u16, IpAddr), Conversation> = BTreeMap::new();
    for (time_ns, bytes) in frames(file) {
        let frame = Frame::parse(bytes).expect("captured frames parse");
        let Some(roce) = frame.roce() else { continue };
        assert!(roce.icrc_ok(), "captured ICRCs are right");
        let seen = Seen::new(time_ns, roce.datagram);
        if seen.bth.opcode.transport() != Transport::Rc {
            continue;
        }
        let requester = if seen.is_response() {
            roce.path.dst
        } else {
            roce.path.src
        };
        let key = (roce.path.src_port, requester);
        found.entry(key).or_default().packets.push(seen);
    }
    found.into_values().collect()
}

/// The datagrams of another transport, in order, with the address they came from.
pub(crate) fn datagrams(file: &[u8], transport: Transport) -> Vec<(trunkline_wire::Path, Seen)> {
    let mut found = Vec::new();
    for (time_ns, bytes) in frames(file) {
        let frame = Frame::parse(bytes).expect("captured frames parse");
        let Some(roce) = frame.roce() else { continue };
        let seen = Seen::new(time_ns, roce.datagram);
        if seen.bth.opcode.transport() == transport && seen.bth.dest_qp != Qpn::GSI {
            found.push((roce.path, seen));
        }
    }
    found
}
