//! Address handles: where the datagrams of UD QPs go.

use crate::error::Error;
use crate::verbs::mr::Pd;
use std::fmt;
use trunkline_conn::work::{Datagram, SendOp};
use trunkline_wire::{Gid, Qpn};

/// An address handle (`ibv_create_ah(3)`). Requests take with them what it says, so it may be
/// dropped as soon as they are posted.
#[derive(Clone)]
pub struct Ah {
    pd: Pd,
    to: Datagram,
}

impl Pd {
    /// Creates an address handle for the node at `remote`, whose packets carry `traffic_class`
    /// (its two lowest bits, ECN, belong to the node).
    ///
    /// # Errors
    /// An address of another family than the node's own, or not that of one host.
    pub fn create_ah(&self, remote: Gid, traffic_class: u8) -> Result<Ah, Error> {
        let node = &self.0.node;
        let mut core = node.handle(0).core()?;
        let now = core.clock.now();
        core.check_peer(now, remote)?;
        drop(core);
        let to = Datagram {
            remote,
            traffic_class,
            pd: self.0.id()?,
            node: node.tag,
            ..Datagram::default()
        };
        let pd = self.clone();
        Ok(Ah { pd, to })
    }
}

impl fmt::Debug for Ah {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ah")
            .field("remote", &self.to.remote.address())
            .field("traffic_class", &self.to.traffic_class)
            .finish_non_exhaustive()
    }
}

impl Ah {
    /// The node it leads to.
    pub const fn remote(&self) -> Gid {
        self.to.remote
    }

    /// Its protection domain.
    pub const fn pd(&self) -> &Pd {
        &self.pd
    }

    /// A datagram to QP `qpn` there, which has to know `qkey`; with the highest bit set, the Q_Key
    /// of the sending QP goes instead. For [`SendWr::op`](crate::SendWr).
    pub const fn send(&self, qpn: Qpn, qkey: u32) -> SendOp {
        SendOp::SendTo(Datagram {
            qpn,
            qkey,
            ..self.to
        })
    }

    /// The same with immediate data.
    pub const fn send_imm(&self, qpn: Qpn, qkey: u32, imm: u32) -> SendOp {
        SendOp::SendTo(Datagram {
            qpn,
            qkey,
            imm: Some(imm),
            ..self.to
        })
    }
}
