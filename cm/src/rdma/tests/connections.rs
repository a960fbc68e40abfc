//! Connections from request to time wait.

use super::{Cable, is_refused, params};
use crate::ib::CloseReason;
use crate::rdma::{Config, Error, Event, Id, Kind, Params, PortSpace, QpAttributes, Setting};
use crate::retry::Retry;
use crate::tests::path;
use std::vec::Vec;
use trunkline_conn::time::SECOND;
use trunkline_wire::Qpn;
use trunkline_wire::cm::{Message, RejReason};

fn ended(event: Event, who: Id, why: CloseReason) -> bool {
    match event {
        Event::Disconnected { id, reason, .. } => (id, reason) == (who, why),
        _ => false,
    }
}

#[test]
fn both_programs_hear_of_a_connection_from_request_to_time_wait() {
    for v6 in [false, true] {
        let mut cable = Cable::new();
        cable.v6 = v6;
        let (asking, asked) = cable.requested(&Params {
            private_data: b"hello",
            ..params(17)
        });
        let now = cable.now;
        let accepted = Params {
            private_data: b"welcome",
            ..params(18)
        };
        cable.hosts[1].accept(now, asked, &accepted).expect("asked");
        let event = cable.only(0);
        let Event::ConnectResponse { id, params, data } = event else {
            panic!("a response, not {event:?}")
        };
        assert_eq!((id, params.qpn), (asking, Qpn::from_wire(18)));
        assert_eq!((&data[..7], data.len()), (&b"welcome"[..], 196));
        let ready = Params {
            private_data: b"go",
            ..super::params(17)
        };
        cable.hosts[0]
            .accept(now, asking, &ready)
            .expect("answered");
        assert!(matches!(cable.only(0), Event::Established { id, ud: None, .. } if id == asking));
        let event = cable.only(1);
        let Event::Established { id, ud: None, data } = event else {
            panic!("it stands, not {event:?}")
        };
        assert_eq!((id, &data[..2]), (asked, &b"go"[..]));
        assert_eq!(cable.said(), [(0, "REQ"), (1, "REP"), (0, "RTU")]);

        cable.hosts[0].disconnect(now, asking).expect("it stands");
        assert!(ended(cable.only(1), asked, CloseReason::Peer));
        assert!(ended(cable.only(0), asking, CloseReason::Local));
        assert_eq!(cable.said(), [(0, "DREQ"), (1, "DREP")]);
        cable.wait();
        assert_eq!(cable.only(0), Event::TimewaitExit { id: asking });
        assert_eq!(cable.only(1), Event::TimewaitExit { id: asked });
        assert_eq!(cable.hosts[0].ib().load().connections(), 0);
        assert_eq!(cable.hosts[1].ib().load().connections(), 0);
    }
}

#[test]
fn each_end_sends_from_the_psn_that_the_other_expects() {
    let mut cable = Cable::new();
    let (asking, asked) = cable.established();
    let ours = *cable.hosts[0].attributes(asking).expect("it is answered");
    let theirs = *cable.hosts[1].attributes(asked).expect("it has accepted");
    assert_eq!(ours.send_psn, theirs.receive_psn);
    assert_eq!(theirs.send_psn, ours.receive_psn);
    assert_ne!(ours.send_psn, ours.receive_psn);
    assert_eq!(ours.remote_qpn, Qpn::from_wire(18));
    assert_eq!(theirs.remote_qpn, Qpn::from_wire(17));
    assert_eq!(ours.path, theirs.path);
}

#[test]
fn no_end_issues_more_reads_than_the_other_serves() {
    for (asks, answers, expected) in [
        ((4, 8), (8, 16), ((4, 8), (8, 4))),
        ((16, 0), (2, 2), ((2, 0), (0, 2))),
        ((1, 1), (255, 255), ((1, 1), (1, 1))),
        ((0, 0), (9, 9), ((0, 0), (0, 0))),
    ] {
        let with = |qpn, (responder_resources, initiator_depth)| Params {
            responder_resources,
            initiator_depth,
            ..params(qpn)
        };
        let mut cable = Cable::new();
        let (asking, asked) = cable.requested(&with(17, asks));
        let now = cable.now;
        let accepted = cable.hosts[1].accept(now, asked, &with(18, answers));
        accepted.expect("asked");
        cable.heard(0);
        let got = |host: usize, id| {
            let attributes = cable.hosts[host].attributes(id).expect("both have spoken");
            (attributes.responder_resources, attributes.initiator_depth)
        };
        assert_eq!(
            (got(0, asking), got(1, asked)),
            expected,
            "{asks:?} {answers:?}"
        );
    }
}

#[test]
fn a_request_says_what_the_program_set() {
    let mut cable = Cable::new();
    cable.listen(1, PortSpace::Tcp, Kind::Rc, 7174);
    let id = cable.resolved(0, PortSpace::Tcp, Kind::Rc, 7174);
    let manager = &mut cable.hosts[0];
    manager
        .set(id, Setting::TypeOfService(0x28))
        .expect("early enough");
    manager
        .set(id, Setting::AckTimeout(14))
        .expect("early enough");
    assert!(manager.set(id, Setting::AckTimeout(32)).is_err());
    let set = Params {
        responder_resources: 3,
        initiator_depth: 5,
        flow_control: true,
        retry_count: 9,
        rnr_retry_count: 3,
        srq: true,
        ..params(17)
    };
    let now = cable.now;
    manager.connect(now, id, &set).expect("all is well");
    let again = manager.set(id, Setting::TypeOfService(0));
    assert!(is_refused(&again, id));
    let event = cable.only(1);
    let Event::ConnectRequest { params, peer, .. } = event else {
        panic!("a request, not {event:?}")
    };
    assert_eq!(Some(peer), cable.hosts[0].local(id));
    assert_eq!((params.responder_resources, params.initiator_depth), (5, 3));
    assert_eq!((params.retry_count, params.rnr_retry_count), (7, 3));
    assert!(params.srq && params.flow_control);
    let Message::Req(req) = &cable.log[0].1.message else {
        panic!("a REQ goes first")
    };
    assert_eq!(
        (req.primary.traffic_class, req.primary.local_ack_timeout),
        (0x28, 14)
    );
    assert_eq!(req.service_id.0, 0x0106_1c06);
    assert_eq!(req.qpn, Qpn::from_wire(17));
    assert_eq!((req.responder_resources, req.initiator_depth), (3, 5));
}

#[test]
fn a_rejection_carries_its_words() {
    let mut cable = Cable::new();
    let (asking, asked) = cable.requested(&params(17));
    let now = cable.now;
    cable.hosts[1]
        .reject(now, asked, b"go away")
        .expect("asked");
    let event = cable.only(0);
    let Event::Rejected { id, reason, data } = event else {
        panic!("a rejection, not {event:?}")
    };
    assert_eq!((id, reason), (asking, RejReason::ConsumerDefined));
    assert_eq!((&data[..7], data.len()), (&b"go away"[..], 148));
    assert!(cable.heard(1).is_empty(), "who rejects knows");
    let late = cable.hosts[1].accept(now, asked, &params(18));
    assert!(is_refused(&late, asked));
}

#[test]
fn a_response_may_be_rejected_too() {
    let mut cable = Cable::new();
    let (asking, asked) = cable.requested(&params(17));
    let now = cable.now;
    cable.hosts[1]
        .accept(now, asked, &params(18))
        .expect("asked");
    cable.heard(0);
    cable.hosts[0].reject(now, asking, b"no").expect("answered");
    let event = cable.only(1);
    assert!(matches!(event, Event::Rejected { id, data, .. } if id == asked && data.len() == 224));
    cable.wait();
    assert_eq!(cable.only(0), Event::TimewaitExit { id: asking });
}

#[test]
fn nobody_listens_is_told_in_one_round_trip() {
    let mut cable = Cable::new();
    let id = cable.resolved(0, PortSpace::Tcp, Kind::Rc, 9);
    let now = cable.now;
    cable.hosts[0]
        .connect(now, id, &params(17))
        .expect("all is well");
    let event = cable.only(0);
    let reason = RejReason::InvalidServiceId;
    assert!(matches!(event, Event::Rejected { reason: told, .. } if told == reason));
    assert_eq!(cable.said(), [(0, "REQ"), (1, "REJ")]);
}

#[test]
fn a_silent_peer_is_unreachable_after_all_tries() {
    let config = |guid| Config {
        connect: Retry {
            tries: 3,
            total_ns: SECOND,
        },
        ..Config::new(guid)
    };
    let mut cable = Cable::with(config);
    let id = cable.resolved(0, PortSpace::Tcp, Kind::Rc, 9);
    let now = cable.now;
    cable.hosts[0]
        .connect(now, id, &params(17))
        .expect("all is well");
    let mut tries = 0;
    while let Some(due) = cable.hosts[0].poll_timeout() {
        tries += core::iter::from_fn(|| cable.hosts[0].poll_transmit()).count();
        cable.hosts[0].handle_timeout(due);
        cable.now = due;
    }
    assert_eq!(tries, 3);
    let event = cable.only(0);
    assert_eq!(event, Event::Unreachable { id, status: None });
    assert!((SECOND * 7 / 8..=SECOND * 9 / 8).contains(&cable.now.as_nanos()));
}

#[test]
fn both_may_disconnect_at_once() {
    let mut cable = Cable::new();
    let (asking, asked) = cable.established();
    let now = cable.now;
    cable.hosts[0].disconnect(now, asking).expect("it stands");
    cable.hosts[1].disconnect(now, asked).expect("it stands");
    for host in 0..2 {
        assert!(matches!(
            cable.only(host),
            Event::Disconnected {
                reason: CloseReason::Local,
                ..
            }
        ));
    }
    // Whoever comes too late has what it wanted.
    assert_eq!(cable.hosts[0].disconnect(now, asking), Ok(()));
    assert!(cable.heard(0).is_empty() && cable.heard(1).is_empty());
}

#[test]
fn what_the_peer_has_ended_may_be_disconnected_and_what_never_stood_may_not() {
    let mut cable = Cable::new();
    let (asking, asked) = cable.established();
    let now = cable.now;
    cable.hosts[0].disconnect(now, asking).expect("it stands");
    assert!(ended(cable.only(1), asked, CloseReason::Peer));
    cable.said();
    assert_eq!(cable.hosts[1].disconnect(now, asked), Ok(()));
    cable.settle();
    assert!(cable.said().is_empty(), "nothing is left to say");

    let mut cable = Cable::new();
    let (asking, asked) = cable.requested(&params(18));
    cable.hosts[1].reject(now, asked, b"no").expect("undecided");
    cable.settle();
    for (host, id) in [(0, asking), (1, asked)] {
        let never = cable.hosts[host].disconnect(now, id);
        assert!(is_refused(&never, id));
    }
}

#[test]
fn an_accept_whose_qp_cannot_be_readied_sends_nothing_and_the_id_still_waits() {
    let mut cable = Cable::new();
    let (asking, asked) = cable.requested(&params(17));
    let now = cable.now;
    cable.said();
    let refuse = |_: &QpAttributes| Err(Error::NoPort);
    let accepted = cable.hosts[1].accept_with(now, asked, &params(18), refuse);
    assert_eq!(accepted, Err(Error::NoPort));
    cable.settle();
    assert!(cable.said().is_empty() && cable.heard(0).is_empty());
    // It may decide anew, either way.
    let mut agreed = None;
    let ready = |attributes: &QpAttributes| {
        agreed = Some(*attributes);
        Ok::<_, Error>(())
    };
    cable.hosts[1]
        .accept_with(now, asked, &params(18), ready)
        .expect("undecided");
    assert_eq!(agreed.as_ref(), cable.hosts[1].attributes(asked));
    assert!(matches!(cable.only(0), Event::ConnectResponse { .. }));
    // The same at the end that asked.
    cable.said();
    let accepted = cable.hosts[0].accept_with(now, asking, &params(17), refuse);
    assert_eq!(accepted, Err(Error::NoPort));
    cable.settle();
    assert!(cable.said().is_empty() && cable.heard(1).is_empty());
    cable.hosts[0]
        .reject(now, asking, b"no")
        .expect("undecided");
    assert!(matches!(cable.only(1), Event::Rejected { .. }));
}

#[test]
fn an_id_whose_qp_failed_hears_it_once_and_its_peer_is_told() {
    let mut cable = Cable::new();
    let (asking, asked) = cable.established();
    let now = cable.now;
    let qpn = params(17).qpn;
    cable.hosts[0].qp_failed(now, qpn);
    assert!(ended(cable.only(0), asking, CloseReason::Failed));
    assert!(ended(cable.only(1), asked, CloseReason::Peer));
    cable.hosts[0].qp_failed(now, qpn);
    assert!(cable.heard(0).is_empty(), "it is told once");
    cable.wait();
    assert!(matches!(cable.only(0), Event::TimewaitExit { .. }));
}

#[test]
fn an_id_whose_qp_failed_before_its_connection_stood_hears_that_nobody_confirmed() {
    let mut cable = Cable::new();
    let (_, asked) = cable.requested(&params(17));
    let now = cable.now;
    cable.hosts[1]
        .accept(now, asked, &params(18))
        .expect("asked");
    // The QP is ready from here on, and the one who asked has vanished.
    cable.hosts[1].qp_failed(now, params(18).qpn);
    let heard = cable.heard(1);
    let unreachable = Event::Unreachable {
        id: asked,
        status: None,
    };
    assert_eq!(heard, [unreachable]);
}

#[test]
fn a_node_that_ends_tells_every_peer_and_every_id() {
    let mut cable = Cable::new();
    let (stands, far) = cable.established();
    let connecting = cable.resolved(0, PortSpace::Tcp, Kind::Rc, 7174);
    let now = cable.now;
    cable.hosts[0]
        .connect(now, connecting, &params(19))
        .expect("resolved");
    cable.heard(1);
    let mut rounds = 1;
    while cable.hosts[0].end_some(now, 1) {
        rounds += 1;
    }
    assert_eq!(rounds, 3, "one at a time, and none");
    let heard = cable.heard(0);
    assert!(ended(heard[0], stands, CloseReason::Local), "{heard:?}");
    assert_eq!(heard[1..], [Event::ConnectError { id: connecting }]);
    let heard = cable.heard(1);
    assert!(ended(heard[0], far, CloseReason::Peer), "{heard:?}");
    assert!(matches!(heard[1..], [Event::Rejected { .. }]), "{heard:?}");
}

#[test]
fn a_link_local_address_keeps_its_scope() {
    let mut cable = Cable::new();
    let scoped: core::net::SocketAddr = "[fe80::1%7]:7174".parse().expect("an address");
    let manager = &mut cable.hosts[0];
    let id = manager.create(PortSpace::Tcp, Kind::Rc).expect("room");
    assert_eq!(manager.bind(id, scoped), Ok(scoped));
    assert_eq!(manager.local(id), Some(scoped));
    assert_eq!(manager.listen(id, 0), Ok(scoped));
}

#[test]
fn who_is_destroyed_hears_nothing_and_its_peer_is_told() {
    let now = Cable::new().now;
    type Enter = fn(&mut Cable) -> (Id, Id);
    let ends: [(Enter, usize); 4] = [
        (|cable| cable.established(), 0),
        (|cable| cable.established(), 1),
        (|cable| cable.requested(&params(17)), 0),
        (|cable| cable.requested(&params(17)), 1),
    ];
    for (enter, host) in ends {
        let mut cable = Cable::new();
        let ids = enter(&mut cable);
        let (gone, left) = if host == 0 { ids } else { (ids.1, ids.0) };
        cable.hosts[host].destroy(now, gone).expect("it is there");
        assert_eq!(cable.only(1 - host).id(), left);
        assert!(cable.heard(host).is_empty());
        let unknown = Err(Error::UnknownId(gone));
        assert_eq!(cable.hosts[host].destroy(now, gone), unknown);
        assert_eq!(cable.hosts[host].disconnect(now, gone), unknown);
    }
}

#[test]
fn what_was_not_fetched_of_a_destroyed_id_is_not_told() {
    let mut cable = Cable::new();
    let listener = cable.listen(1, PortSpace::Tcp, Kind::Rc, 7174);
    let now = cable.now;
    let ids = [17, 18].map(|qpn| {
        let id = cable.resolved(0, PortSpace::Tcp, Kind::Rc, 7174);
        let connected = cable.hosts[0].connect(now, id, &params(qpn));
        connected.expect("all is well");
        let sent = cable.hosts[0].poll_transmit().expect("a REQ goes out");
        let path = path(sent.route.local, sent.route.remote);
        cable.hosts[1].handle_mad(now, &path, &sent.mad);
        id
    });
    assert_eq!(cable.hosts[1].ids(), 3);
    // Whoever it was for listens no more: nobody could decide.
    cable.hosts[1].destroy(now, listener).expect("it is there");
    assert_eq!(cable.hosts[1].poll_event(now), None);
    assert_eq!(cable.hosts[1].ids(), 0);
    let refusals = core::iter::from_fn(|| cable.hosts[1].poll_transmit());
    for sent in refusals.collect::<Vec<_>>() {
        let path = path(sent.route.local, sent.route.remote);
        cable.hosts[0].handle_mad(now, &path, &sent.mad);
    }
    cable.hosts[0].destroy(now, ids[0]).expect("it is there");
    let event = cable.only(0);
    assert!(matches!(event, Event::Rejected { .. }));
    assert_eq!(event.id(), ids[1]);
}

#[test]
fn a_qp_is_not_used_twice_before_time_wait_is_over() {
    let mut cable = Cable::new();
    let (asking, _) = cable.established();
    let now = cable.now;
    let again = |cable: &mut Cable| {
        let id = cable.resolved(0, PortSpace::Tcp, Kind::Rc, 7174);
        let now = cable.now;
        cable.hosts[0].connect(now, id, &params(17))
    };
    assert!(matches!(again(&mut cable), Err(Error::Request(_))));
    cable.hosts[0].disconnect(now, asking).expect("it stands");
    cable.heard(0);
    assert!(matches!(again(&mut cable), Err(Error::Request(_))));
    cable.wait();
    assert_eq!(again(&mut cable), Ok(()));
}

#[test]
fn giving_up_what_is_over_does_not_touch_who_has_its_number_now() {
    let mut cable = Cable::new();
    let now = cable.now;
    let refused = |cable: &mut Cable| {
        let id = cable.resolved(0, PortSpace::Tcp, Kind::Rc, 9);
        cable.hosts[0].connect(now, id, &params(17)).expect("room");
        let states = &cable.hosts[0].ids;
        (id, states[&id].state.conn())
    };
    let (over, number) = refused(&mut cable);
    assert!(matches!(cable.only(0), Event::Rejected { .. }));
    let heir = loop {
        let (id, other) = refused(&mut cable);
        if other == number {
            break id;
        }
        cable.heard(0);
        cable.hosts[0].destroy(now, id).expect("it is there");
    };
    cable.hosts[0].destroy(now, over).expect("it is there");
    let event = cable.only(0);
    let nobody = RejReason::InvalidServiceId;
    assert!(matches!(event, Event::Rejected { reason, .. } if reason == nobody));
    assert_eq!(event.id(), heir);
}
