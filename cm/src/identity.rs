//! Who a peer is, and who it cannot be.

/// A node in one of its lives.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Identity {
    /// The node's GUID: stays the same when it restarts.
    pub guid: u64,
    /// When this incarnation started. Only compared for being equal: that an old incarnation is
    /// gone shows in its not completing a handshake, so that a clock set back does no harm.
    pub epoch: u64,
}

/// Why two nodes cannot work together: GUIDs have to be told apart first.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq, thiserror::Error)]
pub enum IdentityError {
    /// The peer is this node itself.
    #[error("GUID {guid:#018x} is this node: it is talking to itself over the network")]
    Itself {
        /// GUID of both.
        guid: u64,
    },
    /// Another node has this node's GUID.
    #[error("GUID {guid:#018x} is this node's own: two nodes have one GUID")]
    Ours {
        /// GUID of both.
        guid: u64,
    },
    /// Another peer that is alive has the same GUID.
    #[error("GUID {guid:#018x} is that of another peer that is alive: two nodes have one GUID")]
    Taken {
        /// GUID of both.
        guid: u64,
    },
}

impl Identity {
    /// Whether `peer` can be another node than `self`.
    ///
    /// # Errors
    /// It has the same GUID.
    pub const fn tell_apart(self, peer: Self) -> Result<(), IdentityError> {
        if self.guid != peer.guid {
            return Ok(());
        }
        let guid = self.guid;
        Err(if self.epoch == peer.epoch {
            IdentityError::Itself { guid }
        } else {
            IdentityError::Ours { guid }
        })
    }

    /// Whether `self` and `other` are two nodes with one GUID, both being alive at different
    /// addresses. At one address they are incarnations of one node.
    pub const fn collides(self, other: Self) -> bool {
        self.guid == other.guid && self.epoch != other.epoch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Identity = Identity { guid: 7, epoch: 1 };

    #[test]
    fn a_node_tells_itself_from_another_with_its_guid() {
        assert_eq!(US.tell_apart(Identity { guid: 8, epoch: 1 }), Ok(()));
        assert_eq!(US.tell_apart(US), Err(IdentityError::Itself { guid: 7 }));
        let twin = Identity { guid: 7, epoch: 2 };
        assert_eq!(US.tell_apart(twin), Err(IdentityError::Ours { guid: 7 }));
        assert!(US.collides(twin) && !US.collides(US));
        assert!(!US.collides(Identity { guid: 8, epoch: 2 }));
    }
}
