//! What a program asks the service for.

use super::attributes::{MwKind, QpAttributes, QpStep, RegionPlace, RingKind};
use super::field::{BadValue, Field, bad_value};
use super::layout::{layout, messages};
use super::{MAGIC, Text};
use crate::Handle;
use trunkline_conn::mem::Access;
use trunkline_qpmap::QpType;
use trunkline_wire::Gid;

/// The number [`MAGIC`]: who opens the socket by mistake does not begin with it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Magic;

impl Field for Magic {
    const LEN: usize = u32::LEN;

    fn read(bytes: &[u8]) -> Result<Self, BadValue> {
        match u32::read(bytes)? {
            MAGIC => Ok(Self),
            _ => Err(bad_value(bytes)),
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        MAGIC.write(out);
    }
}

layout! {
    /// The first message of a client. A descriptor of its `/proc/self/mem` may come with it, for
    /// regions outside segments.
    pub struct Hello = "hello" {
        /// The first four bytes.
        pub magic: Magic,
        /// The version of messages that it speaks.
        pub version: u32,
        /// What the client is called in the service's log and status.
        pub name: Text<64>,
    }
}

layout! {
    /// The first message of whoever holds the service and is no client: a service that ends when
    /// nobody uses it does not as long as the socket is open, in whichever process. The answer is
    /// [`Done`](super::answers::Done), and no other message may follow.
    pub struct Hold = "hold" {
        /// The first four bytes.
        pub magic: Magic,
        /// The version of messages that it speaks.
        pub version: u32,
    }
}

layout! {
    /// Ends the client in order: peers of its QPs hear that these have left. What it has is
    /// destroyed, and the answer is [`Detached`](super::answers::Detached).
    pub struct Detach = "detach" {}
}

layout! {
    /// Asks for a protection domain (`ibv_alloc_pd(3)`).
    pub struct AllocPd = "alloc PD" {}
}

layout! {
    /// Ends a protection domain (`ibv_dealloc_pd(3)`).
    pub struct DeallocPd = "dealloc PD" {
        /// The domain.
        pub pd: Handle,
    }
}

layout! {
    /// Asks for a CQ (`ibv_create_cq(3)`).
    pub struct CreateCq = "create CQ" {
        /// Completions that it holds at least.
        pub depth: u32,
    }
}

layout! {
    /// Changes how many completions a CQ holds (`ibv_resize_cq(3)`).
    pub struct ResizeCq = "resize CQ" {
        /// The CQ.
        pub cq: Handle,
        /// Completions that it holds at least.
        pub depth: u32,
    }
}

layout! {
    /// Ends a CQ (`ibv_destroy_cq(3)`).
    pub struct DestroyCq = "destroy CQ" {
        /// The CQ.
        pub cq: Handle,
    }
}

layout! {
    /// Asks for an SRQ (`ibv_create_srq(3)`).
    pub struct CreateSrq = "create SRQ" {
        /// Its protection domain.
        pub pd: Handle,
        /// Most receives posted and not taken.
        pub max_wr: u32,
        /// Most scatter-gather elements of a receive.
        pub max_sge: u32,
    }
}

layout! {
    /// Changes an SRQ (`ibv_modify_srq(3)`): what is missing stays.
    pub struct ModifySrq = "modify SRQ" {
        /// The SRQ.
        pub srq: Handle,
        /// Most receives posted and not taken.
        pub max_wr: Option<u32>,
        /// Fewer receives than this are told once; 0 for not at all.
        pub limit: Option<u32>,
    }
}

layout! {
    /// Asks for the attributes of an SRQ (`ibv_query_srq(3)`).
    pub struct QuerySrq = "query SRQ" {
        /// The SRQ.
        pub srq: Handle,
    }
}

layout! {
    /// Ends an SRQ (`ibv_destroy_srq(3)`).
    pub struct DestroySrq = "destroy SRQ" {
        /// The SRQ.
        pub srq: Handle,
    }
}

layout! {
    /// Asks for a QP (`ibv_create_qp(3)`).
    pub struct CreateQp = "create QP" {
        /// Its protection domain.
        pub pd: Handle,
        /// Where its send requests complete.
        pub send_cq: Handle,
        /// Where its receives complete.
        pub recv_cq: Handle,
        /// Where its receives come from, if not from a queue of its own.
        pub srq: Option<Handle>,
        /// Its kind.
        pub kind: QpType,
        /// Most send requests outstanding.
        pub max_send_wr: u32,
        /// Most receives outstanding.
        pub max_recv_wr: u32,
        /// Most scatter-gather elements of a send request.
        pub max_send_sge: u32,
        /// Most scatter-gather elements of a receive.
        pub max_recv_sge: u32,
        /// Most inline bytes of a send request.
        pub max_inline: u32,
        /// Every send request gets a completion.
        pub signal_all: bool,
        /// With an SRQ: a completion tells that the QP takes no receive any more.
        pub complete_last_wqe: bool,
        /// The worker of the node that it belongs to, from 0; if missing, the one whose turn it is.
        pub worker: Option<u8>,
    }
}

layout! {
    /// Changes a QP (`ibv_modify_qp(3)`).
    pub struct ModifyQp = "modify QP" {
        /// The QP.
        pub qp: Handle,
        /// The step to take.
        pub step: QpStep,
        /// What changes.
        pub attributes: QpAttributes,
    }
}

layout! {
    /// Asks for the attributes of a QP (`ibv_query_qp(3)`).
    pub struct QueryQp = "query QP" {
        /// The QP.
        pub qp: Handle,
    }
}

layout! {
    /// Ends a QP (`ibv_destroy_qp(3)`).
    pub struct DestroyQp = "destroy QP" {
        /// The QP.
        pub qp: Handle,
    }
}

layout! {
    /// Asks for memory that the client and the service share, for regions.
    pub struct AllocMemory = "alloc memory" {
        /// Words of 8 bytes.
        pub words: u32,
    }
}

layout! {
    /// Gives such memory back. Regions in it keep it.
    pub struct FreeMemory = "free memory" {
        /// The memory.
        pub memory: Handle,
    }
}

layout! {
    /// Asks for a segment of its own, for pages that the client
    /// [promotes](super::attributes::RegionPlace::Promoted).
    pub struct LendMemory = "lend memory" {
        /// Bytes: whole pages.
        pub bytes: u64,
    }
}

layout! {
    /// Gives such a segment back, in which there is no region any more.
    pub struct ReturnMemory = "return memory" {
        /// The segment.
        pub lent: Handle,
    }
}

layout! {
    /// Asks for an open `/dev/userfaultfd`, with which the client can promote pages where it may
    /// not open that itself.
    pub struct OpenUserfault = "open userfault" {}
}

layout! {
    /// Registers memory (`ibv_reg_mr(3)`).
    pub struct RegisterMr = "register MR" {
        /// Its protection domain.
        pub pd: Handle,
        /// Address of the first byte, as work requests and peers name it.
        pub iova: u64,
        /// Bytes.
        pub length: u64,
        /// Rights.
        pub access: Access,
        /// Where the memory is.
        pub place: RegionPlace,
    }
}

layout! {
    /// Changes what memory is registered as (`ibv_rereg_mr(3)`), all at once.
    pub struct ReregisterMr = "reregister MR" {
        /// The region.
        pub mr: Handle,
        /// Its protection domain from now on.
        pub pd: Handle,
        /// Address of the first byte, as work requests and peers name it.
        pub iova: u64,
        /// Bytes of its memory, if that changes; else 0.
        pub length: u64,
        /// Rights.
        pub access: Access,
        /// Where its memory is, if that changes.
        pub place: Option<RegionPlace>,
    }
}

layout! {
    /// Ends the registration of memory (`ibv_dereg_mr(3)`).
    pub struct DeregisterMr = "deregister MR" {
        /// The region.
        pub mr: Handle,
        /// Whether windows that are bound to it are unbound; otherwise they keep it.
        pub unbind: bool,
    }
}

layout! {
    /// Asks for a memory window (`ibv_alloc_mw(3)`).
    pub struct AllocMw = "alloc MW" {
        /// Its protection domain.
        pub pd: Handle,
        /// Its type.
        pub kind: MwKind,
    }
}

layout! {
    /// Ends a memory window (`ibv_dealloc_mw(3)`).
    pub struct DeallocMw = "dealloc MW" {
        /// The window.
        pub mw: Handle,
    }
}

layout! {
    /// Checks that there may be a peer at an address, for an address handle (`ibv_create_ah(3)`).
    pub struct CheckPeer = "check peer" {
        /// GID of its port.
        pub remote: Gid,
    }
}

layout! {
    /// Asks for the memory of a ring, which a queue has from its first post on.
    pub struct RequestRing = "request ring" {
        /// Which ring.
        pub ring: RingKind,
        /// The QP, SRQ or CQ whose ring it is; missing for doorbells.
        pub object: Option<Handle>,
        /// Of a CQ or of doorbells: the worker of the node, from 0, whose part is asked for. 0 for
        /// others.
        pub worker: u8,
    }
}

layout! {
    /// Asks for a descriptor that is readable when there are events.
    pub struct WatchEvents = "watch events" {
        /// The CQ whose completions are meant; if missing, asynchronous events of all objects.
        pub cq: Option<Handle>,
    }
}

layout! {
    /// Takes the next asynchronous event (`ibv_get_async_event(3)`), if there is one.
    pub struct TakeEvent = "take event" {}
}

layout! {
    /// Asks for the maxima of the node (`ibv_query_device(3)`).
    pub struct QueryDevice = "query device" {}
}

layout! {
    /// Asks for the state of the node's port (`ibv_query_port(3)`).
    pub struct QueryPort = "query port" {}
}

messages! {
    /// A message of a program.
    pub enum Request {
        Hello = 0x0001,
        Detach = 0x0002,
        Hold = 0x0003,
        AllocPd = 0x0010,
        DeallocPd = 0x0011,
        CreateCq = 0x0020,
        ResizeCq = 0x0021,
        DestroyCq = 0x0022,
        CreateSrq = 0x0030,
        ModifySrq = 0x0031,
        QuerySrq = 0x0032,
        DestroySrq = 0x0033,
        CreateQp = 0x0040,
        ModifyQp = 0x0041,
        QueryQp = 0x0042,
        DestroyQp = 0x0043,
        RegisterMr = 0x0050,
        DeregisterMr = 0x0051,
        AllocMemory = 0x0052,
        FreeMemory = 0x0053,
        ReregisterMr = 0x0054,
        AllocMw = 0x0055,
        DeallocMw = 0x0056,
        CheckPeer = 0x0057,
        LendMemory = 0x0058,
        ReturnMemory = 0x0059,
        OpenUserfault = 0x005a,
        RequestRing = 0x0060,
        WatchEvents = 0x0061,
        TakeEvent = 0x0062,
        QueryDevice = 0x0070,
        QueryPort = 0x0071,
    }
}
