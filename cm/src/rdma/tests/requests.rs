//! Requests that are refused before a program hears of them, and data that does not fit.

use super::{Cable, params};
use crate::message::mad;
use crate::rdma::{Config, Error, Event, Id, Kind, Params, PortSpace};
use crate::tests::{address, path};
use std::vec::Vec;
use trunkline_wire::cm::{CmMad, CommId, Message, RejReason, Req, TransportService};
use trunkline_wire::{Gid, Qpn};

/// Lets host 1's REQ reach host 2 after `change`; what host 2 says to it.
fn changed(change: fn(&mut Req)) -> (Cable, CmMad) {
    let mut cable = Cable::new();
    cable.listen(1, PortSpace::Tcp, Kind::Rc, 7174);
    let id = cable.resolved(0, PortSpace::Tcp, Kind::Rc, 7174);
    let now = cable.now;
    cable.hosts[0]
        .connect(now, id, &params(17))
        .expect("all is well");
    let sent = cable.hosts[0].poll_transmit().expect("a REQ goes out");
    let CmMad {
        transaction_id,
        message: Message::Req(mut req),
    } = CmMad::parse(&sent.mad).expect("it parses")
    else {
        panic!("a REQ goes first")
    };
    change(&mut req);
    let path = path(sent.route.local, sent.route.remote);
    cable.hosts[1].handle_mad(now, &path, &mad(transaction_id, req));
    let answer = cable.hosts[1].poll_transmit().expect("there is an answer");
    (cable, CmMad::parse(&answer.mad).expect("it parses"))
}

#[test]
fn requests_that_make_no_sense_are_refused_and_counted() {
    type Count = fn(&Cable) -> u64;
    type Change = fn(&mut Req);
    let cells: [(Change, RejReason, Count); 6] = [
        (
            |req| req.private_data.0[0] = 1,
            RejReason::Unsupported,
            |cable| cable.hosts[1].counters().bad_header,
        ),
        (
            |req| req.private_data.0[1] = 0x50,
            RejReason::Unsupported,
            |cable| cable.hosts[1].counters().bad_header,
        ),
        (
            |req| req.private_data.0[19] = 99,
            RejReason::InvalidGid,
            |cable| cable.hosts[1].counters().address_mismatch,
        ),
        (
            |req| req.private_data.0[35] = 99,
            RejReason::InvalidGid,
            |cable| cable.hosts[1].counters().address_mismatch,
        ),
        (
            |req| req.service = TransportService::Uc,
            RejReason::InvalidTransportType,
            |cable| cable.hosts[1].counters().wrong_kind,
        ),
        (
            |req| req.service_id.0 += 1,
            RejReason::InvalidServiceId,
            |cable| cable.hosts[1].ib().counters().no_service,
        ),
    ];
    for (place, (change, expected, count)) in cells.into_iter().enumerate() {
        let (mut cable, answer) = changed(change);
        let Message::Rej(rej) = answer.message else {
            panic!("a REJ, not {answer:?}")
        };
        assert_eq!((rej.reason, count(&cable)), (expected, 1), "cell {place}");
        assert!(cable.heard(1).is_empty());
        assert_eq!(cable.hosts[1].ib().load().connections(), 0);
    }
}

#[test]
fn private_data_fits_or_is_an_error_that_names_the_limit() {
    let long = [1; 256];
    let with = |length| Params {
        private_data: &long[..length],
        ..params(17)
    };
    let too_long = |limit| {
        Err(Error::PrivateData {
            length: limit + 1,
            limit,
        })
    };
    let mut cable = Cable::new();
    let now = cable.now;
    let id = cable.resolved(0, PortSpace::Tcp, Kind::Rc, 5);
    assert_eq!(cable.hosts[0].connect(now, id, &with(57)), too_long(56));
    let id = cable.resolved(0, PortSpace::Udp, Kind::Ud, 5);
    assert_eq!(cable.hosts[0].connect(now, id, &with(181)), too_long(180));
    let (asking, asked) = cable.requested(&with(56));
    assert_eq!(
        cable.hosts[1].reject(now, asked, &long[..149]),
        too_long(148)
    );
    assert_eq!(cable.hosts[1].accept(now, asked, &with(197)), too_long(196));
    cable.hosts[1]
        .accept(now, asked, &with(196))
        .expect("it fits");
    cable.heard(0);
    assert_eq!(
        cable.hosts[0].accept(now, asking, &with(225)),
        too_long(224)
    );
    cable.hosts[0]
        .accept(now, asking, &with(224))
        .expect("it fits");
    let refused = [0, 1].map(|host: usize| cable.hosts[host].counters().too_long);
    assert_eq!(refused, [3, 2]);
    let event = cable.only(1);
    assert!(matches!(event, Event::Established { data, .. } if data[..] == [1; 224]));
}

#[test]
fn a_backlog_bounds_the_requests_that_wait() {
    let mut cable = Cable::new();
    cable.listen_with(1, (PortSpace::Tcp, Kind::Rc, 5), 2);
    let now = cable.now;
    for qpn in 10..13 {
        let id = cable.resolved(0, PortSpace::Tcp, Kind::Rc, 5);
        cable.hosts[0]
            .connect(now, id, &params(qpn))
            .expect("all is well");
    }
    let waiting = cable.heard(1);
    assert_eq!(waiting.len(), 2);
    let event = cable.only(0);
    let reason = RejReason::NoResources;
    assert!(matches!(event, Event::Rejected { reason: told, .. } if told == reason));
    assert_eq!(cable.hosts[1].counters().unfair, 1);
    // Whatever becomes of one, there is room for another.
    cable.hosts[1]
        .reject(now, waiting[0].id(), b"")
        .expect("asked");
    cable.hosts[1].destroy(now, waiting[1].id()).expect("there");
    for qpn in 20..22 {
        let id = cable.resolved(0, PortSpace::Tcp, Kind::Rc, 5);
        cable.hosts[0]
            .connect(now, id, &params(qpn))
            .expect("all is well");
    }
    assert_eq!(cable.heard(1).len(), 2);
}

/// A REQ to port 5 of host 2 as from another host, under a number of its own.
fn deliver_request(cable: &mut Cable, host: u8, number: u32) {
    let id = cable.resolved(0, PortSpace::Tcp, Kind::Rc, 5);
    let now = cable.now;
    cable.hosts[0]
        .connect(now, id, &params(number))
        .expect("all is well");
    let sent = cable.hosts[0].poll_transmit().expect("a REQ goes out");
    cable.hosts[0].destroy(now, id).expect("there");
    while cable.hosts[0].poll_transmit().is_some() {}
    let CmMad {
        transaction_id,
        message: Message::Req(mut req),
    } = CmMad::parse(&sent.mad).expect("it parses")
    else {
        panic!("a REQ goes first")
    };
    let from = address(host);
    (req.local, req.qpn) = (CommId(number), Qpn::from_wire(number));
    req.primary.local_gid = Gid::from(from);
    req.private_data.0[19] = host;
    let path = path(from, cable.address(1));
    cable.hosts[1].handle_mad(now, &path, &mad(transaction_id, req));
}

/// Requests that the program of host 2 has heard of, and refusals on their way to others.
fn outcome(cable: &mut Cable) -> (Vec<Id>, usize) {
    let now = cable.now;
    let heard = core::iter::from_fn(|| cable.hosts[1].poll_event(now));
    let heard = heard.map(|event| event.id()).collect();
    (
        heard,
        core::iter::from_fn(|| cable.hosts[1].poll_transmit()).count(),
    )
}

#[test]
fn a_flood_of_one_address_leaves_room_in_the_backlog_for_others() {
    let mut cable = Cable::new();
    cable.listen_with(1, (PortSpace::Tcp, Kind::Rc, 5), 8);
    for number in 0..100 {
        deliver_request(&mut cable, 3, 0x100 + number);
    }
    let (flood, refused) = outcome(&mut cable);
    assert_eq!(
        (flood.len(), refused),
        (8, 92),
        "all that the program asked for"
    );
    // Each of the others gets half of what is left, rounded up.
    for (host, expected) in [(4, 4), (5, 2), (6, 1), (7, 1), (8, 0)] {
        for number in 0..10 {
            deliver_request(&mut cable, host, 0x1000 + u32::from(host) * 0x100 + number);
        }
        assert_eq!(outcome(&mut cable).0.len(), expected, "host {host}");
    }
    let counters = *cable.hosts[1].counters();
    assert_eq!(
        (counters.unfair, counters.backlog),
        (92 + 6 + 8 + 9, 9 + 10)
    );
    // Whatever becomes of requests, their places are free again.
    let now = cable.now;
    for (at, id) in flood.into_iter().enumerate() {
        if at % 2 == 0 {
            cable.hosts[1].reject(now, id, b"").expect("asked");
        } else {
            cable.hosts[1].destroy(now, id).expect("there");
        }
    }
    outcome(&mut cable);
    for number in 0..10 {
        deliver_request(&mut cable, 9, 0x4000 + number);
    }
    assert_eq!(outcome(&mut cable).0.len(), 4, "half of 8");
}

#[test]
fn there_are_no_more_ids_than_may_be() {
    let mut cable = Cable::with(|guid| Config {
        ids: 2,
        ..Config::new(guid)
    });
    cable.requested(&params(17));
    let now = cable.now;
    let id = cable.resolved(0, PortSpace::Tcp, Kind::Rc, 7174);
    cable.hosts[0]
        .connect(now, id, &params(18))
        .expect("all is well");
    assert!(matches!(
        cable.only(0),
        Event::Rejected {
            reason: RejReason::NoResources,
            ..
        }
    ));
    assert_eq!(cable.hosts[1].counters().ids, 1);
    let full = cable.hosts[1].create(PortSpace::Tcp, Kind::Rc);
    assert_eq!(full, Err(Error::TooManyIds(2)));
    assert_eq!(cable.hosts[1].ids(), 2);
}
