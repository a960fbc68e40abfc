//! A QP as the engine holds it: the hot part, the flow to its peer, and what is seldom looked at.

use super::ending::Ending;
use super::in_vain::InVain;
use super::requests::PostingOrder;
use super::responses::ResponseList;
use super::routes::OwnRoutes;
use super::tenants::Tenant;
use crate::error::VerbsError;
use crate::queue::{RecvQueue, SendCursor, SendQueue, Size};
use crate::ring::RingMemory;
use crate::slab::NONE;
use crate::state::{QpState, QpType};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use trunkline_conn::mem::{Access, PdId};
use trunkline_conn::work::{Request, SendFlags, Status};
use trunkline_wire::{Gid, Psn, Qpn};

/// What a QP is made with (`ibv_create_qp(3)`).
#[derive(Clone, Copy, Debug)]
pub struct QpInit {
    /// Protection domain of its buffers and of what peers reach through it.
    pub pd: PdId,
    /// Its kind.
    pub kind: QpType,
    /// CQ of its send requests.
    pub send_cq: u32,
    /// CQ of its receives.
    pub recv_cq: u32,
    /// Where its receives come from, instead of its own queue.
    pub srq: Option<u32>,
    /// Most send requests outstanding.
    pub max_send_wr: u32,
    /// Most receive requests outstanding.
    pub max_recv_wr: u32,
    /// Most scatter-gather elements of a send request, up to 16.
    pub max_send_sge: u32,
    /// Most scatter-gather elements of a receive request, up to 16.
    pub max_recv_sge: u32,
    /// Most inline bytes.
    pub max_inline: u32,
    /// Every send request gets a completion, signalled or not.
    pub signal_all: bool,
    /// With an SRQ, the last of its completions is one with [`LAST_WQE`].
    pub complete_last_wqe: bool,
    /// Who it belongs to. Its flows share connections with those of other tenants by weight.
    pub tenant: Tenant,
}

/// Cookie of the completion that tells, in order with others, what
/// [`QpEvent::LastWqeReached`](trunkline_conn::host::QpEvent::LastWqeReached) tells beside them.
pub const LAST_WQE: u64 = u64::MAX;

/// Where a QP will be: its index, and the number that follows from it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Place {
    pub(crate) index: u32,
    pub(crate) qpn: Qpn,
}

impl Place {
    /// That of a QP whose engine is in another process, where the program's half calls it `index`.
    pub const fn elsewhere(index: u32, qpn: Qpn) -> Self {
        Self { index, qpn }
    }
}

/// The half of a QP that its program holds too.
#[derive(Debug)]
pub struct QpQueues<W> {
    /// Number of the QP.
    pub qpn: Qpn,
    /// Its index: the bit of its doorbell and its row of the mapping.
    pub index: u32,
    /// Indices of the CQs that its requests and its receives complete into: beside what is read for
    /// each completion anyway.
    pub(crate) cqs: [u32; 2],
    /// Index of the SRQ that its receives come from, here for the same reason; [`NONE`]: they are
    /// its own.
    pub(crate) srq: u32,
    /// Work to send.
    pub send: SendQueue<W>,
    /// Room to receive; `None` with an SRQ.
    pub receive: Option<RecvQueue<W>>,
    /// [`QpState`], as its program may read it.
    pub(super) state: AtomicU8,
}

impl<W: RingMemory> QpQueues<W> {
    /// The queues of a QP in the RESET state, at the place that `place` gives out once its sizes
    /// are known to be allowed.
    ///
    /// # Errors
    /// Sizes out of range; that of `place`.
    pub fn new<E: From<VerbsError>>(
        init: &QpInit,
        place: impl FnOnce() -> Result<Place, E>,
    ) -> Result<Self, E> {
        let datagrams = init.kind == QpType::Ud;
        let (wr, sge) = (init.max_send_wr, init.max_send_sge);
        let send = SendQueue::new(Size::send(wr, sge, init.max_inline, datagrams)?);
        let receive = match init.srq {
            Some(_) => None,
            None => {
                let size = Size::receive(init.max_recv_wr, init.max_recv_sge)?;
                Some(RecvQueue::new(size))
            }
        };
        let Place { index, qpn } = place()?;
        Ok(Self {
            qpn,
            index,
            cqs: [init.send_cq, init.recv_cq],
            srq: init.srq.unwrap_or(NONE),
            send,
            receive,
            state: AtomicU8::new(QpState::Reset as u8),
        })
    }

    /// Its state at the moment.
    pub fn state(&self) -> QpState {
        let value = self.state.load(Ordering::SeqCst);
        QpState::from_value(value).expect("only the engine writes it")
    }

    /// Its state changes; a program in another process sees it in the rings that it has.
    pub fn set_state(&self, state: QpState) {
        self.state.store(state as u8, Ordering::SeqCst);
        self.send.show(state);
        if let Some(queue) = &self.receive {
            queue.show(state);
        }
    }

    /// The state that the engine shows in a ring; `None`: there is no ring yet. For the half of a
    /// program in another process, whose own state is what it last asked for.
    pub fn shown_state(&self) -> Option<QpState> {
        let received = || self.receive.as_ref()?.queue.shown();
        self.send.queue.shown().or_else(received)
    }

    /// As [`is_flushing`](Self::is_flushing), for the half of a program in another process.
    pub fn shows_error(&self) -> bool {
        std::sync::atomic::fence(Ordering::SeqCst);
        self.shown_state() == Some(QpState::Error)
    }

    /// Gives the send queue the memory of its ring, as [`SendQueue::begin`], and shows the state
    /// there.
    ///
    /// # Panics
    /// The memory has another number of words than the queue's size says.
    pub fn begin_send(&self, memory: W) -> bool {
        let began = self.send.begin(memory);
        self.send.show(self.state());
        began
    }

    /// The same for the receive queue; `false` where receives come from an SRQ, too.
    ///
    /// # Panics
    /// As [`begin_send`](Self::begin_send).
    pub fn begin_receive(&self, memory: W) -> bool {
        let Some(queue) = &self.receive else {
            return false;
        };
        let began = queue.begin(memory);
        queue.show(self.state());
        began
    }

    /// Whether send requests are taken: in RTS and while draining, and in error, where they are
    /// flushed.
    ///
    /// # Errors
    /// [`VerbsError::WrongState`]
    pub fn check_send_state(&self) -> Result<(), VerbsError> {
        match self.state() {
            state if state.takes_sends() => Ok(()),
            state => Err(VerbsError::WrongState {
                qpn: self.qpn.get(),
                state,
            }),
        }
    }

    /// The receive queue, if requests are taken: from INIT on.
    ///
    /// # Errors
    /// [`VerbsError::WrongState`], or [`VerbsError::HasSrq`].
    pub fn check_recv_state(&self) -> Result<&RecvQueue<W>, VerbsError> {
        let Some(queue) = &self.receive else {
            let qpn = self.qpn.get();
            return Err(VerbsError::HasSrq { qpn });
        };
        match self.state() {
            state if state.takes_receives() => Ok(queue),
            state => Err(VerbsError::WrongState {
                qpn: self.qpn.get(),
                state,
            }),
        }
    }

    /// Whether what is posted is flushed: its doorbell must be rung then, for receives too. Look
    /// after posting: the state changes before the engine flushes.
    pub fn is_flushing(&self) -> bool {
        std::sync::atomic::fence(Ordering::SeqCst);
        self.state() == QpState::Error
    }
}

/// Hot state of a QP.
#[derive(Debug)]
pub(crate) struct Qp<W> {
    pub(crate) queues: Arc<QpQueues<W>>,
    pub(crate) cursor: SendCursor,
    pub(crate) order: PostingOrder,
    pub(crate) pd: PdId,
    pub(crate) state: QpState,
    pub(crate) signal_all: bool,
    pub(crate) tenant: Tenant,
    pub(crate) wire: Wire,
}

impl<W: RingMemory> Qp<W> {
    /// Whether there is something in its send queue, be it an error.
    #[inline]
    pub(crate) fn has_posted(&self) -> bool {
        self.queues.send.has_entry(&self.cursor)
    }

    /// Whether its program wants to hear that a request ended so.
    #[inline]
    pub(crate) fn asked_for(&self, request: &Request, status: Status) -> bool {
        status != Status::Success || self.signal_all || request.flags.contains(SendFlags::SIGNALED)
    }
}

/// What carries a QP's packets: 8 bytes, so that [`Qp`] stays small.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Wire {
    /// Not connected yet.
    None,
    /// Connected, and the peer is being asked what it is: the QP's link in the list of those that
    /// wait for it.
    Undecided(u32),
    /// Shared connections: the QP's own flow.
    Shared(u32),
    /// Shared connections: the routes of an app-managed QP.
    Routes,
    /// An IBTA connection of its own.
    Ibta(u32),
}

/// Number of the first message between two QPs: few before the numbers wrap, so that every QP meets
/// that, and no comparison can forget it.
pub const FIRST_MSN: u32 = u32::MAX - 15;

/// One direction-pair between a local QP and a remote one, over whatever connection it is bound to.
///
/// An ordinary QP has one; an app-managed QP has one for each remote QP it addresses.
#[derive(Debug, Eq, PartialEq)]
#[cfg_attr(test, derive(Clone, Hash))]
pub(crate) struct Flow {
    pub(crate) qp: u32,
    pub(crate) conn: u32,
    /// Its link in its lane, with those of its tenant on its connection that have something to
    /// send; `NONE` while it has nothing.
    pub(crate) runnable_link: u32,
    /// Its link in the list of flows with an answer or a BIND to send.
    pub(crate) control_link: u32,
    pub(crate) remote: Qpn,
    pub(crate) flags: Flags,
    pub(crate) deficit: i32,
    /// Incarnation of our QP, and the one of the peer's that we know of: 0 before it was heard.
    pub(crate) generation: u32,
    pub(crate) remote_generation: u32,
    /// Replay epoch of what we send and of what we receive.
    pub(crate) replay_epoch: u8,
    pub(crate) remote_replay_epoch: u8,
    /// How often the peer was asked again whether it is ready for `acked_msn`.
    pub(crate) rnr_tries: u8,
    /// READs and atomics before the request that is sent next, and not completed.
    pub(crate) reads_out: u8,
    pub(super) in_vain: InVain,
    /// BINDs said since the flow was bound last, or had nothing to send.
    pub(crate) asks: u8,
    pub(crate) ending: Ending,
    /// Of a QP's own flow: its doorbell has rung since its send queue was found empty, which need
    /// not be looked at before.
    pub(crate) rung: bool,
    /// Its clock, while that runs.
    pub(crate) watch: u32,

    // Requester: requests in MSN order, linked through the slab.
    pub(crate) next_msn: u32,
    pub(crate) acked_msn: u32,
    pub(crate) head: u32,
    pub(crate) tail: u32,
    /// Request being sent, and how much of it has been.
    pub(crate) sending: u32,
    pub(crate) sent_bytes: u32,

    // Responder.
    pub(crate) expected_msn: u32,
    /// Message being put together.
    pub(crate) assembly: u32,
    /// Packets that wait for their turn.
    pub(crate) staged: u32,
    /// Responses being sent or waiting for their acknowledgement.
    pub(crate) responses: ResponseList,
    pub(crate) answer: Answer,
}

/// What the peer has to be told about the message `expected_msn`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[cfg_attr(test, derive(Hash))]
#[repr(u8)]
pub(crate) enum Answer {
    /// All before it are done.
    Ack,
    /// Not now: RNR timer code.
    Rnr(u8),
    /// Never: NAK code.
    Nak(u8),
    /// All before it are done, and nothing else will be: the QP has left in order. It is told as
    /// the end of the flow.
    Left,
}

/// Flags of a [`Flow`].
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[cfg_attr(test, derive(Hash))]
pub(crate) struct Flags(u16);

impl Flags {
    /// The peer was not ready for `acked_msn`, and has not said yet that it is: only that message
    /// goes. All that are outstanding, again after each pause, would crowd out other flows.
    pub(crate) const PROBING: Self = Self(1 << 0);
    /// It is over: only its slot is still there.
    pub(crate) const ENDED: Self = Self(1 << 1);
    /// The peer has to be told about its requests.
    pub(crate) const ANSWER_DUE: Self = Self(1 << 2);
    /// A BIND has to go out.
    pub(crate) const BIND_DUE: Self = Self(1 << 3);
    /// A BOUND has to go out.
    pub(crate) const BOUND_DUE: Self = Self(1 << 4);
    /// The peer accepted our BIND, and with it the present replay epoch.
    pub(crate) const BOUND: Self = Self(1 << 5);
    /// We accepted the peer's BIND.
    pub(crate) const PEER_BOUND: Self = Self(1 << 6);
    /// A receiver-not-ready pause is on.
    pub(crate) const RNR_WAIT: Self = Self(1 << 7);
    /// We refused `expected_msn`; what follows in this replay epoch is discarded.
    pub(crate) const REFUSED: Self = Self(1 << 8);
    /// No new message until all earlier ones are done: the flow is moving.
    pub(crate) const QUIESCING: Self = Self(1 << 9);
    /// Its connection died and no other is there yet.
    pub(crate) const STRANDED: Self = Self(1 << 10);
    /// Sending stopped at a request that failed locally.
    pub(crate) const HALTED: Self = Self(1 << 11);
    /// The QP was told that the peer talks to it.
    pub(crate) const ESTABLISHED: Self = Self(1 << 12);
    /// The incarnation of the peer's QP that we know of is gone.
    pub(crate) const UNBOUND: Self = Self(1 << 13);
    /// The incarnation of the peer's QP that we know of has accepted a BIND of ours, in whichever
    /// replay epoch, and nothing says that it is gone.
    pub(crate) const AGREED: Self = Self(1 << 14);
    /// Responses went down with a connection: the peer has to ask again.
    pub(crate) const LOST: Self = Self(1 << 15);

    /// Whether it is set; of several, whether one of them is.
    pub(crate) const fn has(self, flag: Self) -> bool {
        self.0 & flag.0 != 0
    }

    /// These, and those.
    pub(crate) const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether none is set but some of these.
    pub(crate) fn is_of(self, flags: &[Self]) -> bool {
        flags.iter().fold(self.0, |left, flag| left & !flag.0) == 0
    }

    pub(crate) const fn set(&mut self, flag: Self) {
        self.0 |= flag.0;
    }

    pub(crate) const fn clear(&mut self, flag: Self) {
        self.0 &= !flag.0;
    }
}

impl Flow {
    pub(crate) const fn new(qp: u32, conn: u32, remote: Qpn, generation: u32) -> Self {
        Self {
            qp,
            conn,
            runnable_link: NONE,
            control_link: NONE,
            remote,
            flags: Flags(0),
            deficit: 0,
            generation,
            remote_generation: 0,
            replay_epoch: 0,
            remote_replay_epoch: 0,
            rnr_tries: 0,
            reads_out: 0,
            in_vain: InVain::NONE,
            asks: 0,
            ending: Ending::No,
            rung: false,
            watch: NONE,
            next_msn: FIRST_MSN,
            acked_msn: FIRST_MSN,
            head: NONE,
            tail: NONE,
            sending: NONE,
            sent_bytes: 0,
            expected_msn: FIRST_MSN,
            assembly: NONE,
            staged: NONE,
            responses: ResponseList::EMPTY,
            answer: Answer::Ack,
        }
    }

    /// Whether an incarnation of the peer's QP is known.
    pub(crate) const fn has_heard(&self) -> bool {
        self.remote_generation != 0
    }

    /// Generation of the binding as packets to the peer carry it.
    pub(crate) const fn sent_generation(&self) -> u16 {
        binding(self.generation, self.remote_generation)
    }

    /// Generation of the binding as packets of the peer carry it.
    pub(crate) const fn received_generation(&self) -> u16 {
        binding(self.remote_generation, self.generation)
    }
}

/// Generation of the binding of two QPs, from those of the QPs. It tells packets that an earlier
/// incarnation of either sent, or was sent. Packets do not live for 2^16 lives of a QP.
const fn binding(source: u32, dest: u32) -> u16 {
    (source as u16).wrapping_add((dest as u16).swap_bytes())
}

// DESIGN 4.2, invariant 6: the hot state of a QP takes at most two cache lines.
const _: () =
    assert!(size_of::<Qp<Arc<[std::sync::atomic::AtomicU64]>>>() + size_of::<Flow>() <= 128);

/// Attributes of a QP that its packets seldom need.
#[derive(Debug)]
pub(crate) struct Cold {
    pub(crate) kind: QpType,
    pub(crate) attributes: Attributes,
    /// In SQD, and the program has not been told that all is done.
    pub(crate) draining: bool,
    /// Its program chose its connection, which still stands.
    pub(crate) pinned: bool,
    /// Its last completion says so.
    pub(crate) complete_last_wqe: bool,
    /// Routes of an app-managed QP, if it has any.
    pub(crate) routes: Option<Box<OwnRoutes>>,
}

impl Cold {
    /// Rights of the peer: none before the program has given some.
    #[inline]
    pub(crate) fn access(&self) -> Access {
        self.attributes.access.unwrap_or(Access::LOCAL_READ)
    }
}

/// Attributes of a connected QP (`ibv_modify_qp(3)`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Attributes {
    /// GID of the peer.
    pub remote: Gid,
    /// QP of the peer.
    pub dest_qpn: Qpn,
    /// Rights of the peer (RC, UC), where a step to RTR or RTS changes them; `None`, the default,
    /// leaves those that the QP has. A query gives those.
    pub access: Option<Access>,
    /// PSN expected first.
    pub rq_psn: Psn,
    /// PSN sent first.
    pub sq_psn: Psn,
    /// Path MTU in bytes: 256, 512, 1024 (the default), 2048 or 4096. Shared connections use
    /// what the path carries.
    pub path_mtu: u16,
    /// ACK timeout exponent: 4.096 us * 2^n; 0 waits for ever, on shared connections until the peer
    /// or the connection is gone. There it says how long the QP waits for a peer that is silent or
    /// whose QP is not ready, at least the grace for
    /// failover. 14 by default: 67 ms.
    pub timeout: u8,
    /// Retries after a timeout, 0 to 7, which is the default.
    pub retry_count: u8,
    /// Retries after receiver-not-ready, 0 to 6; 7 retries for ever, and is the default.
    pub rnr_retry: u8,
    /// Code of the pause we ask for when not ready, 0 to 31; 12 by default: 0.64 ms.
    pub min_rnr_timer: u8,
    /// READs and atomics we may have outstanding; 16 by default.
    pub max_rd_atomic: u8,
    /// READs and atomics the peer may have outstanding; 16 by default.
    pub max_dest_rd_atomic: u8,
    /// Traffic class of its packets, where it has a connection of its own. The node sets the two
    /// lowest bits, ECN, whatever they are here.
    pub traffic_class: u8,
    /// Flow label of its packets (`grh.flow_label`), 0 to 0xf_ffff, where it has a connection of
    /// its own over IPv6; 0 leaves it to the system, and so do shared connections.
    pub flow_label: u32,
    /// Hop limit of its packets (`grh.hop_limit`), the TTL of IPv4, where it has a connection of
    /// its own; 0 leaves it to the system, and so do shared connections.
    pub hop_limit: u8,
    /// Service level, 0 to 7 (`sl`). It has no effect: RoCEv2 tells classes of packets apart by
    /// their traffic class.
    pub service_level: u8,
    /// Q_Key (UD).
    pub qkey: u32,
}

impl Attributes {
    /// What `path_mtu` may be, in bytes: the values of `enum ibv_mtu` in their order.
    pub const PATH_MTUS: [u16; 5] = [256, 512, 1024, 2048, 4096];

    /// The most that `max_rd_atomic` and `max_dest_rd_atomic` may be.
    pub const MAX_RD_ATOMIC: u8 = u8::MAX;

    /// The highest service level: there are as many as priorities of Ethernet frames.
    pub const MAX_SERVICE_LEVEL: u8 = 7;
}

impl Default for Attributes {
    fn default() -> Self {
        Self {
            remote: Gid::default(),
            dest_qpn: Qpn::default(),
            access: None,
            rq_psn: Psn::default(),
            sq_psn: Psn::default(),
            path_mtu: 1024,
            timeout: 14,
            retry_count: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 0,
            service_level: 0,
            qkey: 0,
        }
    }
}
