//! Work requests as they lie in rings.
//!
//! ```text
//! send request                                     receive request
//! word 0   wr_id                                   word 0   wr_id
//! word 1   bits 0-7    opcode, enum ibv_wr_opcode  word 1   elements
//!          bits 8-15   flags, enum ibv_send_flags  word 2.. elements, two words each
//!          bits 16-31  elements, or inline bytes
//!          bits 32-63  immediate, key to invalidate, or new key of a window
//! word 2   remote address; binds: address; datagrams: Q_Key, QP (high half)
//! word 3   remote key; binds: lkey; datagrams: traffic class; route; datagrams: domain (high half)
//! word 4.. atomics: compare or add, swap; binds: bytes, rights; datagrams: GID, big-endian
//! then     elements, two words each: address; length, lkey (high half)
//!          or the inline bytes, little-endian
//! ```
//!
//! Either takes whole slots: one is enough for two elements, 32 inline bytes, an atomic with its
//! element, or a receive of three elements. The consumer reads each word once and believes nothing.

mod request;
mod take;

pub use request::{OWN_BINDING, RecvWr, SendWr};
pub(crate) use take::{take_recv, take_send};

use crate::allowed::Allowed;
use crate::error::VerbsError;
use crate::ring::{Ring, RingMemory, SLOT_WORDS};
use std::sync::atomic::Ordering;
use trunkline_conn::mem::{AtomicOp, Sge};
use trunkline_conn::work::{MAX_MESSAGE, OwnOp, Remote, SendFlags, SendOp};
use trunkline_wire::Rkey;

/// What the requests of one queue may hold.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Limits {
    pub(crate) max_inline: u16,
    pub(crate) max_sge: u8,
    /// Requests name their receivers.
    pub(crate) datagrams: bool,
}

const SEND_HEAD: usize = 4;
const ATOMIC_WORDS: usize = 2;
const GID_WORDS: usize = 2;
const BIND_WORDS: usize = 2;
const RECV_HEAD: usize = 2;
const SGE_WORDS: usize = 2;
const WORD_BYTES: usize = size_of::<u64>();
/// Bytes that an atomic returns.
const ATOMIC_BYTES: u32 = 8;

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
    pub(super) const LOCAL_INVALIDATE: u8 = 7;
    pub(super) const BIND_MW: u8 = 8;
    pub(super) const SEND_INVALIDATE: u8 = 9;
    /// Verbs tell datagrams by the type of their QP, which a ring does not know: ours.
    pub(super) const SEND_TO: u8 = 0x82;
    pub(super) const SEND_TO_IMM: u8 = 0x83;
    /// A datagram of a QP of another type: it fails in its turn, whoever was to get it.
    pub(super) const SEND_ASTRAY: u8 = 0x84;
}

/// Slots of the largest send request within limits, so that a ring can be made large enough.
pub(crate) const fn max_send_slots(limits: Limits) -> u32 {
    // An atomic has one element, so it fits one slot, as everything does that has two.
    let head = if limits.datagrams {
        SEND_HEAD + GID_WORDS
    } else {
        SEND_HEAD
    };
    let sges = head + limits.max_sge as usize * SGE_WORDS;
    let inline = head + (limits.max_inline as usize).div_ceil(WORD_BYTES);
    slots(if sges > inline { sges } else { inline })
}

/// Slots of the largest receive request within limits.
pub(crate) const fn max_recv_slots(limits: Limits) -> u32 {
    slots(RECV_HEAD + limits.max_sge as usize * SGE_WORDS)
}

/// What a program posts.
pub(crate) trait Post {
    /// Writes the request from `slot` on, which has room for any within `limits`; gives the slots
    /// it takes.
    ///
    /// # Errors
    /// What verbs refuse with EINVAL.
    fn write<W: RingMemory>(
        &self,
        limits: Limits,
        ring: &Ring<W>,
        slot: u32,
    ) -> Result<u32, VerbsError>;
}

#[inline]
const fn slots(words: usize) -> u32 {
    words.div_ceil(SLOT_WORDS) as u32
}

impl SendWr<'_> {
    #[inline]
    fn check(&self, limits: Limits) -> Result<(), VerbsError> {
        if self.flags.0 & !FLAGS != 0 {
            return Err(self.bad_flags("there are no such flags"));
        }
        if let Some(inline) = self.inline {
            return self.check_inline(inline, limits);
        }
        if self.flags.contains(SendFlags::INLINE) {
            return Err(self.bad_flags("INLINE is for requests with inline bytes"));
        }
        let length = check_sges(self.sges, limits)?;
        match self.op {
            SendOp::Atomic(..) => self.check_atomic(length),
            SendOp::Own(_) if !self.sges.is_empty() => Err(VerbsError::TooManySge {
                count: self.sges.len() as u32,
                max: 0,
            }),
            _ => Ok(()),
        }
    }

    fn check_inline(&self, inline: &[u8], limits: Limits) -> Result<(), VerbsError> {
        if self.op.has_response_data() {
            return Err(self.bad_flags("READs and atomics have no inline bytes"));
        }
        if matches!(self.op, SendOp::Own(_)) {
            return Err(self.bad_flags("what sends nothing has no inline bytes"));
        }
        if inline.len() > usize::from(limits.max_inline) {
            return Err(VerbsError::InlineTooLong {
                length: u32::try_from(inline.len()).unwrap_or(u32::MAX),
                max: limits.max_inline.into(),
            });
        }
        if !self.sges.is_empty() {
            let count = self.sges.len() as u64;
            return Err(Allowed::Range(0, 0).refuse("num_sge beside inline data", count));
        }
        Ok(())
    }

    const fn check_atomic(&self, length: u32) -> Result<(), VerbsError> {
        let count = self.sges.len() as u32;
        if count > 1 {
            return Err(VerbsError::TooManySge { count, max: 1 });
        }
        if count == 0 {
            return Err(Allowed::Range(1, 1).refuse("num_sge of an atomic", 0));
        }
        if length < ATOMIC_BYTES {
            return Err(VerbsError::BadSge {
                index: 0,
                length,
                least: ATOMIC_BYTES,
            });
        }
        Ok(())
    }

    #[cold]
    const fn bad_flags(&self, why: &'static str) -> VerbsError {
        let bits = self.flags.0;
        VerbsError::BadFlags { bits, why }
    }

    /// Where it goes: its route, or the domain of its address handle.
    #[inline]
    const fn place(&self) -> u32 {
        match self.op {
            SendOp::SendTo(to) => to.pd.0,
            _ => self.route,
        }
    }

    /// Opcode, remote memory, and immediate or key.
    #[inline]
    const fn parts(&self) -> (u8, Remote, u32) {
        const NONE: Remote = Remote {
            addr: 0,
            rkey: Rkey(0),
        };
        match self.op {
            SendOp::Send => (opcode::SEND, NONE, 0),
            SendOp::SendImm(immediate) => (opcode::SEND_IMM, NONE, immediate),
            SendOp::SendInvalidate(key) => (opcode::SEND_INVALIDATE, NONE, key.0),
            SendOp::Own(OwnOp::BindMw(bind)) => {
                let region = Remote {
                    addr: bind.addr,
                    rkey: Rkey(bind.lkey.0),
                };
                (opcode::BIND_MW, region, bind.rkey.0)
            }
            SendOp::Own(OwnOp::Invalidate(key)) => (opcode::LOCAL_INVALIDATE, NONE, key.0),
            SendOp::SendTo(to) => {
                let receiver = Remote {
                    addr: pair(to.qkey, to.qpn.get() | (to.ip.hop_limit() as u32) << 24),
                    rkey: Rkey(to.traffic_class as u32 | to.ip.flow_label() << 8),
                };
                match to.imm {
                    Some(immediate) => (opcode::SEND_TO_IMM, receiver, immediate),
                    None => (opcode::SEND_TO, receiver, 0),
                }
            }
            SendOp::Write(remote) => (opcode::WRITE, remote, 0),
            SendOp::WriteImm(remote, immediate) => (opcode::WRITE_IMM, remote, immediate),
            SendOp::Read(remote) => (opcode::READ, remote, 0),
            SendOp::Atomic(remote, AtomicOp::CompareSwap { .. }) => {
                (opcode::COMPARE_SWAP, remote, 0)
            }
            SendOp::Atomic(remote, AtomicOp::FetchAdd { .. }) => (opcode::FETCH_ADD, remote, 0),
        }
    }
}

impl Post for SendWr<'_> {
    #[inline]
    fn write<W: RingMemory>(
        &self,
        limits: Limits,
        ring: &Ring<W>,
        slot: u32,
    ) -> Result<u32, VerbsError> {
        self.check(limits)?;
        let (mut code, remote, extra) = self.parts();
        let datagram = matches!(self.op, SendOp::SendTo(_));
        if datagram && !limits.datagrams {
            code = opcode::SEND_ASTRAY;
        }
        let (flags, count) = match self.inline {
            Some(inline) => (self.flags.with(SendFlags::INLINE), inline.len()),
            None => (self.flags, self.sges.len()),
        };
        let what = u64::from(code) | u64::from(flags.0) << 8 | (count as u64) << 16;
        let words = ring.slot(slot);
        words[0].store(self.wr_id, Ordering::Relaxed);
        words[1].store(what | u64::from(extra) << 32, Ordering::Relaxed);
        words[2].store(remote.addr, Ordering::Relaxed);
        words[3].store(pair(remote.rkey.0, self.place()), Ordering::Relaxed);
        let data = match self.op {
            SendOp::Atomic(_, op) => {
                let (first, second) = match op {
                    AtomicOp::CompareSwap { compare, swap } => (compare, swap),
                    AtomicOp::FetchAdd { add } => (add, 0),
                };
                words[4].store(first, Ordering::Relaxed);
                words[5].store(second, Ordering::Relaxed);
                SEND_HEAD + ATOMIC_WORDS
            }
            SendOp::Own(OwnOp::BindMw(bind)) => {
                words[4].store(bind.length, Ordering::Relaxed);
                words[5].store(bind.access.bits().into(), Ordering::Relaxed);
                SEND_HEAD + BIND_WORDS
            }
            SendOp::SendTo(to) if limits.datagrams => {
                let gid = u128::from_be_bytes(to.remote.0);
                words[4].store((gid >> 64) as u64, Ordering::Relaxed);
                words[5].store(gid as u64, Ordering::Relaxed);
                SEND_HEAD + GID_WORDS
            }
            _ => SEND_HEAD,
        };
        let end = match self.inline {
            Some(inline) => store_bytes(ring, slot, data, inline),
            None => store_sges(ring, slot, data, self.sges),
        };
        Ok(slots(end))
    }
}

impl Post for RecvWr<'_> {
    #[inline]
    fn write<W: RingMemory>(
        &self,
        limits: Limits,
        ring: &Ring<W>,
        slot: u32,
    ) -> Result<u32, VerbsError> {
        check_sges(self.sges, limits)?;
        let words = ring.slot(slot);
        words[0].store(self.wr_id, Ordering::Relaxed);
        words[1].store(self.sges.len() as u64, Ordering::Relaxed);
        Ok(slots(store_sges(ring, slot, RECV_HEAD, self.sges)))
    }
}

/// Takes the next send request off a ring. On an error the cursor stays.
// Most requests have one or two elements. Their way is written so that values stay in registers
// until they are stored where they belong: what is put together on the stack and moved from there
// makes the processor wait for the small stores before the large loads, longer than all the rest
// takes.
/// Checks what programs list; gives the bytes.
#[inline]
fn check_sges(sges: &[Sge], limits: Limits) -> Result<u32, VerbsError> {
    if sges.len() > usize::from(limits.max_sge) {
        return Err(VerbsError::TooManySge {
            count: u32::try_from(sges.len()).unwrap_or(u32::MAX),
            max: limits.max_sge.into(),
        });
    }
    let length = match sges {
        [sge] => u64::from(sge.length),
        sges => sges.iter().map(|sge| u64::from(sge.length)).sum(),
    };
    if length > u64::from(MAX_MESSAGE) {
        return Err(VerbsError::MessageTooLong {
            length,
            max: MAX_MESSAGE,
        });
    }
    Ok(length as u32)
}

/// Gives the words of the whole entry.
#[inline]
fn store_sges<W: RingMemory>(ring: &Ring<W>, slot: u32, at: usize, sges: &[Sge]) -> usize {
    if let [sge] = sges
        && let [address, rest, ..] = &ring.slot(slot)[at..]
    {
        // Nearly always there is one, in the slot that the entry begins in.
        address.store(sge.addr, Ordering::Relaxed);
        rest.store(pair(sge.length, sge.lkey.0), Ordering::Relaxed);
        return at + SGE_WORDS;
    }
    for (n, sge) in sges.iter().enumerate() {
        ring.store(slot, at + n * SGE_WORDS, sge.addr);
        ring.store(slot, at + n * SGE_WORDS + 1, pair(sge.length, sge.lkey.0));
    }
    at + sges.len() * SGE_WORDS
}

/// Gives the words of the whole entry.
#[inline]
fn store_bytes<W: RingMemory>(ring: &Ring<W>, slot: u32, at: usize, bytes: &[u8]) -> usize {
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
const fn pair(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}
