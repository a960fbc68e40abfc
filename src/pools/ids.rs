//! Numbers of handshakes, for tests of what is kept by them.

use trunkline_cm::{
    Binds, Config, ConnectRequest, HandshakeId, Identity, NodeCm, Offer, Purpose, Retry, Route,
};
use trunkline_conn::secret::{Purpose as Secrets, Secret};
use trunkline_conn::time::Instant;
use trunkline_wire::{Qpn, Workers};

/// Numbers of `count` handshakes: only a connection manager makes them.
pub(super) fn ids(count: u32) -> Vec<HandshakeId> {
    let config = Config::new(Identity { guid: 1, epoch: 1 });
    let mut manager = NodeCm::new(config, Secret::from_seed(1).stream(Secrets::Nodes));
    let mut open = |number| {
        let route = Route {
            local: [10, 0, 0, 9].into(),
            remote: [10, 0, 0, 1].into(),
        };
        let offer = Offer {
            connection: Qpn::from_wire(number),
            token: 1,
            first_packet: 1,
            packet_size: 4096,
            window: 16,
            workers: Workers::ONE,
            packs: false,
        };
        let request = ConnectRequest {
            offer,
            purpose: Purpose::Private,
            toward: 0,
            traffic_class: 0,
            binds: Binds::default(),
            retry: Retry::UNKNOWN,
        };
        let opened = manager.open(Instant::ZERO, route, request);
        opened.expect("room for another one")
    };
    (1..=count).map(&mut open).collect()
}
