//! The requester: send requests on their way out (IBTA Vol 1, 9.7.2 and 9.7.5).
//!
//! ```text
//!  una        cursor          next_psn
//!   |-- head --|-- to resend --|            PSNs
//!   [ 0 | 1 | 2 | ..  started ][ waiting ]  queue
//! ```
//!
//! Only the head of the queue has partial progress: acknowledged packets of a SEND or WRITE,
//! responses of a READ. Everything is repeated from there (go-back-N): `cursor` goes back to `una`.
//! After silence that is one packet, until something comes: the peer may be slow, and what it is
//! asked for again it does again.
//!
//! A READ is asked for in *pieces* of [`Config::read_piece`] packets, each a READ request of its
//! own to the responder, which has an MSN, takes a READ resource, and is repeated from the packet
//! that was lost to its own end. MSNs are not looked at here: what is done, PSNs say.
//!
//! How much may be under way is the [`Window`]'s to say, of requests and of READ responses alike,
//! and of what is sent again, too.

mod answers;
mod credits;
mod early;
mod pieces;

use super::build::{self, Emitted, Headers, Route};
use super::config::Config;
use super::segment::{self, Family};
use super::stats::Stats;
use super::timers::Timers;
use super::window::Window;
use crate::egress::Egress;
use crate::host::Host;
use crate::mem::{Access, Memory};
use crate::time::Instant;
use crate::work::{Local, MAX_MESSAGE, Request, SendFlags, SendOp, Status};
use alloc::collections::VecDeque;
use credits::Credits;
use early::Early;
use pieces::Pieces;
use trunkline_wire::{Bth, Ieth, ImmDt, Psn};

pub(super) use answers::Fatal;

/// Packets after which an acknowledgement is asked for inside of a long message. What is sent again
/// asks sooner, at first with each packet, then half as often each time: a path may carry fewer at
/// once.
const ACK_EVERY: u32 = 64;
/// Acknowledgements that are asked for per window, so that it moves on while it is under way.
const ASKS_PER_WINDOW: u32 = 4;

/// A send request in the queue.
#[derive(Debug)]
struct Entry {
    request: Request,
    /// Of its first packet; meaningless before it is started.
    psn: Psn,
    /// PSNs it takes: its packets, or those of its response.
    packets: u32,
    /// How many of them are acknowledged, or have come.
    progress: u32,
    /// Of a READ.
    pieces: Pieces,
    /// It cannot go on: it ends so once it is the oldest.
    fault: Option<Status>,
}

#[derive(Debug)]
pub(super) struct Requester {
    queue: VecDeque<Entry>,
    capacity: usize,
    /// Entries with PSNs.
    started: usize,
    /// PSN after the last one ever sent.
    next_psn: Psn,
    /// What is sent next: an entry and a packet of it.
    cursor: usize,
    packet: u32,
    /// Pieces of READs, and atomics, that were asked for and not answered in full, and the PSNs
    /// they still wait for.
    reads: u32,
    read_psns: u32,
    unasked: u32,
    /// Nothing has come since the ACK timer ran out.
    probing: bool,
    /// Packets after which the next acknowledgement is asked for.
    ask_after: u32,
    /// Progress at which missing responses were last asked for again.
    implied: Option<Psn>,
    /// Answers that came before an earlier one, and how many did since there was progress.
    early: Early,
    overtook: u32,
    credits: Credits,
    window: Window,
    pub(super) timers: Timers,
}

/// What [`Requester::transmit`] did.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Step {
    /// Sent a packet with so many bytes of payload.
    Sent(u32),
    Idle,
    NoRoom,
    /// The oldest request cannot go on.
    Fatal(Fatal),
}

/// A packet to be sent.
#[derive(Clone, Copy, Debug)]
struct Next {
    psn: Psn,
    /// PSNs it stands for.
    span: u32,
    offset: u32,
    /// Bytes of payload.
    length: u32,
    /// Nothing of the request comes after it.
    last: bool,
    ack_req: bool,
}

impl Requester {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            // Grows as it is used: many connections are idle, and opening them is to be quick.
            queue: VecDeque::new(),
            capacity: config.send_capacity,
            started: 0,
            next_psn: config.sq_psn,
            cursor: 0,
            packet: 0,
            reads: 0,
            read_psns: 0,
            unasked: 0,
            probing: false,
            ask_after: ACK_EVERY,
            implied: None,
            early: Early::default(),
            overtook: 0,
            credits: Credits::new(config.flow_control),
            window: Window::new(config),
            timers: Timers::new(config),
        }
    }

    /// Bytes of the queue.
    pub(super) fn heap_bytes(&self) -> usize {
        self.queue.capacity() * size_of::<Entry>()
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(super) const fn window(&self) -> u32 {
        self.window.packets()
    }

    #[expect(
        clippy::result_large_err,
        reason = "what does not fit comes back whole, as it was given"
    )]
    pub(super) fn post(&mut self, config: &Config, request: Request) -> Result<(), Request> {
        assert!(
            request.length <= MAX_MESSAGE,
            "a request of {} bytes was not validated",
            request.length
        );
        if self.queue.len() >= self.capacity {
            return Err(request);
        }
        let packets = match request.op {
            SendOp::Atomic(..) => 1,
            _ => segment::packets(request.length, config.path_mtu.bytes()),
        };
        let answered = request.op.has_response_data();
        let unusable = matches!(request.op, SendOp::SendTo(_) | SendOp::Own(_))
            || answered && (config.max_rd_atomic == 0 || matches!(request.local, Local::Inline(_)));
        self.queue.push_back(Entry {
            request,
            psn: Psn::default(),
            packets,
            progress: 0,
            pieces: Pieces::default(),
            fault: unusable.then_some(Status::LocalQpOperation),
        });
        Ok(())
    }

    /// The oldest PSN that is not acknowledged.
    fn una(&self) -> Psn {
        match self.queue.front() {
            Some(head) if self.started > 0 => head.psn.advance(head.progress),
            _ => self.next_psn,
        }
    }

    /// PSNs sent and not acknowledged.
    fn outstanding(&self) -> u32 {
        segment::distance(self.una(), self.next_psn)
    }

    /// Whether something sent since the last retry waits for its answer.
    fn is_waiting(&self) -> bool {
        let Some(head) = self.queue.front() else {
            return false;
        };
        self.started > 0 && (self.cursor > 0 || self.packet > head.progress)
    }

    /// Whether there is something to send, but for the rate limit.
    pub(super) fn wants_to_send(&self, config: &Config) -> bool {
        !self.timers.is_rnr() && self.next(config, false).is_some()
    }

    /// How the oldest request fails, if it can go on no more.
    pub(super) fn fault(&self) -> Option<Fatal> {
        let status = self.queue.front()?.fault?;
        Some(Fatal(status))
    }

    /// The next packet. `paced`: packets are far apart, so that each asks for an acknowledgement
    /// before the timer of the first one runs out.
    fn next(&self, config: &Config, paced: bool) -> Option<Next> {
        let entry = self.queue.get(self.cursor)?;
        if entry.fault.is_some() || self.probing && self.is_waiting() {
            return None;
        }
        let first = self.cursor >= self.started;
        let psn = if first {
            self.next_psn
        } else {
            entry.psn.advance(self.packet)
        };
        let answered = entry.request.op.has_response_data();
        let span = match answered {
            true => self.piece(config, entry, psn),
            false => 1,
        };
        let fenced = first && entry.request.flags.contains(SendFlags::FENCE) && self.reads > 0;
        let starved = first && entry.request.op.consumes_receive() && self.is_starved();
        if fenced || starved || self.is_held(config, answered, psn, span) {
            return None;
        }
        let mtu = config.path_mtu.bytes();
        if answered {
            return Some(Next {
                psn,
                span,
                offset: self.packet * mtu,
                length: 0,
                last: self.packet + span == entry.packets,
                ack_req: true,
            });
        }
        let window = self.window.packets();
        if self.in_flight(psn) >= window {
            return None;
        }
        let (offset, length) = segment::part(entry.request.length, mtu, self.packet);
        let last = self.packet + 1 == entry.packets;
        // So one of those that fill a window has asked, be it narrowed by half since: it is no more
        // than once before another one that asks leaves, but where all is sent again.
        let ack_req =
            paced || last || self.unasked + 1 >= self.ask_after.min(window / ASKS_PER_WINDOW);
        Some(Next {
            psn,
            span: 1,
            offset,
            length,
            last,
            ack_req,
        })
    }

    /// Where the pieces of a READ end whose next packet has this PSN.
    fn pieces(&self, config: &Config, entry: &Entry, psn: Psn) -> Pieces {
        if psn != self.next_psn {
            return entry.pieces;
        }
        let length = config.read_piece(self.window.packets());
        entry.pieces.resized(entry.progress, self.packet, length)
    }

    /// PSNs of the next piece of a READ, which begins with this one.
    fn piece(&self, config: &Config, entry: &Entry, psn: Psn) -> u32 {
        let pieces = self.pieces(config, entry, psn);
        pieces.end(self.packet, entry.packets) - self.packet
    }

    /// Packets under way before the one with this PSN, but for READ responses. What is sent again
    /// waits for all before it.
    fn in_flight(&self, psn: Psn) -> u32 {
        let before = segment::distance(self.una(), psn);
        match psn == self.next_psn {
            true => before.saturating_sub(self.read_psns),
            false => before,
        }
    }

    /// Whether a packet of `span` PSNs has to wait for answers; `answered`: it asks for data.
    fn is_held(&self, config: &Config, answered: bool, psn: Psn, span: u32) -> bool {
        let window = self.window.packets();
        if psn != self.next_psn {
            let before = self.in_flight(psn);
            return answered && before > 0 && before + span > window;
        }
        let many = self.reads >= u32::from(config.max_rd_atomic)
            || self.reads > 0 && self.read_psns + span > window;
        answered && many || self.outstanding() + span > segment::MAX_OUTSTANDING
    }

    /// Whether the peer is not known to have a receive for one more message. While nothing is
    /// under way one leaves all the same: its answer says how many there are.
    fn is_starved(&self) -> bool {
        !self.credits.may_begin() && self.outstanding() > 0
    }

    /// Builds the next packet, if there is one.
    pub(super) fn transmit<H: Host>(
        &mut self,
        config: &Config,
        route: &Route,
        (now, paced): (Instant, bool),
        host: &mut H,
        out: &mut (impl Egress + ?Sized),
        stats: &mut Stats,
    ) -> Step {
        if let Some(fatal) = self.fault() {
            return Step::Fatal(fatal);
        }
        if self.timers.is_rnr() {
            return Step::Idle;
        }
        if self.outstanding() == 0 {
            self.window.rests(config, now);
        }
        let Some(next) = self.next(config, paced) else {
            return Step::Idle;
        };
        match self.emit(config, route, &next, host.memory(), out) {
            Emitted::NoRoom => Step::NoRoom,
            Emitted::Fault(_) => {
                self.queue[self.cursor].fault = Some(Status::LocalProtection);
                self.fault().map_or(Step::Idle, Step::Fatal)
            }
            Emitted::Sent(bytes) => {
                stats.sent(bytes);
                if next.psn != self.next_psn {
                    stats.retransmitted += 1;
                }
                self.sent(config, now, &next);
                Step::Sent(next.length)
            }
        }
    }

    fn emit(
        &self,
        config: &Config,
        route: &Route,
        next: &Next,
        memory: &impl Memory,
        out: &mut (impl Egress + ?Sized),
    ) -> Emitted {
        let entry = &self.queue[self.cursor];
        let request = &entry.request;
        let place = segment::position(self.packet, entry.packets);
        let bth = Bth {
            opcode: segment::opcode(Family::Rc, &request.op, place),
            solicited: next.last
                && request.op.consumes_receive()
                && request.flags.contains(SendFlags::SOLICITED),
            mig_req: true,
            pkey: config.pkey,
            dest_qp: config.dest_qpn,
            ack_req: next.ack_req,
            psn: next.psn,
            ..Bth::default()
        };
        let length = next.length as usize;
        let mut headers = Headers::new(&bth, length);
        match (&request.op, &request.local) {
            (SendOp::Read(remote), Local::Sges(sges)) => {
                if let Err(fault) = memory.check_local(config.pd, sges, Access::LOCAL_WRITE) {
                    return Emitted::Fault(fault);
                }
                let mut remote = *remote;
                remote.addr = remote.addr.wrapping_add(u64::from(next.offset));
                let rest = request.length - next.offset;
                let piece = next.span.saturating_mul(config.path_mtu.bytes());
                headers.put(&build::reth(&remote, rest.min(piece)));
                return route.emit_bare(out, &headers);
            }
            (SendOp::Atomic(remote, op), Local::Sges(sges)) => {
                if let Err(fault) = memory.check_local(config.pd, sges, Access::LOCAL_WRITE) {
                    return Emitted::Fault(fault);
                }
                headers.put(&build::atomic_eth(remote, *op));
                return route.emit_bare(out, &headers);
            }
            (op, _) => put_operation(&mut headers, op, place.starts(), next.last, request.length),
        }
        route.emit(out, &headers, length, |payload, crc| {
            build::gather(memory, config.pd, &request.local, next.offset, payload, crc)
        })
    }

    fn sent(&mut self, config: &Config, now: Instant, next: &Next) {
        let pieces = self.pieces(config, &self.queue[self.cursor], next.psn);
        let entry = &mut self.queue[self.cursor];
        let answered = entry.request.op.has_response_data();
        let first = self.cursor >= self.started;
        if first {
            entry.psn = next.psn;
            self.started += 1;
        }
        if next.psn == self.next_psn {
            self.next_psn = self.next_psn.advance(next.span);
            if answered {
                entry.pieces = pieces;
                self.reads += 1;
                self.read_psns += next.span;
            }
            if next.ack_req {
                let last = next.psn.advance(next.span - 1);
                self.window.asked(now, last);
            }
            if first || answered {
                self.credits.begin(entry.request.op.consumes_receive());
            }
        }
        if next.ack_req {
            self.unasked = 0;
            self.ask_after = ACK_EVERY.min(2 * self.ask_after);
        } else {
            self.unasked += 1;
        }
        if next.last {
            (self.cursor, self.packet) = (self.cursor + 1, 0);
        } else {
            self.packet += next.span;
        }
        self.timers.sent(config, now);
    }

    /// Takes the oldest request off the queue.
    fn pop(&mut self) -> Option<Request> {
        let entry = self.queue.pop_front()?;
        self.started = self.started.saturating_sub(1);
        match self.cursor.checked_sub(1) {
            Some(cursor) => self.cursor = cursor,
            None => self.packet = 0,
        }
        Some(entry.request)
    }

    /// The oldest request ends with `status`, all others are flushed.
    pub(super) fn fail(&mut self, host: &mut impl Host, status: Status) {
        let mut status = status;
        while let Some(request) = self.pop() {
            host.sent(request, status, 0);
            status = Status::Flushed;
        }
        (self.reads, self.read_psns) = (0, 0);
        self.early = Early::default();
        self.timers.stop();
    }

    /// Everything from the oldest unacknowledged packet on is sent again.
    fn go_back(&mut self) {
        self.cursor = 0;
        self.packet = match self.queue.front() {
            Some(head) if self.started > 0 => head.progress,
            _ => 0,
        };
        (self.unasked, self.ask_after) = (0, 1);
        self.probing = false;
        self.window.repeats();
        self.timers.stop_ack();
    }

    /// The ACK timer or that of an RNR NAK may have run out.
    pub(super) fn handle_timeout(&mut self, now: Instant, stats: &mut Stats) -> Option<Fatal> {
        self.timers.end_rnr(now);
        if self.timers.take_gap(now)
            && let Some(fatal) = self.ask_for_missing(stats)
        {
            return Some(fatal);
        }
        if !self.timers.ack_ran_out(now) {
            return None;
        }
        stats.timeouts += 1;
        self.window.timed_out(self.next_psn);
        self.implied = None;
        self.timers.double();
        let fatal = self.retry();
        self.probing = true;
        fatal
    }

    /// Goes back, if there are retries left.
    fn retry(&mut self) -> Option<Fatal> {
        if !self.timers.take_retry() {
            return Some(Fatal(Status::RetryExceeded));
        }
        self.go_back();
        None
    }
}

/// Headers of a packet of a SEND or WRITE.
pub(crate) fn put_operation(
    headers: &mut Headers,
    op: &SendOp,
    first: bool,
    last: bool,
    length: u32,
) {
    match op {
        SendOp::Write(remote) | SendOp::WriteImm(remote, _) if first => {
            headers.put(&build::reth(remote, length));
        }
        _ => {}
    }
    match op {
        SendOp::SendImm(value) | SendOp::WriteImm(_, value) if last => {
            headers.put(&ImmDt(*value).to_bytes());
        }
        SendOp::SendInvalidate(key) if last => headers.put(&Ieth(*key).to_bytes()),
        _ => {}
    }
}
