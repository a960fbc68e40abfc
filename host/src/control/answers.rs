//! What the service answers, or says unasked.

use super::Text;
use super::attributes::{EventKind, PortState, QpAttributes, Reason};
use super::layout::{layout, messages};
use crate::Handle;
use crate::piece::PieceName;
use trunkline_qpmap::QpState;
use trunkline_qpmap::error::Parts;
use trunkline_wire::{Gid, Lkey, Psn, Qpn, Rkey};

layout! {
    /// The client is taken. Answers [`Hello`](super::requests::Hello).
    pub struct Welcome = "welcome" {
        /// The version of messages that the service speaks from here on.
        pub version: u32,
        /// Address of the node.
        pub gid: Gid,
        /// Workers of the node, at least 1.
        pub workers: u8,
        /// Most QPs of the client, and how many doorbells it has at each worker.
        pub max_qps: u32,
        /// Most bytes of the client's segments.
        pub quota: u64,
        /// Most requests that the client may have unanswered.
        pub max_requests: u32,
    }
}

layout! {
    /// The client is not taken, and the service closes the socket. Answers
    /// [`Hello`](super::requests::Hello).
    pub struct Refused = "refused" {
        /// Why.
        pub reason: Reason,
        /// The same for people.
        pub text: Text<192>,
    }
}

layout! {
    /// The client's objects are destroyed, and the service closes the socket. It says so unasked,
    /// or answers the request that was the reason.
    pub struct Detached = "detached" {
        /// Why.
        pub reason: Reason,
        /// The same for people.
        pub text: Text<192>,
    }
}

layout! {
    /// The request was refused, and nothing has changed.
    pub struct Failed = "failed" {
        /// An error number of errno(3).
        pub errno: u32,
        /// The same for people.
        pub text: Text<192>,
        /// The same for programs, if verbs have an error for it.
        pub error: Option<Parts<Text<64>>>,
    }
}

layout! {
    /// The request is done, and there is nothing to tell.
    pub struct Done = "done" {}
}

layout! {
    /// A protection domain is there.
    pub struct PdAllocated = "PD allocated" {
        /// Its name.
        pub pd: Handle,
        /// How requests of UD QPs name it.
        pub domain: u32,
    }
}

layout! {
    /// A CQ is there.
    pub struct CqCreated = "CQ created" {
        /// Its name.
        pub cq: Handle,
        /// Completions that it holds.
        pub depth: u32,
    }
}

layout! {
    /// A CQ has another size, and other memory for its completions.
    pub struct CqResized = "CQ resized" {
        /// Completions that it holds.
        pub depth: u32,
    }
}

layout! {
    /// An SRQ is there.
    pub struct SrqCreated = "SRQ created" {
        /// Its name.
        pub srq: Handle,
    }
}

layout! {
    /// Attributes of an SRQ.
    pub struct SrqQueried = "SRQ queried" {
        /// Most receives posted and not taken.
        pub max_wr: u32,
        /// Most scatter-gather elements of a receive.
        pub max_sge: u32,
        /// Fewer receives than this are told once; 0 for not at all.
        pub limit: u32,
    }
}

layout! {
    /// A QP is there.
    pub struct QpCreated = "QP created" {
        /// Its name for the service.
        pub qp: Handle,
        /// Its name for peers.
        pub qpn: Qpn,
        /// The PSN that it sends first.
        pub psn: Psn,
        /// The worker of the node that it belongs to, from 0.
        pub worker: u8,
    }
}

layout! {
    /// Attributes of a QP.
    pub struct QpQueried = "QP queried" {
        /// Its state.
        pub state: QpState,
        /// Those that it has.
        pub attributes: QpAttributes,
    }
}

layout! {
    /// A region is registered.
    pub struct MrRegistered = "MR registered" {
        /// Its name for the service.
        pub mr: Handle,
        /// Its key for work requests.
        pub lkey: Lkey,
        /// Its key for peers.
        pub rkey: Rkey,
        /// Address of the first byte, as work requests and peers name it.
        pub iova: u64,
    }
}

layout! {
    /// A memory window is there.
    pub struct MwAllocated = "MW allocated" {
        /// Its name for the service.
        pub mw: Handle,
        /// Its key.
        pub rkey: Rkey,
    }
}

layout! {
    /// Memory that both sides share is there. Its words are zero.
    pub struct MemoryAllocated = "memory allocated" {
        /// Its name.
        pub memory: Handle,
        /// Where it is.
        pub piece: PieceName,
        /// If its segment is new to the client: bytes of the segment, whose descriptor comes with
        /// this message.
        pub new_segment: Option<u64>,
    }
}

layout! {
    /// A segment of the client's own is there, all zero. Its descriptor comes with this message.
    pub struct MemoryLent = "memory lent" {
        /// Its name.
        pub lent: Handle,
    }
}

layout! {
    /// An open `/dev/userfaultfd` comes with this message.
    pub struct UserfaultOpened = "userfault opened" {}
}

layout! {
    /// The memory of a ring is there. Its words are zero.
    pub struct RingGiven = "ring given" {
        /// Where it is.
        pub piece: PieceName,
        /// If its segment is new to the client: bytes of the segment, whose descriptor comes with
        /// this message.
        pub new_segment: Option<u64>,
    }
}

layout! {
    /// The descriptor that was asked for comes with this message.
    pub struct EventsWatched = "events watched" {}
}

layout! {
    /// The next event, or that there is none.
    pub struct EventTaken = "event taken" {
        /// What happened.
        pub kind: Option<EventKind>,
        /// The QP, CQ or SRQ that it happened to; missing for others.
        pub object: Option<Handle>,
    }
}

layout! {
    /// Maxima of the node, of which the client has a share.
    pub struct DeviceQueried = "device queried" {
        /// Version of the service.
        pub fw_ver: Text<64>,
        /// GUID by which peers know the node.
        pub node_guid: u64,
        /// Address of the node.
        pub gid: Gid,
        /// Most bytes of a region.
        pub max_mr_size: u64,
        /// Sizes of pages, as a mask in which bit `n` stands for 2^`n` bytes.
        pub page_size_cap: u64,
        /// Most QPs.
        pub max_qp: u32,
        /// Most requests outstanding of a queue.
        pub max_qp_wr: u32,
        /// Most scatter-gather elements of a request.
        pub max_sge: u32,
        /// Most inline bytes of a request.
        pub max_inline: u32,
        /// Most CQs.
        pub max_cq: u32,
        /// Most completions of a CQ.
        pub max_cqe: u32,
        /// Most regions.
        pub max_mr: u32,
        /// Most protection domains.
        pub max_pd: u32,
        /// Most RDMA READs and atomics outstanding towards a QP.
        pub max_qp_rd_atom: u8,
        /// Most RDMA READs and atomics outstanding of a QP.
        pub max_qp_init_rd_atom: u8,
        /// Most RDMA READs and atomics outstanding towards all QPs.
        pub max_res_rd_atom: u64,
        /// What atomics are atomic towards, with the values of `enum ibv_atomic_cap`.
        pub atomic_cap: u8,
        /// Most SRQs.
        pub max_srq: u32,
        /// Most requests outstanding of an SRQ.
        pub max_srq_wr: u32,
        /// Most scatter-gather elements of a request of an SRQ.
        pub max_srq_sge: u32,
        /// Partitions that the node is in.
        pub max_pkeys: u16,
    }
}

layout! {
    /// State of the node's port.
    pub struct PortQueried = "port queried" {
        /// Whether packets can leave and arrive.
        pub state: PortState,
        /// Bytes of the largest path MTU that there is.
        pub max_mtu: u16,
        /// Bytes of the largest path MTU whose packets the port carries.
        pub active_mtu: u16,
        /// Entries of the GID table.
        pub gid_tbl_len: u16,
        /// Most bytes of a message.
        pub max_msg_sz: u32,
        /// Entries of the P_Key table.
        pub pkey_tbl_len: u16,
        /// Rate of the interface in Mb/s, if it has one.
        pub rate_mbps: Option<u32>,
        /// The rate of a lane as verbs encode it.
        pub active_speed: u8,
        /// The number of lanes as verbs encode it.
        pub active_width: u8,
    }
}

messages! {
    /// A message of the service.
    pub enum Answer {
        Welcome = 0x8001,
        Refused = 0x8002,
        Detached = 0x8003,
        Failed = 0x8004,
        Done = 0x8005,
        PdAllocated = 0x8010,
        CqCreated = 0x8020,
        CqResized = 0x8021,
        SrqCreated = 0x8030,
        SrqQueried = 0x8032,
        QpCreated = 0x8040,
        QpQueried = 0x8042,
        MrRegistered = 0x8050,
        MemoryAllocated = 0x8052,
        MwAllocated = 0x8055,
        MemoryLent = 0x8058,
        UserfaultOpened = 0x805a,
        RingGiven = 0x8060,
        EventsWatched = 0x8061,
        EventTaken = 0x8062,
        DeviceQueried = 0x8070,
        PortQueried = 0x8071,
    }
}
