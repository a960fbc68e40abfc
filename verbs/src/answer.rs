//! How calls answer: results in the words of C, and the error number of each error.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use trunkline::{Down, Error};

/// A value of `errno`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Errno(pub(crate) c_int);

/// What is not offered.
pub(crate) const UNSUPPORTED: Errno = Errno(libc::EOPNOTSUPP);
/// An argument that cannot be.
pub(crate) const INVALID: Errno = Errno(libc::EINVAL);
/// An object that others use.
pub(crate) const BUSY: Errno = Errno(libc::EBUSY);

impl Errno {
    /// Leaves it where C programs look for it.
    pub(crate) fn set(self) {
        // SAFETY: the call has no conditions.
        let place = unsafe { libc::__errno_location() };
        // SAFETY: the place is this thread's own, for as long as the thread runs.
        unsafe { *place = self.0 };
    }

    fn of_system(error: &std::io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl From<Error> for Errno {
    fn from(error: Error) -> Self {
        use trunkline::{PortError, UdpOpenError};
        match error {
            Error::Verbs(error) => Self(error.errno()),
            Error::Post(error) => Self(error.error.errno()),
            Error::Down(Down::Forked) => Self(libc::EPERM),
            Error::System { source, .. }
            | Error::Port(PortError::System { source, .. })
            | Error::Open(UdpOpenError::System { source, .. }) => Self::of_system(&source),
            Error::Open(UdpOpenError::InUse { .. }) => Self(libc::EADDRINUSE),
            Error::Open(UdpOpenError::NotLocal { .. }) => Self(libc::EADDRNOTAVAIL),
            Error::Open(_)
            | Error::BadAddress { .. }
            | Error::OutOfRegion { .. }
            | Error::Misaligned { .. }
            | Error::Cm(_) => INVALID,
            // What the service lacks, or what is wrong for it; 0 would be no error.
            Error::Refused { errno, .. } => match i32::try_from(errno) {
                Ok(errno @ 1..) => Self(errno),
                _ => Self(libc::EIO),
            },
            Error::NoConnection { .. } => Self(libc::EHOSTUNREACH),
            Error::Unfinished => Self(libc::ETIMEDOUT),
            // A node that is down, a CQ in error, and what is not known yet.
            _ => Self(libc::EIO),
        }
    }
}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Self {
        Self::of_system(&error)
    }
}

impl From<rustix::io::Errno> for Errno {
    fn from(error: rustix::io::Errno) -> Self {
        Self(error.raw_os_error())
    }
}

/// Runs the body of a call. A panic ends here: the message has been said, the node is down if it
/// was in the middle of something, and the program gets EIO, as from a device that failed.
fn guarded<T>(call: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    let answer = catch_unwind(AssertUnwindSafe(call)).unwrap_or(Err(Errno(libc::EIO)));
    answer.inspect_err(|errno| errno.set())
}

/// A call that answers with 0 or an error number.
pub(crate) fn code(call: impl FnOnce() -> Result<(), Errno>) -> c_int {
    guarded(call).map_or_else(|errno| errno.0, |()| 0)
}

/// A call that answers with a number that is not negative, or -1.
pub(crate) fn number(call: impl FnOnce() -> Result<c_int, Errno>) -> c_int {
    guarded(call).unwrap_or(-1)
}

/// A call that answers with an object, or NULL.
pub(crate) fn pointer<T>(call: impl FnOnce() -> Result<*mut T, Errno>) -> *mut T {
    guarded(call).unwrap_or(ptr::null_mut())
}

/// A call that answers with nothing.
pub(crate) fn nothing(call: impl FnOnce() -> Result<(), Errno>) {
    // What went wrong is in errno, the only place for it.
    let _ = guarded(call);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_service_refuses_has_its_number() {
        let refused = |errno: u32| {
            let why = "no".into();
            Errno::from(Error::Refused { errno, why })
        };
        assert_eq!(refused(libc::ENOMEM as u32), Errno(libc::ENOMEM));
        assert_eq!(refused(0), Errno(libc::EIO));
        assert_eq!(refused(u32::MAX), Errno(libc::EIO));
    }
    use trunkline::VerbsError;

    fn errno() -> c_int {
        std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
    }

    #[test]
    fn an_error_is_answered_and_left_in_errno() {
        assert_eq!(code(|| Err(BUSY)), libc::EBUSY);
        assert_eq!(errno(), libc::EBUSY);
        assert_eq!(number(|| Err(INVALID)), -1);
        assert_eq!(errno(), libc::EINVAL);
        assert!(pointer::<u8>(|| Err(UNSUPPORTED)).is_null());
        assert_eq!(errno(), libc::EOPNOTSUPP);
        assert_eq!((code(|| Ok(())), number(|| Ok(7))), (0, 7));
    }

    #[test]
    fn a_panic_becomes_an_input_output_error() {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let answer = code(|| panic!("of this test"));
        std::panic::set_hook(hook);
        assert_eq!(answer, libc::EIO);
    }

    #[test]
    fn errors_of_the_library_have_the_numbers_of_the_manual_pages() {
        let full = Error::Verbs(VerbsError::QueueFull { capacity: 1 });
        assert_eq!(Errno::from(full), Errno(libc::ENOMEM));
        assert_eq!(Errno::from(Error::Down(Down::Forked)), Errno(libc::EPERM));
        assert_eq!(Errno::from(Error::Down(Down::ShutDown)), Errno(libc::EIO));
        let source = std::io::Error::from_raw_os_error(libc::EMFILE);
        let error = Error::System {
            call: "eventfd",
            source,
        };
        assert_eq!(Errno::from(error), Errno(libc::EMFILE));
    }
}
