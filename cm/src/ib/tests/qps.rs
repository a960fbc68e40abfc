//! A QP has one connection at a time, at both ends: what is stale, and what is forged.

use super::{GUID, Stage, answer, ask, drain, messages};
use crate::event::Route;
use crate::ib::{AcceptError, CloseReason, Config, Event, RequestError, message};
use crate::message::{drep, mad};
use crate::retry::Retry;
use crate::tests::{address, path};
use trunkline_wire::cm::{Answered, CmMad, CommId, Message, PrivateData, RejReason};
use trunkline_wire::{Qpn, Workers};

#[test]
fn a_restarted_peer_connects_with_the_qp_of_a_connection_that_it_lost() {
    let mut stage = Stage::new();
    stage.answering();
    let old = stage.id();
    let (ours, theirs, transaction) = (stage.ours, stage.theirs, stage.transaction);
    // Reborn: another number, the same QP.
    (stage.theirs, stage.transaction) = (CommId(0x5555), 0x99);
    stage.deliver(&stage.req());
    let (sent, events) = drain(&mut stage.manager);
    let said = messages(&sent);
    let [
        CmMad {
            transaction_id,
            message: Message::Dreq(dreq),
        },
        CmMad {
            message: Message::Rej(rej),
            ..
        },
    ] = &said[..]
    else {
        panic!("the old connection ends, the new one is refused: {said:?}")
    };
    assert_eq!(
        (dreq.local, dreq.remote, dreq.remote_qpn.get()),
        (ours, theirs, 0x22)
    );
    assert_eq!(
        (rej.remote, rej.reason),
        (stage.theirs, RejReason::StaleConnection)
    );
    assert!(
        events.is_empty(),
        "the old one ends when the peer has answered"
    );
    // Who knows nothing of a connection confirms its end.
    stage.deliver(&mad(*transaction_id, drep(theirs, ours)));
    let (_, events) = drain(&mut stage.manager);
    assert!(
        matches!(events[..], [Event::Closed { id, reason: CloseReason::Stale, .. }] if id == old)
    );
    // The next try finds nothing in its way.
    (stage.theirs, stage.transaction) = (CommId(0x5556), transaction + 1);
    stage.asked();
    assert_eq!(stage.manager.counters().stale, 1);
}

#[test]
fn who_has_not_the_guid_of_a_connected_qp_ends_nothing() {
    let mut stage = Stage::new();
    stage.answering();
    let old = stage.id();
    (stage.theirs, stage.peer_guid) = (CommId(0x5555), 0xbad);
    stage.deliver(&stage.req());
    let (sent, events) = drain(&mut stage.manager);
    assert!(sent.is_empty() && matches!(events[..], [Event::Incoming { .. }]));
    assert_eq!((stage.id(), stage.state()), (old, "Established"));
}

#[test]
fn a_forged_request_hides_no_connection_from_its_peer() {
    let mut stage = Stage::new();
    stage.answering();
    let (guid, old) = (stage.peer_guid, stage.id());
    // They are taken; the peer starts again when one of them has been refused.
    for number in [0x5555, 0x5557] {
        (stage.theirs, stage.peer_guid) = (CommId(number), number.into());
        stage.transaction += 1;
        stage.asked();
    }
    let (now, forged) = (stage.now, stage.id());
    let reason = RejReason::ConsumerDefined;
    let refused = stage
        .manager
        .reject(now, forged, reason, PrivateData::default());
    refused.expect("it waits for a decision");
    drain(&mut stage.manager);
    (stage.theirs, stage.peer_guid) = (CommId(0x5559), guid);
    stage.transaction += 1;
    stage.deliver(&stage.req());
    let (sent, _) = drain(&mut stage.manager);
    let said = messages(&sent);
    assert!(matches!(
        said[..],
        [
            CmMad { message: Message::Dreq(_), .. },
            CmMad { message: Message::Rej(rej), .. }
        ] if rej.reason == RejReason::StaleConnection
    ));
    stage.id = Some(old);
    assert_eq!(stage.state(), "DreqSent");
}

#[test]
fn an_answer_from_a_qp_that_is_connected_is_refused() {
    let mut stage = Stage::new();
    stage.answering();
    let old = stage.id();
    (stage.our_qpn, stage.theirs) = (0x12, CommId(0x5555));
    stage.req_sent();
    let asking = stage.id();
    stage.deliver(&stage.rep());
    let (sent, events) = drain(&mut stage.manager);
    let said = messages(&sent);
    assert!(matches!(
        &said[..],
        [CmMad { message: Message::Dreq(_), .. }, CmMad { message: Message::Rej(rej), .. }]
            if rej.refused == Answered::Rep && rej.reason == RejReason::StaleConnection
    ));
    assert!(matches!(events[..], [Event::Rejected { id, .. }] if id == asking));
    stage.id = Some(old);
    assert_eq!(stage.state(), "DreqSent");
}

#[test]
fn the_number_of_a_disconnected_qp_has_to_be_right() {
    let mut stage = Stage::new();
    stage.answering();
    let right = core::mem::replace(&mut stage.our_qpn, 0x77);
    stage.deliver(&stage.dreq());
    assert_eq!(
        (stage.state(), stage.manager.counters().mismatch),
        ("Established", 1)
    );
    stage.our_qpn = right;
    stage.deliver(&stage.dreq());
    assert_eq!(stage.state(), "TimeWait");
}

#[test]
fn a_qp_has_one_connection_at_a_time() {
    let mut stage = Stage::new();
    stage.asking();
    let qpn = Qpn::from_wire(stage.our_qpn);
    let in_use = RequestError::QpInUse(qpn);
    let route = stage.route();
    let again = stage
        .manager
        .connect(stage.now, route, &ask(stage.our_qpn), Retry::PLAIN);
    assert_eq!(again, Err(in_use));
    (stage.theirs, stage.peer_qpn) = (CommId(0x5555), 0x23);
    stage.asked();
    let accepted = stage
        .manager
        .accept(stage.now, stage.id(), &answer(stage.our_qpn));
    assert_eq!(accepted, Err(AcceptError::Request(in_use)));
    assert_eq!(stage.state(), "ReqReceived", "another QP may do");
    let accepted = stage.manager.accept(stage.now, stage.id(), &answer(0x44));
    assert_eq!(accepted, Ok(()));
}

/// A REQ of the peer to another address of this end.
fn asked_at(stage: &mut Stage, local: u8) {
    let (local, remote) = (stage.peer_address, address(local));
    let from = Route { local, remote };
    let req = message::req(stage.theirs, from, stage.peer_guid, &ask(stage.peer_qpn));
    let req = mad(stage.transaction, req);
    let path = path(local, remote);
    stage.manager.handle_mad(stage.now, &path, &req);
}

#[test]
fn a_qp_met_at_another_address_of_this_end_has_its_connection_left_alone() {
    let workers = Workers::new(2).expect("two may be");
    let mut stages = workers.iter().map(|worker| {
        let mut config = Config::new(GUID);
        config.worker = worker;
        Stage::with(config)
    });
    let (mut here, mut there) = (stages.next().expect("one"), stages.next().expect("two"));
    here.answering();
    for (local, state) in [(7, "Established"), (1, "DreqSent")] {
        asked_at(&mut there, local);
        let met = there.manager.poll_met().expect("a QP was met");
        here.manager.handle_met(here.now, &met);
        assert_eq!(here.state(), state, "met at address {local}");
        there.theirs = CommId(there.theirs.0 + 1);
    }
}

#[test]
fn a_qp_that_the_peer_takes_for_connected_is_kept_out_of_use_for_a_while() {
    let mut stage = Stage::new();
    stage.req_sent();
    let rej = message::rej(stage.swapped(), Answered::Req, RejReason::StaleConnection);
    stage.deliver(&mad(stage.transaction, rej));
    let (_, events) = drain(&mut stage.manager);
    assert!(matches!(events[..], [Event::Rejected { .. }]));
    assert_eq!(stage.state(), "TimeWait");
    stage.now = stage.manager.poll_timeout().expect("time wait ends");
    stage.manager.handle_timeout(stage.now);
    let (_, events) = drain(&mut stage.manager);
    assert!(matches!(events[..], [Event::TimeWaitExit { qpn, .. }] if qpn.get() == 0x11));
}
