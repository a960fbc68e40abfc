//! The owner of tenants: who QPs belong to, as far as turns are concerned, and their weights.

use crate::allowed::Allowed;
use crate::error::VerbsError;
use crate::slab::Slab;

/// Most tenants of an engine, itself included.
const MOST: u16 = u16::MAX;
/// The largest weight: a turn of such a tenant is about as long as one of a connection.
const MOST_WEIGHT: u32 = 64;

/// Who a QP belongs to: the tenants of an engine share each connection by weight, whatever number
/// of QPs they have.
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
    own: Record,
    /// That of each other one is at the place before its number.
    others: Slab<Record>,
}

#[derive(Debug)]
struct Record {
    weight: u8,
    /// QPs that it has.
    qps: u32,
}

impl Tenants {
    /// The engine's own program alone.
    pub(crate) fn new() -> Self {
        Self {
            own: Record { weight: 1, qps: 0 },
            others: Slab::new(),
        }
    }

    /// A tenant without QPs.
    ///
    /// # Errors
    /// A weight out of range, or too many tenants.
    pub(crate) fn add(&mut self, weight: u32) -> Result<Tenant, VerbsError> {
        let weight = checked(weight)?;
        if self.others.len() + 1 >= MOST.into() {
            return Err(VerbsError::Limit {
                what: "tenants",
                limit: MOST.into(),
            });
        }
        let place = self.others.insert(Record { weight, qps: 0 });
        Ok(Tenant(place as u16 + 1))
    }

    /// Its turns are so long from the next one on.
    ///
    /// # Errors
    /// No such tenant, or a weight out of range.
    pub(crate) fn set_weight(&mut self, tenant: Tenant, weight: u32) -> Result<(), VerbsError> {
        let weight = checked(weight)?;
        self.known(tenant)?.weight = weight;
        Ok(())
    }

    /// A tenant is gone.
    ///
    /// # Errors
    /// No such tenant, or the engine's own program; [`VerbsError::Busy`] while it has QPs.
    pub(crate) fn remove(&mut self, tenant: Tenant) -> Result<(), VerbsError> {
        let what = "tenant";
        let users = self.known(tenant)?.qps;
        if users > 0 {
            return Err(VerbsError::Busy { what, users });
        }
        let place = place(tenant).ok_or(VerbsError::InvalidArgument { what })?;
        self.others.remove(place);
        Ok(())
    }

    /// # Errors
    /// There is no such tenant.
    pub(crate) fn check(&mut self, tenant: Tenant) -> Result<(), VerbsError> {
        self.known(tenant).map(|_| ())
    }

    /// It has a QP more.
    pub(crate) fn join(&mut self, tenant: Tenant) {
        self.record(tenant).qps += 1;
    }

    /// One of its QPs is gone.
    pub(crate) fn leave(&mut self, tenant: Tenant) {
        self.record(tenant).qps -= 1;
    }

    /// How much of a connection it gets, beside the weights of others.
    pub(crate) fn weight(&self, tenant: Tenant) -> i32 {
        let record = place(tenant).map_or(&self.own, |place| &self.others[place]);
        record.weight.into()
    }

    /// Bytes that they take.
    pub(crate) const fn state_bytes(&self) -> usize {
        self.others.state_bytes()
    }

    fn record(&mut self, tenant: Tenant) -> &mut Record {
        let record = self.known(tenant);
        record.expect("a tenant is there as long as its QPs")
    }

    fn known(&mut self, tenant: Tenant) -> Result<&mut Record, VerbsError> {
        let record = match place(tenant) {
            None => Some(&mut self.own),
            Some(place) => self.others.get_mut(place),
        };
        record.ok_or(VerbsError::InvalidArgument { what: "tenant" })
    }
}

/// Where the record of a tenant is; `None`: it is that of the engine's own program.
fn place(tenant: Tenant) -> Option<u32> {
    u32::from(tenant.0).checked_sub(1)
}

fn checked(weight: u32) -> Result<u8, VerbsError> {
    Allowed::Range(1, MOST_WEIGHT).check("weight", weight)?;
    Ok(weight as u8)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;

    #[test]
    fn a_weight_is_checked_when_it_is_given_and_when_it_is_changed() {
        let mut tenants = Tenants::new();
        for weight in [0, MOST_WEIGHT + 1, 256 + 1] {
            let allowed = Allowed::Range(1, 64);
            let refused = Err(allowed.refuse("weight", weight.into()));
            assert_eq!(tenants.add(weight), refused);
            assert_eq!(tenants.set_weight(Tenant::OWN, weight), refused.map(|_| ()));
        }
        let tenant = tenants.add(MOST_WEIGHT).unwrap();
        assert_eq!(tenants.weight(tenant), 64);
        tenants.set_weight(tenant, 3).unwrap();
        assert_eq!(
            (tenants.weight(tenant), tenants.weight(Tenant::OWN)),
            (3, 1)
        );
    }

    #[test]
    fn a_tenant_is_there_as_long_as_it_has_qps() {
        let mut tenants = Tenants::new();
        let tenant = tenants.add(1).unwrap();
        tenants.join(tenant);
        tenants.join(tenant);
        tenants.leave(tenant);
        let what = "tenant";
        let busy = Err(VerbsError::Busy { what, users: 1 });
        assert_eq!(tenants.remove(tenant), busy);
        tenants.leave(tenant);
        tenants.remove(tenant).unwrap();
        let unknown = Err(VerbsError::InvalidArgument { what });
        assert_eq!(tenants.check(tenant), unknown);
        assert_eq!(tenants.set_weight(tenant, 2), unknown);
        assert_eq!(tenants.remove(tenant), unknown);
        assert_eq!(tenants.remove(Tenant::OWN), unknown, "it always stays");
        assert_eq!(tenants.add(5).unwrap(), tenant, "its place is free again");
    }

    #[test]
    fn there_are_no_more_tenants_than_numbers() {
        let mut tenants = Tenants::new();
        for _ in 1..MOST {
            tenants.add(1).unwrap();
        }
        let limit = MOST.into();
        let what = "tenants";
        assert_eq!(tenants.add(1), Err(VerbsError::Limit { what, limit }));
        tenants.remove(Tenant(7)).unwrap();
        assert_eq!(tenants.add(1), Ok(Tenant(7)));
    }
}
