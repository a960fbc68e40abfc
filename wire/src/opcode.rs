//! BTH opcodes (IBTA Vol 1, 9.2.1 and table 38): the three high bits name the transport, the low
//! five the operation; and those of Trunkline's shared connections, in the range that IBTA leaves
//! to manufacturers (0b11x_xxxxx).

use crate::{AtomicEth, Ieth, ImmDt, Reth};
use core::fmt;

/// BTH opcode: any byte, known or not.
#[derive(Clone, Copy, Default, Eq, Hash, PartialEq)]
pub struct Opcode(pub u8);

/// Transport service that an opcode belongs to.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Reliable datagram: obsolete, none of its opcodes are known here.
    Rd,
    /// Unreliable datagram.
    Ud,
    /// Congestion notification.
    Cnp,
    /// Extended reliable connection: none of its opcodes are known here.
    Xrc,
    /// Trunkline's shared connection.
    Src,
    /// Manufacturers' range outside Trunkline's opcodes.
    Manufacturer,
}

/// Place of a packet in its message.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Position {
    /// First of several.
    First,
    /// Neither first nor last.
    Middle,
    /// Last of several.
    Last,
    /// First and last.
    Only,
}

impl Position {
    /// A message starts here.
    pub const fn starts(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// A message ends here.
    pub const fn ends(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

/// What a packet does.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Operation {
    /// SEND, with or without immediate or invalidate.
    Send,
    /// RDMA WRITE, with or without immediate.
    Write,
    /// RDMA READ request.
    ReadRequest,
    /// RDMA READ response.
    ReadResponse,
    /// Positive or negative acknowledgement; on shared connections that of packets.
    Acknowledge,
    /// Result of an atomic.
    AtomicResponse,
    /// Atomic compare and swap.
    CompareSwap,
    /// Atomic fetch and add.
    FetchAdd,
    /// Congestion notification.
    CongestionNotification,
    /// Shared connection: answers to requests of QPs.
    Answers,
    /// Shared connection: bindings of QPs.
    Control,
    /// Shared connection: a packet number without content.
    Void,
    /// Shared connection: its end.
    Close,
    /// Shared connection: keep-alive.
    Ping,
    /// Shared connection: messages of QPs that share a packet.
    Packed,
}

/// A header that may follow the BTH.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[repr(u16)]
pub enum Header {
    /// [`Deth`](crate::Deth).
    Deth = 1,
    /// [`SrcExt`](crate::SrcExt).
    SrcExt = 1 << 1,
    /// [`Reth`](crate::Reth).
    Reth = 1 << 2,
    /// [`AtomicEth`](crate::AtomicEth).
    AtomicEth = 1 << 3,
    /// [`Aeth`](crate::Aeth).
    Aeth = 1 << 4,
    /// [`AtomicAckEth`](crate::AtomicAckEth).
    AtomicAckEth = 1 << 5,
    /// [`ImmDt`](crate::ImmDt).
    ImmDt = 1 << 6,
    /// [`Ieth`](crate::Ieth).
    Ieth = 1 << 7,
    /// [`Cnp`](crate::Cnp).
    Cnp = 1 << 8,
}

impl Header {
    /// All of them, in the order in which they stand on the wire.
    pub const ALL: [Self; 9] = [
        Self::Deth,
        Self::SrcExt,
        Self::Reth,
        Self::AtomicEth,
        Self::Aeth,
        Self::AtomicAckEth,
        Self::ImmDt,
        Self::Ieth,
        Self::Cnp,
    ];

    /// Bytes of the header.
    pub const fn length(self) -> usize {
        match self {
            Self::Deth => crate::Deth::LEN,
            Self::SrcExt => crate::SrcExt::LEN,
            Self::Reth => crate::Reth::LEN,
            Self::AtomicEth => crate::AtomicEth::LEN,
            Self::Aeth => crate::Aeth::LEN,
            Self::AtomicAckEth => crate::AtomicAckEth::LEN,
            Self::ImmDt => crate::ImmDt::LEN,
            Self::Ieth => crate::Ieth::LEN,
            Self::Cnp => crate::Cnp::LEN,
        }
    }
}

/// The headers that follow the BTH, in wire order. A header checksum of shared connections
/// (flagged in the [`SrcExt`](crate::SrcExt)) is not among them.
#[derive(Clone, Copy, Default, Eq, Hash, PartialEq)]
pub struct Headers(u16);

impl Headers {
    const fn of(headers: &[Header]) -> Self {
        let mut bits = 0;
        let mut i = 0;
        while i < headers.len() {
            bits |= headers[i] as u16;
            i += 1;
        }
        Self(bits)
    }

    /// These, and `header` too if it is `present`.
    pub(crate) const fn with(self, header: Header, present: bool) -> Self {
        if present {
            Self(self.0 | header as u16)
        } else {
            self
        }
    }

    /// Whether `header` is among them.
    pub const fn contains(self, header: Header) -> bool {
        self.0 & header as u16 != 0
    }

    /// One after the other, in wire order.
    pub fn iter(self) -> impl Iterator<Item = Header> {
        Header::ALL
            .into_iter()
            .filter(move |&header| self.contains(header))
    }

    /// Bytes of all of them.
    pub fn length(self) -> usize {
        self.iter().map(Header::length).sum()
    }

    /// Splits the headers off the front of `buf`, which starts behind the BTH: each with its
    /// bytes, for tools that print what they cannot judge.
    pub fn walk(self, buf: &[u8]) -> impl Iterator<Item = (Header, &[u8])> {
        let mut rest = buf;
        self.iter().map_while(move |header| {
            let (bytes, after) = rest.split_at_checked(header.length())?;
            rest = after;
            Some((header, bytes))
        })
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// What is fixed by an opcode.
#[derive(Clone, Copy)]
struct Shape {
    name: &'static str,
    operation: Operation,
    position: Option<Position>,
    headers: Headers,
    payload: bool,
}

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $code:literal,
        $operation:ident $($position:ident)?, [$($header:ident)*] $($payload:ident)?;)*) => {
        impl Opcode {
            $($(#[$doc])* pub const $name: Self = Self($code);)*

            /// Every opcode known here.
            pub const KNOWN: &[Self] = &[$(Self::$name),*];
        }

        const SHAPES: [Option<Shape>; 256] = {
            let mut shapes = [None; 256];
            $(shapes[$code] = Some(Shape {
                name: stringify!($name),
                operation: Operation::$operation,
                position: position!($($position)?),
                headers: Headers::of(&[$(Header::$header),*]),
                payload: payload!($($payload)?),
            });)*
            shapes
        };
    };
}

macro_rules! position {
    () => {
        None
    };
    ($position:ident) => {
        Some(Position::$position)
    };
}

macro_rules! payload {
    () => {
        false
    };
    (payload) => {
        true
    };
}

opcodes! {
    /// First packet of a SEND.
    RC_SEND_FIRST = 0x00, Send First, [] payload;
    /// Middle packet of a SEND.
    RC_SEND_MIDDLE = 0x01, Send Middle, [] payload;
    /// Last packet of a SEND.
    RC_SEND_LAST = 0x02, Send Last, [] payload;
    /// Last packet of a SEND with immediate.
    RC_SEND_LAST_IMM = 0x03, Send Last, [ImmDt] payload;
    /// Only packet of a SEND.
    RC_SEND_ONLY = 0x04, Send Only, [] payload;
    /// Only packet of a SEND with immediate.
    RC_SEND_ONLY_IMM = 0x05, Send Only, [ImmDt] payload;
    /// First packet of a WRITE.
    RC_WRITE_FIRST = 0x06, Write First, [Reth] payload;
    /// Middle packet of a WRITE.
    RC_WRITE_MIDDLE = 0x07, Write Middle, [] payload;
    /// Last packet of a WRITE.
    RC_WRITE_LAST = 0x08, Write Last, [] payload;
    /// Last packet of a WRITE with immediate.
    RC_WRITE_LAST_IMM = 0x09, Write Last, [ImmDt] payload;
    /// Only packet of a WRITE.
    RC_WRITE_ONLY = 0x0a, Write Only, [Reth] payload;
    /// Only packet of a WRITE with immediate.
    RC_WRITE_ONLY_IMM = 0x0b, Write Only, [Reth ImmDt] payload;
    /// READ request.
    RC_READ_REQUEST = 0x0c, ReadRequest Only, [Reth];
    /// First packet of a READ response.
    RC_READ_RESPONSE_FIRST = 0x0d, ReadResponse First, [Aeth] payload;
    /// Middle packet of a READ response.
    RC_READ_RESPONSE_MIDDLE = 0x0e, ReadResponse Middle, [] payload;
    /// Last packet of a READ response.
    RC_READ_RESPONSE_LAST = 0x0f, ReadResponse Last, [Aeth] payload;
    /// Only packet of a READ response.
    RC_READ_RESPONSE_ONLY = 0x10, ReadResponse Only, [Aeth] payload;
    /// Acknowledgement, positive or negative.
    RC_ACKNOWLEDGE = 0x11, Acknowledge Only, [Aeth];
    /// Result of an atomic.
    RC_ATOMIC_ACKNOWLEDGE = 0x12, AtomicResponse Only, [Aeth AtomicAckEth];
    /// Compare and swap.
    RC_CMP_SWAP = 0x13, CompareSwap Only, [AtomicEth];
    /// Fetch and add.
    RC_FETCH_ADD = 0x14, FetchAdd Only, [AtomicEth];
    /// Last packet of a SEND with invalidate.
    RC_SEND_LAST_INV = 0x16, Send Last, [Ieth] payload;
    /// Only packet of a SEND with invalidate.
    RC_SEND_ONLY_INV = 0x17, Send Only, [Ieth] payload;

    /// First packet of a SEND.
    UC_SEND_FIRST = 0x20, Send First, [] payload;
    /// Middle packet of a SEND.
    UC_SEND_MIDDLE = 0x21, Send Middle, [] payload;
    /// Last packet of a SEND.
    UC_SEND_LAST = 0x22, Send Last, [] payload;
    /// Last packet of a SEND with immediate.
    UC_SEND_LAST_IMM = 0x23, Send Last, [ImmDt] payload;
    /// Only packet of a SEND.
    UC_SEND_ONLY = 0x24, Send Only, [] payload;
    /// Only packet of a SEND with immediate.
    UC_SEND_ONLY_IMM = 0x25, Send Only, [ImmDt] payload;
    /// First packet of a WRITE.
    UC_WRITE_FIRST = 0x26, Write First, [Reth] payload;
    /// Middle packet of a WRITE.
    UC_WRITE_MIDDLE = 0x27, Write Middle, [] payload;
    /// Last packet of a WRITE.
    UC_WRITE_LAST = 0x28, Write Last, [] payload;
    /// Last packet of a WRITE with immediate.
    UC_WRITE_LAST_IMM = 0x29, Write Last, [ImmDt] payload;
    /// Only packet of a WRITE.
    UC_WRITE_ONLY = 0x2a, Write Only, [Reth] payload;
    /// Only packet of a WRITE with immediate.
    UC_WRITE_ONLY_IMM = 0x2b, Write Only, [Reth ImmDt] payload;

    /// Datagram.
    UD_SEND_ONLY = 0x64, Send Only, [Deth] payload;
    /// Datagram with immediate.
    UD_SEND_ONLY_IMM = 0x65, Send Only, [Deth ImmDt] payload;

    /// Congestion notification packet (IBTA annex A17).
    CNP = 0x81, CongestionNotification Only, [Cnp];

    /// Shared connection: SEND.
    SRC_SEND = 0xc0, Send, [SrcExt] payload;
    /// Shared connection: SEND with immediate.
    SRC_SEND_IMM = 0xc1, Send, [SrcExt ImmDt] payload;
    /// Shared connection: SEND with invalidate.
    SRC_SEND_INV = 0xc2, Send, [SrcExt Ieth] payload;
    /// Shared connection: WRITE.
    SRC_WRITE = 0xc3, Write, [SrcExt Reth] payload;
    /// Shared connection: WRITE with immediate.
    SRC_WRITE_IMM = 0xc4, Write, [SrcExt Reth ImmDt] payload;
    /// Shared connection: READ request.
    SRC_READ_REQ = 0xc5, ReadRequest, [SrcExt Reth];
    /// Shared connection: READ data.
    SRC_READ_RESP = 0xc6, ReadResponse, [SrcExt] payload;
    /// Shared connection: compare and swap.
    SRC_CMP_SWAP = 0xc7, CompareSwap, [SrcExt AtomicEth];
    /// Shared connection: fetch and add.
    SRC_FETCH_ADD = 0xc8, FetchAdd, [SrcExt AtomicEth];
    /// Shared connection: result of an atomic, 8 bytes of payload.
    SRC_ATOMIC_RESP = 0xc9, AtomicResponse, [SrcExt] payload;
    /// Shared connection: [answers](crate::Answer).
    SRC_ANSWERS = 0xca, Answers, [SrcExt] payload;
    /// Shared connection: [control entries](crate::Control).
    SRC_CONTROL = 0xcb, Control, [SrcExt] payload;
    /// Shared connection: a packet number without content.
    SRC_VOID = 0xcc, Void, [SrcExt];
    /// Shared connection: [acknowledgement](crate::AckPayload) of packets; takes no packet number.
    SRC_ACK = 0xcd, Acknowledge, [SrcExt] payload;
    /// Shared connection: [its end](crate::Close); takes no packet number.
    SRC_CLOSE = 0xce, Close, [SrcExt] payload;
    /// Shared connection: keep-alive; with padding it asks whether the path carries so much.
    SRC_PING = 0xcf, Ping, [SrcExt] payload;
    /// Shared connection: [records](crate::Record) that share a packet.
    SRC_PACKED = 0xd0, Packed, [SrcExt] payload;
}

static TABLE: [Option<Shape>; 256] = SHAPES;

impl Opcode {
    fn shape(self) -> Option<&'static Shape> {
        TABLE[usize::from(self.0)].as_ref()
    }

    /// Whether this file knows the opcode.
    pub fn is_known(self) -> bool {
        self.shape().is_some()
    }

    /// Its name here, such as `RC_SEND_ONLY`; `UNKNOWN` when it has none.
    pub fn name(self) -> &'static str {
        self.shape().map_or("UNKNOWN", |shape| shape.name)
    }

    /// The transport service of its range.
    pub const fn transport(self) -> Transport {
        match self.0 >> 5 {
            0 => Transport::Rc,
            1 => Transport::Uc,
            2 => Transport::Rd,
            3 => Transport::Ud,
            4 => Transport::Cnp,
            5 => Transport::Xrc,
            _ if self.is_src() => Transport::Src,
            _ => Transport::Manufacturer,
        }
    }

    /// Whether a shared connection of Trunkline uses it.
    pub const fn is_src(self) -> bool {
        matches!(self.0, 0xc0..=0xd0)
    }

    /// Bytes of the headers that stand between the extension header and the payload of a packet of
    /// a shared connection, without the sum over them; 0 when unknown.
    #[inline]
    pub const fn further_length(self) -> usize {
        match self {
            Self::SRC_WRITE | Self::SRC_READ_REQ => Reth::LEN,
            Self::SRC_WRITE_IMM => Reth::LEN + ImmDt::LEN,
            Self::SRC_SEND_IMM => ImmDt::LEN,
            Self::SRC_SEND_INV => Ieth::LEN,
            Self::SRC_CMP_SWAP | Self::SRC_FETCH_ADD => AtomicEth::LEN,
            _ => 0,
        }
    }

    /// What it does; `None` when unknown.
    pub fn operation(self) -> Option<Operation> {
        self.shape().map(|shape| shape.operation)
    }

    /// Place of the packet in its message; `None` when unknown, or when the extension header tells
    /// (shared connections).
    pub fn position(self) -> Option<Position> {
        self.shape().and_then(|shape| shape.position)
    }

    /// The headers behind the BTH; `None` when unknown.
    pub fn headers(self) -> Option<Headers> {
        self.shape().map(|shape| shape.headers)
    }

    /// Whether payload may follow the headers.
    pub fn has_payload(self) -> bool {
        self.shape().is_some_and(|shape| shape.payload)
    }

    fn has(self, header: Header) -> bool {
        self.shape()
            .is_some_and(|shape| shape.headers.contains(header))
    }

    /// Whether a RETH follows.
    pub fn has_reth(self) -> bool {
        self.has(Header::Reth)
    }

    /// Whether an AETH follows.
    pub fn has_aeth(self) -> bool {
        self.has(Header::Aeth)
    }

    /// Whether an AtomicETH follows.
    pub fn has_atomic_eth(self) -> bool {
        self.has(Header::AtomicEth)
    }

    /// Whether a DETH follows.
    pub fn has_deth(self) -> bool {
        self.has(Header::Deth)
    }

    /// Whether immediate data follow.
    pub fn has_imm(self) -> bool {
        self.has(Header::ImmDt)
    }

    /// Whether an IETH follows.
    pub fn has_ieth(self) -> bool {
        self.has(Header::Ieth)
    }

    /// Whether it goes from responder to requester of an RC connection.
    pub fn is_response(self) -> bool {
        matches!(
            self.operation(),
            Some(Operation::ReadResponse | Operation::Acknowledge | Operation::AtomicResponse)
        )
    }

    /// Whether a packet of a shared connection takes a packet number. Acknowledgements and the end
    /// of a connection do not.
    pub const fn is_numbered(self) -> bool {
        self.0 != Self::SRC_ACK.0 && self.0 != Self::SRC_CLOSE.0
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({:#04x})", self.name(), self.0)
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.shape() {
            Some(shape) => f.write_str(shape.name),
            None => write!(f, "opcode {:#04x}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_opcode_has_the_transport_its_name_begins_with() {
        for &opcode in Opcode::KNOWN {
            let prefix = match opcode.transport() {
                Transport::Rc => "RC_",
                Transport::Uc => "UC_",
                Transport::Ud => "UD_",
                Transport::Cnp => "CNP",
                Transport::Src => "SRC_",
                other => panic!("{opcode} is of {other:?}"),
            };
            assert!(opcode.name().starts_with(prefix), "{opcode}");
            assert_eq!(opcode.is_src(), opcode.position().is_none(), "{opcode}");
        }
        assert_eq!(Opcode::KNOWN.len(), 23 + 12 + 2 + 1 + 17);
        assert_eq!(
            (0..=255).filter(|&code| Opcode(code).is_known()).count(),
            55
        );
    }

    #[test]
    fn uc_has_the_sends_and_writes_of_rc_five_bits_apart() {
        for code in 0x00..=0x0b {
            let (rc, uc) = (Opcode(code), Opcode(code | 0x20));
            assert_eq!(rc.headers(), uc.headers());
            assert_eq!(rc.operation(), uc.operation());
            assert_eq!(rc.position(), uc.position());
            assert_eq!(rc.name()[3..], uc.name()[3..]);
        }
    }

    #[test]
    fn headers_add_up_to_the_lengths_on_the_wire() {
        let length = |opcode: Opcode| opcode.headers().map(Headers::length);
        assert_eq!(length(Opcode::RC_SEND_MIDDLE), Some(0));
        assert_eq!(length(Opcode::RC_WRITE_ONLY_IMM), Some(20));
        assert_eq!(length(Opcode::RC_ATOMIC_ACKNOWLEDGE), Some(12));
        assert_eq!(length(Opcode::RC_CMP_SWAP), Some(28));
        assert_eq!(length(Opcode::UD_SEND_ONLY_IMM), Some(12));
        assert_eq!(length(Opcode::CNP), Some(16));
        assert_eq!(length(Opcode::SRC_WRITE_IMM), Some(60));
        assert_eq!(length(Opcode::SRC_PING), Some(40));
        assert_eq!(length(Opcode(0x15)), None);
        for &opcode in Opcode::KNOWN.iter().filter(|opcode| opcode.is_src()) {
            let all = crate::SrcExt::LEN + opcode.further_length();
            assert_eq!(length(opcode), Some(all), "{opcode}");
        }
    }

    #[test]
    fn a_walk_goes_through_the_headers_and_stops_where_bytes_end() {
        let bytes = [7; 60];
        let headers = Opcode::SRC_WRITE_IMM.headers().expect("it is known");
        let seen = |buf| {
            headers
                .walk(buf)
                .map(|(header, _)| header)
                .fold(0, |n, _| n + 1)
        };
        assert_eq!((seen(&bytes), seen(&bytes[..59]), seen(&[])), (3, 2, 0));
        let mut walk = headers.walk(&bytes);
        assert_eq!(walk.next(), Some((Header::SrcExt, &bytes[..40])));
        assert_eq!(walk.next(), Some((Header::Reth, &bytes[40..56])));
        assert_eq!(walk.next(), Some((Header::ImmDt, &bytes[56..])));
    }
}
