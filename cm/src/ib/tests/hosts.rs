//! Hosts on a bad network: each is a manager and the least of a program and of QPs above it. It
//! decides on what is asked after a while, or never, and its QPs exchange packets.

use super::{SERVICE, answer, ask, drain, sidr_answer, sidr_request};
use crate::event::Outgoing;
use crate::ib::{Answer, CmId, Config, Event, Guids, IbCm, QpTerms, RequestTerms};
use crate::message::Mad;
use crate::retry::Retry;
use crate::tests::Rng;
use crate::tests::air::Weather;
use crate::tests::network::{self, Party, host_of};
use std::collections::BTreeMap;
use std::vec::Vec;
use trunkline_conn::time::{Instant, MILLISECOND};
use trunkline_wire::Path;
use trunkline_wire::cm::{PrivateData, RejReason};

/// What a program knows of a connection.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Conn {
    /// This end's QP and the peer's, as far as they are known.
    pub(super) ours: QpTerms,
    pub(super) theirs: QpTerms,
    pub(super) peer: u8,
    /// It is up: both programs may use it.
    pub(super) stands: bool,
    /// Accepted, not confirmed: a packet of the peer would confirm it.
    pub(super) accepted: bool,
}

/// Something that a program has to decide on.
#[derive(Clone, Copy, Debug)]
enum Pending {
    Request(CmId),
    Reply(CmId),
    Question(CmId),
}

#[derive(Debug)]
pub(super) struct Host {
    pub(super) manager: IbCm<Rng>,
    next_qpn: u32,
    /// Connections that have not ended.
    pub(super) conns: BTreeMap<u32, Conn>,
    /// Questions that have not ended.
    pub(super) questions: usize,
    pending: Vec<(Instant, Pending)>,
    /// How often connections came to stand here.
    pub(super) established: u64,
}

impl Host {
    fn new(guid: u64, seed: u64) -> Self {
        let mut manager = IbCm::new(Config::new(guid), Rng::new(seed));
        manager.listen(SERVICE);
        Self {
            manager,
            next_qpn: 2,
            conns: BTreeMap::new(),
            questions: 0,
            pending: Vec::new(),
            established: 0,
        }
    }

    fn qpn(&mut self) -> u32 {
        self.next_qpn += 1;
        self.next_qpn
    }

    fn conn(&mut self, id: CmId) -> &mut Conn {
        let conn = self.conns.get_mut(&id.number());
        conn.expect("nothing is said of what has ended")
    }

    fn note(&mut self, now: Instant, event: &Event, random: &mut Rng) {
        let id = event.id();
        // Nearly always soon; sometimes late enough for an MRA, or never.
        let wait = match random.below(20) {
            0 => 200_000,
            1 | 2 => 3_000,
            _ => random.below(200),
        };
        let decide = now + wait * MILLISECOND;
        match event {
            Event::Incoming { route, terms, .. } => {
                let conn = Conn {
                    theirs: terms.qp,
                    peer: host_of(*route),
                    ..Conn::default()
                };
                let before = self.conns.insert(id.number(), conn);
                assert_eq!(before, None);
                self.pending.push((decide, Pending::Request(id)));
            }
            Event::Replied { answer, .. } => {
                self.conn(id).theirs = answer.qp;
                self.pending.push((decide, Pending::Reply(id)));
            }
            Event::Established { .. } => {
                let conn = self.conn(id);
                assert!(!conn.stands, "set up twice: {conn:?}");
                (conn.stands, conn.accepted) = (true, false);
                self.established += 1;
            }
            Event::SidrIncoming { .. } => {
                self.questions += 1;
                self.pending.push((decide, Pending::Question(id)));
            }
            Event::SidrClosed { .. } | Event::SidrAnswered { .. } => self.questions -= 1,
            Event::Unreachable { .. } if !self.conns.contains_key(&id.number()) => {
                self.questions -= 1;
            }
            Event::TimeWaitExit { qpn, .. } => {
                let mut used = self.conns.values().map(|conn| conn.ours.qpn);
                assert!(
                    used.all(|other| other != *qpn),
                    "{qpn} was given back in use"
                );
            }
            Event::Nobody { .. } => unreachable!("no host says so here"),
            Event::Rejected { .. } | Event::Unreachable { .. } | Event::Closed { .. } => {
                let conn = self.conns.remove(&id.number());
                assert!(conn.is_some(), "what has ended does not end again");
            }
        }
    }

    /// The program decides on what it has thought about.
    fn decide(&mut self, now: Instant, random: &mut Rng) {
        let due = self.pending.extract_if(.., |(at, _)| *at <= now);
        for (_, pending) in due.collect::<Vec<_>>() {
            // It may have ended meanwhile.
            let _ = match pending {
                Pending::Request(id) if random.chance(100_000) => {
                    let reason = RejReason::ConsumerDefined;
                    self.manager
                        .reject(now, id, reason, PrivateData::default())
                        .is_ok()
                }
                Pending::Request(id) => self.accept(now, id),
                Pending::Reply(id) => self.manager.ready(now, id, PrivateData::default()).is_ok(),
                Pending::Question(id) => {
                    let answer = sidr_answer(self.next_qpn);
                    self.manager.answer(now, id, &answer).is_ok()
                }
            };
        }
    }

    fn accept(&mut self, now: Instant, id: CmId) -> bool {
        let answer: Answer = answer(self.qpn());
        let accepted = self.manager.accept(now, id, &answer).is_ok();
        if accepted {
            let conn = self.conn(id);
            (conn.ours, conn.accepted) = (answer.qp, true);
        }
        accepted
    }

    pub(super) fn standing(&self) -> impl Iterator<Item = (u32, &Conn)> {
        let all = self.conns.iter().map(|(&id, conn)| (id, conn));
        all.filter(|(_, conn)| conn.stands)
    }
}

impl Party for Host {
    fn next(&self) -> Option<Instant> {
        let decisions = self.pending.iter().map(|&(at, _)| at);
        decisions.chain(self.manager.poll_timeout()).min()
    }

    fn handle_mad(&mut self, now: Instant, from: &Path, mad: &Mad) {
        self.manager.handle_mad(now, from, mad);
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.manager.handle_timeout(now);
    }

    fn take_up(&mut self, now: Instant, random: &mut Rng) -> Option<Vec<Outgoing>> {
        self.decide(now, random);
        let (sent, events) = drain(&mut self.manager);
        for event in &events {
            self.note(now, event, random);
        }
        (!sent.is_empty() || !events.is_empty()).then_some(sent)
    }
}

pub(super) type Network = network::Network<Host>;

impl Network {
    pub(super) fn new(seed: u64, hosts: u8, weather: Weather) -> Self {
        Self::of(seed, hosts, weather, |_, random| {
            Host::new(random.next(), random.next())
        })
    }

    pub(super) fn connect(&mut self, from: usize, to: usize) {
        let host = &mut self.parties[from];
        let ask: RequestTerms = ask(host.qpn());
        let route = Self::route(from, to);
        let id = host.manager.connect(self.now, route, &ask, Retry::PLAIN);
        let id = id.expect("there is room");
        let conn = Conn {
            ours: ask.qp,
            peer: to as u8 + 1,
            ..Conn::default()
        };
        host.conns.insert(id.number(), conn);
        self.settle(from);
    }

    pub(super) fn ask(&mut self, from: usize, to: usize) {
        let host = &mut self.parties[from];
        let route = Self::route(from, to);
        let asked = host
            .manager
            .ask(self.now, route, &sidr_request(), Retry::PLAIN);
        asked.expect("there is room");
        host.questions += 1;
        self.settle(from);
    }

    /// In whatever state it is.
    pub(super) fn close(&mut self, host: usize, id: u32) {
        let id = CmId(trunkline_wire::cm::CommId(id));
        // It may be closing already.
        let _ = self.parties[host]
            .manager
            .close(self.now, id, PrivateData::default());
        self.settle(host);
    }

    /// The host loses all it knew and counts its QPs from the beginning, as Linux does.
    pub(super) fn restart(&mut self, host: usize) {
        let old = &self.parties[host];
        let Guids::One(guid) = old.manager.config().guids else {
            unreachable!("hosts of the test have one GUID")
        };
        let seed = self.random.next();
        self.parties[host] = Host::new(guid, seed);
    }

    /// The other end of a connection as its host knows it.
    pub(super) fn mirror(&self, host: usize, conn: &Conn) -> Option<(usize, u32, &Conn)> {
        let peer = usize::from(conn.peer) - 1;
        let mut theirs = self.parties[peer].conns.iter();
        let found = theirs.find(|(_, other)| {
            usize::from(other.peer) == host + 1
                && (other.ours, other.theirs) == (conn.theirs, conn.ours)
        });
        found.map(|(&id, other)| (peer, id, other))
    }

    /// What QPs do: packets on connections that stand confirm other ends that wait for it; where
    /// there is no other end they are not acknowledged, and the program closes.
    pub(super) fn exchange_packets(&mut self) {
        let mut confirmed = Vec::new();
        let mut dead = Vec::new();
        for (index, host) in self.parties.iter().enumerate() {
            for (id, conn) in host.standing() {
                match self.mirror(index, conn) {
                    Some((_, _, other)) if other.stands => {}
                    Some((peer, theirs, other)) if other.accepted => confirmed.push((peer, theirs)),
                    _ => dead.push((index, id)),
                }
            }
        }
        for (host, id) in confirmed {
            let id = CmId(trunkline_wire::cm::CommId(id));
            // It may be closing.
            let _ = self.parties[host].manager.confirm(id);
            self.settle(host);
        }
        for (host, id) in dead {
            self.close(host, id);
        }
    }
}
