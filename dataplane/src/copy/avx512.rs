//! The kernel for CPUs with AVX-512 and VPCLMULQDQ: 64 bytes per step, four sums side by side.
//!
//! A CRC does not see zeros before the message, so the message is thought to be longer by as many
//! zeros as make it a whole number of 64-byte blocks: only the first block is partial, and a masked
//! load makes it. The state so far is added to the first four real bytes, wherever they lie.

use super::{fold, pclmul};
use core::arch::asm;
use core::arch::x86_64::{
    __m512i, _mm_xor_si128, _mm512_castsi512_si128, _mm512_clmulepi64_epi128,
    _mm512_extracti32x4_epi32, _mm512_maskz_mov_epi8, _mm512_set_epi64, _mm512_set1_epi32,
    _mm512_ternarylogic_epi64, _mm512_xor_si512,
};
use core::ops::RangeInclusive;

/// Bytes of a block.
const BLOCK: usize = 64;
/// From this many blocks on, four sums run side by side.
const WIDE_FROM: usize = 8;
/// Below this many bytes sums by table are quicker.
const SUM_FROM: usize = 16;
/// Bytes that [`sum`] is the quickest for: with more, several sums side by side are.
pub(super) const SUMS: RangeInclusive<usize> = SUM_FROM..=512;

pub(super) fn is_available() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("vpclmulqdq")
        && is_x86_feature_detected!("pclmulqdq")
        && is_x86_feature_detected!("sse4.1")
}

/// Copies ascending, the last byte last.
///
/// # Safety
/// [`is_available`]; `src` readable and `dst` writable for `length` bytes, not overlapping.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn copy(mut dst: *mut u8, mut src: *const u8, length: usize) {
    if length == 0 {
        return;
    }
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
    let mask = !0u64 >> (BLOCK - left);
    // SAFETY: the mask covers the `left` bytes at `src`, at least one.
    let last = unsafe { load_masked(src, mask) };
    // SAFETY: the mask covers the `left` bytes at `dst`.
    unsafe { store_last(dst, last, mask) };
}

/// Copies as [`copy`] does and sums.
///
/// # Safety
/// As [`copy`].
#[target_feature(enable = "avx512f,avx512bw,vpclmulqdq,pclmulqdq,sse4.1")]
pub(super) unsafe fn copy_crc(dst: *mut u8, src: *const u8, length: usize, state: u32) -> u32 {
    if length < SUM_FROM {
        // SAFETY: the caller's promise.
        return unsafe { pclmul::small(dst, src, length, state) };
    }
    let zeros = length.wrapping_neg() % BLOCK;
    let mask = !0u64 << zeros;
    // The padded message begins `zeros` bytes before the real one; masked bytes are not touched.
    let (mut dst, mut src) = (dst.wrapping_sub(zeros), src.wrapping_sub(zeros));
    let mut blocks = length.div_ceil(BLOCK);
    let (state, spilled) = initial(state, zeros);

    // SAFETY: the mask covers only bytes of the range.
    let first = unsafe { load_masked(src, mask) };
    let mut sum = _mm512_xor_si512(first, state);
    if blocks == 1 {
        // SAFETY: as above.
        unsafe { store_last(dst, first, mask) };
        return finish(sum);
    }
    // SAFETY: as above.
    unsafe { store_masked(dst, first, mask) };
    (dst, src) = (dst.wrapping_add(BLOCK), src.wrapping_add(BLOCK));
    blocks -= 1;

    // From here on whole blocks. The state of a message that begins in the last three bytes of the
    // first block reaches into the second.
    let mut pending = spilled;
    if blocks >= WIDE_FROM {
        // SAFETY: `blocks` blocks are left at both addresses.
        sum = unsafe { copy_crc_wide(dst, src, blocks, sum, pending) };
        let done = blocks / 4 * 4;
        (dst, src) = (
            dst.wrapping_add(done * BLOCK),
            src.wrapping_add(done * BLOCK),
        );
        blocks -= done;
        pending = _mm512_set1_epi32(0);
    }
    let step = multiplier(512);
    while blocks > 0 {
        let block = if blocks > 1 {
            // SAFETY: a block is left at both addresses.
            unsafe { relay::<0>(dst, src) }
        } else {
            // SAFETY: as above.
            unsafe { relay_last(dst, src) }
        };
        sum = folded(sum, step, _mm512_xor_si512(block, pending));
        pending = _mm512_set1_epi32(0);
        (dst, src) = (dst.wrapping_add(BLOCK), src.wrapping_add(BLOCK));
        blocks -= 1;
    }
    finish(sum)
}

/// The CRC-32 of `state`'s bytes followed by `bytes`: one sum, as headers are short.
#[target_feature(enable = "avx512f,avx512bw,vpclmulqdq,pclmulqdq,sse4.1")]
pub(super) fn sum(bytes: &[u8], state: u32) -> u32 {
    let zeros = bytes.len().wrapping_neg() % BLOCK;
    let (state, mut pending) = initial(state, zeros);
    let (first, blocks) = bytes.split_at(BLOCK - zeros);
    // SAFETY: the mask covers only the bytes of `first`, which end a block.
    let first = unsafe { load_masked(first.as_ptr().wrapping_sub(zeros), !0u64 << zeros) };
    let mut sum = _mm512_xor_si512(first, state);
    let Some((last, others)) = blocks.as_chunks::<BLOCK>().0.split_last() else {
        return finish(sum);
    };
    for block in others {
        // SAFETY: a whole block.
        let block = unsafe { load_masked(block.as_ptr(), !0) };
        sum = folded(sum, multiplier(512), _mm512_xor_si512(block, pending));
        pending = _mm512_set1_epi32(0);
    }
    // SAFETY: as above.
    let last = unsafe { load_masked(last.as_ptr(), !0) };
    finish_after(sum, _mm512_xor_si512(last, pending))
}

/// Copies and sums as many groups of four blocks as there are in `blocks`, with four sums side by
/// side, `sum` being what came before and `pending` what is to be added to the first block.
///
/// # Safety
/// `src` readable and `dst` writable for `blocks` blocks, which are at least 8. The last of them is
/// the last of the copy.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,vpclmulqdq")]
unsafe fn copy_crc_wide(
    mut dst: *mut u8,
    mut src: *const u8,
    blocks: usize,
    sum: __m512i,
    pending: __m512i,
) -> __m512i {
    // SAFETY: four blocks are there.
    let [a, b, c, d] = unsafe { relay4(dst, src) };
    // What came before lies one block ahead of `a`.
    let mut sums = [
        folded(sum, multiplier(512), _mm512_xor_si512(a, pending)),
        b,
        c,
        d,
    ];
    let step = multiplier(4 * 512);
    let mut left = blocks - 4;
    while left >= 4 {
        (dst, src) = (dst.wrapping_add(4 * BLOCK), src.wrapping_add(4 * BLOCK));
        let [a, b, c, d] = if left > 4 {
            // SAFETY: `left` blocks are there.
            unsafe { relay4(dst, src) }
        } else {
            // SAFETY: as above.
            unsafe { relay4_last(dst, src) }
        };
        sums = [
            folded(sums[0], step, a),
            folded(sums[1], step, b),
            folded(sums[2], step, c),
            folded(sums[3], step, d),
        ];
        left -= 4;
    }
    let early = folded(sums[0], multiplier(3 * 512), sums[3]);
    let late = folded(sums[1], multiplier(2 * 512), early);
    folded(sums[2], multiplier(512), late)
}

/// The state as what has to be added to the first and second block of a message padded with
/// `zeros`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn initial(state: u32, zeros: usize) -> (__m512i, __m512i) {
    let place = 0xf_u128 << zeros;
    let bytes = (!state).rotate_left(8 * (zeros as u32 % 4)).cast_signed();
    let everywhere = _mm512_set1_epi32(bytes);
    let first = _mm512_maskz_mov_epi8(place as u64, everywhere);
    (
        first,
        _mm512_maskz_mov_epi8((place >> 64) as u64, everywhere),
    )
}

/// The multipliers that move four times 128 bits by `bits`.
#[inline]
#[target_feature(enable = "avx512f")]
fn multiplier(bits: u32) -> __m512i {
    let [low, high] = match bits {
        512 => const { fold::by(512) },
        1024 => const { fold::by(1024) },
        1536 => const { fold::by(1536) },
        2048 => const { fold::by(2048) },
        _ => unreachable!("distances are multiples of a block, up to four"),
    };
    let (low, high) = (low.cast_signed(), high.cast_signed());
    _mm512_set_epi64(high, low, high, low, high, low, high, low)
}

/// `sum` moved by what `multipliers` say, plus `block`.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn folded(sum: __m512i, multipliers: __m512i, block: __m512i) -> __m512i {
    const XOR3: i32 = 0x96;
    let low = _mm512_clmulepi64_epi128(sum, multipliers, 0x00);
    let high = _mm512_clmulepi64_epi128(sum, multipliers, 0x11);
    _mm512_ternarylogic_epi64(low, high, block, XOR3)
}

/// The CRC of a message whose folded sum is `sum`.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq,pclmulqdq,sse4.1")]
fn finish(sum: __m512i) -> u32 {
    gathered(moved(sum, _mm512_set1_epi32(0)), sum)
}

/// The CRC of a message whose folded sum before its last block is `before`: quicker than to fold
/// that into the last one first, as neither waits for the other.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq,pclmulqdq,sse4.1")]
fn finish_after(before: __m512i, last: __m512i) -> u32 {
    const LANES: [[u64; 2]; 4] = [fold::by(896), fold::by(768), fold::by(640), fold::by(512)];
    let before = folded(before, lanes(LANES), _mm512_set1_epi32(0));
    gathered(moved(last, before), last)
}

/// The first three lanes of `sum` moved to the place of the fourth, plus `others`.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn moved(sum: __m512i, others: __m512i) -> __m512i {
    const LANES: [[u64; 2]; 4] = [fold::by(384), fold::by(256), fold::by(128), [0, 0]];
    folded(sum, lanes(LANES), others)
}

/// A multiplier for each lane of 128 bits.
#[inline]
#[target_feature(enable = "avx512f")]
fn lanes(by: [[u64; 2]; 4]) -> __m512i {
    let [[a, b], [c, d], [e, f], [g, h]] = by.map(|by| by.map(u64::cast_signed));
    _mm512_set_epi64(h, g, f, e, d, c, b, a)
}

/// The CRC of what the lanes of `moved` and the last lane of `sum` add up to.
#[inline]
#[target_feature(enable = "avx512f,pclmulqdq,sse4.1")]
fn gathered(moved: __m512i, sum: __m512i) -> u32 {
    let one = _mm_xor_si128(
        _mm512_castsi512_si128(moved),
        _mm512_extracti32x4_epi32(moved, 1),
    );
    let two = _mm_xor_si128(
        _mm512_extracti32x4_epi32(moved, 2),
        _mm_xor_si128(
            _mm512_extracti32x4_epi32(moved, 3),
            _mm512_extracti32x4_epi32(sum, 3),
        ),
    );
    pclmul::reduce(_mm_xor_si128(one, two))
}

/// Copies a block and gives what it copied.
///
/// # Safety
/// 64 bytes must be readable at `src + OFFSET` and writable at `dst + OFFSET`.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn relay<const OFFSET: usize>(dst: *mut u8, src: *const u8) -> __m512i {
    let block: __m512i;
    // SAFETY: reads and writes what the caller vouches for, once; opaque to the optimiser, so that
    // a racing writer only decides which bytes are found; asm blocks keep their order.
    unsafe {
        asm!(
            "vmovdqu64 {block}, zmmword ptr [{src} + {offset}]",
            "vmovdqu64 zmmword ptr [{dst} + {offset}], {block}",
            block = out(zmm_reg) block,
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
/// 256 bytes must be readable at `src` and writable at `dst`.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn relay4(dst: *mut u8, src: *const u8) -> [__m512i; 4] {
    // SAFETY: the caller's promise.
    let a = unsafe { relay::<0>(dst, src) };
    // SAFETY: as above.
    let b = unsafe { relay::<64>(dst, src) };
    // SAFETY: as above.
    let c = unsafe { relay::<128>(dst, src) };
    // SAFETY: as above.
    let d = unsafe { relay::<192>(dst, src) };
    [a, b, c, d]
}

/// [`relay`] for the last block: its last byte is stored last.
///
/// # Safety
/// 64 bytes must be readable at `src` and writable at `dst`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn relay_last(dst: *mut u8, src: *const u8) -> __m512i {
    // SAFETY: the caller's promise.
    let block = unsafe { load_masked(src, !0) };
    // SAFETY: as above.
    unsafe { store_last(dst, block, !0) };
    block
}

/// [`relay4`] for the last four blocks.
///
/// # Safety
/// 256 bytes must be readable at `src` and writable at `dst`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn relay4_last(dst: *mut u8, src: *const u8) -> [__m512i; 4] {
    // SAFETY: the caller's promise.
    let a = unsafe { relay::<0>(dst, src) };
    // SAFETY: as above.
    let b = unsafe { relay::<64>(dst, src) };
    // SAFETY: as above.
    let c = unsafe { relay::<128>(dst, src) };
    // SAFETY: as above.
    let d = unsafe { relay_last(dst.wrapping_add(192), src.wrapping_add(192)) };
    [a, b, c, d]
}

/// The bytes that `mask` selects of the 64 at `src`, zero elsewhere.
///
/// # Safety
/// The selected bytes must be readable; the others need not exist.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn load_masked(src: *const u8, mask: u64) -> __m512i {
    let block: __m512i;
    // SAFETY: as `relay`; bytes outside the mask are not accessed and cannot fault.
    unsafe {
        asm!(
            "vmovdqu8 {block}{{{mask}}}{{z}}, zmmword ptr [{src}]",
            block = lateout(zmm_reg) block,
            mask = in(kreg) mask,
            src = in(reg) src,
            options(readonly, nostack, preserves_flags),
        );
    }
    block
}

/// # Safety
/// The bytes that `mask` selects of the 64 at `dst` must be writable; the others need not exist.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn store_masked(dst: *mut u8, block: __m512i, mask: u64) {
    // SAFETY: as `relay`; bytes outside the mask are not accessed and cannot fault.
    unsafe {
        asm!(
            "vmovdqu8 zmmword ptr [{dst}]{{{mask}}}, {block}",
            block = in(zmm_reg) block,
            mask = in(kreg) mask,
            dst = in(reg) dst,
            options(nostack, preserves_flags),
        );
    }
}

/// Stores the bytes that `mask` selects, the last of them by a store of its own after the others.
///
/// # Safety
/// As [`store_masked`]; `mask` selects at least one byte.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn store_last(dst: *mut u8, block: __m512i, mask: u64) {
    let last = 1u64 << (u64::BITS - 1 - mask.leading_zeros());
    // SAFETY: a subset of the mask.
    unsafe { store_masked(dst, block, mask ^ last) };
    // SAFETY: as above.
    unsafe { store_masked(dst, block, last) };
}
