#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use proptest::prelude::*;

/// Most responses that a list of the tests holds.
const LIMIT: u32 = 4;

const READ: Outcome = Outcome::Read {
    key: Rkey(1),
    addr: 4096,
    length: 100,
};

/// A list with responses to these messages.
fn with(messages: &[u32]) -> (Responses, ResponseList) {
    let (mut owner, mut list) = (Responses::default(), ResponseList::EMPTY);
    for msn in messages {
        owner.add(&mut list, *msn, 0, Outcome::Value((*msn).into()));
    }
    (owner, list)
}

fn messages(owner: &Responses, list: ResponseList) -> Vec<u32> {
    owner.of(list).map(|(_, response)| response.msn).collect()
}

#[test]
fn responses_are_kept_in_the_order_of_messages() {
    // Message numbers wrap.
    let (owner, list) = with(&[7, u32::MAX, 3, 0]);
    assert_eq!(messages(&owner, list), [u32::MAX, 0, 3, 7]);
    assert_eq!(owner.outcome(list, 3), Some(Outcome::Value(3)));
    assert_eq!(owner.outcome(list, 4), None);
}

#[test]
fn what_the_requester_has_done_with_makes_room_and_nothing_else_does() {
    let (mut owner, mut list) = with(&[1, 2, 3, 4]);
    // All four are outstanding, and there is room for four.
    assert!(!owner.make_room(&mut list, 5, 4, LIMIT));
    assert_eq!(messages(&owner, list), [1, 2, 3, 4]);
    // It has done with the first two.
    assert!(owner.make_room(&mut list, 5, 2, LIMIT));
    assert_eq!(messages(&owner, list), [3, 4]);
    // One that came late, before others that are kept.
    assert!(owner.make_room(&mut list, 2, 0, LIMIT));
    assert_eq!(messages(&owner, list), [3, 4]);
    // A requester that says less than it has got the better of nobody: no more than the limit.
    let (mut owner, mut list) = with(&[5, 6, 7, 8]);
    assert!(!owner.make_room(&mut list, 4, 0, LIMIT));
    assert_eq!(owner.len(), 4);
}

#[test]
fn a_response_goes_when_all_of_its_packets_are_acknowledged() {
    let (mut owner, mut list) = with(&[1, 2]);
    let at = owner.next_unsent(list).unwrap();
    let serial = owner[at].serial;
    owner.sent(at, 2, false);
    assert!(!owner.acked(&mut list, at, serial));
    owner.sent(at, 1, true);
    assert_eq!(owner.next_unsent(list).map(|at| owner[at].msn), Some(2));
    assert!(!owner.acked(&mut list, at, serial));
    assert!(owner.acked(&mut list, at, serial));
    assert_eq!(messages(&owner, list), [2]);
    // Another one may have its index now.
    owner.add(&mut list, 3, 0, READ);
    assert!(!owner.acked(&mut list, at, serial));
    assert_eq!(messages(&owner, list), [2, 3]);
}

#[test]
fn packets_of_a_former_transmission_do_not_count_for_the_next_one() {
    let (mut owner, mut list) = with(&[1]);
    let at = owner.next_unsent(list).unwrap();
    let old = owner[at].serial;
    owner.sent(at, 3, true);
    owner.repeat(list, 1, 9);
    assert_eq!(
        (owner.next_unsent(list), owner[at].replay_epoch),
        (Some(at), 9)
    );
    assert!(owner.get(at, old).is_none());
    assert!(!owner.acked(&mut list, at, old));
    let new = owner[at].serial;
    owner.sent(at, 1, true);
    assert!(owner.acked(&mut list, at, new) && owner.is_empty());
    // Of a message that is not kept there is nothing to repeat.
    owner.repeat(list, 1, 10);
    assert_eq!(owner.next_unsent(list), None);
}

proptest! {
    /// Lists of several flows share their memory, and none sees another's.
    #[test]
    fn lists_are_as_those_of_a_plain_model(
        steps in prop::collection::vec((0..3_usize, 0..6_u32, 0..3_u8), 0..60),
    ) {
        let mut owner = Responses::default();
        let mut lists = [ResponseList::EMPTY; 3];
        let mut model: [Vec<u32>; 3] = Default::default();
        for (which, msn, step) in steps {
            let (list, kept) = (&mut lists[which], &mut model[which]);
            match step {
                0 => {
                    owner.add(list, msn, 0, READ);
                    let place = kept.iter().take_while(|other| **other < msn).count();
                    kept.insert(place, msn);
                }
                1 => {
                    owner.drop_those(list, |response| response.msn >= msn);
                    kept.retain(|other| *other < msn);
                }
                _ => {
                    let found = owner.of(*list).find(|(_, other)| other.msn == msn);
                    if let Some((at, _)) = found {
                        owner.remove(list, at);
                        kept.remove(kept.iter().position(|other| *other == msn).unwrap());
                    }
                }
            }
            for (list, kept) in lists.iter().zip(&model) {
                prop_assert_eq!(&messages(&owner, *list), kept);
            }
            prop_assert_eq!(owner.len(), model.iter().map(Vec::len).sum::<usize>());
        }
    }
}
