//! What the memory of this program allows.

use crate::answer::Errno;
use std::fs::File;
use std::io::{BufRead, BufReader};

/// Checks that all of `length` bytes at `start` may be read and, where they are to be written, too.
///
/// A page that may not would end the program in the middle of a message.
///
/// # Errors
/// EFAULT: some of them may not.
pub(crate) fn check(start: u64, length: u64, written: bool) -> Result<(), Errno> {
    let maps = BufReader::new(File::open("/proc/self/maps")?);
    match allow(maps, start, length, written)? {
        true => Ok(()),
        false => Err(Errno(libc::EFAULT)),
    }
}

/// The same in a list as proc(5) describes it, whose ranges come in the order of their addresses.
fn allow(maps: impl BufRead, start: u64, length: u64, written: bool) -> Result<bool, Errno> {
    let Some(end) = start.checked_add(length) else {
        return Ok(false);
    };
    let mut covered = start;
    for line in maps.split(b'\n') {
        let line = line?;
        let Some((from, to, rights)) = parsed(&line) else {
            continue;
        };
        if to <= covered {
            continue;
        }
        let allowed = rights[0] == b'r' && (rights[1] == b'w' || !written);
        if from > covered || !allowed {
            return Ok(false);
        }
        if to >= end {
            return Ok(true);
        }
        covered = to;
    }
    Ok(false)
}

/// Range and rights of a line.
fn parsed(line: &[u8]) -> Option<(u64, u64, [u8; 2])> {
    let text = std::str::from_utf8(line.get(..64.min(line.len()))?).ok()?;
    let mut words = text.split(' ');
    let (from, to) = words.next()?.split_once('-')?;
    let rights = words.next()?.as_bytes();
    let address = |text| u64::from_str_radix(text, 16).ok();
    Some((
        address(from)?,
        address(to)?,
        [*rights.first()?, *rights.get(1)?],
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
1000-3000 r--p 00000000 00:01 42 /lib/x.so
3000-5000 rw-p 00000000 00:00 0
6000-7000 rw-s 00000000 00:00 0 [anon: with blanks]
7000-8000 ---p 00000000 00:00 0
";

    #[test]
    fn a_range_is_allowed_where_all_of_its_pages_are() {
        let allow = |start, length, written| {
            allow(MAPS.as_bytes(), start, length, written).expect("a list in memory")
        };
        assert!(allow(0x1000, 0x4000, false));
        assert!(allow(0x3fff, 0x1001, true));
        assert!(allow(0x6010, 8, true));
        assert!(
            !allow(0x1000, 0x4000, true),
            "the first range is not written"
        );
        assert!(!allow(0x4000, 0x2001, false), "there is a gap");
        assert!(!allow(0x6ff8, 16, false), "the last range is not read");
        assert!(!allow(0x8000, 1, false), "behind the last range");
        assert!(
            !allow(u64::MAX, 2, false),
            "past the end of the address space"
        );
    }

    #[test]
    fn memory_of_this_program_is_found() {
        let bytes = [1u8; 100];
        assert_eq!(check(bytes.as_ptr() as u64, 100, true), Ok(()));
        assert_eq!(check(8, 1, false), Err(Errno(libc::EFAULT)));
    }
}
