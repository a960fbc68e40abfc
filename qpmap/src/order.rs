//! Numbers that wrap around.

/// Whether circular `a` comes before `b`.
pub(crate) const fn before(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() < 0
}

#[cfg(test)]
mod tests {
    use super::before;

    #[test]
    fn what_comes_first_on_a_circle_comes_first_where_it_wraps() {
        for at in [0, 1, 1 << 31, u32::MAX - 1, u32::MAX] {
            for ahead in [1, 2, u32::MAX >> 1] {
                assert!(before(at, at.wrapping_add(ahead)), "{ahead} behind {at}");
                assert!(!before(at.wrapping_add(ahead), at), "{ahead} ahead of {at}");
            }
            assert!(!before(at, at));
        }
    }
}
