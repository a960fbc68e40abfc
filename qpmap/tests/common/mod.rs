//! Two engines joined by lists of datagrams, on a clock turned by hand.

pub(crate) mod liar;
pub(crate) mod managed;
pub(crate) mod rings;
pub(crate) mod scene;
pub(crate) mod watched;

pub(crate) use rings::RingMemory;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use trunkline_conn::control::CongestionControl;
use trunkline_conn::egress::{Egress, Slot};
use trunkline_conn::ingress::{Arrival, Identification};
use trunkline_conn::mem::{Access, AtomicOp, Order, PdId, RegionMemory, Sge, Unreachable};
use trunkline_conn::secret::Secret;
use trunkline_conn::time::Instant;
use trunkline_conn::work::{Completion, SendFlags, SendOp};
use trunkline_qpmap::cq::CompletionQueue;
use trunkline_qpmap::wqe::{RecvWr, SendWr};
use trunkline_qpmap::{
    Attributes, Config, ConnId, ConnectionParams, Engine, PeerIdentity, Platform, QpInit, QpModify,
    QpQueues, QpType, Tenant,
};
use trunkline_wire::{Crc, Path, Qpn, Rkey, Workers};

/// Memory at a made-up address.
#[derive(Clone, Debug)]
pub(crate) struct Buffer {
    pub(crate) addr: u64,
    pub(crate) bytes: Arc<Vec<AtomicU8>>,
    lock: Arc<Mutex<()>>,
    /// Bytes from here on are not there.
    end: Arc<AtomicUsize>,
    copied_in: Arc<Mutex<Vec<CopiedIn>>>,
}

/// Where bytes were copied in, and in which order.
pub(crate) type CopiedIn = (std::ops::Range<usize>, Order);

impl Buffer {
    pub(crate) fn new(addr: u64, len: usize) -> Self {
        let bytes = Arc::new((0..len).map(|_| AtomicU8::new(0)).collect());
        Self {
            addr,
            bytes,
            lock: Arc::default(),
            end: Arc::new(AtomicUsize::new(len)),
            copied_in: Arc::default(),
        }
    }

    /// What has been copied in since this was asked last.
    pub(crate) fn copied_in(&self) -> Vec<CopiedIn> {
        let mut copied = self.copied_in.lock().expect("no test panics with it");
        std::mem::take(&mut *copied)
    }

    /// Takes away the bytes from `offset` on.
    pub(crate) fn unmap(&self, offset: usize) {
        self.end.store(offset, Ordering::Relaxed);
    }

    /// Bytes of a range that are there.
    fn reach(&self, offset: usize, len: usize) -> Result<(), Unreachable> {
        let end = self.end.load(Ordering::Relaxed);
        (offset + len <= end).then_some(()).ok_or(Unreachable)
    }

    pub(crate) fn get(&self, offset: usize, len: usize) -> Vec<u8> {
        self.bytes[offset..offset + len]
            .iter()
            .map(|b| b.load(Ordering::Relaxed))
            .collect()
    }

    pub(crate) fn set(&self, offset: usize, data: &[u8]) {
        for (place, byte) in self.bytes[offset..].iter().zip(data) {
            place.store(*byte, Ordering::Relaxed);
        }
    }
}

impl RegionMemory for Buffer {
    fn addr(&self) -> u64 {
        self.addr
    }
    fn len(&self) -> usize {
        self.bytes.len()
    }
    fn copy_out(
        &self,
        offset: usize,
        out: &mut [u8],
        crc: Option<&mut Crc>,
    ) -> Result<(), Unreachable> {
        self.reach(offset, out.len())?;
        out.copy_from_slice(&self.get(offset, out.len()));
        if let Some(crc) = crc {
            crc.update(out);
        }
        Ok(())
    }
    fn copy_in(
        &self,
        offset: usize,
        data: &[u8],
        order: Order,
        crc: Option<&mut Crc>,
    ) -> Result<(), Unreachable> {
        let range = offset..offset + data.len();
        let mut copied = self.copied_in.lock().expect("no test panics with it");
        copied.push((range, order));
        // As a system call has it: what can be written is.
        let there = self.end.load(Ordering::Relaxed).saturating_sub(offset);
        self.set(offset, &data[..there.min(data.len())]);
        self.reach(offset, data.len())?;
        if let Some(crc) = crc {
            crc.update(data);
        }
        Ok(())
    }
    fn atomic(&self, offset: usize, op: AtomicOp) -> Result<u64, Unreachable> {
        self.reach(offset, 8)?;
        let _guard = self.lock.lock().expect("no test panics while it holds it");
        let before = u64::from_ne_bytes(self.get(offset, 8).try_into().expect("8 bytes"));
        self.set(offset, &op.after(before).to_ne_bytes());
        Ok(before)
    }
}

#[derive(Debug)]
pub(crate) struct Test;

impl Platform for Test {
    type RegionMemory = Buffer;
    type RingMemory = RingMemory;
}

/// Collects what an engine sends.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    pub(crate) sent: Vec<(Path, Vec<u8>)>,
    /// Datagrams it has room for; `None`: for all.
    pub(crate) room: Option<usize>,
    draft: Option<(Path, Vec<u8>)>,
}

impl Egress for Outbox {
    fn reserve(&mut self, path: &Path, length: usize) -> Option<Slot<'_>> {
        if self.room.is_some_and(|room| self.sent.len() >= room) {
            return None;
        }
        // Something else stood there before.
        let (_, bytes) = self.draft.insert((*path, vec![0xee; length]));
        Some(Slot {
            datagram: bytes,
            identification: 0,
        })
    }
    fn commit(&mut self) {
        self.sent.extend(self.draft.take());
    }
}

/// A node: engine, one region, one CQ.
pub(crate) struct Node {
    pub(crate) engine: Engine<Test>,
    pub(crate) pd: PdId,
    pub(crate) buffer: Buffer,
    pub(crate) key: Rkey,
    pub(crate) cq_index: u32,
    pub(crate) cq: Arc<CompletionQueue<RingMemory>>,
}

impl Node {
    /// Takes a region back; no other engine uses it.
    pub(crate) fn deregister(&mut self, key: Rkey) -> Buffer {
        let mut taken = self.engine.regions().unregister(key).expect("it is there");
        self.engine.quiesce(&mut taken);
        taken.reclaim().expect("no other engine has it")
    }
}

/// How often a datagram of node `0` or `1` arrives.
pub(crate) type Fate = Box<dyn FnMut(usize, &[u8]) -> usize>;

pub(crate) struct Pair {
    pub(crate) nodes: [Node; 2],
    pub(crate) conns: Vec<[ConnId; 2]>,
    pub(crate) now: Instant,
    /// Peers are ordinary RoCEv2 hosts.
    pub(crate) ibta: bool,
    /// Connections opened from now on belong to programs, not to the pools.
    pub(crate) private: bool,
    /// Peers of connections opened from now on know packets that several messages share.
    pub(crate) packs: bool,
    /// Over so many source ports connections opened from now on spread their packets.
    pub(crate) spread: u8,
    /// What QPs made from now on take receives from, by node.
    pub(crate) srqs: [Option<u32>; 2],
    /// Whom QPs made from now on belong to, by node.
    pub(crate) tenants: [Tenant; 2],
    /// Send requests that QPs made from now on have room for.
    pub(crate) depth: u32,
    datagram: u32,
    /// Decides the fate of each datagram: how often it arrives.
    pub(crate) fate: Fate,
    /// From which source ports packets come by another worker of the node that gets them.
    pub(crate) astray: Option<fn(u16) -> bool>,
    /// Datagrams that a port takes at once; `None`: any number.
    pub(crate) room: Option<usize>,
    /// Congestion control of connections opened from now on; `None`: the engine's.
    pub(crate) control: Option<CongestionControl>,
}

const DATAGRAM: u32 = 1024 + 80;
/// Number of the first packet in either direction.
const FIRST: u64 = 1 << 20;

/// A connection of the pool between two ends, each with its number and token.
pub(crate) fn params(local: (Qpn, u32), remote: (Qpn, u32)) -> ConnectionParams {
    ConnectionParams {
        local_id: local.0,
        local_token: local.1,
        remote_id: remote.0,
        remote_token: remote.1,
        first_tx: FIRST,
        first_rx: FIRST,
        datagram: DATAGRAM,
        window: 1024,
        control: None,
        traffic_class: 0,
        weight: 1,
        source_ports: 1,
        private: false,
        packs: false,
    }
}

impl Pair {
    pub(crate) fn new(connections: usize) -> Self {
        Self::with(connections, DATAGRAM)
    }

    /// On ports that carry `datagram` bytes at once.
    pub(crate) fn with(connections: usize, datagram: u32) -> Self {
        let staging_bytes = Config::default().staging_bytes;
        Self::with_staging(connections, datagram, staging_bytes)
    }

    /// And with so much room for packets that wait for an earlier one.
    pub(crate) fn with_staging(connections: usize, datagram: u32, staging_bytes: usize) -> Self {
        Self::configured(connections, datagram, |config| {
            config.staging_bytes = staging_bytes
        })
    }

    /// Of engines that `change` sets up.
    pub(crate) fn configured(
        connections: usize,
        datagram: u32,
        change: impl Fn(&mut Config),
    ) -> Self {
        let nodes = [1u8, 2].map(|i| {
            let address = std::net::IpAddr::from([10, 0, 0, i]);
            let mut config = Config {
                address,
                secret: Secret::from_seed(i.into()),
                datagram,
                ..Config::default()
            };
            change(&mut config);
            let mut engine = Engine::new(config);
            let pd = engine.regions().alloc_pd();
            let buffer = Buffer::new(u64::from(i) << 32, 1 << 20);
            let key = engine
                .regions()
                .register(pd, buffer.clone(), Access::ALL)
                .expect("a first region")
                .rkey;
            let (cq_index, cq) = engine.create_cq(4096, None).expect("a CQ");
            Node {
                engine,
                pd,
                buffer,
                key,
                cq_index,
                cq,
            }
        });
        let now = Instant::from_nanos(1_000_000);
        let mut pair = Self {
            nodes,
            conns: Vec::new(),
            now,
            ibta: false,
            private: false,
            packs: false,
            spread: 1,
            datagram,
            srqs: [None; 2],
            tenants: [Tenant::OWN; 2],
            depth: 64,
            fate: Box::new(|_, _| 1),
            astray: None,
            room: None,
            control: None,
        };
        for _ in 0..connections {
            pair.open();
        }
        pair
    }

    pub(crate) fn open(&mut self) {
        let ends = [0, 1].map(|i| self.nodes[i].engine.draw_connection().expect("a number"));
        let ids = [0, 1].map(|i| {
            let address = std::net::IpAddr::from([10, 0, 0, 2 - i as u8]).into();
            let params = ConnectionParams {
                first_tx: 0xff_fff0 + i as u64,
                first_rx: 0xff_fff0 + 1 - i as u64,
                datagram: self.datagram,
                control: self.control,
                private: self.private,
                packs: self.packs,
                source_ports: self.spread,
                ..params(ends[i], ends[1 - i])
            };
            let identity = PeerIdentity {
                guid: 10 - i as u64,
                epoch: 1,
                address,
                workers: Workers::ONE,
            };
            let now = self.now;
            self.nodes[i]
                .engine
                .add_connection(now, identity, &params)
                .expect("a connection")
        });
        self.conns.push(ids);
    }

    pub(crate) fn qp(&mut self, node: usize, kind: QpType) -> Arc<QpQueues<RingMemory>> {
        let Node {
            engine,
            pd,
            cq_index,
            ..
        } = &mut self.nodes[node];
        let init = QpInit {
            pd: *pd,
            kind,
            send_cq: *cq_index,
            recv_cq: *cq_index,
            srq: self.srqs[node],
            max_send_wr: self.depth,
            max_recv_wr: 64,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline: 64,
            signal_all: false,
            complete_last_wqe: false,
            tenant: self.tenants[node],
        };
        engine.create_qp(&init).expect("a QP")
    }

    pub(crate) fn connect(
        &mut self,
        node: usize,
        qp: &QpQueues<RingMemory>,
        peer: &QpQueues<RingMemory>,
    ) {
        let attributes = Attributes {
            remote: std::net::IpAddr::from([10, 0, 0, 2 - node as u8]).into(),
            dest_qpn: peer.qpn,
            ..Attributes::default()
        };
        self.take_to_rts(node, qp, attributes, attributes);
    }

    /// Takes a QP to RTS, with attributes of its own for either step.
    pub(crate) fn take_to_rts(
        &mut self,
        node: usize,
        qp: &QpQueues<RingMemory>,
        to_receive: Attributes,
        to_send: Attributes,
    ) {
        let engine = &mut self.nodes[node].engine;
        for step in [
            QpModify::Init {
                access: Access::ALL,
            },
            QpModify::Rtr(to_receive),
            QpModify::Rts(to_send),
        ] {
            engine.modify_qp(qp.qpn, &step).expect("a legal step");
        }
        if self.ibta {
            engine.peer_is_ibta(to_receive.remote);
        }
    }

    pub(crate) fn connected(&mut self) -> [Arc<QpQueues<RingMemory>>; 2] {
        let pair = [self.qp(0, QpType::Rc), self.qp(1, QpType::Rc)];
        self.connect(0, &pair[0], &pair[1]);
        self.connect(1, &pair[1], &pair[0]);
        pair
    }

    pub(crate) fn sge(&self, node: usize, offset: u64, length: u32) -> Sge {
        let Node { buffer, key, .. } = &self.nodes[node];
        Sge {
            addr: buffer.addr + offset,
            length,
            lkey: trunkline_wire::Lkey(key.0),
        }
    }

    pub(crate) fn post(
        &self,
        node: usize,
        qp: &QpQueues<RingMemory>,
        wr_id: u64,
        op: SendOp,
        sges: &[Sge],
    ) {
        let flags = SendFlags::SIGNALED;
        let request = SendWr {
            wr_id,
            op,
            flags,
            sges,
            inline: None,
            route: 0,
        };
        qp.send.post(&[request]).expect("room in the queue");
        self.nodes[node].engine.doorbells().ring(qp.index);
    }

    pub(crate) fn receive(&self, qp: &QpQueues<RingMemory>, wr_id: u64, sges: &[Sge]) {
        let queue = qp.receive.as_ref().expect("no SRQ here");
        queue
            .post(&[RecvWr { wr_id, sges }])
            .expect("room in the queue");
    }

    /// Carries packets to and fro until nobody has any, or time `limit` has passed.
    pub(crate) fn run(&mut self, limit_ns: u64) {
        let end = self.now + limit_ns;
        while self.now < end {
            let mut moved = false;
            for i in [0, 1] {
                moved |= self.step(i);
            }
            if !moved {
                let next = [0, 1].map(|i| self.nodes[i].engine.poll_timeout());
                let next = next.into_iter().flatten().min().unwrap_or(end);
                self.now = next.max(self.now + 1_000).min(end);
            } else {
                self.now = self.now + 1_000;
            }
        }
    }

    /// Gives node `i` one round.
    pub(crate) fn step(&mut self, i: usize) -> bool {
        let sent = self.sent_by(i);
        let moved = !sent.is_empty() || self.nodes[i].engine.is_busy();
        let mut arriving = Vec::new();
        for (path, datagram) in sent {
            let copies = (self.fate)(i, &datagram);
            arriving.extend(std::iter::repeat_n((path, datagram), copies));
        }
        self.deliver(1 - i, &arriving);
        moved
    }

    /// What node `i` sends in one round.
    pub(crate) fn sent_by(&mut self, i: usize) -> Vec<(Path, Vec<u8>)> {
        let mut outbox = Outbox {
            room: self.room,
            ..Outbox::default()
        };
        let engine = &mut self.nodes[i].engine;
        engine.handle_timeout(self.now);
        engine.handle_doorbells();
        engine.poll_transmit(self.now, &mut outbox);
        engine.publish();
        outbox.sent
    }

    /// Datagrams arrive at node `i`, one right after another.
    pub(crate) fn deliver(&mut self, i: usize, datagrams: &[(Path, Vec<u8>)]) {
        let engine = &mut self.nodes[i].engine;
        let is_astray = |path: &Path| self.astray.is_some_and(|is| is(path.src_port));
        // What came one right after another by the same worker.
        for run in datagrams.chunk_by(|(a, _), (b, _)| is_astray(a) == is_astray(b)) {
            let mut burst = match is_astray(&run[0].0) {
                true => engine.burst_handed_over(self.now),
                false => engine.burst(self.now),
            };
            for (path, datagram) in run {
                let arrival = Arrival {
                    path: *path,
                    identification: Identification::Predicted(0),
                    ce: false,
                    waited_ns: 0,
                };
                burst.handle_datagram(&arrival, datagram);
            }
        }
        engine.publish();
    }

    pub(crate) fn completions(&self, node: usize) -> Vec<Completion> {
        let mut out = vec![Completion::BLANK; 256];
        let count = self.nodes[node].cq.poll(&mut out);
        let count = count.expect("the CQ is large enough");
        out.truncate(count);
        out
    }
}
