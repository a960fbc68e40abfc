//! Two engines with shared connections between them, on a memory pair.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use trunkline_conn::control::CongestionControl;
use trunkline_conn::mem::{Access, PdId, RegionMemory, Sge};
use trunkline_conn::secret::Secret;
use trunkline_conn::time::{Instant, MICROSECOND};
use trunkline_conn::work::{SendFlags, SendOp};
use trunkline_dataplane::{MemoryConfig, MemoryPort, Port, Region};
use trunkline_qpmap::cq::CompletionQueue;
use trunkline_qpmap::wqe::{RecvWr, SendWr};
use trunkline_qpmap::{
    Attributes, Config, ConnId, ConnectionParams, Engine, PeerIdentity, Platform, QpInit, QpModify,
    QpQueues, QpType, Tenant,
};
use trunkline_wire::{Lkey, Qpn, Rkey, Workers};

/// The memory of rings.
pub type RingMemory = Arc<[AtomicU64]>;

/// ACK timeout of QPs with connections of their own: 4.096 us * 2^8, about 1 ms.
const TIMEOUT: u8 = 8;
/// Code of the shortest pause after receiver-not-ready, 10 us: the worst for neighbours.
const RNR_TIMER: u8 = 1;

/// What the engines are built on.
#[derive(Debug)]
pub struct Embedded;

impl Platform for Embedded {
    type RegionMemory = Region;
    type RingMemory = RingMemory;
}

/// Sizes of a pair.
#[derive(Clone, Copy, Debug)]
pub struct PairConfig {
    /// QPs at each end, all on one connection.
    pub qps: usize,
    /// Bytes of each end's region.
    pub bytes: usize,
    /// Largest datagram.
    pub datagram: u32,
    /// Packets in flight on the connection, and slots of the port.
    pub window: u32,
    /// Congestion control of the connection.
    pub control: CongestionControl,
    /// QPs have InfiniBand connections of their own instead of the shared one.
    pub plain: bool,
    /// Bytes of packets that may wait for an earlier one.
    pub staging_bytes: usize,
    /// Small messages may share packets.
    pub packs: bool,
}

impl Default for PairConfig {
    fn default() -> Self {
        Self {
            qps: 1,
            bytes: 1 << 20,
            datagram: 4096 + 80,
            window: 1024,
            control: CongestionControl::None,
            plain: false,
            staging_bytes: Config::default().staging_bytes,
            packs: true,
        }
    }
}

/// One end.
#[derive(Debug)]
pub struct End {
    /// The engine.
    pub engine: Engine<Embedded>,
    /// Its port.
    pub port: MemoryPort,
    /// Its protection domain.
    pub pd: PdId,
    /// Its memory.
    pub region: Region,
    /// Key of that.
    pub key: Rkey,
    /// Its one completion queue.
    pub cq: Arc<CompletionQueue<RingMemory>>,
    cq_index: u32,
    plain: bool,
}

impl End {
    /// A local buffer.
    pub fn sge_at(&self, offset: usize, length: u32) -> Sge {
        Sge {
            addr: self.region.addr() + offset as u64,
            length,
            lkey: Lkey(self.key.0),
        }
    }

    /// A local buffer at the start of the region.
    pub fn sge(&self, offset: usize, length: u32) -> Sge {
        self.sge_at(offset, length)
    }
}

/// Both.
#[derive(Debug)]
pub struct Ends {
    /// The two nodes.
    pub nodes: [End; 2],
    /// Connected QPs, one of each node.
    pub qps: Vec<[Arc<QpQueues<RingMemory>>; 2]>,
    /// Shared connections: their ends.
    pub conns: Vec<[ConnId; 2]>,
    config: PairConfig,
    clock: std::time::Instant,
    start: Instant,
}

impl Ends {
    /// Two engines, one connection, connected QPs.
    ///
    /// # Panics
    /// When memory runs out.
    pub fn new(config: &PairConfig) -> Self {
        let memory = MemoryConfig {
            slot_bytes: config.datagram as usize + 64,
            slots: config.window,
        };
        let (a, b) = MemoryPort::pair(memory);
        let mut ports = [Some(a), Some(b)];
        let mut nodes = [0usize, 1].map(|i| {
            let engine = Engine::new(Config {
                address: address(i),
                secret: Secret::from_seed(i as u64 + 1),
                datagram: config.datagram,
                staging_bytes: config.staging_bytes,
                ..Config::default()
            });
            let port = ports[i].take().expect("two ports");
            End::new(engine, port, config)
        });
        let now = Instant::from_nanos(1_000_000_000);
        let mut conns = Vec::new();
        if !config.plain {
            conns.push(join(&mut nodes, config, now, false));
        }
        let mut ends = Self {
            nodes,
            qps: Vec::new(),
            conns,
            config: *config,
            clock: std::time::Instant::now(),
            start: now,
        };
        for at in 0..config.qps {
            let inits = [0, 1].map(|i: usize| ends.nodes[i].qp_init());
            ends.add_qp(&inits);
            if at % 256 == 0 {
                ends.settle();
            }
        }
        ends.settle();
        ends.clock = std::time::Instant::now();
        ends
    }

    /// One more pair of connected QPs; gives its index.
    ///
    /// # Panics
    /// When an engine refuses what is asked for.
    pub fn add_qp(&mut self, inits: &[QpInit; 2]) -> usize {
        let create = |i: usize| self.nodes[i].engine.create_qp(&inits[i]).expect("a QP");
        let pair = [0, 1].map(create);
        self.qps.push(pair);
        let qp = self.qps.len() - 1;
        self.connect(qp);
        qp
    }

    /// One more shared connection; QPs are bound to it unless it is `private`.
    ///
    /// # Panics
    /// When an engine refuses it.
    pub fn open_connection(&mut self, now: Instant, private: bool) {
        let conn = join(&mut self.nodes, &self.config, now, private);
        self.conns.push(conn);
    }

    /// Connects a pair of QPs that are in the RESET state.
    fn connect(&mut self, qp: usize) {
        let numbers = [0, 1].map(|i: usize| self.qps[qp][i].qpn);
        for i in [0, 1] {
            self.nodes[i].connect(numbers[i], numbers[1 - i], address(1 - i));
        }
    }

    /// Takes a pair of QPs back to RESET, whatever state they are in, and connects them anew.
    /// Requests that were outstanding are forgotten.
    ///
    /// # Panics
    /// When a QP does not exist any more.
    pub fn reconnect(&mut self, qp: usize) {
        for i in [0, 1] {
            let number = self.qps[qp][i].qpn;
            let reset = self.nodes[i].engine.modify_qp(number, &QpModify::Reset);
            reset.expect("any state may be left this way");
        }
        self.connect(qp);
    }

    /// Lets all that is under way arrive, and its acknowledgements too.
    fn settle(&mut self) {
        for _ in 0..64 {
            self.start = self.start + 20 * MICROSECOND;
            self.turn_at(self.start);
        }
    }

    /// When setting up was over: the earliest time for [`turn_at`](Self::turn_at). Does not depend
    /// on how long it really took.
    pub const fn start(&self) -> Instant {
        self.start
    }

    /// Posts send requests.
    ///
    /// # Panics
    /// When the queue is full.
    pub fn post_send(&self, node: usize, qp: usize, requests: &[SendWr<'_>]) {
        let queues = &self.qps[qp][node];
        queues.send.post(requests).expect("room in the queue");
        self.nodes[node].engine.doorbells().ring(queues.index);
    }

    /// Posts receive requests.
    ///
    /// # Panics
    /// When the queue is full.
    pub fn post_recv(&self, node: usize, qp: usize, requests: &[RecvWr<'_>]) {
        let queue = self.qps[qp][node].receive.as_ref().expect("no SRQ here");
        queue.post(requests).expect("room in the queue");
    }

    /// One round of both ends.
    ///
    /// # Panics
    /// Never: memory ports do not fail.
    pub fn turn(&mut self) {
        self.turn_at(self.start + self.clock.elapsed().as_nanos() as u64);
    }

    /// The same at a time of the caller's choice, which never goes back.
    ///
    /// # Panics
    /// Never: memory ports do not fail.
    pub fn turn_at(&mut self, now: Instant) {
        for end in &mut self.nodes {
            end.turn_at(now);
        }
    }
}

/// Opens a shared connection.
fn join(nodes: &mut [End; 2], config: &PairConfig, now: Instant, private: bool) -> [ConnId; 2] {
    let ids = [0, 1].map(|i: usize| nodes[i].engine.draw_connection().expect("a number"));
    [0, 1].map(|i: usize| {
        let params = ConnectionParams {
            local_id: ids[i].0,
            local_token: ids[i].1,
            remote_id: ids[1 - i].0,
            remote_token: ids[1 - i].1,
            first_tx: 1000,
            first_rx: 1000,
            datagram: config.datagram,
            window: config.window,
            control: Some(config.control),
            traffic_class: 0,
            weight: 1,
            source_ports: 1,
            private,
            packs: config.packs,
        };
        let identity = PeerIdentity {
            guid: 1 - i as u64,
            epoch: 1,
            address: address(1 - i).into(),
            workers: Workers::ONE,
        };
        nodes[i]
            .engine
            .add_connection(now, identity, &params)
            .expect("a connection")
    })
}

fn address(i: usize) -> IpAddr {
    IpAddr::from([10, 0, 0, i as u8 + 1])
}

impl End {
    fn new(mut engine: Engine<Embedded>, port: MemoryPort, config: &PairConfig) -> Self {
        let pd = engine.regions().alloc_pd();
        let region = Region::allocate(config.bytes).expect("memory");
        let key = engine
            .regions()
            .register(pd, region.clone(), Access::ALL)
            .expect("a key")
            .rkey;
        let (cq_index, cq) = engine.create_cq(1 << 14, None).expect("a CQ");
        Self {
            engine,
            port,
            pd,
            region,
            key,
            cq,
            cq_index,
            plain: config.plain,
        }
    }

    /// One round of this end alone, at a time of the caller's choice, which never goes back.
    ///
    /// # Panics
    /// Never: memory ports do not fail.
    pub fn turn_at(&mut self, now: Instant) {
        let Self { engine, port, .. } = self;
        let mut burst = engine.burst(now);
        port.receive(256, &mut |arrival, datagram| {
            burst.handle_datagram(arrival, datagram);
        })
        .expect("memory does not fail");
        engine.handle_timeout(now);
        engine.handle_doorbells();
        engine.poll_transmit(now, port);
        port.flush().expect("memory does not fail");
        engine.publish();
    }

    /// What a QP of this end is made with unless it differs: room for 16 requests of one element.
    pub const fn qp_init(&self) -> QpInit {
        QpInit {
            pd: self.pd,
            kind: QpType::Rc,
            send_cq: self.cq_index,
            recv_cq: self.cq_index,
            srq: None,
            max_send_wr: 16,
            max_recv_wr: 16,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
            signal_all: false,
            complete_last_wqe: false,
            tenant: Tenant::OWN,
        }
    }

    fn connect(&mut self, qpn: Qpn, dest_qpn: Qpn, peer: IpAddr) {
        let attributes = Attributes {
            remote: peer.into(),
            dest_qpn,
            path_mtu: 4096,
            timeout: TIMEOUT,
            min_rnr_timer: RNR_TIMER,
            ..Attributes::default()
        };
        for step in [
            QpModify::Init {
                access: Access::ALL,
            },
            QpModify::Rtr(attributes),
            QpModify::Rts(attributes),
        ] {
            self.engine.modify_qp(qpn, &step).expect("a legal step");
        }
        if self.plain {
            self.engine.peer_is_ibta(peer.into());
        }
    }
}

/// A signalled SEND of a QP.
pub fn send(qp: usize, sges: &[Sge]) -> SendWr<'_> {
    let flags = SendFlags::SIGNALED;
    SendWr {
        wr_id: qp as u64,
        op: SendOp::Send,
        flags,
        sges,
        inline: None,
        route: 0,
    }
}
