//! The owner of messages that are coming in: those being put together, the receives that they hold,
//! and packets that wait for an earlier one.

mod held;
mod staging;

pub(crate) use held::{Held, Holder};
pub(crate) use staging::{Place, Staging};

use super::coverage::Coverage;
use crate::hash::Keyed;
use crate::slab::Slab;
use held::OwnHolder;
use trunkline_conn::work::Receive;
use trunkline_wire::{Gid, Opcode};

/// A message being put together.
#[derive(Debug)]
pub(crate) struct Assembly {
    /// Of all its packets.
    pub(crate) opcode: Opcode,
    pub(crate) receive: Option<Receive>,
    /// The peer whose share of its queue the receive counts for.
    holder: Option<Holder>,
    /// What was placed so far.
    pub(crate) placed: Coverage,
}

/// Messages that are coming in.
#[derive(Debug)]
pub(crate) struct Inbound {
    assemblies: Slab<Assembly>,
    /// Receives that they hold of the queues of QPs.
    held: Held<OwnHolder>,
    staging: Staging,
    /// Of what covers the messages.
    key: Keyed,
}

impl Inbound {
    /// At most `staging_bytes` of packets wait for earlier ones. Who knows `key` can make a message
    /// look whole that is not.
    pub(crate) fn new(staging_bytes: usize, key: Keyed) -> Self {
        Self {
            assemblies: Slab::new(),
            held: Held::default(),
            staging: Staging::new(staging_bytes),
            key,
        }
    }

    /// Messages being put together.
    pub(crate) const fn len(&self) -> usize {
        self.assemblies.len()
    }

    /// A message of several packets begins.
    pub(crate) fn begin(&mut self, opcode: Opcode) -> u32 {
        self.assemblies.insert(Assembly {
            opcode,
            receive: None,
            holder: None,
            placed: Coverage::NOTHING,
        })
    }

    #[inline]
    pub(crate) fn get(&self, at: u32) -> Option<&Assembly> {
        self.assemblies.get(at)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, at: u32) -> Option<&mut Assembly> {
        self.assemblies.get_mut(at)
    }

    /// A piece of a message was placed.
    #[inline]
    pub(crate) fn add_piece(&mut self, at: u32, offset: u32, length: u32) {
        self.assemblies[at].placed.add(&self.key, offset, length);
    }

    /// Whether `holder` may take one more receive of the `left` that are in the queue of its QP.
    pub(crate) fn may_hold(&self, holder: OwnHolder, left: u32) -> bool {
        self.held.may_take(holder, left)
    }

    /// A message has taken a receive, which counts for `holder`.
    pub(crate) fn hold(&mut self, at: u32, holder: Holder) {
        if let Holder::Own(holder) = holder {
            self.held.take(holder);
        }
        self.assemblies[at].holder = Some(holder);
    }

    /// A message is complete, or given up. Gives the receive that it holds, and whose share of an
    /// SRQ that counts for no more.
    pub(crate) fn end(&mut self, at: u32) -> (Option<Receive>, Option<(u32, Gid)>) {
        let assembly = self.assemblies.remove(at);
        let of_srq = match assembly.holder {
            Some(Holder::Own(holder)) => {
                self.held.give_back(holder);
                None
            }
            Some(Holder::Shared { srq, peer }) => Some((srq, peer)),
            None => None,
        };
        (assembly.receive, of_srq)
    }

    /// Packets that wait for an earlier one.
    #[inline]
    pub(crate) const fn staging(&self) -> &Staging {
        &self.staging
    }

    #[inline]
    pub(crate) const fn staging_mut(&mut self) -> &mut Staging {
        &mut self.staging
    }
}

impl std::ops::Index<u32> for Inbound {
    type Output = Assembly;

    #[inline]
    fn index(&self, at: u32) -> &Assembly {
        &self.assemblies[at]
    }
}

impl std::ops::IndexMut<u32> for Inbound {
    #[inline]
    fn index_mut(&mut self, at: u32) -> &mut Assembly {
        &mut self.assemblies[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receive_that_a_message_holds_counts_for_its_peer_until_the_message_ends() {
        let mut inbound = Inbound::new(1 << 20, Keyed::new([1, 2]));
        let holder = (3, 7);
        let at = inbound.begin(Opcode::SRC_SEND);
        assert!(inbound.may_hold(holder, 1));
        inbound.hold(at, Holder::Own(holder));
        assert!(!inbound.may_hold(holder, 1) && inbound.may_hold(holder, 2));
        assert!(inbound.may_hold((3, 8), 1));
        assert!(matches!(inbound.end(at), (None, None)));
        assert!(inbound.may_hold(holder, 1) && inbound.get(at).is_none());
        // That of an SRQ is counted there.
        let (at, peer) = (inbound.begin(Opcode::SRC_SEND), Gid::default());
        inbound.hold(at, Holder::Shared { srq: 3, peer });
        assert_eq!(inbound.end(at).1, Some((3, peer)));
        assert_eq!(inbound.len(), 0);
    }
}
