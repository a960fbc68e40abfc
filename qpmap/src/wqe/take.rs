//! Work requests read back from a ring that the program may have written anything into.

use super::{
    ATOMIC_BYTES, ATOMIC_WORDS, BIND_WORDS, FLAGS, GID_WORDS, Limits, OWN_BINDING, RECV_HEAD,
    SEND_HEAD, SGE_WORDS, WORD_BYTES, opcode, slots,
};
use crate::error::RingError;
use crate::ring::{Cursor, CursorCell, Ring, RingMemory, SLOT_WORDS};
use crate::sync::AtomicU64;
use smallvec::SmallVec;
use std::sync::atomic::Ordering;
use trunkline_conn::mem::{Access, AtomicOp, PdId, Sge};
use trunkline_conn::work::{
    BindMw, Datagram, Local, MAX_MESSAGE, OwnOp, Receive, Remote, Request, SendFlags, SendOp,
};
use trunkline_wire::{Gid, IpFields, Lkey, Qpn, Rkey};

/// Capacities of the lists in [`Request`] before they spill to the heap.
const NEAR_SGES: usize = 3;
const NEAR_BYTES: usize = 64;

/// A send request, its route, and the slots it takes.
type Taken = (Request, u32, u16);

#[inline(always)]
pub(crate) fn take_send<W: RingMemory>(
    ring: &Ring<W>,
    cursor: &mut Cursor,
    limits: Limits,
) -> Result<Option<Taken>, RingError> {
    let have = cursor.available(ring)?;
    if have == 0 {
        return Ok(None);
    }
    let slot = cursor.slot();
    let words = ring.slot(slot);
    let what = words[1].load(Ordering::Relaxed);
    let (code, flags, count, extra) = fields(what);
    let most = usize::from(limits.max_sge).min(2);
    let near =
        count <= most && code <= opcode::READ && flags.0 & !(FLAGS & !SendFlags::INLINE.0) == 0;
    if !near {
        return far_send(ring, cursor, what, have, limits);
    }
    let ([rkey, route], addr) = (halves(load(words, 3)), load(words, 2));
    let [first, second] = near_sges(
        [
            load(words, 4),
            load(words, 5),
            load(words, 6),
            load(words, 7),
        ],
        count,
    );
    let length = u64::from(first.length) + u64::from(second.length);
    if length > u64::from(MAX_MESSAGE) {
        return Err(RingError::MessageTooLong {
            length,
            max: MAX_MESSAGE,
        });
    }
    cursor.advance(1);
    let (wr_id, length, remote) = (
        load(words, 0),
        length as u32,
        Remote {
            addr,
            rkey: Rkey(rkey),
        },
    );
    macro_rules! taken {
        ($op:expr) => {{
            let sges = SmallVec::from_buf_and_len([first, second, Sge::default()], count);
            let local = Local::Sges(sges);
            Ok(Some((
                Request {
                    wr_id,
                    op: $op,
                    flags,
                    length,
                    local,
                },
                route,
                1,
            )))
        }};
    }
    match code {
        opcode::WRITE => taken!(SendOp::Write(remote)),
        opcode::WRITE_IMM => taken!(SendOp::WriteImm(remote, extra)),
        opcode::SEND => taken!(SendOp::Send),
        opcode::SEND_IMM => taken!(SendOp::SendImm(extra)),
        // No other is near.
        _ => taken!(SendOp::Read(remote)),
    }
}

/// Takes a request of any kind; `what` is its word 1, which has been read.
#[inline(never)]
fn far_send<W: RingMemory>(
    ring: &Ring<W>,
    cursor: &mut Cursor,
    what: u64,
    have: u32,
    limits: Limits,
) -> Result<Option<Taken>, RingError> {
    let slot = cursor.slot();
    let (code, flags, count, extra) = fields(what);
    let inline = flags.contains(SendFlags::INLINE);
    let atomic = matches!(code, opcode::COMPARE_SWAP | opcode::FETCH_ADD);
    let own = matches!(code, opcode::LOCAL_INVALIDATE | opcode::BIND_MW);
    if flags.0 & !FLAGS != 0 || inline && (atomic || own || code == opcode::READ) {
        return Err(RingError::BadFlags {
            flags: flags.0 as u8,
        });
    }
    if atomic && count > 1 || own && count > 0 {
        return Err(RingError::TooManySge {
            count: count as u32,
            max: u32::from(atomic),
        });
    }
    let data = SEND_HEAD
        + match code {
            opcode::COMPARE_SWAP | opcode::FETCH_ADD => ATOMIC_WORDS,
            opcode::SEND_TO | opcode::SEND_TO_IMM => GID_WORDS,
            opcode::BIND_MW => BIND_WORDS,
            _ => 0,
        };
    let need = check_slots(
        data + if inline {
            inline_words(count, limits)?
        } else {
            sge_words(count, limits)?
        },
        have,
    )?;

    let (local, length) = if inline {
        (
            Local::Inline(load_bytes(ring, slot, data, count)),
            count as u32,
        )
    } else {
        let (sges, length) = load_sges(ring, slot, data, count)?;
        (Local::Sges(sges), length)
    };
    if atomic && length < ATOMIC_BYTES {
        return Err(RingError::BadAtomic {
            length: length.into(),
        });
    }
    let [rkey, route] = halves(ring.load(slot, 3));
    let remote = Remote {
        addr: ring.load(slot, 2),
        rkey: Rkey(rkey),
    };
    let operand = |n| ring.load(slot, SEND_HEAD + n);
    let op = match code {
        opcode::SEND => SendOp::Send,
        opcode::SEND_IMM => SendOp::SendImm(extra),
        opcode::SEND_INVALIDATE => SendOp::SendInvalidate(Rkey(extra)),
        opcode::BIND_MW => SendOp::Own(OwnOp::BindMw(BindMw {
            rkey: Rkey(extra),
            lkey: Lkey(rkey),
            addr: remote.addr,
            length: operand(0),
            access: Access::from_bits(operand(1) as u32),
        })),
        opcode::LOCAL_INVALIDATE => SendOp::Own(OwnOp::Invalidate(Rkey(extra))),
        opcode::SEND_TO | opcode::SEND_TO_IMM => {
            let [qkey, qpn] = halves(remote.addr);
            let gid = u128::from(operand(0)) << 64 | u128::from(operand(1));
            SendOp::SendTo(Datagram {
                remote: Gid(gid.to_be_bytes()),
                traffic_class: rkey as u8,
                ip: IpFields::new(rkey >> 8, (qpn >> 24) as u8),
                pd: PdId(route),
                node: 0,
                qpn: Qpn::from_wire(qpn),
                qkey,
                imm: (code == opcode::SEND_TO_IMM).then_some(extra),
            })
        }
        opcode::SEND_ASTRAY => SendOp::SendTo(Datagram::default()),
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
    };
    // A datagram's receiver stands where others have a route.
    let route = match op {
        SendOp::SendTo(_) => OWN_BINDING,
        _ => route,
    };
    cursor.advance(need);
    let length = if atomic { ATOMIC_BYTES } else { length };
    let request = Request {
        wr_id: ring.load(slot, 0),
        op,
        flags,
        length,
        local,
    };
    Ok(Some((request, route, need as u16)))
}

/// Takes the next receive request off a ring; gives it with the slots to release, which are the
/// consumer's until then. The consumer's cursor is kept in `state`. On an error the cursor stays.
#[inline(always)]
pub(crate) fn take_recv<W: RingMemory>(
    ring: &Ring<W>,
    state: &CursorCell,
    limits: Limits,
) -> Result<Option<(Receive, u16)>, RingError> {
    let mut cursor = state.get();
    let have = cursor.available(ring)?;
    if have == 0 {
        return Ok(None);
    }
    let words = ring.slot(cursor.slot());
    let count = load(words, 1);
    if count > u64::from(limits.max_sge.min(2)) {
        return far_recv(ring, state, cursor, (count, have), limits);
    }
    let count = count as usize;
    let data = [
        load(words, 2),
        load(words, 3),
        load(words, 4),
        load(words, 5),
    ];
    let [first, second] = near_sges(data, count);
    let length = u64::from(first.length) + u64::from(second.length);
    if length > u64::from(MAX_MESSAGE) {
        return Err(RingError::MessageTooLong {
            length,
            max: MAX_MESSAGE,
        });
    }
    let wr_id = load(words, 0);
    cursor.advance(1);
    state.set(cursor);
    let sges = SmallVec::from_buf_and_len([first, second, Sge::default()], count);
    Ok(Some((Receive { wr_id, sges }, 1)))
}

/// Takes a request of any size; `count` is its word 1, which has been read.
#[inline(never)]
fn far_recv<W: RingMemory>(
    ring: &Ring<W>,
    state: &CursorCell,
    mut cursor: Cursor,
    (count, have): (u64, u32),
    limits: Limits,
) -> Result<Option<(Receive, u16)>, RingError> {
    let slot = cursor.slot();
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let need = check_slots(RECV_HEAD + sge_words(count, limits)?, have)?;
    let (sges, _) = load_sges(ring, slot, RECV_HEAD, count)?;
    let wr_id = ring.load(slot, 0);
    cursor.advance(need);
    state.set(cursor);
    Ok(Some((Receive { wr_id, sges }, need as u16)))
}

/// Opcode, flags, count and extra of a send request's word 1.
#[inline]
const fn fields(what: u64) -> (u8, SendFlags, usize, u32) {
    let flags = SendFlags((what >> 8) as u8 as u32);
    (
        what as u8,
        flags,
        (what >> 16) as u16 as usize,
        (what >> 32) as u32,
    )
}

#[inline]
const fn inline_words(count: usize, limits: Limits) -> Result<usize, RingError> {
    if count > limits.max_inline as usize {
        return Err(RingError::InlineTooLong {
            length: count as u32,
            max: limits.max_inline as u32,
        });
    }
    Ok(count.div_ceil(WORD_BYTES))
}

#[inline]
const fn sge_words(count: usize, limits: Limits) -> Result<usize, RingError> {
    if count > limits.max_sge as usize {
        return Err(RingError::TooManySge {
            count: count as u32,
            max: limits.max_sge as u32,
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

/// The first `count` of two elements; what does not count has no bytes.
#[inline]
const fn near_sges(words: [u64; 2 * SGE_WORDS], count: usize) -> [Sge; 2] {
    let [addr0, rest0, addr1, rest1] = words;
    let (addr0, rest0) = if count > 0 { (addr0, rest0) } else { (0, 0) };
    let (addr1, rest1) = if count > 1 { (addr1, rest1) } else { (0, 0) };
    [sge(addr0, rest0), sge(addr1, rest1)]
}

/// `count` elements from word `at` on, and their bytes together.
fn load_sges<W: RingMemory>(
    ring: &Ring<W>,
    slot: u32,
    at: usize,
    count: usize,
) -> Result<(SmallVec<[Sge; NEAR_SGES]>, u32), RingError> {
    let word = |n| ring.load(slot, at + n);
    let element = |n| sge(word(n * SGE_WORDS), word(n * SGE_WORDS + 1));
    let sges: SmallVec<[Sge; NEAR_SGES]> = (0..count).map(element).collect();
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

/// `count` inline bytes from word `at` on.
#[inline]
fn load_bytes<W: RingMemory>(
    ring: &Ring<W>,
    slot: u32,
    at: usize,
    count: usize,
) -> SmallVec<[u8; NEAR_BYTES]> {
    if count <= NEAR_BYTES {
        let mut near = [0; NEAR_BYTES];
        fill(&mut near, ring, (slot, at), count);
        return SmallVec::from_buf_and_len(near, count);
    }
    let mut far = SmallVec::from_elem(0, count.next_multiple_of(WORD_BYTES));
    fill(&mut far, ring, (slot, at), count);
    far.truncate(count);
    far
}

#[inline]
fn fill<W: RingMemory>(bytes: &mut [u8], ring: &Ring<W>, (slot, at): (u32, usize), count: usize) {
    let words = bytes.as_chunks_mut::<WORD_BYTES>().0;
    for (n, word) in words
        .iter_mut()
        .enumerate()
        .take(count.div_ceil(WORD_BYTES))
    {
        *word = ring.load(slot, at + n).to_le_bytes();
    }
}

#[inline]
fn load(words: &[AtomicU64; SLOT_WORDS], at: usize) -> u64 {
    words[at].load(Ordering::Relaxed)
}

#[inline]
const fn sge(addr: u64, rest: u64) -> Sge {
    let [length, lkey] = halves(rest);
    Sge {
        addr,
        length,
        lkey: Lkey(lkey),
    }
}

#[inline]
const fn halves(word: u64) -> [u32; 2] {
    [word as u32, (word >> 32) as u32]
}
