#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use proptest::prelude::*;
use trunkline_conn::work::{Local, Remote, SendFlags, SendOp};

fn pending(qp: u32, wr_id: u64) -> Pending {
    let target = Remote {
        addr: 0,
        rkey: trunkline_wire::Rkey(0),
    };
    let request = Request {
        wr_id,
        op: SendOp::Write(target),
        flags: SendFlags::default(),
        length: 8,
        local: Local::Sges(smallvec::SmallVec::new()),
    };
    Pending::new(qp, request, 0, 1)
}

/// The requests of a QP from its first one on, both ways.
fn of(owner: &Requests, order: &PostingOrder) -> Vec<u64> {
    let forth = |at: u32| owner.get(at).map(|pending| (at, pending));
    let walk = std::iter::successors(forth(order.head), |(_, each)| forth(each.order_next));
    let found: Vec<u64> = walk.map(|(_, each)| each.request.wr_id).collect();
    let walk = std::iter::successors(forth(order.tail), |(_, each)| forth(each.order_prev));
    let mut back: Vec<u64> = walk.map(|(_, each)| each.request.wr_id).collect();
    back.reverse();
    assert_eq!(found, back);
    found
}

#[test]
fn no_use_of_a_slot_is_taken_for_the_one_before() {
    let (mut owner, mut order) = (Requests::new(Keyed::new([1, 2])), PostingOrder::EMPTY);
    let at = owner.post(&mut order, pending(0, 1));
    let serial = owner[at].serial;
    owner.end(&mut order, at);
    assert!(order.is_empty() && owner.len() == 0);
    assert_eq!(owner.post(&mut order, pending(0, 2)), at);
    assert_ne!(owner[at].serial, serial);
    assert_eq!(order.first(), Some(at));
}

#[test]
fn a_flow_has_its_requests_in_the_order_in_which_they_joined() {
    let (mut owner, mut order) = (Requests::new(Keyed::new([1, 2])), PostingOrder::EMPTY);
    let (mut one, mut other) = ((NONE, NONE), (NONE, NONE));
    for wr_id in 0..6 {
        let at = owner.post(&mut order, pending(0, wr_id));
        let (head, tail) = if wr_id % 2 == 0 {
            (&mut one.0, &mut one.1)
        } else {
            (&mut other.0, &mut other.1)
        };
        owner.join((head, tail), at);
    }
    for (flow, expected) in [(one, [0, 2, 4]), (other, [1, 3, 5])] {
        let next = |at: u32| owner.get(at).map(|pending| (at, pending));
        let walk = std::iter::successors(next(flow.0), |(_, each)| next(each.flow_next));
        let found: Vec<_> = walk.map(|(at, each)| (at, each.request.wr_id)).collect();
        let numbers: Vec<_> = found.iter().map(|(_, wr_id)| *wr_id).collect();
        assert_eq!((numbers, found[2].0), (expected.to_vec(), flow.1));
    }
}

proptest! {
    /// Requests of several QPs share their slots; each QP has its own, in posting order.
    #[test]
    fn each_qp_has_its_requests_in_posting_order(
        steps in prop::collection::vec((0..3_usize, any::<prop::sample::Index>(), 0..3_u8), 0..80),
    ) {
        let mut owner = Requests::new(Keyed::new([1, 2]));
        let mut orders = [PostingOrder::EMPTY; 3];
        let mut model: [Vec<(u64, u32)>; 3] = Default::default();
        for (number, (qp, which, step)) in steps.into_iter().enumerate() {
            let (order, kept) = (&mut orders[qp], &mut model[qp]);
            if step > 0 || kept.is_empty() {
                let at = owner.post(order, pending(qp as u32, number as u64));
                kept.push((number as u64, at));
            } else {
                let (_, at) = kept.remove(which.index(kept.len()));
                owner.end(order, at);
            }
            for (order, kept) in orders.iter().zip(&model) {
                let numbers: Vec<u64> = kept.iter().map(|(number, _)| *number).collect();
                prop_assert_eq!(of(&owner, order), numbers);
                prop_assert_eq!(order.first(), kept.first().map(|(_, at)| *at));
            }
            prop_assert_eq!(owner.len(), model.iter().map(Vec::len).sum::<usize>());
        }
    }
}
