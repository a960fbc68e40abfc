//! Memory of connections that are active, and what those that are not any more have counted.

use crate::engine::build::SentPacket;
use crate::hash::IndexMap;
use trunkline_conn::delivery::{Counters, Delivery, Policy, Pool};

/// What is to be done later, as nobody has been told yet.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Rested {
    /// What is spare is to be [trimmed](Windows::trim).
    pub(crate) trim: bool,
    /// Counts are to be [forgotten](Windows::forget_counts).
    pub(crate) forget: bool,
}

/// Windows that connections share, and what they counted.
pub(super) struct Windows {
    pub(super) pool: Pool<SentPacket>,
    /// What connections counted until they rested last, of those that have done something of late:
    /// in this period, and in the one before.
    past: [IndexMap<Counters>; 2],
    /// The same of connections whose counts somebody reads, who must not see them fall.
    kept: IndexMap<Counters>,
    /// Whether it is known when this period ends.
    ends: bool,
    /// Counts of windows that were given back, and of connections that are gone.
    total: Counters,
    /// Whether it is known when to free what is spare.
    trims: bool,
}

impl Windows {
    pub(super) fn new(policy: Policy) -> Self {
        Self {
            pool: Pool::new(policy),
            past: Default::default(),
            kept: IndexMap::default(),
            ends: false,
            total: Counters::default(),
            trims: false,
        }
    }

    /// Takes back the window of a connection that has no use for it. Gives what is to be done
    /// later.
    #[inline]
    pub(super) fn rest(&mut self, conn: u32, delivery: &mut Delivery<SentPacket>) -> Rested {
        match delivery.try_idle(&mut self.pool) {
            Some(counters) => self.rested(conn, &counters),
            None => Rested::default(),
        }
    }

    fn rested(&mut self, conn: u32, counters: &Counters) -> Rested {
        self.total.add(counters);
        let trim = !self.trims && self.is_spare();
        if let Some(known) = self.kept.get_mut(&conn) {
            known.add(counters);
            return Rested {
                trim,
                forget: false,
            };
        }
        let [late, early] = &mut self.past;
        // A keep-alive is no work.
        let worked = counters.sent + counters.accepted > 1;
        if let Some(known) = late.get_mut(&conn) {
            known.add(counters);
        } else if worked {
            let mut known = early.remove(&conn).unwrap_or_default();
            known.add(counters);
            late.insert(conn, known);
        } else if let Some(known) = early.get_mut(&conn) {
            known.add(counters);
        }
        let forget = worked && !std::mem::replace(&mut self.ends, true);
        Rested { trim, forget }
    }

    /// Somebody reads what a connection counts: it is kept from now on, for as long as the
    /// connection is there.
    pub(super) fn keep_counts(&mut self, conn: u32) {
        let known = self.past.iter_mut().find_map(|past| past.remove(&conn));
        let kept = self.kept.entry(conn).or_default();
        kept.add(&known.unwrap_or_default());
    }

    /// The period ends: what was counted before it is forgotten. Gives whether there is more for
    /// the end of the next one.
    pub(super) fn forget_counts(&mut self) -> bool {
        let late = std::mem::take(&mut self.past[0]);
        self.ends = !late.is_empty();
        self.past[1] = late;
        self.ends
    }

    /// Bytes of what was counted.
    pub(super) fn state_bytes(&self) -> usize {
        let all = self.past.iter().chain([&self.kept]);
        all.map(IndexMap::allocation_size).sum()
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
    pub(super) fn close(&mut self, conn: u32, delivery: Delivery<SentPacket>) {
        for past in self.past.iter_mut().chain([&mut self.kept]) {
            past.remove(&conn);
        }
        self.total.add(&delivery.stats().counters);
        delivery.close(&mut self.pool);
    }

    /// What a connection counted until it rested last, if it has done something of late or its
    /// counts are kept.
    pub(super) fn past(&self, conn: u32) -> Option<&Counters> {
        let mut all = self.past.iter().chain([&self.kept]);
        all.find_map(|past| past.get(&conn))
    }

    /// What was counted in windows that were given back.
    pub(super) const fn total(&self) -> Counters {
        self.total
    }
}
