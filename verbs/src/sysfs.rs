//! Files that tell of devices. This one has none of its own; programs read those of others.

use crate::answer::{Errno, INVALID, number};
use std::ffi::{CStr, OsStr, c_char, c_int};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// `ibv_get_sysfs_path`: where the file system is mounted.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// `ibv_read_sysfs_file`: reads `file` in the folder `dir`, without the newline at its end. Answers
/// with the bytes that it took, or -1.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    room: *mut c_char,
    size: usize,
) -> c_int {
    number(|| {
        if dir.is_null() || file.is_null() || room.is_null() {
            return Err(INVALID);
        }
        // SAFETY: the program gives two texts.
        let [dir, file] = [dir, file].map(|text| unsafe { CStr::from_ptr(text) });
        let path = Path::new(OsStr::from_bytes(dir.to_bytes()));
        let path = path.join(OsStr::from_bytes(file.to_bytes()));
        // SAFETY: the program gives room of this size, and has it to itself until this returns.
        let room = unsafe { std::slice::from_raw_parts_mut(room.cast::<u8>(), size) };
        read_line(&path, room)
    })
}

fn read_line(path: &Path, room: &mut [u8]) -> Result<c_int, Errno> {
    let mut length = File::open(path)?.read(room)?;
    if length > 0 && room[length - 1] == b'\n' {
        length -= 1;
        room[length] = 0;
    } else if length < room.len() {
        room[length] = 0;
    } else {
        // A text of which nobody would find the end.
        return Err(Errno(libc::EOVERFLOW));
    }
    c_int::try_from(length).map_err(|_| INVALID)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_without_the_newline_at_its_end() {
        let mut room = [1u8; 16];
        let (room_at, size) = (room.as_mut_ptr().cast(), room.len());
        let (dir, file) = (c"/proc/sys/kernel", c"ostype");
        // SAFETY: two texts, and room of this size.
        let read = unsafe { ibv_read_sysfs_file(dir.as_ptr(), file.as_ptr(), room_at, size) };
        assert_eq!((read, &room[..6]), (5, &b"Linux\0"[..]));
        // SAFETY: as before, with less room.
        let read = unsafe { ibv_read_sysfs_file(dir.as_ptr(), file.as_ptr(), room_at, 3) };
        assert_eq!(read, -1);
        // SAFETY: as before.
        let read = unsafe { ibv_read_sysfs_file(dir.as_ptr(), c"-".as_ptr(), room_at, size) };
        assert_eq!(read, -1);
    }
}
