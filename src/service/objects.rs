//! What the tables of a program hold: its objects, and the memory of their rings.

use crate::error::Error;
use crate::platform::Reach;
use crate::verbs::cq::Cq;
use crate::verbs::mr::{Keys, Pd};
use crate::verbs::qp::Qp;
use crate::verbs::srq::Srq;
use std::sync::Arc;
use trunkline_conn::mem::Access;
use trunkline_host::Piece;
use trunkline_host::wake::Signal;
use trunkline_qpmap::cq::Notify;
use trunkline_wire::Rkey;

/// A CQ, and the memory of each worker's part of it.
#[derive(Debug)]
pub(super) struct CqEntry {
    pub(super) cq: Cq,
    pub(super) headers: Vec<Arc<Piece>>,
    pub(super) entries: Vec<Arc<Piece>>,
    pub(super) signal: Arc<CqSignal>,
}

/// Raises the events of a CQ.
#[derive(Debug)]
pub(super) struct CqSignal(pub(super) Signal);

impl Notify for CqSignal {
    fn notify(&self) {
        self.0.notify();
    }
}

/// An SRQ, and the memory of its ring from the first post on.
#[derive(Debug)]
pub(super) struct SrqEntry {
    pub(super) srq: Srq,
    pub(super) ring: Option<Arc<Piece>>,
}

/// A QP, and the memory of its rings from the first post to each on.
#[derive(Debug)]
pub(super) struct QpEntry {
    pub(super) qp: Qp,
    pub(super) send: Option<Arc<Piece>>,
    pub(super) receive: Option<Arc<Piece>>,
}

/// A registered region of a program.
#[derive(Debug)]
pub(super) struct MrEntry {
    pub(super) pd: Pd,
    pub(super) reach: Reach,
    pub(super) keys: Keys,
    /// It was deregistered.
    is_over: bool,
}

impl MrEntry {
    /// Registers memory of a program.
    ///
    /// # Errors
    /// As [`Pd::register_iova`].
    pub(super) fn register(
        pd: &Pd,
        reach: Reach,
        iova: u64,
        access: Access,
    ) -> Result<Self, Error> {
        let (node, id) = (&pd.0.node, pd.0.id()?);
        let registered = node
            .regions()?
            .register_at(id, reach.clone(), iova, access)?;
        Ok(Self {
            pd: pd.clone(),
            reach,
            keys: registered.into(),
            is_over: false,
        })
    }

    /// Changes what it is registered as.
    ///
    /// # Errors
    /// As [`Mr::reregister`](crate::Mr::reregister).
    pub(super) fn reregister(
        &mut self,
        pd: &Pd,
        reach: Option<Reach>,
        iova: u64,
        access: Access,
    ) -> Result<(), Error> {
        let (node, id) = (Arc::clone(&pd.0.node), pd.0.id()?);
        let reach = reach.unwrap_or_else(|| self.reach.clone());
        let regions = node.regions()?;
        let (registered, taken) =
            regions.reregister(self.rkey(), id, reach.clone(), iova, access)?;
        self.keys = registered.into();
        let old = std::mem::replace(&mut self.reach, reach);
        let left = std::mem::replace(&mut self.pd, pd.clone());
        let retired = node.retire(taken);
        drop((old, left));
        retired
    }

    /// Ends the registration, unless windows are bound to the region.
    ///
    /// # Errors
    /// They are: the region is as it was.
    pub(super) fn deregister(&mut self) -> Result<(), Error> {
        let node = &self.pd.0.node;
        let taken = node.regions()?.unregister(self.rkey())?;
        self.is_over = true;
        node.retire(taken)
    }

    pub(super) const fn rkey(&self) -> Rkey {
        self.keys.rkey
    }

    /// Bytes that are reached through `/proc/self/mem`.
    pub(super) fn foreign_bytes(&self) -> u64 {
        self.reach.foreign_bytes()
    }

    /// Bytes of the program's own in promoted pages.
    pub(super) fn promoted_bytes(&self) -> u64 {
        self.reach.promoted_bytes()
    }
}

impl Drop for MrEntry {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let node = &self.pd.0.node;
        let taken = node.deregister(self.rkey());
        node.gave_up(taken, "a region is registered as long as its entry lives");
    }
}
