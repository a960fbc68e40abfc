//! QPs whose clocks are watched.

use super::{Pair, RingMemory};
use std::sync::Arc;
use trunkline_conn::time::MILLISECOND;
use trunkline_qpmap::{Attributes, QpQueues, QpType};

type Qp = Arc<QpQueues<RingMemory>>;

/// Engines whose failover gets so much grace.
pub(crate) fn graced(connections: usize, grace_ns: u64) -> Pair {
    let change = |config: &mut trunkline_qpmap::Config| config.failover_grace_ns = grace_ns;
    Pair::configured(connections, 1104, change)
}

pub(crate) fn attributes(node: usize, peer: &Qp, (timeout, retry_count): (u8, u8)) -> Attributes {
    Attributes {
        remote: std::net::IpAddr::from([10, 0, 0, 2 - node as u8]).into(),
        dest_qpn: peer.qpn,
        timeout,
        retry_count,
        ..Attributes::default()
    }
}

pub(crate) fn both(pair: &mut Pair, patience: (u8, u8)) -> [Qp; 2] {
    let qps = [pair.qp(0, QpType::Rc), pair.qp(1, QpType::Rc)];
    for node in [0, 1] {
        let attributes = attributes(node, &qps[1 - node], patience);
        pair.take_to_rts(node, &qps[node], attributes, attributes);
    }
    pair.run(5 * MILLISECOND);
    qps
}
