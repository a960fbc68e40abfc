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

/// Why two nodes cannot work together.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq, thiserror::Error)]
pub enum IdentityError {
    /// The peer is this node itself.
    #[error("GUID {guid:#018x} is this node: it is talking to itself over the network")]
    Itself {
        /// GUID of both.
        guid: u64,
    },
}

impl Identity {
    /// Whether `peer` can be another node than `self`.
    ///
    /// # Errors
    /// It has the same GUID and epoch. The same GUID alone says nothing: anybody may claim it.
    pub const fn tell_apart(self, peer: Self) -> Result<(), IdentityError> {
        if self.guid == peer.guid && self.epoch == peer.epoch {
            return Err(IdentityError::Itself { guid: self.guid });
        }
        Ok(())
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
        assert_eq!(US.tell_apart(Identity { guid: 7, epoch: 2 }), Ok(()));
    }
}
