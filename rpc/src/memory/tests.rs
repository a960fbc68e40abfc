#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use trunkline::{Drive, Node};

/// Those of a node of its own, of which peers may have `budget` bytes.
fn regions(budget: u64, address: u8) -> Arc<Regions> {
    let node = Node::builder().address([127, 9, 80, address].into());
    let pd = node.drive(Drive::Inline).build().unwrap().alloc_pd();
    Regions::new(pd, budget)
}

/// Bytes that are kept, as they are counted and as they are.
fn kept(regions: &Regions) -> (usize, usize) {
    let unused = lock(&regions.unused);
    let all = unused.regions.values().flatten();
    (unused.bytes, all.map(Mr::len).sum())
}

#[test]
fn regions_are_kept_as_far_as_they_are_few_and_serve_again() {
    let regions = regions(0, 1);
    let many = [(); 5].map(|()| regions.take(KEPT as u32 / 4).unwrap());
    assert_eq!(kept(&regions), (0, 0));
    drop(many);
    assert_eq!(kept(&regions), (KEPT, KEPT), "one was too many");
    for _ in 0..10 {
        let again = regions.take(KEPT as u32 / 4 - 1).unwrap();
        assert_eq!(kept(&regions), (KEPT / 4 * 3, KEPT / 4 * 3));
        drop(again);
        assert_eq!(kept(&regions), (KEPT, KEPT));
    }
}

#[test]
fn memory_whose_key_a_peer_was_told_never_serves_again() {
    let regions = regions(u64::MAX, 2);
    let bytes = vec![1; SMALLEST];
    let told = [regions.offer(&bytes), regions.lend(&bytes)].map(Option::unwrap);
    let keys = told.each_ref().map(|region| region.extent().remote.rkey);
    drop(told);
    assert_eq!(kept(&regions), (0, 0));
    let next = regions.take(SMALLEST as u32).unwrap();
    assert!(!keys.contains(&next.extent().remote.rkey));
}

#[test]
fn what_is_kept_for_peers_is_bounded_until_it_is_given_back() {
    let regions = regions(100, 3);
    let lent = regions.lend(&[0; 60]).unwrap();
    assert!(regions.lend(&[0; 41]).is_none());
    assert!(regions.admit(41).is_none());
    let (region, charge) = regions.admit(40).unwrap();
    // What it takes is given back when the request is answered, not when its bytes are gone.
    drop(region);
    assert!(regions.admit(1).is_none());
    drop(lent);
    assert!(regions.lend(&[0; 61]).is_none());
    drop(charge);
    assert!(regions.lend(&[0; 100]).is_some());
}
