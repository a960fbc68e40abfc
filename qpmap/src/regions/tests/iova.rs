//! Regions whose addresses are not those of their memory.

use super::{Block, by, regions};
use crate::error::VerbsError;
use crate::regions::Regions;
use trunkline_conn::mem::{Access, AtomicOp, Memory, MemoryFault, Order, PdId, Sge};
use trunkline_wire::Rkey;

const ADD: AtomicOp = AtomicOp::FetchAdd { add: 1 };

/// Registers 64 bytes at 0x1000 under other addresses. Returns their key.
fn register_at(regions: &Regions<Block>, pd: PdId, iova: u64) -> Rkey {
    let block = Block::new(0x1000, 64);
    let made = regions.table.register_at(pd, block, iova, Access::ALL);
    made.unwrap().rkey
}

#[test]
fn a_zero_based_region_is_addressed_by_offsets() {
    let (regions, pd) = regions();
    let access = Access::ALL | Access::ZERO_BASED;
    let made = regions.table.register(pd, Block::new(0x1000, 64), access);
    let made = made.unwrap();
    assert_eq!(made.iova, 0);
    regions
        .write(by(pd), made.rkey, 8, &[9; 8], Order::Any, None)
        .unwrap();
    assert_eq!(
        regions.bytes(made.rkey).unwrap().data.borrow()[8..16],
        [9; 8]
    );
    let outside = MemoryFault::OutOfRange {
        key: made.rkey.0,
        addr: 0x1000,
        length: 8,
    };
    let mut out = [0; 8];
    assert_eq!(
        regions.read(by(pd), made.rkey, 0x1000, &mut out, None),
        Err(outside)
    );
}

#[test]
fn peers_and_local_elements_use_the_iova() {
    let (regions, pd) = regions();
    for iova in [0, 8, 0x1008, u64::MAX - 71] {
        let key = register_at(&regions, pd, iova);
        regions
            .write(by(pd), key, iova + 8, &[7; 8], Order::Any, None)
            .unwrap();
        assert_eq!(
            regions.atomic(by(pd), key, iova + 8, ADD),
            Ok(0x0707_0707_0707_0707)
        );
        let sge = |addr| Sge {
            addr,
            length: 8,
            lkey: trunkline_wire::Lkey(key.0),
        };
        let (own, mut out) = ([sge(iova + 8)], [0; 8]);
        regions.gather(pd, &own, 0, &mut out, None).unwrap();
        assert_eq!(u64::from_ne_bytes(out), 0x0707_0707_0707_0708);
        regions.scatter(pd, &own, 0, &[5; 8], None).unwrap();
        regions.read(by(pd), key, iova + 8, &mut out, None).unwrap();
        assert_eq!(out, [5; 8], "iova {iova:#x}");
        // The addresses of the memory name nothing, nor do those beside the iova's.
        for addr in [0x1000 + 128, iova.wrapping_sub(1), iova.wrapping_add(57)] {
            let refused = regions.check_local(pd, &[sge(addr)], Access::LOCAL_READ);
            assert!(refused.is_err(), "{addr:#x} with iova {iova:#x}");
            let refused = regions.check_remote(by(pd), key, addr, 8, Access::REMOTE_READ);
            assert!(refused.is_err(), "{addr:#x} with iova {iova:#x}");
        }
    }
}

#[test]
fn addresses_from_an_iova_on_cannot_wrap_around() {
    let (regions, pd) = regions();
    let refused = |iova| {
        let made = regions
            .table
            .register_at(pd, Block::new(0x1000, 64), iova, Access::ALL);
        made.err()
    };
    for addr in [u64::MAX - 63, u64::MAX] {
        assert_eq!(
            refused(addr),
            Some(VerbsError::BadRange { addr, length: 64 })
        );
    }
    assert_eq!(refused(u64::MAX - 64), None);
    assert_eq!(regions.table.len(), 1);
}

#[test]
fn zero_based_and_another_iova_contradict_each_other() {
    let (regions, pd) = regions();
    let access = Access::ALL | Access::ZERO_BASED;
    let at = |iova| {
        let block = Block::new(0x1000, 8);
        regions.table.register_at(pd, block, iova, access)
    };
    let why = "ZERO_BASED regions begin at iova 0";
    let bits = access.bits();
    assert_eq!(at(8).err(), Some(VerbsError::BadAccess { bits, why }));
    assert!(at(0).is_ok());
}

/// An atomic needs 8 aligned bytes in memory: a peer that names an aligned address where the memory
/// has another alignment is refused, and does not make the node panic.
#[test]
fn an_atomic_is_aligned_both_by_its_address_and_in_memory() {
    let (regions, pd) = regions();
    let key = register_at(&regions, pd, 4);
    for addr in [8, 12] {
        let refused = Err(MemoryFault::Misaligned { addr });
        assert_eq!(regions.atomic(by(pd), key, addr, ADD), refused);
    }
    assert_eq!(regions.bytes(key).unwrap().touched.get(), 0);
}
