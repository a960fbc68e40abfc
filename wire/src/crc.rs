//! Running CRC-32 (IEEE 802.3, reflected): the sum behind the ICRC.

/// A CRC-32 that bytes are fed into piece by piece.
///
/// The state is the *finished* value so far (as `crc32fast::Hasher::finalize` gives it), so that
/// copy engines elsewhere can carry it through a fused copy-and-sum.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Crc(u32);

impl Crc {
    /// Nothing summed yet.
    pub const fn new() -> Self {
        Self(0)
    }

    /// Resumes from [`value`](Self::value).
    pub const fn resume(value: u32) -> Self {
        Self(value)
    }

    /// The CRC-32 of all bytes fed so far.
    pub const fn value(self) -> u32 {
        self.0
    }

    /// Feeds `bytes`.
    pub fn update(&mut self, bytes: &[u8]) {
        let mut hasher = crc32fast::Hasher::new_with_initial(self.0);
        hasher.update(bytes);
        self.0 = hasher.finalize();
    }
}
