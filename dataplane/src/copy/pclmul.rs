//! The kernel for x86 CPUs with PCLMULQDQ: 16 bytes per step, four sums side by side. The last 1 to
//! 16 bytes go in pieces, the very last one by itself.

use super::{fold, resume};
use core::arch::asm;
use core::arch::x86_64::{
    __m128i, _mm_clmulepi64_si128, _mm_cvtsi32_si128, _mm_extract_epi32, _mm_set_epi64x,
    _mm_srli_si128, _mm_xor_si128,
};
use std::ops::RangeInclusive;

/// Bytes of a block.
const BLOCK: usize = 16;
/// From this many blocks on, four sums run side by side.
const WIDE_FROM: usize = 8;

/// Bytes that [`sum`] is the quickest for: with more, several sums side by side are.
pub(super) const SUMS: RangeInclusive<usize> = BLOCK..=127;
/// Bytes of a state: what is shorter does not hold all of it.
const STATE: usize = 4;

pub(super) fn is_available() -> bool {
    is_x86_feature_detected!("pclmulqdq") && is_x86_feature_detected!("sse4.1")
}

/// Copies ascending, the last byte last.
///
/// # Safety
/// [`is_available`]; `src` readable and `dst` writable for `length` bytes, not overlapping.
#[inline(never)]
pub(super) unsafe fn copy(mut dst: *mut u8, mut src: *const u8, length: usize) {
    let mut left = length;
    while left > 4 * BLOCK {
        // SAFETY: more than four blocks are left at both addresses.
        unsafe { relay4(dst, src) };
        (dst, src) = (dst.wrapping_add(4 * BLOCK), src.wrapping_add(4 * BLOCK));
        left -= 4 * BLOCK;
    }
    while left > BLOCK {
        // SAFETY: more than a block is left at both addresses.
        unsafe { relay::<0>(dst, src) };
        (dst, src) = (dst.wrapping_add(BLOCK), src.wrapping_add(BLOCK));
        left -= BLOCK;
    }
    // SAFETY: what is left, at most a block.
    unsafe { move_bytes(dst, src, left) };
}

/// Copies as [`copy`] does and sums.
///
/// # Safety
/// As [`copy`].
#[target_feature(enable = "pclmulqdq,sse4.1")]
pub(super) unsafe fn copy_crc(
    mut dst: *mut u8,
    mut src: *const u8,
    length: usize,
    state: u32,
) -> u32 {
    let mut blocks = length.saturating_sub(1) / BLOCK;
    if blocks == 0 {
        // SAFETY: the caller's promise; at most a block.
        return unsafe { small(dst, src, length, state) };
    }
    let tail = length - blocks * BLOCK;
    let state = _mm_cvtsi32_si128((!state).cast_signed());
    let (mut sum, first) = if blocks >= WIDE_FROM {
        // SAFETY: so many groups of four blocks are there at both addresses.
        (
            unsafe { copy_crc_wide(dst, src, blocks / 4, state) },
            blocks / 4 * 4,
        )
    } else {
        // SAFETY: a block is there at both addresses.
        let block = unsafe { relay::<0>(dst, src) };
        (_mm_xor_si128(block, state), 1)
    };
    (dst, src) = (
        dst.wrapping_add(first * BLOCK),
        src.wrapping_add(first * BLOCK),
    );
    blocks -= first;
    let step = multiplier(const { fold::by(128) });
    for _ in 0..blocks {
        // SAFETY: a block is left at both addresses.
        let block = unsafe { relay::<0>(dst, src) };
        sum = folded(sum, step, block);
        (dst, src) = (dst.wrapping_add(BLOCK), src.wrapping_add(BLOCK));
    }
    let state = reduce(sum);
    // SAFETY: what is left, at most a block.
    unsafe { small(dst, src, tail, state) }
}

/// Copies and sums `groups` groups of four blocks, `state` being added to the first block.
///
/// # Safety
/// So many must be readable at `src` and writable at `dst`, at least one.
#[inline]
#[target_feature(enable = "pclmulqdq,sse4.1")]
unsafe fn copy_crc_wide(
    mut dst: *mut u8,
    mut src: *const u8,
    groups: usize,
    state: __m128i,
) -> __m128i {
    // SAFETY: a group is there at both addresses.
    let mut sums = unsafe { relay4(dst, src) };
    sums[0] = _mm_xor_si128(sums[0], state);
    let step = multiplier(const { fold::by(4 * 128) });
    for _ in 1..groups {
        (dst, src) = (dst.wrapping_add(4 * BLOCK), src.wrapping_add(4 * BLOCK));
        // SAFETY: as above.
        let [a, b, c, d] = unsafe { relay4(dst, src) };
        sums = [
            folded(sums[0], step, a),
            folded(sums[1], step, b),
            folded(sums[2], step, c),
            folded(sums[3], step, d),
        ];
    }
    let step = multiplier(const { fold::by(128) });
    let sum = folded(sums[0], step, sums[1]);
    folded(folded(sum, step, sums[2]), step, sums[3])
}

#[inline]
#[target_feature(enable = "sse4.1")]
fn multiplier([low, high]: [u64; 2]) -> __m128i {
    _mm_set_epi64x(high.cast_signed(), low.cast_signed())
}

/// `sum` moved by what `multipliers` say, plus `block`.
#[inline]
#[target_feature(enable = "pclmulqdq,sse4.1")]
fn folded(sum: __m128i, multipliers: __m128i, block: __m128i) -> __m128i {
    let low = _mm_clmulepi64_si128(sum, multipliers, 0x00);
    let high = _mm_clmulepi64_si128(sum, multipliers, 0x11);
    _mm_xor_si128(_mm_xor_si128(low, high), block)
}

/// The CRC of a message whose folded sum is `sum`.
#[inline]
#[target_feature(enable = "pclmulqdq,sse4.1")]
pub(super) fn reduce(sum: __m128i) -> u32 {
    let [_, second] = const { fold::by(128) };
    let barrett = const { (fold::QUOTIENT.cast_signed(), fold::POLYNOMIAL.cast_signed()) };
    let barrett = _mm_set_epi64x(barrett.0, barrett.1);
    // The sum times x^32, as 96 bits.
    let rest = _mm_xor_si128(
        _mm_clmulepi64_si128(sum, multiplier([second, 0]), 0x00),
        _mm_srli_si128(sum, 8),
    );
    let quotient = _mm_clmulepi64_si128(rest, barrett, 0x10);
    let product = _mm_clmulepi64_si128(quotient, barrett, 0x00);
    !_mm_extract_epi32(_mm_xor_si128(product, rest), 2).cast_unsigned()
}

/// The CRC-32 of `state`'s bytes followed by `bytes`: one sum, as headers are short.
#[target_feature(enable = "pclmulqdq,sse4.1")]
pub(super) fn sum(bytes: &[u8], state: u32) -> u32 {
    let Some(first) = bytes.first_chunk() else {
        return resume(state, bytes);
    };
    // The message is padded with zeros in front, which add nothing.
    let zeros = bytes.len().wrapping_neg() % BLOCK;
    let begins = u128::from(!state);
    let mut sum = vector((u128::from_le_bytes(*first) ^ begins) << (8 * zeros));
    // The state of a message that begins in the last three bytes of the first block reaches into
    // the second.
    let head = BLOCK - zeros;
    let mut pending = if head < STATE {
        begins >> (8 * head)
    } else {
        0
    };
    let step = multiplier(const { fold::by(128) });
    for block in bytes[head..].as_chunks().0 {
        sum = folded(sum, step, vector(u128::from_le_bytes(*block) ^ pending));
        pending = 0;
    }
    reduce(sum)
}

#[inline]
#[target_feature(enable = "sse4.1")]
fn vector(bits: u128) -> __m128i {
    _mm_set_epi64x((bits >> 64) as i64, bits as i64)
}

/// Copies at most a block, the last byte last, and sums it.
///
/// # Safety
/// [`is_available`]; `src` readable and `dst` writable for `length` bytes, at most 16.
#[inline]
#[target_feature(enable = "pclmulqdq,sse4.1")]
pub(super) unsafe fn small(dst: *mut u8, src: *const u8, length: usize, state: u32) -> u32 {
    // SAFETY: the caller's promise.
    let copied = unsafe { move_bytes(dst, src, length) };
    if length < STATE {
        return resume(state, &copied.to_le_bytes()[..length]);
    }
    reduce(vector(
        (copied ^ u128::from(!state)) << (8 * (BLOCK - length)),
    ))
}

/// Copies at most a block, the last byte last, and gives what it copied, the first byte lowest.
///
/// # Safety
/// `src` readable and `dst` writable for `length` bytes, at most 16.
#[inline]
unsafe fn move_bytes(dst: *mut u8, src: *const u8, length: usize) -> u128 {
    let Some(last) = length.checked_sub(1) else {
        return 0;
    };
    let (mut copied, mut at) = (0, 0);
    if last & 8 != 0 {
        // SAFETY: 8 bytes are there, and the last one behind them.
        copied = unsafe { relay_eight(dst, src) }.into();
        at = 8;
    }
    if last & 4 != 0 {
        // SAFETY: 4 bytes are there from `at` on, and the last one behind them.
        let piece = unsafe { relay_four(dst.wrapping_add(at), src.wrapping_add(at)) };
        copied |= u128::from(piece) << (8 * at);
        at += 4;
    }
    if last & 2 != 0 {
        // SAFETY: as above, 2 bytes.
        let piece = unsafe { relay_two(dst.wrapping_add(at), src.wrapping_add(at)) };
        copied |= u128::from(piece) << (8 * at);
        at += 2;
    }
    while at <= last {
        // SAFETY: inside the range: one byte, or the last two.
        let piece = unsafe { relay_one(dst.wrapping_add(at), src.wrapping_add(at)) };
        copied |= u128::from(piece) << (8 * at);
        at += 1;
    }
    copied
}

/// A function that copies one integer and gives what it copied.
macro_rules! relay {
    ($name:ident, $integer:ty, $class:ident, $load:literal, $store:literal) => {
        /// Copies an integer and gives what it copied.
        ///
        /// # Safety
        /// Its bytes must be readable at `src` and writable at `dst`.
        #[inline]
        unsafe fn $name(dst: *mut u8, src: *const u8) -> $integer {
            let piece: $integer;
            // SAFETY: as `relay`.
            unsafe {
                asm!(
                    $load,
                    $store,
                    piece = out($class) piece,
                    src = in(reg) src,
                    dst = in(reg) dst,
                    options(nostack, preserves_flags),
                );
            }
            piece
        }
    };
}

relay!(
    relay_eight,
    u64,
    reg,
    "mov {piece}, qword ptr [{src}]",
    "mov qword ptr [{dst}], {piece}"
);
relay!(
    relay_four,
    u32,
    reg,
    "mov {piece:e}, dword ptr [{src}]",
    "mov dword ptr [{dst}], {piece:e}"
);
relay!(
    relay_two,
    u16,
    reg,
    "mov {piece:x}, word ptr [{src}]",
    "mov word ptr [{dst}], {piece:x}"
);
relay!(
    relay_one,
    u8,
    reg_byte,
    "mov {piece}, byte ptr [{src}]",
    "mov byte ptr [{dst}], {piece}"
);

/// Copies a block and gives what it copied.
///
/// # Safety
/// 16 bytes must be readable at `src + OFFSET` and writable at `dst + OFFSET`.
#[inline]
unsafe fn relay<const OFFSET: usize>(dst: *mut u8, src: *const u8) -> __m128i {
    let block: __m128i;
    // SAFETY: reads and writes what the caller vouches for, once; opaque to the optimiser, so that
    // a racing writer only decides which bytes are found; asm blocks keep their order.
    unsafe {
        asm!(
            "movdqu {block}, xmmword ptr [{src} + {offset}]",
            "movdqu xmmword ptr [{dst} + {offset}], {block}",
            block = out(xmm_reg) block,
            src = in(reg) src,
            dst = in(reg) dst,
            offset = const OFFSET,
            options(nostack, preserves_flags),
        );
    }
    block
}

/// Copies four blocks and gives what it copied.
///
/// # Safety
/// 64 bytes must be readable at `src` and writable at `dst`.
#[inline]
unsafe fn relay4(dst: *mut u8, src: *const u8) -> [__m128i; 4] {
    // SAFETY: the caller's promise.
    let a = unsafe { relay::<0>(dst, src) };
    // SAFETY: as above.
    let b = unsafe { relay::<16>(dst, src) };
    // SAFETY: as above.
    let c = unsafe { relay::<32>(dst, src) };
    // SAFETY: as above.
    let d = unsafe { relay::<48>(dst, src) };
    [a, b, c, d]
}
