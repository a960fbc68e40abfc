//! A cluster of real nodes in virtual time, of which one is looked at: it has a connection to each
//! of the others, and QPs. What its state grows by with each is what a peer and a QP take. The
//! others are only there until they have met it.

use crate::net::{Link, Network, PortShape};
use crate::trace::Trace;
use anyhow::{Result, ensure};
use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;
use trunkline::{
    Clock, Connection, ConnectionOptions, Cq, Drive, Instant, Node, Pd, Qp, QpOptions, QpType,
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

/// The node that is looked at, and its peers.
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

/// Address of node `index`.
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
        .build_on_all(network.plug(index, Workers::ONE, shape))?;
    Ok(node)
}

impl Cluster {
    /// A node, and `peers` others that it does not know yet.
    ///
    /// # Errors
    /// A node cannot be built.
    pub fn new(peers: usize, gauge: Gauge) -> Result<Self> {
        let addresses: Vec<_> = (0..=peers).map(address).collect();
        let link = Link {
            delay_ns: MILLISECOND,
            ..Link::CLEAN
        };
        let network = Network::new(1, &addresses, link, Trace::new(false));
        let clock = Clock::manual();
        clock.set(Instant::from_nanos(SECOND));
        {
            let mut net = network.net();
            net.set_now(SECOND);
            // A port keeps one, some are under way: none of them is state of the node.
            net.stock(2 * addresses.len() + 256, MAX_DATAGRAM);
            net.judge_nothing();
        }
        let node = build(&network, &clock, 0)?;
        let (pd, cq) = (node.alloc_pd(), node.create_cq(64)?);
        Ok(Self {
            network,
            clock,
            node,
            pd,
            cq,
            connections: Vec::with_capacity(peers),
            qps: Vec::new(),
            gauge,
            held: Cell::new(0),
        })
    }

    /// The node that is looked at.
    pub const fn node(&self) -> &Node {
        &self.node
    }

    /// Opens a connection to `count` peers more.
    ///
    /// # Errors
    /// A connection does not open.
    pub fn meet(&mut self, count: usize) -> Result<()> {
        for _ in 0..count {
            let at = self.connections.len();
            let peer = build(&self.network, &self.clock, at + 1)?;
            let options = ConnectionOptions::default();
            let open = || self.node.open_connection(address(at + 1), &options);
            let connection = self.by_node(open)?;
            let open = self.advance(PATIENCE, Some(&peer), || connection.is_open())?;
            ensure!(
                open,
                "the connection to {} does not open",
                connection.peer()
            );
            self.connections.push(connection);
            self.advance(TALK, Some(&peer), || false)?;
            self.network.net().cut(0, at + 1, true);
        }
        Ok(())
    }

    /// Makes `count` QPs whose connections the program manages.
    ///
    /// # Errors
    /// No more can be made.
    pub fn create(&mut self, count: usize) -> Result<()> {
        let options = QpOptions {
            kind: QpType::Src,
            ..QpOptions::default()
        };
        self.qps.reserve_exact(count);
        for _ in 0..count {
            let qp = self.by_node(|| self.pd.create_qp(&self.cq, &self.cq, &options))?;
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

    /// Bytes that the node has allocated and not freed since it was built, by the gauge.
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
}

impl Growth {
    /// Counts it.
    ///
    /// # Errors
    /// The cluster does not work.
    pub fn count() -> Result<Self> {
        const PEERS: usize = 8;
        const QPS: usize = 8;
        let mut cluster = Cluster::new(2 * PEERS, || 0)?;
        let mut grown = |grow: fn(&mut Cluster) -> Result<()>| {
            grow(&mut cluster)?;
            cluster.settle()?;
            anyhow::Ok(cluster.state_bytes())
        };
        let some = grown(|cluster| cluster.meet(PEERS))?;
        let more = grown(|cluster| cluster.meet(PEERS))?;
        let with_qps = grown(|cluster| cluster.create(QPS))?;
        Ok(Self {
            per_peer: (more - some).div_ceil(PEERS as u64),
            per_qp: (with_qps - more).div_ceil(QPS as u64),
        })
    }

    /// Bytes of state at each of `nodes` nodes (at least 1) with `processes` QPs.
    pub const fn bytes(&self, nodes: u64, processes: u64) -> u64 {
        (nodes - 1) * self.per_peer + processes * self.per_qp
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_of_another_size_has_the_state_that_its_peers_and_qps_add_up_to() {
        let growth = Growth::count().expect("the cluster works");
        let mut cluster = Cluster::new(257, || 0).expect("the cluster works");
        // The first peer and the first QP bring what a node has once.
        let mut with = |peers, qps| {
            cluster.meet(peers).expect("the cluster works");
            cluster.create(qps).expect("the cluster works");
            cluster.settle().expect("the cluster works");
            cluster.state_bytes()
        };
        let first = with(1, 1);
        let (found, said) = (with(256, 7) - first, growth.bytes(257, 7));
        let apart = found.abs_diff(said) as f64 / found as f64;
        assert!(apart < 0.05, "{found} bytes and not {said}");
    }
}
