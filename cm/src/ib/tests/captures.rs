//! What a Linux host once said is answered as another Linux host answered it.

use super::{GUID, drain, messages};
use crate::event::Route;
use crate::ib::{Answer, CmId, Config, Event, IbCm, RequestTerms, SidrAnswer, SidrRequest};
use crate::message::mad;
use crate::retry::Retry;
use crate::tests::{Rng, pcap};
use std::collections::{BTreeMap, BTreeSet};
use std::vec::Vec;
use trunkline_conn::time::Instant;
use trunkline_wire::Path;
use trunkline_wire::cm::{CmMad, CommId, Message, PrivateData, RejReason, Rep, Req};

/// The captured exchanges, each in order.
fn exchanges() -> Vec<Vec<(Path, CmMad)>> {
    let mut found: Vec<Vec<(Path, CmMad)>> = Vec::new();
    let mut places = BTreeMap::new();
    for (path, bytes) in pcap::management() {
        let mad = CmMad::parse(&bytes).expect("captured messages parse");
        // A DREQ has another transaction: both numbers name the connection.
        let key = match &mad.message {
            Message::Req(req) => req.local.0,
            Message::Rep(rep) => rep.remote.0,
            Message::Rtu(rtu) => rtu.local.0,
            Message::Rej(rej) if rej.remote == CommId(0) => rej.local.0,
            Message::Rej(rej) => rej.remote.0,
            Message::Dreq(dreq) if places.contains_key(&dreq.local.0) => dreq.local.0,
            Message::Dreq(dreq) => dreq.remote.0,
            Message::Drep(drep) if places.contains_key(&drep.remote.0) => drep.remote.0,
            Message::Drep(drep) => drep.local.0,
            Message::SidrReq(req) => req.request.0,
            Message::SidrRep(rep) => rep.request.0,
            other => panic!("no capture has a {}", other.name()),
        };
        if let Message::Req(_) | Message::SidrReq(_) = mad.message
            && !places.contains_key(&key)
        {
            places.insert(key, found.len());
            found.push(Vec::new());
        }
        if let Some(&place) = places.get(&key) {
            found[place].push((path, mad));
        }
    }
    found
}

/// Captured transactions and GUIDs are the kernel's: the messages without them.
fn plain(mut message: Message) -> Message {
    let zero = CommId(0);
    match &mut message {
        Message::Req(req) => (req.local, req.ca_guid, req.starting_psn) = Default::default(),
        Message::Rep(rep) => (rep.local, rep.remote, rep.ca_guid) = Default::default(),
        Message::Rtu(rtu) => (rtu.local, rtu.remote) = (zero, zero),
        Message::Dreq(dreq) => (dreq.local, dreq.remote) = (zero, zero),
        Message::Drep(drep) => (drep.local, drep.remote) = (zero, zero),
        Message::Rej(rej) => {
            (rej.local, rej.remote) = (zero, zero);
            rej.info = [0; 72];
        }
        Message::SidrReq(req) => req.request = zero,
        Message::SidrRep(rep) => rep.request = zero,
        _ => {}
    }
    message
}

/// Linux sends 16 times.
const AS_PATIENT: Retry = Retry {
    tries: 16,
    ..Retry::PLAIN
};

/// Transaction, and whether it is of the end of a connection.
fn exchange(mad: &CmMad) -> (u64, bool) {
    let ends = matches!(mad.message, Message::Dreq(_) | Message::Drep(_));
    (mad.transaction_id, ends)
}

/// Our manager in the place of one end of a captured exchange.
#[derive(Debug)]
struct Double {
    manager: IbCm<Rng>,
    now: Instant,
    id: Option<CmId>,
    /// Our number and the one that the end in whose place it is had.
    ours: CommId,
    captured: CommId,
    /// Transactions as our manager drew them, by the captured ones. Linux goes on with that of the
    /// set-up when it disconnects, ours begins another.
    transactions: BTreeMap<(u64, bool), u64>,
    said: Vec<CmMad>,
}

impl Double {
    fn new(seed: u64) -> Self {
        Self {
            manager: IbCm::new(Config::new(GUID), Rng::new(seed)),
            now: Instant::ZERO,
            id: None,
            ours: CommId(0),
            captured: CommId(0),
            transactions: BTreeMap::new(),
            said: Vec::new(),
        }
    }

    fn collect(&mut self) -> Vec<Event> {
        let (sent, events) = drain(&mut self.manager);
        self.said.extend(messages(&sent));
        if let Some(event) = events.first() {
            self.id = Some(event.id());
            self.ours = event.id().0;
        }
        events
    }

    /// What the captured end said next: ours has to say the same, if it is driven so.
    fn speak(&mut self, path: &Path, captured: &CmMad) {
        let route = Route {
            local: path.src,
            remote: path.dst,
        };
        self.drive(route, &captured.message);
        self.collect();
        assert!(!self.said.is_empty(), "nothing instead of {captured:?}");
        let said = self.said.remove(0);
        let transaction = self.transactions.entry(exchange(captured));
        let expected = *transaction.or_insert(said.transaction_id);
        assert_eq!(said.transaction_id, expected, "{captured:?}");
        assert_eq!(plain(said.message), plain(captured.message.clone()));
    }

    fn drive(&mut self, route: Route, message: &Message) {
        let (now, retry) = (self.now, AS_PATIENT);
        let id = || self.id.expect("it has begun");
        match message {
            Message::Req(req) if self.id.is_some() => {
                // Sent again.
                assert_eq!(req.local, self.captured);
                self.now = self
                    .manager
                    .poll_timeout()
                    .expect("an answer is waited for");
                self.manager.handle_timeout(self.now);
            }
            Message::Req(req) => {
                let connected = self
                    .manager
                    .connect(now, route, &RequestTerms::of(req), retry);
                let id = connected.expect("what Linux asks for is possible");
                (self.id, self.ours, self.captured) = (Some(id), id.0, req.local);
            }
            Message::Rep(rep) => {
                self.captured = rep.local;
                let accepted = self.manager.accept(now, id(), &Answer::of(rep));
                accepted.expect("it waits for that");
            }
            Message::Rtu(rtu) => {
                let ready = self.manager.ready(now, id(), rtu.private_data);
                ready.expect("it waits for that");
            }
            Message::Rej(rej) if rej.reason == RejReason::ConsumerDefined => {
                let data = rej.private_data;
                let rejected = self.manager.reject(now, id(), rej.reason, data);
                rejected.expect("it waits for that");
            }
            Message::Rej(rej) if rej.reason == RejReason::Timeout => {
                let closed = self.manager.close(now, id(), PrivateData::default());
                closed.expect("it waits for an answer");
            }
            // Whether it closed at once or because the peer did, our answer is ready already.
            Message::Dreq(dreq) if self.said.is_empty() => {
                let closed = self.manager.close(now, id(), dreq.private_data);
                closed.expect("it stands");
            }
            Message::SidrReq(req) => {
                let ask = SidrRequest {
                    service_id: req.service_id,
                    pkey: req.pkey,
                    private_data: req.private_data,
                };
                let id = self.manager.ask(now, route, &ask, retry);
                let id = id.expect("what Linux asks is possible");
                (self.id, self.ours, self.captured) = (Some(id), id.0, req.request);
            }
            Message::SidrRep(rep) => {
                let answer = SidrAnswer {
                    status: rep.status,
                    qpn: rep.qpn,
                    qkey: rep.qkey,
                    private_data: rep.private_data,
                };
                let answered = self.manager.answer(now, id(), &answer);
                answered.expect("it waits for that");
            }
            _ => {}
        }
    }

    /// What the other end said, with our number and transaction where it repeats them.
    fn hear(&mut self, path: &Path, captured: &CmMad, nobody_listens: bool) {
        let mut message = captured.message.clone();
        let ours = self.ours;
        match &mut message {
            Message::Req(req) if !nobody_listens => {
                self.manager.listen(req.service_id);
            }
            Message::SidrReq(req) => {
                self.manager.listen(req.service_id);
            }
            Message::Rep(Rep { remote, .. }) => *remote = ours,
            Message::Rtu(rtu) => rtu.remote = ours,
            Message::Rej(rej) if rej.remote != CommId(0) => rej.remote = ours,
            Message::Dreq(dreq) => dreq.remote = ours,
            Message::Drep(drep) => drep.remote = ours,
            Message::SidrRep(rep) => rep.request = ours,
            _ => {}
        }
        let transaction = captured.transaction_id;
        let drawn = self.transactions.entry(exchange(captured));
        let transaction = *drawn.or_insert(transaction);
        self.manager
            .handle_mad(self.now, path, &mad(transaction, message));
        self.collect();
    }
}

/// Puts our manager in the place of one end and lets it live through the exchange.
fn replay(exchange: &[(Path, CmMad)], asking: bool, seed: u64) {
    let asker = exchange[0].0.src;
    let mut double = Double::new(seed);
    let nobody_listens = exchange.iter().any(|(_, mad)| {
        matches!(&mad.message, Message::Rej(rej) if rej.reason == RejReason::InvalidServiceId)
    });
    for (path, mad) in exchange {
        if (path.src == asker) == asking {
            double.speak(path, mad);
        } else {
            double.hear(path, mad, nobody_listens);
        }
    }
    let counters = double.manager.counters();
    assert_eq!(
        (counters.malformed, counters.mismatch, counters.unknown),
        (0, 0, 0)
    );
}

#[test]
fn our_manager_stands_in_for_either_end_of_every_captured_exchange() {
    let mut kinds = BTreeSet::new();
    let mut seeds = Rng::new(1);
    for exchange in exchanges() {
        let names: Vec<_> = exchange.iter().map(|(_, mad)| mad.message.name()).collect();
        let crossing = names.iter().filter(|&&name| name == "DREQ").count() > 1;
        if !crossing {
            replay(&exchange, true, seeds.next());
            replay(&exchange, false, seeds.next());
        }
        kinds.insert(names);
    }
    let all: BTreeSet<_> = kinds.iter().flatten().copied().collect();
    for name in [
        "REQ", "REP", "RTU", "DREQ", "DREP", "REJ", "SIDR_REQ", "SIDR_REP",
    ] {
        assert!(all.contains(name), "no capture has a {name}");
    }
}

#[test]
fn a_captured_request_reads_as_what_it_was() {
    let asks = exchanges().into_iter().filter_map(|exchange| {
        let (
            _,
            CmMad {
                message: Message::Req(req),
                ..
            },
        ) = exchange[0].clone()
        else {
            return None;
        };
        Some(req)
    });
    let mut count = 0;
    for req in asks {
        let ask = RequestTerms::of(&req);
        let route = Route {
            local: req.primary.local_gid.address(),
            remote: req.primary.remote_gid.address(),
        };
        let again: Req = super::message::req(req.local, route, req.ca_guid, &ask);
        assert_eq!(again, req);
        count += 1;
    }
    assert!(count > 0, "the captures hold requests");
}
