#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod iova;
mod reregister;
mod windows;

use super::*;
use crate::error::VerbsError;
use proptest::prelude::*;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use trunkline_conn::secret::Secret;
use trunkline_wire::Lkey;

/// A peer may do everything, and take the key away.
const INVALIDATABLE: Access = Access::from_bits(0b1111 | 1 << 30);

/// Memory that is a vector, and counts how often it is touched.
#[derive(Debug)]
struct Block {
    addr: u64,
    data: RefCell<Vec<u8>>,
    touched: Cell<u32>,
    /// Bytes from here on are not there.
    end: Cell<usize>,
}

impl Block {
    fn new(addr: u64, length: usize) -> Self {
        let data = RefCell::new((0..length).map(|i| (i * 7 + 3) as u8).collect());
        Self {
            addr,
            data,
            touched: Cell::new(0),
            end: Cell::new(length),
        }
    }

    fn reach(&self, end: usize) -> Result<(), Unreachable> {
        (end <= self.end.get()).then_some(()).ok_or(Unreachable)
    }
}

impl RegionMemory for Block {
    fn addr(&self) -> u64 {
        self.addr
    }

    fn len(&self) -> usize {
        self.data.borrow().len()
    }

    fn copy_out(
        &self,
        offset: usize,
        out: &mut [u8],
        crc: Option<&mut Crc>,
    ) -> Result<(), Unreachable> {
        self.touched.set(self.touched.get() + 1);
        out.copy_from_slice(&self.data.borrow()[offset..offset + out.len()]);
        if let Some(crc) = crc {
            crc.update(out);
        }
        self.reach(offset + out.len())
    }

    fn copy_in(
        &self,
        offset: usize,
        data: &[u8],
        _: Order,
        crc: Option<&mut Crc>,
    ) -> Result<(), Unreachable> {
        self.touched.set(self.touched.get() + 1);
        self.data.borrow_mut()[offset..offset + data.len()].copy_from_slice(data);
        if let Some(crc) = crc {
            crc.update(data);
        }
        self.reach(offset + data.len())
    }

    fn atomic(&self, offset: usize, op: AtomicOp) -> Result<u64, Unreachable> {
        self.touched.set(self.touched.get() + 1);
        let mut data = self.data.borrow_mut();
        let cell: &mut [u8; 8] = (&mut data[offset..offset + 8]).try_into().unwrap();
        let before = u64::from_ne_bytes(*cell);
        *cell = op.after(before).to_ne_bytes();
        self.reach(offset + 8)?;
        Ok(before)
    }
}

/// A QP of a domain that executes what a peer asks for.
fn by(pd: PdId) -> Responder {
    Responder {
        pd,
        ..Responder::default()
    }
}

fn regions() -> (Regions<Block>, PdId) {
    let table = RegionTable::new(&Secret::from_seed(1));
    let pd = table.alloc_pd();
    (table.view(), pd)
}

/// Ends a registration; nobody else uses the table.
fn take(regions: &mut Regions<Block>, key: Rkey) -> Result<Block, VerbsError> {
    let mut taken = regions.table.unregister(key)?;
    taken.quiesced(regions);
    Ok(taken.reclaim().unwrap())
}

#[test]
fn remote_writes_and_atomics_need_local_writes() {
    for bits in 0..16 {
        let (regions, pd) = regions();
        let access = Access::from_bits(bits);
        let allowed = access.contains(Access::LOCAL_WRITE)
            || matches!(access, Access::LOCAL_READ | Access::REMOTE_READ);
        let result = regions.table.register(pd, Block::new(0, 8), access);
        let why = "remote writes and atomics need LOCAL_WRITE";
        let refused = VerbsError::BadAccess { bits, why };
        let expected = (!allowed).then_some(refused);
        assert_eq!(result.err(), expected);
        assert_eq!(regions.table.len(), usize::from(allowed));
    }
}

#[test]
fn optional_access_flags_are_taken_and_unknown_ones_are_not() {
    let (regions, pd) = regions();
    let relaxed = Access::ALL | Access::RELAXED_ORDERING;
    regions
        .table
        .register(pd, Block::new(0, 8), relaxed)
        .unwrap();
    // Huge pages (IBV_ACCESS_HUGETLB), and the ends of the range of optional flags.
    for bit in [7, 20, 25, 29] {
        let access = Access::ALL | Access::from_bits(1 << bit);
        let taken = regions.table.register(pd, Block::new(0, 8), access);
        assert!(taken.is_ok(), "bit {bit}");
    }
    for bits in [1 << 6, 1 << 19, 1 << 31] {
        let result = regions
            .table
            .register(pd, Block::new(0, 8), Access::from_bits(bits));
        let why = "some of them mean nothing";
        assert_eq!(result, Err(VerbsError::BadAccess { bits, why }));
    }
}

#[test]
fn a_region_cannot_wrap_around() {
    let (regions, pd) = regions();
    let addr = u64::MAX - 7;
    let result = regions.table.register(pd, Block::new(addr, 8), Access::ALL);
    assert_eq!(result, Err(VerbsError::BadRange { addr, length: 8 }));
    let key = regions
        .table
        .register(pd, Block::new(addr, 7), Access::ALL)
        .unwrap()
        .rkey;
    regions
        .write(by(pd), key, addr, &[1; 7], Order::Any, None)
        .unwrap();
    for (addr, length) in [
        (addr, 8),
        (addr + 1, 7),
        (u64::MAX, 1),
        (0, 1),
        (7, u32::MAX),
    ] {
        let fault = regions.check_remote(by(pd), key, addr, length, Access::REMOTE_READ);
        let expected = MemoryFault::OutOfRange {
            key: key.0,
            addr,
            length: length.into(),
        };
        assert_eq!(fault, Err(expected));
    }
}

#[test]
fn a_domain_in_use_stays() {
    let (mut regions, pd) = regions();
    let key = regions
        .table
        .register(pd, Block::new(0, 8), Access::ALL)
        .unwrap()
        .rkey;
    regions.table.pd_ref(pd).unwrap();
    let busy = |users| {
        Err(VerbsError::Busy {
            what: "protection domain",
            users,
        })
    };
    assert_eq!(regions.table.dealloc_pd(pd), busy(2));
    take(&mut regions, key).unwrap();
    assert_eq!(regions.table.dealloc_pd(pd), busy(1));
    regions.table.pd_unref(pd);
    assert_eq!(regions.table.dealloc_pd(pd), Ok(()));
    let unknown = VerbsError::UnknownPd { pd: pd.0 };
    assert_eq!(regions.table.dealloc_pd(pd), Err(unknown));
    assert_eq!(regions.table.pd_ref(pd), Err(unknown));
    assert_eq!(
        regions.table.register(pd, Block::new(0, 8), Access::ALL),
        Err(unknown)
    );
}

#[test]
fn a_slot_gives_4096_keys_before_one_comes_back() {
    let (mut regions, pd) = regions();
    let mut keys = Vec::new();
    for _ in 0..4096 {
        let registered = regions
            .table
            .register(pd, Block::new(0, 8), Access::ALL)
            .unwrap();
        assert_eq!(
            (registered.index, registered.lkey.0),
            (0, registered.rkey.0)
        );
        take(&mut regions, registered.rkey).unwrap();
        keys.push(registered.rkey.0);
    }
    let (first, mut sorted) = (keys[0], keys.clone());
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(sorted.len(), 4096);
    let again = regions
        .table
        .register(pd, Block::new(0, 8), Access::ALL)
        .unwrap();
    assert_eq!(again.rkey.0, first);
    for stale in &keys[1..] {
        let fault = regions.read(by(pd), Rkey(*stale), 0, &mut [0], None);
        assert_eq!(fault, Err(MemoryFault::UnknownKey { key: *stale }));
        assert_eq!(take(&mut regions, Rkey(*stale)).err().unwrap().errno(), 22);
    }
}

#[test]
fn keys_that_were_never_given_out_name_nothing() {
    let (regions, pd) = regions();
    let mut own = Vec::new();
    for _ in 0..64 {
        own.push(
            regions
                .table
                .register(pd, Block::new(0, 8), Access::ALL)
                .unwrap()
                .rkey,
        );
    }
    let mut guess = 0_u32;
    for _ in 0..200_000 {
        guess = guess.wrapping_add(2_654_435_761);
        if !own.contains(&Rkey(guess)) {
            assert!(regions.bytes(Rkey(guess)).is_none());
            assert!(
                regions
                    .check_remote(by(pd), Rkey(guess), 0, 1, Access::REMOTE_READ)
                    .is_err()
            );
        }
    }
    assert!(own.iter().all(|key| regions.bytes(*key).is_some()));
}

#[test]
fn a_key_of_another_domain_is_refused() {
    let (mut regions, pd) = regions();
    let other = regions.table.alloc_pd();
    let key = regions
        .table
        .register(pd, Block::new(0, 8), Access::ALL)
        .unwrap()
        .rkey;
    let foreign = Err(MemoryFault::ForeignDomain { key: key.0 });
    assert_eq!(
        regions.write(by(other), key, 0, &[1], Order::Any, None),
        foreign
    );
    assert_eq!(regions.invalidate(by(other), key), foreign);
    let sge = Sge {
        addr: 0,
        length: 1,
        lkey: Lkey(key.0),
    };
    assert_eq!(
        regions.check_local(other, &[sge], Access::LOCAL_READ),
        foreign
    );
    assert_eq!(regions.bytes(key).unwrap().touched.get(), 0);
}

#[test]
fn an_invalidated_key_refuses_everything_until_it_is_deregistered() {
    let (mut regions, pd) = regions();
    let key = regions
        .table
        .register(pd, Block::new(0, 8), INVALIDATABLE)
        .unwrap()
        .rkey;
    regions.invalidate(by(pd), key).unwrap();
    let unknown = MemoryFault::UnknownKey { key: key.0 };
    assert_eq!(regions.read(by(pd), key, 0, &mut [0], None), Err(unknown));
    assert_eq!(
        regions.atomic(by(pd), key, 0, AtomicOp::FetchAdd { add: 1 }),
        Err(unknown)
    );
    let sge = Sge {
        addr: 0,
        length: 1,
        lkey: Lkey(key.0),
    };
    assert_eq!(regions.scatter(pd, &[sge], 0, &[1], None), Err(unknown));
    assert_eq!(regions.invalidate(by(pd), key), Err(unknown), "twice");
    assert_eq!(
        regions.table.dealloc_pd(pd).unwrap_err().errno(),
        16,
        "still registered"
    );
    assert_eq!(take(&mut regions, key).unwrap().touched.get(), 0);
    assert!(regions.table.is_empty());
}

#[test]
fn only_a_region_that_was_registered_for_it_is_invalidated_by_a_peer() {
    let (mut regions, pd) = regions();
    for access in [Access::LOCAL_WRITE, Access::ALL] {
        let made = regions.table.register(pd, Block::new(0, 8), access);
        let key = made.unwrap().rkey;
        let refused = MemoryFault::NotAllowed {
            key: key.0,
            allowed: access.bits(),
            wanted: Access::REMOTE_INVALIDATE.bits(),
        };
        assert_eq!(regions.invalidate(by(pd), key), Err(refused));
        let sge = Sge {
            addr: 0,
            length: 8,
            lkey: Lkey(key.0),
        };
        assert_eq!(regions.check_local(pd, &[sge], Access::LOCAL_WRITE), Ok(()));
    }
    let access = Access::REMOTE_INVALIDATE;
    let made = regions.table.register(pd, Block::new(0, 8), access);
    assert_eq!(regions.invalidate(by(pd), made.unwrap().rkey), Ok(()));
}

#[test]
fn an_access_of_no_bytes_checks_nothing() {
    let (regions, pd) = regions();
    let (key, sge) = (
        Rkey(77),
        Sge {
            addr: 5,
            length: 0,
            lkey: Lkey(77),
        },
    );
    regions
        .check_remote(by(pd), key, 0, 0, Access::REMOTE_WRITE)
        .unwrap();
    regions.read(by(pd), key, 0, &mut [], None).unwrap();
    regions
        .write(by(pd), key, 0, &[], Order::Any, None)
        .unwrap();
    regions
        .check_local(pd, &[sge], Access::LOCAL_WRITE)
        .unwrap();
    regions.gather(pd, &[sge], 0, &mut [], None).unwrap();
    regions.scatter(pd, &[], 100, &[], None).unwrap();
}

#[test]
fn a_write_is_one_copy_whatever_its_length() {
    let (regions, pd) = regions();
    let key = regions
        .table
        .register(pd, Block::new(4096, 4096), Access::ALL)
        .unwrap()
        .rkey;
    regions
        .write(by(pd), key, 4097, &[9; 4000], Order::Any, None)
        .unwrap();
    assert_eq!(regions.bytes(key).unwrap().touched.get(), 1);
}

#[test]
fn atomics_work_on_aligned_addresses_only() {
    let (regions, pd) = regions();
    let key = regions
        .table
        .register(pd, Block::new(64, 16), Access::ALL)
        .unwrap()
        .rkey;
    regions
        .write(by(pd), key, 72, &5_u64.to_ne_bytes(), Order::Any, None)
        .unwrap();
    let swap = AtomicOp::CompareSwap {
        compare: 5,
        swap: 6,
    };
    assert_eq!(regions.atomic(by(pd), key, 72, swap), Ok(5));
    assert_eq!(regions.atomic(by(pd), key, 72, swap), Ok(6), "no match");
    assert_eq!(
        regions.atomic(by(pd), key, 72, AtomicOp::FetchAdd { add: u64::MAX }),
        Ok(6)
    );
    let mut out = [0; 8];
    regions.read(by(pd), key, 72, &mut out, None).unwrap();
    assert_eq!(u64::from_ne_bytes(out), 5);
    let add = AtomicOp::FetchAdd { add: 1 };
    assert_eq!(
        regions.atomic(by(pd), key, 68, add),
        Err(MemoryFault::Misaligned { addr: 68 })
    );
    let outside = MemoryFault::OutOfRange {
        key: key.0,
        addr: 76,
        length: 8,
    };
    assert_eq!(regions.atomic(by(pd), key, 76, add), Err(outside));
}

#[test]
fn a_list_that_is_too_short_touches_nothing() {
    let (regions, pd) = regions();
    let key = regions
        .table
        .register(pd, Block::new(0, 64), Access::ALL)
        .unwrap()
        .rkey;
    let sges = [0, 32].map(|addr| Sge {
        addr,
        length: 8,
        lkey: Lkey(key.0),
    });
    let short = |need| Err(MemoryFault::TooShort { have: 16, need });
    assert_eq!(regions.scatter(pd, &sges, 4, &[1; 13], None), short(17));
    assert_eq!(
        regions.gather(pd, &sges, u32::MAX, &mut [0], None),
        short(1 << 32)
    );
    assert_eq!(regions.gather(pd, &[], 0, &mut [0], None), {
        Err(MemoryFault::TooShort { have: 0, need: 1 })
    });
    assert_eq!(regions.bytes(key).unwrap().touched.get(), 0);
}

#[test]
fn an_element_whose_address_wraps_is_out_of_range() {
    let (regions, pd) = regions();
    let key = regions
        .table
        .register(pd, Block::new(0, 64), Access::ALL)
        .unwrap()
        .rkey;
    let sge = Sge {
        addr: u64::MAX - 3,
        length: 16,
        lkey: Lkey(key.0),
    };
    // Byte 4 of the element would be at address 0, which is inside the region.
    let fault = regions
        .gather(pd, &[sge], 4, &mut [0; 4], None)
        .unwrap_err();
    assert_eq!(
        fault,
        MemoryFault::OutOfRange {
            key: key.0,
            addr: sge.addr,
            length: 16
        }
    );
}

#[test]
fn receiving_into_a_region_without_local_writes_is_refused() {
    let (regions, pd) = regions();
    let key = regions
        .table
        .register(pd, Block::new(0, 8), Access::REMOTE_READ)
        .unwrap()
        .rkey;
    let sge = Sge {
        addr: 0,
        length: 8,
        lkey: Lkey(key.0),
    };
    let refused = MemoryFault::NotAllowed {
        key: key.0,
        allowed: 4,
        wanted: 1,
    };
    assert_eq!(regions.scatter(pd, &[sge], 0, &[1], None), Err(refused));
    regions.gather(pd, &[sge], 0, &mut [0; 8], None).unwrap();
}

/// A registration: domain, address, length, rights, whether it was invalidated.
type Row = (PdId, u64, u64, Access, bool);

proptest! {
    /// Scatter and gather at random, beside one flat buffer.
    #[test]
    fn a_list_of_elements_is_one_buffer(
        lengths in prop::collection::vec(0_u32..40, 1..8),
        spans in prop::collection::vec((0_u32..200, 0_u32..100), 1..12),
    ) {
        let (regions, pd) = regions();
        let sges: Vec<Sge> = (0_u64..)
            .zip(&lengths)
            .map(|(i, &length)| {
                // Each element in the middle of a region of its own.
                let addr = 1000 * i;
                let block = Block::new(addr, length as usize + 20);
                let key = regions.table.register(pd, block, Access::LOCAL_WRITE).unwrap().lkey;
                Sge { addr: addr + 10, length, lkey: key }
            })
            .collect();
        let total: u32 = lengths.iter().sum();
        let mut flat = vec![0; total as usize];
        regions.gather(pd, &sges, 0, &mut flat, None).unwrap();
        for (i, (offset, length)) in spans.into_iter().enumerate() {
            let data: Vec<u8> = (0..length).map(|byte| (byte as usize + i) as u8).collect();
            let mut crc = Crc::new();
            let written = regions.scatter(pd, &sges, offset, &data, Some(&mut crc));
            if length != 0 && offset + length > total {
                let (have, need) = (total.into(), (offset + length).into());
                prop_assert_eq!(written, Err(MemoryFault::TooShort { have, need }));
                continue;
            }
            prop_assert_eq!(written, Ok(()));
            let mut expected = Crc::new();
            expected.update(&data);
            prop_assert_eq!(crc, expected);
            if length != 0 {
                flat[offset as usize..(offset + length) as usize].copy_from_slice(&data);
            }
            let (mut out, mut crc) = (vec![0; data.len()], Crc::new());
            regions.gather(pd, &sges, offset, &mut out, Some(&mut crc)).unwrap();
            prop_assert_eq!((&out, crc), (&data, expected));
        }
        let mut all = vec![0; total as usize];
        regions.gather(pd, &sges, 0, &mut all, None).unwrap();
        prop_assert_eq!(all, flat);
        // Nothing outside the elements was touched.
        for sge in &sges {
            let data = regions.bytes(Rkey(sge.lkey.0)).unwrap().data.borrow();
            let end = 10 + sge.length as usize;
            for at in (0..10).chain(end..end + 10) {
                prop_assert_eq!(data[at], (at * 7 + 3) as u8);
            }
        }
    }

    /// Registrations, invalidations and accesses at random, beside a map and arithmetic that is
    /// wide enough.
    #[test]
    fn accesses_are_allowed_exactly_when_key_range_domain_and_rights_agree(
        steps in prop::collection::vec(
            (0_u8..8, 0_usize..12, 0_u64..24, 0_u32..24, 0_u32..32, any::<bool>()),
            1..80,
        ),
        base in prop::sample::select(vec![0_u64, 4096, u64::MAX - 40]),
    ) {
        let (mut regions, first) = regions();
        let domains = [first, regions.table.alloc_pd()];
        let mut model = BTreeMap::<u32, Option<Row>>::new();
        for (what, pick, at, length, bits, second) in steps {
            let pd = domains[usize::from(second)];
            let key = model.keys().nth(pick % model.len().max(1)).copied().unwrap_or(bits);
            let known = model.get(&key).copied().flatten();
            let access = Access::from_bits(bits & 0b1111 | bits >> 4 << 30);
            match what {
                0 | 1 => {
                    let block = Block::new(base + at, length as usize);
                    if let Ok(new) = regions.table.register(pd, block, access) {
                        let row = (pd, base + at, length.into(), access, false);
                        prop_assert_eq!(model.insert(new.rkey.0, Some(row)), None);
                    }
                }
                2 => {
                    prop_assert_eq!(take(&mut regions, Rkey(key)).is_ok(), known.is_some());
                    if known.is_some() {
                        model.insert(key, None);
                    }
                }
                3 => {
                    let may = known.is_some_and(|(its, _, _, access, gone)| {
                        its == pd && access.contains(Access::REMOTE_INVALIDATE) && !gone
                    });
                    prop_assert_eq!(regions.invalidate(by(pd), Rkey(key)).is_ok(), may);
                    if may {
                        let row = known.map(|(pd, addr, length, access, _)| {
                            (pd, addr, length, access, true)
                        });
                        model.insert(key, row);
                    }
                }
                _ => {
                    let addr = base.wrapping_add(at).wrapping_sub(4);
                    let may = length == 0 || known.is_some_and(|(its, start, size, allowed, gone)| {
                        let (start, addr) = (u128::from(start), u128::from(addr));
                        its == pd
                            && !gone
                            && allowed.contains(access)
                            && start <= addr
                            && addr + u128::from(length) <= start + u128::from(size)
                    });
                    let found = regions.check_remote(by(pd), Rkey(key), addr, length, access);
                    prop_assert_eq!(found.is_ok(), may, "{:?}", found);
                    let sge = Sge { addr, length, lkey: Lkey(key) };
                    let found = regions.check_local(pd, &[sge], access);
                    prop_assert_eq!(found.is_ok(), may, "{:?}", found);
                }
            }
            let live = model.values().flatten().count();
            prop_assert_eq!(regions.table.len(), live);
        }
    }
}

#[test]
fn bytes_that_are_not_there_are_an_error_of_whoever_wants_them() {
    let (regions, pd) = regions();
    let block = Block::new(0x1000, 64);
    block.end.set(32);
    let keys = regions.table.register(pd, block, Access::ALL).unwrap();
    let sge = |addr, length| Sge {
        addr,
        length,
        lkey: keys.lkey,
    };
    let gone = |addr| {
        let key = keys.rkey.0;
        Err(MemoryFault::Unreachable { key, addr })
    };
    let (mut out, data) = ([0; 16], [9; 16]);
    let both = [sge(0x1000, 8), sge(0x101c, 16)];
    assert_eq!(regions.gather(pd, &both, 0, &mut out, None), gone(0x101c));
    assert_eq!(regions.scatter(pd, &both, 0, &data, None), gone(0x101c));
    assert_eq!(regions.scatter(pd, &both[..1], 0, &data[..8], None), Ok(()));
    let one = [sge(0x1018, 16)];
    assert_eq!(regions.gather(pd, &one, 0, &mut out, None), gone(0x1018));
    assert_eq!(
        regions.read(by(pd), keys.rkey, 0x1018, &mut out, None),
        gone(0x1018)
    );
    assert_eq!(
        regions.write(by(pd), keys.rkey, 0x1018, &data, Order::Any, None),
        gone(0x1018)
    );
    let add = AtomicOp::FetchAdd { add: 1 };
    assert_eq!(
        regions.atomic(by(pd), keys.rkey, 0x1020, add).err(),
        gone(0x1020).err()
    );
    assert!(regions.atomic(by(pd), keys.rkey, 0x1018, add).is_ok());
}
