//! Who may be whom.

use super::{Stage, THEM, US, address, drain, messages};
use crate::event::{CloseReason, Event, Refused};
use crate::hello::Purpose;
use crate::identity::Identity;
use crate::refusal::{Refusal, RefusalCode};
use core::net::IpAddr;
use trunkline_wire::cm::{CmMad, CommId, Message};

/// The peer of the stage in its next life.
const REBORN: Identity = Identity {
    guid: THEM.guid,
    epoch: 201,
};

impl Stage {
    /// The test goes on to play another peer.
    fn play(&mut self, host: u8, identity: Identity) {
        self.peer_address = address(host);
        self.peer = identity;
        self.theirs = CommId(self.theirs.0 + 1);
        self.transaction += 1;
    }

    pub(super) fn refusal(&mut self) -> Refusal {
        let (sent, events) = drain(&mut self.manager);
        assert!(events.is_empty(), "{events:?}");
        let [
            CmMad {
                message: Message::Rej(rej),
                ..
            },
        ] = &messages(&sent)[..]
        else {
            panic!("{sent:?}")
        };
        Refusal::parse(&rej.private_data).expect("a Trunkline node refuses")
    }
}

#[test]
fn a_node_does_not_talk_to_itself() {
    let mut stage = Stage::new();
    stage.peer = US;
    stage.deliver(&stage.req());
    let refusal = stage.refusal();
    assert_eq!(
        (refusal.code, refusal.identity),
        (RefusalCode::DuplicateGuid, US)
    );
    stage.open();
    stage.deliver(&stage.rep());
    let (_, events) = drain(&mut stage.manager);
    let error = US.tell_apart(US).expect_err("it is this node");
    let (id, route) = (stage.id(), stage.route());
    let reason = Refused::Identity(error);
    assert_eq!(events, [Event::Refused { id, route, reason }]);
    // A request that crosses ours with our own identity cannot be settled.
    stage.open();
    stage.deliver(&stage.req());
    assert_eq!(stage.refusal().code, RefusalCode::DuplicateGuid);
    assert_eq!(stage.state(), "ReqSent");
    assert_eq!(stage.manager.counters().identity, 3);
}

#[test]
fn who_claims_a_guid_first_does_not_lock_out_whose_it_is() {
    // Anybody may ask a node for its GUID and epoch, and say them elsewhere, or others.
    for claimed in [THEM, REBORN] {
        let mut stage = Stage::new();
        stage.play(66, claimed);
        let thief = stage.established_as_acceptor();
        stage.play(2, THEM);
        let honest = stage.established_as_acceptor();
        assert_ne!(thief.id, honest.id);
        assert_eq!(stage.manager.load().established, 2);
        assert_eq!(stage.manager.counters().duplicate_guid, 1);
        // Nor does the thief end anything by being born again, ask or answer.
        stage.play(66, Identity { epoch: 7, ..THEM });
        stage.purpose = Purpose::Private;
        stage.open();
        stage.deliver(&stage.rep());
        let (_, events) = drain(&mut stage.manager);
        let ended: std::vec::Vec<_> = events.iter().filter_map(Event::ends).collect();
        assert_eq!(ended, [thief.id]);
        assert!(stage.manager.close(stage.now, honest.id).is_ok());
    }
}

#[test]
fn a_peer_with_our_guid_is_a_peer_and_counted() {
    let twin = Identity { epoch: 1, ..US };
    let mut stage = Stage::new();
    stage.play(2, twin);
    stage.established_as_acceptor();
    assert_eq!(stage.manager.counters().duplicate_guid, 1);
    // Another connection to it is no news.
    stage.play(2, twin);
    stage.purpose = Purpose::Private;
    stage.established_as_acceptor();
    assert_eq!(stage.manager.counters().duplicate_guid, 1);
    // Requests that cross are settled by the epoch: the lower one wins.
    stage.purpose = Purpose::Pool(7);
    stage.open();
    stage.theirs = CommId(stage.theirs.0 + 1);
    stage.deliver(&stage.req());
    assert_eq!(stage.state(), "RepSent");
}

#[test]
fn twins_that_ask_at_once_both_get_in() {
    let mut stage = Stage::new();
    stage.rep_sent();
    let ours = stage.ours;
    let (address_before, theirs, transaction) =
        (stage.peer_address, stage.theirs, stage.transaction);
    stage.play(3, REBORN);
    stage.established_as_acceptor();
    stage.peer_address = address_before;
    (stage.peer, stage.theirs, stage.transaction, stage.ours) = (THEM, theirs, transaction, ours);
    stage.deliver(&stage.rtu());
    let (_, events) = drain(&mut stage.manager);
    assert!(matches!(events[..], [Event::Established(_)]), "{events:?}");
    assert_eq!(stage.manager.load().established, 2);
    assert_eq!(stage.manager.counters().duplicate_guid, 1);
}

#[test]
fn a_refusal_for_a_guid_is_an_error_in_clear_words() {
    let mut stage = Stage::new();
    stage.open();
    stage.deliver(&stage.rej(RefusalCode::DuplicateGuid));
    let (_, events) = drain(&mut stage.manager);
    let [
        Event::Refused {
            reason: Refused::Identity(error),
            ..
        },
    ] = events[..]
    else {
        panic!("{events:?}")
    };
    assert!(std::format!("{error}").contains("talking to itself"));
}

#[test]
fn one_node_may_have_several_addresses() {
    let mut stage = Stage::new();
    stage.established();
    stage.play(3, THEM);
    stage.established_as_acceptor();
    assert_eq!(
        (stage.manager.load().established, stage.manager.load().peers),
        (2, 2)
    );
}

#[test]
fn a_restart_shows_only_when_the_handshake_is_complete() {
    let mut stage = Stage::new();
    let old = stage.established();
    stage.play(2, REBORN);
    stage.rep_sent();
    // Anybody could have sent that REQ.
    assert_eq!(stage.manager.load().established, 1);
    stage.deliver(&stage.rtu());
    let (_, events) = drain(&mut stage.manager);
    let route = stage.route();
    let [restarted, closed, Event::Established(terms)] = events[..] else {
        panic!("{events:?}")
    };
    assert_eq!(
        restarted,
        Event::PeerRestarted {
            route,
            old: THEM,
            new: REBORN
        }
    );
    let reason = CloseReason::PeerRestarted;
    assert_eq!(
        closed,
        Event::Closed {
            id: old.id,
            route,
            reason
        }
    );
    assert_eq!(terms.identity, REBORN);
}

#[test]
fn a_restart_ends_the_old_life_at_its_address_in_all_states_and_nothing_elsewhere() {
    let mut stage = Stage::new();
    let here = stage.established();
    // The same GUID at another address proves nothing of this one.
    stage.play(3, THEM);
    let there = stage.established_as_acceptor();
    // A half-open ask of the old life, and a connection of somebody else.
    stage.play(2, THEM);
    stage.purpose = crate::Purpose::Private;
    stage.rep_sent();
    let half_open = stage.id();
    stage.play(4, Identity { guid: 77, epoch: 1 });
    let neighbour = stage.established_as_acceptor();
    stage.play(2, REBORN);
    let events = stage.established_again();
    let ended: std::vec::Vec<_> = events.iter().filter_map(Event::ends).collect();
    assert_eq!(ended.len(), 2);
    for id in [here.id, half_open] {
        assert!(ended.contains(&id));
    }
    for other in [there, neighbour] {
        assert!(stage.manager.close(stage.now, other.id).is_ok());
    }
}

#[test]
fn a_late_ask_of_an_old_life_comes_to_nothing() {
    let mut stage = Stage::new();
    stage.peer = REBORN;
    let live = stage.established();
    stage.play(2, THEM);
    stage.purpose = crate::Purpose::Private;
    stage.rep_sent();
    // The node behind the address does not know it.
    let rej = stage.rej(RefusalCode::Cancelled);
    stage.deliver(&rej);
    let (_, events) = drain(&mut stage.manager);
    assert!(matches!(
        events[..],
        [Event::Closed {
            reason: CloseReason::Abandoned(_),
            ..
        }]
    ));
    assert_eq!(stage.manager.load().established, 1);
    assert!(stage.manager.close(stage.now, live.id).is_ok());
}

#[test]
fn an_answer_of_an_old_life_that_comes_after_the_next_has_proved_to_be_there_is_asked_for_again() {
    let mut stage = Stage::new();
    stage.open();
    let (first, ours, late) = (stage.transaction, stage.ours, stage.rep());
    // Nothing is known of the old life when the new one comes.
    stage.play(2, REBORN);
    stage.purpose = Purpose::Private;
    stage.established_as_acceptor();
    stage.deliver(&late);
    let (sent, events) = drain(&mut stage.manager);
    assert!(events.is_empty(), "{events:?}");
    let [
        CmMad {
            message: Message::Rej(_),
            ..
        },
        CmMad {
            transaction_id,
            message: Message::Req(req),
        },
    ] = &messages(&sent)[..]
    else {
        panic!("{sent:?}")
    };
    assert_ne!(*transaction_id, first);
    assert_eq!(req.local, ours);
    // The new life answers, and is no news.
    stage.play(2, REBORN);
    (stage.transaction, stage.ours) = (*transaction_id, ours);
    stage.deliver(&stage.rep());
    let (_, events) = drain(&mut stage.manager);
    let [Event::Established(terms)] = events[..] else {
        panic!("{events:?}")
    };
    assert_eq!(terms.identity, REBORN);
}

#[test]
fn a_confirmation_of_an_old_life_that_comes_after_the_next_has_proved_to_be_there_is_refused() {
    let mut stage = Stage::new();
    stage.rep_sent();
    let (id, late) = (stage.id(), stage.rtu());
    stage.play(2, REBORN);
    stage.purpose = Purpose::Private;
    stage.established_as_acceptor();
    stage.deliver(&late);
    let (sent, events) = drain(&mut stage.manager);
    let reason = CloseReason::PeerRestarted;
    let route = stage.route();
    assert_eq!(events, [Event::Closed { id, route, reason }]);
    assert!(matches!(
        messages(&sent)[..],
        [CmMad {
            message: Message::Rej(_),
            ..
        }]
    ));
}

#[test]
fn an_address_that_another_node_took_over_is_a_restart() {
    let mut stage = Stage::new();
    stage.established();
    let other = Identity {
        guid: 1_000,
        epoch: 1,
    };
    stage.play(2, other);
    let events = stage.established_again();
    let route = stage.route();
    assert_eq!(
        events[0],
        Event::PeerRestarted {
            route,
            old: THEM,
            new: other
        }
    );
    assert_eq!(stage.manager.load().established, 1);
}

#[test]
fn an_ipv4_address_mapped_into_ipv6_is_the_same_peer() {
    let mut stage = Stage::new();
    stage.asked();
    let IpAddr::V4(v4) = stage.peer_address else {
        panic!("the stage is on IPv4")
    };
    stage.peer_address = v4.to_ipv6_mapped().into();
    stage.deliver(&stage.req());
    assert_eq!(stage.manager.counters().duplicate, 1);
}
