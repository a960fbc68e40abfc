//! Tests of the whole: a manager against a peer whose every datagram the test writes, and managers
//! against each other on a bad network.

pub(crate) mod air;
mod cells;
mod crossing;
mod directory;
mod gsi;
mod hello;
pub(crate) mod hostile;
mod identity;
mod limits;
pub(crate) mod matrix;
pub(crate) mod network;
mod nodes;
pub(crate) mod pcap;
mod refused;
mod scripts;
mod sim;

use crate::binds::{Binds, Bounds};
use crate::event::{Established, Event, HandshakeId, Outgoing, Route};
use crate::hello::{ConnectRequest, Offer, Purpose};
use crate::identity::Identity;
use crate::message::{self, Mad};
use crate::random::Random;
use crate::refusal::RefusalCode;
use crate::retry::Retry;
use crate::state::State;
use crate::table::Ids;
use crate::{Config, NodeCm};
use core::net::{IpAddr, Ipv4Addr};
use std::vec::Vec;
use trunkline_conn::time::{Instant, MILLISECOND};
pub(crate) use trunkline_testkit::Rng;
use trunkline_wire::cm::{Answered, CmMad, CommId, Message};
use trunkline_wire::{IpFields, Path, Qpn, ROCE_PORT, Workers};

impl Random for Rng {
    fn next(&mut self) -> u64 {
        Self::next(self)
    }
}

pub(crate) const fn ms(ms: u64) -> Instant {
    Instant::from_nanos(ms * MILLISECOND)
}

pub(crate) const fn address(host: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, host))
}

pub(crate) fn path(from: IpAddr, to: IpAddr) -> Path {
    Path {
        src: from,
        dst: to,
        src_port: ROCE_PORT,
        traffic_class: 0,
        ip: IpFields::DEFAULT,
    }
}

pub(super) fn offer(random: &mut Rng) -> Offer {
    Offer {
        connection: Qpn::from_wire(random.next() as u32),
        token: random.next() as u32,
        first_packet: random.next() >> 1,
        packet_size: 1_500 + random.below(60_000) as u32,
        window: 2 + random.below(1_000) as u16,
        workers: Workers::ONE,
        packs: true,
    }
}

pub(super) fn ask(random: &mut Rng, purpose: Purpose) -> ConnectRequest {
    ConnectRequest {
        offer: offer(random),
        purpose,
        toward: 0,
        traffic_class: 0,
        binds: Binds::default(),
        retry: Retry::UNKNOWN,
    }
}

/// Everything a manager has to send and to say.
pub(super) fn drain(manager: &mut NodeCm<Rng>) -> (Vec<Outgoing>, Vec<Event>) {
    let sent = core::iter::from_fn(|| manager.poll_transmit()).collect();
    let events = core::iter::from_fn(|| manager.poll_event()).collect();
    (sent, events)
}

pub(crate) fn messages(sent: &[Outgoing]) -> Vec<CmMad> {
    let parse = |out: &Outgoing| CmMad::parse(&out.mad).expect("a manager sends what parses");
    sent.iter().map(parse).collect()
}

/// A manager at host 1 with GUID 5, and the numbers of a peer at host 2 whose part the test plays.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(super) manager: NodeCm<Rng>,
    pub(super) random: Rng,
    pub(super) now: Instant,
    pub(super) peer: Identity,
    pub(super) peer_address: IpAddr,
    pub(super) peer_offer: Offer,
    pub(super) purpose: Purpose,
    pub(super) id: Option<HandshakeId>,
    pub(super) transaction: u64,
    /// The manager's number and the peer's.
    pub(super) ours: CommId,
    pub(super) theirs: CommId,
}

pub(super) const US: Identity = Identity {
    guid: 5,
    epoch: 100,
};
pub(super) const THEM: Identity = Identity {
    guid: 9,
    epoch: 200,
};

impl Stage {
    pub(super) fn new() -> Self {
        Self::with(Config::new(US))
    }

    pub(super) fn with(config: Config) -> Self {
        let mut random = Rng::new(77);
        Self {
            manager: NodeCm::new(config, Rng::new(3)),
            now: ms(1_000),
            peer: THEM,
            peer_address: address(2),
            peer_offer: offer(&mut random),
            random,
            purpose: Purpose::Pool(0),
            id: None,
            transaction: 0x1234_5678_9abc,
            ours: CommId(0),
            theirs: CommId(0x7777_0001),
        }
    }

    pub(super) fn route(&self) -> Route {
        Route {
            local: address(1),
            remote: self.peer_address,
        }
    }

    pub(super) fn deliver(&mut self, mad: &Mad) {
        let from = path(self.peer_address, address(1));
        self.manager.handle_mad(self.now, &from, mad);
    }

    fn swapped(&self) -> Ids {
        Ids {
            local: self.theirs,
            remote: self.ours,
        }
    }

    pub(super) fn peer_ask(&self) -> ConnectRequest {
        ConnectRequest {
            offer: self.peer_offer,
            purpose: self.purpose,
            toward: 0,
            traffic_class: 0x28,
            binds: Binds::default(),
            retry: Retry::UNKNOWN,
        }
    }

    // What the peer may say.

    pub(super) fn req(&self) -> Mad {
        self.req_with(Binds::default())
    }

    pub(super) fn req_with(&self, binds: Binds) -> Mad {
        let route = Route {
            local: self.peer_address,
            remote: address(1),
        };
        let ask = ConnectRequest {
            binds,
            ..self.peer_ask()
        };
        let req = message::req(self.theirs, route, self.peer, &ask);
        message::mad(self.transaction, req)
    }

    pub(super) fn rep(&self) -> Mad {
        let rep = message::rep(
            self.swapped(),
            self.peer,
            &self.peer_offer,
            Bounds::default(),
        );
        message::mad(self.transaction, rep)
    }

    pub(super) fn rtu(&self) -> Mad {
        message::mad(self.transaction, message::rtu(self.swapped()))
    }

    pub(super) fn rej(&self, code: RefusalCode) -> Mad {
        let rej = message::rej(self.swapped(), Answered::Req, self.peer, code);
        message::mad(self.transaction, rej)
    }

    pub(super) fn mra(&self) -> Mad {
        let mra = trunkline_wire::cm::Mra {
            local: self.theirs,
            remote: self.ours,
            received: Answered::Req,
            service_timeout: 17,
            private_data: Default::default(),
        };
        message::mad(self.transaction, mra)
    }

    pub(super) fn dreq(&self) -> Mad {
        let dreq = message::dreq(self.swapped(), Qpn::from_wire(0));
        message::mad(self.transaction, dreq)
    }

    pub(super) fn drep(&self) -> Mad {
        message::mad(self.transaction, message::drep(self.theirs, self.ours))
    }

    // Ways into the states.

    pub(super) fn open(&mut self) {
        self.open_with(Binds::default());
    }

    pub(super) fn open_with(&mut self, binds: Binds) {
        let ask = ConnectRequest {
            binds,
            ..ask(&mut self.random, self.purpose)
        };
        let route = self.route();
        let id = self.manager.open(self.now, route, ask);
        self.id = Some(id.expect("there is room"));
        let (sent, events) = drain(&mut self.manager);
        let [
            CmMad {
                transaction_id,
                message: Message::Req(req),
            },
        ] = &messages(&sent)[..]
        else {
            panic!("a request sends one REQ, not {sent:?}")
        };
        (self.transaction, self.ours) = (*transaction_id, req.local);
        assert!(events.is_empty());
    }

    pub(super) fn asked(&mut self) {
        self.deliver(&self.req());
        let (sent, events) = drain(&mut self.manager);
        let [Event::Incoming { id, .. }] = events[..] else {
            panic!("a REQ is one question, not {events:?}")
        };
        assert!(sent.is_empty());
        (self.id, self.ours) = (Some(id), id.0);
    }

    pub(super) fn rep_sent(&mut self) {
        self.asked();
        let offer = offer(&mut self.random);
        let accepted = self
            .manager
            .accept(self.now, self.id(), offer, Bounds::default());
        accepted.expect("it waits for that");
        let (sent, _) = drain(&mut self.manager);
        assert!(matches!(
            messages(&sent)[..],
            [CmMad {
                message: Message::Rep(_),
                ..
            }]
        ));
    }

    pub(super) fn established(&mut self) -> Established {
        self.open();
        self.deliver(&self.rep());
        let (sent, events) = drain(&mut self.manager);
        assert!(matches!(
            messages(&sent)[..],
            [CmMad {
                message: Message::Rtu(_),
                ..
            }]
        ));
        let [Event::Established(terms)] = events[..] else {
            panic!("a REP establishes, not {events:?}")
        };
        terms
    }

    pub(super) fn established_as_acceptor(&mut self) -> Established {
        self.rep_sent();
        self.deliver(&self.rtu());
        let (_, events) = drain(&mut self.manager);
        let [Event::Established(terms)] = events[..] else {
            panic!("an RTU establishes, not {events:?}")
        };
        terms
    }

    pub(super) fn dreq_sent(&mut self) {
        self.established();
        self.manager.close(self.now, self.id()).expect("it stands");
        drain(&mut self.manager);
    }

    pub(super) fn time_wait(&mut self) {
        self.dreq_sent();
        self.deliver(&self.drep());
        drain(&mut self.manager);
    }

    pub(super) fn id(&self) -> HandshakeId {
        self.id.expect("the handshake has begun")
    }

    /// Name of the state that the handshake is in.
    pub(super) fn state(&self) -> &'static str {
        let Some(state) = self.id.and_then(|id| self.manager.state_of(id)) else {
            return "-";
        };
        match state {
            State::Free => "Free",
            State::ReqSent(_) => "ReqSent",
            State::ReqReceived(_) => "ReqReceived",
            State::RepSent(_) => "RepSent",
            State::Established(_) => "Established",
            State::DreqSent(_) => "DreqSent",
            State::TimeWait { .. } => "TimeWait",
        }
    }
}
