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
    let told = [regions.offer(&bytes), regions.share().lend(&bytes)].map(Option::unwrap);
    let keys = told.each_ref().map(|region| region.extent().remote.rkey);
    drop(told);
    assert_eq!(kept(&regions), (0, 0));
    let next = regions.take(SMALLEST as u32).unwrap();
    assert!(!keys.contains(&next.extent().remote.rkey));
}

#[test]
fn what_is_kept_for_peers_is_bounded_until_it_is_given_back() {
    let each = SMALLEST as u64;
    let regions = regions(4 * each, 3);
    let share = regions.share();
    let lent = share.lend(&[0; SMALLEST - 1]).unwrap();
    assert!(share.lend(&[0; SMALLEST + 1]).is_none());
    assert!(share.admit(SMALLEST as u32 + 1).is_none());
    // A byte takes as much as it costs.
    let (region, charge) = share.admit(1).unwrap();
    // What it takes is given back when the request is answered, not when its bytes are gone.
    drop(region);
    assert!(share.admit(1).is_none() && share.hold(&[0]).is_none());
    drop(lent);
    assert!(share.lend(&[0; SMALLEST + 1]).is_none());
    drop(charge);
    // It is the region that costs.
    let two = share.admit(SMALLEST as u32 + 1).unwrap();
    assert_eq!(regions.left.load(Ordering::Relaxed), 2 * each);
    drop(two);
    // Where nothing is kept a body is taken, as long as there may be.
    assert!(share.lend(&[0; 3 * SMALLEST]).is_some());
    assert!(share.lend(&[0; 4 * SMALLEST + 1]).is_none());
    assert!(share.lend(&[0; 2 * SMALLEST]).is_some());
    assert_eq!(regions.left.load(Ordering::Relaxed), 4 * each);
}

#[test]
fn no_connection_has_more_than_it_leaves_to_the_others() {
    let regions = regions(16 * SMALLEST as u64, 4);
    let takes_all = |share: &Arc<Share>| -> Vec<_> {
        std::iter::from_fn(|| share.hold(&[0])).take(100).collect()
    };
    let shares = [(); 4].map(|()| regions.share());
    let held = shares.each_ref().map(takes_all);
    assert_eq!(held.each_ref().map(Vec::len), [8, 4, 2, 1]);
    drop(held);
    assert_eq!(takes_all(&shares[3]).len(), 8);
}
