//! What a program asks of the node: its maxima, and the state of its port.

use super::Client;
use crate::error::Error;
use crate::node::attributes::{AtomicCap, DeviceAttributes, LinkLayer, PortAttributes, PortState};
use crate::node::link::PORT;
use trunkline_host::control::answers::{DeviceQueried, PortQueried};
use trunkline_host::control::attributes::PortState as Told;
use trunkline_host::control::requests::{QueryDevice, QueryPort};

impl Client {
    pub(crate) fn device_attributes(&self) -> Result<DeviceAttributes, Error> {
        let queried: DeviceQueried = self.ask(QueryDevice {})?;
        Ok(DeviceAttributes {
            fw_ver: self.fw_ver(queried.fw_ver.as_str()),
            node_guid: queried.node_guid,
            phys_port_cnt: PORT,
            max_mr_size: queried.max_mr_size,
            page_size_cap: queried.page_size_cap,
            max_qp: queried.max_qp,
            max_qp_wr: queried.max_qp_wr,
            max_sge: queried.max_sge,
            max_inline: queried.max_inline,
            max_cq: queried.max_cq,
            max_cqe: queried.max_cqe,
            max_mr: queried.max_mr,
            max_pd: queried.max_pd,
            max_qp_rd_atom: queried.max_qp_rd_atom,
            max_qp_init_rd_atom: queried.max_qp_init_rd_atom,
            max_res_rd_atom: queried.max_res_rd_atom,
            atomic_cap: AtomicCap::Hca,
            max_srq: queried.max_srq,
            max_srq_wr: queried.max_srq_wr,
            max_srq_sge: queried.max_srq_sge,
            max_pkeys: queried.max_pkeys,
        })
    }

    /// The version of the service, which stays the same.
    fn fw_ver(&self, told: &str) -> &'static str {
        match env!("CARGO_PKG_VERSION") {
            own if own == told => own,
            _ => self.fw_ver.get_or_init(|| told.to_owned().leak()),
        }
    }

    pub(crate) fn port_attributes(&self) -> Result<PortAttributes, Error> {
        let queried: PortQueried = self.ask(QueryPort {})?;
        Ok(PortAttributes {
            state: match queried.state {
                Told::Down => PortState::Down,
                Told::Active => PortState::Active,
            },
            max_mtu: queried.max_mtu,
            active_mtu: queried.active_mtu,
            gid_tbl_len: queried.gid_tbl_len,
            max_msg_sz: queried.max_msg_sz,
            pkey_tbl_len: queried.pkey_tbl_len,
            link_layer: LinkLayer::Ethernet,
            rate_mbps: queried.rate_mbps,
            active_speed: queried.active_speed,
            active_width: queried.active_width,
        })
    }
}
