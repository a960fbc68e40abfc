//! Randomness as an argument.

use trunkline_conn::secret::Stream;

/// A source of random numbers. A node takes one that strangers cannot predict: communication and
/// transaction IDs, by which forged datagrams are told from real ones, come from it: the
/// [`Stream`] of a secret.
pub trait Random {
    /// 64 bits, evenly distributed.
    fn next(&mut self) -> u64;
}

impl<F: FnMut() -> u64> Random for F {
    fn next(&mut self) -> u64 {
        self()
    }
}

impl Random for Stream {
    fn next(&mut self) -> u64 {
        self.next_u64()
    }
}
