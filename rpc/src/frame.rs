//! Entries of messages: docs/rpc-format.md.
//!
//! A message is a run of whole entries. Its immediate word counts receives, and says whether the
//! sender takes no more requests.

use bytes::{Buf, Bytes};
use std::time::Duration;
use trunkline::{Remote, Rkey};

/// Bytes of an entry without what it carries.
pub(crate) const HEADER: usize = 16;
/// Bytes of an extent: address and key. Its length stands in the header.
const EXTENT: usize = 12;
/// Bytes of a place: an extent and its length.
pub(crate) const PLACE: usize = 16;

/// The entry carries an extent instead of bytes.
const AT: u8 = 1;
/// A place for the response stands before what the entry carries.
const PLACED: u8 = 2;

const REQUEST: u8 = 1;
const RESPONSE: u8 = 2;
const WRITTEN: u8 = 3;
const REFUSED: u8 = 4;
const CANCEL: u8 = 5;
const RELEASE: u8 = 6;

/// The immediate word of a message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Word {
    /// Receives that the sender has posted since the beginning, modulo 2^16.
    pub(crate) posted: u16,
    /// The sender takes no more requests.
    pub(crate) drains: bool,
}

impl Word {
    const DRAINS: u32 = 1 << 31;

    pub(crate) const fn emit(self) -> u32 {
        let drains = if self.drains { Self::DRAINS } else { 0 };
        drains | self.posted as u32
    }

    /// # Errors
    /// What is wrong with it.
    pub(crate) const fn parse(word: u32) -> Result<Self, &'static str> {
        if word & 0x7fff_0000 != 0 {
            return Err("reserved bits are set");
        }
        let drains = word & Self::DRAINS != 0;
        let posted = word as u16;
        Ok(Self { posted, drains })
    }
}

/// Bytes in the memory of whoever names them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Extent {
    pub(crate) remote: Remote,
    pub(crate) length: u32,
}

/// What a request or response carries.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Body {
    /// The bytes.
    Here(Bytes),
    /// Where they can be read.
    At(Extent),
}

/// Codes of [`Entry::Refused`] that say why a request has no response.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Reason {
    /// The service says so; the code behind it is the service's.
    Service = 0,
    Overloaded = 1,
    Deadline = 2,
    Cancelled = 3,
    TooLong = 4,
    Draining = 5,
}

/// One thing that an end says.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Entry {
    Request {
        id: u32,
        /// From now on.
        deadline: Option<Duration>,
        /// Where the response is to be written.
        place: Option<Extent>,
        body: Body,
    },
    Response {
        id: u32,
        body: Body,
    },
    /// The response was written to its place.
    Written {
        id: u32,
        length: u32,
    },
    Refused {
        id: u32,
        reason: Reason,
        code: u16,
        text: Bytes,
    },
    /// Nobody waits for the response any more.
    Cancel {
        id: u32,
    },
    /// The bytes of a response at the server were read.
    Release {
        id: u32,
    },
}

/// The fixed part of an entry.
#[derive(Clone, Copy, Default)]
struct Header {
    id: u32,
    kind: u8,
    flags: u8,
    code: u16,
    length: u32,
    /// Microseconds; 0: none. Of a refusal, its reason.
    deadline: u32,
}

impl Header {
    fn emit(self, out: &mut Vec<u8>) {
        let mut header = [0; HEADER];
        header[..4].copy_from_slice(&self.id.to_be_bytes());
        header[4] = self.kind;
        header[5] = self.flags;
        header[6..8].copy_from_slice(&self.code.to_be_bytes());
        header[8..12].copy_from_slice(&self.length.to_be_bytes());
        header[12..].copy_from_slice(&self.deadline.to_be_bytes());
        out.extend_from_slice(&header);
    }

    fn parse(message: &mut Bytes) -> Option<Self> {
        let header: &[u8; HEADER] = message.first_chunk()?;
        let word = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|byte| header[at + byte]));
        let parsed = Self {
            id: word(0),
            kind: header[4],
            flags: header[5],
            code: u16::from_be_bytes([header[6], header[7]]),
            length: word(8),
            deadline: word(12),
        };
        message.advance(HEADER);
        Some(parsed)
    }
}

fn emit_extent(extent: Extent, out: &mut Vec<u8>) {
    out.extend_from_slice(&extent.remote.addr.to_be_bytes());
    out.extend_from_slice(&extent.remote.rkey.0.to_be_bytes());
}

fn emit_body(header: Header, place: Option<Extent>, body: &Body, out: &mut Vec<u8>) {
    let (at, length) = match body {
        Body::Here(bytes) => (0, bytes.len() as u32),
        Body::At(extent) => (AT, extent.length),
    };
    let placed = if place.is_some() { PLACED } else { 0 };
    let flags = at | placed;
    Header {
        flags,
        length,
        ..header
    }
    .emit(out);
    if let Some(place) = place {
        emit_extent(place, out);
        out.extend_from_slice(&place.length.to_be_bytes());
    }
    match body {
        Body::Here(bytes) => out.extend_from_slice(bytes),
        Body::At(extent) => emit_extent(*extent, out),
    }
}

impl Entry {
    /// Appends it to `out`.
    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        let bare = |id, kind| Header {
            id,
            kind,
            ..Header::default()
        };
        match self {
            Self::Request {
                id,
                deadline,
                place,
                body,
            } => {
                let micros = |left: Duration| u32::try_from(left.as_micros()).unwrap_or(u32::MAX);
                let deadline = deadline.map_or(0, |left| micros(left).max(1));
                let header = bare(*id, REQUEST);
                emit_body(Header { deadline, ..header }, *place, body, out);
            }
            Self::Response { id, body } => emit_body(bare(*id, RESPONSE), None, body, out),
            Self::Written { id, length } => {
                let (header, length) = (bare(*id, WRITTEN), *length);
                Header { length, ..header }.emit(out);
            }
            Self::Refused {
                id,
                reason,
                code,
                text,
            } => {
                let (code, deadline) = (*code, *reason as u32);
                let header = Header {
                    code,
                    deadline,
                    ..bare(*id, REFUSED)
                };
                emit_body(header, None, &Body::Here(text.clone()), out);
            }
            Self::Cancel { id } => bare(*id, CANCEL).emit(out),
            Self::Release { id } => bare(*id, RELEASE).emit(out),
        }
    }

    /// Takes the first entry off a message that has some left.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn parse(message: &mut Bytes) -> Result<Self, &'static str> {
        let header = Header::parse(message).ok_or("an entry is cut short")?;
        let id = header.id;
        let entry = match header.kind {
            REQUEST => {
                let place = parse_place(header.flags, message)?;
                let deadline = u64::from(header.deadline);
                Self::Request {
                    id,
                    deadline: (deadline > 0).then(|| Duration::from_micros(deadline)),
                    place,
                    body: parse_body(header, PLACED, message)?,
                }
            }
            RESPONSE => Self::Response {
                id,
                body: parse_body(header, 0, message)?,
            },
            WRITTEN => Self::Written {
                id,
                length: header.length,
            },
            REFUSED => Self::Refused {
                id,
                reason: Reason::parse(header.deadline)?,
                code: header.code,
                text: match parse_body(header, 0, message)? {
                    Body::Here(text) => text,
                    Body::At(_) => return Err("a flag that the entry has not"),
                },
            },
            CANCEL => Self::Cancel { id },
            RELEASE => Self::Release { id },
            _ => return Err("an entry of no kind"),
        };
        entry.check_unused(header)?;
        Ok(entry)
    }

    /// # Errors
    /// A field is set that the entry does not have.
    const fn check_unused(&self, header: Header) -> Result<(), &'static str> {
        let (code, deadline, bare) = match self {
            Self::Request { .. } => (false, true, false),
            Self::Refused { .. } => (true, true, false),
            Self::Response { .. } => (false, false, false),
            Self::Written { .. } => (false, false, true),
            Self::Cancel { .. } | Self::Release { .. } => {
                if header.length != 0 {
                    return Err("a field is set that the entry has not");
                }
                (false, false, true)
            }
        };
        let unused = !code && header.code != 0
            || !deadline && header.deadline != 0
            || bare && header.flags != 0;
        if unused {
            return Err("a field is set that the entry has not");
        }
        Ok(())
    }
}

impl Reason {
    const fn parse(word: u32) -> Result<Self, &'static str> {
        Ok(match word {
            0 => Self::Service,
            1 => Self::Overloaded,
            2 => Self::Deadline,
            3 => Self::Cancelled,
            4 => Self::TooLong,
            5 => Self::Draining,
            _ => return Err("a refusal without a reason"),
        })
    }
}

fn parse_extent(length: u32, message: &mut Bytes) -> Result<Extent, &'static str> {
    if message.len() < EXTENT {
        return Err("an entry is cut short");
    }
    if length == 0 {
        return Err("memory of no bytes");
    }
    let remote = Remote {
        addr: message.get_u64(),
        rkey: Rkey(message.get_u32()),
    };
    Ok(Extent { remote, length })
}

fn parse_place(flags: u8, message: &mut Bytes) -> Result<Option<Extent>, &'static str> {
    if flags & PLACED == 0 {
        return Ok(None);
    }
    if message.len() < PLACE {
        return Err("an entry is cut short");
    }
    let mut extent = parse_extent(1, message)?;
    extent.length = message.get_u32();
    Ok(Some(extent))
}

/// `others`: flags that it may have beside its own.
fn parse_body(header: Header, others: u8, message: &mut Bytes) -> Result<Body, &'static str> {
    if header.flags & !(AT | others) != 0 {
        return Err("a flag that the entry has not");
    }
    if header.flags & AT != 0 {
        return parse_extent(header.length, message).map(Body::At);
    }
    let length = header.length as usize;
    if message.len() < length {
        return Err("an entry is cut short");
    }
    Ok(Body::Here(message.split_to(length)))
}

/// Whether the entry that `out`, which this end has written, begins with is a request.
pub(crate) fn is_request(out: &[u8]) -> bool {
    out[4] == REQUEST
}

/// Whether the entry that `out`, which this end has written, begins with is a response to be read.
pub(crate) fn is_lent(out: &[u8]) -> bool {
    out[4] == RESPONSE && out[5] & AT != 0
}

/// Bytes of the entry that `out`, which this end has written, begins with.
pub(crate) fn size(out: &[u8]) -> usize {
    let word = |at: usize| u32::from_be_bytes([out[at], out[at + 1], out[at + 2], out[at + 3]]);
    let (kind, flags) = (out[4], out[5]);
    let place = if flags & PLACED != 0 { PLACE } else { 0 };
    let carried = match kind {
        REQUEST | RESPONSE | REFUSED if flags & AT == 0 => word(8) as usize,
        REQUEST | RESPONSE => EXTENT,
        _ => 0,
    };
    HEADER + place + carried
}

#[cfg(test)]
#[path = "frame/tests.rs"] // the fuzz targets take this file in from elsewhere
mod tests;
