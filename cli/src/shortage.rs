//! What helps a command that has run out of what a process may have.

use rustix::io::Errno;

/// What helps where there is no memory.
pub(crate) const MORE_MEMORY: &str =
    "free some, or let it have more (ulimit -v, MemoryMax= of a systemd unit)";

/// What helps after a complaint that ends with the words of the system, which numbers its errors.
pub(crate) fn remedy(complaint: &str) -> String {
    let is = |error: Errno| complaint.ends_with(&format!("(os error {})", error.raw_os_error()));
    // Threads are refused with the error for whatever may be had later.
    let needs_thread = complaint.contains("thread: ") || complaint.starts_with("cannot handle");
    if is(Errno::MFILE) {
        ": ulimit -n, or LimitNOFILE= of a systemd unit, allows it more".into()
    } else if is(Errno::NOMEM) {
        format!(": {MORE_MEMORY}")
    } else if is(Errno::AGAIN) && needs_thread {
        ": there are as many threads as it may have (ulimit -u, TasksMax= of a systemd unit), or \
         no memory for another one (ulimit -v, MemoryMax=)"
            .into()
    } else {
        String::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_may_not_have_more_of_is_named_with_what_allows_it() {
        let said = |complaint: &str, helps: &str| remedy(complaint).contains(helps);
        assert!(said("dup: Too many open files (os error 24)", "ulimit -n"));
        assert!(said(
            "mmap: Cannot allocate memory (os error 12)",
            "ulimit -v"
        ));
        let again = "Resource temporarily unavailable (os error 11)";
        assert!(said(&format!("thread: {again}"), "ulimit -u"));
        assert!(said(
            &format!("cannot handle signals: {again}"),
            "ulimit -u"
        ));
        assert_eq!(remedy(&format!("x: {again}")), "");
        assert_eq!(remedy("open x: Permission denied (os error 13)"), "");
    }
}
