//! Big-endian fields at fixed places of private data.

/// The `N` bytes at `at`. Only for constant places inside arrays of fixed length.
pub(crate) fn get<const N: usize, const LEN: usize>(bytes: &[u8; LEN], at: usize) -> [u8; N] {
    core::array::from_fn(|i| bytes[at + i])
}

pub(crate) fn u16_at<const LEN: usize>(bytes: &[u8; LEN], at: usize) -> u16 {
    u16::from_be_bytes(get(bytes, at))
}

pub(crate) fn u24_at<const LEN: usize>(bytes: &[u8; LEN], at: usize) -> u32 {
    u32::from_be_bytes([0, bytes[at], bytes[at + 1], bytes[at + 2]])
}

pub(crate) fn u32_at<const LEN: usize>(bytes: &[u8; LEN], at: usize) -> u32 {
    u32::from_be_bytes(get(bytes, at))
}

pub(crate) fn u64_at<const LEN: usize>(bytes: &[u8; LEN], at: usize) -> u64 {
    u64::from_be_bytes(get(bytes, at))
}

/// Writes `value` at `at`. Only for constant places inside arrays of fixed length.
pub(crate) fn put<const N: usize>(out: &mut [u8], at: usize, value: [u8; N]) {
    out[at..at + N].copy_from_slice(&value);
}
