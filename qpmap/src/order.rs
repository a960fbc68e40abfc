//! Numbers that wrap around.

/// Whether circular `a` comes before `b`.
pub(crate) const fn before(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() < 0
}
