//! Which of a node's two managers a management datagram is for.

use crate::TRUNKLINE_SERVICE;
use crate::comm_id::Side;
use trunkline_wire::MAD_LEN;
use trunkline_wire::cm::{CmMad, CommId, Message};

/// Whom a management datagram concerns.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Concerns {
    /// Handshakes between Trunkline nodes: [`Manager`](crate::Manager).
    Nodes,
    /// Connections of ordinary hosts: [`ib::Manager`](crate::ib::Manager).
    Plain,
    /// Either: it names no number of ours. Give it to both, neither answers it.
    Both,
}

impl Concerns {
    /// Goes by the service that is asked for, or by the number of ours that is named. What cannot
    /// be read is left to the handshakes' manager to count.
    pub fn of(mad: &[u8; MAD_LEN]) -> Self {
        let Ok(CmMad { message, .. }) = CmMad::parse(mad) else {
            return Self::Nodes;
        };
        let named = match message {
            Message::Req(req) if req.service_id == TRUNKLINE_SERVICE => return Self::Nodes,
            Message::Rej(rej) if rej.remote == CommId(0) => return Self::Both,
            Message::Req(_) | Message::SidrReq(_) => return Self::Plain,
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
        match Side::of(named) {
            Side::Nodes => Self::Nodes,
            Side::Plain => Self::Plain,
        }
    }
}
