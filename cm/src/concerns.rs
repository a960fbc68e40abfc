//! Which of a node's managers a management datagram is for.

use crate::TRUNKLINE_SERVICE;
use crate::comm_id::Side;
use crate::hello::TOWARD_AT;
use trunkline_wire::cm::{CmMad, CommId, Message};
use trunkline_wire::{MAD_LEN, Workers};

/// Whom a management datagram concerns.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Concerns {
    /// Handshakes between Trunkline nodes: [`NodeCm`](crate::NodeCm).
    Nodes,
    /// Connections of ordinary hosts: [`ib::IbCm`](crate::ib::IbCm).
    Ibta,
    /// Either: it names no number of ours. Give it to both, neither answers it.
    Both,
}

/// Which worker of a node a management datagram is for.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum At {
    /// The one with this index.
    One(u8),
    /// It begins something that each could take up, and is [spread](Workers::spread) by this
    /// number: the same whenever it comes again, and for all that the QP of a peer asks for.
    Any(u32),
    /// Any of them: it names no number of ours.
    All,
}

impl At {
    /// That worker, out of `workers`; `None` for all of them.
    pub const fn worker(self, workers: Workers) -> Option<u8> {
        match self {
            Self::One(worker) => Some(worker),
            Self::Any(number) => Some(workers.spread(number)),
            Self::All => None,
        }
    }
}

impl Concerns {
    /// Goes by the service that is asked for, or by the number of ours that is named. What cannot
    /// be read is left to the handshakes' manager to count.
    pub fn of(mad: &[u8; MAD_LEN]) -> Self {
        Self::and_worker(mad, Workers::ONE).0
    }

    /// The same, and which of `workers` has that manager.
    pub fn and_worker(mad: &[u8; MAD_LEN], workers: Workers) -> (Self, At) {
        let Ok(CmMad { message, .. }) = CmMad::parse(mad) else {
            return (Self::Nodes, At::Any(0));
        };
        let named = match message {
            Message::Req(req) if req.service_id == TRUNKLINE_SERVICE => {
                let toward = req.private_data.0[TOWARD_AT];
                return (Self::Nodes, At::One(workers.owner(toward.into())));
            }
            Message::Rej(rej) if rej.remote == CommId(0) => return (Self::Both, At::All),
            Message::Req(req) => return (Self::Ibta, At::Any(req.qpn.get())),
            Message::SidrReq(req) => return (Self::Ibta, At::Any(req.request.0)),
            Message::Mra(mra) => mra.remote,
            Message::Rej(rej) => rej.remote,
            Message::Rep(rep) => rep.remote,
            Message::Rtu(rtu) => rtu.remote,
            Message::Dreq(dreq) => dreq.remote,
            Message::Drep(drep) => drep.remote,
            Message::SidrRep(rep) => rep.request,
            Message::Lap(lap) => lap.remote,
            Message::Apr(apr) => apr.remote,
        };
        let concerns = match Side::of(named) {
            Side::Nodes => Self::Nodes,
            Side::Ibta => Self::Ibta,
        };
        (concerns, At::One(workers.owner(named.0 >> 1)))
    }
}
