//! The states of a handshake, each its own type: what a state does not have, nobody can use.
//!
//! | state | side | left by |
//! | --- | --- | --- |
//! | [`ReqSent`] | opener | REP, REJ, tries used up, the peer's winning REQ, close |
//! | [`ReqReceived`] | acceptor | accept, reject, time to decide, the peer's REJ |
//! | [`RepSent`] | acceptor | RTU or first packet, REJ, DREQ, tries used up, close |
//! | [`State::Established`] | both | DREQ, REJ, a newer life of the peer, close, release |
//! | [`DreqSent`] | both | DREP, DREQ, tries used up |
//! | [`State::TimeWait`] | both | time |

use crate::binds::{Binds, Bound, Bounds};
use crate::credit::Credit;
use crate::event::{Established, HandshakeId, Refused, Role, Route};
use crate::hello::{ConnectRequest, Hello, HelloReply, Offer, Purpose};
use crate::identity::Identity;
use crate::phase::Phase;
use crate::setup::{Sent, SetupState};
use crate::slots;
use alloc::boxed::Box;
use trunkline_conn::time::Instant;
use trunkline_wire::Qpn;

/// A request waits for its answer.
#[derive(Debug)]
pub(crate) struct ReqSent {
    pub(crate) sent: Sent,
    pub(crate) request: ConnectRequest,
    /// Times the request began anew after the peer's own had absorbed it and come to nothing.
    pub(crate) resumed: u8,
    /// Who the peer had proved to be when this was sent.
    pub(crate) knew: Option<Identity>,
}

/// A peer's request waits for the node's decision.
#[derive(Debug)]
pub(crate) struct ReqReceived {
    pub(crate) transaction: u64,
    pub(crate) hello: Hello,
    pub(crate) deadline: Instant,
}

/// An accepted peer has to confirm.
#[derive(Debug)]
pub(crate) struct RepSent {
    pub(crate) sent: Sent,
    pub(crate) hello: Hello,
    pub(crate) offer: Offer,
    pub(crate) bounds: Bounds,
    /// The request of this node that the peer's absorbed, and how often it had begun anew.
    pub(crate) absorbed: Option<(ConnectRequest, u8)>,
    /// Who the peer had proved to be when this was sent.
    pub(crate) knew: Option<Identity>,
    /// What may still be sent to an address that has not proved to be the asker's.
    pub(crate) credit: Credit,
}

/// A peer is told that the connection ends.
#[derive(Debug)]
pub(crate) struct DreqSent {
    pub(crate) exchange: Exchange,
    pub(crate) sent: Sent,
}

/// What is kept of the transaction in which a connection was opened: a request that comes once more
/// is told by it from a new one. A peer whose request was absorbed asks anew under the same ID.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Exchange(u32);

impl Exchange {
    /// The last in order.
    pub(crate) const LAST: Self = Self(u32::MAX);

    /// Of a transaction, which is random.
    pub(crate) const fn of(transaction: u64) -> Self {
        Self(transaction as u32)
    }
}

/// Where a handshake stands.
#[derive(Debug)]
pub(crate) enum State {
    Free,
    ReqSent(Box<ReqSent>),
    ReqReceived(Box<ReqReceived>),
    RepSent(Box<RepSent>),
    Established(Exchange),
    DreqSent(Box<DreqSent>),
    TimeWait { exchange: Exchange, until: Instant },
}

impl slots::State for State {
    const FREE: Self = Self::Free;

    fn is_free(&self) -> bool {
        matches!(self, Self::Free)
    }

    fn deadline(&self) -> Option<Instant> {
        match self {
            Self::ReqSent(state) => Some(state.sent.schedule.deadline),
            Self::ReqReceived(state) => Some(state.deadline),
            Self::RepSent(state) => Some(state.sent.schedule.deadline),
            Self::DreqSent(state) => Some(state.sent.schedule.deadline),
            Self::Free | Self::Established(_) | Self::TimeWait { .. } => None,
        }
    }

    fn boxed_bytes(&self) -> usize {
        match self {
            Self::ReqSent(state) => size_of_val(&**state),
            Self::ReqReceived(state) => size_of_val(&**state),
            Self::RepSent(state) => size_of_val(&**state),
            Self::DreqSent(state) => size_of_val(&**state),
            Self::Free | Self::Established(_) | Self::TimeWait { .. } => 0,
        }
    }

    fn until(&self) -> Option<Instant> {
        match self {
            Self::TimeWait { until, .. } => Some(*until),
            _ => None,
        }
    }
}

impl SetupState for State {
    fn phase(&self) -> Phase {
        match self {
            Self::Free => Phase::Gone,
            Self::ReqSent(_) => Phase::ReqSent,
            Self::ReqReceived(_) => Phase::ReqReceived,
            Self::RepSent(_) => Phase::RepSent,
            Self::Established(_) => Phase::Established,
            Self::DreqSent(_) => Phase::DreqSent,
            Self::TimeWait { .. } => Phase::TimeWait,
        }
    }

    fn transaction(&self) -> Option<u64> {
        match self {
            Self::ReqSent(state) => Some(state.sent.transaction),
            Self::ReqReceived(state) => Some(state.transaction),
            Self::RepSent(state) => Some(state.sent.transaction),
            Self::DreqSent(state) => Some(state.sent.transaction),
            Self::Free | Self::Established(_) | Self::TimeWait { .. } => None,
        }
    }

    fn sent(&mut self) -> Option<&mut Sent> {
        match self {
            Self::ReqSent(state) => Some(&mut state.sent),
            Self::RepSent(state) => Some(&mut state.sent),
            Self::DreqSent(state) => Some(&mut state.sent),
            _ => None,
        }
    }
}

impl State {
    /// Whether messages that may be sent again name a QP of this node.
    pub(crate) fn speaks_for(&self, qp: Qpn) -> bool {
        let names = |request: &ConnectRequest| {
            request
                .binds
                .as_slice()
                .iter()
                .any(|bind| bind.src_qp == qp)
        };
        match self {
            Self::ReqSent(state) => names(&state.request),
            Self::RepSent(state) => {
                let agrees = |bound: &Bound| bound.src_qp == qp;
                let absorbed = state.absorbed.as_ref();
                state.bounds.as_slice().iter().any(agrees)
                    || absorbed.is_some_and(|(request, _)| names(request))
            }
            _ => false,
        }
    }

    /// Whether a peer's request is under way and not confirmed.
    pub(crate) const fn is_half_open(&self) -> bool {
        matches!(self, Self::ReqReceived(_) | Self::RepSent(_))
    }

    /// Whether the peer's identity has been proved and the connection has not ended.
    pub(crate) const fn is_live(&self) -> bool {
        matches!(self, Self::Established(_) | Self::DreqSent(_))
    }

    /// The exchange in which the connection was or is being opened.
    pub(crate) fn exchange(&self) -> Option<Exchange> {
        match self {
            Self::DreqSent(state) => Some(state.exchange),
            Self::Established(exchange) | Self::TimeWait { exchange, .. } => Some(*exchange),
            _ => self.transaction().map(Exchange::of),
        }
    }

    /// Who the peer says it is, while that is not proved.
    pub(crate) fn claimed(&self) -> Option<Identity> {
        match self {
            Self::ReqReceived(state) => Some(state.hello.end.identity),
            Self::RepSent(state) => Some(state.hello.end.identity),
            _ => None,
        }
    }
}

impl ReqSent {
    /// The peer agreed.
    pub(crate) fn on_rep(
        &self,
        id: HandshakeId,
        route: Route,
        remote_id: Qpn,
        reply: &HelloReply,
    ) -> Established {
        let (request, peer) = (&self.request, &reply.end);
        Established {
            id,
            role: Role::Opener,
            route,
            identity: peer.identity,
            workers: peer.workers,
            purpose: request.purpose,
            local_id: request.offer.connection,
            remote_id,
            local_token: request.offer.token,
            remote_token: peer.token,
            first_tx: peer.first_packet,
            first_rx: request.offer.first_packet,
            packet_size: request.offer.packet_size.min(peer.packet_size),
            window: request.offer.window.min(peer.window),
            packs: request.offer.packs && peer.packs,
            traffic_class: request.traffic_class,
            binds: Binds::default(),
            bounds: reply.bounds,
        }
    }
}

impl RepSent {
    /// Requests absorbed by the peer's begin anew this often when that one comes to nothing: a
    /// forged REQ must not end a request.
    pub(crate) const RESUMES: u8 = 2;

    /// The peer confirmed.
    pub(crate) fn on_rtu(&self, id: HandshakeId, route: Route, remote_id: Qpn) -> Established {
        let (hello, peer) = (&self.hello, &self.hello.end);
        Established {
            id,
            role: Role::Acceptor,
            route,
            identity: peer.identity,
            workers: peer.workers,
            purpose: hello.purpose,
            local_id: self.offer.connection,
            remote_id,
            local_token: self.offer.token,
            remote_token: peer.token,
            first_tx: peer.first_packet,
            first_rx: self.offer.first_packet,
            packet_size: self.offer.packet_size.min(peer.packet_size),
            window: self.offer.window.min(peer.window),
            packs: self.offer.packs && peer.packs,
            traffic_class: hello.traffic_class,
            binds: hello.binds,
            bounds: self.bounds,
        }
    }

    /// The peer's request came to nothing: the request of this node that it had absorbed, to begin
    /// anew.
    pub(crate) fn resumable(&self) -> Option<(ConnectRequest, u8)> {
        self.absorbed
            .filter(|&(_, resumed)| resumed < Self::RESUMES)
            .map(|(request, resumed)| (request, resumed + 1))
    }
}

/// What a REJ means to who asked.
pub(crate) enum Verdict {
    NotTrunkline,
    Refused(Refused),
}

/// How two requests that crossed are settled.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Crossing {
    /// This node's request goes on; the peer's is absorbed there.
    OursWins,
    /// The peer's goes on and absorbs this node's.
    TheirsWins,
}

impl Crossing {
    /// The request of the node with the lower GUID wins, of nodes with one GUID that with the lower
    /// epoch. They differ: see [`Identity::tell_apart`].
    pub(crate) fn settle(us: Identity, them: Identity) -> Self {
        if us < them {
            Self::OursWins
        } else {
            Self::TheirsWins
        }
    }

    /// Whether the requests are for one and the same connection: for one place of a pool, and ours
    /// to the worker that asks for `end`. That theirs is to this worker shows in its having come
    /// here.
    pub(crate) fn of(ours: &ConnectRequest, end: Qpn, theirs: &Hello) -> bool {
        let workers = theirs.end.workers;
        matches!(ours.purpose, Purpose::Pool(_))
            && ours.purpose == theirs.purpose
            && workers.owner(ours.toward.into()) == workers.owner(end.get())
    }
}
