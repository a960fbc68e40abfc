//! What two nodes tell each other when they meet: private data of REQ (92 bytes) and REP (196
//! bytes, of which 86 are used), big-endian. Reserved bytes are zero and ignored.
//!
//! ```text
//!  REQ                                          REP
//! |          magic "TRNK"          |  0..4     |      magic      |  0..4
//! | version | kind | index | class |  4..8     | version | knows | resvd |  4..8
//! |            token               |  8..12    |      token      |  8..12
//! |         packet size            |  12..16   |   packet size   |  12..16
//! |             GUID               |  16..24   |      GUID       |  16..24
//! |         start epoch            |  24..32   |   start epoch   |  24..32
//! |         first packet           |  32..40   |   first packet  |  32..40
//! |     window      | knows | BINDs|  40..44    |  window  | workers | BOUNDs |  40..44
//! |   three BINDs, 14 bytes each   |  44..86     | three BOUNDs, 14 bytes each
//! | workers | toward |  reserved   |  86..92
//! ```
//!
//! *Workers* counts those of the sending node beside the first. *Toward* is the low byte of the QPN
//! that the connection is wanted for: it shows, to the asked node alone, which of its workers has
//! to answer. 0 where no QP wants it yet.
//!
//! *Knows* has bit 0 set where the sender knows packets that several messages share.
//!
//! The number of the sender's end of the connection is the QPN of the REQ or REP, the low 24 bits
//! of the first packet its starting PSN.

use crate::binds::{Binds, Bounds, Few};
use crate::bytes::{get, put, u16_at, u32_at, u64_at};
use crate::identity::Identity;
use crate::retry::Retry;
use trunkline_wire::Qpn;
use trunkline_wire::Workers;
use trunkline_wire::cm::PrivateData;

pub(crate) const MAGIC: [u8; 4] = *b"TRNK";
pub(crate) const VERSION: u8 = 1;
const PACKET_SIZES: core::ops::RangeInclusive<u32> = 256..=65_535;
/// First packet numbers are below this, so that the numbers never wrap.
const FIRST_PACKET_END: u64 = 1 << 63;
/// Packets that [`Offer::window`] and [`End::window`] count as one.
pub const WINDOW_UNIT: u32 = 64;
const WINDOWS: core::ops::RangeInclusive<u16> = 1..=1024;
const KIND_POOL: u8 = 0;
const KIND_PRIVATE: u8 = 1;
/// Where a REQ or REP says how many workers there are, beside the first, and what its sender knows.
#[derive(Clone, Copy)]
struct Places {
    workers: usize,
    knows: usize,
}

const OF_REQ: Places = Places {
    workers: 86,
    knows: 42,
};
const OF_REP: Places = Places {
    workers: 42,
    knows: 5,
};
const KNOWS_PACKS: u8 = 1;
pub(crate) const TOWARD_AT: usize = 87;

/// What a connection is for.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Purpose {
    /// Place in the pool that the nodes' QPs share, at most [`Purpose::POOL_LAST`]. Between two
    /// nodes there is one connection for each place: simultaneous opens are settled.
    Pool(u8),
    /// Asked for by a program: each is one more connection.
    Private,
}

impl Purpose {
    /// Last place of a pool.
    pub const POOL_LAST: u8 = 254;

    /// One byte of a record.
    pub(crate) const fn to_byte(self) -> u8 {
        match self {
            Self::Pool(index) => index,
            Self::Private => u8::MAX,
        }
    }

    pub(crate) const fn from_byte(byte: u8) -> Self {
        match byte {
            u8::MAX => Self::Private,
            index => Self::Pool(index),
        }
    }
}

/// What one end brings into a connection: its owner's numbers, all but the sizes random.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Offer {
    /// Number of this end: the peer's packets carry it as BTH.DestQP.
    pub connection: Qpn,
    /// Token that the peer's packets have to carry.
    pub token: u32,
    /// Number of the first packet that this end expects of the peer, below 2^63.
    pub first_packet: u64,
    /// Largest datagram (BTH to ICRC) that this end's path carries, in bytes, `256 ..= 65535`.
    pub packet_size: u32,
    /// Packets that this end has room for at once, in units of 64: `1 ..= 1024`.
    pub window: u16,
    /// All workers of this node.
    pub workers: Workers,
    /// It knows packets that several messages share.
    pub packs: bool,
}

/// A question for a peer: a connection, please.
#[derive(Clone, Copy, Debug)]
pub struct ConnectRequest {
    /// This end.
    pub offer: Offer,
    /// What it is for.
    pub purpose: Purpose,
    /// Low byte of a QPN of the peer's: the worker there that has this QP is to answer.
    pub toward: u8,
    /// DSCP (upper six bits) of the connection's packets.
    pub traffic_class: u8,
    /// First BINDs, to spare them the round trip.
    pub binds: Binds,
    /// How patiently the answer is waited for.
    pub retry: Retry,
}

/// What both hellos say of the end that sends them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct End {
    /// Who it is.
    pub identity: Identity,
    /// Token that packets to it have to carry.
    pub token: u32,
    /// Number of the first packet that it expects, below 2^63.
    pub first_packet: u64,
    /// Largest datagram that its path carries, in bytes, `256 ..= 65535`.
    pub packet_size: u32,
    /// Packets that it has room for at once, in units of 64: `1 ..= 1024`.
    pub window: u16,
    /// All workers of its node.
    pub workers: Workers,
    /// It knows packets that several messages share.
    pub packs: bool,
}

/// Private data of a REQ to [`TRUNKLINE_SERVICE`](crate::TRUNKLINE_SERVICE).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Hello {
    /// The asking end.
    pub end: End,
    /// What the connection is for.
    pub purpose: Purpose,
    /// Low byte of a QPN of the asked node: the worker that has this QP is to answer.
    pub toward: u8,
    /// DSCP (upper six bits) of the connection's packets.
    pub traffic_class: u8,
    /// First BINDs.
    pub binds: Binds,
}

/// Private data of the REP that answers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct HelloReply {
    /// The asked end.
    pub end: End,
    /// Consent to BINDs of the REQ.
    pub bounds: Bounds,
}

/// Why private data is no hello.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq, thiserror::Error)]
pub enum HelloError {
    /// It begins with something else: it is not Trunkline's.
    #[error("hello: does not begin with the magic")]
    Magic,
    /// A version that is not spoken here.
    #[error("hello: version {version}, not {VERSION}")]
    Version {
        /// Version it has.
        version: u8,
    },
    /// A field holds a value it may not.
    #[error("hello: {field} is {value}")]
    Invalid {
        /// Field at fault.
        field: &'static str,
        /// What it holds.
        value: u64,
    },
}

pub(crate) const fn invalid<T>(field: &'static str, value: u64) -> Result<T, HelloError> {
    Err(HelloError::Invalid { field, value })
}

impl Offer {
    pub(crate) const fn end(self, identity: Identity) -> End {
        End {
            identity,
            token: self.token,
            first_packet: self.first_packet,
            packet_size: self.packet_size,
            window: self.window,
            workers: self.workers,
            packs: self.packs,
        }
    }
}

impl End {
    fn parse<const N: usize>(bytes: &[u8; N], places: Places) -> Result<Self, HelloError> {
        if get(bytes, 0) != MAGIC {
            return Err(HelloError::Magic);
        }
        if bytes[4] != VERSION {
            return Err(HelloError::Version { version: bytes[4] });
        }
        let further = bytes[places.workers];
        let Some(workers) = further.checked_add(1).and_then(Workers::new) else {
            return invalid("workers", further.into());
        };
        let end = Self {
            identity: Identity {
                guid: u64_at(bytes, 16),
                epoch: u64_at(bytes, 24),
            },
            token: u32_at(bytes, 8),
            first_packet: u64_at(bytes, 32),
            packet_size: u32_at(bytes, 12),
            window: u16_at(bytes, 40),
            workers,
            packs: bytes[places.knows] & KNOWS_PACKS != 0,
        };
        end.check()?;
        Ok(end)
    }

    /// Whether the fields hold what they may.
    pub(crate) fn check(&self) -> Result<(), HelloError> {
        if self.first_packet >= FIRST_PACKET_END {
            return invalid("first packet", self.first_packet);
        }
        if !PACKET_SIZES.contains(&self.packet_size) {
            return invalid("packet size", self.packet_size.into());
        }
        if !WINDOWS.contains(&self.window) {
            return invalid("window", self.window.into());
        }
        Ok(())
    }

    fn emit(&self, out: &mut [u8], places: Places) {
        put(out, 0, MAGIC);
        put(out, 4, [VERSION]);
        put(out, 8, self.token.to_be_bytes());
        put(out, 12, self.packet_size.to_be_bytes());
        put(out, 16, self.identity.guid.to_be_bytes());
        put(out, 24, self.identity.epoch.to_be_bytes());
        put(out, 32, self.first_packet.to_be_bytes());
        put(out, 40, self.window.to_be_bytes());
        put(out, places.workers, [self.workers.count() - 1]);
        put(out, places.knows, [u8::from(self.packs) * KNOWS_PACKS]);
    }
}

impl Hello {
    /// Reads private data.
    ///
    /// # Errors
    /// It is no hello, of another version, or holds what it may not.
    pub fn parse(data: &PrivateData<92>) -> Result<Self, HelloError> {
        let bytes = data.bytes();
        let end = End::parse(bytes, OF_REQ)?;
        let purpose = match bytes[5] {
            KIND_POOL if bytes[6] <= Purpose::POOL_LAST => Purpose::Pool(bytes[6]),
            KIND_POOL => return invalid("pool index", bytes[6].into()),
            KIND_PRIVATE => Purpose::Private,
            kind => return invalid("kind", kind.into()),
        };
        Ok(Self {
            end,
            purpose,
            toward: bytes[TOWARD_AT],
            traffic_class: bytes[7],
            binds: Few::parse(bytes)?,
        })
    }

    /// Writes private data.
    pub fn emit(&self) -> PrivateData<92> {
        let mut out = [0; 92];
        self.end.emit(&mut out, OF_REQ);
        let (kind, index) = match self.purpose {
            Purpose::Pool(index) => (KIND_POOL, index),
            Purpose::Private => (KIND_PRIVATE, 0),
        };
        put(&mut out, 5, [kind, index, self.traffic_class]);
        put(&mut out, TOWARD_AT, [self.toward]);
        self.binds.emit(&mut out);
        PrivateData(out)
    }
}

impl HelloReply {
    /// Reads private data.
    ///
    /// # Errors
    /// It is no hello, of another version, or holds what it may not.
    pub fn parse(data: &PrivateData<196>) -> Result<Self, HelloError> {
        let bytes = data.bytes();
        Ok(Self {
            end: End::parse(bytes, OF_REP)?,
            bounds: Few::parse(bytes)?,
        })
    }

    /// Writes private data.
    pub fn emit(&self) -> PrivateData<196> {
        let mut out = [0; 196];
        self.end.emit(&mut out, OF_REP);
        self.bounds.emit(&mut out);
        PrivateData(out)
    }
}
