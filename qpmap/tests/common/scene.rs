//! A QP whose peer is a liar.

use super::liar::{LAST, Liar, entry, generation_of};
use super::{Pair, RingMemory};
use std::sync::Arc;
use trunkline_conn::host::QpEvent;
use trunkline_conn::time::MILLISECOND;
use trunkline_conn::work::{Remote, SendOp, Status};
use trunkline_qpmap::{Attributes, Counters, Event, FIRST_MSN, QpQueues, QpType};
use trunkline_wire::{Answer, Bth, ControlKind, Opcode, Path, Qpn, Reth, SrcExt, Syndrome, icrc};

/// The liar's QP.
pub(crate) const PEER: Qpn = Qpn::from_wire(5);
/// The life that it says to be in.
pub(crate) const LIFE: u32 = 1;
/// READs that its QP may have outstanding, unless a test says how many.
pub(crate) const READS: u8 = 16;

/// A QP of node 1 and one of a liar, bound to each other.
pub(crate) struct Scene {
    pub(crate) pair: Pair,
    pub(crate) liar: Liar,
    pub(crate) qp: Arc<QpQueues<RingMemory>>,
    /// The life that the node's QP is in.
    pub(crate) life: u32,
}

impl Scene {
    pub(crate) fn new() -> Self {
        Self::of(Pair::new(0))
    }

    pub(crate) fn of(pair: Pair) -> Self {
        Self::with_reads(pair, READS)
    }

    /// One whose QP may have so many READs outstanding.
    pub(crate) fn with_reads(pair: Pair, max_rd_atomic: u8) -> Self {
        let mut scene = Self::asking(pair, max_rd_atomic);
        let (qpn, life) = (scene.qp.qpn, scene.life);
        let binds = [
            entry(ControlKind::Bound, PEER.get(), qpn, life, LIFE),
            entry(ControlKind::Bind, PEER.get(), qpn, LIFE, 0),
        ];
        scene.liar.control(&mut scene.pair, &binds);
        let said = scene.liar.hears_control(&mut scene.pair);
        assert!(said.iter().any(|entry| entry.kind == ControlKind::Bound));
        scene
    }

    /// The node's QP has asked, and the liar has said nothing yet.
    pub(crate) fn asking(mut pair: Pair, max_rd_atomic: u8) -> Self {
        let mut liar = Liar::new(&mut pair, 9);
        let qp = pair.qp(1, QpType::Rc);
        let attributes = Attributes {
            remote: liar.address(),
            dest_qpn: PEER,
            max_rd_atomic,
            ..Attributes::default()
        };
        pair.take_to_rts(1, &qp, attributes, attributes);
        let life = liar.hears_control(&mut pair)[0].generation;
        Self {
            pair,
            liar,
            qp,
            life,
        }
    }

    /// Headers of a request that is all of its message: the first.
    pub(crate) fn ext(&self) -> SrcExt {
        SrcExt {
            generation: generation_of(LIFE, self.life),
            src_qp: PEER,
            dest_qp: self.qp.qpn,
            msn: FIRST_MSN,
            ..LAST
        }
    }

    pub(crate) fn say(&mut self, opcode: Opcode, ext: SrcExt, rest: &[u8]) {
        self.liar.say(&mut self.pair, opcode, ext, rest);
    }

    /// A packet in the middle of a message: its data stand behind a sum over its headers.
    pub(crate) fn streamed(&mut self, opcode: Opcode, ext: SrcExt, data: &[u8]) -> (Path, Vec<u8>) {
        let ext = SrcExt {
            last: false,
            header_crc: true,
            ..ext
        };
        let rest = [&[0; icrc::LEN], data].concat();
        let (path, mut datagram) = self.liar.packet(opcode, ext, &rest);
        let headers = Bth::LEN + SrcExt::LEN;
        let mut sum = icrc::IcrcSeed::new(&path).start(datagram.len(), 0);
        icrc::headers(&mut sum, &datagram[..headers]);
        datagram[headers..headers + icrc::LEN].copy_from_slice(&icrc::trailer(sum));
        icrc::seal(&path, 0, &mut datagram);
        (path, datagram)
    }

    /// Where `length` bytes from `offset` of the node's region are.
    pub(crate) fn reth(&self, offset: u64, length: u32) -> Reth {
        let node = &self.pair.nodes[1];
        Reth {
            va: node.buffer.addr + offset,
            rkey: node.key,
            length,
        }
    }

    /// Headers of a WRITE or READ, and some data.
    pub(crate) fn rest(reth: &Reth, data: &[u8]) -> Vec<u8> {
        [&reth.to_bytes()[..], data].concat()
    }

    pub(crate) fn answer(&mut self, syndrome: Syndrome, done: u32, replay_epoch: u8) {
        let entry = Answer {
            requester: self.qp.qpn,
            syndrome,
            msn: FIRST_MSN.wrapping_add(done),
            generation: generation_of(self.life, LIFE),
            replay_epoch,
            responder: PEER,
        };
        self.liar.answers(&mut self.pair, &[entry]);
    }

    pub(crate) fn post(&self, wr_id: u64, op: SendOp, offset: u64) {
        let place = self.pair.sge(1, offset, 8);
        self.pair.post(1, &self.qp, wr_id, op, &[place]);
    }

    /// Posts a READ of 8 bytes.
    pub(crate) fn read(&self, wr_id: u64, offset: u64) {
        let node = &self.pair.nodes[1];
        let from = Remote {
            addr: node.buffer.addr,
            rkey: node.key,
        };
        self.post(wr_id, SendOp::Read(from), offset);
    }

    /// Posts a READ to each of these places of the buffer, with cookies from `first` on. They all
    /// are asked for.
    pub(crate) fn post_reads(&mut self, first: u64, offsets: &[u64]) {
        for (wr_id, offset) in (first..).zip(offsets) {
            self.read(wr_id, *offset);
        }
        let asked = self.hears(Opcode::SRC_READ_REQ, MILLISECOND);
        assert_eq!(asked, offsets.len());
    }

    /// Says all data of the READ that is message `number`, from 0.
    pub(crate) fn data(&mut self, number: u32, replay_epoch: u8) {
        let ext = SrcExt {
            msn: FIRST_MSN.wrapping_add(number),
            replay_epoch,
            ..self.ext()
        };
        self.say(Opcode::SRC_READ_RESP, ext, &[7; 8]);
    }

    /// How many packets with this opcode the node sends within `ns`. All are acknowledged.
    pub(crate) fn hears(&mut self, opcode: Opcode, ns: u64) -> usize {
        let end = self.pair.now + ns;
        let mut count = 0;
        while self.pair.now < end {
            self.pair.now = self.pair.now + MILLISECOND;
            let heard = self.liar.hears(&mut self.pair);
            count += heard.iter().filter(|one| Opcode(one[0]) == opcode).count();
            self.say(Opcode::SRC_PING, LAST, &[]);
        }
        count
    }

    pub(crate) fn counters(&self) -> Counters {
        self.pair.nodes[1].engine.counters()
    }

    /// What the node's program is told of its QP.
    pub(crate) fn events(&mut self) -> Vec<QpEvent> {
        let engine = &mut self.pair.nodes[1].engine;
        let told = std::iter::from_fn(|| engine.poll_event());
        told.filter_map(|event| match event {
            Event::Qp { event, .. } if event != QpEvent::CommunicationEstablished => Some(event),
            _ => None,
        })
        .collect()
    }

    pub(crate) fn statuses(&self) -> Vec<Status> {
        let done = self.pair.completions(1);
        done.iter().map(|done| done.status).collect()
    }
}
