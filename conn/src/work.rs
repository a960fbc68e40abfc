//! Work requests and completions in the words of verbs: what an engine is handed and hands back.

use crate::mem::{Access, AtomicOp, PdId, Sge};
use core::ops::{BitOr, BitOrAssign};
use smallvec::SmallVec;
use trunkline_wire::{Gid, IpFields, Lkey, Qpn, Rkey};

/// Most scatter-gather elements of one work request.
pub const MAX_SGE: usize = 16;
/// Most bytes of an inline request.
pub const MAX_INLINE: usize = 256;
/// Most bytes of one message: 2^31, as InfiniBand has it.
pub const MAX_MESSAGE: u32 = 1 << 31;

/// What a send work request asks for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SendOp {
    /// `IBV_WR_SEND`
    Send,
    /// `IBV_WR_SEND_WITH_IMM`; the value as it appears on the wire, big-endian, read as a number.
    SendImm(u32),
    /// `IBV_WR_SEND_WITH_INV`
    SendInvalidate(Rkey),
    /// `IBV_WR_SEND` and `IBV_WR_SEND_WITH_IMM` of a UD QP, which names the receiver each time.
    SendTo(Datagram),
    /// `IBV_WR_RDMA_WRITE`
    Write(Remote),
    /// `IBV_WR_RDMA_WRITE_WITH_IMM`
    WriteImm(Remote, u32),
    /// `IBV_WR_RDMA_READ`
    Read(Remote),
    /// `IBV_WR_ATOMIC_CMP_AND_SWP` and `IBV_WR_ATOMIC_FETCH_AND_ADD`
    Atomic(Remote, AtomicOp),
    /// A change of rights to the QP's own memory. Nothing is sent.
    Own(OwnOp),
}

// Each request under way has one.
const _: () = assert!(size_of::<SendOp>() <= 48);

/// What a work request changes about memory of its own node. It takes effect when all requests of
/// its QP that were posted before have completed, and before any that follows is sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OwnOp {
    /// `IBV_WR_LOCAL_INV`: the key of a region or of a window of type 2 is taken away.
    Invalidate(Rkey),
    /// `IBV_WR_BIND_MW`: peers may use a part of a region by a new key of a window.
    BindMw(BindMw),
}

/// What a memory window is bound to (`bind_mw` of `struct ibv_send_wr`).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct BindMw {
    /// The key that the window has from then on: the high 24 bits say which window it is, the low 8
    /// bits are of the program's choice (`ibv_inc_rkey(3)`).
    pub rkey: Rkey,
    /// The region, which allows [`Access::MW_BIND`].
    pub lkey: Lkey,
    /// Address of the first byte, counted from the region's iova. Peers name the window by it, or,
    /// with [`Access::ZERO_BASED`], by offsets.
    pub addr: u64,
    /// Bytes. 0 unbinds a window of type 1.
    pub length: u64,
    /// Rights of peers: of [`Access::REMOTE_WRITE`], [`Access::REMOTE_READ`],
    /// [`Access::REMOTE_ATOMIC`] and [`Access::ZERO_BASED`].
    pub access: Access,
}

/// The key of the same window with the next tag (`ibv_inc_rkey(3)`).
pub const fn inc_rkey(rkey: Rkey) -> Rkey {
    Rkey(rkey.0 & !0xff | (rkey.0 as u8).wrapping_add(1) as u32)
}

impl SendOp {
    /// Whether the answer carries data back (READ and atomics), so that `max_rd_atomic` limits it.
    pub const fn has_response_data(&self) -> bool {
        matches!(self, Self::Read(_) | Self::Atomic(..))
    }

    /// Whether it takes a receive request at the peer.
    pub const fn consumes_receive(&self) -> bool {
        matches!(
            self,
            Self::Send
                | Self::SendImm(_)
                | Self::SendInvalidate(_)
                | Self::SendTo(_)
                | Self::WriteImm(..)
        )
    }
}

/// Who gets a datagram (`wr.ud` of `struct ibv_send_wr`), and what goes with it. It holds what its
/// address handle says, so that a request goes where its handle led when it was posted.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Datagram {
    /// The node that it goes to.
    pub remote: Gid,
    /// Traffic class of its packet.
    pub traffic_class: u8,
    /// Flow label and hop limit of its packet.
    pub ip: IpFields,
    /// Protection domain of the address handle.
    pub pd: PdId,
    /// Tells the domains of several nodes in one program apart.
    pub node: u32,
    /// The QP there.
    pub qpn: Qpn,
    /// Its Q_Key; with the highest bit set, that of the sending QP goes instead.
    pub qkey: u32,
    /// Immediate data, as on the wire, big-endian, read as a number.
    pub imm: Option<u32>,
}

/// Memory of the peer.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct Remote {
    /// Address of the first byte, counted from the iova of its region.
    pub addr: u64,
    /// Region that holds it.
    pub rkey: Rkey,
}

/// Flags of a send work request, with the bit values of `enum ibv_send_flags`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SendFlags(pub u32);

impl SendFlags {
    /// Wait for earlier READs and atomics first.
    pub const FENCE: Self = Self(1);
    /// Report the completion even when all is well.
    pub const SIGNALED: Self = Self(1 << 1);
    /// Raise an event for the peer's solicited-only notification.
    pub const SOLICITED: Self = Self(1 << 2);
    /// The data was copied when it was posted.
    pub const INLINE: Self = Self(1 << 3);

    /// Whether all of `wanted` is set.
    pub const fn contains(self, wanted: Self) -> bool {
        self.0 & wanted.0 == wanted.0
    }

    /// Returns both, in constants, too, where `|` cannot be used.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOr for SendFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.with(other)
    }
}

impl BitOrAssign for SendFlags {
    fn bitor_assign(&mut self, other: Self) {
        *self = self.with(other);
    }
}

/// Where the bytes of a request lie.
#[derive(Clone, Debug)]
pub enum Local {
    /// In registered memory. More than three elements spill to the heap.
    Sges(SmallVec<[Sge; 3]>),
    /// In the request itself, at most [`MAX_INLINE`].
    Inline(SmallVec<[u8; 64]>),
}

/// A validated send work request, as the engine keeps it until it completes.
#[derive(Clone, Debug)]
pub struct Request {
    /// The program's cookie.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// How.
    pub flags: SendFlags,
    /// Bytes of the message, at most [`MAX_MESSAGE`]; 8 for atomics.
    pub length: u32,
    /// From where, or, for READ and atomics, to where.
    pub local: Local,
}

/// A validated receive work request.
#[derive(Clone, Debug, Default)]
pub struct Receive {
    /// The program's cookie.
    pub wr_id: u64,
    /// Where the message goes.
    pub sges: SmallVec<[Sge; 3]>,
}

impl Receive {
    /// Bytes that fit.
    pub fn capacity(&self) -> u64 {
        self.sges.iter().map(|sge| u64::from(sge.length)).sum()
    }
}

/// How a work request ended, with the values of `enum ibv_wc_status`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum Status {
    /// Done.
    Success = 0,
    /// The message does not fit the local buffer.
    LocalLength = 1,
    /// Something is inconsistent in the local QP.
    LocalQpOperation = 2,
    /// A local buffer may not be used this way.
    LocalProtection = 4,
    /// The QP went to the error state first.
    Flushed = 5,
    /// A key could not be taken away, or a window could not be bound (`IBV_WC_MW_BIND_ERR`; the
    /// Memory Management Operation Error of IBTA).
    MemoryManagement = 6,
    /// The peer answered something that makes no sense.
    BadResponse = 7,
    /// The peer may not use local memory this way.
    LocalAccess = 8,
    /// The peer found the request invalid.
    RemoteInvalidRequest = 9,
    /// The peer's memory may not be used this way.
    RemoteAccess = 10,
    /// The peer could not do it.
    RemoteOperation = 11,
    /// No answer after all retries, or nobody there who could give one: see [`VendorError`].
    RetryExceeded = 12,
    /// The receiver was not ready after all retries.
    RnrRetryExceeded = 13,
    /// The peer aborted it.
    RemoteAborted = 16,
    /// Anything else.
    General = 21,
}

/// Why a request ended with [`Status::RetryExceeded`], where that is known (`vendor_err` of
/// `struct ibv_wc`). On shared connections the peer's node says so; InfiniBand has no packet for
/// it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[repr(u8)]
pub enum VendorError {
    /// Nobody said anything: the peer is silent, or gone, or there is no way to it or no host at
    /// its address; or the peer's QP stays in RESET or INIT, where it has no peer yet. All other
    /// statuses have this one.
    #[default]
    None = 0,
    /// The peer's node has no such QP, or one of another kind. So it says of one that it had, too,
    /// where it is asked anew.
    NoQp = 1,
    /// The peer's QP is connected to another one.
    OtherPeer = 2,
    /// The peer's QP has no room for one more that talks to it.
    NoRoom = 3,
    /// The peer's QP was there, and is destroyed, reset or in error, or gone with its node, be it
    /// that this was started anew, and that was heard. Of a node that ended without a word, or
    /// whose last word was lost, nobody says so: then it is `None`.
    QpGone = 4,
    /// There is a host, and it says that nobody listens at its RoCE port.
    NoNode = 5,
    /// There is a host that shares no connections: no Trunkline node, or one built without sharing
    /// since it started anew.
    NotSharing = 6,
}

/// What kind of request completed, with the values of `enum ibv_wc_opcode`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum WorkOpcode {
    /// A SEND of any kind.
    Send = 0,
    /// A WRITE of any kind.
    Write = 1,
    /// A READ.
    Read = 2,
    /// A CMP_SWAP.
    CompareSwap = 3,
    /// A FETCH_ADD.
    FetchAdd = 4,
    /// A bind of a memory window.
    BindMw = 5,
    /// A local invalidation.
    LocalInvalidate = 6,
    /// A receive, by a SEND.
    Receive = 128,
    /// A receive, by a WRITE with immediate.
    ReceiveWriteImm = 129,
}

impl From<&SendOp> for WorkOpcode {
    fn from(op: &SendOp) -> Self {
        match op {
            SendOp::Send | SendOp::SendImm(_) | SendOp::SendInvalidate(_) | SendOp::SendTo(_) => {
                Self::Send
            }
            SendOp::Write(_) | SendOp::WriteImm(..) => Self::Write,
            SendOp::Read(_) => Self::Read,
            SendOp::Atomic(_, AtomicOp::CompareSwap { .. }) => Self::CompareSwap,
            SendOp::Atomic(_, AtomicOp::FetchAdd { .. }) => Self::FetchAdd,
            SendOp::Own(OwnOp::BindMw(_)) => Self::BindMw,
            SendOp::Own(OwnOp::Invalidate(_)) => Self::LocalInvalidate,
        }
    }
}

/// What came along with a received message.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Extra {
    /// Nothing.
    #[default]
    None,
    /// Immediate data, as on the wire, big-endian, read as a number.
    Immediate(u32),
    /// This key of ours was invalidated.
    Invalidated(Rkey),
}

/// A work completion (`struct ibv_wc`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Completion {
    /// The program's cookie.
    pub wr_id: u64,
    /// How it ended. The fields below mean something only on success.
    pub status: Status,
    /// What it was.
    pub opcode: WorkOpcode,
    /// The QP it was posted to.
    pub qpn: Qpn,
    /// Bytes received, read, or (8) returned by an atomic.
    pub byte_len: u32,
    /// Immediate data or invalidated key.
    pub extra: Extra,
    /// UD only: the sender's QP.
    pub src_qp: Qpn,
    /// App-managed QPs only: the route, as its program calls it, that the request went by or the
    /// message came by, whatever the status. 0 where the program never asked for a number.
    pub route: u32,
    /// The sender asked for a solicited event.
    pub solicited: bool,
    /// More about the status.
    pub vendor_err: VendorError,
    /// When it was done, as [`Instant::ticks`](crate::time::Instant::ticks) of the node's clock at
    /// the beginning of its worker's round. Whoever makes a completion leaves it at 0: a CQ fills
    /// it in.
    pub ticks: u32,
}

impl Completion {
    /// A blank to poll into.
    pub const BLANK: Self = Self {
        wr_id: 0,
        status: Status::General,
        opcode: WorkOpcode::Send,
        qpn: Qpn::from_wire(0),
        byte_len: 0,
        extra: Extra::None,
        src_qp: Qpn::from_wire(0),
        route: 0,
        solicited: false,
        vendor_err: VendorError::None,
        ticks: 0,
    };
}
