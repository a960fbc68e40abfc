#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use crate::engine::qp::{Attributes, QpQueues, Wire};
use crate::engine::requests::PostingOrder;
use crate::engine::tenants::Tenant;
use crate::queue::{SendCursor, SendQueue, Size};
use crate::slab::NONE;
use crate::state::{QpState, QpType};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64};
use trunkline_conn::mem::PdId;
use trunkline_conn::secret::{Purpose, Secret};
use trunkline_wire::Worker;

type Heap = Arc<[AtomicU64]>;

fn owner(most: u32) -> Qps<Heap> {
    let stream = Secret::from_seed(1).stream(Purpose::Qpns);
    Qps::new(Secret24::new(stream, Worker::ONLY), most)
}

/// Adds a QP; its index and number.
fn add(owner: &mut Qps<Heap>) -> (u32, Qpn) {
    let Place { index, qpn } = owner.reserve().unwrap();
    insert(owner, Place { index, qpn });
    (index, qpn)
}

/// Adds a QP at a place that was reserved.
fn insert(owner: &mut Qps<Heap>, Place { index, qpn }: Place) {
    let queues = Arc::new(QpQueues {
        qpn,
        index,
        cqs: [0; 2],
        srq: NONE,
        send: SendQueue::new(Size::send(1, 1, 0, false).unwrap()),
        receive: None,
        state: AtomicU8::new(QpState::Reset as u8),
    });
    let qp = Qp {
        queues,
        cursor: SendCursor::default(),
        order: PostingOrder::EMPTY,
        pd: PdId::default(),
        state: QpState::Reset,
        signal_all: false,
        tenant: Tenant::OWN,
        wire: Wire::None,
    };
    let cold = Cold {
        kind: QpType::Rc,
        attributes: Attributes::default(),
        draining: false,
        pinned: false,
        complete_last_wqe: false,
        routes: None,
    };
    owner.insert(qp, cold);
}

#[test]
fn a_qp_is_found_by_its_number_until_it_is_gone() {
    let mut owner = owner(8);
    let made: Vec<_> = (0..4).map(|_| add(&mut owner)).collect();
    for (index, number) in &made {
        assert_eq!(owner.find(*number), Some(*index));
        assert_eq!(owner[*index].queues.qpn, *number);
        assert_eq!(owner.number_at(*index), *number);
    }
    let numbers: BTreeSet<_> = made.iter().map(|(_, number)| number.get()).collect();
    assert_eq!(numbers.len(), 4);
    let (index, number) = made[2];
    owner.remove(index);
    assert_eq!((owner.find(number), owner.len()), (None, 3));
    assert!(owner.get(index).is_none() && owner.get_cold(index).is_none());
    // What names it still leads to its index.
    assert_eq!(owner.index_at(number), index);
}

#[test]
fn a_number_rests_as_long_as_there_are_others() {
    let mut owner = owner(u32::MAX);
    let (first, number) = add(&mut owner);
    owner.remove(first);
    for _ in 0..RESTING {
        let (index, other) = add(&mut owner);
        assert_ne!(other, number);
        owner.remove(index);
    }
    // Those that went after it rest.
    assert_eq!(add(&mut owner), (first, number));
}

#[test]
fn a_number_that_rests_is_used_where_there_is_no_other() {
    let mut owner = owner(2);
    let (first, number) = add(&mut owner);
    add(&mut owner);
    let full = owner.reserve();
    assert!(
        matches!(full, Err(VerbsError::Limit { limit: 2, .. })),
        "{full:?}"
    );
    owner.remove(first);
    assert_eq!(add(&mut owner), (first, number));
}

#[test]
fn a_place_that_is_reserved_is_nobodys_until_its_qp_is_inserted() {
    let mut owner = owner(2);
    let place = owner.reserve().unwrap();
    assert_eq!((owner.len(), owner.find(place.qpn)), (0, None));
    assert!(owner.get_cold(place.index).is_none());
    let (other, number) = add(&mut owner);
    assert_ne!((other, number), (place.index, place.qpn));
    let full = owner.reserve();
    assert!(
        matches!(full, Err(VerbsError::Limit { limit: 2, .. })),
        "{full:?}"
    );
    insert(&mut owner, place);
    assert_eq!((owner.len(), owner.find(place.qpn)), (2, Some(place.index)));
    assert_eq!(owner.index_at(number), other);
}

#[test]
fn no_generation_comes_twice_in_a_row_and_none_is_zero() {
    let mut owner = owner(1);
    let (qp, _) = add(&mut owner);
    let mut seen = vec![owner.generation(qp)];
    owner.begin_life(qp);
    seen.push(owner.generation(qp));
    owner.remove(qp);
    assert_eq!(add(&mut owner).0, qp);
    seen.push(owner.generation(qp));
    owner.names[qp as usize].generation = u32::MAX;
    owner.begin_life(qp);
    seen.push(owner.generation(qp));
    assert_eq!(seen, [1, 2, 3, 1]);
}

#[test]
fn a_number_leads_to_its_index_in_whatever_order_they_are_named() {
    let mut owner = owner(u32::MAX);
    let made: Vec<_> = (0..100).map(|_| add(&mut owner)).collect();
    let stranger = Qpn::from_wire(owner.secret.seal(100));
    let up = made.iter();
    let scattered = (0..300).map(|at| &made[at * 37 % 100]);
    for (index, number) in up.clone().chain(up.rev()).chain(scattered) {
        for _ in 0..2 {
            assert_eq!(owner.find(*number), Some(*index));
        }
        assert_eq!(owner.index_at(Qpn::from_wire(1)), NONE);
        assert_eq!(
            (owner.index_at(stranger), owner.find(stranger)),
            (100, None)
        );
        assert_eq!(owner.find(*number), Some(*index));
    }
}

#[test]
fn numbers_that_are_named_in_a_row_are_not_opened() {
    let mut owner = owner(u32::MAX);
    let mut made: Vec<_> = (0..100).map(|_| add(&mut owner)).collect();
    for _ in 0..2 {
        owner.find(made[0].1);
        owner.find(made[1].1);
        // Whatever the permutation, it is not asked.
        let secret = Secret::from_seed(2).stream(Purpose::Qpns);
        let other = Secret24::new(secret, Worker::ONLY);
        other.expect(made[1].1.get(), made[1].0);
        let secret = std::mem::replace(&mut owner.secret, other);
        for (index, number) in &made[2..] {
            assert_eq!(owner.find(*number), Some(*index));
        }
        owner.secret = secret;
        made.reverse();
    }
}
