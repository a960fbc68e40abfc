//! What comes of handshakes: connections of pools and of programs, refusals, silence.

use super::mark::Mark;
use super::open_queue::{Waiting, Wanted};
use super::{BUSY_PAUSE, BUSY_TRIES, Busy, ConnectionState, HAND_OVER_AFTER};
use super::{Handshake, PoolContext, Pools};
use crate::error::NoConnection;
use crate::verbs::connection::ConnectionOptions;
use crate::worker::messages::WorkerMessage;
use std::net::IpAddr;
use trunkline_cm::{
    Bind, Bound, Bounds, CloseReason, Established, Event as Cm, HandshakeId, Hello, NodeCm,
    PeerMode, Purpose, RefusalCode, Refused, Role, WINDOW_UNIT,
};
use trunkline_conn::secret::Stream;
use trunkline_qpmap::{ConnId, ConnectionParams, PeerIdentity};
use trunkline_wire::{Gid, Qpn};

impl Pools {
    /// Takes up an event of the connection manager.
    pub(crate) fn handle_manager(&mut self, context: &mut PoolContext<'_>, event: &Cm) {
        if let Cm::Silent { id, .. } = event
            && self.retry_met(context, *id)
        {
            return;
        }
        self.learn_of(context, event);
        match event {
            Cm::Incoming {
                id,
                route,
                remote_id,
                hello,
            } => {
                self.incoming(context, *id, (route.remote, *remote_id), hello);
            }
            Cm::Established(terms) => self.established(context, terms),
            Cm::NotTrunkline { id, .. } => self.failed(context, *id, NoConnection::NoNode),
            Cm::Silent { id, .. } => self.failed(context, *id, NoConnection::Silent),
            Cm::Nobody { id, .. } => self.failed(context, *id, NoConnection::Nobody),
            Cm::Refused {
                id,
                reason: Refused::Trunkline(code @ (RefusalCode::Busy | RefusalCode::Share)),
                ..
            } => self.told_to_wait(context, *id, *code),
            Cm::Refused { id, reason, .. } => {
                let why = match reason {
                    // Answers or confirmations were lost: it is there, and asked again.
                    Refused::Trunkline(RefusalCode::Unconfirmed) => NoConnection::Silent,
                    Refused::Identity(_) => NoConnection::Itself,
                    Refused::NoSense(_) => NoConnection::NoSense,
                    _ => NoConnection::Refused,
                };
                self.failed(context, *id, why);
            }
            Cm::PeerRestarted { route, .. } => context.engine.drop_peer(route.remote.into()),
            Cm::Closed { id, reason, .. } => self.closed(context, *id, *reason),
        }
    }

    fn incoming(
        &mut self,
        context: &mut PoolContext<'_>,
        id: HandshakeId,
        (peer, remote): (IpAddr, Qpn),
        hello: &Hello,
    ) {
        let options = ConnectionOptions {
            traffic_class: hello.traffic_class,
            ..ConnectionOptions::default()
        };
        let Some(offer) = self.offer(context.engine) else {
            // It is over already if this fails.
            let _ = context.manager.reject(id, RefusalCode::Busy);
            return;
        };
        let now = context.now;
        let own = hello.binds.as_slice().iter().map(|bind| bind.dest_qp);
        let own = own.collect();
        let consent = |bind: &Bind| context.engine.consent(now, peer.into(), &(*bind).into());
        let bounds: Bounds = hello
            .binds
            .as_slice()
            .iter()
            .filter_map(consent)
            .map(Bound::from)
            .collect();
        if context
            .manager
            .accept(context.now, id, offer, bounds)
            .is_err()
        {
            context.engine.release_connection(offer.connection);
            return;
        }
        let purpose = hello.purpose;
        let handshake = Handshake {
            number: offer.connection,
            peer,
            purpose,
            toward: remote.get() as u8,
            options,
            handle: None,
            stranger: false,
            conn: None,
        };
        self.note_opening(id, handshake, offer.token, own);
    }

    pub(super) fn note_opening(
        &mut self,
        id: HandshakeId,
        handshake: Handshake,
        token: u32,
        speaks_for: Box<[Qpn]>,
    ) {
        let end = (handshake.peer, token);
        self.opening.insert(handshake.number, id, end, speaks_for);
        self.handshakes.insert(id, handshake);
    }

    /// A QP is gone, or begins another life: handshakes under way speak no more for it.
    pub(crate) fn withdraw(&mut self, manager: &mut NodeCm<Stream>, qp: Qpn) {
        for id in self.opening.withdraw(qp) {
            manager.withdraw(id, qp);
        }
    }

    /// A packet came on a connection that its opener has not confirmed: if it has the token that we
    /// offered, the confirmation is late or lost.
    pub(super) fn early(
        &self,
        context: &mut PoolContext<'_>,
        connection: Qpn,
        (token, source): (u32, Gid),
    ) {
        if let Some(id) = self.opening.offered(connection, token, source) {
            // It is confirmed already if this fails.
            let _ = context.manager.confirm(context.now, id);
        }
    }

    /// A peer has agreed to a connection: where it is another incarnation of one that this worker
    /// or another one knows, that one is gone.
    fn meet(&mut self, context: &mut PoolContext<'_>, identity: PeerIdentity) {
        if context.engine.is_peer(&identity) {
            return;
        }
        let known = context.engine.peer(identity.address).is_some();
        self.recorder.log.met(&identity, known);
        if known {
            context.engine.drop_peer(identity.address);
        }
        let now = context.now;
        self.send_to_all(|| WorkerMessage::Incarnation(identity, now));
    }

    fn established(&mut self, context: &mut PoolContext<'_>, terms: &Established) {
        let Some(handshake) = self.handshakes.get(terms.id) else {
            let _ = context.manager.close(context.now, terms.id);
            return;
        };
        // A request of ours that the peer's absorbed keeps what the program wanted of it.
        let options = handshake.options;
        let (number, handle) = (handshake.number, handshake.handle);
        let ours = (handshake.peer, handshake.toward);
        let identity = PeerIdentity {
            guid: terms.identity.guid,
            epoch: terms.identity.epoch,
            address: terms.route.remote.into(),
            workers: terms.workers,
        };
        self.meet(context, identity);
        self.end_replaced(context, terms);
        let params = params(terms, &options);
        match context
            .engine
            .add_connection(context.now, identity, &params)
        {
            Ok(conn) => {
                self.opening.remove(number);
                self.busy.remove(&ours);
                self.directory.know(ours.0, PeerMode::Unknown);
                self.handshakes.stands(terms.id, conn);
                self.standing
                    .push_back((context.now + HAND_OVER_AFTER, terms.id));
                let mark = Mark::new(terms.purpose, handle);
                context.engine.set_mark(conn, mark.0);
                if handle.is_some() {
                    self.turn_ends(ours.0, true);
                }
                match handle {
                    Some(handle) if self.private.has(handle) => {
                        self.tell(handle, ours.0, ConnectionState::Open(conn));
                    }
                    // The program has given it up meanwhile.
                    Some(_) => context.engine.close_connection(conn),
                    None => {}
                }
                match terms.role {
                    Role::Acceptor => self.take_up_binds(context, conn, terms),
                    Role::Opener => take_up_consent(context, conn, &terms.bounds),
                }
            }
            Err(_) => {
                self.failed(context, terms.id, NoConnection::Incarnation);
                let _ = context.manager.close(context.now, terms.id);
            }
        }
    }

    /// What the peer's QPs asked for in the handshake of a connection that stands now.
    fn take_up_binds(&self, context: &mut PoolContext<'_>, conn: ConnId, terms: &Established) {
        // Who asks for the first time does not know yet which QPs are another worker's.
        let own = |bind: &&Bind| self.worker.owns(bind.dest_qp.get());
        for bind in terms.binds.as_slice().iter().filter(own) {
            let answers =
                |bound: &&Bound| (bound.src_qp, bound.dest_qp) == (bind.dest_qp, bind.src_qp);
            let agreed = terms.bounds.as_slice().iter().find(answers);
            let (now, engine) = (context.now, &mut *context.engine);
            match agreed {
                Some(bound) => {
                    engine.handle_agreed(now, conn, (*bind).into(), bound.own_generation);
                }
                None => engine.handle_early(now, conn, (*bind).into()),
            }
        }
    }

    /// What the peer opens in a place of its pool, it has lost: a connection in that place whose
    /// handshake is not kept any more ends.
    fn end_replaced(&self, context: &mut PoolContext<'_>, terms: &Established) {
        let Purpose::Pool(place) = terms.purpose else {
            return;
        };
        let pool = context
            .engine
            .pool_to(terms.route.remote.into(), terms.remote_id);
        let in_place = |mark: u32| Mark(mark).place_in_pool() == Some(place);
        let replaced: Vec<ConnId> = pool
            .filter(|(_, mark)| in_place(*mark))
            .map(|(conn, _)| conn)
            .collect();
        for conn in replaced {
            context.engine.close_connection(conn);
        }
    }

    /// The peer has no room now. QPs wait for it, up to a limit; programs decide for themselves.
    fn told_to_wait(&mut self, context: &mut PoolContext<'_>, id: HandshakeId, code: RefusalCode) {
        let why = match code {
            RefusalCode::Share => NoConnection::Share,
            _ => NoConnection::Busy,
        };
        let ours = self.handshakes.get(id);
        if let Some(handle) = ours.and_then(|at| at.handle) {
            if code == RefusalCode::Share {
                self.failed(context, id, why);
            } else {
                self.program_told_to_wait(context, id, handle);
            }
            return;
        }
        let key = ours.map(|at| (at.peer, at.toward));
        let times = |key| self.busy.get(&key).map_or(0, |busy| busy.times);
        let Some((key, times)) = key
            .map(|key| (key, times(key)))
            .filter(|(_, n)| *n < BUSY_TRIES)
        else {
            self.failed(context, id, why);
            return;
        };
        self.take(context, id);
        let pause = BUSY_PAUSE << times;
        let again = Some(context.now + pause / 2 + self.pauses.next_u64() % pause);
        let times = times + 1;
        self.busy.insert(key, Busy { times, again });
    }

    /// A connection that a program opens waits until the peer admits it, with those behind it.
    fn program_told_to_wait(
        &mut self,
        context: &mut PoolContext<'_>,
        id: HandshakeId,
        handle: u64,
    ) {
        let Some(handshake) = self.off_the_books(context, id) else {
            return;
        };
        let wanted = Wanted {
            handle,
            peer: handshake.peer,
            options: handshake.options,
        };
        let pauses = &mut self.pauses;
        let pause = |times: u32| {
            let pause = BUSY_PAUSE << times.min(BUSY_TRIES.into());
            pause / 2 + pauses.next_u64() % pause
        };
        if self.turns.refused(context.now, pause, wanted).is_err() {
            let state = ConnectionState::Failed(NoConnection::Busy);
            self.tell(handle, handshake.peer, state);
            self.turn_is_free(handshake.peer);
        }
    }

    /// A request of a program to `peer` is over: the next that waits for it stands in line.
    fn turn_ends(&mut self, peer: IpAddr, stands: bool) {
        if let Some(next) = self.turns.end(peer, stands) {
            self.enqueue(Waiting::Private(next));
        }
    }

    pub(super) fn turn_is_free(&mut self, peer: IpAddr) {
        if let Some(next) = self.turns.next(peer) {
            self.enqueue(Waiting::Private(next));
        }
    }

    /// Asks peers again that were busy, when their pauses are over and QPs still wait for them.
    pub(crate) fn retry_busy(&mut self, context: &mut PoolContext<'_>) {
        for wanted in self.turns.resume(context.now) {
            self.enqueue(Waiting::Private(wanted));
        }
        if self.busy.is_empty() {
            return;
        }
        let due = |busy: &Busy| busy.again.is_some_and(|again| again <= context.now);
        let due = self.busy.iter().filter(|(_, busy)| due(busy));
        let due: Vec<(IpAddr, u8)> = due.map(|(key, _)| *key).collect();
        for key in due {
            let waiting = !context.engine.waiting_for(key.0.into()).is_empty();
            if waiting && let Some(busy) = self.busy.get_mut(&key) {
                busy.again = None;
                self.open_pool(context, key.0.into(), Qpn::from_wire(key.1.into()));
            } else {
                self.busy.remove(&key);
            }
        }
    }

    /// A peer that kept silent, asked as a stranger, and has shown meanwhile that it is a node, by
    /// a request of its own or the answer to another one, is asked again, as often as one that is
    /// known: its answers were lost. Gives whether it is.
    fn retry_met(&mut self, context: &mut PoolContext<'_>, id: HandshakeId) -> bool {
        let met =
            |at: &&Handshake| at.stranger && self.mode(context, at.peer) == PeerMode::Trunkline;
        if self.handshakes.get(id).filter(met).is_none() {
            return false;
        }
        let Some(handshake) = self.take(context, id) else {
            return false;
        };
        let Some(handle) = handshake.handle else {
            self.open_for_waiting(context, handshake.peer);
            return true;
        };
        let wanted = Wanted {
            handle,
            peer: handshake.peer,
            options: handshake.options,
        };
        if !self.open_wanted(context, wanted) {
            self.came_to_nothing(context, &handshake, NoConnection::Silent);
        }
        true
    }

    /// A handshake came to nothing.
    fn failed(&mut self, context: &mut PoolContext<'_>, id: HandshakeId, why: NoConnection) {
        if let Some(handshake) = self.take(context, id) {
            self.came_to_nothing(context, &handshake, why);
        }
    }

    fn came_to_nothing(
        &mut self,
        context: &mut PoolContext<'_>,
        handshake: &Handshake,
        why: NoConnection,
    ) {
        let peer = handshake.peer;
        if why == NoConnection::Silent {
            self.unexplained.push((handshake.handle, peer));
        } else {
            let log = &self.recorder.log;
            log.no_connection(peer, why, handshake.handle.is_some());
        }
        if let Some(handle) = handshake.handle {
            self.tell(handle, peer, ConnectionState::Failed(why));
            return;
        }
        self.busy.remove(&(handshake.peer, handshake.toward));
        let peer = Gid::from(handshake.peer);
        let remote = Qpn::from_wire(handshake.toward.into());
        if self.is_ordinary(context, handshake.peer) {
            context.engine.peer_is_ibta(peer);
        } else if why == NoConnection::Silent {
            context
                .engine
                .peer_silent(context.now, peer, remote, why.to_requests());
        } else {
            context
                .engine
                .peer_unreachable(peer, remote, why.to_requests());
        }
        self.open_for_waiting(context, handshake.peer);
    }

    /// A host that never shared connections is an ordinary one; a node that did is gone, or its
    /// answers were lost.
    pub(super) fn is_ordinary(&self, context: &PoolContext<'_>, peer: IpAddr) -> bool {
        let ibta = matches!(self.mode(context, peer), PeerMode::Ibta { .. });
        ibta && context.engine.peer(peer.into()).is_none()
    }

    /// Takes a handshake off the books; the number of an end that was never used is free again.
    fn take(&mut self, context: &mut PoolContext<'_>, id: HandshakeId) -> Option<Handshake> {
        let handshake = self.off_the_books(context, id)?;
        if handshake.handle.is_some() && handshake.conn.is_none() {
            self.turn_ends(handshake.peer, false);
        }
        Some(handshake)
    }

    fn off_the_books(
        &mut self,
        context: &mut PoolContext<'_>,
        id: HandshakeId,
    ) -> Option<Handshake> {
        let handshake = self.handshakes.remove(id)?;
        self.opening.remove(handshake.number);
        if handshake.conn.is_none() {
            context.engine.release_connection(handshake.number);
        }
        Some(handshake)
    }

    /// The peer ended a connection, or nothing came of its request.
    fn closed(&mut self, context: &mut PoolContext<'_>, id: HandshakeId, reason: CloseReason) {
        let Some(handshake) = self.take(context, id) else {
            return;
        };
        match handshake.conn {
            Some(conn) => context.engine.close_connection(conn),
            None if handshake.handle.is_some() || reason == CloseReason::Local => {}
            None => self.open_for_waiting(context, handshake.peer),
        }
        match (handshake.handle, handshake.conn) {
            // The engine says that it is down.
            (Some(handle), Some(_)) => self.private.set(handle, ConnectionState::Closed),
            (Some(handle), None) => self.tell(handle, handshake.peer, ConnectionState::Closed),
            (None, _) => {}
        }
    }
}

/// What the peer's QPs have agreed to in the handshake of a connection that this node opened.
fn take_up_consent(context: &mut PoolContext<'_>, conn: ConnId, bounds: &Bounds) {
    for bound in bounds.as_slice() {
        for entry in [bound.bind().into(), (*bound).into()] {
            context.engine.handle_early(context.now, conn, entry);
        }
    }
    context.engine.greet(conn);
}

fn params(terms: &Established, options: &ConnectionOptions) -> ConnectionParams {
    let acceptor = terms.role == Role::Acceptor;
    ConnectionParams {
        local_id: terms.local_id,
        local_token: terms.local_token,
        remote_id: terms.remote_id,
        remote_token: terms.remote_token,
        first_tx: terms.first_tx,
        first_rx: terms.first_rx,
        datagram: terms.packet_size,
        // A peer may offer any number; both ends use the power of two below the smaller offer.
        window: WINDOW_UNIT << terms.window.max(1).ilog2(),
        control: options.control,
        traffic_class: if acceptor {
            terms.traffic_class
        } else {
            options.traffic_class
        },
        // Each end weighs its own: a peer's wish would be at the expense of others.
        weight: options.weight,
        source_ports: options.source_ports,
        private: terms.purpose == Purpose::Private,
        packs: terms.packs,
    }
}
