//! Connections: how they are opened, closed and kept alive, and what becomes of their flows.

use super::backlog::{Share, Task};
use super::build::Route;
use super::links::{Conn, Listed, PeerIdentity, Rested, Terms};
use super::qp::Flow;
use super::timer::Timer;
use super::{Cause, ConnId, Engine, Event, Platform, Ready, Trace};
use crate::error::VerbsError;
use trunkline_conn::control::CongestionControl;
use trunkline_conn::delivery::{self, Delivery};
use trunkline_conn::time::{Instant, SECOND};
use trunkline_conn::work::{Status, VendorError};
use trunkline_wire::{Close, Gid, IpFields, Path, Qpn};

/// QPs and connections that are looked at in a call, whether they have something left to do.
const LOOKS: u32 = 4096;

/// What two nodes agree on when they open a shared connection, and what this end wants of it.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionParams {
    /// Number of our end, from [`Engine::draw_connection`].
    pub local_id: Qpn,
    /// Token that packets to us carry, from the same.
    pub local_token: u32,
    /// Number of the peer's end.
    pub remote_id: Qpn,
    /// Token that packets to the peer carry.
    pub remote_token: u32,
    /// Number of the first packet to the peer.
    pub first_tx: u64,
    /// Number of the first packet from the peer.
    pub first_rx: u64,
    /// Largest datagram both ends carry.
    pub datagram: u32,
    /// Packets that may be in flight; both ends must have agreed on it.
    pub window: u32,
    /// Congestion control; `None` takes the engine's.
    pub control: Option<CongestionControl>,
    /// DSCP (upper six bits) of its packets.
    pub traffic_class: u8,
    /// Share of the port beside other connections, 1 to 255.
    pub weight: u8,
    /// UDP source ports it uses, 1 to 8.
    pub source_ports: u8,
    /// Opened by a program for itself: the engine binds no QPs to it on its own.
    pub private: bool,
    /// The peer knows packets that several messages share: so it says when it meets us.
    pub packs: bool,
}

/// Where a connection stands.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionStats {
    /// Packets, round trips, congestion. Counts are those since the connection was opened, or since
    /// it had carried nothing but keep-alives for a minute or two.
    pub delivery: delivery::Stats,
    /// Flows bound to it.
    pub flows: u32,
    /// Packets in flight.
    pub in_flight: u32,
    /// Payload bytes of a full packet: what both ends and the path between them carry.
    pub payload: u32,
    /// Address of the peer.
    pub peer: Gid,
}

/// Memory of connections that were active is kept for others for so long, in ns, and freed then.
const TRIM_NS: u64 = SECOND;
/// What a connection has counted is kept for once or twice so long, in ns, after it has worked.
const COUNTS_NS: u64 = 60 * SECOND;

impl<P: Platform> Engine<P> {
    /// Draws the number and token for our end of a connection that is about to be opened. The
    /// number stays taken until [`add_connection`](Self::add_connection) or
    /// [`release_connection`](Self::release_connection).
    ///
    /// # Errors
    /// [`VerbsError::Limit`] when there are no numbers left.
    pub fn draw_connection(&mut self) -> Result<(Qpn, u32), VerbsError> {
        let numbers = self.links.numbers();
        let limit = VerbsError::Limit {
            what: "connections",
            limit: numbers.most().into(),
        };
        numbers.draw().ok_or(limit)
    }

    /// Gives back a number that [`draw_connection`](Self::draw_connection) drew and nobody used.
    pub fn release_connection(&mut self, id: Qpn) {
        self.links.numbers().release(id);
    }

    /// Draws the number of the first packet of a connection.
    pub fn draw_first(&mut self) -> u64 {
        self.links.numbers().first_packet()
    }

    /// Takes up a connection that both ends agreed on. Undecided QPs to that peer bind to it, and
    /// flows that lost theirs move to it.
    ///
    /// # Errors
    /// [`VerbsError::Busy`] when the peer is another incarnation of one that still has
    /// connections: [`drop_peer`](Self::drop_peer) first.
    pub fn add_connection(
        &mut self,
        now: Instant,
        identity: PeerIdentity,
        params: &ConnectionParams,
    ) -> Result<ConnId, VerbsError> {
        let peer = self
            .links
            .admit(&identity)
            .ok_or_else(|| VerbsError::Busy {
                what: "peer",
                users: self.connections_to(identity.address).len() as u32,
            })?;
        let most = params.datagram.min(self.config.datagram);
        let config = delivery::Config {
            local_id: params.local_id,
            remote_id: params.remote_id,
            local_token: params.local_token,
            remote_token: params.remote_token,
            first_tx: params.first_tx,
            first_rx: params.first_rx,
            packet_size: self.links.size_to(peer, most),
            control: params.control.unwrap_or(self.config.control),
            window: params.window,
            source_ports: params
                .source_ports
                .clamp(1, self.config.source_ports.len() as u8),
        };
        let heard = self.last_heard(peer, params.remote_id);
        if !params.private {
            self.reach_again(peer, params.remote_id);
        }
        let delivery = Delivery::new(&config, heard.unwrap_or(now));
        let terms = Terms {
            first_tx: params.first_tx,
            most,
            traffic_class: params.traffic_class,
            weight: params.weight,
            private: params.private,
            packs: params.packs,
        };
        let index = self.links.insert(Conn::new(delivery, peer, &terms));
        self.arm_conn(now, index, false);
        let conn = self.links.id(index);
        self.emit(|_| Trace::Opened {
            conn,
            peer: identity.address,
            private: params.private,
        });
        if !params.private {
            self.begin_rescue(peer);
            self.begin_relief(conn);
            self.need_connection_for_waiting(identity.address);
        }
        Ok(conn)
    }

    /// The connection at an index, the first part of its [key](ConnId::key), with what the owner
    /// has noted of it.
    pub fn connection_at(&self, index: u32) -> Option<(ConnId, u32)> {
        let conn = self.links.get(index)?;
        Some((self.links.id(index), conn.mark))
    }

    /// Notes a word of the owner's of a connection, 0 at first. Nothing is noted of one that is
    /// gone.
    pub fn set_mark(&mut self, id: ConnId, mark: u32) {
        if self.links.live(id).is_some() {
            self.links[id.index].mark = mark;
        }
    }

    /// Says something on a connection that this node opened, if nothing else is said on it: the
    /// peer's end stands once it has heard that ours does, and what confirms it may be lost.
    pub fn greet(&mut self, id: ConnId) {
        if self.links.live(id).is_some() {
            self.links[id.index].flags.set_ping(true);
            self.mark_ready(id.index);
        }
    }

    /// Connections without flows, of pools that have others.
    pub fn idle_connections(&self) -> impl Iterator<Item = ConnId> {
        let all = self.links.iter();
        let idle = all.filter(|(index, _)| self.links.is_spare(*index));
        idle.map(|(index, _)| self.links.id(index))
    }

    /// Whether a connection is one of [`idle_connections`](Self::idle_connections).
    pub fn is_idle(&self, id: ConnId) -> bool {
        self.links.live(id).is_some() && self.links.is_spare(id.index)
    }

    /// All connections.
    pub fn connections(&self) -> Vec<ConnId> {
        self.links
            .iter()
            .map(|(index, _)| self.links.id(index))
            .collect()
    }

    /// What a connection counts is kept from now on, however long it rests. Otherwise that goes
    /// some time after the connection has done anything.
    pub fn keep_counts(&mut self, id: ConnId) {
        if self.links.live(id).is_some() {
            self.links.keep_counts(id.index);
        }
    }

    /// Statistics of a connection; `None` when it is gone.
    pub fn connection_stats(&self, id: ConnId) -> Option<ConnectionStats> {
        let conn = self.links.live(id)?;
        Some(ConnectionStats {
            delivery: self.links.delivery_stats(id.index),
            flows: conn.flows,
            in_flight: conn.delivery.in_flight(),
            payload: conn.payload(),
            peer: self.links.address_of(id.index),
        })
    }

    /// What all connections counted since the engine was made, those that are gone included.
    pub fn delivery_counters(&self) -> delivery::Counters {
        self.links.counters()
    }

    /// Gives back the window of a connection that has no use for it.
    #[inline]
    pub(crate) fn rest(&mut self, now: Instant, conn: u32) {
        let Rested { trim, forget } = self.links.rest(conn);
        if trim {
            self.trim_later(now);
        }
        if forget {
            self.timers.arm(now + COUNTS_NS, Timer::ForgetCounts.key());
        }
    }

    /// Forgets what connections counted that have done nothing for long.
    pub(crate) fn forget_counts(&mut self, now: Instant) {
        if self.links.forget_counts() {
            self.timers.arm(now + COUNTS_NS, Timer::ForgetCounts.key());
        }
    }

    fn trim_later(&mut self, now: Instant) {
        self.timers.arm(now + TRIM_NS, Timer::Trim.key());
    }

    /// Frees what connections that were active some time ago have left.
    pub(crate) fn trim(&mut self, now: Instant) {
        self.tx.packs.trim();
        if self.links.trim() {
            self.trim_later(now);
        }
    }

    /// Takes a connection down. Flows on it move to another of its pool, or wait for one.
    pub fn close_connection(&mut self, id: ConnId) {
        self.close_because(id, Cause::Local);
    }

    /// As [`close_connection`](Self::close_connection): the pool has no use for it.
    pub fn reclaim_connection(&mut self, id: ConnId) {
        self.close_because(id, Cause::Reclaimed);
    }

    fn close_because(&mut self, id: ConnId, cause: Cause) {
        if self.links.live(id).is_some() {
            let route = self.route(id.index);
            self.tx.close(route, Close::CONNECTION);
            self.remove_connection(id.index, cause);
        }
    }

    /// The node ends in order, or since it `failed`: all connections are closed, and their peers
    /// told so, the next time that packets are sent. What flows had under way is not waited for.
    /// All at once: nobody is served after it.
    pub fn say_goodbye(&mut self, failed: bool) {
        let reason = match failed {
            true => Close::FAILED_NODE,
            false => Close::NODE,
        };
        let conns: Vec<u32> = self.links.iter().map(|(index, _)| index).collect();
        for conn in conns {
            let route = self.route(conn);
            self.tx.close(route, reason);
        }
        let peers: Vec<Gid> = self.links.addresses().collect();
        for peer in peers {
            self.drop_peer(peer);
        }
    }

    /// What waits for company, answers above all, leaves without it. All at once: the node ends.
    pub fn hasten(&mut self) {
        let conns: Vec<u32> = self.links.iter().map(|(index, _)| index).collect();
        for conn in conns {
            if self.has_control(conn) {
                self.control_timeout(conn);
            }
        }
    }

    /// Whether all that programs posted is done, and all that was owed to peers has reached them.
    /// A call looks at some QPs and connections, and the next one goes on from there: it is true
    /// once all were found so, and nothing was posted meanwhile.
    pub fn is_drained(&mut self) -> bool {
        if self.is_busy() || !self.responses.is_empty() {
            return false;
        }
        let qps = self.qps.slots();
        let end = qps + self.links.slots();
        let mut next = self.posted.next_undrained();
        let most = end.min(next.saturating_add(LOOKS));
        while next < most && !self.is_left(next, qps) {
            next += 1;
        }
        self.posted.drained_to(next);
        next >= end
    }

    /// Whether the QP in this slot, or behind `qps` of these the connection, has something to do.
    fn is_left(&self, slot: u32, qps: u32) -> bool {
        if slot < qps {
            let qp = self.qps.get(slot);
            return qp.is_some_and(|qp| !qp.queues.send.is_empty());
        }
        let (index, conn) = (slot - qps, self.links.get(slot - qps));
        conn.is_some_and(|conn| conn.delivery.in_flight() > 0 || self.has_control(index))
    }

    pub(crate) fn route(&mut self, conn: u32) -> Route {
        let record = &self.links[conn];
        let path = Path {
            src: self.config.address,
            dst: self.links.address_of(conn).address(),
            src_port: self.config.source_ports[record.flags.source()],
            traffic_class: record.traffic_class,
            ip: IpFields::DEFAULT,
        };
        Route {
            path,
            seed: self.tx.seed(&path),
            remote_id: record.delivery.remote_id(),
            token: record.delivery.remote_token(),
        }
    }

    /// Marks a connection as having something to send.
    pub(crate) fn mark_ready(&mut self, conn: u32) {
        self.tx.schedule_mut().mark_ready(Ready::Conn(conn));
    }

    /// Arms the timer of a connection; called when its deadline may have moved closer. What is due
    /// where the connection is `waiting` waits for room in the port, and no timer need tell of it.
    pub(crate) fn arm_conn(&mut self, now: Instant, conn: u32, waiting: bool) {
        let Some(deadline) = self.links.deadline(conn) else {
            return;
        };
        if waiting && deadline <= now {
            return;
        }
        match self.links.list(now, conn, deadline) {
            Listed::Already => {}
            Listed::At(page) => self.timers.arm_sooner(page, Timer::Calendar.key()),
            Listed::No => self.timers.arm_sooner(deadline, Timer::Conn(conn).key()),
        }
    }

    /// The link of this host works again: no connection waits for as long as it was silent.
    pub fn link_up(&mut self, now: Instant) {
        for conn in 0..self.links.slots() {
            let record = self.links.get_mut(conn);
            if record.is_some_and(|record| record.delivery.link_up(now)) {
                self.arm_conn(now, conn, false);
            }
        }
        self.plains_link_up(now);
    }

    /// Idle connections may be due soon: one of them gets a timer, or is looked at later. The rest
    /// come at once, one in each step.
    pub(crate) fn look_at_idle(&mut self, now: Instant) {
        if let Some(conn) = self.links.next_listed(now)
            && self.links.get(conn).is_some()
        {
            self.arm_conn(now, conn, false);
        }
        if let Some(page) = self.links.listed_until() {
            self.timers.arm(page, Timer::Calendar.key());
        }
    }

    pub(crate) fn conn_timeout(&mut self, now: Instant, conn: u32) {
        let (record, windows) = self.links.with_windows(conn);
        record.delivery.handle_timeout(now, windows);
        self.rest(now, conn);
        if self.heed(now, conn) {
            // Its turn arms the timer again: what is due may only be known after it.
            self.mark_ready(conn);
        }
    }

    /// Takes up what the delivery of a connection has found out. Whether the connection lives on.
    pub(crate) fn heed(&mut self, now: Instant, conn: u32) -> bool {
        while let Some(event) = self.links[conn].delivery.poll_event() {
            match event {
                delivery::Event::Dead => {
                    self.remove_connection(conn, Cause::Dead);
                    return false;
                }
                delivery::Event::KeepAlive => self.links[conn].flags.set_ping(true),
                delivery::Event::Narrow => self.narrow(now, self.links[conn].peer()),
            }
        }
        true
    }

    /// Takes a connection out. Its flows [move on](Self::move_on), some in each round.
    pub(crate) fn remove_connection(&mut self, conn: u32, cause: Cause) {
        let (id, record) = (self.links.id(conn), &self.links[conn]);
        let (peer, toward, mark) = (record.peer(), record.toward(), record.mark);
        let heard = record.delivery.heard_at();
        self.links.unlink(conn);
        if !self.links.reaches(peer) {
            // Its QPs ask again over the next connection.
            self.backlog.add(Task::ForgetBinds { peer });
        }
        if self.links.pick(peer, toward).is_none() {
            let died = (cause == Cause::Dead).then_some(heard);
            self.cut_off(peer, toward, died);
        }
        for timer in [Timer::Conn(conn), Timer::Control(conn)] {
            self.timers.cancel(timer.key());
        }
        let (unacked, flows) = self.links.remove(conn, cause);
        for item in unacked {
            self.forget_item(&item);
        }
        self.tx.schedule_mut().forget(Ready::Conn(conn));
        self.control.replies.forget(conn);
        let address = self.links.peer_address(peer);
        self.emit(|_| Trace::Down {
            conn: id,
            peer: address,
            cause,
            flows,
        });
        // Before all news that follows from it: who reads that must not count the connection.
        let stranded = flows > 0 && self.links.pick(peer, toward).is_none();
        self.events.push(Event::ConnectionDown {
            conn: id,
            peer: address,
            stranded: stranded.then_some(toward),
            mark,
        });
        // Its flows move on from the next round on. Its index is free when all have.
        self.backlog.add(Task::Evacuate { conn });
    }

    /// Lets flows move on from a connection that is gone. Gives whether all have.
    pub(super) fn evacuate(&mut self, conn: u32, share: &mut Share) -> bool {
        loop {
            match self.links.clear(conn) {
                Err(member) if share.take() => {
                    let flow = self.awake(member);
                    self.move_on(flow);
                }
                Err(_) => return false,
                Ok(stone) => {
                    self.need_connection_for_stranded(stone.peer, stone.toward);
                    self.forget_if_unknown(stone.peer);
                    return true;
                }
            }
        }
    }

    /// A flow whose connection is gone moves on: what it had unacknowledged is sent again, in a new
    /// replay epoch, over another connection of the pool. If there is none, it waits for one,
    /// unless its peer's QP has left: nothing more comes from there.
    pub(crate) fn move_on(&mut self, flow: u32) {
        if self.flows[flow].ending.is_last() {
            self.part_ended(flow);
            self.move_ended(flow);
            return;
        }
        let stone = self.links.tombstone(self.flows[flow].conn);
        let (id, peer, cause, requested) = (stone.id, stone.peer, stone.cause, stone.requested);
        self.sent_in_vain(flow);
        self.detach(flow);
        self.counters.failovers.add(1);
        self.begins_to_wait(flow, cause);
        self.replay(flow);
        let Flow { qp, remote, .. } = self.flows[flow];
        self.cold_mut(qp).pinned = false;
        let gone = matches!(cause, Cause::PeerGone | Cause::PeerLeft);
        let ends = gone && self.flows[flow].has_heard();
        let fallback = self.links.pick(peer, remote).filter(|_| !ends);
        self.emit(|engine| Trace::Failover {
            flow,
            qpn: engine.qp_number(engine.flows[flow].qp),
            from: id,
            to: fallback.map(|other| engine.links.id(other)),
        });
        match fallback {
            Some(other) => self.resume_on(flow, other),
            None if self.flows.is_left(flow) => {}
            None if ends && cause == Cause::PeerLeft && self.is_left_with_node(flow) => {}
            None if ends => self.because(VendorError::QpGone, |engine| {
                engine.fail_flow(flow, Status::RetryExceeded);
            }),
            None => self.strand(flow, requested),
        }
    }
}
