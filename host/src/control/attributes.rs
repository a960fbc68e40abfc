//! Attributes of a QP, of which a message has some.

use super::field::{BadValue, Field, bad_value, next, numbered};
use crate::Handle;
use trunkline_conn::mem::Access;
use trunkline_wire::{Gid, Psn, Qpn};

/// A group of attributes: 32 bits that say which are there, the first in the lowest bit, then room
/// for each of them, zero where it is not there.
macro_rules! optional {
    (
        $(#[$outer:meta])*
        pub struct $name:ident {
            $($(#[$inner:meta])* pub $field:ident: $type:ty,)*
        }
    ) => {
        $(#[$outer])*
        #[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
        pub struct $name {
            $($(#[$inner])* pub $field: Option<$type>,)*
        }

        impl Field for $name {
            const LEN: usize = 4 $(+ <$type as Field>::LEN)*;

            fn read(bytes: &[u8]) -> Result<Self, BadValue> {
                let mut rest = bytes;
                let mut there: u32 = next(&mut rest)?;
                let read = Self {
                    $($field: {
                        let is_there = there & 1 == 1;
                        there >>= 1;
                        attribute::<$type>(is_there, stringify!($field), &mut rest)?
                    },)*
                };
                match there {
                    0 => Ok(read),
                    _ => Err(BadValue { inner: Some("mask"), ..bad_value(bytes) }),
                }
            }

            fn write(&self, out: &mut Vec<u8>) {
                let there = [$(self.$field.is_some()),*];
                let bits = there.iter().rev().fold(0_u32, |bits, bit| bits << 1 | u32::from(*bit));
                bits.write(out);
                $(match &self.$field {
                    Some(value) => value.write(out),
                    None => out.resize(out.len() + <$type>::LEN, 0),
                })*
            }
        }

        #[cfg(test)]
        impl super::tests::Any for $name {
            fn any(draw: &mut super::tests::Draw<'_>) -> Self {
                Self { $($field: Option::any(draw),)* }
            }
        }
    };
}

optional! {
    /// Attributes of `ibv_modify_qp(3)` and `ibv_query_qp(3)`; which of them a step takes is for
    /// the service to say.
    pub struct QpAttributes {
        /// Rights of the peer.
        pub access: Access,
        /// Q_Key of a UD QP.
        pub qkey: u32,
        /// GID of the peer's port.
        pub remote: Gid,
        /// Traffic class of packets to it, 0 to 255.
        pub traffic_class: u8,
        /// Flow label of packets to it.
        pub flow_label: u32,
        /// Hop limit of packets to it.
        pub hop_limit: u8,
        /// Service level.
        pub service_level: u8,
        /// Bytes of the path MTU.
        pub path_mtu: u16,
        /// Time that is waited for an acknowledgement, as the exponent of `ibv_modify_qp(3)`.
        pub timeout: u8,
        /// How often a request is sent again when nothing comes.
        pub retry_count: u8,
        /// How often a request is sent again to a QP that has no receive.
        pub rnr_retry: u8,
        /// First PSN of the peer.
        pub rq_psn: Psn,
        /// First PSN of the QP.
        pub sq_psn: Psn,
        /// Most RDMA READs and atomics outstanding.
        pub max_rd_atomic: u8,
        /// Most RDMA READs and atomics outstanding of the peer.
        pub max_dest_rd_atomic: u8,
        /// Time that the peer waits where there is no receive, as the code of
        /// `ibv_modify_qp(3)`.
        pub min_rnr_timer: u8,
        /// The peer's QP.
        pub dest_qpn: Qpn,
    }
}

numbered! {
    /// A step of `ibv_modify_qp(3)`.
    pub enum QpStep: u8 {
        /// To RESET: everything is forgotten.
        Reset = 1,
        /// To INIT.
        Init = 2,
        /// To RTR.
        Rtr = 3,
        /// From RTR to RTS.
        Rts = 4,
        /// From RTS to SQD.
        Drain = 5,
        /// From SQD or SQE to RTS.
        Resume = 6,
        /// The state stays.
        Change = 7,
        /// To ERROR.
        Error = 8,
    }
}

numbered! {
    /// Types of memory windows.
    pub enum MwKind: u8 {
        /// Bound by a call, for all QPs of its domain.
        Type1 = 1,
        /// Bound by a request, for one QP.
        Type2 = 2,
    }
}

numbered! {
    /// Asynchronous events.
    pub enum EventKind: u8 {
        /// First packet of a QP in RTR.
        CommunicationEstablished = 1,
        /// All outstanding requests of a draining QP are done.
        SendQueueDrained = 2,
        /// The peer of a QP violated the protocol.
        RequestError = 3,
        /// The peer of a QP tried what it may not.
        AccessError = 4,
        /// A QP went to error for another reason.
        QpFatal = 5,
        /// A QP in error has taken its last receive from its SRQ.
        LastWqeReached = 6,
        /// A CQ overran.
        CqError = 7,
        /// An SRQ has fewer receives than its limit.
        SrqLimitReached = 8,
        /// The ring of an SRQ is broken.
        SrqError = 9,
        /// The link of the port works no more.
        PortError = 10,
        /// The link of the port works again.
        PortActive = 11,
        /// The node does nothing any more.
        DeviceFatal = 12,
        /// The peer's QP of a QP is gone.
        PeerQpGone = 13,
    }
}

numbered! {
    /// A ring, or a part of one, that a client asks memory for.
    pub enum RingKind: u8 {
        /// Send queue of a QP.
        Send = 1,
        /// Receive queue of a QP.
        Receive = 2,
        /// Queue of an SRQ.
        Shared = 3,
        /// Positions and arming of a CQ.
        CompletionHeader = 4,
        /// Completions of a CQ.
        Completions = 5,
        /// Doorbells of the client.
        Doorbells = 6,
    }
}

numbered! {
    /// Why the service does not take a client, or parts with it.
    pub enum Reason: u16 {
        /// The service does not speak this version.
        Version = 1,
        /// The service is not for this user.
        NotAllowed = 2,
        /// There are as many clients as the service takes.
        TooManyClients = 3,
        /// The client sent what is no message, or what it must not send now.
        BadMessage = 4,
        /// The client sent more requests than it may have unanswered.
        TooManyRequests = 5,
        /// The service ends.
        Ending = 6,
        /// The client asked for it.
        Asked = 7,
        /// The service failed.
        Failed = 8,
        /// Memory of the client blocked for longer than anybody waits.
        TooSlow = 9,
        /// The service has no descriptor left.
        NoDescriptor = 10,
    }
}

numbered! {
    /// State of a port, with the values of `enum ibv_port_state`.
    pub enum PortState: u8 {
        /// The node is down, or its interface is.
        Down = 1,
        /// The port works.
        Active = 4,
    }
}

/// Where the memory of a region is. In a message: a byte that says which, a handle, and four
/// numbers; zeros for those that there are not.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RegionPlace {
    /// In the client's memory, outside all segments: it is reached by the descriptor of
    /// `/proc/self/mem` that came with [`Hello`](super::requests::Hello).
    Foreign {
        /// Address of its first byte there.
        addr: u64,
    },
    /// In a piece of a segment that the client [asked for](super::requests::AllocMemory).
    Shared {
        /// The piece.
        memory: Handle,
        /// Bytes from the start of the piece to the region.
        offset: u64,
    },
    /// In the client's memory, where pages of it are those of a segment that the client was
    /// [lent](super::requests::LendMemory).
    Promoted {
        /// The segment.
        lent: Handle,
        /// Address of the region's first byte there.
        addr: u64,
        /// Bytes from there to the pages.
        start: u64,
        /// Bytes of the pages.
        length: u64,
        /// Bytes from the start of the segment to the pages.
        offset: u64,
    },
}

impl RegionPlace {
    /// The parts that stand in a message, but for which it is.
    const NUMBERS: usize = 4;
}

impl Field for RegionPlace {
    const LEN: usize = u8::LEN + Handle::LEN + Self::NUMBERS * u64::LEN;

    fn read(bytes: &[u8]) -> Result<Self, BadValue> {
        let mut rest = bytes;
        let which = next::<u8>(&mut rest)?;
        let handle = rest
            .split_off(..Handle::LEN)
            .ok_or_else(|| bad_value(&[]))?;
        let mut numbers = [0; Self::NUMBERS];
        for number in &mut numbers {
            *number = next(&mut rest)?;
        }
        match (which, numbers) {
            (0, [addr, 0, 0, 0]) if handle.iter().all(|byte| *byte == 0) => {
                Ok(Self::Foreign { addr })
            }
            (1, [offset, 0, 0, 0]) => Ok(Self::Shared {
                memory: Handle::read(handle)?,
                offset,
            }),
            (2, [addr, start, length, offset]) => Ok(Self::Promoted {
                lent: Handle::read(handle)?,
                addr,
                start,
                length,
                offset,
            }),
            _ => Err(bad_value(bytes)),
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        let (which, handle, numbers) = match *self {
            Self::Foreign { addr } => (0_u8, None, [addr, 0, 0, 0]),
            Self::Shared { memory, offset } => (1, Some(memory), [offset, 0, 0, 0]),
            Self::Promoted {
                lent,
                addr,
                start,
                length,
                offset,
            } => (2, Some(lent), [addr, start, length, offset]),
        };
        which.write(out);
        match handle {
            Some(handle) => handle.write(out),
            None => out.resize(out.len() + Handle::LEN, 0),
        }
        for number in numbers {
            number.write(out);
        }
    }
}

/// Reads an attribute, or makes sure that nothing is in its room.
fn attribute<T: Field>(
    is_there: bool,
    name: &'static str,
    rest: &mut &[u8],
) -> Result<Option<T>, BadValue> {
    let bytes = rest.split_off(..T::LEN).ok_or_else(|| bad_value(&[]))?;
    let inner = Some(name);
    if is_there {
        let value = T::read(bytes).map_err(|bad| BadValue { inner, ..bad })?;
        return Ok(Some(value));
    }
    let zero = bytes.iter().all(|byte| *byte == 0);
    zero.then_some(None).ok_or_else(|| BadValue {
        inner,
        ..bad_value(bytes)
    })
}
