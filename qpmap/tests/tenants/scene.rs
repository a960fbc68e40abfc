//! Tenants of a node that send to another one, and the line between them.

use crate::common::{Node, Pair, RingMemory};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use trunkline_conn::control::CongestionControl;
use trunkline_conn::time::{Instant, MICROSECOND, MILLISECOND};
use trunkline_conn::work::{Remote, SendOp};
use trunkline_qpmap::{QpQueues, Tenant};
use trunkline_wire::{Bth, Opcode, Path, SrcExt};

pub(super) type Qp = Arc<QpQueues<RingMemory>>;

/// Bytes of a WRITE, and how many each QP posts: more than a test sends.
pub(super) const LARGE: u32 = 512 << 10;
pub(super) const POSTED: u64 = 8;

/// Connections, and QPs of tenants that send over them from node 1.
pub(super) struct Scene {
    pub(super) pair: Pair,
    /// By the number that packets for its peer carry.
    pub(super) tenants: BTreeMap<u32, Tenant>,
    pub(super) qps: Vec<(Tenant, Qp)>,
    /// Between the nodes; `None`: what is sent arrives at once.
    pub(super) line: Option<Line>,
}

/// A line that all data share, with a queue in front of it.
#[derive(Default)]
pub(super) struct Line(VecDeque<(Instant, Datagram)>);

pub(super) type Datagram = (Path, Vec<u8>);

impl Line {
    /// It is so long, and takes a packet each microsecond.
    const DELAY_NS: u64 = 40 * MICROSECOND;

    pub(super) fn pass(&mut self, now: Instant, datagrams: Vec<Datagram>) -> Vec<Datagram> {
        for datagram in datagrams {
            let free = self
                .0
                .back()
                .map_or(now, |(at, _)| (*at + MICROSECOND).max(now));
            self.0.push_back((free, datagram));
        }
        let arrived = |(left, _): &(Instant, _)| *left + Self::DELAY_NS <= now;
        let arrived = self.0.iter().take_while(|next| arrived(next)).count();
        self.0
            .drain(..arrived)
            .map(|(_, datagram)| datagram)
            .collect()
    }
}

impl Scene {
    /// Tenants of such weights with so many QPs each, all bound to one connection.
    pub(super) fn new(tenants: &[(u32, usize)]) -> Self {
        Self::over(1, tenants)
    }

    /// The same of several connections: each next QP is bound to the one with the fewest.
    pub(super) fn over(connections: usize, tenants: &[(u32, usize)]) -> Self {
        Self::controlled(CongestionControl::None, connections, tenants)
    }

    pub(super) fn controlled(
        control: CongestionControl,
        connections: usize,
        tenants: &[(u32, usize)],
    ) -> Self {
        let mut pair = Pair::new(0);
        pair.control = Some(control);
        (0..connections).for_each(|_| pair.open());
        let (mut qps, mut by_peer) = (Vec::new(), BTreeMap::new());
        for (weight, count) in tenants {
            let added = pair.nodes[1].engine.add_tenant(*weight);
            pair.tenants[1] = added.expect("a weight that may be");
            for _ in 0..*count {
                let [peer, qp] = pair.connected();
                by_peer.insert(peer.qpn.get(), pair.tenants[1]);
                qps.push((pair.tenants[1], qp));
            }
        }
        pair.run(50 * MILLISECOND);
        Self {
            pair,
            tenants: by_peer,
            qps,
            line: None,
        }
    }

    pub(super) fn post(&self, qp: &Qp, id: u64, bytes: u32) {
        let Node { buffer, key, .. } = &self.pair.nodes[0];
        let target = Remote {
            addr: buffer.addr,
            rkey: *key,
        };
        let from = [self.pair.sge(1, 0, bytes)];
        self.pair.post(1, qp, id, SendOp::Write(target), &from);
    }

    /// All QPs of a tenant have something to send for longer than a test takes.
    pub(super) fn load(&self, tenant: Tenant) {
        for (_, qp) in self.qps.iter().filter(|(of, _)| *of == tenant) {
            (0..POSTED).for_each(|id| self.post(qp, id, LARGE));
        }
    }

    /// A round of both nodes. Gives the packets of data from node 1: whose, and their bytes.
    pub(super) fn round(&mut self) -> Vec<(Tenant, usize)> {
        let room = self.pair.room.take();
        self.pair.step(0);
        self.pair.room = room;
        let sent = self.pair.sent_by(1);
        let mut arriving = sent.clone();
        arriving.retain(|(_, datagram)| (self.pair.fate)(1, datagram) > 0);
        if let Some(line) = &mut self.line {
            arriving = line.pass(self.pair.now, arriving);
        }
        self.pair.deliver(0, &arriving);
        self.pair.now = self.pair.now + MICROSECOND;
        let data = sent.iter().filter_map(|(_, datagram)| {
            let (bth, rest) = Bth::read(datagram).expect("a BTH");
            let (ext, _) = SrcExt::read(rest).expect("an extension header");
            let tenant = self.tenants.get(&ext.dest_qp.get());
            (bth.opcode == Opcode::SRC_WRITE).then(|| (*tenant.expect("a peer"), datagram.len()))
        });
        data.collect()
    }
}

/// Bytes of each tenant.
#[derive(Default)]
pub(super) struct Sent {
    pub(super) bytes: BTreeMap<u16, usize>,
}

impl Scene {
    /// What tenants send until it is `total` bytes; they are called by their order.
    pub(super) fn run(&mut self, order: &[Tenant], total: usize) -> Sent {
        let mut sent = Sent::default();
        while sent.bytes.values().sum::<usize>() < total {
            for (tenant, bytes) in self.round() {
                let at = order.iter().position(|of| *of == tenant);
                *sent.bytes.entry(at.expect("a tenant") as u16).or_default() += bytes;
            }
        }
        sent
    }

    /// The tenants, in the order in which they were added.
    pub(super) fn order(&self) -> Vec<Tenant> {
        let mut order: Vec<Tenant> = self.qps.iter().map(|(of, _)| *of).collect();
        order.dedup();
        order
    }
}

impl Sent {
    /// Each has what its weight says of all, within a tenth of it.
    pub(super) fn check(&self, weights: &[u32], what: &str) {
        let (all, sum) = (
            self.bytes.values().sum::<usize>(),
            weights.iter().sum::<u32>(),
        );
        for (at, weight) in weights.iter().enumerate() {
            let bytes = self.bytes.get(&(at as u16)).copied().unwrap_or(0);
            let due = all * *weight as usize / sum as usize;
            assert!(
                bytes.abs_diff(due) <= due / 10,
                "{bytes} of {due}, {weights:?} {what}"
            );
        }
    }
}
