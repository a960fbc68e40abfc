//! The pair of QPs that a packet of a shared connection is for.

use super::packet;
use trunkline_wire::{BthView, Control, ControlKind, Opcode, Qpn, Record, Records, SrcExt};

/// What one QP sends to another, and the nodes that they are at.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Flow {
    /// Node of the QP that sends, and of the other one.
    pub(crate) nodes: (usize, usize),
    /// Number of the QP that sends, and of the other one.
    pub(crate) qps: (Qpn, Qpn),
}

impl Flow {
    /// What the other QP sends to this one.
    pub(crate) const fn reverse(self) -> Self {
        Self {
            nodes: (self.nodes.1, self.nodes.0),
            qps: (self.qps.1, self.qps.0),
        }
    }
}

/// A packet of a shared connection, or a record of one that stands for a packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shared {
    pub(super) opcode: Opcode,
    /// Number of the receiver's end of the connection.
    pub(super) conn: Qpn,
    pub(super) flow: Flow,
    pub(super) ext: SrcExt,
    /// Bytes from BTH to ICRC.
    pub(super) length: u64,
}

impl Shared {
    /// Reads what a datagram between two nodes begins with.
    fn read(nodes: (usize, usize), datagram: &[u8]) -> Option<Self> {
        let (bth, rest) = BthView::split(datagram).ok()?;
        let opcode = bth.opcode();
        if !opcode.is_src() {
            return None;
        }
        let (ext, _) = SrcExt::read(rest).ok()?;
        Some(Self {
            opcode,
            conn: bth.dest_qp(),
            flow: Flow {
                nodes,
                qps: (ext.src_qp, ext.dest_qp),
            },
            ext,
            length: datagram.len() as u64,
        })
    }

    /// Reads a datagram between two nodes: each packet that it stands for, with what follows the
    /// headers of answers and control messages.
    pub(super) fn all(nodes: (usize, usize), datagram: &[u8]) -> Vec<(Self, Vec<u8>)> {
        let Some(whole) = Self::read(nodes, datagram) else {
            return Vec::new();
        };
        let content = packet::content(datagram).unwrap_or_default();
        if whole.opcode != Opcode::SRC_PACKED {
            return vec![(whole, whole.said(content))];
        }
        let records = Records::of(content).flatten();
        let stands_for = records.filter_map(|at| {
            let record = Record::parse(at.header).ok()?;
            let ext = SrcExt {
                last: true,
                generation: record.generation,
                src_qp: record.src_qp,
                replay_epoch: record.replay_epoch,
                dest_qp: record.dest_qp,
                msn: record.msn,
                offset: record.offset,
                ..whole.ext
            };
            let packet = Self {
                opcode: record.opcode,
                flow: Flow {
                    nodes,
                    qps: (record.src_qp, record.dest_qp),
                },
                ext,
                length: (Record::LEN + at.further.len() + at.payload.len()) as u64,
                ..whole
            };
            Some((packet, packet.said(at.payload)))
        });
        stands_for.collect()
    }

    fn said(&self, content: &[u8]) -> Vec<u8> {
        match self.opcode {
            Opcode::SRC_CONTROL | Opcode::SRC_ANSWERS => content.to_vec(),
            _ => Vec::new(),
        }
    }

    /// The flows that it asks its peer to agree to, with the epoch that each begins; `content` is
    /// what follows the headers.
    pub(super) fn binds(&self, content: &[u8]) -> Vec<(Flow, u8)> {
        let entries = match self.opcode {
            Opcode::SRC_CONTROL => Control::entries(content).ok(),
            _ => None,
        };
        let entries = entries.into_iter().flatten().flatten();
        let binds = entries.filter(|entry| entry.kind == ControlKind::Bind);
        let flow = |entry: Control| Flow {
            qps: (entry.src_qp, entry.dest_qp),
            ..self.flow
        };
        binds
            .map(|entry| (flow(entry), entry.replay_epoch))
            .collect()
    }

    /// Whether it asks something of the other QP.
    pub(super) const fn is_request(&self) -> bool {
        matches!(self.opcode.0, 0xc0..=0xc5 | 0xc7 | 0xc8)
    }

    /// Whether it belongs to its flow, as requests and the data that come back do.
    pub(super) const fn is_of_flow(&self) -> bool {
        matches!(self.opcode.0, 0xc0..=0xc9)
    }
}
