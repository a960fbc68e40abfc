//! Memory of connections that are active, and what those that are not any more have counted.

use crate::engine::build::SentPacket;
use crate::hash::IndexMap;
use trunkline_conn::delivery::{Connection, Counters, Policy, Pool};

/// Windows that connections share, and what they counted.
pub(super) struct Windows {
    pub(super) pool: Pool<SentPacket>,
    /// What connections counted until they rested last: only of those that have carried packets.
    past: IndexMap<Counters>,
    /// Counts of windows that were given back, and of connections that are gone.
    total: Counters,
    /// Whether it is known when to free what is spare.
    trims: bool,
}

impl Windows {
    pub(super) fn new(policy: Policy) -> Self {
        Self {
            pool: Pool::new(policy),
            past: IndexMap::default(),
            total: Counters::default(),
            trims: false,
        }
    }

    /// Takes back the window of a connection that has no use for it. Gives whether what is spare
    /// is to be [trimmed](Self::trim) later.
    #[inline]
    pub(super) fn rest(&mut self, conn: u32, delivery: &mut Connection<SentPacket>) -> bool {
        match delivery.try_idle(&mut self.pool) {
            Some(counters) => self.rested(conn, &counters),
            None => false,
        }
    }

    fn rested(&mut self, conn: u32, counters: &Counters) -> bool {
        self.total.add(counters);
        self.past.entry(conn).or_default().add(counters);
        !self.trims && self.is_spare()
    }

    /// Frees what connections that were active some time ago have left. Gives whether there is
    /// more for later.
    pub(super) fn trim(&mut self) -> bool {
        self.pool.trim();
        self.is_spare()
    }

    fn is_spare(&mut self) -> bool {
        self.trims = self.pool.spare_bytes() > 0;
        self.trims
    }

    /// A connection is gone.
    pub(super) fn close(&mut self, conn: u32, delivery: Connection<SentPacket>) {
        self.past.remove(&conn);
        self.total.add(&delivery.stats().counters);
        delivery.close(&mut self.pool);
    }

    /// What a connection counted until it rested last.
    pub(super) fn past(&self, conn: u32) -> Option<&Counters> {
        self.past.get(&conn)
    }

    /// What was counted in windows that were given back.
    pub(super) const fn total(&self) -> Counters {
        self.total
    }
}
