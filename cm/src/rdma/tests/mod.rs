//! Two managers on one cable, and what their programs see.

mod confirmations;
mod connections;
mod datagrams;
mod network;
mod phases;
mod ports;
mod requests;
mod workers;

use super::{Config, Error, Event, Id, Kind, Params, PortSpace, RdmaCm};
use crate::event::Route;
use crate::tests::{Rng, path};
use core::net::{IpAddr, SocketAddr};
use std::vec::Vec;
use trunkline_conn::time::Instant;
use trunkline_wire::Qpn;
use trunkline_wire::cm::CmMad;

/// Whether a call was refused because of the state of `id`.
pub(super) fn is_refused<T>(outcome: &Result<T, Error>, id: Id) -> bool {
    matches!(outcome, Err(Error::State { id: of, .. }) if *of == id)
}

/// Host 1 and host 2 on a cable that loses nothing.
#[derive(Debug)]
pub(super) struct Cable {
    pub(super) hosts: [RdmaCm<Rng>; 2],
    pub(super) now: Instant,
    pub(super) v6: bool,
    /// Every message that went over it: who sent it, and what.
    pub(super) log: Vec<(usize, CmMad)>,
    events: [Vec<Event>; 2],
}

impl Cable {
    pub(super) fn new() -> Self {
        Self::with(Config::new)
    }

    pub(super) fn with(config: impl Fn(u64) -> Config) -> Self {
        let host = |seed| RdmaCm::new(config(seed), Rng::new(seed));
        Self {
            hosts: [host(1), host(2)],
            now: Instant::ZERO,
            v6: false,
            log: Vec::new(),
            events: [Vec::new(), Vec::new()],
        }
    }

    pub(super) fn address(&self, host: usize) -> IpAddr {
        let text = match (self.v6, host) {
            (false, 0) => "10.0.0.1",
            (false, _) => "10.0.0.2",
            (true, 0) => "fe80::1",
            (true, _) => "fe80::2",
        };
        text.parse().expect("an address")
    }

    pub(super) fn route(&self, from: usize) -> Route {
        Route {
            local: self.address(from),
            remote: self.address(1 - from),
        }
    }

    /// Carries messages until nobody has any.
    pub(super) fn settle(&mut self) {
        loop {
            let mut quiet = true;
            for from in 0..2 {
                while let Some(sent) = self.hosts[from].poll_transmit() {
                    quiet = false;
                    assert_eq!(sent.route, self.route(from));
                    let mad = CmMad::parse(&sent.mad).expect("a manager sends what parses");
                    self.log.push((from, mad));
                    let path = path(sent.route.local, sent.route.remote);
                    self.hosts[1 - from].handle_mad(self.now, &path, &sent.mad);
                }
                while let Some(event) = self.hosts[from].poll_event(self.now) {
                    quiet = false;
                    self.events[from].push(event);
                }
            }
            if quiet {
                return;
            }
        }
    }

    /// Lets time pass up to the next thing that is due anywhere.
    pub(super) fn wait(&mut self) {
        let due = self.hosts.iter().filter_map(RdmaCm::poll_timeout).min();
        self.now = due.expect("something is to come").max(self.now);
        for host in &mut self.hosts {
            host.handle_timeout(self.now);
        }
        self.settle();
    }

    /// What a host's program has heard since it last asked.
    pub(super) fn heard(&mut self, host: usize) -> Vec<Event> {
        self.settle();
        core::mem::take(&mut self.events[host])
    }

    /// The only thing that it has heard.
    pub(super) fn only(&mut self, host: usize) -> Event {
        let heard = self.heard(host);
        let [event] = heard[..] else {
            panic!("one event, not {heard:?}")
        };
        event
    }

    /// Names of the messages since last asked, each with its sender.
    pub(super) fn said(&mut self) -> Vec<(usize, &'static str)> {
        let log = core::mem::take(&mut self.log);
        log.iter()
            .map(|(from, mad)| (*from, mad.message.name()))
            .collect()
    }

    pub(super) fn listen(&mut self, host: usize, space: PortSpace, kind: Kind, port: u16) -> Id {
        self.listen_with(host, (space, kind, port), 0)
    }

    pub(super) fn listen_with(
        &mut self,
        host: usize,
        (space, kind, port): (PortSpace, Kind, u16),
        backlog: u32,
    ) -> Id {
        let address = SocketAddr::new(self.address(host), port);
        let manager = &mut self.hosts[host];
        let id = manager.create(space, kind).expect("there is room");
        manager.bind(id, address).expect("the port is free");
        manager.listen(id, backlog).expect("nobody listens there");
        id
    }

    /// An ID that knows whom to connect to.
    pub(super) fn resolved(&mut self, host: usize, space: PortSpace, kind: Kind, port: u16) -> Id {
        let route = self.route(host);
        let manager = &mut self.hosts[host];
        let id = manager.create(space, kind).expect("there is room");
        manager.resolve(id, route, port).expect("a way is known");
        id
    }

    /// Host 1 connects to port 7174 of host 2, which listens: the two IDs, the second undecided.
    pub(super) fn requested(&mut self, params: &Params<'_>) -> (Id, Id) {
        self.listen(1, PortSpace::Tcp, Kind::Rc, 7174);
        self.requested_at(7174, params)
    }

    fn requested_at(&mut self, port: u16, params: &Params<'_>) -> (Id, Id) {
        let id = self.resolved(0, PortSpace::Tcp, Kind::Rc, port);
        let now = self.now;
        let connected = self.hosts[0].connect(now, id, params);
        connected.expect("all is well");
        let event = self.only(1);
        let Event::ConnectRequest { id: asked, .. } = event else {
            panic!("a request, not {event:?}")
        };
        (id, asked)
    }

    /// The same, and host 2 accepts and host 1 confirms.
    pub(super) fn established(&mut self) -> (Id, Id) {
        let ids = self.requested(&params(17));
        self.establish(ids)
    }

    /// The same where host 2 listens at this port already.
    pub(super) fn established_at(&mut self, port: u16) -> (Id, Id) {
        let ids = self.requested_at(port, &params(17));
        self.establish(ids)
    }

    fn establish(&mut self, (asking, asked): (Id, Id)) -> (Id, Id) {
        let now = self.now;
        let accepted = self.hosts[1].accept(now, asked, &params(18));
        accepted.expect("it waits for that");
        self.heard(0);
        let confirmed = self.hosts[0].accept(now, asking, &params(17));
        confirmed.expect("it waits for that");
        for host in 0..2 {
            assert!(matches!(self.only(host), Event::Established { .. }));
        }
        self.log.clear();
        (asking, asked)
    }
}

pub(super) const fn params(qpn: u32) -> Params<'static> {
    Params::new(Qpn::from_wire(qpn))
}
