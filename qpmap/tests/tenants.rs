//! Tenants of an engine share each connection by weight, whatever number of QPs they have.

use crate::common::{Node, Pair, RingMemory};
use std::collections::BTreeMap;
use std::sync::Arc;
use trunkline_conn::control::CongestionControl;
use trunkline_conn::time::{MICROSECOND, MILLISECOND};
use trunkline_conn::work::{Remote, SendOp, Status};
use trunkline_qpmap::{QpQueues, Tenant, VerbsError};
use trunkline_wire::{Bth, Opcode, SrcExt};

type Qp = Arc<QpQueues<RingMemory>>;

/// Bytes of a WRITE, and how many each QP posts: more than a test sends.
const LARGE: u32 = 512 << 10;
const POSTED: u64 = 8;

/// A connection, and QPs of tenants that send over it from node 1.
struct Scene {
    pair: Pair,
    /// By the number that packets for its peer carry.
    tenants: BTreeMap<u32, Tenant>,
    qps: Vec<(Tenant, Qp)>,
}

impl Scene {
    /// Tenants of such weights with so many QPs each, all bound.
    fn new(tenants: &[(u32, usize)]) -> Self {
        let mut pair = Pair::new(1);
        pair.control = Some(CongestionControl::None);
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
        }
    }

    fn post(&self, qp: &Qp, id: u64, bytes: u32) {
        let Node { buffer, key, .. } = &self.pair.nodes[0];
        let target = Remote {
            addr: buffer.addr,
            rkey: *key,
        };
        let from = [self.pair.sge(1, 0, bytes)];
        self.pair.post(1, qp, id, SendOp::Write(target), &from);
    }

    /// All QPs of a tenant have something to send for longer than a test takes.
    fn load(&self, tenant: Tenant) {
        for (_, qp) in self.qps.iter().filter(|(of, _)| *of == tenant) {
            (0..POSTED).for_each(|id| self.post(qp, id, LARGE));
        }
    }

    /// A round of both nodes. Gives the packets of data from node 1: whose, and their bytes.
    fn round(&mut self) -> Vec<(Tenant, usize)> {
        self.pair.step(0);
        let sent = self.pair.sent_by(1);
        self.pair.deliver(0, &sent);
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

#[test]
fn a_thousand_qps_of_one_tenant_get_what_one_of_another_gets() {
    for weights in [[1, 1], [3, 1], [2, 7]] {
        let mut scene = Scene::new(&[(weights[0], 1000), (weights[1], 1)]);
        let [many, one] = [0, 1000].map(|at| scene.qps[at].0);
        // The one first: its WRITEs last longer than the run.
        [one, many].iter().for_each(|tenant| scene.load(*tenant));
        let mut sent = BTreeMap::<u32, usize>::new();
        let mut total = 0;
        while total < 3 << 20 {
            for (tenant, bytes) in scene.round() {
                *sent.entry(u32::from(tenant == one)).or_default() += bytes;
                total += bytes;
            }
        }
        let all = (weights[0] + weights[1]) as usize;
        for (tenant, bytes) in sent {
            let due = total * weights[tenant as usize] as usize / all;
            assert!(
                bytes.abs_diff(due) <= 40 << 10,
                "{bytes} of {due}, {weights:?}"
            );
        }
    }
}

#[test]
fn a_small_message_waits_for_a_few_packets_of_each_other_tenant() {
    let mut scene = Scene::new(&[(1, 500), (1, 500), (1, 1)]);
    let [first, second, small] = [0, 500, 1000].map(|at| scene.qps[at].clone());
    [first.0, second.0]
        .iter()
        .for_each(|tenant| scene.load(*tenant));
    scene.pair.room = Some(4);
    (0..50).for_each(|_| drop(scene.round()));
    for id in 0..50 {
        scene.post(&small.1, id, 64);
        let mut before = BTreeMap::<bool, usize>::new();
        'waiting: loop {
            for (tenant, _) in scene.round() {
                if tenant == small.0 {
                    break 'waiting;
                }
                *before.entry(tenant == first.0).or_default() += 1;
            }
        }
        // A turn of 4,096 bytes, of which the one before may have left a flow's turn.
        let most = before.values().max().copied().unwrap_or(0);
        assert!(most <= 10, "{most} packets of one tenant went before it");
        (0..20).for_each(|_| drop(scene.round()));
    }
}

#[test]
fn a_tenant_whose_qps_are_destroyed_while_they_send_leaves_nothing_behind() {
    let mut scene = Scene::new(&[(1, 40), (5, 1)]);
    let [gone, stays] = [0, 40].map(|at| scene.qps[at].0);
    [gone, stays].iter().for_each(|tenant| scene.load(*tenant));
    (0..20).for_each(|_| drop(scene.round()));
    let users = 40;
    let engine = &mut scene.pair.nodes[1].engine;
    let busy = engine.remove_tenant(gone);
    assert_eq!(
        busy,
        Err(VerbsError::Busy {
            what: "tenant",
            users
        })
    );
    for (_, qp) in scene.qps.iter().filter(|(of, _)| *of == gone) {
        engine.destroy_qp(qp.qpn).expect("it is there");
    }
    engine.remove_tenant(gone).expect("it has no QP any more");
    engine.set_tenant_weight(stays, 1).expect("it is there");
    let mut others = 0;
    for _ in 0..2000 {
        let sent = scene.round();
        others += sent.iter().filter(|(tenant, _)| *tenant == gone).count();
    }
    assert_eq!(others, 0, "packets of QPs that are gone");
    scene.pair.run(100 * MILLISECOND);
    let done = scene.pair.completions(1);
    assert_eq!(done.len() as u64, POSTED);
    assert!(done.iter().all(|done| done.status == Status::Success));
    let live = scene.pair.nodes[1].engine.live_objects();
    assert_eq!((live.flows, live.requests), (1, 0));
}

#[test]
fn a_qp_belongs_to_a_tenant_that_is_there() {
    let mut pair = Pair::new(1);
    let engine = &mut pair.nodes[1].engine;
    let tenant = engine.add_tenant(64).expect("the largest weight");
    pair.tenants[1] = tenant;
    let [_, qp] = pair.connected();
    let engine = &mut pair.nodes[1].engine;
    let init = engine.query_qp_init(qp.qpn).expect("it is there");
    assert_eq!(init.tenant, tenant);
    engine.destroy_qp(qp.qpn).expect("it is there");
    engine.remove_tenant(tenant).expect("nobody uses it");
    let refused = engine.create_qp(&init).map(|qp| qp.qpn);
    assert_eq!(refused, Err(VerbsError::InvalidArgument { what: "tenant" }));
}
