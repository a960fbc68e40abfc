//! What is learnt of peers, and for how long.

use super::{Stage, address, drain, ms};
use crate::directory::{Directory, PeerMode};
use crate::event::{CloseReason, Event, Refused};
use crate::refusal::RefusalCode;
use trunkline_conn::time::SECOND;
use trunkline_wire::cm::RejReason;

const PLAIN_NS: u64 = 60 * SECOND;

fn event(kind: &str) -> Event {
    let mut stage = Stage::new();
    let terms = stage.established();
    let (id, route) = (terms.id, terms.route);
    let refused = |reason| Event::Refused { id, route, reason };
    match kind {
        "incoming" => {
            let mut stage = Stage::new();
            stage.deliver(&stage.req());
            drain(&mut stage.manager).1[0]
        }
        "established" => Event::Established(terms),
        "restarted" => Event::PeerRestarted {
            route,
            old: stage.peer,
            new: stage.peer,
        },
        "not trunkline" => Event::NotTrunkline { id, route },
        "silent" => Event::Silent { id, route },
        "busy" => refused(Refused::Trunkline(RefusalCode::Busy)),
        "version" => refused(Refused::Trunkline(RefusalCode::Version)),
        "refused" => refused(Refused::Ib(RejReason::NoQp)),
        "closed" => Event::Closed {
            id,
            route,
            reason: CloseReason::Local,
        },
        other => panic!("{other}"),
    }
}

#[test]
fn every_event_teaches_what_is_written_here() {
    use PeerMode::{Connecting, Trunkline, Unknown};
    let ibta = PeerMode::Ibta { until: ms(70_000) };
    let older = PeerMode::Ibta { until: ms(11_000) };
    // From Unknown, Connecting, Trunkline and an older Ibta.
    let table = [
        ("incoming", [Trunkline, Trunkline, Trunkline, Trunkline]),
        ("established", [Trunkline, Trunkline, Trunkline, Trunkline]),
        ("restarted", [Trunkline, Trunkline, Trunkline, Trunkline]),
        ("not trunkline", [ibta, ibta, ibta, ibta]),
        ("silent", [ibta, ibta, Trunkline, ibta]),
        ("busy", [Trunkline, Trunkline, Trunkline, Trunkline]),
        ("version", [ibta, ibta, ibta, ibta]),
        ("refused", [ibta, ibta, ibta, ibta]),
        ("closed", [Unknown, Unknown, Trunkline, older]),
    ];
    for (kind, after) in table {
        for (before, after) in [Unknown, Connecting, Trunkline, older]
            .into_iter()
            .zip(after)
        {
            let learnt = before.after(ms(10_000), &event(kind), PLAIN_NS);
            assert_eq!(learnt, after, "{kind} after {before:?}");
        }
    }
}

#[test]
fn negative_answers_expire_and_any_question_replaces_them() {
    let mut directory = Directory::default();
    let peer = address(2);
    assert_eq!(directory.mode(ms(0), peer), PeerMode::Unknown);
    directory.connecting(ms(0), peer);
    assert_eq!(directory.mode(ms(0), peer), PeerMode::Connecting);
    directory.learn(ms(10), &event("silent"), PLAIN_NS);
    let until = ms(60_010);
    assert_eq!(directory.mode(ms(60_009), peer), PeerMode::Ibta { until });
    assert_eq!(directory.mode(until, peer), PeerMode::Unknown);
    assert_eq!(directory.len(), 1);
    directory.tidy(until);
    assert!(directory.is_empty());
    directory.learn(ms(0), &event("not trunkline"), PLAIN_NS);
    directory.learn(ms(1), &event("incoming"), PLAIN_NS);
    assert_eq!(directory.mode(ms(1_000_000), peer), PeerMode::Trunkline);
    // Opening one more connection does not make it unknown.
    directory.connecting(ms(2), peer);
    assert_eq!(directory.mode(ms(3), peer), PeerMode::Trunkline);
}

#[test]
fn no_number_of_addresses_takes_more_than_a_bounded_directory() {
    let mut directory = Directory::default();
    for host in 0..10_000_u32 {
        let peer = core::net::Ipv4Addr::from_bits(host.wrapping_mul(0x9e37_79b1)).into();
        directory.know(peer, PeerMode::Trunkline);
        assert_eq!(directory.mode(ms(1), peer), PeerMode::Trunkline);
        assert!(directory.len() <= 64, "{} addresses", directory.len());
    }
    assert_eq!(directory.len(), 64);
}
