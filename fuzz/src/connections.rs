//! Target `connections`: two communication managers whose programs do anything, on a network that
//! does anything, and a stranger who sends anything.

use crate::input::Input;
use crate::network::{self, Datagram, Network, address, way};
use std::net::{Ipv4Addr, SocketAddr};
use trunkline_cm::rdma::{Config, Error, Event, Id, Kind, Params, PortSpace, RdmaCm, Setting};
use trunkline_cm::{Concerns, Route};
use trunkline_conn::time::Instant;
use trunkline_wire::Qpn;
use trunkline_wire::cm::CmMad;

const MAX_OPERATIONS: usize = 512;

type Random = Box<dyn FnMut() -> u64>;

struct Host {
    manager: RdmaCm<Random>,
    /// IDs that the program has heard of and not given up.
    ids: Vec<Id>,
}

struct World {
    hosts: [Host; 2],
    now: Instant,
    network: Network,
}

/// Numbers that nobody has to guess: the same for every input.
fn random(mut state: u64) -> Random {
    Box::new(move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        state ^ state >> 29
    })
}

fn host(number: u8) -> Host {
    let mut config = Config::new(number.into());
    config.ids = 64;
    let limits = &mut config.ib.limits;
    (limits.connections, limits.half_open) = (48, 16);
    (limits.time_wait, limits.transmit) = (8, 32);
    Host {
        manager: RdmaCm::new(config, random(number.into())),
        ids: Vec::new(),
    }
}

/// Connects, answers, forges, loses.
///
/// # Panics
/// When a manager breaks its bounds, sends what does not parse, speaks of what is over, or keeps
/// something after everything was given up.
pub fn connections(data: &[u8]) {
    let mut input = Input::new(data);
    let mut world = World {
        hosts: [host(1), host(2)],
        now: Instant::ZERO,
        network: Network::default(),
    };
    input.drive(MAX_OPERATIONS, |input| {
        world.step(input);
        world.settle();
    });
    world.finish();
}

impl World {
    fn step(&mut self, input: &mut Input<'_>) {
        let operation = input.byte();
        let host = usize::from(operation >> 7);
        match operation & 0x0f {
            // The network: deliver, deliver again later, lose, damage.
            0..=4 => {
                let next = self.network.take();
                self.deliver(next);
            }
            5 => {
                let next = self.network.take_and_repeat();
                self.deliver(next);
            }
            6 => drop(self.network.take()),
            7 => {
                let next = self.network.take_damaged(input);
                self.deliver(next);
            }
            // A stranger, from any address.
            8 => {
                let mad = network::invented(input);
                let path = way(address(input.byte()), address(host as u8 + 1));
                self.deliver(Some(Datagram {
                    to: host,
                    path,
                    mad,
                }));
            }
            9 => self.pass(u64::from(input.byte()) << (input.byte() & 31)),
            _ => self.call(host, operation & 0x0f, input),
        }
    }

    /// What a program does.
    fn call(&mut self, host: usize, operation: u8, input: &mut Input<'_>) {
        let now = self.now;
        let route = Route {
            local: address(host as u8 + 1),
            remote: address(2 - host as u8),
        };
        let Host { manager, ids } = &mut self.hosts[host];
        if operation == 10 {
            let (space, kind) = match input.byte() & 3 {
                0 => (PortSpace::Udp, Kind::Ud),
                1 => (PortSpace::Ib, Kind::Uc),
                _ => (PortSpace::Tcp, Kind::Rc),
            };
            match manager.create(space, kind) {
                Ok(id) => ids.push(id),
                Err(error) => assert_eq!(error, Error::TooManyIds(64)),
            }
            return;
        }
        let place = usize::from(input.byte());
        let Some(&id) = ids.get(place % ids.len().max(1)) else {
            return;
        };
        let port = u16::from(input.byte() & 3);
        let long = [operation; 256];
        let params = Params {
            private_data: &long[..usize::from(input.byte())],
            responder_resources: port as u8,
            ..Params::new(Qpn::from_wire(u32::from(input.byte())))
        };
        // Any may fail, but none may break anything.
        let _ = match operation {
            11 => {
                let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port);
                let _ = manager.set(id, Setting::ReuseAddress(place & 1 == 0));
                let _ = manager.bind(id, any);
                manager.listen(id, port.into()).map(|_| ())
            }
            12 => {
                let _ = manager.resolve(id, route, port);
                manager.connect(now, id, &params)
            }
            13 => manager.accept(now, id, &params),
            14 if port == 0 => manager.reject(now, id, params.private_data),
            14 if port == 1 => manager.notify(id),
            14 => manager.disconnect(now, id),
            _ => {
                ids.retain(|&other| other != id);
                let destroyed = manager.destroy(now, id);
                assert_eq!(destroyed, Ok(()));
                destroyed
            }
        };
    }

    fn deliver(&mut self, datagram: Option<Datagram>) {
        if let Some(Datagram { to, path, mad }) = datagram {
            // Whoever it is for: this manager has to bear it.
            let _ = Concerns::of(&mad);
            self.hosts[to].manager.handle_mad(self.now, &path, &mad);
        }
    }

    fn pass(&mut self, ns: u64) {
        self.now = self.now + ns;
        for host in &mut self.hosts {
            host.manager.handle_timeout(self.now);
            let next = host.manager.poll_timeout();
            assert!(
                next.is_none_or(|next| next > self.now),
                "something is due still"
            );
        }
    }

    /// Takes up what the managers have to send and to say.
    fn settle(&mut self) {
        for from in 0..2 {
            while let Some(sent) = self.hosts[from].manager.poll_transmit() {
                assert!(CmMad::parse(&sent.mad).is_ok());
                assert_eq!(sent.route.local, address(from as u8 + 1));
                let path = way(sent.route.local, sent.route.remote);
                // What goes to strangers is lost.
                if sent.route.remote == address(2 - from as u8) {
                    self.network.send(Datagram {
                        to: 1 - from,
                        path,
                        mad: sent.mad,
                    });
                }
            }
            let now = self.now;
            let Host { manager, ids } = &mut self.hosts[from];
            while let Some(event) = manager.poll_event(now) {
                if let Event::ConnectRequest { id, .. } = event {
                    ids.push(id);
                }
                assert!(ids.contains(&event.id()), "{event:?} of nobody");
            }
            let (load, limits) = (manager.ib().load(), manager.config().ib.limits);
            assert!(load.connections() <= limits.connections);
            assert!(load.half_open <= limits.half_open && load.time_wait <= limits.time_wait);
            assert_eq!(manager.ids(), ids.len());
        }
    }

    /// All is given up, and after a while nothing is left.
    fn finish(&mut self) {
        for host in &mut self.hosts {
            for id in host.ids.drain(..) {
                assert_eq!(host.manager.destroy(self.now, id), Ok(()));
            }
        }
        self.settle();
        while let Some(next) = self.network.take() {
            self.deliver(Some(next));
            self.settle();
        }
        for host in &mut self.hosts {
            while let Some(due) = host.manager.poll_timeout() {
                host.manager.handle_timeout(due);
                while host.manager.poll_transmit().is_some() {}
                while host.manager.poll_event(due).is_some() {}
            }
            assert_eq!(*host.manager.ib().load(), Default::default());
            assert_eq!(host.manager.ids(), 0);
        }
    }
}
