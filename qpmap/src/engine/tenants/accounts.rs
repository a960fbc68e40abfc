//! What each tenant may still send in a period.

use super::Tenant;
use crate::error::VerbsError;
use crate::slab::Slab;

/// The largest weight: a turn of such a tenant is about as long as one of a connection.
pub(super) const MOST_WEIGHT: u32 = 64;
/// Bytes that a tenant of weight 1 may send in a period, for each connection that had something to
/// send when it began, up to so many of these: that a tenant has none left is found out once a
/// period on each connection, and that must cost little of what it sends.
pub(super) const ALLOWANCE: i32 = 64 << 10;
pub(super) const MOST_CONNECTIONS: usize = 64;
/// Allowances that a tenant which waits for a window has at most.
pub(super) const MOST_KEPT: i32 = 4;

// What a tenant has left fits.
const _: () = {
    let most = ALLOWANCE as i64 * MOST_CONNECTIONS as i64 * MOST_WEIGHT as i64;
    assert!(most * MOST_KEPT as i64 <= 1 << 30);
};

/// What is known of a tenant.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) weight: u8,
    /// QPs that it has.
    pub(super) qps: u32,
    /// Connections on which it has something to send.
    pub(super) lanes: u32,
    /// The period in which it sent last, beside others, and what it had left of its allowance.
    period: u32,
    left: i32,
    /// It has sent nothing since it began to wait for a window.
    waits: bool,
}

impl Record {
    pub(super) const fn new(weight: u8) -> Self {
        Self {
            weight,
            qps: 0,
            lanes: 0,
            period: 0,
            left: 0,
            waits: false,
        }
    }

    /// Bytes that it may still send in a period, in which weight 1 has such an allowance.
    fn left_in(&mut self, period: u32, allowance: i32) -> i32 {
        if self.period != period {
            self.period = period;
            let own = allowance * i32::from(self.weight);
            let kept = if self.waits { (MOST_KEPT - 1) * own } else { 0 };
            self.left = self.left.min(kept) + own;
        }
        self.left
    }

    /// It waits for a window.
    pub(super) const fn begin_wait(&mut self) {
        self.waits = true;
    }

    /// It has sent so many bytes. Gives whether it waited for a window until then.
    pub(super) const fn spend(&mut self, bytes: i32) -> bool {
        self.left -= bytes;
        let waited = self.waits && bytes > 0;
        self.waits &= !waited;
        waited
    }
}

/// The records of all tenants, and the period.
#[derive(Debug)]
pub(super) struct Accounts {
    own: Record,
    /// That of each other one is at the place before its number.
    others: Slab<Record>,
    /// Counts periods.
    period: u32,
    /// Bytes that a tenant of weight 1 may send in this one.
    allowance: i32,
}

impl Accounts {
    /// That of the engine's own program alone.
    pub(super) fn new() -> Self {
        Self {
            own: Record::new(1),
            others: Slab::new(),
            period: 1,
            allowance: ALLOWANCE,
        }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.others.len() + 1
    }

    /// A tenant more.
    pub(super) fn add(&mut self, weight: u8) -> Tenant {
        let place = self.others.insert(Record::new(weight));
        Tenant(place as u16 + 1)
    }

    /// A tenant is gone.
    ///
    /// # Errors
    /// It is the engine's own program.
    pub(super) fn remove(&mut self, tenant: Tenant) -> Result<(), VerbsError> {
        let place = place(tenant).ok_or(VerbsError::InvalidArgument { what: "tenant" })?;
        self.others.remove(place);
        Ok(())
    }

    /// # Panics
    /// There is no such tenant.
    #[inline]
    pub(super) fn record(&mut self, tenant: Tenant) -> &mut Record {
        match place(tenant) {
            None => &mut self.own,
            Some(place) => &mut self.others[place],
        }
    }

    /// # Errors
    /// There is no such tenant.
    pub(super) fn known(&mut self, tenant: Tenant) -> Result<&mut Record, VerbsError> {
        let record = match place(tenant) {
            None => Some(&mut self.own),
            Some(place) => self.others.get_mut(place),
        };
        record.ok_or(VerbsError::InvalidArgument { what: "tenant" })
    }

    /// How much of a connection it gets, beside the weights of others.
    pub(super) fn weight(&self, tenant: Tenant) -> i32 {
        let record = place(tenant).map_or(&self.own, |place| &self.others[place]);
        record.weight.into()
    }

    /// Bytes that a tenant may still send in this period, and its weight.
    pub(super) fn left(&mut self, tenant: Tenant) -> (i32, i32) {
        let (period, allowance) = (self.period, self.allowance);
        let record = self.record(tenant);
        (record.left_in(period, allowance), record.weight.into())
    }

    /// Bytes for each weight that a tenant may still send in this period; 0 where it has nothing to
    /// send.
    pub(super) fn left_each(&mut self, tenant: Tenant) -> i32 {
        let (period, allowance) = (self.period, self.allowance);
        match self.known(tenant) {
            Ok(record) if record.lanes > 0 => {
                record.left_in(period, allowance) / i32::from(record.weight)
            }
            _ => 0,
        }
    }

    /// The same beyond an allowance.
    pub(super) fn ahead(&mut self, tenant: Tenant) -> i32 {
        self.left_each(tenant) - self.allowance
    }

    /// Another period begins, in which `connections` have something to send.
    pub(super) fn begin_period(&mut self, connections: usize) {
        self.period = self.period.wrapping_add(1);
        self.allowance = ALLOWANCE * connections.clamp(1, MOST_CONNECTIONS) as i32;
    }

    /// Bytes that they take.
    pub(super) fn state_bytes(&self) -> usize {
        self.others.state_bytes()
    }
}

/// Where the record of a tenant is; `None`: it is that of the engine's own program.
fn place(tenant: Tenant) -> Option<u32> {
    u32::from(tenant.0).checked_sub(1)
}
