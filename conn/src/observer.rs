//! Telling somebody what happens inside a state machine, while it happens.

use alloc::boxed::Box;
use core::fmt;

/// Who is told of each `T`, if anybody.
///
/// Nothing is queued, so nothing can be lost or overflow: whoever watches hears of it within the
/// call that makes it happen, and must be quick about it. It cannot answer: what is observed goes
/// on the same way whether somebody watches or not. Without a watcher a report costs one
/// comparison; what it would say is not even put together.
pub struct Observer<T>(Option<Watch<T>>);

type Watch<T> = Box<dyn FnMut(&T) + Send>;

impl<T> Observer<T> {
    /// Nobody watches.
    pub const fn none() -> Self {
        Self(None)
    }

    /// From now on `watch` is told.
    pub fn set(&mut self, watch: impl FnMut(&T) + Send + 'static) {
        self.0 = Some(Box::new(watch));
    }

    /// Reports what `describe` says, if somebody watches.
    #[inline]
    pub fn emit(&mut self, describe: impl FnOnce() -> T) {
        if let Some(watch) = &mut self.0 {
            watch(&describe());
        }
    }

    /// Whether somebody watches.
    #[inline]
    pub const fn is_watched(&self) -> bool {
        self.0.is_some()
    }
}

impl<T> Default for Observer<T> {
    fn default() -> Self {
        Self::none()
    }
}

impl<T> fmt::Debug for Observer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let watched = self.is_watched();
        f.debug_struct("Observer")
            .field("watched", &watched)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::Observer;
    use alloc::sync::Arc;
    use core::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn what_nobody_watches_is_not_even_described() {
        let mut observer = Observer::none();
        observer.emit(|| -> u32 { panic!("nobody asked") });
        let seen = Arc::new(AtomicU32::new(0));
        let sum = Arc::clone(&seen);
        observer.set(move |value: &u32| {
            sum.fetch_add(*value, Ordering::Relaxed);
        });
        observer.emit(|| 3);
        observer.emit(|| 4);
        assert_eq!(seen.load(Ordering::Relaxed), 7);
    }
}
