//! What was dropped or refused, by reason.

use super::recorder::{Count, Counter};
use crate::observe::cm_counters::CmCounters;
use std::collections::BTreeMap;
use trunkline_qpmap::Counters;

/// The counters of an engine that say so.
const ENGINE: [&str; 22] = [
    "malformed",
    "unknown_opcode",
    "bad_icrc",
    "unknown_connection",
    "bad_token",
    "bad_source",
    "outside_window",
    "bad_acknowledgement",
    "staging_full",
    "stale",
    "unknown_qp",
    "rnr_sent",
    "rnr_received",
    "nak_sent",
    "nak_received",
    "bad_answer",
    "bad_doorbell",
    "void_received",
    "ibta_dropped",
    "ibta_unknown_qp",
    "routes_refused",
    "control_overflow",
];

macro_rules! management {
    ($($part:ident: $($name:ident)*;)*) => {
        /// Those of connection management, with their names.
        const MANAGEMENT: &[(&str, Counter)] = &[
            ("cm_unreadable", |of| of.unreadable),
            ("cm_unresolved", |of| of.unresolved),
            $($((
                concat!("cm_", stringify!($part), "_", stringify!($name)),
                |of| of.$part.$name,
            ),)*)*
        ];
    };
}

management! {
    nodes: malformed unsupported foreign_service bad_hello address_mismatch unknown mismatch busy
        unfair over_share unproved identity duplicate_guid silent nobody misquoted transmit_full;
    hosts: malformed no_service invalid address_mismatch unknown mismatch busy unfair over_share
        unproved late stale alternate silent nobody misquoted transmit_full;
    rdma: bad_header address_mismatch no_listener wrong_kind backlog unfair ids too_long;
}

/// What the connection management of a worker dropped or refused, as that worker wrote it down.
#[derive(Debug)]
pub(super) struct Refusals([Count; MANAGEMENT.len()]);

impl Default for Refusals {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Count::default()))
    }
}

impl Refusals {
    pub(super) fn set(&self, counters: &CmCounters) {
        for (count, (_, of)) in self.0.iter().zip(MANAGEMENT) {
            count.set(of(counters));
        }
    }

    /// Adds those that there were to `drops`.
    pub(super) fn add_to(&self, drops: &mut BTreeMap<String, u64>) {
        let names = MANAGEMENT.iter().map(|(name, _)| *name);
        let counts = self.0.iter().map(Count::get);
        add(drops, names.zip(counts));
    }
}

/// Adds those that an engine counted to `drops`.
pub(super) fn of_engine(counters: &Counters, drops: &mut BTreeMap<String, u64>) {
    let all = counters.named().filter(|(name, _)| ENGINE.contains(name));
    add(drops, all);
}

fn add<'a>(drops: &mut BTreeMap<String, u64>, counts: impl Iterator<Item = (&'a str, u64)>) {
    for (name, count) in counts.filter(|(_, count)| *count > 0) {
        *drops.entry(name.to_owned()).or_default() += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_a_counter_of_the_engine() {
        let known: Vec<_> = Counters::default().named().map(|(name, _)| name).collect();
        for name in ENGINE {
            assert!(known.contains(&name), "{name}");
        }
    }

    #[test]
    fn what_never_happened_is_not_told() {
        let mut drops = BTreeMap::new();
        let mut counters = CmCounters::default();
        counters.nodes.bad_hello = 3;
        let refusals = Refusals::default();
        refusals.set(&counters);
        refusals.add_to(&mut drops);
        refusals.add_to(&mut drops);
        let counted = Counters {
            bad_icrc: 2,
            executed: 7,
            ..Counters::default()
        };
        of_engine(&counted, &mut drops);
        let expected = [("bad_icrc", 2), ("cm_nodes_bad_hello", 6)];
        assert_eq!(
            drops,
            expected
                .map(|(name, count)| (name.to_owned(), count))
                .into()
        );
    }
}
