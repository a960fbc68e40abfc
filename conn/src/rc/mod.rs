//! The InfiniBand reliable connection, as every RoCEv2 peer speaks it (IBTA Vol 1, 9.7).
//!
//! ```text
//!  post_send -> requester -> poll_transmit  ~~~>  handle_packet -> responder -> Host
//!     Host  <- (answers)  <- handle_packet  <~~~  poll_transmit <- (ACK, NAK, data)
//! ```
//!
//! A [`ReliableConnection`] is the protocol half of one QP. After
//! [`post_send`](ReliableConnection::post_send),
//! [`handle_packet`](ReliableConnection::handle_packet) or
//! [`handle_timeout`](ReliableConnection::handle_timeout) call
//! [`poll_transmit`](ReliableConnection::poll_transmit) until it builds no packet, then re-arm a
//! timer with [`poll_timeout`](ReliableConnection::poll_timeout).
//!
//! Decisions where IBTA leaves room or peers differ: credits are granted where the host counts its
//! receives, and those of the peer are obeyed from the first message on; a request that
//! the QP's own rights forbid, or that needs more READ and atomic resources than there are, is an
//! invalid request; duplicates of SENDs and WRITEs are acknowledged with their own PSN; every last
//! packet asks for an acknowledgement, and four times per window one of a long message, at least
//! every 64th; MigReq is sent as 1 and ignored; a retry counts only while there is no progress.
//!
//! Queues are allocated once, in [`ReliableConnection::new`]; requests with many scatter-gather
//! elements bring their own memory.

pub(crate) mod build;
mod config;
mod dcqcn;
mod requester;
mod responder;
pub(crate) mod segment;
mod stats;
mod timers;
mod window;

pub(crate) use config::pkeys_match;
pub use config::{Config, Mtu};
pub use dcqcn::RateLimit;
pub(crate) use requester::put_operation;
pub use stats::{Dropped, Stats};
pub use timers::ack_timeout_ns;

use crate::egress::{Egress, Transmitted};
use crate::host::Host;
use crate::time::Instant;
use crate::work::{Request, Status};
use build::{Emitted, Headers, Route};
use dcqcn::Notifier;
use requester::{Fatal, Requester, Step};
use responder::{Answered, Responder};
use trunkline_wire::{Bth, Cnp, Opcode, Operation, Packet, Transport};

/// Whether a connection still works.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum State {
    /// Ready to receive and to send.
    Ready,
    /// UC and UD: a request failed here, so nothing is sent until the program says so (SQE).
    /// Receiving goes on.
    SendError,
    /// In error: it only says what it still has to say to its peer.
    Error,
}

/// A reliable connection: the protocol half of an RC QP. See the [module](self).
#[derive(Debug)]
pub struct ReliableConnection {
    config: Config,
    route: Route,
    state: State,
    /// Whose turn it is when READ responses and requests compete.
    responder_first: bool,
    /// Something would have left but for the rate.
    held_back: bool,
    /// A packet of the peer was accepted.
    heard: bool,
    notifier: Notifier,
    rate: RateLimit,
    requester: Requester,
    responder: Responder,
    stats: Stats,
}

/// What a connection takes beside its queues.
const _: () = assert!(size_of::<ReliableConnection>() <= 1024);

impl ReliableConnection {
    /// A connection in both RTR and RTS: requests of the peer are answered and own ones sent.
    ///
    /// # Panics
    /// The addresses of the path are of different families.
    pub fn new(config: Config) -> Self {
        Self {
            route: Route::new(config.path),
            state: State::Ready,
            responder_first: true,
            held_back: false,
            heard: false,
            notifier: Notifier::default(),
            rate: RateLimit::new(config.link_rate),
            requester: Requester::new(&config),
            responder: Responder::new(&config),
            stats: Stats::default(),
            config,
        }
    }

    /// The QP goes to RTS: what `config` says of sending holds from now on, whatever
    /// [`new`](Self::new) was told (`ibv_modify_qp(3)`: PSN, timeout, retries and READs outstanding
    /// come with that step).
    ///
    /// # Panics
    /// A request was posted before.
    pub fn start_sending(&mut self, config: &Config) {
        assert!(self.requester.len() == 0, "requests are for QPs in RTS");
        self.config = Config {
            sq_psn: config.sq_psn,
            timeout: config.timeout,
            retry_cnt: config.retry_cnt,
            rnr_retry: config.rnr_retry,
            max_rd_atomic: config.max_rd_atomic,
            ..self.config
        };
        self.requester = Requester::new(&self.config);
    }

    /// Rights, the time to wait when not ready, and, where no request is outstanding, timeout,
    /// retries and READs outstanding are those of `config` from now on.
    ///
    /// # Panics
    /// A request is outstanding and its terms change.
    pub fn change(&mut self, config: &Config) {
        let terms = |config: &Config| {
            let retries = (config.retry_cnt, config.rnr_retry);
            (config.timeout, retries, config.max_rd_atomic)
        };
        let renewed = terms(config) != terms(&self.config);
        assert!(
            !renewed || self.requester.len() == 0,
            "a drained QP has no requests"
        );
        self.config = Config {
            access: config.access,
            min_rnr_timer: config.min_rnr_timer,
            max_dest_rd_atomic: config.max_dest_rd_atomic,
            timeout: config.timeout,
            retry_cnt: config.retry_cnt,
            rnr_retry: config.rnr_retry,
            max_rd_atomic: config.max_rd_atomic,
            ..self.config
        };
        if renewed {
            self.requester.timers = timers::Timers::new(&self.config);
        }
    }

    /// Queues a request.
    ///
    /// # Errors
    /// The queue is full, or the connection is in error: the request comes back.
    ///
    /// # Panics
    /// The request is longer than [`MAX_MESSAGE`](crate::work::MAX_MESSAGE).
    #[expect(
        clippy::result_large_err,
        reason = "what does not fit comes back whole, as it was given"
    )]
    pub fn post_send(&mut self, request: Request) -> Result<(), Request> {
        match self.state {
            State::Ready => self.requester.post(&self.config, request),
            State::SendError | State::Error => Err(request),
        }
    }

    /// Acts on a packet whose ICRC is right, and which came from the peer's address. `ce_marked`:
    /// a switch on its way was congested.
    ///
    /// # Errors
    /// Why it was dropped; counted already. The connection may have gone to error by it.
    pub fn handle_packet(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        ce_marked: bool,
        host: &mut impl Host,
    ) -> Result<(), Dropped> {
        let verdict = self.judge(now, packet, ce_marked, host);
        self.heard |= verdict.is_ok();
        self.stats.judged(verdict)
    }

    fn judge(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        ce_marked: bool,
        host: &mut impl Host,
    ) -> Result<(), Dropped> {
        let opcode = packet.opcode();
        if packet.bth.dest_qp != self.config.qpn {
            return Err(Dropped::WrongQp);
        }
        if self.state == State::Error {
            return Err(Dropped::QpInError);
        }
        if opcode.transport() == Transport::Cnp {
            self.stats.cnps_received += 1;
            self.rate.on_cnp(now);
            return Ok(());
        }
        if !pkeys_match(packet.bth.pkey, self.config.pkey) {
            return Err(Dropped::WrongPartition);
        }
        if opcode.transport() != Transport::Rc {
            return Err(Dropped::WrongTransport);
        }
        if ce_marked {
            self.stats.marked += 1;
            self.notifier.on_marked(now);
        }
        match opcode.operation() {
            Some(Operation::Acknowledge | Operation::ReadResponse | Operation::AtomicResponse) => {
                let (config, stats) = (&self.config, &mut self.stats);
                let outcome = self.requester.handle(config, now, packet, host, stats);
                if let Some(Fatal(status)) = outcome.fatal.or_else(|| self.requester.fault()) {
                    self.abort(host, status);
                }
                outcome.verdict
            }
            _ => {
                let (config, stats) = (&self.config, &mut self.stats);
                let judged = self.responder.handle(config, packet, host, stats);
                if judged.fatal {
                    self.enter_error(host, Status::Flushed);
                }
                judged.verdict
            }
        }
    }

    /// Acts on timers that have run out by `now`. Early or repeated calls are harmless.
    pub fn handle_timeout(&mut self, now: Instant, host: &mut impl Host) {
        if self.state == State::Error {
            return;
        }
        if let Some(Fatal(status)) = self.requester.handle_timeout(now, &mut self.stats) {
            self.abort(host, status);
        }
        self.held_back &= self.rate.next_send() > now;
    }

    /// The link of this host works again, after it did not: what the peer has not answered goes
    /// again at the next [`handle_timeout`](Self::handle_timeout), which is due.
    pub fn link_up(&mut self, now: Instant) {
        self.requester.timers.begin_anew(&self.config, now);
    }

    /// Builds one datagram.
    pub fn poll_transmit(
        &mut self,
        now: Instant,
        host: &mut impl Host,
        out: &mut (impl Egress + ?Sized),
    ) -> Transmitted {
        if self.state == State::Error {
            return self.transmit_response(now, host, out);
        }
        if self.notifier.is_pending() {
            return self.transmit_cnp(now, out);
        }
        let bulk = self.responder.is_bulk();
        if !self.responder.is_idle() && !bulk {
            return self.transmit_response(now, host, out);
        }
        let wants = self.requester.wants_to_send(&self.config) || self.requester.fault().is_some();
        if !bulk && !wants {
            return Transmitted::Nothing;
        }
        if !self.rate.may_send(now) {
            self.held_back = true;
            return Transmitted::Nothing;
        }
        self.held_back = false;
        let respond = bulk && (self.responder_first || !wants);
        self.responder_first = !respond;
        if respond {
            return self.transmit_response(now, host, out);
        }
        match self.transmit_request(now, host, out) {
            // A request that cannot be sent leaves the way to responses, not the other way round:
            // a response is there whenever it is its turn.
            Transmitted::Nothing if bulk => self.transmit_response(now, host, out),
            transmitted => transmitted,
        }
    }

    fn transmit_response(
        &mut self,
        now: Instant,
        host: &mut impl Host,
        out: &mut (impl Egress + ?Sized),
    ) -> Transmitted {
        loop {
            let (config, stats) = (&self.config, &mut self.stats);
            match self
                .responder
                .transmit(config, &self.route, host, out, stats)
            {
                Answered::Sent(bytes) => {
                    self.rate.on_sent(now, bytes.into());
                    return Transmitted::Packet;
                }
                Answered::Idle => return Transmitted::Nothing,
                Answered::NoRoom => return Transmitted::NoRoom,
                Answered::Fatal => self.enter_error(host, Status::Flushed),
            }
        }
    }

    fn transmit_request(
        &mut self,
        now: Instant,
        host: &mut impl Host,
        out: &mut (impl Egress + ?Sized),
    ) -> Transmitted {
        let (config, stats) = (&self.config, &mut self.stats);
        let pace = (now, self.rate.rate().is_some());
        match self
            .requester
            .transmit(config, &self.route, pace, host, out, stats)
        {
            Step::Sent(bytes) => {
                self.rate.on_sent(now, bytes.into());
                Transmitted::Packet
            }
            Step::Idle => Transmitted::Nothing,
            Step::NoRoom => Transmitted::NoRoom,
            Step::Fatal(Fatal(status)) => {
                self.abort(host, status);
                Transmitted::Nothing
            }
        }
    }

    fn transmit_cnp(&mut self, now: Instant, out: &mut (impl Egress + ?Sized)) -> Transmitted {
        let bth = Bth {
            opcode: Opcode::CNP,
            mig_req: true,
            pkey: self.config.pkey,
            becn: true,
            dest_qp: self.config.dest_qpn,
            ..Bth::default()
        };
        let mut headers = Headers::new(&bth, 0);
        headers.put(&Cnp::default().to_bytes());
        let Emitted::Sent(bytes) = self.route.emit_bare(out, &headers) else {
            return Transmitted::NoRoom;
        };
        self.notifier.on_sent(now);
        self.stats.sent(bytes);
        self.stats.cnps_sent += 1;
        Transmitted::Packet
    }

    /// When [`handle_timeout`](Self::handle_timeout), and after it
    /// [`poll_transmit`](Self::poll_transmit), should be called at the latest; may change with any
    /// other call.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.state == State::Error {
            return None;
        }
        let paced = self.held_back.then(|| self.rate.next_send());
        let timers = self.requester.timers.next();
        Instant::earliest([paced, timers])
    }

    /// Takes the connection to error at once and says nothing more to the peer: the oldest request
    /// ends with `status`, all others are flushed. The receive queue is the host's to flush.
    pub fn abort(&mut self, host: &mut impl Host, status: Status) {
        self.responder.abort(&self.config, host);
        self.enter_error(host, status);
    }

    /// As [`abort`](Self::abort), but what is to be said to the peer still is.
    fn enter_error(&mut self, host: &mut impl Host, status: Status) {
        self.requester.fail(host, status);
        self.state = State::Error;
    }

    /// Whether the peer has shown by a request or an answer that it speaks this protocol. Before,
    /// neither end can have executed anything for the other.
    pub const fn has_heard(&self) -> bool {
        self.heard
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

    /// Rate of its data in bytes per second, while the network is congested.
    pub fn rate(&self) -> Option<u64> {
        self.rate.rate()
    }

    /// Packets that may be under way now, and READ responses: so many each.
    pub const fn window(&self) -> u32 {
        self.requester.window()
    }

    /// Requests posted that have not ended.
    pub fn pending(&self) -> usize {
        self.requester.len()
    }

    /// Bytes of its state, its queues included.
    pub fn state_bytes(&self) -> usize {
        size_of::<Self>() + self.requester.heap_bytes() + self.responder.heap_bytes()
    }
}
