//! The descriptors of this process.

use std::io;
use std::os::fd::RawFd;

/// Those that are open.
pub(crate) fn open() -> io::Result<Vec<RawFd>> {
    let found = std::fs::read_dir("/proc/self/fd")?;
    let numbers = found.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    Ok(numbers.collect())
}

/// How many more it may open.
pub(crate) fn free() -> usize {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: room for a limit.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    let most = usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX);
    match open() {
        // One of them was the folder that lists them.
        Ok(open) => (most + 1).saturating_sub(open.len()),
        Err(error) => match error.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE) => 0,
            // There is no /proc: whether there are too few shows when they are opened.
            _ => most,
        },
    }
}
