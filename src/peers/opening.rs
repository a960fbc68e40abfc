//! Handshakes under way: for which numbers, and which QPs they speak for.

use std::collections::BTreeMap;
use std::net::IpAddr;
use trunkline_cm::HandshakeId;
use trunkline_wire::{Gid, Qpn};

/// A handshake under way.
#[derive(Debug)]
struct Under {
    id: HandshakeId,
    peer: IpAddr,
    /// What the peer is offered.
    token: u32,
    /// QPs whose BINDs or consent it carries.
    speaks_for: Box<[Qpn]>,
}

/// All of them, by the number of our end. However many there are, what concerns one QP is found at
/// once.
#[derive(Debug, Default)]
pub(super) struct Opening {
    by_number: BTreeMap<Qpn, Under>,
    by_qp: BTreeMap<Qpn, Vec<HandshakeId>>,
}

impl Opening {
    /// A handshake begins.
    pub(super) fn insert(
        &mut self,
        number: Qpn,
        id: HandshakeId,
        (peer, token): (IpAddr, u32),
        speaks_for: Box<[Qpn]>,
    ) {
        self.remove(number);
        for qp in &speaks_for {
            self.by_qp.entry(*qp).or_default().push(id);
        }
        let under = Under {
            id,
            peer,
            token,
            speaks_for,
        };
        self.by_number.insert(number, under);
    }

    /// It is over.
    pub(super) fn remove(&mut self, number: Qpn) {
        if let Some(under) = self.by_number.remove(&number) {
            for qp in under.speaks_for {
                let Some(all) = self.by_qp.get_mut(&qp) else {
                    continue;
                };
                all.retain(|other| *other != under.id);
                if all.is_empty() {
                    self.by_qp.remove(&qp);
                }
            }
        }
    }

    /// The one for a number that this peer was offered with this token.
    pub(super) fn offered(&self, number: Qpn, token: u32, source: Gid) -> Option<HandshakeId> {
        let under = self.by_number.get(&number)?;
        let is_it = (under.token, Gid::from(under.peer)) == (token, source);
        is_it.then_some(under.id)
    }

    /// Those that speak for a QP, which do so no more.
    pub(super) fn withdraw(&mut self, qp: Qpn) -> Vec<HandshakeId> {
        self.by_qp.remove(&qp).unwrap_or_default()
    }

    pub(super) fn state_bytes(&self) -> usize {
        self.by_number.len() * size_of::<(Qpn, Under)>()
            + self.by_qp.len() * size_of::<(Qpn, Vec<HandshakeId>)>()
    }
}
