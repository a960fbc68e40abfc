//! A node that meets others by RDMA-CM.

use super::{PATIENCE, address};
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;
use trunkline::rdma_cm::sync::{ConnectError, Endpoint, Listener, Resources};
use trunkline::rdma_cm::{CmEventKind, CmId, EventChannel, Kind, Params, PortSpace};
use trunkline::{
    Access, Builder, Completion, Cq, Mr, Node, Pd, Qp, QpOptions, RecvWr, SendWr, Status,
};

/// Where servers listen.
pub const PORT: u16 = 7471;

/// A threaded node with what its QPs need.
pub struct Host {
    pub node: Node,
    pub address: IpAddr,
    pub pd: Pd,
    pub cq: Cq,
    pub mr: Mr,
    pub options: QpOptions,
}

impl Host {
    pub fn new() -> Self {
        Self::with(Node::builder())
    }

    pub fn with(builder: Builder) -> Self {
        let address = address();
        Self::of(builder.address(address).build().unwrap(), address)
    }

    pub fn of(node: Node, address: IpAddr) -> Self {
        let pd = node.alloc_pd();
        Self {
            cq: node.create_cq(256).unwrap(),
            mr: pd.register(4096, Access::ALL).unwrap(),
            options: QpOptions::default(),
            node,
            address,
            pd,
        }
    }

    pub const fn resources(&self) -> Resources<'_> {
        Resources {
            pd: &self.pd,
            send_cq: &self.cq,
            recv_cq: &self.cq,
            options: &self.options,
        }
    }

    pub fn connect(&self, to: SocketAddr, data: &[u8]) -> Result<Endpoint, ConnectError> {
        let params = Params {
            private_data: data,
            responder_resources: 4,
            initiator_depth: 4,
            ..Params::default()
        };
        Endpoint::connect(&self.node, &self.resources(), to, &params, PATIENCE)
    }

    pub fn listen(&self, backlog: u32) -> Listener {
        Listener::bind(&self.node, (self.address, PORT).into(), backlog).unwrap()
    }

    /// An ID that knows the way to its peer, with its channel.
    pub fn resolved(&self, to: SocketAddr) -> (EventChannel, CmId) {
        let channel = self.node.create_event_channel().unwrap();
        let id = channel.create_id(PortSpace::Tcp, Kind::Rc).unwrap();
        id.resolve_addr(to, PATIENCE).unwrap();
        let event = channel.get_event(PATIENCE).unwrap();
        assert!(matches!(event.kind, CmEventKind::AddressResolved));
        (channel, id)
    }

    /// The next completion.
    pub fn next(&self) -> Completion {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(done) = self.cq.poll_one().unwrap() {
                return done;
            }
            assert!(Instant::now() < end, "no completion");
            std::thread::yield_now();
        }
    }

    /// Waits for a completion, which has to be a success.
    pub fn done(&self) {
        assert_eq!(self.next().status, Status::Success);
    }

    /// Sends, and waits until the peer has it.
    pub fn send(&self, qp: &Qp, bytes: &[u8]) {
        self.mr.write(0, bytes).unwrap();
        qp.post_send(&[SendWr::send()
            .wr_id(1)
            .sges(&[self.mr.sge(0, bytes.len())])
            .signaled()])
            .unwrap();
        self.done();
    }

    /// Posts a receive of 1,024 bytes into the middle of the region.
    pub fn receive(&self, qp: &Qp) {
        let sges = [self.mr.sge(2048, 1024)];
        qp.post_recv(&[RecvWr::new().wr_id(2).sges(&sges)]).unwrap();
    }
}
