//! Memory windows: who may use what of them, and when no more.

use super::{Block, regions};
use crate::error::VerbsError;
use crate::regions::{MwType, Regions};
use trunkline_conn::mem::{Access, AtomicOp, Memory, MemoryFault, Order, PdId, Responder, Sge};
use trunkline_conn::work::{BindMw, inc_rkey};
use trunkline_wire::{Lkey, Qpn, Rkey};

/// Peers may do nothing by the region itself.
const BINDABLE: Access = Access::MW_BIND.with(Access::LOCAL_WRITE);
const ADD: AtomicOp = AtomicOp::FetchAdd { add: 1 };

const fn qp(pd: PdId, number: u32) -> Responder {
    let qpn = Qpn::from_wire(number);
    Responder { pd, qpn }
}

/// A region of 64 bytes at 0x1000, and a bind of a new window to 16 of them.
fn window(regions: &Regions<Block>, pd: PdId, kind: MwType) -> (Rkey, BindMw) {
    let made = regions.table.register(pd, Block::new(0x1000, 64), BINDABLE);
    let region = made.unwrap();
    let key = regions.table.alloc_mw(pd, kind).unwrap();
    let bind = BindMw {
        rkey: inc_rkey(key),
        lkey: region.lkey,
        addr: 0x1010,
        length: 16,
        access: Access::REMOTE_WRITE | Access::REMOTE_ATOMIC,
    };
    (region.rkey, bind)
}

fn write(regions: &Regions<Block>, by: Responder, key: Rkey, addr: u64) -> Result<(), MemoryFault> {
    regions.write(by, key, addr, &[9; 8], Order::Any, None)
}

const fn unknown(key: Rkey) -> Result<(), MemoryFault> {
    Err(MemoryFault::UnknownKey { key: key.0 })
}

#[test]
fn a_window_lets_peers_use_its_range_by_its_rights_and_nothing_else() {
    let (regions, pd) = regions();
    let (region, bind) = window(&regions, pd, MwType::Type1);
    let (by, key) = (qp(pd, 5), bind.rkey);
    assert_eq!(write(&regions, by, key, 0x1010), unknown(key), "not bound");
    regions.bind(by, &bind).unwrap();
    assert_eq!(write(&regions, by, key, 0x1018), Ok(()));
    assert_eq!(regions.bytes(region).unwrap().data.borrow()[24..32], [9; 8]);
    assert!(regions.atomic(by, key, 0x1018, ADD).is_ok());
    for addr in [0x100f, 0x1019, 0x1000, 0, u64::MAX] {
        let outside = MemoryFault::OutOfRange {
            key: key.0,
            addr,
            length: 8,
        };
        assert_eq!(write(&regions, by, key, addr), Err(outside));
    }
    let read = regions.read(by, key, 0x1010, &mut [0], None);
    assert!(matches!(read, Err(MemoryFault::NotAllowed { .. })));
    let foreign = MemoryFault::ForeignDomain { key: key.0 };
    let other = qp(regions.table.alloc_pd(), 5);
    assert_eq!(write(&regions, other, key, 0x1010), Err(foreign));
    // The region's own key gives peers nothing, and a window's is no lkey.
    assert!(write(&regions, by, region, 0x1010).is_err());
    let sge = Sge {
        addr: 0x1010,
        length: 8,
        lkey: Lkey(key.0),
    };
    let local = regions.check_local(pd, &[sge], Access::LOCAL_READ);
    assert_eq!(local, unknown(key));
}

#[test]
fn each_bind_of_type_1_takes_the_last_key_away_and_no_bytes_unbind() {
    let (regions, pd) = regions();
    let (_, mut bind) = window(&regions, pd, MwType::Type1);
    let by = qp(pd, 5);
    for _ in 0..300 {
        let stale = bind.rkey;
        regions.bind(by, &bind).unwrap();
        assert_eq!(write(&regions, qp(pd, 6), stale, 0x1010), Ok(()), "any QP");
        bind.rkey = inc_rkey(stale);
        regions.bind(by, &bind).unwrap();
        assert_eq!(write(&regions, by, stale, 0x1010), unknown(stale));
        assert_eq!(bind.rkey.0 >> 8, stale.0 >> 8);
    }
    let nothing = BindMw { length: 0, ..bind };
    assert_eq!(regions.bind(by, &nothing), Ok(()));
    assert_eq!(write(&regions, by, bind.rkey, 0x1010), unknown(bind.rkey));
    let refused = regions.invalidate_own(by, bind.rkey);
    assert_eq!(refused, unknown(bind.rkey));
    regions.bind(by, &bind).unwrap();
    let refused = regions.invalidate_own(by, bind.rkey);
    assert!(matches!(refused, Err(MemoryFault::NotAllowed { .. })));
}

#[test]
fn a_window_of_type_2_is_of_the_qp_that_bound_it_until_it_is_invalidated() {
    let (mut regions, pd) = regions();
    let (_, bind) = window(&regions, pd, MwType::Type2);
    let (by, other, key) = (qp(pd, 5), qp(pd, 6), bind.rkey);
    let foreign = Err(MemoryFault::ForeignQp { key: key.0 });
    for round in 0..4 {
        regions.bind(by, &bind).unwrap();
        assert_eq!(write(&regions, by, key, 0x1010), Ok(()));
        assert_eq!(write(&regions, other, key, 0x1010), foreign);
        assert_eq!(regions.bind(by, &bind), unknown(key), "it is bound");
        assert_eq!(regions.invalidate_own(other, key), foreign);
        assert_eq!(regions.invalidate(other, key), foreign);
        match round {
            0 => regions.invalidate_own(by, key).unwrap(),
            1 => regions.invalidate(by, key).unwrap(),
            _ => regions.table.unbind_qp(by.qpn),
        }
        assert_eq!(write(&regions, by, key, 0x1010), unknown(key));
        assert_eq!(regions.invalidate(by, key), unknown(key));
    }
    let nothing = BindMw { length: 0, ..bind };
    assert_eq!(regions.bind(by, &nothing), unknown(key));
}

#[test]
fn binds_that_the_region_does_not_allow_are_refused() {
    let (regions, pd) = regions();
    let (_, good) = window(&regions, pd, MwType::Type2);
    let by = qp(pd, 5);
    let region = |access| {
        let made = regions.table.register(pd, Block::new(0x1000, 64), access);
        made.unwrap().lkey
    };
    let other = regions.table.alloc_pd();
    let foreign = regions
        .table
        .register(other, Block::new(0x1000, 64), BINDABLE);
    let lkey = |lkey| BindMw { lkey, ..good };
    let range = |addr, length| BindMw {
        addr,
        length,
        ..good
    };
    let wrong = [
        lkey(region(Access::ALL)),
        lkey(region(Access::MW_BIND)),
        lkey(foreign.unwrap().lkey),
        lkey(Lkey(!good.lkey.0)),
        range(0xfff, 16),
        range(0x1031, 16),
        range(0x1010, u64::MAX),
        BindMw {
            access: Access::LOCAL_WRITE,
            ..good
        },
        BindMw {
            rkey: Rkey(good.rkey.0 ^ 1 << 20),
            ..good
        },
    ];
    for (at, bind) in wrong.iter().enumerate() {
        assert!(regions.bind(by, bind).is_err(), "number {at}");
    }
    assert!(regions.bind(qp(other, 5), &good).is_err());
    assert_eq!(write(&regions, by, good.rkey, 0x1010), unknown(good.rkey));
    let read_only = BindMw {
        access: Access::REMOTE_READ,
        ..lkey(region(Access::MW_BIND))
    };
    assert_eq!(regions.bind(by, &read_only), Ok(()));
}

#[test]
fn a_zero_based_window_is_addressed_by_offsets() {
    let (regions, pd) = regions();
    let (region, bind) = window(&regions, pd, MwType::Type1);
    let access = bind.access | Access::ZERO_BASED;
    regions.bind(qp(pd, 5), &BindMw { access, ..bind }).unwrap();
    assert_eq!(write(&regions, qp(pd, 5), bind.rkey, 8), Ok(()));
    assert_eq!(regions.bytes(region).unwrap().data.borrow()[24..32], [9; 8]);
    assert!(write(&regions, qp(pd, 5), bind.rkey, 9).is_err());
    assert!(write(&regions, qp(pd, 5), bind.rkey, 0x1010).is_err());
}

#[test]
fn a_region_with_windows_stays_until_they_are_gone() {
    let (mut regions, pd) = regions();
    for kind in [MwType::Type1, MwType::Type2] {
        let (region, bind) = window(&regions, pd, kind);
        regions.bind(qp(pd, 5), &bind).unwrap();
        let busy = VerbsError::Busy {
            what: "memory region",
            users: 1,
        };
        assert_eq!(regions.table.unregister(region).err(), Some(busy));
        let anew = Block::new(0x1000, 8);
        let anew = regions.table.reregister(region, pd, anew, 0, BINDABLE);
        assert_eq!(anew.err(), Some(busy));
        // Invalidated, it gives a window nothing either.
        regions.invalidate_own(qp(pd, 5), region).unwrap();
        assert_eq!(
            write(&regions, qp(pd, 5), bind.rkey, 0x1010),
            unknown(bind.rkey)
        );
        match kind {
            MwType::Type1 => {
                regions.table.dealloc_mw(bind.rkey).unwrap();
                assert!(super::take(&mut regions, region).is_ok());
            }
            MwType::Type2 => {
                let taken = regions.table.unregister_with_windows(region);
                let mut taken = taken.unwrap();
                taken.quiesced(&mut regions);
                assert!(taken.reclaim().is_some());
            }
        }
        assert_eq!(
            write(&regions, qp(pd, 5), bind.rkey, 0x1010),
            unknown(bind.rkey)
        );
    }
}

#[test]
fn a_window_that_is_freed_leaves_a_key_that_names_nothing() {
    let (regions, pd) = regions();
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..100 {
        let (_, bind) = window(&regions, pd, MwType::Type2);
        let key = bind.rkey;
        assert!(seen.insert(key.0 >> 8), "the slot has other keys each time");
        regions.bind(qp(pd, 5), &bind).unwrap();
        regions.table.dealloc_mw(key).unwrap();
        assert_eq!(write(&regions, qp(pd, 5), key, 0x1010), unknown(key));
        assert_eq!(regions.bind(qp(pd, 5), &bind), unknown(key));
        assert!(regions.table.dealloc_mw(key).is_err());
    }
    let empty = regions.table.alloc_pd();
    let key = regions.table.alloc_mw(empty, MwType::Type1).unwrap();
    assert!(
        regions.table.dealloc_pd(empty).is_err(),
        "a window is in it"
    );
    regions.table.dealloc_mw(key).unwrap();
    assert_eq!(regions.table.dealloc_pd(empty), Ok(()));
}

#[test]
fn what_was_read_of_a_window_gives_nothing_of_what_was_registered_since() {
    let (regions, pd) = regions();
    let (region, bind) = window(&regions, pd, MwType::Type1);
    let by = qp(pd, 5);
    regions.bind(by, &bind).unwrap();
    let key = bind.rkey.0;
    let (_, binding) = regions.usable_window(by, key).unwrap();
    assert!(regions.bound_range(key, &binding, 8).is_ok());
    // A worker has come so far when the window is freed and the region gets other memory.
    regions.table.dealloc_mw(bind.rkey).unwrap();
    assert!(regions.bound_range(key, &binding, 8).is_ok(), "as it was");
    let smaller = Block::new(0x1000, 8);
    let anew = regions.table.reregister(region, pd, smaller, 0, BINDABLE);
    assert_eq!(anew.unwrap().0.rkey, region, "the key stays");
    let found = regions.bound_range(key, &binding, 8).map(|_| ());
    assert_eq!(found, unknown(bind.rkey));
}
