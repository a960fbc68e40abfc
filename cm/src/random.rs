//! Randomness as an argument.

/// A source of random numbers. A node takes one that strangers cannot predict: communication and
/// transaction IDs, by which forged datagrams are told from real ones, come from it. A simulator
/// takes a seeded one.
pub trait Random {
    /// 64 bits, evenly distributed.
    fn next(&mut self) -> u64;
}

impl<F: FnMut() -> u64> Random for F {
    fn next(&mut self) -> u64 {
        self()
    }
}
