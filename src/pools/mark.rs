//! What the engine notes for the pools of a connection, in a word: all that is kept of how it was
//! set up, once its handshake is over for good.

use super::private::place;
use trunkline_cm::Purpose;

/// Its handshake is not kept any more.
const HANDED_OVER: u32 = 1 << 31;
/// The peer had asked for it.
const THEIRS: u32 = 1 << 30;
/// A program has opened it, and has a handle.
const HANDLE: u32 = 1 << 29;
/// It has a place in the pool.
const POOL: u32 = 1 << 28;
/// The place of the handle's entry, or that in the pool.
const PLACE: u32 = POOL - 1;

/// That word.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Mark(pub(super) u32);

impl Mark {
    /// A connection for that purpose, of which a program may have the handle.
    ///
    /// # Panics
    /// The program has 2^28 connections.
    pub(super) const fn new(purpose: Purpose, handle: Option<u64>) -> Self {
        match (purpose, handle) {
            (_, Some(handle)) => {
                let place = place(handle);
                assert!(place <= PLACE, "memory ends before that");
                Self(HANDLE | place)
            }
            (Purpose::Pool(place), None) => Self(POOL | place as u32),
            (Purpose::Private, None) => Self(0),
        }
    }

    /// The same once its handshake is not kept any more, which was the peer's if it is `theirs`.
    pub(super) const fn handed_over(self, theirs: bool) -> Self {
        let theirs = if theirs { THEIRS } else { 0 };
        Self(self.0 | HANDED_OVER | theirs)
    }

    /// Whether the peer had asked for it, where its handshake is not kept any more.
    pub(super) fn is_handed_over(self) -> Option<bool> {
        (self.0 & HANDED_OVER != 0).then_some(self.0 & THEIRS != 0)
    }

    /// The place of the handle's entry.
    pub(super) fn handle(self) -> Option<u32> {
        (self.0 & HANDLE != 0).then_some(self.0 & PLACE)
    }

    /// Its place in the pool, where its handshake is not kept any more.
    pub(super) fn place_in_pool(self) -> Option<u8> {
        let both = HANDED_OVER | POOL;
        (self.0 & both == both).then_some(self.0 as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_says_what_was_noted() {
        let private = Mark::new(Purpose::Private, Some(7 << 32 | 5));
        assert_eq!(
            (private.handle(), private.is_handed_over()),
            (Some(5), None)
        );
        let later = private.handed_over(true);
        assert_eq!(
            (later.handle(), later.is_handed_over()),
            (Some(5), Some(true))
        );
        assert_eq!(later.place_in_pool(), None);
        let pool = Mark::new(Purpose::Pool(9), None);
        assert_eq!((pool.handle(), pool.place_in_pool()), (None, None));
        let later = pool.handed_over(false);
        assert_eq!(
            (later.place_in_pool(), later.is_handed_over()),
            (Some(9), Some(false))
        );
        assert_eq!(Mark::new(Purpose::Private, None), Mark(0));
    }
}
