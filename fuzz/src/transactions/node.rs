//! The engine under fuzz with the program above it.

use super::peer::{self, Peer};
use crate::input::Input;
use crate::memory::{Outbox, Region};
use crate::requests;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use trunkline_conn::ingress::{Arrival, Identification};
use trunkline_conn::mem::{Access, PdId, Sge};
use trunkline_conn::secret::Secret;
use trunkline_conn::time::{Instant, SECOND};
use trunkline_conn::work::{Completion, SendFlags};
use trunkline_qpmap::cq::CompletionQueue;
use trunkline_qpmap::queue::SharedRecvQueue;
use trunkline_qpmap::wqe::{RecvWr, SendWr};
use trunkline_qpmap::{
    Attributes, Config, ConnId, ConnectionParams, Engine, PeerIdentity, Platform, QpInit, QpModify,
    QpQueues, QpState, QpType, Tenant, VerbsError,
};
use trunkline_wire::{Path, Qpn, Rkey, Workers};

type RingMemory = Arc<[AtomicU64]>;

/// Longest datagram: small, so that messages take several packets.
pub(super) const DATAGRAM: u32 = 512;
/// QPs of the node that the peer talks to.
pub(super) const QPS: usize = 4;
/// One of them takes its receives from an SRQ, one gives its peer no right at all and has a
/// protection domain of its own, and one is app-managed.
const SHARED: usize = 1;
const CLOSED: usize = 2;
const MANAGED: usize = 3;
/// Connections to that peer. Behind them is one to another peer, who says nothing but what is
/// right.
pub(super) const CONNECTIONS: usize = 2;
/// Bytes of the region that peers may reach, and of the others.
pub(super) const REGION: usize = 1024;
/// Bytes of the local region that requests name; the rest stays as it is.
const USED: usize = 512;
/// Datagrams the port takes per turn.
const ROOM: usize = 64;
/// Packets in flight on a connection: the fewest there can be.
const WINDOW: u32 = 64;
/// What peers may do to the region that they may reach: everything.
const OPEN: Access = Access::ALL.with(Access::REMOTE_INVALIDATE);
/// Bit of a cookie that tells receives from sends.
const RECEIVE: u64 = 1 << 63;

pub(super) struct Plain;

impl Platform for Plain {
    type RegionMemory = Region;
    type RingMemory = RingMemory;
}

pub(super) struct Node {
    pub(super) engine: Engine<Plain>,
    pub(super) now: Instant,
    pub(super) qps: Vec<Arc<QpQueues<RingMemory>>>,
    pub(super) conns: Vec<ConnId>,
    pub(super) open: Rkey,
    /// Local, without rights, of other domains.
    pub(super) hidden: [Rkey; 4],
    /// The QP of the other peer: whatever this one says, it lives on.
    pub(super) witness: Arc<QpQueues<RingMemory>>,
    cq_index: u32,
    cq: Arc<CompletionQueue<RingMemory>>,
    outbox: Outbox,
    /// Datagrams that come one right after another.
    arriving: Vec<(Path, bool, Vec<u8>)>,
    pds: [PdId; 3],
    srq: Arc<SharedRecvQueue<RingMemory>>,
    srq_index: u32,
    open_region: Region,
    /// Read by the program, never by peers; beyond `USED` not even by the program.
    local: Region,
    local_key: Rkey,
    /// Without remote rights, in another protection domain, and in that of QPs without rights.
    secrets: [Region; 3],
    /// Cookies posted and not completed, by QP: sends and receives.
    posted: Vec<[VecDeque<u64>; 2]>,
    next: u64,
}

/// What a QP is made with.
fn init(pd: PdId, kind: QpType, cq: u32, srq: Option<u32>) -> QpInit {
    QpInit {
        pd,
        kind,
        send_cq: cq,
        recv_cq: cq,
        srq,
        max_send_wr: 16,
        max_recv_wr: 16,
        max_send_sge: 4,
        max_recv_sge: 4,
        max_inline: 64,
        signal_all: true,
        complete_last_wqe: false,
        tenant: Tenant::OWN,
    }
}

impl Node {
    /// Takes a region back; no other engine uses it.
    fn deregister(&mut self, key: Rkey) -> Result<Region, VerbsError> {
        let mut taken = self.engine.regions().unregister(key)?;
        self.engine.quiesce(&mut taken);
        Ok(taken.reclaim().expect("no other engine has it"))
    }

    pub(super) fn new(seed: u64) -> Self {
        let config = Config {
            address: peer::NODE,
            datagram: DATAGRAM,
            window: WINDOW,
            staging_bytes: 8 << 10,
            secret: Secret::from_seed(seed),
            ..Config::default()
        };
        let mut engine = Engine::new(config);
        let pds = [(); 3].map(|()| engine.regions().alloc_pd());
        let regions = [
            (pds[0], Region::new(0x1_0000, REGION), OPEN),
            (
                pds[0],
                Region::new(0x2_0000, REGION).marked(),
                Access::LOCAL_WRITE,
            ),
            (
                pds[0],
                Region::new(0x3_0000, REGION).marked(),
                Access::LOCAL_READ,
            ),
            (pds[1], Region::new(0x4_0000, REGION).marked(), Access::ALL),
            (pds[2], Region::new(0x5_0000, REGION).marked(), Access::ALL),
        ];
        regions[1].1.clear(USED);
        let keys = regions.each_ref().map(|(pd, region, access)| {
            let made = engine.regions().register(*pd, region.clone(), *access);
            made.expect("a region like others").rkey
        });
        let [
            (_, open_region, _),
            (_, local, _),
            (_, first, _),
            (_, second, _),
            (_, third, _),
        ] = regions;
        let (cq_index, cq) = engine.create_cq(1024, None).expect("a depth like others");
        let made = engine.create_srq(pds[0], 16, 4);
        let (srq_index, srq) = made.expect("sizes like others");
        let witness = engine.create_qp(&init(pds[2], QpType::Rc, cq_index, None));
        let mut node = Self {
            witness: witness.expect("a QP like others"),
            arriving: Vec::new(),
            srq,
            srq_index,
            engine,
            now: Instant::from_nanos(SECOND),
            qps: Vec::new(),
            conns: Vec::new(),
            open: keys[0],
            hidden: [keys[1], keys[2], keys[3], keys[4]],
            cq_index,
            cq,
            outbox: Outbox::new(ROOM, DATAGRAM as usize),
            pds,
            open_region,
            local,
            local_key: keys[1],
            secrets: [first, second, third],
            posted: Vec::new(),
            next: 0,
        };
        for index in 0..QPS {
            let qp = node.create(index);
            node.qps.push(qp);
            node.posted.push(Default::default());
        }
        node
    }

    fn create(&mut self, index: usize) -> Arc<QpQueues<RingMemory>> {
        let pd = self.pds[if index == CLOSED { 2 } else { 0 }];
        let kind = match index {
            MANAGED => QpType::Src,
            _ => QpType::Rc,
        };
        let srq = (index == SHARED).then_some(self.srq_index);
        let made = self.engine.create_qp(&init(pd, kind, self.cq_index, srq));
        made.expect("a QP like others")
    }

    /// The QP of the other peer, which never gives up.
    pub(super) fn connect_witness(&mut self) {
        let attributes = Attributes {
            remote: peer::other_gid(),
            dest_qpn: peer::qpn(QPS),
            timeout: 0,
            ..Attributes::default()
        };
        let access = Access::LOCAL_READ;
        for step in [
            QpModify::Init { access },
            QpModify::Rtr(attributes),
            QpModify::Rts(attributes),
        ] {
            let changed = self.engine.modify_qp(self.witness.qpn, &step);
            changed.expect("a legal step");
        }
    }

    /// Takes the QP through its states, towards the peer's QP of the same index.
    pub(super) fn connect(&mut self, index: usize) {
        let attributes = Attributes {
            remote: peer::gid(),
            dest_qpn: peer::qpn(index),
            rnr_retry: 3,
            ..Attributes::default()
        };
        let access = match index {
            CLOSED => Access::LOCAL_READ,
            _ => Access::ALL,
        };
        for step in [
            QpModify::Init { access },
            QpModify::Rtr(attributes),
            QpModify::Rts(attributes),
        ] {
            // A step that the state does not allow is an error, and one more thing to be survived.
            let _ = self.engine.modify_qp(self.qps[index].qpn, &step);
        }
        if index == MANAGED {
            let (qpn, conn) = (self.qps[index].qpn, self.conns[0]);
            let _ = self.engine.add_route(qpn, conn, peer::qpn(index));
        }
    }

    /// Opens connection `index` with the numbers of the peer.
    pub(super) fn open(&mut self, index: usize, first: u64) -> (Qpn, u32) {
        let (local_id, local_token) = self.engine.draw_connection().expect("there are numbers");
        let params = ConnectionParams {
            local_id,
            local_token,
            remote_id: peer::connection(index),
            remote_token: peer::TOKEN,
            first_tx: first,
            first_rx: first,
            datagram: DATAGRAM,
            window: WINDOW,
            control: None,
            traffic_class: 0,
            weight: 1,
            source_ports: 1,
            private: false,
            packs: index.is_multiple_of(2),
        };
        let other = index == CONNECTIONS;
        let identity = PeerIdentity {
            guid: 2 + u64::from(other),
            epoch: 1,
            address: if other {
                peer::other_gid()
            } else {
                peer::gid()
            },
            workers: Workers::ONE,
        };
        let opened = self.engine.add_connection(self.now, identity, &params);
        let id = opened.expect("the peer is who it was");
        if index < self.conns.len() {
            self.conns[index] = id;
        } else {
            self.conns.push(id);
        }
        (local_id, local_token)
    }

    /// Something the program does.
    pub(super) fn step(&mut self, op: u8, input: &mut Input<'_>, peer: &mut Peer) {
        let index = usize::from(input.byte()) % QPS;
        match op % 8 {
            0..3 => self.post_send(index, input),
            3 | 4 => self.post_receive(index, input),
            5 | 6 => self.pass(u64::from(input.u16()) << (input.byte() & 15)),
            _ => self.change(index, input, peer),
        }
    }

    fn local_sges(&self, input: &mut Input<'_>) -> Vec<Sge> {
        requests::sges(0x2_0000, USED, self.local_key, input)
    }

    fn cookie(&mut self, kind: u64) -> u64 {
        self.next += 1;
        self.next | kind
    }

    fn post_send(&mut self, index: usize, input: &mut Input<'_>) {
        let op = requests::operation(input);
        let fence = u32::from(input.byte()) & SendFlags::FENCE.0;
        let sges = self.local_sges(input);
        let wr_id = self.cookie(0);
        let flags = SendFlags::SIGNALED.with(SendFlags(fence));
        let request = SendWr {
            wr_id,
            op,
            flags,
            sges: &sges,
            inline: None,
            route: 0,
        };
        let qp = &self.qps[index];
        if qp.send.post(&[request]).is_ok() {
            self.engine.doorbells().ring(qp.index);
            self.posted[index][0].push_back(wr_id);
        }
    }

    fn post_receive(&mut self, index: usize, input: &mut Input<'_>) {
        let sges = self.local_sges(input);
        let wr_id = self.cookie(RECEIVE);
        let own = self.qps[index].receive.as_ref();
        let request = [RecvWr { wr_id, sges: &sges }];
        let posted = own.map_or_else(|| self.srq.post(&request), |own| own.post(&request));
        if posted.is_ok() {
            self.engine.doorbells().ring(self.qps[index].index);
            self.posted[index][1].push_back(wr_id);
        }
    }

    /// Lets time pass, timers in their order.
    pub(super) fn pass(&mut self, ns: u64) {
        let end = self.now + ns;
        for _ in 0..16 {
            match self.engine.poll_timeout() {
                Some(at) if at <= end => self.now = self.now.max(at),
                _ => break,
            }
            self.engine.handle_timeout(self.now);
        }
        self.now = end;
        self.engine.handle_timeout(end);
    }

    /// What programs and nodes do seldom.
    fn change(&mut self, index: usize, input: &mut Input<'_>, peer: &mut Peer) {
        let conn = usize::from(input.byte()) % CONNECTIONS;
        let qpn = self.qps[index].qpn;
        match input.byte() % 9 {
            0 => {
                // Flushed requests are reported: nothing changes for the model.
                let _ = self.engine.modify_qp(qpn, &QpModify::Error);
            }
            1 => {
                let _ = self.engine.modify_qp(qpn, &QpModify::Reset);
                self.forget(index);
                self.connect(index);
            }
            2 => {
                self.engine.destroy_qp(qpn).expect("the QP is there");
                self.forget(index);
                self.qps[index] = self.create(index);
                self.connect(index);
            }
            3 => {
                let _ = self.engine.rebind(qpn, self.conns[conn]);
            }
            4 => {
                let _ = self.engine.rebind_route(qpn, 1, self.conns[conn]);
            }
            5 => self.engine.close_connection(self.conns[conn]),
            6 => peer.open(self, conn),
            7 => {
                // A SEND with invalidate may have been quicker.
                let _ = self.deregister(self.open);
                let region = self.open_region.clone();
                let made = self.engine.regions().register(self.pds[0], region, OPEN);
                self.open = made.expect("a key").rkey;
            }
            _ => {
                let _ = self.engine.modify_qp(qpn, &QpModify::Drain);
            }
        }
    }

    /// What a QP had posted is not reported any more, but for what is still in its SRQ.
    fn forget(&mut self, index: usize) {
        let left = match index {
            SHARED => self.srq.posted() as usize,
            _ => 0,
        };
        let [sends, receives] = &mut self.posted[index];
        sends.clear();
        receives.drain(..receives.len() - left);
    }

    /// A datagram of the peer's comes, right behind those before it.
    pub(super) fn receive(&mut self, path: Path, ce: bool, datagram: &[u8]) {
        self.arriving.push((path, ce, datagram.to_vec()));
    }

    /// Hands over the datagrams that came one right after another.
    pub(super) fn take_in(&mut self) {
        let before = self.engine.counters().received;
        let count = self.arriving.len() as u64;
        let mut burst = self.engine.burst(self.now);
        for (path, ce, datagram) in self.arriving.drain(..) {
            let arrival = Arrival {
                path,
                identification: Identification::Predicted(0),
                ce,
                waited_ns: 0,
            };
            burst.handle_datagram(&arrival, &datagram);
        }
        assert_eq!(self.engine.counters().received, before + count);
    }

    /// The engine's turn. Gives what it sent.
    pub(super) fn turn(&mut self) -> Vec<(Path, Vec<u8>)> {
        self.take_in();
        self.engine.handle_doorbells();
        self.engine.poll_transmit(self.now, &mut self.outbox);
        self.poll();
        while self.engine.poll_event().is_some() {}
        for secret in &self.secrets {
            assert!(
                secret.is_marked_from(0),
                "memory without rights was written"
            );
        }
        assert!(
            self.local.is_marked_from(USED),
            "memory no request names was written"
        );
        let state = self.witness.state();
        assert_eq!(state, QpState::Rts, "another peer's QP is harmed");
        self.outbox.take()
    }

    /// Completions come once, in the order of posting, for what was posted.
    fn poll(&mut self) {
        self.engine.publish();
        let mut out = [Completion::BLANK; 64];
        loop {
            let count = self.cq.poll(&mut out).expect("the CQ is large enough");
            if count == 0 {
                break;
            }
            for completion in &out[..count] {
                let index = self.qps.iter().position(|qp| qp.qpn == completion.qpn);
                let index = index.expect("a completion of a QP that is not there");
                let side = usize::from(completion.wr_id & RECEIVE != 0);
                let expected = self.posted[index][side].pop_front();
                assert_eq!(
                    expected,
                    Some(completion.wr_id),
                    "out of order: {completion:?}"
                );
            }
        }
    }

    /// Nothing may be left when all is taken down.
    pub(super) fn end(mut self) {
        for _ in 0..8 {
            self.pass(SECOND);
            self.turn();
        }
        for index in 0..QPS {
            self.engine
                .destroy_qp(self.qps[index].qpn)
                .expect("the QP is there");
        }
        let witness = self.witness.qpn;
        self.engine.destroy_qp(witness).expect("the QP is there");
        self.engine
            .destroy_srq(self.srq_index)
            .expect("nobody uses the SRQ");
        for id in self.engine.connections() {
            self.engine.close_connection(id);
        }
        assert!(self.engine.connections().is_empty());
        self.engine
            .destroy_cq(self.cq_index)
            .expect("nobody uses the CQ");
        let _ = self.deregister(self.open);
        for key in self.hidden {
            self.deregister(key)
                .expect("nobody but the program may invalidate it");
        }
        for pd in self.pds {
            self.engine
                .regions()
                .dealloc_pd(pd)
                .expect("nothing belongs to the PD");
        }
        self.engine.poll_transmit(self.now, &mut self.outbox);
    }
}
