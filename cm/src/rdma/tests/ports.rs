//! Who gets which port, and who gets which connection.

use super::{Cable, is_refused, params};
use crate::event::Route;
use crate::rdma::{Error, Event, Id, Kind, PortSpace, RdmaCm, Setting};
use crate::tests::Rng;
use core::net::SocketAddr;
use std::borrow::ToOwned;
use std::format;
use std::string::ToString;
use std::vec::Vec;

fn at(text: &str) -> SocketAddr {
    text.parse().expect("an address and a port")
}

fn created(manager: &mut RdmaCm<Rng>) -> Id {
    let id = manager.create(PortSpace::Tcp, Kind::Rc);
    id.expect("there is room")
}

#[test]
fn an_address_is_bound_once() {
    let taken = ["10.0.0.1:5", "0.0.0.0:6", "[::]:7", "[fe80::1]:8"];
    let cells = [
        ("10.0.0.1:5", false),
        ("10.0.0.2:5", true),
        ("0.0.0.0:5", false),
        ("[::]:5", false),
        ("[fe80::1]:5", true),
        ("[::ffff:10.0.0.1]:5", false),
        ("10.0.0.1:6", false),
        ("[fe80::1]:6", true),
        ("[::]:6", false),
        ("10.0.0.1:7", false),
        ("0.0.0.0:7", false),
        ("[fe80::1]:7", false),
        ("10.0.0.1:8", true),
        ("0.0.0.0:8", true),
        ("[::]:8", false),
    ];
    for (address, free) in cells {
        let manager = &mut Cable::new().hosts[0];
        for other in taken {
            let id = created(manager);
            manager.bind(id, at(other)).expect("the first");
        }
        let id = created(manager);
        assert_eq!(manager.bind(id, at(address)).is_ok(), free, "{address}");
        let other = manager.create(PortSpace::Ib, Kind::Rc).expect("room");
        assert!(manager.bind(other, at(address)).is_ok(), "another space");
    }
}

#[test]
fn ids_that_share_may_bind_together_and_one_of_them_listen_alone() {
    let manager = &mut Cable::new().hosts[0];
    let [first, second, third] = [(); 3].map(|()| created(manager));
    for id in [first, second] {
        manager
            .set(id, Setting::ReuseAddress(true))
            .expect("not bound");
        manager.bind(id, at("0.0.0.0:5")).expect("both share");
    }
    let refused = manager.bind(third, at("0.0.0.0:5"));
    assert_eq!(refused, Err(Error::AddressInUse(at("0.0.0.0:5"))));
    let listening = manager.listen(first, 0);
    assert_eq!(listening, Err(Error::AddressInUse(at("0.0.0.0:5"))));
    manager
        .destroy(Cable::new().now, second)
        .expect("it is there");
    assert_eq!(manager.listen(first, 0), Ok(at("0.0.0.0:5")));
    let late = manager.set(first, Setting::ReuseAddress(false));
    assert!(is_refused(&late, first));
}

#[test]
fn an_ipv6_only_listener_leaves_ipv4_to_others() {
    let manager = &mut Cable::new().hosts[0];
    let [six, four] = [(); 2].map(|()| created(manager));
    manager.set(six, Setting::V6Only(true)).expect("not bound");
    manager.bind(six, at("[::]:5")).expect("the first");
    manager.bind(four, at("0.0.0.0:5")).expect("another family");
}

#[test]
fn port_0_is_replaced_by_a_free_one_until_there_is_none() {
    let mut cable = Cable::with(|guid| crate::rdma::Config {
        ids: 30_000,
        ..crate::rdma::Config::new(guid)
    });
    let manager = &mut cable.hosts[0];
    let mut ports = Vec::new();
    let error = loop {
        let id = created(manager);
        match manager.bind(id, at("10.0.0.1:0")) {
            Ok(got) => ports.push(got.port()),
            Err(error) => break error,
        }
    };
    assert_eq!((error, ports.len()), (Error::NoPort, 28_232));
    assert!(!ports.is_sorted(), "nobody can tell the next one");
    ports.sort_unstable();
    ports.dedup();
    assert_eq!((ports.len(), ports[0]), (28_232, 32_768));
}

#[test]
fn a_connection_goes_to_the_listener_that_names_its_address_best() {
    let mut cable = Cable::new();
    let addresses = ["[::]:5", "0.0.0.0:6", "10.0.0.2:7", "10.0.0.9:8"];
    let listeners = addresses.map(|address| {
        let id = created(&mut cable.hosts[1]);
        cable.hosts[1].bind(id, at(address)).expect("free");
        cable.hosts[1].listen(id, 0).expect("free");
        id
    });
    for (port, expected) in [(5, Some(0)), (6, Some(1)), (7, Some(2)), (8, None)] {
        let id = cable.resolved(0, PortSpace::Tcp, Kind::Rc, port);
        let now = cable.now;
        let connected = cable.hosts[0].connect(now, id, &params(100 + u32::from(port)));
        connected.expect("all is well");
        let heard = cable.heard(1);
        let got = heard.iter().map(|event| match event {
            Event::ConnectRequest { listener, .. } => *listener,
            other => panic!("a request, not {other:?}"),
        });
        let expected = expected.map(|place: usize| listeners[place]);
        assert!(got.eq(expected), "port {port}");
    }
    assert_eq!(cable.hosts[1].counters().no_listener, 1);
}

#[test]
fn who_no_longer_listens_gets_nothing() {
    let mut cable = Cable::new();
    let listener = cable.listen(1, PortSpace::Tcp, Kind::Rc, 5);
    let now = cable.now;
    cable.hosts[1].destroy(now, listener).expect("it is there");
    let id = cable.resolved(0, PortSpace::Tcp, Kind::Rc, 5);
    cable.hosts[0]
        .connect(now, id, &params(17))
        .expect("all is well");
    assert!(matches!(cable.only(0), Event::Rejected { .. }));
    assert!(cable.heard(1).is_empty());
    assert_eq!(cable.hosts[1].ib().counters().no_service, 1);
}

#[test]
fn an_id_is_resolved_once_and_again_only_if_there_was_no_way() {
    let mut cable = Cable::new();
    let route = cable.route(0);
    let manager = &mut cable.hosts[0];
    let id = created(manager);
    let local = manager.resolve(id, route, 5).expect("a way is known");
    assert!(is_refused(&manager.resolve(id, route, 6), id));
    assert!(is_refused(&manager.may_resolve(id), id));
    manager.unresolve(id);
    assert_eq!(manager.may_resolve(id), Ok(()));
    assert!(is_refused(
        &manager.connect(Cable::new().now, id, &params(17)),
        id
    ));
    assert_eq!(manager.resolve(id, route, 6), Ok(local));
}

#[test]
fn a_refusal_says_what_the_id_is_and_what_it_has_to_be() {
    let mut cable = Cable::new();
    let (now, route) = (cable.now, cable.route(0));
    let manager = &mut cable.hosts[0];
    let id = created(manager);
    let said = |outcome: Result<(), Error>| outcome.map_err(|error| error.to_string());
    let number = id.number();
    let words = format!("ID {number} is idle: this takes a resolved one");
    assert_eq!(said(manager.connect(now, id, &params(17))), Err(words));
    manager.bind(id, at("10.0.0.1:6")).expect("free");
    let words = format!("ID {number} is bound: this takes an idle one without an address");
    assert_eq!(
        said(manager.bind(id, at("10.0.0.1:7")).map(drop)),
        Err(words)
    );
    manager.resolve(id, route, 5).expect("a way is known");
    let words = format!("ID {number} has no QP, and the parameters name none");
    assert_eq!(said(manager.connect(now, id, &params(0))), Err(words));
    let words = "ACK timeout cannot be 32: 0 to 31".to_owned();
    assert_eq!(said(manager.set(id, Setting::AckTimeout(32))), Err(words));
}

#[test]
fn an_id_accepts_with_a_qp_and_asks_for_datagrams_without_one() {
    let mut cable = Cable::new();
    let (_, asked) = cable.requested(&params(17));
    let now = cable.now;
    let manager = &mut cable.hosts[1];
    assert!(!manager.has_outgoing());
    let without = manager.accept(now, asked, &params(0));
    assert!(
        matches!(without, Err(Error::NoQp(id)) if id == asked),
        "{without:?}"
    );
    let with = manager.accept(now, asked, &params(18));
    with.expect("it waits for that all the same");
    assert!(manager.has_outgoing());
    let id = cable.resolved(0, PortSpace::Udp, Kind::Ud, 7175);
    let question = cable.hosts[0].connect(now, id, &params(0));
    question.expect("who asks for datagrams tells of no QP");
}

#[test]
fn calls_in_the_wrong_state_change_nothing() {
    let mut cable = Cable::new();
    let (now, route) = (cable.now, cable.route(0));
    let listener = cable.listen(0, PortSpace::Tcp, Kind::Rc, 5);
    let manager = &mut cable.hosts[0];
    let refused = [
        manager.connect(now, listener, &params(17)),
        manager.accept(now, listener, &params(17)),
        manager.reject(now, listener, b""),
        manager.disconnect(now, listener),
        manager.notify(listener),
        manager.resolve(listener, route, 5).map(drop),
        manager.listen(listener, 0).map(drop),
        manager.bind(listener, at("10.0.0.1:6")).map(drop),
    ];
    for call in &refused {
        assert!(is_refused(call, listener), "{call:?}");
    }
    let id = created(manager);
    manager.bind(id, at("10.0.0.7:0")).expect("free");
    let elsewhere = manager.resolve(id, route, 5);
    assert!(matches!(elsewhere, Err(Error::BoundElsewhere(_))));
    let mixed = Route {
        local: route.local,
        remote: at("[fe80::1]:0").ip(),
    };
    assert!(matches!(
        manager.resolve(id, mixed, 5),
        Err(Error::Request(_))
    ));
    let kinds = manager.create(PortSpace::Tcp, Kind::Ud);
    assert_eq!(kinds, Err(Error::Kind(PortSpace::Tcp, Kind::Ud)));
}
