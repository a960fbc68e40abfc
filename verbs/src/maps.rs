//! What the memory of this program allows.

use crate::answer::Errno;
use trunkline_dataplane::maps::Maps;

const FAULT: Errno = Errno(libc::EFAULT);

/// Checks that all of `length` bytes at `start` may be read and, where they are to be written, too.
///
/// A page that may not would end the program in the middle of a message.
///
/// # Errors
/// EFAULT: some of them may not.
pub(crate) fn check(start: usize, length: usize, written: bool) -> Result<(), Errno> {
    let end = start.checked_add(length).ok_or(FAULT)?;
    let may = Maps::read()?.all_within(&(start..end), |area| {
        area.readable && (area.writable || !written)
    });
    if may { Ok(()) } else { Err(FAULT) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_this_program_is_found_with_its_rights() {
        let bytes = [1u8; 100];
        let start = bytes.as_ptr().addr();
        assert_eq!(check(start, 100, true), Ok(()));
        static READ_ONLY: [u8; 100] = [1; 100];
        let start = READ_ONLY.as_ptr().addr();
        assert_eq!(check(start, 100, false), Ok(()));
        assert_eq!(check(start, 100, true), Err(FAULT));
        assert_eq!(check(8, 1, false), Err(FAULT));
        assert_eq!(check(start, usize::MAX, false), Err(FAULT));
    }
}
