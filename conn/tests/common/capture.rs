//! Captured traffic of RC QPs, one conversation per requester and responder.

use std::collections::BTreeMap;
use std::net::IpAddr;
use trunkline_testkit::captures::Captured;
use trunkline_wire::{
    Aeth, AtomicEth, Bth, Frame, Ieth, ImmDt, Operation, Packet, Position, Qpn, Reth, Transport,
    parse_datagram,
};

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
pub(crate) fn conversations(frames: &[Captured]) -> Vec<Conversation> {
    let mut found: BTreeMap<(u16, IpAddr), Conversation> = BTreeMap::new();
    for Captured { time_ns, bytes } in frames {
        let frame = Frame::parse(bytes).expect("captured frames parse");
        let Some(roce) = frame.roce() else { continue };
        assert!(roce.icrc_ok(), "captured ICRCs are right");
        let seen = Seen::new(*time_ns, roce.datagram);
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
pub(crate) fn datagrams(
    frames: &[Captured],
    transport: Transport,
) -> Vec<(trunkline_wire::Path, Seen)> {
    let mut found = Vec::new();
    for Captured { time_ns, bytes } in frames {
        let frame = Frame::parse(bytes).expect("captured frames parse");
        let Some(roce) = frame.roce() else { continue };
        let seen = Seen::new(*time_ns, roce.datagram);
        if seen.bth.opcode.transport() == transport && seen.bth.dest_qp != Qpn::GSI {
            found.push((roce.path, seen));
        }
    }
    found
}
