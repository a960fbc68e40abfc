//! Address handles: where the datagrams of UD QPs go.

use crate::error::Error;
use crate::node::shared::Shared;
use crate::verbs::mr::Pd;
use std::fmt;
use trunkline_conn::mem::PdId;
use trunkline_conn::work::{Datagram, SendOp};
use trunkline_qpmap::check_address;
use trunkline_wire::{Gid, IpFields, Qpn};

/// Attributes of an address handle (`struct ibv_ah_attr`).
///
/// Datagrams go to `remote` with `traffic_class`, `flow_label` and `hop_limit`. A service level is
/// checked, and [`Ah::attributes`] gives it back, but packets do not carry it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct AhAttributes {
    /// The node that the handle leads to (`grh.dgid`).
    pub remote: Gid,
    /// DSCP of the packets, in the upper six bits (`grh.traffic_class`). The two lowest bits, ECN,
    /// belong to the node, whatever they are here.
    pub traffic_class: u8,
    /// Flow label of the packets, 0 to 0xf_ffff (`grh.flow_label`); 0 leaves it to the system, and
    /// packets of IPv4 have none. Where the system refuses a label that it was not asked for
    /// (`IPV6_FLOWLABEL_MGR`), it chooses that of all packets, and the node says so in its log.
    pub flow_label: u32,
    /// Hop limit of the packets (`grh.hop_limit`), the TTL of IPv4; 0 stands for the system's
    /// default.
    pub hop_limit: u8,
    /// Service level, 0 to 7 (`sl`). It has no effect: RoCEv2 tells classes of packets apart by
    /// their traffic class.
    pub service_level: u8,
}

/// An address handle (`ibv_create_ah(3)`). Requests take with them what it says, so it may be
/// dropped as soon as they are posted.
#[derive(Clone)]
pub struct Ah {
    pd: Pd,
    attributes: AhAttributes,
    /// Its protection domain, as engines know it.
    domain: PdId,
    /// Tells the domains of several nodes in one program apart.
    node: u32,
}

impl Pd {
    /// Creates an address handle (`ibv_create_ah(3)`) for the node that `attributes` name.
    ///
    /// # Errors
    /// An address of another family than the node's own, or not that of one host; a flow label or
    /// a service level out of range.
    pub fn create_ah(&self, attributes: &AhAttributes) -> Result<Ah, Error> {
        check_address(attributes.flow_label, attributes.service_level)?;
        let node = &self.0.node;
        match node.client() {
            Some(client) => client.check_peer(attributes.remote)?,
            None => check_peer(node, attributes.remote)?,
        }
        Ok(Ah {
            pd: self.clone(),
            attributes: *attributes,
            domain: self.0.id()?,
            node: node.tag,
        })
    }
}

/// Whether there may be a peer at an address.
///
/// # Errors
/// There is none.
pub(crate) fn check_peer(node: &Shared, remote: Gid) -> Result<(), Error> {
    let mut core = node.inside("peers")?.handles[0].core()?;
    let now = core.clock.now();
    Ok(core.check_peer(now, remote)?)
}

impl fmt::Debug for Ah {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ah")
            .field("remote", &self.attributes.remote.address())
            .field("traffic_class", &self.attributes.traffic_class)
            .finish_non_exhaustive()
    }
}

impl Ah {
    /// Returns the attributes that it was created with.
    pub const fn attributes(&self) -> &AhAttributes {
        &self.attributes
    }

    /// The node it leads to.
    pub const fn remote(&self) -> Gid {
        self.attributes.remote
    }

    /// Its protection domain.
    pub const fn pd(&self) -> &Pd {
        &self.pd
    }

    /// A datagram to QP `qpn` there, which has to know `qkey`; with the highest bit set, the Q_Key
    /// of the sending QP goes instead. For [`SendWr::op`](crate::SendWr).
    pub const fn send(&self, qpn: Qpn, qkey: u32) -> SendOp {
        SendOp::SendTo(self.datagram(qpn, qkey, None))
    }

    /// The same with immediate data.
    pub const fn send_imm(&self, qpn: Qpn, qkey: u32, imm: u32) -> SendOp {
        SendOp::SendTo(self.datagram(qpn, qkey, Some(imm)))
    }

    const fn datagram(&self, qpn: Qpn, qkey: u32, imm: Option<u32>) -> Datagram {
        Datagram {
            remote: self.attributes.remote,
            traffic_class: self.attributes.traffic_class,
            ip: IpFields::new(self.attributes.flow_label, self.attributes.hop_limit),
            pd: self.domain,
            node: self.node,
            qpn,
            qkey,
            imm,
        }
    }
}
