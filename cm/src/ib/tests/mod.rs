//! Tests of the whole: a manager against a peer whose every datagram the test writes, managers
//! against each other on a bad network, and against what a Linux host once said.

mod admission;
mod captures;
mod cells;
mod half_open;
mod hostile;
mod hosts;
mod qps;
mod scripts;
mod sim;

use super::message::{self, Ids};
use super::state::State;
use super::{
    Answer, CmId, Config, Event, IbCm, PathTerms, QpTerms, RequestTerms, SidrAnswer, SidrRequest,
};
use crate::event::{Outgoing, Route};
use crate::message::{Mad, drep, mad};
use crate::retry::Retry;
pub(super) use crate::tests::messages;
use crate::tests::{Rng, address, ms, path};
use core::net::IpAddr;
use std::vec::Vec;
use trunkline_conn::time::Instant;
use trunkline_wire::cm::{
    Answered, ApStatus, Apr, CommId, Lap, Message, PrivateData, RejReason, SidrStatus,
    TransportService,
};
use trunkline_wire::{Psn, Qpn, ServiceId};

pub(super) const SERVICE: ServiceId = ServiceId::tcp(7174);
pub(super) const GUID: u64 = 5;

pub(super) fn qp(qpn: u32) -> QpTerms {
    QpTerms {
        qpn: Qpn::from_wire(qpn),
        starting_psn: Psn::from_wire(qpn << 8 | 1),
        responder_resources: 1,
        initiator_depth: 1,
        rnr_retry_count: 7,
        srq: false,
        flow_control: false,
    }
}

pub(super) fn ask(qpn: u32) -> RequestTerms {
    RequestTerms {
        service_id: SERVICE,
        service: TransportService::Rc,
        qp: qp(qpn),
        retry_count: 7,
        path: PathTerms::default(),
        private_data: PrivateData::default(),
    }
}

pub(super) fn answer(qpn: u32) -> Answer {
    Answer {
        qp: qp(qpn),
        ack_delay: Answer::ACK_DELAY,
        private_data: PrivateData::default(),
    }
}

pub(super) fn sidr_request() -> SidrRequest {
    SidrRequest {
        service_id: SERVICE,
        pkey: 0xffff,
        private_data: PrivateData::default(),
    }
}

pub(super) fn sidr_answer(qpn: u32) -> SidrAnswer {
    SidrAnswer {
        status: SidrStatus::Success,
        qpn: Qpn::from_wire(qpn),
        qkey: 0x0123_4567,
        private_data: PrivateData::default(),
    }
}

/// Everything a manager has to send and to say.
pub(super) fn drain(manager: &mut IbCm<Rng>) -> (Vec<Outgoing>, Vec<Event>) {
    let sent = core::iter::from_fn(|| manager.poll_transmit()).collect();
    let events = core::iter::from_fn(|| manager.poll_event()).collect();
    (sent, events)
}

/// A manager at host 1, and the numbers of a peer at host 2 whose part the test plays.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) manager: IbCm<Rng>,
    pub(super) now: Instant,
    pub(super) peer_address: IpAddr,
    pub(super) peer_guid: u64,
    /// The manager's QP and the peer's.
    pub(super) our_qpn: u32,
    pub(super) peer_qpn: u32,
    pub(super) id: Option<CmId>,
    pub(super) transaction: u64,
    /// The manager's number and the peer's.
    pub(super) ours: CommId,
    pub(super) theirs: CommId,
}

impl Stage {
    pub(super) fn new() -> Self {
        Self::with(Config::new(GUID))
    }

    pub(super) fn with(config: Config) -> Self {
        let mut manager = IbCm::new(config, Rng::new(3));
        assert!(manager.listen(SERVICE));
        Self {
            manager,
            now: ms(1_000),
            peer_address: address(2),
            peer_guid: 9,
            our_qpn: 0x11,
            peer_qpn: 0x22,
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

    pub(super) fn id(&self) -> CmId {
        self.id.expect("it has begun")
    }

    // What the peer may say.

    pub(super) fn req(&self) -> Mad {
        let route = Route {
            local: self.peer_address,
            remote: address(1),
        };
        let req = message::req(self.theirs, route, self.peer_guid, &ask(self.peer_qpn));
        mad(self.transaction, req)
    }

    pub(super) fn rep(&self) -> Mad {
        let rep = message::rep(self.swapped(), self.peer_guid, &answer(self.peer_qpn));
        mad(self.transaction, rep)
    }

    pub(super) fn rtu(&self) -> Mad {
        let rtu = message::rtu(self.swapped(), PrivateData::default());
        mad(self.transaction, rtu)
    }

    pub(super) fn mra(&self, received: Answered) -> Mad {
        mad(self.transaction, message::mra(self.swapped(), received, 20))
    }

    pub(super) fn rej(&self) -> Mad {
        let reason = RejReason::ConsumerDefined;
        let rej = message::rej(self.swapped(), Answered::Req, reason);
        mad(self.transaction, rej)
    }

    /// The REJ of who gave up and never knew our number.
    pub(super) fn gave_up(&self) -> Mad {
        let ids = Ids {
            local: self.theirs,
            remote: CommId(0),
        };
        mad(self.transaction, message::timeout_rej(ids, self.peer_guid))
    }

    pub(super) fn dreq(&self) -> Mad {
        let qpn = Qpn::from_wire(self.our_qpn);
        let dreq = message::dreq(self.swapped(), qpn, PrivateData::default());
        mad(self.transaction ^ 0xff00, dreq)
    }

    pub(super) fn drep(&self) -> Mad {
        mad(self.transaction ^ 0xff00, drep(self.theirs, self.ours))
    }

    pub(super) fn lap(&self) -> Mad {
        let lap = Lap {
            local: self.theirs,
            remote: self.ours,
            ..Lap::default()
        };
        mad(self.transaction, lap)
    }

    pub(super) fn apr(&self) -> Mad {
        let lap = Lap {
            local: self.ours,
            remote: self.theirs,
            ..Lap::default()
        };
        let apr: Apr = message::apr(&lap, ApStatus::Unsupported);
        mad(self.transaction, apr)
    }

    pub(super) fn sidr_req(&self) -> Mad {
        mad(
            self.transaction,
            message::sidr_req(self.theirs, &sidr_request()),
        )
    }

    pub(super) fn sidr_rep(&self) -> Mad {
        let rep = message::sidr_rep(self.ours, SERVICE, &sidr_answer(self.peer_qpn));
        mad(self.transaction, rep)
    }

    // Ways into the states.

    /// The only message sent, which is what the peer saw last.
    fn sent(&mut self, name: &str) {
        let (sent, _) = drain(&mut self.manager);
        let [mad] = &messages(&sent)[..] else {
            panic!("one {name}, not {sent:?}")
        };
        assert_eq!(mad.message.name(), name);
        match &mad.message {
            Message::Req(req) => self.ours = req.local,
            Message::SidrReq(req) => self.ours = req.request,
            _ => return,
        }
        self.transaction = mad.transaction_id;
    }

    fn heard(&mut self) -> CmId {
        let (sent, events) = drain(&mut self.manager);
        let [event] = &events[..] else {
            panic!("one event, not {events:?}")
        };
        assert!(sent.is_empty());
        event.id()
    }

    pub(super) fn req_sent(&mut self) {
        let (route, ask) = (self.route(), ask(self.our_qpn));
        let id = self.manager.connect(self.now, route, &ask, Retry::PLAIN);
        self.id = Some(id.expect("there is room"));
        self.sent("REQ");
    }

    pub(super) fn replied(&mut self) {
        self.req_sent();
        self.deliver(&self.rep());
        self.heard();
    }

    pub(super) fn asking(&mut self) {
        self.replied();
        let ready = self
            .manager
            .ready(self.now, self.id(), PrivateData::default());
        ready.expect("it waits for that");
        self.sent("RTU");
    }

    pub(super) fn asked(&mut self) {
        self.deliver(&self.req());
        let id = self.heard();
        (self.id, self.ours) = (Some(id), id.0);
    }

    pub(super) fn rep_sent(&mut self) {
        self.asked();
        let answer = answer(self.our_qpn);
        let accepted = self.manager.accept(self.now, self.id(), &answer);
        accepted.expect("it waits for that");
        self.sent("REP");
    }

    pub(super) fn answering(&mut self) {
        self.rep_sent();
        self.deliver(&self.rtu());
        self.heard();
    }

    pub(super) fn dreq_sent(&mut self) {
        self.answering();
        let closed = self
            .manager
            .close(self.now, self.id(), PrivateData::default());
        closed.expect("it stands");
        self.sent("DREQ");
    }

    pub(super) fn time_wait(&mut self) {
        self.dreq_sent();
        self.deliver(&self.drep());
        self.heard();
    }

    pub(super) fn sidr_sent(&mut self) {
        let route = self.route();
        let id = self
            .manager
            .ask(self.now, route, &sidr_request(), Retry::PLAIN);
        self.id = Some(id.expect("there is room"));
        self.sent("SIDR_REQ");
    }

    pub(super) fn sidr_req_received(&mut self) {
        self.deliver(&self.sidr_req());
        let id = self.heard();
        (self.id, self.ours) = (Some(id), id.0);
    }

    pub(super) fn sidr_done(&mut self) {
        self.sidr_req_received();
        let answer = sidr_answer(self.our_qpn);
        let answered = self.manager.answer(self.now, self.id(), &answer);
        answered.expect("it waits for that");
        self.sent("SIDR_REP");
    }

    /// Name of the state that the record is in.
    pub(super) fn state(&self) -> &'static str {
        let Some(state) = self.id.and_then(|id| self.manager.state_of(id)) else {
            return "-";
        };
        match state {
            State::Free => "Free",
            State::ReqSent(_) => "ReqSent",
            State::Replied(_) => "Replied",
            State::ReqReceived(_) => "ReqReceived",
            State::RepSent(_) => "RepSent",
            State::Established(_) => "Established",
            State::DreqSent(..) => "DreqSent",
            State::TimeWait { .. } => "TimeWait",
            State::SidrSent(_) => "SidrSent",
            State::SidrReqReceived(..) => "SidrReqReceived",
            State::SidrDone { .. } => "SidrDone",
        }
    }
}
