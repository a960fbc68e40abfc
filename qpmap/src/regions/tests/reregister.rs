//! Regions that are registered anew.

use super::{Block, INVALIDATABLE, by, regions};
use crate::error::VerbsError;
use crate::regions::{Regions, Registered};
use trunkline_conn::mem::{Access, Memory, MemoryFault, Order, PdId};
use trunkline_wire::Rkey;

fn register(regions: &Regions<Block>, pd: PdId, access: Access) -> Registered {
    let made = regions.table.register(pd, Block::new(0x1000, 64), access);
    made.unwrap()
}

/// Registers anew, and gives the old memory back.
fn change(
    regions: &mut Regions<Block>,
    key: Rkey,
    (pd, block, iova, access): (PdId, Block, u64, Access),
) -> Result<(Registered, Block), VerbsError> {
    let (made, mut taken) = regions.table.reregister(key, pd, block, iova, access)?;
    assert_eq!(regions.bytes(made.rkey).unwrap().touched.get(), 0);
    taken.quiesced(regions);
    Ok((made, taken.reclaim().unwrap()))
}

#[test]
fn memory_addresses_domain_and_rights_change_at_once_and_the_key_stays() {
    let (mut regions, first) = regions();
    let second = regions.table.alloc_pd();
    let before = register(&regions, first, Access::ALL);
    let key = before.rkey;
    let anew = (second, Block::new(0x9000, 16), 8, Access::REMOTE_READ);
    let (after, old) = change(&mut regions, key, anew).unwrap();
    let expected = Registered { iova: 8, ..before };
    assert_eq!((after, old.addr), (expected, 0x1000));
    let read = |pd, addr| regions.read(by(pd), key, addr, &mut [0; 8], None);
    assert_eq!(read(second, 16), Ok(()));
    assert!(read(second, 17).is_err(), "beyond its 16 bytes");
    assert!(read(second, 0x1000).is_err(), "its old address");
    let foreign = MemoryFault::ForeignDomain { key: key.0 };
    assert_eq!(read(first, 16), Err(foreign));
    let written = regions.write(by(second), key, 8, &[1], Order::Any, None);
    assert!(matches!(written, Err(MemoryFault::NotAllowed { .. })));
    // The domain that it left is free, the other one is in use.
    assert_eq!(regions.table.dealloc_pd(first), Ok(()));
    assert!(regions.table.dealloc_pd(second).is_err());
    assert_eq!(regions.table.len(), 1);
}

#[test]
fn a_region_that_was_invalidated_comes_back_under_another_key() {
    let (mut regions, pd) = regions();
    let stale = register(&regions, pd, INVALIDATABLE).rkey;
    regions.invalidate(by(pd), stale).unwrap();
    let anew = (pd, Block::new(0x1000, 64), 0x1000, INVALIDATABLE);
    let (made, _) = change(&mut regions, stale, anew).unwrap();
    assert_ne!(made.rkey, stale);
    assert_eq!(
        regions.write(by(pd), made.rkey, 0x1000, &[1; 64], Order::Any, None),
        Ok(())
    );
    let unknown = MemoryFault::UnknownKey { key: stale.0 };
    assert_eq!(
        regions.write(by(pd), stale, 0x1000, &[1], Order::Any, None),
        Err(unknown)
    );
    assert!(regions.table.unregister(stale).is_err());
}

#[test]
fn what_cannot_be_registered_leaves_the_region_as_it_was() {
    let (mut regions, pd) = regions();
    let key = register(&regions, pd, Access::ALL).rkey;
    let nowhere = PdId(pd.0 + 1);
    let wrong = [
        (pd, Block::new(0, 0), 0, Access::ALL),
        (pd, Block::new(0, 8), u64::MAX - 7, Access::ALL),
        (pd, Block::new(0, 8), 0, Access::REMOTE_WRITE),
        (pd, Block::new(0, 8), 8, Access::ALL | Access::ZERO_BASED),
        (nowhere, Block::new(0, 8), 0, Access::ALL),
    ];
    for anew in wrong {
        assert!(change(&mut regions, key, anew).is_err());
        assert_eq!(
            regions.write(by(pd), key, 0x1000, &[1; 64], Order::Any, None),
            Ok(())
        );
    }
    let nothing = (pd, Block::new(0, 8), 0, Access::ALL);
    let unknown = VerbsError::UnknownKey { key: !key.0 };
    assert_eq!(
        change(&mut regions, Rkey(!key.0), nothing).err(),
        Some(unknown)
    );
    assert_eq!(
        regions.table.dealloc_pd(pd).unwrap_err().errno(),
        16,
        "it is counted once"
    );
    assert!(super::take(&mut regions, key).is_ok());
    assert_eq!(regions.table.dealloc_pd(pd), Ok(()));
}
