//! What pointers of programs lead to: objects that begin with the structure of the header.

use crate::answer::{BUSY, Errno, INVALID};
use std::sync::Arc;

/// An object that a program holds by a pointer to the structure at its front.
///
/// # Safety
/// The type is `repr(C)`, and its first field is an `Abi` or an `UnsafeCell` of one.
pub(crate) unsafe trait Object: Sized {
    /// The structure of the header.
    type Abi;

    /// Hands it to the program, which gives it back to [`take`](Self::take).
    fn give(self) -> *mut Self::Abi {
        Box::into_raw(Box::new(self)).cast()
    }

    /// The object behind a pointer of the program.
    ///
    /// # Safety
    /// `abi` is NULL, or [`give`](Self::give) gave it and nobody took it.
    unsafe fn of<'a>(abi: *mut Self::Abi) -> Result<&'a Self, Errno> {
        // SAFETY: it is NULL, or leads to an object of this type, which lives until it is taken.
        unsafe { abi.cast::<Self>().as_ref() }.ok_or(INVALID)
    }

    /// Takes the object back.
    ///
    /// # Safety
    /// [`give`](Self::give) gave it, nobody took it, and nobody uses it any more.
    unsafe fn take(abi: *mut Self::Abi) -> Box<Self> {
        // SAFETY: `give` made it from a box, and the caller is the only one who has it.
        unsafe { Box::from_raw(abi.cast()) }
    }
}

/// Who uses an object that may not be destroyed meanwhile.
#[derive(Default)]
pub(crate) struct Uses(Arc<()>);

/// Held by whoever uses an object.
pub(crate) struct Use(#[expect(dead_code, reason = "it counts as long as it is there")] Arc<()>);

impl Uses {
    /// One more user.
    pub(crate) fn hold(&self) -> Use {
        Use(Arc::clone(&self.0))
    }

    /// Whether nobody uses it.
    ///
    /// # Errors
    /// EBUSY
    pub(crate) fn check_none(&self) -> Result<(), Errno> {
        if Arc::strong_count(&self.0) > 1 {
            return Err(BUSY);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_busy_as_long_as_somebody_uses_it() {
        let uses = Uses::default();
        assert_eq!(uses.check_none(), Ok(()));
        let (first, second) = (uses.hold(), uses.hold());
        drop(first);
        assert_eq!(uses.check_none(), Err(BUSY));
        drop(second);
        assert_eq!(uses.check_none(), Ok(()));
    }
}
