//! What programs ask a node for before they make anything: its maxima, and the state of its port.

use super::Node;
use crate::error::Error;
use crate::node::link::PORT;
use trunkline_conn::work::{MAX_INLINE, MAX_MESSAGE, MAX_SGE};
use trunkline_dataplane::{LinkState, process};
use trunkline_qpmap::Attributes;
use trunkline_qpmap::cq::MAX_CQE;
use trunkline_qpmap::queue::MAX_WR;
use trunkline_qpmap::regions::MAX_REGIONS;
use trunkline_qpmap::slab::NONE;

/// What a node can do (`ibv_query_device(3)`). Each maximum is the one that calls enforce: one more
/// is refused. Address handles have none, as they keep nothing in the node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct DeviceAttributes {
    /// Version of this crate, in place of a firmware's.
    pub fw_ver: &'static str,
    /// GUID by which peers know the node: see [`Builder::guid`](crate::Builder::guid).
    pub node_guid: u64,
    /// Ports of the node: always 1.
    pub phys_port_cnt: u8,
    /// Most bytes of a memory region: what the address space holds.
    pub max_mr_size: u64,
    /// Sizes of the pages that registered memory may lie in, as a mask in which bit `n` stands for
    /// 2^`n` bytes: those of the system's pages and all that are larger.
    pub page_size_cap: u64,
    /// Most QPs. They are shared out to the workers evenly, and a worker that has its part refuses
    /// one more.
    pub max_qp: u32,
    /// Most requests outstanding of a send or a receive queue.
    pub max_qp_wr: u32,
    /// Most scatter-gather elements of a request, RDMA READs included.
    pub max_sge: u32,
    /// Most inline bytes of a request.
    pub max_inline: u32,
    /// Most CQs.
    pub max_cq: u32,
    /// Most completions of a CQ.
    pub max_cqe: u32,
    /// Most memory regions.
    pub max_mr: u32,
    /// Most protection domains.
    pub max_pd: u32,
    /// Most RDMA READs and atomics outstanding towards a QP: what
    /// [`Attributes::max_dest_rd_atomic`] may be.
    pub max_qp_rd_atom: u8,
    /// Most RDMA READs and atomics outstanding of a QP: what [`Attributes::max_rd_atomic`] may be.
    pub max_qp_init_rd_atom: u8,
    /// Most RDMA READs and atomics outstanding towards all QPs together.
    pub max_res_rd_atom: u64,
    /// What atomics are atomic towards.
    pub atomic_cap: AtomicCap,
    /// Most SRQs.
    pub max_srq: u32,
    /// Most requests outstanding of an SRQ.
    pub max_srq_wr: u32,
    /// Most scatter-gather elements of a request of an SRQ.
    pub max_srq_sge: u32,
    /// Partitions that the node is in: the default one.
    pub max_pkeys: u16,
}

/// What atomics are atomic towards (`enum ibv_atomic_cap`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
#[non_exhaustive]
pub enum AtomicCap {
    /// Atomics of all QPs of the node: `IBV_ATOMIC_HCA`. So it is at a service, as that does not
    /// share all memory with its programs ([`Mr::shared_len`](crate::Mr::shared_len) tells what).
    Hca = 1,
    /// Atomics of all QPs, and those of the processor: `IBV_ATOMIC_GLOB`.
    Glob = 2,
}

/// The state of a node's port (`ibv_query_port(3)`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct PortAttributes {
    /// Whether packets can leave and arrive.
    pub state: PortState,
    /// Bytes of the largest path MTU that there is.
    pub max_mtu: u16,
    /// Bytes of the largest path MTU whose packets the port carries.
    pub active_mtu: u16,
    /// Entries of the GID table: a node has one address.
    pub gid_tbl_len: u16,
    /// Most bytes of a message.
    pub max_msg_sz: u32,
    /// Entries of the P_Key table: the default partition.
    pub pkey_tbl_len: u16,
    /// What carries packets.
    pub link_layer: LinkLayer,
    /// Rate of the interface in Mb/s; `None` where it has none, as a loop has, or does not tell it.
    pub rate_mbps: Option<u32>,
    /// The rate of a lane as verbs encode it. Together with `active_width` it stands for the rate
    /// of the interface or the next that there is; an unknown rate counts as 1 Gb/s, as on Linux.
    pub active_speed: u8,
    /// The number of lanes as verbs encode it: 1 for one, 2 for four, 4 for eight.
    pub active_width: u8,
}

/// State of a port, with the values of `enum ibv_port_state`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
#[non_exhaustive]
pub enum PortState {
    /// The node is down, or its interface is.
    Down = 1,
    /// The port works.
    Active = 4,
}

/// What carries packets, with the values of `link_layer` of `ibv_query_port(3)`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
#[non_exhaustive]
pub enum LinkLayer {
    /// RoCEv2: packets are UDP datagrams.
    Ethernet = 2,
}

/// Mb/s up to which an Ethernet link counts as so many lanes of such a rate, both as verbs encode
/// them: lanes of 2.5, 10, 25, 50 and 100 Gb/s.
const RATES: [(u32, u8, u8); 8] = [
    (1_000, 1, 1),
    (10_000, 8, 1),
    (25_000, 32, 1),
    (40_000, 8, 2),
    (50_000, 64, 1),
    (100_000, 32, 2),
    (200_000, 64, 2),
    (u32::MAX, 64, 4),
];

/// Speed and width of an interface with this rate.
fn encoded(rate_mbps: Option<u32>) -> (u8, u8) {
    let rate = rate_mbps.unwrap_or(0);
    let found = RATES.iter().find(|(most, ..)| rate <= *most);
    let (_, speed, width) = found.expect("the last one holds every rate");
    (*speed, *width)
}

impl Node {
    /// Returns what the node can do (`ibv_query_device(3)`).
    ///
    /// # Errors
    /// The node failed, or belongs to another process.
    pub fn device_attributes(&self) -> Result<DeviceAttributes, Error> {
        if let Some(client) = self.shared.client() {
            return client.device_attributes();
        }
        let (mut max_qp, mut node_guid) = (0, 0);
        for handle in self.shared.handles() {
            let core = handle.core()?;
            max_qp += core.engine.max_qps();
            node_guid = core.manager.config().identity.guid;
        }
        let max_rd_atomic = Attributes::MAX_RD_ATOMIC;
        Ok(DeviceAttributes {
            fw_ver: env!("CARGO_PKG_VERSION"),
            node_guid,
            phys_port_cnt: PORT,
            max_mr_size: usize::MAX as u64,
            page_size_cap: (process::page_size() as u64).wrapping_neg(),
            max_qp,
            max_qp_wr: MAX_WR,
            max_sge: MAX_SGE as u32,
            max_inline: MAX_INLINE as u32,
            max_cq: NONE,
            max_cqe: MAX_CQE,
            max_mr: MAX_REGIONS,
            max_pd: NONE,
            max_qp_rd_atom: max_rd_atomic,
            max_qp_init_rd_atom: max_rd_atomic,
            max_res_rd_atom: u64::from(max_qp) * u64::from(max_rd_atomic),
            atomic_cap: AtomicCap::Glob,
            max_srq: NONE,
            max_srq_wr: MAX_WR,
            max_srq_sge: MAX_SGE as u32,
            max_pkeys: 1,
        })
    }

    /// Returns the state of the node's port (`ibv_query_port(3)`). A node that is down has one that
    /// is down. When the link changes, [`Event::PortError`](crate::Event::PortError) and
    /// [`Event::PortActive`](crate::Event::PortActive) tell.
    ///
    /// # Errors
    /// The node failed, or belongs to another process.
    pub fn port_attributes(&self) -> Result<PortAttributes, Error> {
        let shared = &self.shared;
        if let Some(client) = shared.client() {
            return client.port_attributes();
        }
        let handle = shared.handle(0);
        let link = handle.port()?.link_state(shared.gid.address());
        let active_mtu = handle.core()?.cm.path_mtu();
        let works = match &shared.here().link {
            Some(link) => link.look(),
            None => link.is_none_or(|link| link.works),
        };
        let works = works && shared.life.is_up();
        let rate_mbps = link.and_then(|LinkState { rate_mbps, .. }| rate_mbps);
        let (active_speed, active_width) = encoded(rate_mbps);
        let [.., max_mtu] = Attributes::PATH_MTUS;
        Ok(PortAttributes {
            state: if works {
                PortState::Active
            } else {
                PortState::Down
            },
            max_mtu,
            active_mtu,
            gid_tbl_len: 1,
            max_msg_sz: MAX_MESSAGE,
            pkey_tbl_len: 1,
            link_layer: LinkLayer::Ethernet,
            rate_mbps,
            active_speed,
            active_width,
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;
    use crate::{Drive, QpOptions, VerbsError};
    use trunkline_dataplane::{MemoryConfig, MemoryPort, Port};

    #[test]
    fn a_node_makes_as_many_qps_as_it_says_and_refuses_one_more() {
        for workers in [1, 2] {
            let mut builder = Node::builder().workers(workers).drive(Drive::Inline);
            builder.config.engine.max_qps = 5;
            let port = || Box::new(MemoryPort::pair(MemoryConfig::default()).0);
            let ports = (0..workers).map(|_| port() as Box<dyn Port + Send>);
            let node = builder.build_on_all(ports.collect()).unwrap();
            let most = node.device_attributes().unwrap().max_qp;
            assert_eq!(most, 5 * u32::from(workers));
            let (pd, cq) = (node.alloc_pd(), node.create_cq(64).unwrap());
            let create = || pd.create_qp(&cq, &cq, &QpOptions::default());
            let qps: Vec<_> = (0..most).map(|_| create().unwrap()).collect();
            let (what, limit) = ("QPs", 5);
            match create().unwrap_err() {
                Error::Verbs(error) => assert_eq!(error, VerbsError::Limit { what, limit }),
                other => panic!("{other}"),
            }
            drop(qps);
        }
    }

    #[test]
    fn the_encoded_rate_is_that_of_the_interface_or_the_next_above_it() {
        // Rates of a lane in units of 100 Mb/s, by the value of verbs.
        let lane = |speed| match speed {
            1 => 25,
            8 => 100,
            32 => 250,
            64 => 500,
            other => panic!("no lane of {other}"),
        };
        let lanes = |width| match width {
            1 => 1,
            2 => 4,
            4 => 8,
            other => panic!("{other} is no width"),
        };
        for mbps in [
            10, 1000, 2500, 10_000, 25_000, 40_000, 50_000, 100_000, 200_000, 400_000,
        ] {
            let (speed, width) = encoded(Some(mbps));
            let told = 100 * lane(speed) * lanes(width);
            assert!(told >= mbps && told <= mbps.max(1000) * 4, "{mbps}: {told}");
        }
        assert_eq!(encoded(None), encoded(Some(1000)));
        assert_eq!(encoded(Some(u32::MAX)), encoded(Some(400_000)));
    }
}
