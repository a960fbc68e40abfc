//! Connections: how they are opened, closed and kept alive, and what becomes of their flows.

use super::ack_delay::AckDelay;
use super::build::{self, Route, SentPacket};
use super::homes::Group;
use super::lists::{List, Noticed, Runnable};
use super::numbers::Numbers;
use super::peers::{Peer, PeerIdentity};
use super::timer::Timer;
use super::tombstones::Tombstone;
use super::{Cause, ConnId, Engine, Event, Platform, Ready, Trace};
use crate::error::VerbsError;
use crate::slab::NONE;
use trunkline_conn::control::ControlKind;
use trunkline_conn::delivery::{self, Connection};
use trunkline_conn::time::{Instant, SECOND};
use trunkline_wire::{Close, Gid, Path, Qpn};

/// Traffic class of shared connections: best effort, ECN-capable (ECT(0)).
pub(super) const ECT0: u8 = 0b10;

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
    pub control: Option<ControlKind>,
    /// DSCP (upper six bits) of its packets.
    pub traffic_class: u8,
    /// Share of the port beside other connections, 1 to 255.
    pub weight: u8,
    /// UDP source ports it uses, 1 to 8.
    pub source_ports: u8,
    /// Opened by a program for itself: the engine binds no QPs to it on its own.
    pub private: bool,
}

/// Where a connection stands.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionStats {
    /// Packets, round trips, congestion. Counts are those since the connection was opened.
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

/// A shared connection.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) delivery: Connection<SentPacket>,
    pub(crate) peer: u32,
    /// In the pool of its peer.
    pub(crate) next_of_pool: u32,
    pub(crate) runnable: List<Runnable>,
    pub(crate) noticed: List<Noticed>,
    pub(crate) flows: u32,
    /// Those flows.
    pub(crate) members: Group,
    /// Acknowledgement that the last packet carried.
    pub(crate) acked: u32,
    /// Payload bytes of a full packet.
    pub(crate) payload: u16,
    /// Largest datagram that both ends carry, in bytes.
    pub(crate) most: u16,
    pub(crate) traffic_class: u8,
    pub(crate) weight: u8,
    pub(crate) flags: ConnFlags,
}

/// Flags of a [`Conn`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ConnFlags {
    /// It owes its peer a keep-alive.
    pub(crate) ping: bool,
    /// Whether its notices may still wait.
    pub(crate) ack_delay: AckDelay,
    pub(crate) private: bool,
}

/// Memory of connections that were active is kept for others for so long, in ns, and freed then.
const TRIM_NS: u64 = SECOND;

/// Bytes of a connection's rows in tables: number, serial.
pub(crate) const CONNECTION_ROWS: usize = Numbers::SLOT + size_of::<u32>();

// DESIGN 4.2, invariant 6: an idle connection with its peer record and rows of tables takes at most
// 176 bytes. Beside them stands its timer.
const _: () = assert!(size_of::<Conn>() + size_of::<Peer>() + CONNECTION_ROWS <= 176);

impl<P: Platform> Engine<P> {
    /// Draws the number and token for our end of a connection that is about to be opened. The
    /// number stays taken until [`add_connection`](Self::add_connection) or
    /// [`release_connection`](Self::release_connection).
    ///
    /// # Errors
    /// [`VerbsError::Limit`] when there are no numbers left.
    pub fn draw_connection(&mut self) -> Result<(Qpn, u32), VerbsError> {
        let limit = self.conn_secret.size();
        let Some(slot) = self.numbers.draw(limit) else {
            return Err(VerbsError::Limit {
                what: "connections",
                limit: limit.into(),
            });
        };
        Ok((Qpn::from_wire(self.conn_secret.seal(slot)), self.token()))
    }

    /// 32 bits that are not zero.
    fn token(&mut self) -> u32 {
        loop {
            let token = self.tokens.next_u64() as u32;
            if token != 0 {
                return token;
            }
        }
    }

    /// Gives back a number that [`draw_connection`](Self::draw_connection) drew and nobody used.
    pub fn release_connection(&mut self, id: Qpn) {
        let slot = self.conn_secret.open(id.get());
        self.numbers.release(slot);
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
        let peer = self.peer_record(identity)?;
        let most = params.datagram.min(self.config.datagram);
        let size = self.paths.size(peer).map_or(most, |size| size.min(most));
        let config = delivery::Config {
            local_id: params.local_id,
            remote_id: params.remote_id,
            local_token: params.local_token,
            remote_token: params.remote_token,
            first_tx: params.first_tx,
            first_rx: params.first_rx,
            packet_size: size,
            control: params.control.unwrap_or(self.config.control),
            window: params.window,
            source_ports: params
                .source_ports
                .clamp(1, self.config.source_ports.len() as u8),
        };
        let heard = self.reach_again(peer, params.remote_id);
        let conn = Conn {
            delivery: Connection::new(&config, heard.unwrap_or(now)),
            peer,
            next_of_pool: NONE,
            runnable: List::EMPTY,
            noticed: List::EMPTY,
            flows: 0,
            members: Group::EMPTY,
            acked: params.first_tx as u32,
            payload: build::full_payload(size) as u16,
            most: most as u16,
            traffic_class: params.traffic_class & !0b11 | ECT0,
            weight: params.weight.max(1),
            flags: ConnFlags {
                private: params.private,
                ..ConnFlags::default()
            },
        };
        let index = self.conns.insert(conn);
        if self.conn_serials.len() <= index as usize {
            self.conn_serials.resize(index as usize + 1, 0);
        }
        self.conn_serials[index as usize] = self.conn_serials[index as usize].wrapping_add(1);
        let slot = self.conn_secret.open(params.local_id.get());
        self.numbers.open(slot, index);
        self.link_to_peer(index);
        self.arm_conn(index, None);
        let conn = self.conn_id(index);
        self.emit(|_| Trace::Opened {
            conn,
            peer: identity.address,
            private: params.private,
        });
        if !params.private {
            self.begin_rescue(peer);
            self.begin_relief(conn);
            self.ask_for_waiting(identity.address);
        }
        Ok(conn)
    }

    /// Says something on a connection that this node opened, if nothing else is said on it: the
    /// peer's end stands once it has heard that ours does, and what confirms it may be lost.
    pub fn greet(&mut self, id: ConnId) {
        if self.live(id).is_some() {
            self.conns[id.index].flags.ping = true;
            self.mark_ready(id.index);
        }
    }

    /// Connections without flows, of pools that have others.
    pub fn idle_connections(&self) -> impl Iterator<Item = ConnId> {
        let all = self.conns.iter();
        let idle = all.filter(|(index, conn)| self.is_spare(*index, conn));
        idle.map(|(index, _)| self.conn_id(index))
    }

    /// Whether a connection is one of [`idle_connections`](Self::idle_connections).
    pub fn is_idle(&self, id: ConnId) -> bool {
        let conn = self.live(id);
        conn.is_some_and(|conn| self.is_spare(id.index, conn))
    }

    fn is_spare(&self, index: u32, conn: &Conn) -> bool {
        let others = || self.conns_of(conn.peer).any(|other| other != index);
        conn.flows == 0 && !conn.flags.private && conn.delivery.is_idle() && others()
    }

    /// Draws the number of the first packet of a connection.
    pub fn draw_first(&mut self) -> u64 {
        self.first_packets.next_u64() >> 16
    }

    /// All connections.
    pub fn connections(&self) -> Vec<ConnId> {
        self.conns
            .iter()
            .map(|(index, _)| self.conn_id(index))
            .collect()
    }

    /// Statistics of a connection; `None` when it is gone.
    pub fn connection_stats(&self, id: ConnId) -> Option<ConnectionStats> {
        let conn = self.live(id)?;
        let mut delivery = conn.delivery.stats();
        if let Some(past) = self.past.get(&id.index) {
            delivery.counters.add(past);
        }
        Some(ConnectionStats {
            delivery,
            flows: conn.flows,
            in_flight: conn.delivery.in_flight(),
            payload: conn.payload.into(),
            peer: self.peers[conn.peer].address,
        })
    }

    /// What all connections counted since the engine was made, those that are gone included.
    pub fn delivery_counters(&self) -> delivery::Counters {
        let mut counters = self.past_delivery;
        for (_, conn) in self.conns.iter() {
            counters.add(&conn.delivery.stats().counters);
        }
        counters
    }

    /// Gives back the window of a connection that has no use for it.
    pub(crate) fn rest(&mut self, now: Instant, conn: u32) {
        let delivery = &mut self.conns[conn].delivery;
        if let Some(counters) = delivery.try_idle(&mut self.windows) {
            self.past_delivery.add(&counters);
            self.past.entry(conn).or_default().add(&counters);
            if !self.trims {
                self.trim_later(now);
            }
        }
    }

    fn trim_later(&mut self, now: Instant) {
        self.trims = self.windows.spare_bytes() > 0;
        if self.trims {
            self.timers.arm(now + TRIM_NS, Timer::Trim.key());
        }
    }

    /// Frees what connections that were active some time ago have left.
    pub(crate) fn trim(&mut self, now: Instant) {
        self.windows.trim();
        self.trim_later(now);
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
        if self.live(id).is_some() {
            let route = self.route(id.index);
            self.pending_closes.push_back((route, Close::CONNECTION));
            self.remove_connection(id.index, cause);
        }
    }

    /// The node ends: all connections are closed, and their peers told so, the next time that
    /// packets are sent. What flows had under way is not waited for. All at once: nobody is served
    /// after it.
    pub fn say_goodbye(&mut self) {
        let conns: Vec<u32> = self.conns.iter().map(|(index, _)| index).collect();
        for conn in conns {
            let route = self.route(conn);
            self.pending_closes.push_back((route, Close::NODE));
        }
        let peers: Vec<Gid> = self.peers.iter().map(|(_, peer)| peer.address).collect();
        for peer in peers {
            self.drop_peer(peer);
        }
    }

    /// What waits for company, answers above all, leaves without it. All at once: the node ends.
    pub fn hasten(&mut self) {
        let conns: Vec<u32> = self.conns.iter().map(|(index, _)| index).collect();
        for conn in conns {
            if self.has_notices(conn) {
                self.notices_timeout(conn);
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
        let end = qps + self.conns.slots();
        let most = end.min(self.drained.saturating_add(LOOKS));
        while self.drained < most && !self.is_left(self.drained, qps) {
            self.drained += 1;
        }
        self.drained >= end
    }

    /// Whether the QP in this slot, or behind `qps` of these the connection, has something to do.
    fn is_left(&self, slot: u32, qps: u32) -> bool {
        if slot < qps {
            let qp = self.qps.get(slot);
            return qp.is_some_and(|qp| !qp.queues.send.is_empty());
        }
        let (index, conn) = (slot - qps, self.conns.get(slot - qps));
        conn.is_some_and(|conn| conn.delivery.in_flight() > 0 || self.has_notices(index))
    }

    pub(crate) fn conn_id(&self, index: u32) -> ConnId {
        ConnId {
            index,
            serial: self.conn_serials[index as usize],
        }
    }

    pub(crate) fn live(&self, id: ConnId) -> Option<&Conn> {
        (self.conn_serials.get(id.index as usize) == Some(&id.serial)).then_some(())?;
        self.conns.get(id.index)
    }

    pub(crate) fn route(&mut self, conn: u32) -> Route {
        let record = &self.conns[conn];
        let path = Path {
            src: self.config.address,
            dst: self.peers[record.peer].address.address(),
            src_port: self.config.source_ports[0],
            traffic_class: record.traffic_class,
        };
        self.departed.turn_to(&path);
        Route {
            path,
            seed: self.departed.seed,
            remote_id: record.delivery.remote_id(),
            token: record.delivery.remote_token(),
        }
    }

    /// Marks a connection as having something to send.
    pub(crate) fn mark_ready(&mut self, conn: u32) {
        self.schedule.mark_ready(Ready::Conn(conn));
    }

    /// Arms the timer of a connection; called when its deadline may have moved closer. What was due
    /// by `waiting` waits for room in the port, and no timer need tell of it.
    pub(crate) fn arm_conn(&mut self, conn: u32, waiting: Option<Instant>) {
        let Some(deadline) = self.conns[conn].delivery.poll_timeout(&self.windows) else {
            return;
        };
        if waiting.is_some_and(|now| deadline <= now) {
            return;
        }
        self.timers.arm_sooner(deadline, Timer::Conn(conn).key());
    }

    pub(crate) fn conn_timeout(&mut self, now: Instant, conn: u32) {
        let delivery = &mut self.conns[conn].delivery;
        delivery.handle_timeout(now, &self.windows);
        self.rest(now, conn);
        if self.heed(now, conn) {
            // Its turn arms the timer again: what is due may only be known after it.
            self.mark_ready(conn);
        }
    }

    /// Takes up what the delivery of a connection has found out. Whether the connection lives on.
    pub(crate) fn heed(&mut self, now: Instant, conn: u32) -> bool {
        while let Some(event) = self.conns[conn].delivery.poll_event() {
            match event {
                delivery::Event::Dead => {
                    self.remove_connection(conn, Cause::Dead);
                    return false;
                }
                delivery::Event::KeepAlive => self.conns[conn].flags.ping = true,
                delivery::Event::Narrow => self.narrow(now, self.conns[conn].peer),
            }
        }
        true
    }

    /// Takes a connection out. Its flows [move on](Self::move_on), some in each round.
    pub(crate) fn remove_connection(&mut self, conn: u32, cause: Cause) {
        let id = self.conn_id(conn);
        let Conn { peer, delivery, .. } = &self.conns[conn];
        let (peer, toward, heard) = (*peer, delivery.remote_id(), delivery.heard_at());
        self.unlink_from_peer(conn);
        if self.pick(peer, toward).is_none() {
            let died = (cause == Cause::Dead).then_some(heard);
            self.cut_off(peer, toward, died);
        }
        let record = self.conns.take(conn);
        let stone = Tombstone::of(id, cause, &record);
        for timer in [Timer::Conn(conn), Timer::Notices(conn)] {
            self.timers.cancel(timer.key());
        }
        self.past.remove(&conn);
        let slot = self.conn_secret.open(record.delivery.local_id().get());
        self.numbers.close(slot);
        self.heard_on = None;
        for item in record.delivery.unacked() {
            self.forget_item(&item);
        }
        self.past_delivery.add(&record.delivery.stats().counters);
        record.delivery.close(&mut self.windows);
        self.schedule.forget(Ready::Conn(conn));
        self.replies.forget(conn);
        let address = self.peers[peer].address;
        let flows = stone.flows;
        self.emit(|_| Trace::Down {
            conn: id,
            peer: address,
            cause,
            flows,
        });
        // Before all news that follows from it: who reads that must not count the connection.
        let stranded = flows > 0 && self.pick(peer, toward).is_none();
        self.events.push_back(Event::ConnectionDown {
            conn: id,
            peer: address,
            stranded: stranded.then_some(toward),
        });
        self.bury_connection(stone);
    }
}
