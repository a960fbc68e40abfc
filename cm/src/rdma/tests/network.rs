//! Programs on a bad network: each hears of each of its connections in the right order, once.

use super::params;
use crate::event::{Outgoing, Route};
use crate::message::Mad;
use crate::rdma::{Config, Event, Id, Kind, PortSpace, RdmaCm};
use crate::tests::air::Weather;
use crate::tests::network::{Network, Party, run_seeds};
use crate::tests::{Rng, address};
use std::collections::BTreeMap;
use std::vec::Vec;
use trunkline_conn::time::{Instant, MILLISECOND, SECOND};
use trunkline_wire::Path;

/// How far a program has come with an ID.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Stage {
    Connecting,
    Accepted,
    Established,
    Disconnecting,
    /// Rejected, unreachable, failed, or disconnected.
    Over,
    Exited,
}

#[derive(Debug)]
struct Host {
    manager: RdmaCm<Rng>,
    number: u8,
    stages: BTreeMap<Id, Stage>,
    qpn: u32,
    /// Connections that came to stand.
    established: usize,
}

impl Host {
    fn new(number: u8, seed: u64) -> Self {
        let mut manager = RdmaCm::new(Config::new(seed), Rng::new(seed));
        let listener = manager.create(PortSpace::Tcp, Kind::Rc).expect("room");
        let any = "[::]:7174".parse().expect("an address");
        manager.bind(listener, any).expect("free");
        manager.listen(listener, 0).expect("free");
        Self {
            manager,
            number,
            stages: BTreeMap::new(),
            qpn: 1,
            established: 0,
        }
    }

    fn qpn(&mut self) -> u32 {
        self.qpn += 1;
        self.qpn
    }

    fn connect(&mut self, now: Instant) {
        let route = Route {
            local: address(self.number),
            remote: address(3 - self.number),
        };
        let params = params(self.qpn());
        let id = self.manager.create(PortSpace::Tcp, Kind::Rc).expect("room");
        self.manager.resolve(id, route, 7174).expect("a way");
        self.manager.connect(now, id, &params).expect("all is well");
        self.stages.insert(id, Stage::Connecting);
    }

    fn hear(&mut self, now: Instant, event: &Event) {
        let id = event.id();
        let stage = self.stages.get(&id).copied();
        let next = match event {
            Event::ConnectRequest { .. } => {
                assert_eq!(stage, None);
                let params = params(self.qpn());
                let accepted = self.manager.accept(now, id, &params);
                accepted.expect("nobody else decides");
                Stage::Accepted
            }
            Event::ConnectResponse { .. } => {
                assert_eq!(stage, Some(Stage::Connecting));
                let confirmed = self.manager.accept(now, id, &params(0));
                confirmed.expect("nobody else decides");
                Stage::Connecting
            }
            Event::Established { .. } => {
                let waited = matches!(stage, Some(Stage::Connecting | Stage::Accepted));
                assert!(waited, "{stage:?}");
                self.established += 1;
                Stage::Established
            }
            Event::Disconnected { .. } => {
                let may_end = [Stage::Accepted, Stage::Established, Stage::Disconnecting];
                assert!(may_end.map(Some).contains(&stage), "{stage:?}");
                Stage::Over
            }
            Event::Nobody { .. } => unreachable!("no host says so here"),
            Event::Rejected { .. } | Event::Unreachable { .. } | Event::ConnectError { .. } => {
                let early = matches!(stage, Some(Stage::Connecting | Stage::Accepted));
                assert!(early, "{stage:?}");
                Stage::Over
            }
            Event::TimewaitExit { .. } => {
                assert_eq!(stage, Some(Stage::Over));
                Stage::Exited
            }
        };
        self.stages.insert(id, next);
    }

    fn disconnect(&mut self, now: Instant, id: Id) {
        if self.stages[&id] == Stage::Established {
            self.manager.disconnect(now, id).expect("it stands");
            self.stages.insert(id, Stage::Disconnecting);
        }
    }
}

impl Party for Host {
    fn next(&self) -> Option<Instant> {
        self.manager.poll_timeout()
    }

    fn handle_mad(&mut self, now: Instant, from: &Path, mad: &Mad) {
        self.manager.handle_mad(now, from, mad);
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.manager.handle_timeout(now);
    }

    fn take_up(&mut self, now: Instant, _: &mut Rng) -> Option<Vec<Outgoing>> {
        while let Some(event) = self.manager.poll_event(now) {
            self.hear(now, &event);
        }
        let sent: Vec<_> = core::iter::from_fn(|| self.manager.poll_transmit()).collect();
        (!sent.is_empty()).then_some(sent)
    }
}

/// What the two hosts' programs do at random.
fn random_step(network: &mut Network<Host>) {
    let (host, now) = (network.random.below(2) as usize, network.now);
    if network.random.chance(700_000) {
        network.parties[host].connect(now);
    } else {
        let ids: Vec<Id> = network.parties[host].stages.keys().copied().collect();
        let place = network.random.below(ids.len().max(1) as u64) as usize;
        if let Some(&id) = ids.get(place) {
            network.parties[host].disconnect(now, id);
        }
    }
    network.settle(host);
}

fn run(seed: u64) -> usize {
    let weather = Weather::bad(&mut Rng::new(seed ^ 0x5eed));
    let mut network = Network::of(seed, 2, weather, |number, random| {
        Host::new(number, random.next())
    });
    for _ in 0..20 {
        random_step(&mut network);
        let pause = network.random.below(1_000) * MILLISECOND;
        network.run(network.now + pause);
    }
    network.run(network.now + 100 * SECOND);
    let established = network.parties[0].established;
    for host in 0..2 {
        let ids: Vec<Id> = network.parties[host].stages.keys().copied().collect();
        let now = network.now;
        ids.iter()
            .for_each(|&id| network.parties[host].disconnect(now, id));
        network.settle(host);
        network.run(now + 100 * SECOND);
    }
    let now = network.now;
    for host in &mut network.parties {
        assert_eq!(
            *host.manager.ib().load(),
            Default::default(),
            "something is left"
        );
        for (&id, stage) in &host.stages {
            assert!(matches!(stage, Stage::Over | Stage::Exited), "{stage:?}");
            host.manager.destroy(now, id).expect("it is there");
        }
        assert_eq!(host.manager.ids(), 1, "the listener is left");
    }
    established
}

#[test]
fn every_connection_has_one_life_whatever_the_network_does() {
    let established = run_seeds(1_000, run);
    // Some fourteen a run.
    let (all, runs) = (established.iter().sum::<usize>(), established.len());
    assert!(all > 12 * runs, "{all} connections in {runs} runs");
}
