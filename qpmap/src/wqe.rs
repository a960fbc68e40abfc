//! Work requests as they lie in rings.
//!
//! ```text
//! send request                                     receive request
//! word 0   wr_id                                   word 0   wr_id
//! word 1   bits 0-7    opcode, enum ibv_wr_opcode  word 1   elements
//!          bits 8-15   flags, enum ibv_send_flags  word 2.. elements, two words each
//!          bits 16-31  elements, or inline bytes
//!          bits 32-63  immediate, or key to invalidate
//! word 2   remote address
//! word 3   remote key, route (high half)
//! word 4.. atomics only: compare or add, swap
//! then     elements, two words each: address; length, lkey (high half)
//!          or the inline bytes, little-endian
//! ```
//!
//! Either takes whole slots: one is enough for two elements, 32 inline bytes, an atomic with its
//! element, or a receive of three elements. The consumer reads each word once and believes nothing.

use crate::error::{RingError, VerbsError};
use crate::ring::{Ring, SLOT_WORDS, Words};
use smallvec::SmallVec;
use trunkline_conn::mem::{AtomicOp, Sge};
use trunkline_conn::work::{
    Local, MAX_INLINE, MAX_MESSAGE, MAX_SGE, Receive, Remote, Request, SendFlags, SendOp,
};
use trunkline_wire::{Lkey, Rkey};

/// Route of a request that goes where its QP is bound.
pub const OWN_BINDING: u32 = 0;

/// A send work request, as a program posts it (`struct ibv_send_wr`).
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// Cookie for its completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// How. [`SendFlags::INLINE`] goes without saying where `inline` is given.
    pub flags: SendFlags,
    /// From where, or, for READ and atomics, to where. Empty where `inline` is given.
    pub sges: &'a [Sge],
    /// The message itself, copied when posted.
    pub inline: Option<&'a [u8]>,
    /// Where to: [`OWN_BINDING`], or a route that an app-managed QP opened.
    pub route: u32,
}

/// A receive work request, as a program posts it (`struct ibv_recv_wr`).
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    /// Cookie for its completion.
    pub wr_id: u64,
    /// Where the message goes.
    pub sges: &'a [Sge],
}

/// What the requests of one queue may hold.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Limits {
    pub(crate) max_inline: u16,
    pub(crate) max_sge: u8,
}

const SEND_HEAD: usize = 4;
const ATOMIC_WORDS: usize = 2;
const RECV_HEAD: usize = 2;
const SGE_WORDS: usize = 2;
const WORD_BYTES: usize = size_of::<u64>();
/// Bytes that an atomic returns.
const ATOMIC_BYTES: u32 = 8;
/// Capacities of the lists in [`Request`] before they spill to the heap.
const NEAR_SGES: usize = 3;
const NEAR_BYTES: usize = 48;

const FLAGS: u32 =
    SendFlags::FENCE.0 | SendFlags::SIGNALED.0 | SendFlags::SOLICITED.0 | SendFlags::INLINE.0;

/// Values of `enum ibv_wr_opcode`.
mod opcode {
    pub(super) const WRITE: u8 = 0;
    pub(super) const WRITE_IMM: u8 = 1;
    pub(super) const SEND: u8 = 2;
    pub(super) const SEND_IMM: u8 = 3;
    pub(super) const READ: u8 = 4;
    pub(super) const COMPARE_SWAP: u8 = 5;
    pub(super) const FETCH_ADD: u8 = 6;
    pub(super) const SEND_INVALIDATE: u8 = 9;
}

/// Slots of the largest send request within limits, so that a ring can be made large enough.
pub(crate) const fn max_send_slots(limits: Limits) -> u32 {
    let sges = SEND_HEAD + ATOMIC_WORDS + limits.max_sge as usize * SGE_WORDS;
    // An atomic has no inline bytes.
    let inline = SEND_HEAD + (limits.max_inline as usize).div_ceil(WORD_BYTES);
    slots(if sges > inline { sges } else { inline })
}

/// Slots of the largest receive request within limits.
pub(crate) const fn max_recv_slots(limits: Limits) -> u32 {
    slots(RECV_HEAD + limits.max_sge as usize * SGE_WORDS)
}

/// What a program posts.
pub(crate) trait Entry {
    /// Refuses what verbs refuse with EINVAL.
    fn check(&self, limits: Limits) -> Result<(), VerbsError>;

    /// Writes the request, which [`check`](Self::check) has passed, from `slot` on; gives the slots
    /// it takes.
    fn encode<W: Words>(&self, ring: &Ring<W>, slot: u32) -> u32;
}

#[inline]
const fn slots(words: usize) -> u32 {
    words.div_ceil(SLOT_WORDS) as u32
}

impl SendWr<'_> {
    fn check_inline(&self, inline: &[u8], limits: Limits) -> Result<(), VerbsError> {
        if self.op.has_response_data() {
            return Err(self.bad_flags());
        }
        if inline.len() > usize::from(limits.max_inline) {
            return Err(VerbsError::InlineTooLong {
                length: u32::try_from(inline.len()).unwrap_or(u32::MAX),
                max: limits.max_inline.into(),
            });
        }
        if !self.sges.is_empty() {
            return Err(VerbsError::BadAttribute {
                what: "num_sge beside inline data",
                value: self.sges.len() as u64,
            });
        }
        Ok(())
    }

    const fn bad_flags(&self) -> VerbsError {
        VerbsError::BadAttribute {
            what: "send_flags",
            value: self.flags.0 as u64,
        }
    }
}

impl Entry for SendWr<'_> {
    #[inline]
    fn check(&self, limits: Limits) -> Result<(), VerbsError> {
        if self.flags.0 & !FLAGS != 0 {
            return Err(self.bad_flags());
        }
        if let Some(inline) = self.inline {
            return self.check_inline(inline, limits);
        }
        if self.flags.contains(SendFlags::INLINE) {
            return Err(self.bad_flags());
        }
        let length = check_sges(self.sges, limits)?;
        if matches!(self.op, SendOp::Atomic(..)) && length < ATOMIC_BYTES {
            return Err(VerbsError::BadSge { index: 0, length });
        }
        Ok(())
    }

    #[inline]
    fn encode<W: Words>(&self, ring: &Ring<W>, slot: u32) -> u32 {
        let none = Remote::default();
        let (code, remote, extra) = match self.op {
            SendOp::Send => (opcode::SEND, none, 0),
            SendOp::SendImm(immediate) => (opcode::SEND_IMM, none, immediate),
            SendOp::SendInvalidate(key) => (opcode::SEND_INVALIDATE, none, key.0),
            SendOp::Write(remote) => (opcode::WRITE, remote, 0),
            SendOp::WriteImm(remote, immediate) => (opcode::WRITE_IMM, remote, immediate),
            SendOp::Read(remote) => (opcode::READ, remote, 0),
            SendOp::Atomic(remote, AtomicOp::CompareSwap { .. }) => {
                (opcode::COMPARE_SWAP, remote, 0)
            }
            SendOp::Atomic(remote, AtomicOp::FetchAdd { .. }) => (opcode::FETCH_ADD, remote, 0),
        };
        let (flags, count) = match self.inline {
            Some(inline) => (self.flags.with(SendFlags::INLINE), inline.len()),
            None => (self.flags, self.sges.len()),
        };
        let what = u64::from(code) | u64::from(flags.0) << 8 | (count as u64) << 16;
        ring.store(slot, 0, self.wr_id);
        ring.store(slot, 1, what | u64::from(extra) << 32);
        ring.store(slot, 2, remote.addr);
        ring.store(slot, 3, pair(remote.rkey.0, self.route));
        let mut at = SEND_HEAD;
        if let SendOp::Atomic(_, op) = self.op {
            let (first, second) = match op {
                AtomicOp::CompareSwap { compare, swap } => (compare, swap),
                AtomicOp::FetchAdd { add } => (add, 0),
            };
            ring.store(slot, at, first);
            ring.store(slot, at + 1, second);
            at += ATOMIC_WORDS;
        }
        slots(match self.inline {
            Some(inline) => store_bytes(ring, slot, at, inline),
            None => store_sges(ring, slot, at, self.sges),
        })
    }
}

impl Entry for RecvWr<'_> {
    #[inline]
    fn check(&self, limits: Limits) -> Result<(), VerbsError> {
        check_sges(self.sges, limits).map(|_| ())
    }

    #[inline]
    fn encode<W: Words>(&self, ring: &Ring<W>, slot: u32) -> u32 {
        ring.store(slot, 0, self.wr_id);
        ring.store(slot, 1, self.sges.len() as u64);
        slots(store_sges(ring, slot, RECV_HEAD, self.sges))
    }
}

/// Reads the send request at `slot`, where `have` slots are filled. Gives the request, its route and
/// the slots it takes.
#[inline]
pub(crate) fn decode_send<W: Words>(
    ring: &Ring<W>,
    slot: u32,
    have: u32,
) -> Result<(Request, u32, u16), RingError> {
    let what = ring.load(slot, 1);
    let (code, flags, count) = (
        what as u8,
        (what >> 8) as u8,
        usize::from((what >> 16) as u16),
    );
    if u32::from(flags) & !FLAGS != 0 {
        return Err(RingError::BadFlags { flags });
    }
    let flags = SendFlags(flags.into());
    let atomic = matches!(code, opcode::COMPARE_SWAP | opcode::FETCH_ADD);
    let inline = flags.contains(SendFlags::INLINE);
    let data = if inline {
        if atomic || code == opcode::READ {
            return Err(RingError::BadFlags {
                flags: flags.0 as u8,
            });
        }
        inline_words(count)?
    } else {
        sge_words(count)?
    };
    let at = SEND_HEAD + if atomic { ATOMIC_WORDS } else { 0 };
    let need = check_slots(at + data, have)?;

    let [rkey, route] = halves(ring.load(slot, 3));
    let remote = Remote {
        addr: ring.load(slot, 2),
        rkey: Rkey(rkey),
    };
    let op = operation(ring, slot, code, remote, (what >> 32) as u32)?;
    let (local, length) = if inline {
        (
            Local::Inline(load_bytes(ring, slot, at, count)),
            count as u32,
        )
    } else {
        let (sges, length) = load_sges(ring, slot, at, count)?;
        (Local::Sges(sges), length)
    };
    let length = match op {
        SendOp::Atomic(..) if length < ATOMIC_BYTES => {
            return Err(RingError::BadAtomic {
                length: length.into(),
            });
        }
        SendOp::Atomic(..) => ATOMIC_BYTES,
        _ => length,
    };
    let request = Request {
        wr_id: ring.load(slot, 0),
        op,
        flags,
        length,
        local,
    };
    Ok((request, route, need as u16))
}

/// Reads the receive request at `slot`, where `have` slots are filled. Gives it and its slots.
#[inline]
pub(crate) fn decode_recv<W: Words>(
    ring: &Ring<W>,
    slot: u32,
    have: u32,
) -> Result<(Receive, u32), RingError> {
    let count = usize::try_from(ring.load(slot, 1)).unwrap_or(usize::MAX);
    let need = check_slots(RECV_HEAD + sge_words(count)?, have)?;
    let (sges, _) = load_sges(ring, slot, RECV_HEAD, count)?;
    Ok((
        Receive {
            wr_id: ring.load(slot, 0),
            sges,
        },
        need,
    ))
}

#[inline]
fn operation<W: Words>(
    ring: &Ring<W>,
    slot: u32,
    code: u8,
    remote: Remote,
    extra: u32,
) -> Result<SendOp, RingError> {
    let operand = |n: usize| ring.load(slot, SEND_HEAD + n);
    Ok(match code {
        opcode::SEND => SendOp::Send,
        opcode::SEND_IMM => SendOp::SendImm(extra),
        opcode::SEND_INVALIDATE => SendOp::SendInvalidate(Rkey(extra)),
        opcode::WRITE => SendOp::Write(remote),
        opcode::WRITE_IMM => SendOp::WriteImm(remote, extra),
        opcode::READ => SendOp::Read(remote),
        opcode::COMPARE_SWAP => {
            let op = AtomicOp::CompareSwap {
                compare: operand(0),
                swap: operand(1),
            };
            SendOp::Atomic(remote, op)
        }
        opcode::FETCH_ADD => SendOp::Atomic(remote, AtomicOp::FetchAdd { add: operand(0) }),
        opcode => return Err(RingError::UnknownOpcode { opcode }),
    })
}

/// Checks what programs list; gives the bytes.
#[inline]
fn check_sges(sges: &[Sge], limits: Limits) -> Result<u32, VerbsError> {
    if sges.len() > usize::from(limits.max_sge) {
        return Err(VerbsError::TooManySge {
            count: u32::try_from(sges.len()).unwrap_or(u32::MAX),
            max: limits.max_sge.into(),
        });
    }
    let length = sges.iter().map(|sge| u64::from(sge.length)).sum();
    if length > u64::from(MAX_MESSAGE) {
        return Err(VerbsError::MessageTooLong {
            length,
            max: MAX_MESSAGE,
        });
    }
    Ok(length as u32)
}

#[inline]
const fn inline_words(count: usize) -> Result<usize, RingError> {
    if count > MAX_INLINE {
        return Err(RingError::InlineTooLong {
            length: count as u32,
            max: MAX_INLINE as u32,
        });
    }
    Ok(count.div_ceil(WORD_BYTES))
}

#[inline]
const fn sge_words(count: usize) -> Result<usize, RingError> {
    if count > MAX_SGE {
        return Err(RingError::TooManySge {
            count: count as u32,
            max: MAX_SGE as u32,
        });
    }
    Ok(count * SGE_WORDS)
}

#[inline]
const fn check_slots(words: usize, have: u32) -> Result<u32, RingError> {
    let need = slots(words);
    if need > have {
        Err(RingError::Truncated { need, have })
    } else {
        Ok(need)
    }
}

/// Gives the words of the whole entry.
#[inline]
fn store_sges<W: Words>(ring: &Ring<W>, slot: u32, at: usize, sges: &[Sge]) -> usize {
    for (n, sge) in sges.iter().enumerate() {
        ring.store(slot, at + n * SGE_WORDS, sge.addr);
        ring.store(slot, at + n * SGE_WORDS + 1, pair(sge.length, sge.lkey.0));
    }
    at + sges.len() * SGE_WORDS
}

#[inline]
fn load_sge<W: Words>(ring: &Ring<W>, slot: u32, at: usize, n: usize) -> Sge {
    let [length, lkey] = halves(ring.load(slot, at + n * SGE_WORDS + 1));
    Sge {
        addr: ring.load(slot, at + n * SGE_WORDS),
        length,
        lkey: Lkey(lkey),
    }
}

#[inline]
fn load_sges<W: Words>(
    ring: &Ring<W>,
    slot: u32,
    at: usize,
    count: usize,
) -> Result<(SmallVec<[Sge; NEAR_SGES]>, u32), RingError> {
    let sges: SmallVec<[Sge; NEAR_SGES]> = if count <= NEAR_SGES {
        let mut near = [Sge::default(); NEAR_SGES];
        for (n, sge) in near.iter_mut().enumerate().take(count) {
            *sge = load_sge(ring, slot, at, n);
        }
        SmallVec::from_buf_and_len(near, count)
    } else {
        (0..count).map(|n| load_sge(ring, slot, at, n)).collect()
    };
    // At most 16 times 2^32.
    let length: u64 = sges.iter().map(|sge| u64::from(sge.length)).sum();
    if length > u64::from(MAX_MESSAGE) {
        return Err(RingError::MessageTooLong {
            length,
            max: MAX_MESSAGE,
        });
    }
    Ok((sges, length as u32))
}

/// Gives the words of the whole entry.
#[inline]
fn store_bytes<W: Words>(ring: &Ring<W>, slot: u32, at: usize, bytes: &[u8]) -> usize {
    let (whole, rest) = bytes.as_chunks::<WORD_BYTES>();
    for (n, word) in whole.iter().enumerate() {
        ring.store(slot, at + n, u64::from_le_bytes(*word));
    }
    if !rest.is_empty() {
        let mut last = [0; WORD_BYTES];
        last[..rest.len()].copy_from_slice(rest);
        ring.store(slot, at + whole.len(), u64::from_le_bytes(last));
    }
    at + bytes.len().div_ceil(WORD_BYTES)
}

#[inline]
fn load_bytes<W: Words>(
    ring: &Ring<W>,
    slot: u32,
    at: usize,
    count: usize,
) -> SmallVec<[u8; NEAR_BYTES]> {
    let mut near = [0; NEAR_BYTES];
    let mut far = [0; MAX_INLINE];
    let buffer = if count <= NEAR_BYTES {
        &mut near[..]
    } else {
        &mut far[..]
    };
    let words = buffer.as_chunks_mut::<WORD_BYTES>().0;
    for (n, word) in words
        .iter_mut()
        .enumerate()
        .take(count.div_ceil(WORD_BYTES))
    {
        *word = ring.load(slot, at + n).to_le_bytes();
    }
    if count <= NEAR_BYTES {
        SmallVec::from_buf_and_len(near, count)
    } else {
        SmallVec::from_slice(&far[..count])
    }
}

#[inline]
const fn pair(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

#[inline]
const fn halves(word: u64) -> [u32; 2] {
    [word as u32, (word >> 32) as u32]
}
