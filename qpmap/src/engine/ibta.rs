//! QPs with an IBTA connection of their own (RC towards foreign peers, UC) and datagram QPs (UD).
//!
//! The protocol is in [`trunkline_conn::rc`], `uc` and `ud`; here they meet the QP: its rings, its
//! completion queues, its memory.

use super::events::Events;
use super::own_memory::{MOST_OWN, own_op};
use super::qp::{Attributes, Wire};
use super::schedule::{Served, Share};
use super::srq::Srq;
use super::timer::Timer;
use super::{Engine, Event, Platform, Ready};
use crate::error::VerbsError;
use crate::queue::RecvQueue;
use crate::regions::Regions;
use crate::slab::Slab;
use crate::state::{QpState, QpType};
use std::collections::VecDeque;
use std::sync::Arc;
use trunkline_conn::egress::{Egress, Transmitted};
use trunkline_conn::host::{Host, QpEvent, ReceivesInError};
use trunkline_conn::ingress::{Arrival, Identification};
use trunkline_conn::mem::RegionMemory;
use trunkline_conn::time::Instant;
use trunkline_conn::work::{Completion, Datagram, Receive, Request, SendOp, Status};
use trunkline_conn::{rc, uc, ud};
use trunkline_wire::{
    Gid, IcrcSeed, IpFields, Opcode, Packet, Path, Qpn, icrc, may_be_one_host, parse_datagram,
};

/// An IBTA connection and the QP it works for.
#[derive(Debug)]
struct IbtaConn {
    qp: u32,
    protocol: Protocol,
    /// A packet of the peer's QP was taken.
    heard: bool,
    /// Slots of the send ring that each request under way holds.
    slots: VecDeque<u16>,
}

#[derive(Debug)]
enum Protocol {
    Rc(Box<rc::ReliableConnection>),
    Uc(Box<uc::UnreliableConnection>),
    Ud(Box<ud::Endpoint>),
}

/// What a protocol engine says while it is at work; taken up when it is done.
#[derive(Debug, Default)]
struct Effects {
    sent: Vec<(Request, Status, u32)>,
    received: Vec<Completion>,
    events: Vec<QpEvent>,
}

/// The IBTA connections of an engine.
#[derive(Debug, Default)]
pub(crate) struct IbtaConns {
    slots: Slab<IbtaConn>,
    /// Scratch of `with_ibta`.
    effects: Effects,
}

impl IbtaConns {
    fn add(&mut self, qp: u32, protocol: Protocol) -> u32 {
        self.slots.insert(IbtaConn {
            qp,
            protocol,
            heard: false,
            slots: VecDeque::new(),
        })
    }
}

/// What became of a request that changes rights to memory.
pub(super) enum Fetched {
    Done,
    /// It is in the ring again: others are under way.
    Waits,
    Failed,
}

/// Where a QP gets its receives.
enum Receives<'a, W> {
    /// They are its own, so that its peer gets credits for them.
    Own(&'a RecvQueue<W>),
    Shared(&'a Srq<W>),
    None,
}

/// The QP as its protocol engine sees it.
struct IbtaHost<'a, B, W> {
    regions: &'a mut Regions<B>,
    receives: Receives<'a, W>,
    effects: &'a mut Effects,
    /// For news of the SRQ.
    events: &'a mut Events,
}

impl<B: RegionMemory, W: crate::ring::RingMemory> Host for IbtaHost<'_, B, W> {
    type Memory = Regions<B>;

    fn memory(&mut self) -> &mut Regions<B> {
        self.regions
    }

    fn take_receive(&mut self) -> Result<Option<Receive>, ReceivesInError> {
        match &mut self.receives {
            Receives::Own(queue) => queue.fetch().map_err(|_| ReceivesInError),
            Receives::Shared(srq) => srq.take(self.events),
            Receives::None => Ok(None),
        }
    }

    fn receives(&self) -> Option<u32> {
        match &self.receives {
            Receives::Own(queue) => Some(queue.posted()),
            Receives::Shared(_) | Receives::None => None,
        }
    }

    fn sent(&mut self, request: Request, status: Status, byte_len: u32) {
        self.effects.sent.push((request, status, byte_len));
    }

    fn received(&mut self, completion: Completion) {
        self.effects.received.push(completion);
    }

    fn event(&mut self, event: QpEvent) {
        self.effects.events.push(event);
    }
}

impl<P: Platform> Engine<P> {
    /// Gives a QP whose peer is known a protocol engine of its own; its index.
    pub(crate) fn open_ibta(&mut self, qp: u32) -> u32 {
        let protocol = self.protocol(qp);
        let ibta = self.plains.add(qp, protocol);
        self.qps[qp].wire = Wire::Ibta(ibta);
        self.feed_ibta(qp, ibta);
        ibta
    }

    fn protocol(&self, qp: u32) -> Protocol {
        let cold = self.cold(qp);
        let attributes = &cold.attributes;
        let (qpn, pd) = (self.qp_number(qp), self.qps[qp].pd);
        let mtu = path_mtu(attributes);
        let path = self.own_path(qp);
        let send_capacity = self.qps[qp].queues.send.size().max_wr() as usize;
        match cold.kind {
            QpType::Uc => Protocol::Uc(Box::new(uc::UnreliableConnection::new(uc::Config {
                qpn,
                dest_qpn: attributes.dest_qpn,
                path,
                path_mtu: mtu,
                sq_psn: attributes.sq_psn,
                rq_psn: attributes.rq_psn,
                pkey: rc::Config::DEFAULT_PKEY,
                pd,
                access: cold.access(),
                send_capacity,
            }))),
            QpType::Ud => Protocol::Ud(Box::new(ud::Endpoint::new(ud::Config {
                qpn,
                mtu,
                sq_psn: attributes.sq_psn,
                pkey: rc::Config::DEFAULT_PKEY,
                qkey: attributes.qkey,
                pd,
                send_capacity,
            }))),
            QpType::Rc | QpType::Src => {
                Protocol::Rc(Box::new(rc::ReliableConnection::new(self.rc_config(qp))))
            }
        }
    }

    /// The QP may send from now on: tells its protocol engine what came with that.
    pub(super) fn start_ibta(&mut self, qp: u32, ibta: u32) {
        let config = self.rc_config(qp);
        match &mut self.plains.slots[ibta].protocol {
            Protocol::Rc(rc) => rc.start_sending(&config),
            Protocol::Uc(uc) => uc.start_sending(config.sq_psn),
            Protocol::Ud(ud) => ud.start_sending(config.sq_psn),
        }
    }

    /// Attributes of the QP have changed.
    pub(super) fn change_ibta(&mut self, qp: u32, ibta: u32) {
        let config = self.rc_config(qp);
        let qkey = self.cold(qp).attributes.qkey;
        match &mut self.plains.slots[ibta].protocol {
            Protocol::Rc(rc) => rc.change(&config),
            Protocol::Uc(uc) => uc.set_access(config.access),
            Protocol::Ud(ud) => ud.set_qkey(qkey),
        }
    }

    /// The QP goes from SQD or SQE to RTS.
    pub(super) fn resume_ibta(&mut self, qp: u32) {
        let Wire::Ibta(ibta) = self.qps[qp].wire else {
            return;
        };
        match &mut self.plains.slots[ibta].protocol {
            Protocol::Rc(_) => {}
            Protocol::Uc(uc) => uc.resume(),
            Protocol::Ud(ud) => ud.resume(),
        }
    }

    /// Requests that a protocol engine has and that have not ended.
    pub(super) fn ibta_pending(&self, ibta: u32) -> usize {
        self.plains.slots[ibta].protocol.pending()
    }

    /// A request of a UC or UD QP failed here (IBTA Vol 1, 10.3.1.6): those behind it are flushed,
    /// receiving goes on.
    fn enter_send_error(&mut self, qp: u32) {
        if self.qps[qp].state != QpState::Sqe {
            self.set_state(qp, QpState::Sqe);
            self.flush_sends(qp, u32::MAX);
        }
    }

    fn rc_config(&self, qp: u32) -> rc::Config {
        let cold = self.cold(qp);
        let attributes = &cold.attributes;
        let qpn = self.qp_number(qp);
        let path = self.own_path(qp);
        rc::Config {
            path_mtu: path_mtu(attributes),
            sq_psn: attributes.sq_psn,
            rq_psn: attributes.rq_psn,
            pd: self.qps[qp].pd,
            access: cold.access(),
            timeout: attributes.timeout,
            retry_cnt: attributes.retry_count,
            rnr_retry: attributes.rnr_retry,
            min_rnr_timer: attributes.min_rnr_timer,
            max_rd_atomic: attributes.max_rd_atomic,
            max_dest_rd_atomic: attributes.max_dest_rd_atomic,
            send_capacity: self.qps[qp].queues.send.size().max_wr() as usize,
            link_rate: self.config.link_rate_bps.map(|bits| bits / 8),
            ..rc::Config::new(qpn, attributes.dest_qpn, path)
        }
    }

    /// The path of a QP's packets to its peer.
    fn own_path(&self, qp: u32) -> Path {
        let attributes = &self.cold(qp).attributes;
        let ip = IpFields::new(attributes.flow_label, attributes.hop_limit);
        let (remote, class) = (attributes.remote, attributes.traffic_class);
        self.ibta_path(remote, self.qp_number(qp), class, ip)
    }

    /// The path of packets of a QP that has no shared connection: one source port, so that they
    /// stay in order.
    fn ibta_path(&self, remote: Gid, qpn: Qpn, traffic_class: u8, ip: IpFields) -> Path {
        let ports = &self.config.source_ports;
        Path {
            src: self.config.address,
            dst: remote.address(),
            src_port: ports[qpn.get() as usize % ports.len()],
            traffic_class: traffic_class & !0b11 | super::links::ECT0,
            ip,
        }
    }

    pub(crate) fn close_ibta(&mut self, ibta: u32) {
        self.plains.slots.remove(ibta);
        self.timers.cancel(Timer::Ibta(ibta).key());
        self.tx.schedule_mut().forget(Ready::Ibta(ibta));
    }

    /// A peer that was taken for an ordinary host binds its QP `remote` to ours over `conn`: it
    /// shares connections after all, and so does our QP, unless the two QPs have spoken to each
    /// other already. What it has sent in vain is read from its ring again.
    pub(crate) fn adopt_shared(&mut self, qp: u32, conn: u32, remote: Qpn) {
        let Wire::Ibta(ibta) = self.qps[qp].wire else {
            return;
        };
        let peer = self.links[conn].peer();
        let theirs = self.is_for(qp, peer, remote);
        let record = &self.plains.slots[ibta];
        let fresh = matches!(&record.protocol, Protocol::Rc(rc)
            if rc.state() == rc::State::Ready && !rc.has_heard());
        if !theirs || !fresh {
            return;
        }
        let held = record.slots.iter().map(|slots| u32::from(*slots)).sum();
        let requests = record.slots.len() as u32;
        self.close_ibta(ibta);
        let record = &mut self.qps[qp];
        let (queue, cursor) = (&record.queues.send, &mut record.cursor);
        queue.put_back(cursor, requests, held);
        self.share(qp, self.links.pick(peer, remote).unwrap_or(conn));
    }

    /// The peer of a QP that waits to hear what its peer is has sent it a first request of its own:
    /// it took us for an ordinary host, as its question or our answer was lost. What was posted
    /// here meanwhile goes the same way. `None`: the packet is no such request, and changes
    /// nothing.
    ///
    /// A question of ours that is under way does not matter: the BIND that went with it counts no
    /// more ([`handle_early`](Self::handle_early)).
    fn adopt_ibta(&mut self, qp: u32, arrival: &Arrival, packet: &Packet<'_>) -> Option<u32> {
        let named = self.cold(qp).attributes.remote == Gid::from(arrival.path.src);
        if !named || !self.rc_config(qp).is_opened_by(packet) {
            return None;
        }
        self.leave_undecided(qp);
        Some(self.open_ibta(qp))
    }

    /// The QP goes to error: what it has under way ends. Where its protocol engine is the reason,
    /// all of it has ended, and the engine still has to tell the peer why.
    pub(crate) fn abort_ibta(&mut self, ibta: u32) {
        if self.plains.slots[ibta].protocol.state() == rc::State::Error {
            return;
        }
        self.with_ibta(ibta, |protocol, host| protocol.abort(host));
    }

    /// Whether a QP can be connected to one at this address.
    pub(crate) fn check_peer(&self, remote: Gid) -> Result<(), VerbsError> {
        self.check_family(remote)?;
        let address = remote.address();
        if may_be_one_host(address) {
            Ok(())
        } else {
            Err(VerbsError::NotOneHost { address })
        }
    }

    /// Whether packets from here can reach an address at all.
    fn check_family(&self, remote: Gid) -> Result<(), VerbsError> {
        if remote.address().is_ipv4() == self.config.address.is_ipv4() {
            Ok(())
        } else {
            Err(VerbsError::Unsupported {
                what: "a peer of another family of addresses",
            })
        }
    }

    /// Who gets a request of a UD QP. `None`: it names none, by a handle of another domain, or one
    /// of another family of addresses.
    fn receiver(&self, qp: u32, op: &SendOp) -> Option<ud::Address> {
        let SendOp::SendTo(to) = op else {
            return None;
        };
        if to.pd != self.qps[qp].pd || self.check_family(to.remote).is_err() {
            return None;
        }
        Some(ud::Address {
            path: self.ibta_path(to.remote, self.qp_number(qp), to.traffic_class, to.ip),
            qpn: to.qpn,
            qkey: to.qkey,
        })
    }

    /// Hands what a program posted to the protocol engine, as far as that has room.
    pub(crate) fn feed_ibta(&mut self, qp: u32, ibta: u32) {
        if self.qps[qp].state != QpState::Rts {
            return;
        }
        let mut own_left = MOST_OWN;
        loop {
            let record = &mut self.plains.slots[ibta];
            let busy = record.protocol.pending();
            let queues = &mut self.qps[qp];
            if busy >= queues.queues.send.size().max_wr() as usize {
                break;
            }
            let (mut request, _, slots) = match queues.queues.send.fetch(&mut queues.cursor) {
                Ok(Some(found)) => found,
                Ok(None) => break,
                Err(_) => {
                    self.qp_event(qp, QpEvent::Fatal);
                    self.fail_qp(qp, Status::LocalQpOperation);
                    return;
                }
            };
            if let Some(op) = own_op(&request).filter(|_| self.cold(qp).kind != QpType::Ud) {
                match self.execute_own_fetched(qp, (&request, slots), op, busy) {
                    Fetched::Done if own_left > 1 => {
                        own_left -= 1;
                        continue;
                    }
                    Fetched::Done => {
                        // The next round goes on.
                        self.posted.doorbells().ring(qp);
                        break;
                    }
                    Fetched::Waits => break,
                    Fetched::Failed => return self.fail_ibta(qp),
                }
            }
            let receiver = self.receiver(qp, &request.op);
            let record = &mut self.plains.slots[ibta];
            record.slots.push_back(slots);
            let posted = match &mut record.protocol {
                Protocol::Rc(rc) => rc.post_send(request),
                Protocol::Uc(uc) => uc.post_send(request),
                Protocol::Ud(ud) => {
                    request.op = datagram(&request.op);
                    ud.post_send(request, receiver)
                }
            };
            assert!(posted.is_ok(), "there is room, and a QP in RTS sends");
        }
        self.touch_ibta(ibta);
    }

    /// A request of a QP failed before its protocol engine had it.
    fn fail_ibta(&mut self, qp: u32) {
        match self.cold(qp).kind {
            QpType::Uc => self.enter_send_error(qp),
            _ => self.enter_error(qp),
        }
    }

    fn touch_ibta(&mut self, ibta: u32) {
        self.tx.schedule_mut().mark_ready(Ready::Ibta(ibta));
    }

    pub(super) fn serve_ibta(
        &mut self,
        now: Instant,
        ibta: u32,
        mut share: Share,
        egress: &mut (impl Egress + ?Sized),
    ) -> (Served, Share) {
        let mut last = Transmitted::Packet;
        while !share.is_spent() {
            last = self.with_ibta(ibta, |protocol, host| match protocol {
                Protocol::Rc(rc) => rc.poll_transmit(now, host, egress),
                Protocol::Uc(uc) => uc.poll_transmit(host, egress),
                Protocol::Ud(ud) => ud.poll_transmit(host, egress),
            });
            if !last.is_packet() {
                break;
            }
            // Its packets are counted: they are of one MTU.
            share.take(0);
            self.counters.sent.add(1);
        }
        if self.plains.slots.get(ibta).is_none() {
            return (Served::Done, share);
        }
        self.arm_ibta(ibta);
        let served = match last {
            Transmitted::Packet => Served::Again,
            Transmitted::NoRoom => Served::Full,
            Transmitted::Nothing => Served::Done,
        };
        (served, share)
    }

    /// Runs a protocol engine with its QP as host, then takes up its news.
    fn with_ibta<T>(
        &mut self,
        ibta: u32,
        work: impl FnOnce(&mut Protocol, &mut IbtaHost<'_, P::RegionMemory, P::RingMemory>) -> T,
    ) -> T {
        let mut effects = std::mem::take(&mut self.plains.effects);
        let record = &mut self.plains.slots[ibta];
        let qp = record.qp;
        let queues = Arc::clone(&self.qps[qp].queues);
        let receives = match (&queues.receive, self.srqs.get(queues.srq)) {
            (Some(own), _) => Receives::Own(own),
            (None, Some(srq)) => Receives::Shared(srq),
            (None, None) => Receives::None,
        };
        let mut host = IbtaHost {
            regions: &mut self.regions,
            receives,
            effects: &mut effects,
            events: &mut self.events,
        };
        let result = work(&mut record.protocol, &mut host);
        let state = record.protocol.state();
        for (request, status, bytes) in effects.sent.drain(..) {
            self.finish_request(qp, ibta, &request, status, bytes);
        }
        for completion in effects.received.drain(..) {
            let [_, cq] = self.qps[qp].queues.cqs;
            self.complete(cq, &completion);
        }
        for event in effects.events.drain(..) {
            self.qp_event(qp, event);
        }
        self.plains.effects = effects;
        self.check_drained(qp);
        if state == rc::State::Error {
            self.enter_error(qp);
        } else if state == rc::State::SendError {
            self.enter_send_error(qp);
        } else if self.qps[qp].has_posted() {
            self.feed_ibta(qp, ibta);
        }
        result
    }

    fn finish_request(
        &mut self,
        qp: u32,
        ibta: u32,
        request: &Request,
        status: Status,
        bytes: u32,
    ) {
        if let Some(slots) = self.plains.slots[ibta].slots.pop_front() {
            self.qps[qp].queues.send.release(slots);
        }
        self.report_sent(qp, request, 0, status, bytes);
    }

    fn arm_ibta(&mut self, ibta: u32) {
        let Protocol::Rc(rc) = &self.plains.slots[ibta].protocol else {
            return;
        };
        if let Some(at) = rc.poll_timeout() {
            self.timers.arm_sooner(at, Timer::Ibta(ibta).key());
        }
    }

    /// The link of this host works again.
    pub(crate) fn plains_link_up(&mut self, now: Instant) {
        for ibta in 0..self.plains.slots.slots() {
            if let Some(record) = self.plains.slots.get_mut(ibta) {
                if let Protocol::Rc(rc) = &mut record.protocol {
                    rc.link_up(now);
                }
                self.arm_ibta(ibta);
            }
        }
    }

    pub(crate) fn ibta_timeout(&mut self, now: Instant, ibta: u32) {
        self.with_ibta(ibta, |protocol, host| {
            if let Protocol::Rc(rc) = protocol {
                rc.handle_timeout(now, host);
            }
        });
        if self.plains.slots.get(ibta).is_some() {
            self.touch_ibta(ibta);
        }
    }

    /// A datagram of an IBTA transport.
    pub(crate) fn handle_ibta(&mut self, now: Instant, arrival: &Arrival, datagram: &[u8]) {
        let packet = match parse_datagram(datagram) {
            Ok(packet) => packet,
            Err(_) => {
                let known = datagram
                    .first()
                    .is_some_and(|byte| Opcode(*byte).is_known());
                self.counters.malformed.add(u64::from(known));
                self.counters.unknown_opcode.add(u64::from(!known));
                return;
            }
        };
        if !self.ibta_icrc(arrival, datagram) {
            self.counters.bad_icrc.add(1);
            return;
        }
        let qp = self.qp_index(packet.bth.dest_qp);
        let ibta = qp.and_then(|qp| match self.qps[qp].wire {
            Wire::Ibta(ibta) => Some(ibta),
            Wire::Undecided(_) => self.adopt_ibta(qp, arrival, &packet),
            Wire::None | Wire::Shared(_) | Wire::Routes => None,
        });
        let Some(ibta) = ibta else {
            self.counters.ibta_unknown_qp.add(1);
            return;
        };
        if !self.comes_from_peer(ibta, arrival) {
            self.counters.bad_source.add(1);
            return;
        }
        let taken = self.with_ibta(ibta, |protocol, host| match protocol {
            Protocol::Rc(rc) => rc.handle_packet(now, &packet, arrival.ce, host),
            Protocol::Uc(uc) => uc.handle_packet(&packet, host),
            Protocol::Ud(ud) => ud.handle_packet(&packet, arrival, host),
        });
        self.counters.ibta_dropped.add(u64::from(taken.is_err()));
        if taken.is_ok() {
            self.note_heard(ibta, &packet);
        }
        if self.plains.slots.get(ibta).is_some() {
            self.touch_ibta(ibta);
        }
    }

    /// A connected QP has taken a packet: its peer's is connected, too. Who notifies of congestion
    /// need not know the state of either.
    fn note_heard(&mut self, ibta: u32, packet: &Packet<'_>) {
        let Some(record) = self.plains.slots.get_mut(ibta) else {
            return;
        };
        let connected = !matches!(record.protocol, Protocol::Ud(_));
        if record.heard || !connected || packet.bth.opcode == Opcode::CNP {
            return;
        }
        record.heard = true;
        let qp = record.qp;
        let qpn = self.qp_number(qp);
        self.events.push(Event::QpHeard { qpn });
    }

    /// Whether the ICRC is right, with whatever identification the sender used: foreign peers use
    /// ones that a UDP socket does not show.
    fn ibta_icrc(&mut self, arrival: &Arrival, datagram: &[u8]) -> bool {
        let guess = arrival.identification.guess();
        if icrc::verify(&arrival.path, guess, datagram) {
            return true;
        }
        let solved = matches!(arrival.identification, Identification::Predicted(_))
            && IcrcSeed::new(&arrival.path)
                .solve_identification(datagram)
                .is_some();
        self.counters.identification_solved.add(u64::from(solved));
        solved
    }

    /// A connected QP hears only its peer: what congests its path, too.
    fn comes_from_peer(&self, ibta: u32, arrival: &Arrival) -> bool {
        let record = &self.plains.slots[ibta];
        if matches!(record.protocol, Protocol::Ud(_)) {
            return true;
        }
        self.cold(record.qp).attributes.remote == Gid::from(arrival.path.src)
    }
}

fn path_mtu(attributes: &Attributes) -> rc::Mtu {
    rc::Mtu::from_bytes(attributes.path_mtu).expect("checked when it was set")
}

/// A datagram as its protocol engine knows it: who gets it stands beside it.
const fn datagram(op: &SendOp) -> SendOp {
    match *op {
        SendOp::SendTo(Datagram { imm: Some(imm), .. }) => SendOp::SendImm(imm),
        SendOp::SendTo(_) => SendOp::Send,
        other => other,
    }
}

impl Protocol {
    /// What it has under way ends.
    fn abort(&mut self, host: &mut impl Host) {
        match self {
            Self::Rc(rc) => rc.abort(host, Status::Flushed),
            Self::Uc(uc) => uc.abort(host, Status::Flushed),
            Self::Ud(ud) => ud.abort(host, Status::Flushed),
        }
    }

    const fn state(&self) -> rc::State {
        match self {
            Self::Rc(rc) => rc.state(),
            Self::Uc(uc) => uc.state(),
            Self::Ud(ud) => ud.state(),
        }
    }

    fn pending(&self) -> usize {
        match self {
            Self::Rc(rc) => rc.pending(),
            Self::Uc(uc) => uc.pending(),
            Self::Ud(ud) => ud.pending(),
        }
    }
}
