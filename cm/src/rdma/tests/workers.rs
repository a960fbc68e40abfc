//! Managers of the workers of one node.

use super::{Cable, params};
use crate::ib::CloseReason;
use crate::rdma::{Config, Error, Event, Id, Kind, PortSpace, RdmaCm, keeper};
use crate::tests::Rng;
use core::net::SocketAddr;
use std::collections::BTreeSet;
use std::vec::Vec;
use trunkline_conn::time::Instant;
use trunkline_wire::Workers;

fn two() -> Workers {
    Workers::new(2).expect("two may be")
}

fn config_of(worker: usize, guid: u64) -> Config {
    let mut config = Config::new(guid);
    config.ib.worker = two().iter().nth(worker).expect("one of two");
    config
}

fn managers() -> [RdmaCm<Rng>; 2] {
    [0, 1].map(|worker| RdmaCm::new(config_of(worker, 5), Rng::new(worker as u64 + 1)))
}

fn created(manager: &mut RdmaCm<Rng>) -> Id {
    let id = manager.create(PortSpace::Tcp, Kind::Rc);
    id.expect("there is room")
}

fn at(port: u16) -> SocketAddr {
    SocketAddr::new("10.0.0.2".parse().expect("an address"), port)
}

#[test]
fn ids_and_ports_of_nobodys_choice_show_their_worker() {
    let mut managers = managers();
    let (mut ids, mut ports) = (BTreeSet::new(), BTreeSet::new());
    for (worker, manager) in (0..).zip(&mut managers) {
        for _ in 0..100 {
            let id = created(manager);
            let got = manager.bind(id, at(0)).expect("a port is free");
            assert_eq!(
                (id.worker(two()), keeper(got.port(), two())),
                (worker, worker)
            );
            assert!(ids.insert(id) && ports.insert(got.port()));
        }
    }
}

#[test]
fn a_port_is_granted_by_its_keeper_and_given_back_there() {
    let [zero, one] = &mut managers();
    assert_eq!((keeper(7174, two()), keeper(7175, two())), (0, 1));
    let (id, other) = (created(zero), created(one));
    let wish = zero.wish(id, at(7175)).expect("it has none");
    one.grant(&wish).expect("nobody has it");
    zero.granted(&wish);
    assert_eq!(zero.local(id), Some(at(7175)));
    assert_eq!(
        one.bind(other, at(7175)),
        Err(Error::AddressInUse(at(7175)))
    );
    assert!(zero.wish(id, at(9)).is_err(), "it has one");
    let claim = zero.claim_of(id).expect("it has one");
    assert!(!claim.listens);
    zero.destroy(Instant::ZERO, id).expect("it is there");
    one.give_back(id, &claim);
    assert_eq!(one.bind(other, at(7175)), Ok(at(7175)));
}

/// A cable to each of the two workers of host 2, where one listener of the first has room for one.
fn cables() -> ([Cable; 2], Id) {
    let mut cables = [0, 1].map(|worker| {
        Cable::with(|guid| match guid {
            1 => Config::new(guid),
            guid => config_of(worker, guid),
        })
    });
    let [zero, one] = &mut cables;
    let id = created(&mut zero.hosts[1]);
    let local = zero.hosts[1].bind(id, at(0)).expect("a port is free");
    let listener = zero.hosts[1].listener(id, 1).expect("it is idle");
    zero.hosts[1]
        .claim_listening(&listener)
        .expect("nobody listens");
    for cable in [zero, one] {
        cable.hosts[1].listen_too(&listener);
    }
    assert_eq!(listener.local, local);
    (cables, id)
}

/// Host 1 asks the listener; gives what host 2 heard.
fn ask(cable: &mut Cable, port: u16, qpn: u32) -> Vec<Event> {
    let id = cable.resolved(0, PortSpace::Tcp, Kind::Rc, port);
    let now = cable.now;
    let asked = cable.hosts[0].connect(now, id, &params(qpn));
    asked.expect("all is well");
    cable.heard(1)
}

#[test]
fn a_listener_takes_requests_at_each_worker_and_ends_at_each() {
    let (mut cables, listener) = cables();
    let local = cables[0].hosts[1].local(listener).expect("it is bound");
    for (worker, cable) in (0..).zip(&mut cables) {
        let heard = ask(cable, local.port(), 17);
        let [
            Event::ConnectRequest {
                listener: of, id, ..
            },
        ] = heard[..]
        else {
            panic!("a request, not {heard:?}")
        };
        assert_eq!((of, id.worker(two())), (listener, worker));
        // An address may have one waiting, and each worker counts for itself.
        assert!(ask(cable, local.port(), 18).is_empty());
        assert_eq!(cable.hosts[1].counters().unfair, 1);
        let now = cable.now;
        cable.hosts[1].destroy(now, listener).expect("it is known");
        assert!(ask(cable, local.port(), 19).is_empty());
        assert_eq!(cable.hosts[1].ib().counters().no_service, 1);
    }
}

#[test]
fn a_qp_that_another_worker_meets_has_its_connection_ended() {
    let (mut cables, listener) = cables();
    let [zero, one] = &mut cables;
    let local = zero.hosts[1].local(listener).expect("it is bound");
    let (_, stands) = zero.established_at(local.port());
    assert!(zero.hosts[1].poll_met().is_some());
    assert_eq!(ask(one, local.port(), 17).len(), 1);
    let met = one.hosts[1].poll_met().expect("a QP was met");
    let now = zero.now;
    zero.hosts[1].handle_met(now, &met);
    let heard = zero.heard(1);
    let [Event::Disconnected { id, reason, .. }] = heard[..] else {
        panic!("the end, not {heard:?}")
    };
    assert_eq!((id, reason), (stands, CloseReason::Stale));
    assert_eq!(zero.hosts[1].ib().counters().stale, 1);
    // What is over already is not ended twice.
    zero.hosts[1].handle_met(now, &met);
    assert!(zero.heard(1).is_empty());
    assert_eq!(one.hosts[1].poll_met(), None);
}
