//! What the communication manager below has to say, and answers to peers' requests.

use super::convert::{accepting_qp, connecting_qp, fit, seen, terms};
use super::event::{Data, Error, Event, Kind, Params, PeerParams, PortSpace, QpAttributes, UdPeer};
use super::id::{Request, State, Wanted, wanted};
use super::{Id, IdPhase, IdStep, RdmaCm};
use crate::event::Route;
use crate::ib::{self, CloseReason, CmId};
use crate::random::Random;
use core::net::{IpAddr, SocketAddr};
use trunkline_conn::time::Instant;
use trunkline_wire::cm::{PrivateData, RejReason, SidrStatus, TransportService};
use trunkline_wire::{Psn, Qpn, RdmaCmHeader, ServiceId};

impl<R: Random> RdmaCm<R> {
    pub(super) fn handle_events(&mut self, now: Instant) {
        while let Some(event) = self.ib.poll_event() {
            self.handle_event(now, event);
        }
    }

    fn handle_event(&mut self, now: Instant, event: ib::Event) {
        let conn = event.id();
        match event {
            ib::Event::Incoming { route, terms, .. } => {
                if let Err(reason) = self.on_request(conn, route, &terms) {
                    // It waits for a decision: this is it.
                    let _ = self.ib.reject(now, conn, reason, PrivateData::default());
                }
                return;
            }
            ib::Event::SidrIncoming {
                route, question, ..
            } => {
                if let Err(status) = self.on_question(conn, route, &question) {
                    let _ = self.ib.answer(now, conn, &no(status));
                }
                return;
            }
            _ => {}
        }
        // An ID that was destroyed hears nothing any more.
        let Some(&id) = self.conns.get(&conn.number()) else {
            return;
        };
        if let Some(event) = self.translate(id, conn, event) {
            self.events.push_back(event);
        }
    }

    /// What an event means to its ID.
    fn translate(&mut self, id: Id, conn: CmId, event: ib::Event) -> Option<Event> {
        let over = State::Over { conn, stood: false };
        match event {
            ib::Event::Replied { answer, .. } => self.on_reply(id, conn, &answer),
            ib::Event::Established { private_data, .. } => {
                self.set_state(id, State::Established { conn });
                let data = Data::new(private_data.bytes());
                Some(Event::Established { id, ud: None, data })
            }
            ib::Event::Rejected {
                reason,
                private_data,
                ..
            } => {
                self.set_state(id, over);
                let data = Data::new(private_data.bytes());
                Some(Event::Rejected { id, reason, data })
            }
            ib::Event::Unreachable { .. } => {
                self.set_state(id, over);
                Some(Event::Unreachable { id, status: None })
            }
            ib::Event::Nobody { .. } => {
                self.set_state(id, over);
                Some(Event::Nobody { id })
            }
            ib::Event::Closed {
                reason,
                private_data,
                ..
            } => self.on_closed(id, conn, reason, private_data.bytes()),
            ib::Event::TimeWaitExit { .. } => {
                self.forget_conn(conn, id);
                Some(Event::TimewaitExit { id })
            }
            ib::Event::SidrAnswered { answer, .. } => {
                self.set_state(id, State::Answered);
                self.forget_conn(conn, id);
                let data = Data::new(answer.private_data.bytes());
                Some(match answer.status {
                    SidrStatus::Success => {
                        let (qpn, qkey) = (answer.qpn, answer.qkey);
                        let ud = Some(UdPeer { qpn, qkey });
                        Event::Established { id, ud, data }
                    }
                    status => Event::Unreachable {
                        id,
                        status: Some(status),
                    },
                })
            }
            ib::Event::SidrClosed { .. } => {
                // Nobody has decided, unless `answer` has moved the ID on.
                let undecided = matches!(self.ids.get(&id)?.state, State::Requested(_));
                self.set_state(id, State::Answered);
                self.forget_conn(conn, id);
                undecided.then_some(Event::ConnectError { id })
            }
            ib::Event::Incoming { .. } | ib::Event::SidrIncoming { .. } => None,
        }
    }

    fn on_reply(&mut self, id: Id, conn: CmId, answer: &ib::Answer) -> Option<Event> {
        let record = self.ids.get_mut(&id)?;
        let State::Connecting(offered) = record.state else {
            unreachable!("only who connects is answered")
        };
        let attributes = connecting_qp(&offered, &answer.qp, record.path);
        record.attributes = Some(attributes);
        self.set_state(id, State::Responded { conn });
        Some(Event::ConnectResponse {
            id,
            params: seen(&answer.qp, offered.retry_count),
            data: Data::new(answer.private_data.bytes()),
        })
    }

    fn on_closed(&mut self, id: Id, conn: CmId, reason: CloseReason, said: &[u8]) -> Option<Event> {
        let before = self.ids.get(&id)?.state;
        if let State::Over { .. } = before {
            // Ended by this end, which knows.
            return None;
        }
        let data = Data::new(said);
        let stood = matches!(
            before,
            State::Established { .. } | State::Disconnecting { .. }
        );
        let event = match reason {
            CloseReason::Local if !stood => None,
            CloseReason::Abandoned(reason) if !stood => Some(Event::Rejected { id, reason, data }),
            CloseReason::Unconfirmed if !stood => Some(Event::Unreachable { id, status: None }),
            CloseReason::Undecided => Some(Event::ConnectError { id }),
            reason => Some(Event::Disconnected { id, reason, data }),
        };
        let stood = matches!(event, Some(Event::Disconnected { .. }));
        self.set_state(id, State::Over { conn, stood });
        event
    }

    /// A peer connects.
    fn on_request(
        &mut self,
        conn: CmId,
        route: Route,
        terms: &ib::RequestTerms,
    ) -> Result<(), RejReason> {
        let arrived = self.arrival(terms.service_id, route, terms.private_data.bytes());
        let (listener, space, local, peer) = arrived.map_err(Fault::reason)?;
        let kind = match terms.service {
            TransportService::Uc => Kind::Uc,
            _ => Kind::Rc,
        };
        let from = (listener, route.remote);
        self.enter_backlog(from, kind).map_err(Fault::reason)?;
        let request = Request {
            conn,
            listener,
            route,
            wanted: Some(Wanted {
                qp: terms.qp,
                retry_count: terms.retry_count,
                path: terms.path,
            }),
        };
        let id = self.insert_request(space, kind, local, request);
        self.events.push_back(Event::ConnectRequest {
            listener,
            id,
            peer,
            params: seen(&terms.qp, terms.retry_count),
            data: Data::new(&terms.private_data.bytes()[RdmaCmHeader::LEN..]),
        });
        Ok(())
    }

    /// A peer asks for a datagram service.
    fn on_question(
        &mut self,
        conn: CmId,
        route: Route,
        question: &ib::SidrRequest,
    ) -> Result<(), SidrStatus> {
        let arrived = self.arrival(question.service_id, route, question.private_data.bytes());
        let (listener, space, local, peer) = arrived.map_err(Fault::status)?;
        let from = (listener, route.remote);
        self.enter_backlog(from, Kind::Ud).map_err(Fault::status)?;
        let request = Request {
            conn,
            listener,
            route,
            wanted: None,
        };
        let id = self.insert_request(space, Kind::Ud, local, request);
        self.events.push_back(Event::ConnectRequest {
            listener,
            id,
            peer,
            params: seen(&ib::QpTerms::default(), 0),
            data: Data::new(&question.private_data.bytes()[RdmaCmHeader::LEN..]),
        });
        Ok(())
    }

    /// Who listens for a request, on which address of ours, and whom it is from.
    fn arrival(
        &mut self,
        service_id: ServiceId,
        route: Route,
        private_data: &[u8],
    ) -> Result<(Id, PortSpace, SocketAddr, SocketAddr), Fault> {
        let space = service_id.ip_port().and_then(|(protocol, port)| {
            let space = PortSpace::from_protocol(protocol)?;
            Some((space, port))
        });
        let (space, port) = space.expect("only services of ports are listened to");
        let Ok((header, _)) = RdmaCmHeader::read(private_data) else {
            self.counters.bad_header += 1;
            return Err(Fault::Header);
        };
        let (src, dst) = header.addresses.pair();
        if (src.to_canonical(), dst.to_canonical()) != (route.remote, route.local) {
            self.counters.address_mismatch += 1;
            return Err(Fault::Address);
        }
        let local = SocketAddr::new(route.local, port);
        let Some(listener) = self.ports.listener(space, local) else {
            self.counters.no_listener += 1;
            return Err(Fault::NoListener);
        };
        let peer = SocketAddr::new(route.remote, header.src_port);
        Ok((listener, space, local, peer))
    }

    fn enter_backlog(&mut self, from: (Id, IpAddr), kind: Kind) -> Result<(), Fault> {
        let full = self.is_full();
        let of_peer = self.waiting.get(&from).copied().unwrap_or(0);
        let (listener, _) = from;
        let record = self.ids.get_mut(&listener);
        let record = record.expect("who listens is there");
        let State::Listening { waiting, backlog } = &mut record.state else {
            unreachable!("who has the port listens")
        };
        if record.kind != kind {
            self.counters.wrong_kind += 1;
            return Err(Fault::Kind);
        }
        let left = 2 * *backlog - *waiting;
        if left == 0 {
            self.counters.backlog += 1;
            return Err(Fault::Room);
        }
        if of_peer >= left {
            self.counters.unfair += 1;
            return Err(Fault::Room);
        }
        if full {
            self.counters.ids += 1;
            return Err(Fault::Room);
        }
        *waiting += 1;
        self.waiting.insert(from, of_peer + 1);
        Ok(())
    }

    /// A request waits no longer, if `id` is one.
    pub(super) fn leave_backlog(&mut self, id: Id) {
        let Some(State::Requested(request)) = self.ids.get(&id).map(|record| record.state) else {
            return;
        };
        let from = (request.listener, request.route.remote);
        match self.waiting.get_mut(&from) {
            Some(of_peer) if *of_peer > 1 => *of_peer -= 1,
            _ => drop(self.waiting.remove(&from)),
        }
        // The listener may be gone.
        if let Some(listener) = self.ids.get_mut(&request.listener)
            && let State::Listening { waiting, .. } = &mut listener.state
        {
            *waiting -= 1;
        }
    }

    pub(super) fn set_state(&mut self, id: Id, state: State) {
        self.leave_backlog(id);
        if !state.may_stand() {
            self.deserted.remove(id);
        }
        let Some(record) = self.ids.get_mut(&id) else {
            return;
        };
        let (from, to) = (record.state.phase(), state.phase());
        record.state = state;
        // Who confirms is told by the connection below that it stands, and knows already.
        if from != to {
            self.observer.emit(|| IdStep { id, from, to });
        }
    }

    fn insert_request(
        &mut self,
        space: PortSpace,
        kind: Kind,
        local: SocketAddr,
        request: Request,
    ) -> Id {
        let id = self.insert(space, kind, State::Requested(request));
        self.conns.insert(request.conn.number(), id);
        if let Some(record) = self.ids.get_mut(&id) {
            record.local = Some(local);
        }
        id
    }

    pub(super) fn accept_connection<E: From<Error>>(
        &mut self,
        now: Instant,
        id: Id,
        request: &Request,
        params: &Params<'_>,
        ready: impl FnOnce(&QpAttributes) -> Result<(), E>,
    ) -> Result<(), E> {
        let wanted = request.wanted.as_ref().expect("a connection asks for a QP");
        if params.qpn == Qpn::default() {
            return Err(Error::NoQp(id).into());
        }
        let starting_psn = Psn::from_wire(self.ib.random().next() as u32);
        let peer: PeerParams = seen(&wanted.qp, wanted.retry_count);
        let mut qp = terms(params, starting_psn);
        qp.responder_resources = qp.responder_resources.min(peer.responder_resources);
        qp.initiator_depth = qp.initiator_depth.min(peer.initiator_depth);
        let answer = ib::Answer {
            qp,
            ack_delay: ib::Answer::ACK_DELAY,
            private_data: self.noted(fit(params.private_data, Params::ACCEPT))?,
        };
        let refused = |error| refusal(id, error);
        let may = self.ib.may_accept(request.conn, &answer);
        may.map_err(refused)?;
        let agreed = accepting_qp(request.route, wanted, &qp);
        ready(&agreed)?;
        let accepted = self.ib.accept(now, request.conn, &answer);
        accepted.map_err(refused)?;
        self.set_state(id, State::Accepted { conn: request.conn });
        self.record(id)?.attributes = Some(agreed);
        Ok(())
    }

    pub(super) fn accept_question(
        &mut self,
        now: Instant,
        id: Id,
        request: &Request,
        params: &Params<'_>,
    ) -> Result<(), Error> {
        let answer = ib::SidrAnswer {
            status: SidrStatus::Success,
            qpn: params.qpn,
            qkey: params.qkey,
            private_data: self.noted(fit(params.private_data, Params::ACCEPT_UD))?,
        };
        self.answer(now, id, request, &answer)
    }

    pub(super) fn answer(
        &mut self,
        now: Instant,
        id: Id,
        request: &Request,
        answer: &ib::SidrAnswer,
    ) -> Result<(), Error> {
        let answered = self.ib.answer(now, request.conn, answer);
        answered.map_err(|error| refusal(id, error))?;
        self.set_state(id, State::Answered);
        Ok(())
    }
}

/// What is wrong with a peer's request.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Header,
    Address,
    NoListener,
    Kind,
    Room,
}

impl Fault {
    const fn reason(self) -> RejReason {
        match self {
            Self::Header => RejReason::Unsupported,
            Self::Address => RejReason::InvalidGid,
            Self::NoListener => RejReason::InvalidServiceId,
            Self::Kind => RejReason::InvalidTransportType,
            Self::Room => RejReason::NoResources,
        }
    }

    const fn status(self) -> SidrStatus {
        match self {
            Self::Header | Self::NoListener | Self::Kind => SidrStatus::Unsupported,
            Self::Address => SidrStatus::Refused,
            Self::Room => SidrStatus::NoQp,
        }
    }
}

/// The refusal of a call that comes after the connection below is over.
pub(super) const fn over(id: Id, wanted: &'static str) -> Error {
    let is = IdPhase::Over.name();
    Error::State { id, is, wanted }
}

fn refusal(id: Id, error: ib::AcceptError) -> Error {
    match error {
        ib::AcceptError::Unknown(_) => over(id, wanted::UNDECIDED),
        ib::AcceptError::Request(error) => Error::Request(error),
    }
}

fn no(status: SidrStatus) -> ib::SidrAnswer {
    ib::SidrAnswer {
        status,
        qpn: Qpn::from_wire(0),
        qkey: 0,
        private_data: PrivateData::default(),
    }
}
