//! Tenants that wait for the window of a connection, and hold others back meanwhile.

use super::Tenant;
use super::accounts::ALLOWANCE;
use crate::hash::IndexMap;
use trunkline_conn::time::{Instant, MILLISECOND};

/// Longest turnaround of a window that others wait for, in ns: by a slower path nobody catches up
/// soon, whatever others send.
const MOST_TURNAROUND_NS: u64 = 2 * MILLISECOND;
/// Others are held back for so long in ns, from when the connection sent last: at least what a
/// worker may be without a processor, which says nothing of the path.
pub(super) const LEAST_HELD_NS: u64 = MILLISECOND;
pub(super) const MOST_HELD_NS: u64 = 10 * MILLISECOND;

/// A tenant that waits for the window of a connection, and until when others are held back.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    tenant: Tenant,
    /// That connection.
    conn: u32,
    until: Instant,
    /// Others were held back when that was asked last.
    holds: bool,
}

/// Who waits, and when those without a turn may have one again.
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// By peer, who waits for a window there.
    waiting: IndexMap<Waiting>,
    /// Bytes that such tenants have sent since others may have a turn again.
    caught_up: i32,
    /// Counts when tenants without a turn may have one again.
    chances: u32,
}

impl Waits {
    /// Who has no more left for each weight than this is ahead of one that waits for a window to a
    /// peer. `ahead` tells how much a tenant has left beyond an allowance.
    pub(super) fn held(
        &mut self,
        (peer, now): (u32, Instant),
        ahead: impl FnOnce(Tenant) -> i32,
    ) -> i32 {
        if self.waiting.is_empty() {
            return 0;
        }
        let Some(waiting) = self.waiting.get_mut(&peer) else {
            return 0;
        };
        let is_over = now >= waiting.until;
        let held = if is_over {
            0
        } else {
            ahead(waiting.tenant).max(0)
        };
        let held_before = std::mem::replace(&mut waiting.holds, held > 0);
        if is_over {
            self.waiting.remove(&peer);
        }
        if held_before && held == 0 {
            self.give_chance();
        }
        held
    }

    /// A connection to a peer has sent something, and `tenant` waits for its window, which takes
    /// `turnaround_ns`. `left` tells how much a tenant may still send for each weight: who has most
    /// of those that wait to that peer holds back others. Gives who does from now on on account of
    /// this connection; `None`: nobody.
    pub(super) fn begin(
        &mut self,
        tenant: Tenant,
        (conn, peer, now): (u32, u32, Instant),
        turnaround_ns: u64,
        mut left: impl FnMut(Tenant) -> i32,
    ) -> Option<Tenant> {
        if turnaround_ns > MOST_TURNAROUND_NS {
            return None;
        }
        let held_ns = turnaround_ns.saturating_mul(2);
        let mut waiting = Waiting {
            tenant,
            conn,
            until: now + held_ns.clamp(LEAST_HELD_NS, MOST_HELD_NS),
            holds: false,
        };
        let mut most = left(tenant);
        if let Some(other) = self.waiting.get(&peer) {
            waiting.holds = other.holds;
            let others = (now < other.until).then(|| left(other.tenant));
            if let Some(others) = others.filter(|others| *others >= most) {
                if other.conn != conn {
                    return None;
                }
                (most, waiting.tenant) = (others, other.tenant);
            }
        }
        if most <= 0 {
            return None;
        }
        self.waiting.insert(peer, waiting);
        Some(waiting.tenant)
    }

    /// One that waited has sent so many bytes.
    pub(super) const fn catch_up(&mut self, bytes: i32) {
        self.caught_up += bytes;
        if self.caught_up >= ALLOWANCE {
            self.give_chance();
        }
    }

    /// Who had no turn may have one now.
    pub(super) const fn give_chance(&mut self) {
        self.chances = self.chances.wrapping_add(1);
        self.caught_up = 0;
    }

    /// Another number than before says that tenants without a turn may have one again.
    pub(super) const fn chances(&self) -> u32 {
        self.chances
    }

    /// Whether nobody waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Bytes that it has allocated.
    pub(super) fn state_bytes(&self) -> usize {
        self.waiting.allocation_size()
    }

    /// Gives back room that was needed once.
    pub(super) fn trim(&mut self) {
        if self.is_empty() {
            self.waiting = IndexMap::default();
        }
    }
}
