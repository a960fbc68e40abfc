//! An engine among as many peers as asked for, whose packets the piece writes itself or never
//! sends.

use std::net::{IpAddr, Ipv4Addr};
use trunkline_conn::egress::{Egress, Slot};
use trunkline_conn::ingress::{Arrival, Identification};
use trunkline_conn::secret::Secret;
use trunkline_conn::time::{Instant, SECOND};
use trunkline_pieces::pair::Embedded;
use trunkline_qpmap::{Config, ConnId, ConnectionParams, Engine, PeerIdentity};
use trunkline_wire::{
    Bth, Gid, IpFields, Opcode, Path, Psn, Qpn, ROCE_PORT, SrcExt, Workers, icrc,
};

/// Number of the first packet of each connection, in either direction.
const FIRST: u64 = 1 << 20;
/// The end of each peer.
const REMOTE: (Qpn, u32) = (Qpn::from_wire(0x77_0001), 0x5555);

/// Keeps the packet that was sent last, and of the others how many there were.
#[derive(Debug, Default)]
pub(super) struct Last {
    pub(super) datagram: Vec<u8>,
    pub(super) count: u64,
}

impl Egress for Last {
    fn reserve(&mut self, _: &Path, length: usize) -> Option<Slot<'_>> {
        self.datagram.resize(length, 0);
        Some(Slot {
            datagram: &mut self.datagram,
            identification: 0,
        })
    }

    fn commit(&mut self) {
        self.count += 1;
    }
}

/// How a packet that a piece has written arrives.
pub(super) const fn arrival(path: Path) -> Arrival {
    Arrival {
        path,
        identification: Identification::Seen(0),
        ce: false,
        waited_ns: 0,
    }
}

/// The engine, and its end of each connection.
pub(super) struct Crowd {
    pub(super) engine: Engine<Embedded>,
    pub(super) now: Instant,
    pub(super) sent: Last,
    own: IpAddr,
    ends: Vec<(Qpn, u32)>,
}

impl Crowd {
    pub(super) const DATAGRAM: u32 = 4096 + 80;

    /// `per_peer` connections to each of `peers`, of the pools.
    pub(super) fn new(peers: u32, per_peer: u32) -> Self {
        let own = IpAddr::from([10, 0, 0, 1]);
        let mut crowd = Self {
            engine: Engine::new(Config {
                address: own,
                secret: Secret::from_seed(1),
                datagram: Self::DATAGRAM,
                ..Config::default()
            }),
            now: Instant::from_nanos(SECOND),
            sent: Last::default(),
            own,
            ends: Vec::new(),
        };
        for peer in 0..peers {
            for _ in 0..per_peer {
                crowd.connect(peer);
            }
        }
        crowd
    }

    pub(super) fn address(peer: u32) -> Gid {
        IpAddr::from(Ipv4Addr::from_bits(0x0a80_0000 + peer)).into()
    }

    fn connect(&mut self, peer: u32) -> ConnId {
        let (id, token) = self.engine.draw_connection().expect("a number");
        self.ends.push((id, token));
        let identity = PeerIdentity {
            guid: u64::from(peer) + 2,
            epoch: 1,
            address: Self::address(peer),
            workers: Workers::ONE,
        };
        let params = ConnectionParams {
            local_id: id,
            local_token: token,
            remote_id: REMOTE.0,
            remote_token: REMOTE.1,
            first_tx: FIRST,
            first_rx: FIRST,
            datagram: Self::DATAGRAM,
            window: 64,
            control: None,
            traffic_class: 0,
            weight: 1,
            source_ports: 1,
            private: false,
            packs: true,
        };
        let conn = self.engine.add_connection(self.now, identity, &params);
        conn.expect("a connection")
    }

    /// The first packet that `peer` sends, on its one connection.
    pub(super) fn hear(&mut self, peer: u32, opcode: Opcode, payload: &[u8]) {
        let path = Path {
            src: Self::address(peer).address(),
            dst: self.own,
            src_port: ROCE_PORT,
            traffic_class: 0,
            ip: IpFields::DEFAULT,
        };
        let (dest_qp, token) = self.ends[peer as usize];
        let bth = Bth {
            opcode,
            mig_req: true,
            pkey: 0xffff,
            dest_qp,
            psn: Psn::from_wire(FIRST as u32),
            ..Bth::default()
        };
        let ext = SrcExt {
            last: true,
            token,
            timestamp: 1,
            ack: FIRST as u32,
            ..SrcExt::default()
        };
        let mut datagram = bth.to_bytes().to_vec();
        datagram.extend(ext.to_bytes());
        datagram.extend(payload);
        datagram.extend([0; icrc::LEN]);
        icrc::seal(&path, 0, &mut datagram);
        let mut burst = self.engine.burst(self.now);
        burst.handle_datagram(&arrival(path), &datagram);
    }

    /// One round; gives the packets it sent.
    pub(super) fn turn(&mut self) -> u64 {
        self.engine.handle_timeout(self.now);
        self.engine.handle_doorbells();
        let sent = self.engine.poll_transmit(self.now, &mut self.sent);
        self.engine.publish();
        sent
    }
}
