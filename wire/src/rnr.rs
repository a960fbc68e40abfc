//! RNR NAK timer codes (IBTA Vol 1, 9.7.5.2.8, table 45): 5 bits stand for 10 us to 655.36 ms.

/// In units of 10 us.
const UNITS: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// Time that an RNR NAK with timer `code` asks for, in nanoseconds. Code 0 is the longest; only
/// the five low bits count.
pub const fn rnr_timer_ns(code: u8) -> u64 {
    UNITS[(code & 0x1f) as usize] as u64 * 10_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_grow_from_10_us_and_code_0_is_655_ms() {
        assert_eq!(rnr_timer_ns(0), 655_360_000);
        assert_eq!(rnr_timer_ns(1), 10_000);
        assert_eq!(rnr_timer_ns(12), 640_000);
        assert_eq!(rnr_timer_ns(31), 491_520_000);
        assert!((2..32).all(|code| rnr_timer_ns(code) > rnr_timer_ns(code - 1)));
        assert_eq!(rnr_timer_ns(32), rnr_timer_ns(0));
    }
}
