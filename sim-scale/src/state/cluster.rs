//! A cluster of real nodes in virtual time, of which one is looked at: it has a connection to each
//! of the others, QPs, and routes from each of these to a QP at each peer. What its state grows by
//! with each is what a peer, a QP and a route take. The others come one after another, and are only
//! there until they have met it: so a network of two places is enough for any number.

use crate::net::{Link, Network, PortShape};
use crate::trace::Trace;
use anyhow::{Result, ensure};
use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;
use trunkline::{
    Access, Attributes, Clock, Connection, ConnectionOptions, Cq, Drive, Instant, Node, Pd, Qp,
    QpModify, QpOptions, QpType,
};
use trunkline_conn::time::{MILLISECOND, SECOND};
use trunkline_wire::Workers;

/// Most bytes of a datagram, BTH to ICRC: 4,096 of payload.
const MAX_DATAGRAM: usize = 4176;
/// Nothing takes so long, in virtual ns.
const PATIENCE: u64 = 10 * SECOND;
/// For so long nothing happens before state is counted, in virtual ns: handshakes are over then,
/// and what connections did while they were set up is forgotten.
const SETTLE: u64 = 180 * SECOND;
/// For so long two nodes that have met say what they have to say, in virtual ns.
const TALK: u64 = SECOND / 5;
/// The node asks its peers for no signs of life: they are gone.
const KEEP_ALIVE: Duration = Duration::from_secs(3600);
/// Buffers for packets, more than are under way at a time.
const STOCK: usize = 1024;
/// The place in the network of the node that is looked at.
const NODE: usize = 0;
/// And that of the peer of the moment.
const PEER: usize = 1;

/// The node that is looked at.
#[derive(Debug)]
pub struct Cluster {
    network: Network,
    clock: Clock,
    node: Node,
    pd: Pd,
    cq: Cq,
    connections: Vec<Connection>,
    qps: Vec<Qp>,
    gauge: Gauge,
    held: Cell<i64>,
}

/// Says how many bytes are allocated in the process; who has no allocator that counts says 0.
pub type Gauge = fn() -> i64;

/// Address of node `index`, from 0.
fn address(index: usize) -> IpAddr {
    let [_, a, b, c] = (index as u32 + 1).to_be_bytes();
    Ipv4Addr::new(10, a, b, c).into()
}

/// Builds node `index`.
fn build(network: &Network, clock: &Clock, index: usize) -> Result<Node> {
    let shape = PortShape {
        max_datagram: MAX_DATAGRAM,
        ring: 64,
        source_ports: &[4791],
    };
    let node = Node::builder()
        .address(address(index))
        .drive(Drive::Inline)
        .clock(clock.clone())
        .keep_alive(KEEP_ALIVE)
        .seed(index as u64 + 1)
        .build_on_all(network.plug(index.min(PEER), Workers::ONE, shape))?;
    Ok(node)
}

/// Makes a QP whose connections the program manages.
fn app_managed(pd: &Pd, cq: &Cq) -> Result<Qp> {
    let options = QpOptions {
        kind: QpType::Src,
        ..QpOptions::default()
    };
    let qp = pd.create_qp(cq, cq, &options)?;
    let access = Access::ALL;
    qp.modify(&QpModify::Init { access })?;
    qp.modify(&QpModify::Rtr(Attributes::default()))?;
    qp.modify(&QpModify::Rts(Attributes::default()))?;
    Ok(qp)
}

impl Cluster {
    /// A node that knows no others.
    ///
    /// # Errors
    /// The node cannot be built.
    pub fn new(gauge: Gauge) -> Result<Self> {
        let link = Link {
            delay_ns: MILLISECOND,
            ..Link::CLEAN
        };
        let addresses = [NODE, PEER].map(address);
        let network = Network::new(1, &addresses, link, Trace::new(false));
        let clock = Clock::manual();
        clock.set(Instant::from_nanos(SECOND));
        {
            let mut net = network.net();
            net.set_now(SECOND);
            net.judge_nothing();
        }
        let before = gauge();
        let node = build(&network, &clock, NODE)?;
        let (pd, cq) = (node.alloc_pd(), node.create_cq(64)?);
        let held = Cell::new(gauge() - before);
        Ok(Self {
            network,
            clock,
            node,
            pd,
            cq,
            connections: Vec::new(),
            qps: Vec::new(),
            gauge,
            held,
        })
    }

    /// The node that is looked at.
    pub const fn node(&self) -> &Node {
        &self.node
    }

    /// Opens a connection to `count` peers more. Where they are `routed`, each QP gets a route to a
    /// QP of its own at each of them.
    ///
    /// # Errors
    /// A connection does not open, or a route is refused.
    pub fn meet(&mut self, count: usize, routed: bool) -> Result<()> {
        self.connections.reserve_exact(count);
        for _ in 0..count {
            let index = self.connections.len() + 1;
            let address = address(index);
            {
                let mut net = self.network.net();
                net.readdress(PEER, address);
                net.cut(NODE, PEER, false);
                // Some are under way, and a port that goes takes some with it: none of them is
                // state of the node.
                net.stock(STOCK, MAX_DATAGRAM);
            }
            let peer = build(&self.network, &self.clock, index)?;
            let options = ConnectionOptions::default();
            let connection = self.by_node(|| self.node.open_connection(address, &options))?;
            let open = self.advance(PATIENCE, Some(&peer), || connection.is_open())?;
            ensure!(open, "the connection to {address} does not open");
            let partners = if routed {
                self.route(&connection, &peer)?
            } else {
                Vec::new()
            };
            self.connections.push(connection);
            self.advance(TALK, Some(&peer), || false)?;
            self.network.net().cut(NODE, PEER, true);
            drop(partners);
        }
        Ok(())
    }

    /// A route from each QP to one of `peer`; gives those.
    fn route(&self, connection: &Connection, peer: &Node) -> Result<Vec<Qp>> {
        let (pd, cq) = (peer.alloc_pd(), peer.create_cq(64)?);
        let mut partners = Vec::with_capacity(self.qps.len());
        for qp in &self.qps {
            let partner = app_managed(&pd, &cq)?;
            self.by_node(|| qp.route(connection, partner.qpn()))?;
            partners.push(partner);
        }
        Ok(partners)
    }

    /// Makes `count` QPs whose connections the program manages.
    ///
    /// # Errors
    /// No more can be made.
    pub fn create(&mut self, count: usize) -> Result<()> {
        self.qps.reserve_exact(count);
        for _ in 0..count {
            let qp = self.by_node(|| app_managed(&self.pd, &self.cq))?;
            self.qps.push(qp);
        }
        Ok(())
    }

    /// Lets handshakes end and what is done once only.
    ///
    /// # Errors
    /// A node has failed.
    pub fn settle(&mut self) -> Result<()> {
        self.advance(SETTLE, None, || false)?;
        Ok(())
    }

    /// Bytes of state of the node now.
    pub fn state_bytes(&self) -> u64 {
        self.node.state_bytes().total()
    }

    /// Bytes that the node has allocated and not freed, by the gauge.
    pub const fn held(&self) -> i64 {
        self.held.get()
    }

    /// What the node does, on its account.
    fn by_node<T>(&self, act: impl FnOnce() -> T) -> T {
        let before = (self.gauge)();
        let result = act();
        let grown = (self.gauge)() - before;
        self.held.set(self.held.get() + grown);
        result
    }

    /// Lets the node and one of its peers work until something is so, for at most `limit` virtual
    /// ns. Returns whether it came to be.
    fn advance(&self, limit: u64, peer: Option<&Node>, done: impl Fn() -> bool) -> Result<bool> {
        let end = self.clock.now() + limit;
        loop {
            // What a node sends itself may call for another round.
            while self.by_node(|| self.node.poll())? {}
            // A program hears what happens to its QPs.
            while self.by_node(|| self.node.poll_event()).is_some() {}
            if let Some(peer) = peer {
                while peer.poll()? {}
            }
            if done() {
                return Ok(true);
            }
            let mut net = self.network.net();
            let arrival = net.next_arrival().map(Instant::from_nanos);
            let nodes = std::iter::once(&self.node).chain(peer);
            let timers = nodes.filter_map(Node::next_timeout);
            let next = timers.chain(arrival).min().unwrap_or(end);
            let next = next.max(self.clock.now() + 1);
            if next >= end {
                return Ok(false);
            }
            self.clock.set(next);
            net.set_now(next.as_nanos());
            net.deliver(|_| {});
        }
    }
}

/// What state grows by, counted from the structures of a node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Growth {
    /// Bytes for each peer with one connection.
    pub per_peer: u64,
    /// Bytes for each QP whose connections the program manages, without routes.
    pub per_qp: u64,
    /// Bytes for each route of such a QP on which nothing happens.
    pub per_route: u64,
}

impl Growth {
    /// Counts it. Routes are those of 20 QPs to 511 peers, as their tables grow in steps.
    ///
    /// # Errors
    /// The cluster does not work.
    pub fn count() -> Result<Self> {
        const PEERS: usize = 8;
        const QPS: usize = 20;
        const ROUTED: usize = 511;
        let mut cluster = Cluster::new(|| 0)?;
        let mut grown = |grow: fn(&mut Cluster) -> Result<()>| {
            grow(&mut cluster)?;
            cluster.settle()?;
            anyhow::Ok(cluster.state_bytes())
        };
        let some = grown(|cluster| cluster.meet(PEERS, false))?;
        let more = grown(|cluster| cluster.meet(PEERS, false))?;
        let with_qps = grown(|cluster| cluster.create(QPS))?;
        let all = grown(|cluster| cluster.meet(ROUTED, true))?;
        let per_peer = (more - some).div_ceil(PEERS as u64);
        let of_routes = all - with_qps - ROUTED as u64 * per_peer;
        Ok(Self {
            per_peer,
            per_qp: (with_qps - more).div_ceil(QPS as u64),
            per_route: of_routes.div_ceil((ROUTED * QPS) as u64),
        })
    }

    /// Bytes of state at each of `nodes` nodes (at least 1) with `processes` QPs, without routes.
    pub const fn bytes(&self, nodes: u64, processes: u64) -> u64 {
        (nodes - 1) * self.per_peer + processes * self.per_qp
    }

    /// The same where each QP has an idle route to each peer.
    pub const fn bytes_with_routes(&self, nodes: u64, processes: u64) -> u64 {
        let routes = (nodes - 1) * processes;
        self.bytes(nodes, processes) + routes * self.per_route
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_of_another_size_has_the_state_that_its_parts_add_up_to() {
        let growth = Growth::count().expect("the cluster works");
        assert!(growth.per_route <= 64, "{growth:?}");
        let mut cluster = Cluster::new(|| 0).expect("the cluster works");
        // The first peer and the first QP bring what a node has once.
        let mut with = |peers, qps, routed| {
            cluster.meet(peers, routed).expect("the cluster works");
            cluster.create(qps).expect("the cluster works");
            cluster.settle().expect("the cluster works");
            cluster.state_bytes()
        };
        let first = with(1, 1, false);
        let second = with(256, 7, false);
        let (found, said) = (second - first, growth.bytes(257, 7));
        let apart = found.abs_diff(said) as f64 / found as f64;
        assert!(apart < 0.05, "{found} bytes and not {said}");
        let more = growth.bytes_with_routes(257, 8) - growth.bytes(1, 8);
        let found = with(256, 0, true) - second;
        let apart = found.abs_diff(more) as f64 / found as f64;
        assert!(apart < 0.05, "{found} bytes and not {more}");
    }
}
