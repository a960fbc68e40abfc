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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pools::ids::ids;

    const TOKEN: u32 = 77;

    fn peer(host: u8) -> IpAddr {
        [10, 0, 0, host].into()
    }

    fn qps(numbers: &[u32]) -> Box<[Qpn]> {
        numbers.iter().map(|qp| Qpn::from_wire(*qp)).collect()
    }

    #[test]
    fn a_handshake_is_found_by_what_its_peer_was_offered_and_by_nothing_else() {
        let [number, other] = [Qpn::from_wire(5), Qpn::from_wire(6)];
        let [id, later] = ids(2)[..] else {
            unreachable!("two were asked for")
        };
        let mut opening = Opening::default();
        opening.insert(number, id, (peer(2), TOKEN), qps(&[]));
        assert_eq!(opening.offered(number, TOKEN, peer(2).into()), Some(id));
        assert_eq!(opening.offered(number, TOKEN + 1, peer(2).into()), None);
        assert_eq!(opening.offered(number, TOKEN, peer(3).into()), None);
        assert_eq!(opening.offered(other, TOKEN, peer(2).into()), None);
        // Another one has the number.
        opening.insert(number, later, (peer(3), TOKEN), qps(&[]));
        assert_eq!(opening.offered(number, TOKEN, peer(2).into()), None);
        assert_eq!(opening.offered(number, TOKEN, peer(3).into()), Some(later));
        opening.remove(number);
        assert_eq!(opening.offered(number, TOKEN, peer(3).into()), None);
        assert_eq!(opening.state_bytes(), 0);
    }

    #[test]
    fn those_that_speak_for_a_qp_are_withdrawn_once_and_those_that_are_over_not_at_all() {
        let ids = ids(4);
        let mut opening = Opening::default();
        let speaks_for = [&[7, 8][..], &[7], &[8, 9], &[7]];
        for (number, (id, qp)) in (1..).zip(ids.iter().zip(speaks_for)) {
            opening.insert(Qpn::from_wire(number), *id, (peer(2), TOKEN), qps(qp));
        }
        opening.remove(Qpn::from_wire(2));
        let withdrawn = opening.withdraw(Qpn::from_wire(7));
        assert_eq!(withdrawn, [ids[0], ids[3]]);
        assert_eq!(opening.withdraw(Qpn::from_wire(7)), []);
        // They are under way still, and speak for the others.
        let source = peer(2).into();
        assert_eq!(
            opening.offered(Qpn::from_wire(1), TOKEN, source),
            Some(ids[0])
        );
        // A number that is used anew speaks for its QPs alone.
        opening.insert(Qpn::from_wire(3), ids[1], (peer(2), TOKEN), qps(&[10]));
        assert_eq!(opening.withdraw(Qpn::from_wire(9)), []);
        assert_eq!(opening.withdraw(Qpn::from_wire(8)), [ids[0]]);
        assert_eq!(opening.withdraw(Qpn::from_wire(10)), [ids[1]]);
        (1..=4).for_each(|number| opening.remove(Qpn::from_wire(number)));
        assert_eq!(opening.state_bytes(), 0);
    }

    #[test]
    fn what_concerns_a_qp_is_found_among_any_number() {
        const MANY: u32 = 3000;
        let ids = ids(MANY);
        let mut opening = Opening::default();
        for (number, id) in (0..).zip(&ids) {
            let end = (peer(2), number);
            opening.insert(Qpn::from_wire(number), *id, end, qps(&[number]));
        }
        for (number, id) in (0..).zip(&ids) {
            assert_eq!(opening.withdraw(Qpn::from_wire(number)), [*id]);
            let source = peer(2).into();
            let offered = opening.offered(Qpn::from_wire(number), number, source);
            assert_eq!(offered, Some(*id));
            opening.remove(Qpn::from_wire(number));
        }
        assert_eq!(opening.state_bytes(), 0);
    }
}
