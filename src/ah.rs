//! Address handles: where the datagrams of UD QPs go.

use crate::error::Error;
use crate::mr::Pd;
use trunkline_conn::work::{Datagram, SendOp};
use trunkline_wire::{Gid, Qpn};

/// An address handle (`ibv_create_ah(3)`). Drop it when the requests that name it have completed:
/// those not looked at by then end with an error.
#[derive(Debug)]
pub struct Ah {
    pd: Pd,
    number: u32,
    remote: Gid,
}

impl Pd {
    /// Creates an address handle for the node at `remote`, whose packets carry `traffic_class`
    /// (its two lowest bits, ECN, belong to the node).
    ///
    /// # Errors
    /// An address of another family than the node's own.
    pub fn create_ah(&self, remote: Gid, traffic_class: u8) -> Result<Ah, Error> {
        let node = &self.0.node;
        let number = node.as_one(|core| core.engine.create_ah(self.0.id, remote, traffic_class))?;
        Ok(Ah {
            pd: self.clone(),
            number,
            remote,
        })
    }
}

impl Ah {
    /// The node it leads to.
    pub const fn remote(&self) -> Gid {
        self.remote
    }

    /// A datagram to QP `qpn` there, which has to know `qkey`; with the highest bit set, the Q_Key
    /// of the sending QP goes instead. For [`SendWr::op`](crate::SendWr).
    pub const fn send(&self, qpn: Qpn, qkey: u32) -> SendOp {
        SendOp::SendTo(Datagram {
            ah: self.number,
            qpn,
            qkey,
            imm: None,
        })
    }

    /// The same with immediate data.
    pub const fn send_imm(&self, qpn: Qpn, qkey: u32, imm: u32) -> SendOp {
        SendOp::SendTo(Datagram {
            ah: self.number,
            qpn,
            qkey,
            imm: Some(imm),
        })
    }
}

impl Drop for Ah {
    fn drop(&mut self) {
        let node = &self.pd.0.node;
        let freed = node.as_one(|core| core.engine.destroy_ah(self.number));
        debug_assert!(freed.is_ok(), "a handle exists as long as its owner");
    }
}
