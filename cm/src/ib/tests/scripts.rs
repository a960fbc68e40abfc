//! Single stories, message by message.

use super::{GUID, SERVICE, Stage, ask, drain, messages, sidr_request};
use crate::ib::{CloseReason, Config, Event, Guids, RequestError, message};
use crate::message::{Mad, drep, mad};
use crate::retry::{Patience, Retry};
use crate::tests::{address, ms};
use trunkline_conn::secret::Secret;
use trunkline_conn::time::{MILLISECOND, SECOND};
use trunkline_wire::cm::{
    Answered, CmMad, CommId, Message, PrivateData, RejReason, TransportService,
};
use trunkline_wire::{Gid, Qpn};

fn names(stage: &mut Stage) -> std::vec::Vec<&'static str> {
    let (sent, _) = drain(&mut stage.manager);
    messages(&sent)
        .iter()
        .map(|mad| mad.message.name())
        .collect()
}

/// The only message sent.
fn only(stage: &mut Stage) -> Message {
    let (sent, _) = drain(&mut stage.manager);
    let [CmMad { message, .. }] = &messages(&sent)[..] else {
        panic!("one message, not {sent:?}")
    };
    message.clone()
}

#[test]
fn a_message_is_sent_again_after_waits_that_double() {
    let mut stage = Stage::new();
    stage.req_sent();
    let mut waits = std::vec::Vec::new();
    while stage.state() == "ReqSent" {
        let due = stage
            .manager
            .poll_timeout()
            .expect("an answer is waited for");
        waits.push(due.since(stage.now));
        stage.now = due;
        stage.manager.handle_timeout(due);
        let said = names(&mut stage);
        let last = waits.len() == 8;
        assert_eq!(said, [if last { "REJ" } else { "REQ" }]);
    }
    assert_eq!(waits.len(), 8);
    assert!(
        waits
            .windows(2)
            .all(|w| w[1] * 2 > w[0] * 3 && w[1] * 2 < w[0] * 6),
        "{waits:?}"
    );
    let total: u64 = waits.iter().sum();
    assert!((21 * SECOND..29 * SECOND).contains(&total));
    assert_eq!(stage.manager.load().connections(), 0);
}

#[test]
fn an_event_says_which_message_the_peer_refused() {
    for refused in [Answered::Req, Answered::Rep, Answered::Other] {
        let mut stage = Stage::new();
        stage.req_sent();
        let rej = message::rej(stage.swapped(), refused, RejReason::NoResources);
        stage.deliver(&mad(stage.transaction, rej));
        let (_, events) = drain(&mut stage.manager);
        assert!(matches!(events[..], [Event::Rejected { refused: what, .. }] if what == refused));
    }
}

#[test]
fn a_peer_that_asks_for_patience_gets_it_up_to_a_limit() {
    let mut config = Config::new(GUID);
    config.patience = Patience {
        times: 2,
        most_ns: 10 * SECOND,
    };
    for enter in [Stage::req_sent, Stage::rep_sent] {
        let mut stage = Stage::with(config);
        enter(&mut stage);
        let received = match stage.state() {
            "ReqSent" => Answered::Req,
            _ => Answered::Rep,
        };
        let before = stage.manager.poll_timeout();
        // 4.3 s.
        stage.deliver(&stage.mra(received));
        let first = stage.manager.poll_timeout();
        assert!(first > before);
        assert_eq!(first.map(|due| due.since(stage.now)), Some(4_096 << 20));
        let long = message::mra(stage.swapped(), received, 31);
        stage.deliver(&mad(stage.transaction, long));
        let second = stage.manager.poll_timeout();
        assert_eq!(second, Some(stage.now + 10 * SECOND));
        stage.now = ms(5_000);
        stage.deliver(&mad(stage.transaction, long));
        assert_eq!(stage.manager.poll_timeout(), second, "twice is enough");
        assert_eq!(stage.manager.counters().mismatch, 0);
    }
}

#[test]
fn a_program_that_takes_its_time_lets_the_peer_know() {
    let mut stage = Stage::new();
    stage.asked();
    let due = stage
        .manager
        .poll_timeout()
        .expect("the peer is not left alone");
    assert_eq!(
        due,
        stage.now + SECOND,
        "no later than half of the 4.3 s granted"
    );
    stage.manager.handle_timeout(due);
    let Message::Mra(mra) = only(&mut stage) else {
        panic!("an MRA says so")
    };
    assert_eq!((mra.local, mra.remote), (stage.ours, stage.theirs));
    assert_eq!((mra.received, mra.service_timeout), (Answered::Req, 24));
    assert_eq!(
        mra.to_bytes()[8..10],
        [0x00, 0xc0],
        "as Linux 6.1 writes it"
    );
    assert_eq!(stage.manager.counters().late, 1);
    // A peer that asks again, as it did not hear of it, is told again.
    stage.deliver(&stage.req());
    assert_eq!(names(&mut stage), ["MRA"]);
    let last = stage.manager.poll_timeout();
    assert_eq!(
        last,
        Some(stage.now + 60 * SECOND),
        "then there is no more time"
    );
}

#[test]
fn an_impatient_peer_is_told_sooner() {
    let mut stage = Stage::new();
    let mut req = ask(stage.peer_qpn);
    req.path.mtu = 1;
    let route = crate::event::Route {
        local: stage.peer_address,
        remote: stage.route().local,
    };
    let mut req = message::req(stage.theirs, route, 9, &req);
    req.remote_response_timeout = 12;
    stage.deliver(&mad(7, req));
    assert_eq!(
        stage.manager.poll_timeout(),
        Some(stage.now + (4_096 << 11))
    );
}

#[test]
fn private_data_travels_with_every_message() {
    let mut stage = Stage::new();
    stage.replied();
    let ready = stage
        .manager
        .ready(stage.now, stage.id(), PrivateData([7; 224]));
    ready.expect("it waits for that");
    let Message::Rtu(rtu) = only(&mut stage) else {
        panic!("an RTU confirms")
    };
    assert_eq!(rtu.private_data, PrivateData([7; 224]));
    // Lost: the same comes again.
    stage.deliver(&stage.rep());
    assert_eq!(only(&mut stage), Message::Rtu(rtu));
    let (now, id) = (stage.now, stage.id());
    let closed = stage.manager.close(now, id, PrivateData([8; 220]));
    closed.expect("it stands");
    let Message::Dreq(dreq) = only(&mut stage) else {
        panic!("a DREQ ends")
    };
    assert_eq!(dreq.private_data, PrivateData([8; 220]));
    let mut last = drep(stage.theirs, stage.ours);
    last.private_data = PrivateData([9; 224]);
    stage.deliver(&mad(1, last));
    let (_, events) = drain(&mut stage.manager);
    assert!(matches!(
        events[..],
        [Event::Closed { private_data: PrivateData(said), .. }] if said == [9; 224]
    ));
}

#[test]
fn a_rejection_that_crosses_the_confirmation_ends_the_connection() {
    let mut stage = Stage::new();
    stage.asking();
    let rej = message::timeout_rej(stage.swapped(), stage.peer_guid);
    stage.deliver(&mad(stage.transaction, rej));
    let (sent, events) = drain(&mut stage.manager);
    let reason = CloseReason::Abandoned(RejReason::Timeout);
    assert!(sent.is_empty());
    assert!(matches!(events[..], [Event::Closed { reason: why, .. }] if why == reason));
    // And the other way: the RTU comes when the reply was given up.
    let mut stage = Stage::new();
    stage.rep_sent();
    let (now, id) = (stage.now, stage.id());
    let closed = stage.manager.close(now, id, PrivateData::default());
    closed.expect("it waits for a confirmation");
    let Message::Rej(rej) = only(&mut stage) else {
        panic!("the peer is told")
    };
    assert_eq!((rej.reason, rej.info_length), (RejReason::Timeout, 8));
    assert_eq!(rej.info[..8], GUID.to_be_bytes());
    stage.deliver(&stage.rtu());
    assert_eq!(
        (stage.state(), stage.manager.counters().duplicate),
        ("TimeWait", 1)
    );
}

#[test]
fn what_no_peer_would_take_cannot_be_asked_for() {
    let mut stage = Stage::new();
    let route = stage.route();
    type Change = fn(&mut crate::ib::RequestTerms);
    let changes: [Change; 9] = [
        |ask| ask.path.mtu = 0,
        |ask| ask.path.mtu = 6,
        |ask| ask.path.flow_label = 1 << 20,
        |ask| ask.path.ack_timeout = 32,
        |ask| ask.retry_count = 8,
        |ask| ask.qp.rnr_retry_count = 8,
        |ask| ask.qp.qpn = Qpn::from_wire(1),
        |ask| ask.service = TransportService::Rd,
        |ask| ask.service = TransportService::Extended,
    ];
    for change in changes {
        let mut ask = ask(0x11);
        change(&mut ask);
        let asked = stage.manager.connect(stage.now, route, &ask, Retry::PLAIN);
        assert!(
            matches!(asked, Err(RequestError::Invalid { .. })),
            "{ask:?}"
        );
    }
    let mixed = crate::event::Route {
        remote: "fe80::1".parse().expect("an address"),
        ..route
    };
    let asked = stage
        .manager
        .connect(stage.now, mixed, &ask(0x11), Retry::PLAIN);
    assert_eq!(asked, Err(RequestError::Families(mixed)));
    assert_eq!(stage.manager.load().connections(), 0);
    assert!(names(&mut stage).is_empty());
}

#[test]
fn requests_that_hold_what_they_may_not_are_refused() {
    type Change = fn(&mut trunkline_wire::cm::Req);
    let cells: [(Change, RejReason); 10] = [
        (|req| req.service_id.0 += 1, RejReason::InvalidServiceId),
        (
            |req| req.primary.local_gid = Gid([1; 16]),
            RejReason::InvalidGid,
        ),
        (
            |req| req.primary.remote_gid = Gid([1; 16]),
            RejReason::InvalidGid,
        ),
        (
            |req| req.service = TransportService::Rd,
            RejReason::InvalidTransportType,
        ),
        (
            |req| req.service = TransportService::Extended,
            RejReason::InvalidTransportType,
        ),
        (|req| req.local = CommId(0), RejReason::InvalidCommId),
        (
            |req| req.qpn = Qpn::from_wire(0),
            RejReason::InvalidCommInstance,
        ),
        (|req| req.qpn = Qpn::GSI, RejReason::InvalidCommInstance),
        (|req| req.path_mtu = 0, RejReason::InvalidMtu),
        (|req| req.path_mtu = 5, RejReason::InvalidMtu),
    ];
    for (change, reason) in cells {
        let mut config = Config::new(GUID);
        config.mtu = 4;
        let mut stage = Stage::with(config);
        let CmMad {
            transaction_id,
            message: Message::Req(mut req),
        } = CmMad::parse(&stage.req()).expect("it parses")
        else {
            panic!("a REQ is one")
        };
        change(&mut req);
        stage.deliver(&mad(transaction_id, req));
        let Message::Rej(rej) = only(&mut stage) else {
            panic!("it is refused")
        };
        assert_eq!((rej.reason, rej.refused), (reason, Answered::Req));
        assert_eq!((rej.local, rej.remote), (CommId(0), req.local));
        let counters = stage.manager.counters();
        let counted = counters.no_service + counters.address_mismatch + counters.invalid;
        assert_eq!((counted, stage.manager.load().connections()), (1, 0));
    }
}

#[test]
fn answers_that_hold_what_they_may_not_end_the_attempt() {
    type Change = fn(&mut trunkline_wire::cm::Rep);
    let cells: [(Change, RejReason); 2] = [
        (|rep| rep.local = CommId(0), RejReason::InvalidCommId),
        (|rep| rep.qpn = Qpn::GSI, RejReason::InvalidCommInstance),
    ];
    for (change, reason) in cells {
        let mut stage = Stage::new();
        stage.req_sent();
        let CmMad {
            transaction_id,
            message: Message::Rep(mut rep),
        } = CmMad::parse(&stage.rep()).expect("it parses")
        else {
            panic!("a REP is one")
        };
        change(&mut rep);
        stage.deliver(&mad(transaction_id, rep));
        let (sent, events) = drain(&mut stage.manager);
        let said = messages(&sent);
        assert!(
            matches!(&said[..], [CmMad { message: Message::Rej(rej), .. }]
            if rej.reason == reason && rej.refused == Answered::Rep)
        );
        assert!(matches!(events[..], [Event::Rejected { reason: why, .. }] if why == reason));
        assert_eq!(stage.manager.counters().invalid, 1);
    }
}

#[test]
fn early_and_repeated_timeouts_are_harmless() {
    let mut stage = Stage::new();
    stage.req_sent();
    let due = stage
        .manager
        .poll_timeout()
        .expect("an answer is waited for");
    for _ in 0..3 {
        stage.manager.handle_timeout(stage.now);
    }
    assert!(names(&mut stage).is_empty());
    for _ in 0..3 {
        stage.manager.handle_timeout(due);
    }
    assert_eq!(names(&mut stage), ["REQ"]);
}

#[test]
fn over_the_limit_the_oldest_closed_connection_is_forgotten_first() {
    let mut config = Config::new(GUID);
    config.limits.time_wait = 2;
    let mut stage = Stage::with(config);
    let (mut closed, mut events) = (std::vec::Vec::new(), std::vec::Vec::new());
    for serial in 0..3 {
        stage.theirs = CommId(0x100 + serial);
        (stage.our_qpn, stage.peer_qpn) = (0x40 + serial, 0x50 + serial);
        stage.answering();
        stage.deliver(&stage.dreq());
        closed.push(stage.id());
        events.extend(drain(&mut stage.manager).1);
    }
    let exits = events.iter().filter_map(|event| match event {
        Event::TimeWaitExit { id, .. } => Some(*id),
        _ => None,
    });
    assert!(exits.eq([closed[0]]));
    assert_eq!(stage.manager.load().time_wait, 2);
}

#[test]
fn who_stops_listening_keeps_what_is_under_way() {
    let mut stage = Stage::new();
    stage.rep_sent();
    assert!(stage.manager.unlisten(SERVICE) && !stage.manager.unlisten(SERVICE));
    stage.deliver(&stage.req());
    assert_eq!(names(&mut stage), ["REP"], "the same request as before");
    stage.deliver(&stage.rtu());
    assert_eq!(stage.state(), "Established");
    stage.theirs = CommId(0x5555);
    stage.deliver(&stage.req());
    assert_eq!(names(&mut stage), ["REJ"]);
    stage.deliver(&stage.sidr_req());
    assert_eq!(names(&mut stage), ["SIDR_REP"]);
    assert_eq!(stage.manager.counters().no_service, 2);
}

#[test]
fn a_question_is_sent_again_and_given_up_like_a_request() {
    let mut stage = Stage::new();
    let retry = Retry {
        tries: 2,
        total_ns: 30 * MILLISECOND,
    };
    let route = stage.route();
    let id = stage.manager.ask(stage.now, route, &sidr_request(), retry);
    let id = id.expect("there is room");
    assert_eq!(names(&mut stage), ["SIDR_REQ"]);
    for expected in [&["SIDR_REQ"][..], &[]] {
        let due = stage
            .manager
            .poll_timeout()
            .expect("an answer is waited for");
        stage.manager.handle_timeout(due);
        let (sent, events) = drain(&mut stage.manager);
        let said = messages(&sent);
        assert!(
            said.iter()
                .map(|mad| mad.message.name())
                .eq(expected.iter().copied())
        );
        let over = expected.is_empty();
        assert_eq!(events == [Event::Unreachable { id, route }], over);
    }
}

#[test]
fn what_the_network_doubled_asks_nobody_for_patience() {
    // The peer would take 69 s for its next try.
    for (enter, again) in [
        (
            Stage::asked as fn(&mut Stage),
            Stage::req as fn(&Stage) -> Mad,
        ),
        (Stage::replied, Stage::rep),
    ] {
        let mut stage = Stage::new();
        enter(&mut stage);
        stage.deliver(&again(&stage));
        assert!(names(&mut stage).is_empty());
        assert_eq!(stage.manager.counters().duplicate, 1);
        // Once it was asked to be patient, a copy says that it did not hear of that.
        let due = stage.manager.poll_timeout().expect("the program is slow");
        stage.manager.handle_timeout(due);
        assert_eq!(names(&mut stage), ["MRA"]);
        stage.deliver(&again(&stage));
        assert_eq!(names(&mut stage), ["MRA"]);
    }
}

#[test]
fn a_node_tells_each_host_another_guid_and_the_same_each_time() {
    let mut config = Config::new(GUID);
    config.guids = Guids::PerPeer(Secret::from_seed(5));
    let mut stage = Stage::with(config);
    let mut told = |host: u8, qpn: u32| {
        stage.peer_address = address(host);
        let route = stage.route();
        let asked = stage
            .manager
            .connect(stage.now, route, &ask(qpn), Retry::PLAIN);
        asked.expect("there is room");
        let Message::Req(req) = only(&mut stage) else {
            panic!("a REQ asks")
        };
        req.ca_guid
    };
    let (first, second, again) = (told(2, 10), told(3, 11), told(2, 12));
    assert_eq!(first, again);
    assert_ne!(first, second);
}
