//! The owner of tenants: who QPs belong to, as far as turns are concerned, their weights, and what
//! each may still send.
//!
//! Where several tenants have something to send, on whatever connections, each may send its
//! allowance in a *period*, in proportion to its weight. The next period begins when none that
//! could send has any left: so a tenant is never ahead of another one that could send by more than
//! an allowance, and one that could not has no claim on what the others had meanwhile.
//!
//! Where connections lead to one peer, their windows share its path, and each gets as much of that
//! as any other, whoever sends on it. So a tenant that *waits* for the window of its connection
//! holds back those that are ahead of it by an allowance on the others to that peer: the path has
//! room then, and the window grows. It keeps what it had left, up to some
//! [allowances](accounts::MOST_KEPT), and holds back nobody once its connection has sent nothing
//! for some time.

mod accounts;
mod waits;

use crate::allowed::Allowed;
use crate::error::VerbsError;
use accounts::{Accounts, MOST_WEIGHT};
use trunkline_conn::time::Instant;
use waits::Waits;

/// Most tenants of an engine, itself included.
const MOST: u16 = u16::MAX;

/// Who a QP belongs to: the tenants of an engine share what it sends by weight, whatever number of
/// QPs they have, on whatever connections.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct Tenant(u16);

impl Tenant {
    /// The program that the engine is in. Its weight is 1, unless it is [changed].
    ///
    /// [changed]: super::Engine::set_tenant_weight
    pub const OWN: Self = Self(0);

    /// Tells it from others.
    pub(crate) const fn index(self) -> u16 {
        self.0
    }
}

/// All tenants.
#[derive(Debug)]
pub(crate) struct Tenants {
    accounts: Accounts,
    waits: Waits,
    /// How many have something to send.
    sending: u32,
}

/// Why a tenant with something to send has no turn.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Pause {
    /// It has sent what it may in this period.
    Spent,
    /// It is ahead of one that waits for a window to the same peer.
    Held,
}

impl Tenants {
    /// The engine's own program alone.
    pub(crate) fn new() -> Self {
        Self {
            accounts: Accounts::new(),
            waits: Waits::default(),
            sending: 0,
        }
    }

    /// A tenant without QPs.
    ///
    /// # Errors
    /// A weight out of range, or too many tenants.
    pub(crate) fn add(&mut self, weight: u32) -> Result<Tenant, VerbsError> {
        let weight = checked(weight)?;
        if self.accounts.len() >= MOST.into() {
            return Err(VerbsError::Limit {
                what: "tenants",
                limit: MOST.into(),
            });
        }
        Ok(self.accounts.add(weight))
    }

    /// Its turns are so long from the next one on.
    ///
    /// # Errors
    /// No such tenant, or a weight out of range.
    pub(crate) fn set_weight(&mut self, tenant: Tenant, weight: u32) -> Result<(), VerbsError> {
        let weight = checked(weight)?;
        self.accounts.known(tenant)?.weight = weight;
        Ok(())
    }

    /// A tenant is gone.
    ///
    /// # Errors
    /// No such tenant, or the engine's own program; [`VerbsError::Busy`] while it has QPs.
    pub(crate) fn remove(&mut self, tenant: Tenant) -> Result<(), VerbsError> {
        let what = "tenant";
        let users = self.accounts.known(tenant)?.qps;
        if users > 0 {
            return Err(VerbsError::Busy { what, users });
        }
        self.accounts.remove(tenant)
    }

    /// # Errors
    /// There is no such tenant.
    pub(crate) fn check(&mut self, tenant: Tenant) -> Result<(), VerbsError> {
        self.accounts.known(tenant).map(|_| ())
    }

    /// It has a QP more.
    pub(crate) fn join(&mut self, tenant: Tenant) {
        self.accounts.record(tenant).qps += 1;
    }

    /// One of its QPs is gone.
    pub(crate) fn leave(&mut self, tenant: Tenant) {
        self.accounts.record(tenant).qps -= 1;
    }

    /// How much of a connection it gets, beside the weights of others.
    pub(crate) fn weight(&self, tenant: Tenant) -> i32 {
        self.accounts.weight(tenant)
    }

    /// It has something to send on a connection more.
    #[inline]
    pub(crate) fn begin_lane(&mut self, tenant: Tenant) {
        let record = self.accounts.record(tenant);
        record.lanes += 1;
        self.sending += u32::from(record.lanes == 1);
    }

    /// It has nothing to send on one of them any more.
    #[inline]
    pub(crate) fn end_lane(&mut self, tenant: Tenant) {
        let record = self.accounts.record(tenant);
        record.lanes -= 1;
        self.sending -= u32::from(record.lanes == 0);
    }

    /// Whether one of them may be ahead of another: else nothing is counted.
    #[inline]
    pub(crate) const fn are_several(&self) -> bool {
        self.sending > 1
    }

    /// Bytes that a tenant may send to a peer now, in this period.
    ///
    /// # Errors
    /// Why it has no turn there.
    pub(crate) fn left(&mut self, tenant: Tenant, at: (u32, Instant)) -> Result<i32, Pause> {
        let accounts = &mut self.accounts;
        let held = self.waits.held(at, |waiting| accounts.ahead(waiting));
        let (left, weight) = accounts.left(tenant);
        if left <= 0 {
            return Err(Pause::Spent);
        }
        let left = left.saturating_sub(held.saturating_mul(weight));
        if left > 0 { Ok(left) } else { Err(Pause::Held) }
    }

    /// A connection to a peer has sent something, and `tenant`, which is the next one there, waits
    /// for its window, which takes `turnaround_ns`, on a path that is not sick. Who is furthest
    /// behind of those that wait to that peer holds back others.
    pub(crate) fn wait(&mut self, tenant: Tenant, from: (u32, u32, Instant), turnaround_ns: u64) {
        let accounts = &mut self.accounts;
        let left = |tenant| accounts.left_each(tenant);
        if let Some(waiting) = self.waits.begin(tenant, from, turnaround_ns, left) {
            accounts.record(waiting).begin_wait();
        }
    }

    /// It has sent so many bytes.
    pub(crate) fn spend(&mut self, tenant: Tenant, bytes: i32) {
        if self.accounts.record(tenant).spend(bytes) {
            self.waits.catch_up(bytes);
        }
    }

    /// Another number than before says that tenants without a turn may have one again.
    pub(crate) const fn chances(&self) -> u32 {
        self.waits.chances()
    }

    /// None that could send has anything left: another period begins, in which `connections` have
    /// something to send.
    pub(crate) fn begin_period(&mut self, connections: usize) {
        self.accounts.begin_period(connections);
        self.waits.give_chance();
    }

    /// Bytes that they take.
    pub(crate) fn state_bytes(&self) -> usize {
        self.accounts.state_bytes() + self.waits.state_bytes()
    }

    /// Gives back room that was needed once.
    pub(crate) fn trim(&mut self) {
        self.waits.trim();
    }
}

fn checked(weight: u32) -> Result<u8, VerbsError> {
    Allowed::Range(1, MOST_WEIGHT).check("weight", weight)?;
    Ok(weight as u8)
}

#[cfg(test)]
mod tests;
