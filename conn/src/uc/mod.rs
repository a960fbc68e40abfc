//! The InfiniBand unreliable connection (IBTA Vol 1, 9.8.2): SENDs and WRITEs of any length,
//! whole or not at all, without a word back.
//!
//! A message of which a packet is missing is dropped; so is one that asks for memory it may not
//! have, that fits no receive, or for which none was posted. A receive taken for a message that
//! was dropped waits for the next one; of a WRITE, the packets before the gap have been placed.

mod receiver;

use crate::egress::{Egress, Transmitted};
use crate::host::{Host, QpEvent};
use crate::mem::{Access, PdId, Responder};
use crate::rc::build::{self, Emitted, Headers, Route};
use crate::rc::segment::{self, Family};
use crate::rc::{Dropped, Mtu, State, Stats, put_operation};
use crate::work::{MAX_MESSAGE, Request, SendFlags, SendOp, Status};
use alloc::collections::VecDeque;
use receiver::Receiver;
use trunkline_wire::{Bth, Packet, Path, Psn, Qpn};

/// Attributes of a UC QP that is ready to receive and to send.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The local QP.
    pub qpn: Qpn,
    /// The peer's QP.
    pub dest_qpn: Qpn,
    /// From here to the peer.
    pub path: Path,
    /// Payload of a full packet, the same at both ends.
    pub path_mtu: Mtu,
    /// PSN of the first packet sent.
    pub sq_psn: Psn,
    /// PSN of the first packet expected.
    pub rq_psn: Psn,
    /// Partition key.
    pub pkey: u16,
    /// Protection domain of the QP.
    pub pd: PdId,
    /// Remote rights of the QP: only WRITE counts.
    pub access: Access,
    /// Send requests that fit.
    pub send_capacity: usize,
}

impl Config {
    /// Who does what the peer asks for.
    pub(crate) const fn responder(&self) -> Responder {
        Responder {
            pd: self.pd,
            qpn: self.qpn,
        }
    }
}

/// An unreliable connection: the protocol half of a UC QP. See the [module](self).
#[derive(Debug)]
pub struct UnreliableConnection {
    config: Config,
    route: Route,
    state: State,
    /// With how those end that cannot be sent, once they are the oldest.
    queue: VecDeque<(Request, Option<Status>)>,
    /// Packet of the oldest request that is sent next.
    packet: u32,
    next_psn: Psn,
    receiver: Receiver,
    stats: Stats,
}

const _: () = assert!(size_of::<UnreliableConnection>() <= 768);

impl UnreliableConnection {
    /// A connection that is ready to receive and to send.
    ///
    /// # Panics
    /// The addresses of the path are of different families.
    pub fn new(config: Config) -> Self {
        Self {
            route: Route::new(config.path),
            state: State::Ready,
            queue: VecDeque::with_capacity(config.send_capacity),
            packet: 0,
            next_psn: config.sq_psn,
            receiver: Receiver::new(config.rq_psn),
            stats: Stats::default(),
            config,
        }
    }

    /// The QP goes to RTS: its packets begin with this PSN.
    pub const fn start_sending(&mut self, sq_psn: Psn) {
        self.next_psn = sq_psn;
    }

    /// The program takes the QP from SQE to RTS.
    pub fn resume(&mut self) {
        if self.state == State::SendError {
            self.state = State::Ready;
        }
    }

    /// The QP's rights change.
    pub const fn set_access(&mut self, access: Access) {
        self.config.access = access;
    }

    /// Queues a SEND or WRITE. A request that UC does not know fails in its turn.
    ///
    /// # Errors
    /// The queue is full, or the connection is in error: it comes back.
    ///
    /// # Panics
    /// The request is longer than [`MAX_MESSAGE`].
    #[expect(
        clippy::result_large_err,
        reason = "what does not fit comes back whole, as it was given"
    )]
    pub fn post_send(&mut self, request: Request) -> Result<(), Request> {
        assert!(
            request.length <= MAX_MESSAGE,
            "a request of {} bytes was not validated",
            request.length
        );
        let known = !matches!(
            request.op,
            SendOp::Read(_)
                | SendOp::Atomic(..)
                | SendOp::SendInvalidate(_)
                | SendOp::SendTo(_)
                | SendOp::Own(_)
        );
        let full = self.queue.len() >= self.config.send_capacity;
        if full || self.state != State::Ready {
            return Err(request);
        }
        let fault = (!known).then_some(Status::LocalQpOperation);
        self.queue.push_back((request, fault));
        Ok(())
    }

    /// Acts on a packet whose ICRC is right, and which came from the peer's address.
    ///
    /// # Errors
    /// Why it was dropped; counted already.
    pub fn handle_packet(
        &mut self,
        packet: &Packet<'_>,
        host: &mut impl Host,
    ) -> Result<(), Dropped> {
        let verdict = if self.state == State::Error {
            Err(Dropped::QpInError)
        } else {
            self.receiver.handle(&self.config, packet, host)
        };
        if verdict.is_err_and(Dropped::ends_qp) {
            self.end(host, Status::Flushed, Status::LocalProtection);
            host.event(QpEvent::Fatal);
        }
        self.stats.judged(verdict)
    }

    /// Builds one datagram. A request is done when its last packet has been handed over.
    pub fn poll_transmit(
        &mut self,
        host: &mut impl Host,
        out: &mut (impl Egress + ?Sized),
    ) -> Transmitted {
        let request = match self.queue.front() {
            None => return Transmitted::Nothing,
            Some((_, Some(status))) => {
                let status = *status;
                self.fail(host, status);
                return Transmitted::Nothing;
            }
            Some((request, None)) => request,
        };
        let (config, mtu) = (&self.config, self.config.path_mtu.bytes());
        let count = segment::packets(request.length, mtu);
        let place = segment::position(self.packet, count);
        let (offset, length) = segment::part(request.length, mtu, self.packet);
        let bth = Bth {
            opcode: segment::opcode(Family::Uc, &request.op, place),
            solicited: place.ends()
                && request.op.consumes_receive()
                && request.flags.contains(SendFlags::SOLICITED),
            mig_req: true,
            pkey: config.pkey,
            dest_qp: config.dest_qpn,
            psn: self.next_psn,
            ..Bth::default()
        };
        let length = length as usize;
        let mut headers = Headers::new(&bth, length);
        let (first, last) = (place.starts(), place.ends());
        put_operation(&mut headers, &request.op, first, last, request.length);
        let memory = host.memory();
        let emitted = self.route.emit(out, &headers, length, |payload, crc| {
            build::gather(memory, config.pd, &request.local, offset, payload, crc)
        });
        match emitted {
            Emitted::NoRoom => Transmitted::NoRoom,
            Emitted::Fault(_) => {
                self.fail(host, Status::LocalProtection);
                Transmitted::Nothing
            }
            Emitted::Sent(bytes) => {
                self.stats.sent(bytes);
                self.next_psn = self.next_psn.advance(1);
                self.packet += 1;
                if last && let Some((request, _)) = self.queue.pop_front() {
                    self.packet = 0;
                    let length = request.length;
                    host.sent(request, Status::Success, length);
                }
                Transmitted::Packet
            }
        }
    }

    /// Takes the connection to error: the oldest request ends with `status`, all others are
    /// flushed, and so is a receive in hand.
    pub fn abort(&mut self, host: &mut impl Host, status: Status) {
        self.end(host, status, Status::Flushed);
    }

    /// The same, with what becomes of a receive in hand.
    fn end(&mut self, host: &mut impl Host, status: Status, of_receive: Status) {
        self.end_requests(host, status);
        self.state = State::Error;
        self.receiver.end(&self.config, host, of_receive);
    }

    /// The oldest request failed here: it ends with `status`, all others are flushed, and receiving
    /// goes on (IBTA Vol 1, 10.3.1.6). What was sent of its message is never completed, and the
    /// peer drops it with the next one.
    fn fail(&mut self, host: &mut impl Host, status: Status) {
        self.end_requests(host, status);
        self.state = State::SendError;
    }

    fn end_requests(&mut self, host: &mut impl Host, status: Status) {
        let mut status = status;
        self.packet = 0;
        while let Some((request, _)) = self.queue.pop_front() {
            host.sent(request, status, 0);
            status = Status::Flushed;
        }
    }

    /// Whether it still works.
    pub const fn state(&self) -> State {
        self.state
    }

    /// Counters.
    pub const fn stats(&self) -> &Stats {
        &self.stats
    }

    /// What it was set up with.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Requests posted that have not ended.
    pub fn pending(&self) -> usize {
        self.queue.len()
    }
}
