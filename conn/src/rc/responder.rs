//! The responder: requests of the peer, in order of their PSNs (IBTA Vol 1, 9.7.3 to 9.7.5).
//!
//! WRITEs and SENDs are placed as their packets come; READs read memory when their response is
//! built, so that a READ may see a later WRITE or atomic that was not fenced. Responses leave in
//! the order of requests; a NAK leaves after all of them.

mod duplicates;
mod execute;

use super::build::{Emitted, Headers, Route};
use super::config::Config;
use super::segment;
use super::stats::{Dropped, Stats};
use crate::egress::Egress;
use crate::host::{Host, QpEvent, ReceivesInError};
use crate::mem::Memory;
use crate::work::{Completion, Extra, Receive, Status, VendorError, WorkOpcode};
use alloc::collections::VecDeque;
use trunkline_wire::{Aeth, AtomicAckEth, Bth, NakCode, Opcode, Packet, Psn, Qpn, Rkey, Syndrome};

const MSN_MASK: u32 = 0x00ff_ffff;

/// The message whose packets are coming.
#[derive(Debug)]
enum Message {
    None,
    Send {
        receive: Receive,
        capacity: u64,
        offset: u32,
    },
    Write {
        key: Rkey,
        addr: u64,
        length: u32,
        offset: u32,
    },
}

/// A response waiting to be sent.
#[derive(Clone, Copy, Debug)]
enum Response {
    Ack {
        psn: Psn,
        msn: u32,
    },
    Read {
        /// Of the first packet.
        psn: Psn,
        key: Rkey,
        addr: u64,
        length: u32,
        packets: u32,
        /// Packets that left.
        sent: u32,
        msn: u32,
        /// It was answered before.
        repeated: bool,
    },
    Atomic {
        psn: Psn,
        msn: u32,
        value: u64,
        repeated: bool,
    },
}

impl Response {
    /// PSN of its last packet.
    fn last_psn(&self) -> Psn {
        match *self {
            Self::Ack { psn, .. } | Self::Atomic { psn, .. } => psn,
            Self::Read { psn, packets, .. } => psn.advance(packets - 1),
        }
    }

    /// Whether both are acknowledgements: then this one says what either does from now on.
    fn absorb(&mut self, later: &Self) -> bool {
        let (Self::Ack { psn, msn }, Self::Ack { psn: to, msn: now }) = (self, *later) else {
            return false;
        };
        if to.offset_from(*psn) > 0 {
            *psn = to;
        }
        *msn = now;
        true
    }

    /// Whether it takes one of the resources for READs and atomics.
    const fn is_data(&self) -> bool {
        !matches!(self, Self::Ack { .. })
    }
}

/// Result of an atomic, kept for its duplicates.
#[derive(Clone, Copy, Debug)]
struct Remembered {
    psn: Psn,
    opcode: Opcode,
    value: u64,
}

#[derive(Debug)]
pub(super) struct Responder {
    expected: Psn,
    msn: u32,
    /// The requester was told to go back to `expected`: said once.
    nak_sent: bool,
    established: bool,
    message: Message,
    queue: VecDeque<Response>,
    /// Leaves when the queue is empty.
    nak: Option<(Psn, Syndrome)>,
    atomics: VecDeque<Remembered>,
}

/// Why a request in its turn is not executed.
#[derive(Clone, Copy, Debug)]
enum Refusal {
    /// No receive.
    NotReady,
    /// No receive, now or later: the QP goes to error.
    ReceivesInError,
    /// The QP goes to error; the receive in hand, if any, ends with the status.
    Nak(NakCode, Status),
}

impl Refusal {
    const INVALID: Self = Self::Nak(NakCode::InvalidRequest, Status::Flushed);
    const ACCESS: Self = Self::Nak(NakCode::RemoteAccess, Status::Flushed);
}

impl From<ReceivesInError> for Refusal {
    fn from(_: ReceivesInError) -> Self {
        Self::ReceivesInError
    }
}

/// What became of a request packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Judged {
    pub(super) verdict: Result<(), Dropped>,
    /// The QP goes to error once the NAK is out.
    pub(super) fatal: bool,
}

impl Judged {
    const fn of(verdict: Result<(), Dropped>) -> Self {
        Self {
            verdict,
            fatal: false,
        }
    }
}

/// What [`Responder::transmit`] did.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Answered {
    /// Sent a packet with so many bytes of payload.
    Sent(u32),
    Idle,
    NoRoom,
    /// Memory of a READ is gone: a NAK says so, and the QP goes to error.
    Fatal,
}

impl Responder {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            expected: config.rq_psn,
            msn: 0,
            nak_sent: false,
            established: false,
            message: Message::None,
            // They grow as they are used, up to what `max_dest_rd_atomic` allows.
            queue: VecDeque::new(),
            nak: None,
            atomics: VecDeque::new(),
        }
    }

    /// Bytes of the queues.
    pub(super) fn heap_bytes(&self) -> usize {
        self.queue.capacity() * size_of::<Response>()
            + self.atomics.capacity() * size_of::<Remembered>()
    }

    /// A request packet of this QP.
    pub(super) fn handle(
        &mut self,
        config: &Config,
        packet: &Packet<'_>,
        host: &mut impl Host,
        stats: &mut Stats,
    ) -> Judged {
        let psn = packet.bth.psn;
        let ahead = psn.offset_from(self.expected);
        if ahead < 0 {
            return self.handle_duplicate(config, packet, ahead, host, stats);
        }
        if ahead > 0 {
            if !self.nak_sent {
                self.nak_sent = true;
                self.nak = Some((self.expected, Syndrome::Nak(NakCode::PsnSequence)));
            }
            return Judged::of(Err(Dropped::PsnGap));
        }
        self.nak_sent = false;
        self.nak = None;
        if !self.established {
            self.established = true;
            host.event(QpEvent::CommunicationEstablished);
        }
        match self.execute(config, packet, host) {
            Ok(()) => Judged::of(Ok(())),
            Err(Refusal::NotReady) => {
                self.nak_sent = true;
                let timer = config.min_rnr_timer & 0x1f;
                self.nak = Some((psn, Syndrome::RnrNak { timer }));
                Judged::of(Err(Dropped::ReceiverNotReady))
            }
            Err(Refusal::ReceivesInError) => {
                host.event(QpEvent::Fatal);
                let nak = (NakCode::RemoteOperational, Status::LocalQpOperation);
                let verdict = Err(ReceivesInError.into());
                let refused = self.refuse(config, psn, nak, host);
                Judged { verdict, ..refused }
            }
            Err(Refusal::Nak(code, status)) => self.refuse(config, psn, (code, status), host),
        }
    }

    /// Refuses the request at `psn` for good.
    fn refuse(
        &mut self,
        config: &Config,
        psn: Psn,
        (code, status): (NakCode, Status),
        host: &mut impl Host,
    ) -> Judged {
        self.nak_sent = true;
        self.nak = Some((psn, Syndrome::Nak(code)));
        let access = code == NakCode::RemoteAccess;
        if status == Status::Flushed {
            host.event(if access {
                QpEvent::AccessError
            } else {
                QpEvent::RequestError
            });
        }
        self.drop_message(config, host, status);
        let reason = if access {
            Dropped::AccessDenied
        } else {
            Dropped::Refused
        };
        Judged {
            verdict: Err(reason),
            fatal: true,
        }
    }

    /// The receive in hand ends with `status`.
    fn drop_message(&mut self, config: &Config, host: &mut impl Host, status: Status) {
        if let Message::Send { receive, .. } = core::mem::replace(&mut self.message, Message::None)
        {
            let blank = received(config, receive.wr_id, WorkOpcode::Receive);
            host.received(Completion { status, ..blank });
        }
    }

    /// Says nothing more.
    pub(super) fn abort(&mut self, config: &Config, host: &mut impl Host) {
        self.drop_message(config, host, Status::Flushed);
        self.queue.clear();
        self.nak = None;
    }

    /// Acknowledges `psn`: together with what is about to be acknowledged, if nothing lies
    /// between.
    fn push_ack(&mut self, psn: Psn) {
        let ack = Response::Ack { psn, msn: self.msn };
        if !self.queue.back_mut().is_some_and(|last| last.absorb(&ack)) {
            self.queue.push_back(ack);
        }
    }

    /// Takes out the responses that `goes` says, by place. Acknowledgements that come to stand side
    /// by side become one: so there is never more than one for each response with data, and one.
    fn withdraw(&mut self, goes: impl Fn(usize, &Response) -> bool) {
        let mut kept: usize = 0;
        for at in 0..self.queue.len() {
            let response = self.queue[at];
            let before = kept.checked_sub(1).map(|last| &mut self.queue[last]);
            if goes(at, &response) || before.is_some_and(|last| last.absorb(&response)) {
                continue;
            }
            self.queue[kept] = response;
            kept += 1;
        }
        self.queue.truncate(kept);
    }

    /// Whether nothing waits to be sent.
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.nak.is_none()
    }

    /// Whether what is sent next carries READ data.
    pub(super) fn is_bulk(&self) -> bool {
        matches!(self.queue.front(), Some(Response::Read { .. }))
    }

    /// Builds the next response, if there is one.
    pub(super) fn transmit<H: Host>(
        &mut self,
        config: &Config,
        route: &Route,
        host: &mut H,
        out: &mut (impl Egress + ?Sized),
        stats: &mut Stats,
    ) -> Answered {
        let Some(&response) = self.queue.front() else {
            return self.transmit_nak(config, route, out, stats);
        };
        let acked = self.acknowledgement(host);
        let mut payload = 0;
        let mut done = true;
        let emitted = match response {
            Response::Ack { psn, msn } => {
                let headers = answer(config, Opcode::RC_ACKNOWLEDGE, psn, Some((acked, msn)), 0);
                route.emit_bare(out, &headers)
            }
            Response::Atomic {
                psn, msn, value, ..
            } => {
                let opcode = Opcode::RC_ATOMIC_ACKNOWLEDGE;
                let mut headers = answer(config, opcode, psn, Some((acked, msn)), 0);
                headers.put(&AtomicAckEth(value).to_bytes());
                route.emit_bare(out, &headers)
            }
            Response::Read {
                psn,
                key,
                addr,
                length,
                packets,
                sent,
                msn,
                ..
            } => {
                let mtu = config.path_mtu.bytes();
                let place = segment::position(sent, packets);
                let (offset, bytes) = segment::part(length, mtu, sent);
                (payload, done) = (bytes, place.ends());
                let with_aeth = place.starts() || place.ends();
                let aeth = with_aeth.then_some((acked, msn));
                let opcode = segment::read_response(place);
                let headers = answer(config, opcode, psn.advance(sent), aeth, bytes);
                // The whole range was checked: the sum does not wrap.
                let addr = addr.wrapping_add(u64::from(offset));
                let memory = host.memory();
                route.emit(out, &headers, bytes as usize, |payload, crc| {
                    memory.read(config.responder(), key, addr, payload, Some(crc))
                })
            }
        };
        match emitted {
            Emitted::NoRoom => Answered::NoRoom,
            Emitted::Sent(bytes) => {
                stats.sent(bytes);
                match self.queue.front_mut() {
                    Some(Response::Read { sent, .. }) if !done => *sent += 1,
                    _ => {
                        self.queue.pop_front();
                    }
                }
                Answered::Sent(payload)
            }
            Emitted::Fault(_) => {
                let (psn, repeated) = match response {
                    Response::Read {
                        psn,
                        sent,
                        repeated,
                        ..
                    } => (psn.advance(sent), repeated),
                    Response::Ack { psn, .. } | Response::Atomic { psn, .. } => (psn, false),
                };
                self.queue.clear();
                if repeated {
                    self.refuse_repeated(psn);
                    return self.transmit_nak(config, route, out, stats);
                }
                self.refuse(config, psn, (NakCode::RemoteAccess, Status::Flushed), host);
                Answered::Fatal
            }
        }
    }

    /// What acknowledgements say: as many credits as there are receives, the one in hand with them,
    /// since its message is not counted as done.
    fn acknowledgement(&self, host: &impl Host) -> Syndrome {
        let in_hand = u32::from(matches!(self.message, Message::Send { .. }));
        match host.receives() {
            Some(receives) => Syndrome::ack_with(receives.saturating_add(in_hand)),
            None => Syndrome::ACK_WITHOUT_CREDITS,
        }
    }

    fn transmit_nak(
        &mut self,
        config: &Config,
        route: &Route,
        out: &mut (impl Egress + ?Sized),
        stats: &mut Stats,
    ) -> Answered {
        let Some((psn, syndrome)) = self.nak else {
            return Answered::Idle;
        };
        let aeth = Some((syndrome, self.msn));
        let headers = answer(config, Opcode::RC_ACKNOWLEDGE, psn, aeth, 0);
        let Emitted::Sent(bytes) = route.emit_bare(out, &headers) else {
            return Answered::NoRoom;
        };
        stats.sent(bytes);
        match syndrome {
            Syndrome::RnrNak { .. } => stats.rnr_naks_sent += 1,
            Syndrome::Nak(NakCode::PsnSequence) => stats.sequence_naks_sent += 1,
            _ => {}
        }
        self.nak = None;
        Answered::Sent(0)
    }
}

/// Headers of a response.
fn answer(
    config: &Config,
    opcode: Opcode,
    psn: Psn,
    aeth: Option<(Syndrome, u32)>,
    payload: u32,
) -> Headers {
    let bth = Bth {
        opcode,
        mig_req: true,
        pkey: config.pkey,
        dest_qp: config.dest_qpn,
        psn,
        ..Bth::default()
    };
    let mut headers = Headers::new(&bth, payload as usize);
    if let Some((syndrome, msn)) = aeth {
        headers.put(&Aeth { syndrome, msn }.to_bytes());
    }
    headers
}

/// A completion of a receive with nothing particular.
fn received(config: &Config, wr_id: u64, opcode: WorkOpcode) -> Completion {
    Completion {
        wr_id,
        status: Status::Success,
        opcode,
        qpn: config.qpn,
        byte_len: 0,
        extra: Extra::None,
        src_qp: Qpn::default(),
        route: 0,
        solicited: false,
        vendor_err: VendorError::None,
        ticks: 0,
    }
}
