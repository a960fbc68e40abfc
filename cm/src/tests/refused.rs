//! ICMP errors that quote a connect request, true and forged.

use super::{Rng, address, ask, drain, ms, path};
use crate::event::{Event, Outgoing, Route};
use crate::hello::Purpose;
use crate::identity::Identity;
use crate::retry::Retry;
use crate::{Concerns, Config, NodeCm, Quote, gsi, ib};
use core::net::IpAddr;
use std::vec::Vec;
use trunkline_wire::cm::PrivateData;
use trunkline_wire::{Psn, Workers};

const PEER: IpAddr = address(2);
const ROUTE: Route = Route {
    local: address(1),
    remote: PEER,
};

/// The datagram in which a message travelled.
fn datagram(out: &Outgoing) -> Vec<u8> {
    let mut bytes = [0; gsi::LEN];
    let path = path(out.route.local, out.route.remote);
    gsi::build(&path, 0, Psn::from_wire(7), &out.mad, &mut bytes);
    bytes.to_vec()
}

fn quote(out: &Outgoing) -> Quote {
    let all = datagram(out);
    let quote = Quote::parse(&all[..Quote::LEN]).expect("a REQ");
    assert_eq!(Quote::parse(&all), Some(quote));
    assert_eq!(quote.worker(Workers::ONE), 0);
    quote
}

/// A handshake that asks a peer which has answered before.
fn asking() -> (NodeCm<Rng>, Outgoing) {
    let mut random = Rng::new(3);
    let mut manager = NodeCm::new(Config::new(Identity { guid: 1, epoch: 1 }), Rng::new(1));
    let mut ask = ask(&mut random, Purpose::Private);
    ask.retry = Retry::KNOWN;
    manager.open(ms(0), ROUTE, ask).expect("room");
    let (sent, _) = drain(&mut manager);
    (manager, sent[0])
}

#[test]
fn two_errors_that_quote_an_ask_end_it_and_one_alone_does_not() {
    let (mut manager, out) = asking();
    let quote = quote(&out);
    assert_eq!(quote.concerns(), Concerns::Nodes);
    for at in [0, 1, 100, 199] {
        manager.handle_refused(ms(at), PEER, &quote);
        assert!(drain(&mut manager).1.is_empty(), "after {at} ms");
    }
    manager.handle_refused(ms(200), PEER, &quote);
    let (_, events) = drain(&mut manager);
    assert!(matches!(events[..], [Event::Nobody { route: ROUTE, .. }]));
    assert_eq!(manager.load().connections(), 0);
    let counters = manager.counters();
    assert_eq!(
        (counters.nobody, counters.misquoted, counters.silent),
        (1, 0, 0)
    );
    // It is over.
    manager.handle_refused(ms(500), PEER, &quote);
    assert_eq!(manager.counters().misquoted, 1);
}

/// What becomes of the first ask of a peer of which nothing is known, where its host answers each
/// ask with an error (`always`), or the first alone: errors sent, when it ended, and how.
fn first_ask(always: bool) -> (usize, u64, Event) {
    let mut manager = NodeCm::new(Config::new(Identity { guid: 1, epoch: 1 }), Rng::new(1));
    let mut ask = ask(&mut Rng::new(3), Purpose::Private);
    ask.retry = Retry::UNKNOWN;
    manager.open(ms(0), ROUTE, ask).expect("room");
    let mut errors = 0;
    for at in 0..1_000 {
        manager.handle_timeout(ms(at));
        let (sent, events) = drain(&mut manager);
        if let [event] = events[..] {
            return (errors, at, event);
        }
        for out in sent {
            if always || errors == 0 {
                manager.handle_refused(ms(at) + 100_000, PEER, &quote(&out));
                errors += 1;
            }
        }
        let (_, events) = drain(&mut manager);
        if let [event] = events[..] {
            return (errors, at, event);
        }
    }
    panic!("it has no end");
}

#[test]
fn the_first_ask_of_a_peer_lasts_until_a_second_error_counts() {
    let (errors, at, event) = first_ask(true);
    assert!(
        matches!(event, Event::Nobody { route: ROUTE, .. }),
        "{event:?}"
    );
    assert_eq!(errors, 2, "no more than it takes");
    assert!((200..=210).contains(&at), "after {at} ms");
}

#[test]
fn the_first_ask_of_a_peer_ends_in_silence_after_one_error_alone() {
    let (errors, at, event) = first_ask(false);
    assert!(
        matches!(event, Event::Silent { route: ROUTE, .. }),
        "{event:?}"
    );
    assert_eq!(errors, 1);
    assert!((200..=600).contains(&at), "after {at} ms");
}

#[test]
fn what_quotes_another_ask_or_comes_from_another_way_moves_nothing() {
    let (mut manager, out) = asking();
    let right = quote(&out);
    let mut wrong = Vec::new();
    for bit in 0..64 {
        let transaction = right.transaction ^ 1 << bit;
        wrong.push((
            PEER,
            Quote {
                transaction,
                ..right
            },
        ));
    }
    for bit in 0..32 {
        let local = trunkline_wire::cm::CommId(right.local.0 ^ 1 << bit);
        wrong.push((PEER, Quote { local, ..right }));
    }
    wrong.push((address(3), right));
    for at in [0, 300, 600] {
        for (from, quote) in &wrong {
            manager.handle_refused(ms(at), *from, quote);
        }
    }
    assert!(drain(&mut manager).1.is_empty());
    assert_eq!(manager.counters().misquoted, 3 * wrong.len() as u64);
    // An answer is no ask.
    let early = (manager.load().opening, manager.counters().nobody);
    assert_eq!(early, (1, 0));
}

#[test]
fn quotes_that_are_short_or_of_something_else_are_none() {
    let (_, out) = asking();
    let all = datagram(&out);
    for length in 0..Quote::LEN {
        assert_eq!(Quote::parse(&all[..length]), None, "{length} bytes");
    }
    // Opcode, destination QP, class, attribute.
    for (at, value) in [(0, 4), (7, 2), (21, 3), (36, 1), (37, 0x13)] {
        let mut other = all.clone();
        other[at] = value;
        assert_eq!(Quote::parse(&other), None, "byte {at}");
    }
    let mut random = Rng::new(9);
    for _ in 0..10_000 {
        let length = random.below(100) as usize;
        let bytes: Vec<u8> = (0..length).map(|_| random.below(256) as u8).collect();
        let _ = Quote::parse(&bytes);
    }
}

#[test]
fn an_ask_of_an_ordinary_host_ends_in_the_same_way() {
    let mut manager = ib::IbCm::new(ib::Config::new(5), Rng::new(1));
    let ask = ib::SidrRequest {
        service_id: trunkline_wire::ServiceId::tcp(7174),
        pkey: 0xffff,
        private_data: PrivateData::default(),
    };
    manager.ask(ms(0), ROUTE, &ask, Retry::PLAIN).expect("room");
    let out = manager.poll_transmit().expect("a question");
    let quote = quote(&out);
    assert_eq!(quote.concerns(), Concerns::Ibta);
    manager.handle_refused(ms(5), PEER, &quote);
    manager.handle_refused(ms(5), address(3), &quote);
    assert_eq!(manager.poll_event(), None);
    manager.handle_refused(ms(300), PEER, &quote);
    let event = manager.poll_event();
    assert!(matches!(
        event,
        Some(ib::Event::Nobody { route: ROUTE, .. })
    ));
    assert_eq!(manager.poll_event(), None);
    assert_eq!(manager.load().connections(), 0);
    let counters = manager.counters();
    assert_eq!((counters.nobody, counters.misquoted), (1, 1));
}
