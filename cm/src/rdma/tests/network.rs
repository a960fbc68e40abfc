//! Programs on a bad network: each hears of each of its connections in the right order, once.

use super::params;
use crate::event::Route;
use crate::random::Random;
use crate::rdma::{Config, Event, Id, Kind, Manager, PortSpace};
use crate::tests::air::{Air, Weather};
use crate::tests::{Seeded, address, path};
use std::collections::BTreeMap;
use std::vec::Vec;
use trunkline_conn::time::{Instant, MILLISECOND, SECOND};

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
    manager: Manager<Seeded>,
    number: u8,
    stages: BTreeMap<Id, Stage>,
    qpn: u32,
    /// Connections that came to stand.
    established: usize,
}

impl Host {
    fn new(number: u8, seed: u64) -> Self {
        let mut manager = Manager::new(Config::new(seed), Seeded(seed));
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

#[derive(Debug)]
struct World {
    hosts: [Host; 2],
    now: Instant,
    air: Air,
    random: Seeded,
}

impl World {
    fn settle(&mut self) {
        for host in &mut self.hosts {
            host.manager.handle_timeout(self.now);
            while let Some(event) = host.manager.poll_event(self.now) {
                host.hear(self.now, &event);
            }
            while let Some(sent) = host.manager.poll_transmit() {
                let to = 3 - host.number;
                self.air
                    .send(self.now, host.number, to, sent.mad, &mut self.random);
            }
        }
    }

    fn run(&mut self, end: Instant) {
        self.settle();
        loop {
            let timers = self
                .hosts
                .iter()
                .filter_map(|host| host.manager.poll_timeout());
            let next = timers.chain(self.air.next()).min();
            let Some(next) = next.filter(|&next| next <= end) else {
                self.now = end;
                return;
            };
            self.now = self.now.max(next);
            if self.air.next() == Some(next)
                && let Some((from, to, mad)) = self.air.land()
            {
                let host = &mut self.hosts[usize::from(to) - 1];
                let path = path(address(from), address(to));
                host.manager.handle_mad(self.now, &path, &mad);
            }
            self.settle();
        }
    }
}

fn run(seed: u64) -> usize {
    let mut random = Seeded(seed);
    let mut world = World {
        hosts: [Host::new(1, random.next()), Host::new(2, random.next())],
        now: Instant::ZERO,
        air: Air::new(Weather::bad(&mut random)),
        random,
    };
    for _ in 0..20 {
        let host = world.random.below(2) as usize;
        let now = world.now;
        if world.random.chance(700) {
            world.hosts[host].connect(now);
        } else {
            let ids: Vec<Id> = world.hosts[host].stages.keys().copied().collect();
            let place = world.random.below(ids.len().max(1) as u64) as usize;
            if let Some(&id) = ids.get(place) {
                world.hosts[host].disconnect(now, id);
            }
        }
        let pause = world.random.below(1_000) * MILLISECOND;
        world.run(now + pause);
    }
    world.run(world.now + 100 * SECOND);
    let established = world.hosts[0].established;
    for host in 0..2 {
        let ids: Vec<Id> = world.hosts[host].stages.keys().copied().collect();
        let now = world.now;
        ids.iter()
            .for_each(|&id| world.hosts[host].disconnect(now, id));
        world.run(now + 100 * SECOND);
    }
    for host in &mut world.hosts {
        let now = world.now;
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
    let mut established = 0;
    for seed in 0..1_000 {
        let outcome = std::panic::catch_unwind(|| run(seed));
        established += outcome.unwrap_or_else(|_| panic!("seed {seed} fails"));
    }
    // Some fourteen a run.
    assert!(established > 12_000, "{established} connections in all");
}
