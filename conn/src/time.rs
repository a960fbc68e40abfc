//! Time as an argument.

use core::ops::Add;

/// One microsecond in nanoseconds.
pub const MICROSECOND: u64 = 1_000;
/// One millisecond in nanoseconds.
pub const MILLISECOND: u64 = 1_000_000;
/// One second in nanoseconds.
pub const SECOND: u64 = 1_000_000_000;

/// Ticks of [`Instant::ticks`] per second.
pub const TICK_HZ: u32 = 1_000_000;
/// Bits of [`Instant::ticks`]: they begin anew after 16.8 s.
pub const TICK_BITS: u32 = 24;

/// A point in time: nanoseconds since an origin that the driver chooses. It lasts 584 years.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct Instant(u64);

impl Instant {
    /// The driver's origin.
    pub const ZERO: Self = Self(0);
    /// A time that never comes.
    pub const FAR: Self = Self(u64::MAX);

    /// `ns` nanoseconds after the origin.
    pub const fn from_nanos(ns: u64) -> Self {
        Self(ns)
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Ticks of [`TICK_HZ`] since the origin, of which [`TICK_BITS`] are kept.
    pub const fn ticks(self) -> u32 {
        let ticks = self.0 / (SECOND / TICK_HZ as u64);
        ticks as u32 & ((1 << TICK_BITS) - 1)
    }

    /// Nanoseconds from `earlier` to `self`; 0 when `earlier` is the later one.
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The earliest of moments some of which may never come; [`FAR`](Self::FAR) never does.
    #[inline]
    pub fn earliest<const N: usize>(moments: [Option<Self>; N]) -> Option<Self> {
        let first = moments.into_iter().fold(Self::FAR, |first, moment| {
            first.min(moment.unwrap_or(Self::FAR))
        });
        (first != Self::FAR).then_some(first)
    }
}

/// `instant + ns`, saturating at [`Instant::FAR`].
impl Add<u64> for Instant {
    type Output = Self;

    fn add(self, ns: u64) -> Self {
        Self(self.0.saturating_add(ns))
    }
}
