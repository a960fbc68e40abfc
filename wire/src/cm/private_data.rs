//! Private data: bytes that communication management carries for its users.

use core::fmt;

/// `N` bytes for the users of communication management; what they do not fill is zero.
#[derive(Clone, Copy, Eq, PartialEq)]
pub struct PrivateData<const N: usize>(pub [u8; N]);

impl<const N: usize> PrivateData<N> {
    /// Bytes there is room for.
    pub const LEN: usize = N;

    /// `bytes` and zeros behind them; `None` when there are more than `N`.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut data = Self::default();
        data.0.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(data)
    }

    /// All the bytes, the zeros at the end included.
    pub const fn bytes(&self) -> &[u8; N] {
        &self.0
    }
}

impl<const N: usize> Default for PrivateData<N> {
    fn default() -> Self {
        Self([0; N])
    }
}

impl<const N: usize> fmt::Debug for PrivateData<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = self
            .0
            .iter()
            .rposition(|&byte| byte != 0)
            .map_or(0, |last| last + 1);
        write!(f, "{:02x?} of {N}", &self.0[..used])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn what_fits_is_followed_by_zeros() {
        let data = PrivateData::<4>::new(&[1, 2]).expect("two of four fit");
        assert_eq!(data.bytes(), &[1, 2, 0, 0]);
        assert_eq!(format!("{data:?}"), "[01, 02] of 4");
        assert_eq!(PrivateData::<4>::new(&[0; 5]), None);
    }
}
