//! What a program may be told, and what is wrong with a program's rings.

mod parts;

pub use parts::Parts;

use crate::allowed::Allowed;
use crate::state::QpState;
use std::net::IpAddr;
use std::time::Duration;

/// Why a call of a program was refused: its arguments, its limits, or the state of its objects.
/// Nothing has changed then, unless the call's own documentation says otherwise.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// `ibv_modify_qp(3)` knows no such step.
    #[error("QP {qpn:#08x} cannot go from {from} to {to}")]
    BadTransition {
        /// Number of the QP.
        qpn: u32,
        /// State it is in.
        from: QpState,
        /// State asked for.
        to: QpState,
    },
    /// The QP is in a state in which this cannot be done.
    #[error("QP {qpn:#08x} is in {state}")]
    WrongState {
        /// Number of the QP.
        qpn: u32,
        /// State it is in.
        state: QpState,
    },
    /// There is no such QP (any more).
    #[error("no QP {qpn:#08x}")]
    UnknownQp {
        /// The number.
        qpn: u32,
    },
    /// The QP has an IBTA connection of its own, or none yet.
    #[error("QP {qpn:#08x} is on no shared connection")]
    NotShared {
        /// Number of the QP.
        qpn: u32,
    },
    /// The connection leads to another peer than the QP talks to.
    #[error("the connection does not lead to the peer of QP {qpn:#08x}")]
    OtherPeer {
        /// Number of the QP.
        qpn: u32,
    },
    /// The connection leads to another worker of the peer than the QP there belongs to.
    #[error("the connection does not lead to the worker of the peer's QP {remote:#08x}")]
    OtherWorker {
        /// Number of the QP there.
        remote: u32,
    },
    /// There is no such connection (any more).
    #[error("no connection {index}")]
    UnknownConnection {
        /// Its index.
        index: u32,
    },
    /// There is no such CQ (any more).
    #[error("no CQ {cq}")]
    UnknownCq {
        /// Its index.
        cq: u32,
    },
    /// The CQ had no room for a completion once.
    #[error("CQ {cq} is in error")]
    CqInError {
        /// Its index.
        cq: u32,
    },
    /// More completions are in the CQ than it is to hold from now on.
    #[error("{count} completions are in the CQ, and with that depth it holds {capacity}")]
    TooManyCompletions {
        /// Completions that were not polled; of a node with several workers, those of the worker
        /// that has most.
        count: u32,
        /// What the depth asked for holds.
        capacity: u32,
    },
    /// There is no such SRQ (any more).
    #[error("no SRQ {srq}")]
    UnknownSrq {
        /// Its index.
        srq: u32,
    },
    /// The ring of the SRQ was found broken.
    #[error("SRQ {srq} is in error")]
    SrqInError {
        /// Its index.
        srq: u32,
    },
    /// There is no such protection domain (any more).
    #[error("no protection domain {pd}")]
    UnknownPd {
        /// Its index.
        pd: u32,
    },
    /// The QP has no such route (any more).
    #[error("QP {qpn:#08x} has no route {route}")]
    UnknownRoute {
        /// Number of the QP.
        qpn: u32,
        /// The route.
        route: u32,
    },
    /// No region has this key (any more).
    #[error("no region has key {key:#010x}")]
    UnknownKey {
        /// The key.
        key: u32,
    },
    /// The access flags contradict each other, or ask for something there is not.
    #[error("access flags {bits:#x}: {why}")]
    BadAccess {
        /// Bits of `enum ibv_access_flags`.
        bits: u32,
        /// What is wrong.
        why: &'static str,
    },
    /// A memory region of no bytes.
    #[error("a memory region has at least one byte")]
    EmptyRegion,
    /// A range of addresses that runs past the end of the address space.
    #[error("{length} bytes at {addr:#x} wrap around")]
    BadRange {
        /// Address of the first byte.
        addr: u64,
        /// Bytes.
        length: u64,
    },
    /// An attribute is outside its range.
    #[error("{what} cannot be {value}: {allowed}")]
    BadAttribute {
        /// Its name in the man page.
        what: &'static str,
        /// Its value.
        value: u64,
        /// What it may be.
        allowed: Allowed,
    },
    /// Flags of a send request that there are not, or that do not fit the rest of it.
    #[error("send_flags {bits:#x}: {why}")]
    BadFlags {
        /// Bits of `enum ibv_send_flags`.
        bits: u32,
        /// What is wrong.
        why: &'static str,
    },
    /// An attribute that does not change in this step, or not for QPs of this type.
    #[error("{what} cannot change in {state}")]
    FixedAttribute {
        /// Its name in the man page.
        what: &'static str,
        /// State of the QP.
        state: QpState,
    },
    /// An object of another node, where only one of the same node will do.
    #[error("the {what} belongs to another node")]
    InvalidArgument {
        /// What it is.
        what: &'static str,
    },
    /// The QP takes its receives from an SRQ.
    #[error("QP {qpn:#08x} takes its receives from an SRQ: post them there")]
    HasSrq {
        /// Number of the QP.
        qpn: u32,
    },
    /// A peer of the other family of addresses than the node.
    #[error(
        "{peer} is an {} address, and {own} of this node an {} one",
        family(.peer),
        family(.own)
    )]
    OtherFamily {
        /// The peer's.
        peer: IpAddr,
        /// The node's.
        own: IpAddr,
    },
    /// A time is too short.
    #[error("{what} cannot be {value:?}: {least:?} or more")]
    TooShort {
        /// The name of the setting.
        what: &'static str,
        /// Its value.
        value: Duration,
        /// The least that it may be.
        least: Duration,
    },
    /// QPs of this type, or in this use, cannot do that.
    #[error("{what} is not supported here")]
    Unsupported {
        /// What was asked for.
        what: &'static str,
    },
    /// No peer has this address: packets to it would go to many, or to nobody.
    #[error(
        "{address} is not the address of one host: it is a broadcast or multicast address, or none"
    )]
    NotOneHost {
        /// The address.
        address: IpAddr,
    },
    /// The send, receive or completion queue is full.
    #[error("the queue holds {capacity} requests, and all are outstanding")]
    QueueFull {
        /// Requests it holds.
        capacity: u32,
    },
    /// More scatter-gather elements than the queue was created for.
    #[error("{count} scatter-gather elements, at most {max}")]
    TooManySge {
        /// Elements of the request.
        count: u32,
        /// Most elements.
        max: u32,
    },
    /// A scatter-gather element that the request cannot have.
    #[error("scatter-gather element {index} has {length} bytes: {least} or more")]
    BadSge {
        /// Its place in the list, from 0.
        index: u32,
        /// Its length in bytes.
        length: u32,
        /// The least that it may have.
        least: u32,
    },
    /// More inline data than the queue was created for.
    #[error("{length} bytes inline, at most {max}")]
    InlineTooLong {
        /// Bytes of the request.
        length: u32,
        /// Most bytes.
        max: u32,
    },
    /// The message is longer than any may be.
    #[error("a message of {length} bytes, at most {max}")]
    MessageTooLong {
        /// Bytes of the message.
        length: u64,
        /// Most bytes.
        max: u32,
    },
    /// Something else still uses it.
    #[error("the {what} is in use, {users} times")]
    Busy {
        /// What it is.
        what: &'static str,
        /// How many use it.
        users: u32,
    },
    /// There can be no more of them.
    #[error("no more {what}: the limit is {limit}")]
    Limit {
        /// What they are.
        what: &'static str,
        /// How many there can be.
        limit: u64,
    },
}

const fn family(address: &IpAddr) -> &'static str {
    match address {
        IpAddr::V4(_) => "IPv4",
        IpAddr::V6(_) => "IPv6",
    }
}

/// A list of requests that was not posted whole: those before `posted` are, in order, and the one
/// at `posted` (`*bad_wr` of `ibv_post_send(3)`) is refused with all behind it.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("request {posted} of the list: {error}")]
pub struct PostError {
    /// Requests that were posted.
    pub posted: usize,
    /// What is wrong with the next one.
    pub error: VerbsError,
}

impl From<VerbsError> for PostError {
    /// Nothing was posted.
    fn from(error: VerbsError) -> Self {
        Self { posted: 0, error }
    }
}

const ENOENT: i32 = 2;
const ENOMEM: i32 = 12;
const EBUSY: i32 = 16;
const EINVAL: i32 = 22;
const EOPNOTSUPP: i32 = 95;
const EAFNOSUPPORT: i32 = 97;

impl VerbsError {
    /// The value that verbs give for it, as on Linux: a positive number.
    pub const fn errno(self) -> i32 {
        match self {
            Self::BadTransition { .. }
            | Self::WrongState { .. }
            | Self::NotShared { .. }
            | Self::OtherPeer { .. }
            | Self::OtherWorker { .. }
            | Self::UnknownKey { .. }
            | Self::BadAccess { .. }
            | Self::EmptyRegion
            | Self::BadRange { .. }
            | Self::NotOneHost { .. }
            | Self::BadAttribute { .. }
            | Self::BadFlags { .. }
            | Self::FixedAttribute { .. }
            | Self::CqInError { .. }
            | Self::SrqInError { .. }
            | Self::TooManyCompletions { .. }
            | Self::InvalidArgument { .. }
            | Self::HasSrq { .. }
            | Self::TooShort { .. }
            | Self::TooManySge { .. }
            | Self::BadSge { .. }
            | Self::InlineTooLong { .. }
            | Self::MessageTooLong { .. } => EINVAL,
            Self::UnknownQp { .. }
            | Self::UnknownConnection { .. }
            | Self::UnknownCq { .. }
            | Self::UnknownSrq { .. }
            | Self::UnknownPd { .. }
            | Self::UnknownRoute { .. } => ENOENT,
            Self::OtherFamily { .. } => EAFNOSUPPORT,
            Self::Unsupported { .. } => EOPNOTSUPP,
            Self::QueueFull { .. } | Self::Limit { .. } => ENOMEM,
            Self::Busy { .. } => EBUSY,
        }
    }
}

/// What a program wrote into its own ring that cannot be: the QP of the ring goes to error, nobody
/// else control messages.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RingError {
    /// The tail claims more entries than the ring has room for.
    #[error("the ring holds {capacity} slots, its tail claims {claimed}")]
    TailOutOfRange {
        /// Slots between head and tail.
        claimed: u32,
        /// Slots of the ring.
        capacity: u32,
    },
    /// There are more requests than the queue was made for.
    #[error("more requests outstanding than {max}")]
    TooManyRequests {
        /// Most requests.
        max: u32,
    },
    /// A request runs past the tail.
    #[error("a request of {need} slots where {have} are filled")]
    Truncated {
        /// Slots it takes.
        need: u32,
        /// Slots before the tail.
        have: u32,
    },
    /// No request has this opcode.
    #[error("unknown opcode {opcode}")]
    UnknownOpcode {
        /// The opcode.
        opcode: u8,
    },
    /// Flags that no request, or not this one, can have.
    #[error("invalid flags {flags:#04x}")]
    BadFlags {
        /// The flags.
        flags: u8,
    },
    /// More scatter-gather elements than a request of the queue may have.
    #[error("{count} scatter-gather elements, at most {max}")]
    TooManySge {
        /// Elements it claims.
        count: u32,
        /// Most elements.
        max: u32,
    },
    /// More inline data than a request of the queue may have.
    #[error("{length} bytes inline, at most {max}")]
    InlineTooLong {
        /// Bytes it claims.
        length: u32,
        /// Most bytes.
        max: u32,
    },
    /// The message is longer than any may be.
    #[error("a message of {length} bytes, at most {max}")]
    MessageTooLong {
        /// Bytes of its elements.
        length: u64,
        /// Most bytes.
        max: u32,
    },
    /// The local buffer of an atomic does not have 8 bytes.
    #[error("an atomic with a buffer of {length} bytes")]
    BadAtomic {
        /// Bytes of its elements.
        length: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_carry_the_numbers() {
        let error = VerbsError::BadTransition {
            qpn: 17,
            from: QpState::Reset,
            to: QpState::Rts,
        };
        assert_eq!(error.to_string(), "QP 0x000011 cannot go from RESET to RTS");
        let error = VerbsError::Limit {
            what: "QPs",
            limit: 4,
        };
        assert_eq!(error.to_string(), "no more QPs: the limit is 4");
        let [peer, own] = ["::1", "10.0.0.1"].map(|address| address.parse().expect("an address"));
        let error = VerbsError::OtherFamily { peer, own };
        assert_eq!(
            error.to_string(),
            "::1 is an IPv6 address, and 10.0.0.1 of this node an IPv4 one"
        );
        let error = VerbsError::HasSrq { qpn: 17 };
        assert_eq!(
            error.to_string(),
            "QP 0x000011 takes its receives from an SRQ: post them there"
        );
        let error = RingError::TailOutOfRange {
            claimed: 9,
            capacity: 8,
        };
        assert_eq!(
            error.to_string(),
            "the ring holds 8 slots, its tail claims 9"
        );
    }

    #[test]
    fn errno_is_what_rdma_core_gives() {
        // ibv_post_send(3): a full queue is ENOMEM, a bad request EINVAL; ibv_dealloc_pd(3) of a
        // domain in use is EBUSY.
        assert_eq!(VerbsError::QueueFull { capacity: 1 }.errno(), 12);
        assert_eq!(VerbsError::TooManySge { count: 2, max: 1 }.errno(), 22);
        assert_eq!(
            VerbsError::Busy {
                what: "CQ",
                users: 1
            }
            .errno(),
            16
        );
        assert_eq!(VerbsError::UnknownPd { pd: 1 }.errno(), 2);
        assert_eq!(VerbsError::Unsupported { what: "XRC" }.errno(), 95);
    }
}
