//! Connections whose confirmations are late or lost.

use super::{Cable, is_refused, params};
use crate::ib::CloseReason;
use crate::rdma::{Event, Id};
use crate::tests::messages;
use std::vec::Vec;
use trunkline_conn::time::SECOND;
use trunkline_wire::cm::{CmMad, Message};

#[test]
fn a_first_packet_stands_in_for_a_lost_confirmation() {
    let mut cable = Cable::new();
    let (asking, asked) = cable.requested(&params(17));
    let now = cable.now;
    cable.hosts[1]
        .accept(now, asked, &params(18))
        .expect("asked");
    assert!(is_refused(&cable.hosts[0].notify(asking), asking));
    cable.heard(0);
    cable.hosts[1].notify(asked).expect("it waits for that");
    assert!(matches!(cable.only(1), Event::Established { id, .. } if id == asked));
    cable.hosts[0]
        .accept(now, asking, &params(17))
        .expect("answered");
    assert!(matches!(cable.only(0), Event::Established { .. }));
    assert!(cable.heard(1).is_empty(), "the RTU says nothing new");
}

#[test]
fn what_comes_from_the_peers_qp_stands_in_for_a_lost_confirmation() {
    let mut cable = Cable::new();
    let (asking, asked) = cable.requested(&params(17));
    let now = cable.now;
    let accepted = cable.hosts[1].accept(now, asked, &params(18));
    accepted.expect("asked");
    cable.heard(0);
    let confirmed = cable.hosts[0].accept(now, asking, &params(17));
    confirmed.expect("answered");
    // It gets lost.
    while cable.hosts[0].poll_transmit().is_some() {}
    cable.hosts[1].qp_heard(params(18).qpn);
    assert!(matches!(cable.only(1), Event::Established { id, .. } if id == asked));
    cable.hosts[0].qp_heard(params(17).qpn);
    assert!(matches!(cable.only(0), Event::Established { id, .. } if id == asking));
    for host in 0..2 {
        let due = cable.hosts[host].poll_timeout();
        assert_eq!(due, None, "host {host} has nothing to say again");
    }
    cable.hosts[1].qp_heard(params(99).qpn);
    assert!(cable.heard(0).is_empty() && cable.heard(1).is_empty());
}

/// Time passes for host 2 alone, whose messages are lost: what it says, and what is heard of `id`.
fn wait_in_vain(cable: &mut Cable, id: Id) -> (Vec<CmMad>, Option<Event>) {
    let host = &mut cable.hosts[1];
    cable.now = host.poll_timeout().expect("something is to come");
    host.handle_timeout(cable.now);
    let event = host.poll_event(cable.now);
    assert!(event.is_none_or(|event| event.id() == id));
    let sent: Vec<_> = core::iter::from_fn(|| host.poll_transmit()).collect();
    (messages(&sent), event)
}

#[test]
fn what_is_given_up_unconfirmed_is_unreachable_unless_its_program_ends_it_first() {
    for disconnects in [false, true] {
        let mut cable = Cable::new();
        // The peer's address has proved itself.
        cable.established();
        let (_, asked) = cable.requested_at(7174, &params(19));
        let now = cable.now;
        let accepted = cable.hosts[1].accept(now, asked, &params(20));
        accepted.expect("asked");
        let is_dreq = |mad: &CmMad| matches!(mad.message, Message::Dreq(_));
        while !wait_in_vain(&mut cable, asked).0.iter().any(is_dreq) {}
        if disconnects {
            let now = cable.now;
            assert_eq!(cable.hosts[1].disconnect(now, asked), Ok(()));
        }
        let heard = loop {
            if let (_, Some(event)) = wait_in_vain(&mut cable, asked) {
                break event;
            }
        };
        match heard {
            Event::Disconnected { reason, .. } if disconnects => {
                assert_eq!(reason, CloseReason::Unconfirmed);
            }
            Event::Unreachable { .. } if !disconnects => {}
            other => panic!("{other:?}"),
        }
        let (_, exit) = wait_in_vain(&mut cable, asked);
        assert_eq!(exit, Some(Event::TimewaitExit { id: asked }));
    }
}

#[test]
fn a_connection_whose_peers_qp_is_gone_ends_though_nothing_else_is_heard_of_that() {
    let mut cable = Cable::new();
    let (asking, _) = cable.established();
    let begun = cable.now;
    cable.hosts[0].qp_heard(params(17).qpn);
    cable.hosts[0].peer_qp_gone(begun, params(17).qpn);
    let bytes = cable.hosts[0].state_bytes();
    for second in 1..4 {
        // It is said as often as it pleases.
        let later = begun + second * SECOND;
        cable.hosts[0].peer_qp_gone(later, params(17).qpn);
    }
    cable.hosts[0].peer_qp_gone(begun, params(99).qpn);
    assert_eq!(cable.hosts[0].state_bytes(), bytes);
    assert_eq!(cable.hosts[0].poll_event(begun), None);
    let due = cable.hosts[0].poll_timeout().expect("it ends by itself");
    assert_eq!(due.since(begun), 7 * SECOND);
    cable.now = due;
    cable.hosts[0].handle_timeout(due);
    let ended = cable.hosts[0].poll_event(due);
    let failed = CloseReason::Failed;
    assert!(matches!(ended, Some(Event::Disconnected { id, reason, .. })
            if id == asking && reason == failed));
    assert!(cable.hosts[0].poll_transmit().is_some(), "the peer is told");
}

#[test]
fn the_peers_own_word_of_the_end_counts_where_it_comes() {
    let mut cable = Cable::new();
    let (asking, asked) = cable.established();
    let now = cable.now;
    cable.hosts[0].peer_qp_gone(now, params(17).qpn);
    cable.hosts[1].disconnect(now, asked).expect("it stands");
    let ended = cable.heard(0);
    assert!(matches!(ended[..], [Event::Disconnected { id, reason, .. }]
        if id == asking && reason == CloseReason::Peer));
    // The same QP may be in another connection by then.
    while let Some(due) = cable.hosts[0].poll_timeout() {
        cable.now = due;
        cable.hosts[0].handle_timeout(due);
    }
    let later = cable.heard(0);
    let again = |event: &Event| matches!(event, Event::Disconnected { .. });
    assert!(!later.iter().any(again), "{later:?}");
}

#[test]
fn an_id_whose_connection_has_ended_waits_for_nothing_that_its_peers_qp_began() {
    for destroys in [false, true] {
        let mut cable = Cable::new();
        let (asking, _) = cable.established();
        let now = cable.now;
        let bytes = cable.hosts[0].state_bytes();
        cable.hosts[0].peer_qp_gone(now, params(17).qpn);
        assert!(cable.hosts[0].state_bytes() > bytes, "it is counted");
        let ended = match destroys {
            false => cable.hosts[0].disconnect(now, asking),
            true => cable.hosts[0].destroy(now, asking),
        };
        ended.expect("it stands");
        cable.settle();
        while cable.hosts[0].poll_timeout().is_some() {
            cable.wait();
        }
        assert!(cable.now.since(now) < 7 * SECOND, "destroys: {destroys}");
    }
}
